/**
 * Where a user's programs keep their state.
 *
 * @internal
 */

/**
 * The folder of acp-sidecar: in `$XDG_STATE_HOME`, or else in `~/.local/state`. Each counts when it is absolute, as the XDG
 * base directory specification wants it; what is absolute is for the platform to say.
 */
export const stateFolder = (
  isAbsolute: (path: string) => boolean,
  xdgStateHome: string | undefined,
  home: string | undefined
): string | undefined => {
  if (xdgStateHome !== undefined && isAbsolute(xdgStateHome)) return `${xdgStateHome}/acp-sidecar`
  return home !== undefined && isAbsolute(home) ? `${home}/.local/state/acp-sidecar` : undefined
}
