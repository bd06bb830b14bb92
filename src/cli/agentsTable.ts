// The list of agents as text and as JSON. Pure.
import type { Installation } from "./installation.ts"
import { oneLine } from "./failure.ts"
import { style } from "./output.ts"
import { labelled } from "./report.ts"

const columns = (installations: ReadonlyArray<Installation>, of: (installation: Installation) => string): number =>
  Math.max(...installations.map((installation) => of(installation).length), 0) + 2

const nameOf = ({ profile }: Installation) => profile.name
const versionOf = ({ version }: Installation) => oneLine(version ?? "?", 20)

/** The program with its arguments; of a script in this package the script. */
const shown = ({ path, profile: { command } }: Installation) =>
  path === command[1] ? `${path}` : [path, ...command.slice(1)].join(" ")

/** Lines no wider than `width`, as far as what may not be broken allows: commands are there to be copied. */
export const lines = (
  installations: ReadonlyArray<Installation>,
  options: { readonly width: number; readonly isColored: boolean }
): ReadonlyArray<string> => {
  const here = installations.filter(({ path }) => path !== null)
  const missing = installations.filter(({ path }) => path === null)
  const shared = here.filter(({ profile }) => profile.shares !== "")
  const name = columns(installations, nameOf)
  const version = columns(here, versionOf)
  const heading = (text: string) => style(text, "bold", options.isColored)
  const row = (start: string, rest: string): ReadonlyArray<string> => {
    const line = `  ${start}${rest}`
    return line.length <= options.width ? [line] : [`  ${start.trimEnd()}`, `    ${rest}`]
  }
  return [
    ...(here.length === 0 ? [] : [heading("Installed here:")]),
    ...here.flatMap((installation) =>
      row(nameOf(installation).padEnd(name) + versionOf(installation).padEnd(version), oneLine(shown(installation)))
    ),
    ...(here.length === 0 || missing.length === 0 ? [] : [""]),
    ...(missing.length === 0 ? [] : [heading("Not installed. To install:")]),
    ...missing.flatMap((installation) => row(nameOf(installation).padEnd(name), installation.profile.install)),
    ...(shared.length === 0 ? [] : ["", heading("Where sessions share one process, they share:")]),
    ...shared.flatMap(({ profile }) => labelled(profile.name, profile.shares, options.width)),
    "",
    "To see whether one works: acp-sidecar doctor NAME"
  ]
}

/** The fields of `--json`. */
export const json = (installations: ReadonlyArray<Installation>) => ({
  agents: installations.map(({ package: found, path, profile, version }) => ({
    name: profile.name,
    installed: path !== null,
    path,
    version,
    package: found?.name ?? null,
    command: profile.command,
    install: profile.install,
    signIn: profile.signIn,
    needsAuthentication: profile.needsAuthentication,
    passEnv: profile.passEnv,
    share: profile.share,
    shares: profile.shares,
    quirks: profile.quirks
  }))
})
