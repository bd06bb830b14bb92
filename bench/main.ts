// Measures the sidecar beside baselines of the same run. `npm run bench -- --help`.
import { availableParallelism, loadavg } from "node:os"
import { parseArgs } from "node:util"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Effect from "effect/Effect"
import { benches } from "./benches.ts"
import { cells, type Figure, headings, isMet } from "./figure.ts"
import * as Report from "./report.ts"

const all = Object.keys(benches)
const width = Math.max(...all.map((name) => name.length))
const help = `Usage: npm run bench [-- NAME... --quick --json --results]

Measures an embedded sidecar beside baselines of the same run: a bare pipe (no sidecar: split lines, parse, look the id
up), the ACP SDK's client connection, or the sidecar itself with less to do. Both sides take turns, round by round;
figures are medians, and ratios are medians of the ratios of each round. All of it takes a few minutes, and the exit code
is 0 whatever the figures are.

Benches (all of them by default):
${Object.entries(benches)
  .map(([name, { about }]) => `  ${name.padEnd(width)}  ${about}`)
  .join("\n")}

Options:
  --quick    a third of the rounds, for a first look
  --json     one object a line: { bench, value, low, high, unit, baseline, ratio, goal, met }
  --results  measures everything and writes bench/RESULTS.md
  --help     this text

A figure is named after its bench and its baseline: latency.p50.pipe is the median latency beside the bare pipe's.`

const read = () => {
  try {
    const { positionals, values } = parseArgs({
      allowPositionals: true,
      options: {
        quick: { type: "boolean", default: false },
        json: { type: "boolean", default: false },
        results: { type: "boolean", default: false },
        help: { type: "boolean", short: "h", default: false }
      }
    })
    const unknown = positionals.filter((name) => !Object.hasOwn(benches, name))
    if (unknown.length > 0) {
      throw new Error(`There is no bench ${unknown.join(", ")}; there are ${all.join(", ")}.`)
    }
    if (values.results && positionals.length > 0) {
      throw new Error("--results measures everything: leave the names out.")
    }
    return { names: positionals.length > 0 ? positionals : all, ...values }
  } catch (error) {
    console.error((error as Error).message)
    return process.exit(2)
  }
}

const round = (value: number): number => Number(value.toPrecision(4))

const json = (figure: Figure): string =>
  JSON.stringify({
    bench: figure.name,
    value: round(figure.value),
    low: round(figure.low),
    high: round(figure.high),
    unit: figure.unit,
    baseline: round(figure.baseline),
    ratio: round(figure.ratio),
    goal: figure.goal ?? null,
    met: isMet(figure)
  })

const columns = [28, 15, 22, 15, 8]

const row = (texts: ReadonlyArray<string>): string =>
  `  ${columns.map((size, column) => (column === 0 ? texts[0]!.padEnd(size) : texts[column]!.padStart(size))).join("")}   ${texts[5]!.padEnd(22)}${texts[6]!}`.trimEnd()

const args = read()

/** In `--json` what is printed is for programs, so what is for people goes to stderr. */
const tell = (text: string): void => (args.json ? console.error(text) : console.log(text))

const show = Effect.fnUntraced(function* (name: string, place: string, results: Report.Results) {
  const bench = benches[name]!
  tell(`[${place}] ${name}: ${bench.about}`)
  const started = performance.now()
  const figures = yield* Effect.scoped(bench.run((whole) => (args.quick ? Math.ceil(whole / 3) : whole)))
  results.figures.set(name, figures)
  if (!args.json) console.log(row(headings))
  for (const figure of figures) console.log(args.json ? json(figure) : row(cells(figure)))
  tell(`  (${((performance.now() - started) / 1000).toFixed(0)} s)\n`)
})

const warnIfBusy = Effect.sync(() => {
  const cores = availableParallelism()
  const load = loadavg()[0]!
  if (load <= cores / 2) return
  console.error(`This machine is busy (load ${load.toFixed(1)} on ${cores} cores): the figures are rough.`)
})

const run = Effect.gen(function* () {
  yield* warnIfBusy
  const results = Report.begin(args.quick)
  for (const [index, name] of args.names.entries()) yield* show(name, `${index + 1}/${args.names.length}`, results)
  if (args.results) tell(`The figures are in ${Report.write(results, benches)}.`)
})

if (args.help) console.log(help)
else run.pipe(Effect.provide(NodeServices.layer), NodeRuntime.runMain)
