// Measures the sidecar beside a bare pipe and beside the ACP SDK's client, which drive the same agent file.
// `npm run bench -- --help`.
import { availableParallelism, loadavg } from "node:os"
import { parseArgs } from "node:util"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Sidecar from "../src/Sidecar.ts"
import { type Bench, benches, type Figure, isMet } from "./benches.ts"

const width = Math.max(...Object.keys(benches).map((name) => name.length))
const help = `Usage: npm run bench [-- NAME... --json]

Measures an embedded sidecar beside two baselines that drive the same agent file: a bare pipe (no sidecar: split lines,
parse, look the id up) and the ACP SDK's client connection. Contenders take turns, round by round; figures are medians,
and ratios are medians of the ratios of each round. It takes about a quarter of a minute, and the exit code is 0 whatever the
figures are.

Benches (all of them by default):
${Object.entries(benches)
  .map(([name, { about }]) => `  ${name.padEnd(width)}  ${about}`)
  .join("\n")}

Options:
  --json  one object a line: { bench, value, unit, ratio, goal, met }
  --help  this text

A figure is named after its bench and its baseline: latency.p50.pipe is the median latency beside the bare pipe's.`

const read = () => {
  try {
    const { positionals, values } = parseArgs({
      allowPositionals: true,
      options: { json: { type: "boolean", default: false }, help: { type: "boolean", short: "h", default: false } }
    })
    const unknown = positionals.filter((name) => !Object.hasOwn(benches, name))
    if (unknown.length === 0) return { names: positionals, ...values }
    throw new Error(`There is no bench ${unknown.join(", ")}; there are ${Object.keys(benches).join(", ")}.`)
  } catch (error) {
    console.error((error as Error).message)
    return process.exit(2)
  }
}

const round = (value: number): number => Number(value.toPrecision(4))

const goalOf = ({ goal }: Figure): string | null =>
  goal === undefined ? null : `${goal.is === "at most" ? "<=" : ">="} ${goal.ratio}`

const json = (figure: Figure): string =>
  JSON.stringify({
    bench: figure.bench,
    value: round(figure.value),
    unit: figure.unit,
    ratio: round(figure.ratio),
    goal: goalOf(figure),
    met: isMet(figure)
  })

const amount = (value: number, unit: Figure["unit"]): string =>
  unit === "ms" ? `${value.toFixed(3)} ms` : `${Math.round(value).toLocaleString("en-US")} /s`

const row = (cells: ReadonlyArray<string>): string =>
  `  ${cells[0]!.padEnd(20)}${cells
    .slice(1, 4)
    .map((cell) => cell.padStart(14))
    .join("")}   ${cells.slice(4).join("   ")}`

const line = (figure: Figure): string => {
  const met = isMet(figure)
  return row([
    figure.bench,
    amount(figure.value, figure.unit),
    amount(figure.baseline, figure.unit),
    figure.ratio.toFixed(2),
    (goalOf(figure) ?? "").padEnd(6),
    met === null ? "" : met ? "met" : "missed"
  ]).trimEnd()
}

const show = Effect.fnUntraced(function* (name: string, bench: Bench, asJson: boolean) {
  if (!asJson) {
    console.log(`${name}: ${bench.about}`)
    console.log(row(["", "sidecar", "baseline", "ratio", "goal"]))
  }
  const figures = yield* Effect.scoped(bench.run)
  for (const figure of figures) console.log(asJson ? json(figure) : line(figure))
  if (!asJson) console.log("")
})

const warnIfBusy = Effect.sync(() => {
  const cores = availableParallelism()
  const load = loadavg()[0]!
  if (load <= cores / 2) return
  console.error(`This machine is busy (load ${load.toFixed(1)} on ${cores} cores): the figures are rough.`)
})

const args = read()
if (args.help) {
  console.log(help)
} else {
  const chosen = args.names.length > 0 ? args.names : Object.keys(benches)
  warnIfBusy.pipe(
    Effect.andThen(Effect.forEach(chosen, (name) => show(name, benches[name]!, args.json), { discard: true })),
    Effect.provide(Layer.provide(Sidecar.layer, NodeServices.layer)),
    NodeRuntime.runMain
  )
}
