// Writes the parts of the READMEs that come from the sources: programs, limits and agents. `--check` only compares.
import { readFileSync, writeFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import * as Duration from "effect/Duration"
import * as AgentProfile from "../src/AgentProfile.ts"
import * as SidecarLimits from "../src/SidecarLimits.ts"

const root = fileURLToPath(new URL("..", import.meta.url))
const read = (path: string) => readFileSync(root + path, "utf8")

/** The doc comment of each limit, from its interface. */
const docs = new Map(
  Array.from(
    read("src/SidecarLimits.ts").matchAll(/\/\*\*\s*([^*]*(?:\*(?!\/)[^*]*)*)\*\/\s+readonly (\w+):/g),
    (match) => [
      match[2]!,
      match[1]!
        .replace(/^\*\s*/, "")
        .replaceAll(/\s*\n\s*\*\s*/g, " ")
        .trim()
    ]
  )
)

const bytes = (value: number): string =>
  value % (1024 * 1024) === 0
    ? `${value / 1024 / 1024} MiB`
    : value % 1024 === 0
      ? `${value / 1024} KiB`
      : value.toLocaleString("en-US")

/** A time as it can be set: `10 seconds`. */
const written = (time: Duration.Duration): string => {
  const seconds = Duration.toSeconds(time)
  const [count, unit] =
    seconds % 3600 === 0
      ? [seconds / 3600, "hour"]
      : seconds % 60 === 0
        ? [seconds / 60, "minute"]
        : [seconds, "second"]
  return `${count} ${unit}${count === 1 ? "" : "s"}`
}

const shown = (name: string, value: unknown): string =>
  Duration.isDuration(value)
    ? Duration.isFinite(value)
      ? written(value)
      : "off"
    : value === null
      ? "an eighth"
      : /bytes/i.test(name)
        ? bytes(value as number)
        : (value as number).toLocaleString("en-US")

const limits = [
  "| limit | environment | default | what it bounds |",
  "|---|---|---|---|",
  ...Object.entries(SidecarLimits.defaults).map(
    ([name, value]) =>
      `| \`${name}\` | \`${SidecarLimits.setting(name as keyof SidecarLimits.SidecarLimits)}\` | ${shown(name, value)} | ${docs.get(name)} |`
  )
].join("\n")

const shared = (share: AgentProfile.AgentProfile["share"]): string =>
  share === false ? "no" : share.scope === "vm" ? "in a Vm" : share.scope === "sidecar" ? "all Vms" : share.scope

const agents = [
  "| name | command | install | shares a process by default | what sessions in one process share | a second prompt while busy |",
  "|---|---|---|---|---|---|",
  ...Object.values(AgentProfile.builtIn).map(
    ({ command, install, name, share, shares, whileBusy }) =>
      `| ${name} | \`${command.join(" ")}\` | ${install.startsWith("npm ") ? `\`${install}\`` : install} | ${shared(share)} | ${shares} | ${whileBusy.replaceAll("_", " ")} |`
  )
].join("\n")

export const update = (text: string): string =>
  text
    .replaceAll(
      /(<!-- (examples\/\S+) -->\n```ts\n)[^]*?(```)/g,
      (_, start: string, path: string, end: string) => start + read(path) + end
    )
    .replace(/<!-- limits -->\n[^]*?(?=\n## )/, () => `<!-- limits -->\n\n${limits}\n`)
    .replace(/<!-- agents -->\n[^]*?(?=\n##+ )/, () => `<!-- agents -->\n\n${agents}\n`)

for (const path of ["README.md", "src/testing/README.md"]) {
  const before = read(path)
  const after = update(before)
  if (!process.argv.includes("--check")) writeFileSync(root + path, after)
  else if (before !== after) {
    console.error(`${path} is not what the sources say; run: npm run readme`)
    process.exitCode = 1
  }
}
