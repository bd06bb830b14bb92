/**
 * What can be read off a command without running it.
 *
 * @internal
 */

/** Programs that only run another, which an argument names. */
const runners = new Set(["node", "bun", "deno", "tsx", "npx", "bunx", "pnpx", "uvx", "python", "python3"])

export const lastSegment = (path: string): string => path.split(/[/\\]/).at(-1)!

/** Where in a command the program stands that a runner is to run; -1 when the command is no runner's. */
export const scriptIndex = ([command, ...args]: readonly [string, ...ReadonlyArray<string>]): number => {
  const index = runners.has(lastSegment(command)) ? args.findIndex((argument) => !argument.startsWith("-")) : -1
  return index === -1 ? -1 : index + 1
}

/** Whether a path is absolute, here or on Windows. */
export const isAbsolute = (path: string): boolean => /^(?:\/|[A-Za-z]:[\\/]|\\\\)/.test(path)
