// RESULTS.md: the figures of one whole run, and what is needed to read and to repeat them.
import { execFileSync } from "node:child_process"
import { readFileSync, writeFileSync } from "node:fs"
import { availableParallelism, cpus, loadavg, release, totalmem, type } from "node:os"
import { fileURLToPath } from "node:url"
import { type Bench, cells, type Figure, headings } from "./figure.ts"

const root = new URL("../", import.meta.url)

const versionOf = (name: string): string =>
  JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, root), "utf8")).version

/** The commit that was measured, when there is one to name. */
const commit = (): string => {
  try {
    const git = (...args: ReadonlyArray<string>) => execFileSync("git", args, { cwd: root, encoding: "utf8" }).trim()
    const changed = git("status", "--porcelain", "--", "src", "bench/*.ts", "bench/*.mjs", "bench/*/*") !== ""
    return git("rev-parse", "--short", "HEAD") + (changed ? ", with changes" : "")
  } catch {
    return "unknown"
  }
}

const machine = (quick: boolean): ReadonlyArray<readonly [string, string]> => [
  ["date", new Date().toISOString().slice(0, 16).replace("T", " ") + " UTC"],
  ["processor", `${cpus()[0]?.model ?? "unknown"}, ${availableParallelism()} cores`],
  ["memory", `${(totalmem() / 1024 ** 3).toFixed(1)} GiB`],
  ["system", `${type()} ${release()}, ${process.arch}`],
  ["Node", process.versions.node],
  ["effect", `${versionOf("effect")}, @effect/platform-node ${versionOf("@effect/platform-node")}`],
  ["ACP SDK", versionOf("@agentclientprotocol/sdk")],
  ["commit", commit()],
  ["rounds", quick ? "a third of them (--quick)" : "all"],
  ["load before", `${loadavg()[0]!.toFixed(1)} on ${availableParallelism()} cores`]
]

const row = (texts: ReadonlyArray<string>): string => `| ${texts.join(" | ")} |`

export interface Results {
  readonly machine: ReadonlyArray<readonly [string, string]>
  readonly figures: Map<string, ReadonlyArray<Figure>>
}

/** Looked at before anything is measured. */
export const begin = (quick: boolean): Results => ({ machine: machine(quick), figures: new Map() })

const describe = ({ about, detail }: Bench): string =>
  `${about.charAt(0).toUpperCase()}${about.slice(1)}.${detail === undefined ? "" : ` ${detail}`}`

const render = ({ figures, machine }: Results, benches: Readonly<Record<string, Bench>>): string =>
  [
    "# Figures",
    "",
    "Written by `npm run bench -- --results`, which measures all of this in a few minutes; repeat it on a machine that",
    "does nothing else. Each figure stands beside a baseline that was measured in the same run, in turns with it, so the",
    "ratios say more than the times do. Figures and baselines are medians of the rounds; half of the rounds lie in the",
    "middle half; a ratio is the median of the ratios of each round. A figure is named after its bench and its baseline.",
    "",
    row(["", ""]),
    row(["---", "---"]),
    ...machine.map(row),
    ...Array.from(figures).flatMap(([name, found]) => [
      "",
      `## ${name}`,
      "",
      describe(benches[name]!),
      "",
      row(headings),
      row(headings.map((_, column) => (column === 0 || column > 4 ? "---" : "---:"))),
      ...found.map((figure) => row(cells(figure)))
    ]),
    ""
  ].join("\n")

export const write = (results: Results, benches: Readonly<Record<string, Bench>>): string => {
  const file = fileURLToPath(new URL("bench/RESULTS.md", root))
  writeFileSync(file, render(results, benches))
  return file
}
