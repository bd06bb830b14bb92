// Feeds garbage to the wire, the session and the schemas for a while. `npm run fuzz -- --help`.
import { getHeapStatistics, setFlagsFromString } from "node:v8"
import { runInNewContext } from "node:vm"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Fuzz from "./Fuzz.ts"
import * as Watchdog from "./watchdog.ts"

setFlagsFromString("--expose-gc")
const collect = runInNewContext("gc") as () => void

const MiB = 1024 * 1024
const heap = (): number => getHeapStatistics().used_heap_size / MiB
const heapAfterCollection = (): number => {
  collect()
  return heap()
}

/** Cases after which code is compiled and caches are warm. */
const warmUp = 200
/** What may stay on the heap after a run, in MiB; a leak grows with the cases. */
const mostGrowth = 16

interface Report {
  readonly target: Fuzz.Name
  readonly seed: number
  readonly cases: number
  readonly casesPerSecond: number
  /** The most that the heap grew by in between, and what was left of it after a garbage collection, in MiB. */
  readonly peakHeapMiB: number
  readonly keptHeapMiB: number
  readonly failure: Fuzz.Failure | null
}

interface Range {
  readonly first: number
  readonly last: number
  readonly seconds: number
}

const round = (value: number): number => Number(value.toFixed(1))

const fuzz = Effect.fnUntraced(function* (
  target: Fuzz.Name,
  seed: number,
  range: Range,
  progress: boolean,
  watch: (target: string, number: number) => void
) {
  const start = performance.now()
  const seconds = () => (performance.now() - start) / 1000
  let base = heapAfterCollection()
  let peak = base
  let told = 0
  let number = range.first
  let failure: Fuzz.Failure | undefined
  while (failure === undefined && number <= range.last && seconds() < range.seconds) {
    watch(target, number)
    failure = yield* Fuzz.run(target, seed, number++)
    const cases = number - range.first
    if (cases === warmUp) base = peak = heapAfterCollection()
    peak = Math.max(peak, heap())
    if (!progress || seconds() - told < 2) continue
    told = seconds()
    console.error(
      `${target}: ${cases} cases, ${Math.round(cases / told)} a second, heap +${round(peak - base)} MiB at most`
    )
  }
  const cases = number - range.first
  const report: Report = {
    target,
    seed,
    cases,
    casesPerSecond: Math.round(cases / seconds()),
    peakHeapMiB: round(peak - base),
    keptHeapMiB: round(heapAfterCollection() - base),
    failure: failure ?? null
  }
  return report
})

const isGood = ({ failure, keptHeapMiB }: Report): boolean => failure === null && keptHeapMiB <= mostGrowth

const text = (report: Report): string => {
  const { cases, casesPerSecond, failure, keptHeapMiB, peakHeapMiB, seed, target } = report
  const figures = `${cases} cases, ${casesPerSecond} a second, heap +${peakHeapMiB} MiB at most, ${keptHeapMiB} MiB kept`
  const verdict = failure !== null ? "FAILED" : isGood(report) ? "ok" : `FAILED: more than ${mostGrowth} MiB are kept`
  const line = `${target.padEnd(10)}  ${verdict}  (${figures})`
  if (failure === null) return line
  return [
    line,
    `  case ${failure.case} of seed ${seed}: npm run fuzz -- --target ${target} --seed ${seed} --case ${failure.case}`,
    failure.problem.replaceAll(/^/gm, "  "),
    failure.input
  ].join("\n")
}

const targetHelp = Object.entries(Fuzz.targets).map(([name, { about }]) => `${name}: ${about}`)

const command = Command.make(
  "npm run fuzz --",
  {
    seconds: Flag.Int("seconds").pipe(
      Flag.withDescription("How long to go on, for all targets together (default: 20)"),
      Flag.withDefault(20)
    ),
    seed: Flag.Int("seed").pipe(
      Flag.withDescription(
        "Where the cases come from; the same seed gives the same cases (default: another one each time)"
      ),
      Flag.optional
    ),
    case: Flag.Int("case").pipe(Flag.withDescription("Only this case, as a failure names it"), Flag.optional),
    target: Flag.Literals("target", Fuzz.names).pipe(
      Flag.withDescription(`What to feed (default: all). ${targetHelp.join("; ")}`),
      Flag.optional
    ),
    json: Flag.Boolean("json").pipe(Flag.withDescription("One object a line for each target"), Flag.withDefault(false))
  },
  Effect.fnUntraced(function* (flags) {
    const seed = Option.getOrElse(flags.seed, () => Date.now() % 1_000_000)
    const targets = Option.match(flags.target, { onNone: () => Fuzz.names, onSome: (name) => [name] })
    const range = Option.match(flags.case, {
      onNone: () => ({ first: 0, last: Infinity, seconds: flags.seconds / targets.length }),
      onSome: (number) => ({ first: number, last: number, seconds: Infinity })
    })
    if (!flags.json) console.log(`seed ${seed}`)
    const watch = Watchdog.start(seed)
    for (const target of targets) {
      const report = yield* fuzz(target, seed, range, !flags.json, watch)
      console.log(flags.json ? JSON.stringify(report) : text(report))
      if (!isGood(report)) process.exitCode = 1
    }
  })
).pipe(
  Command.withDescription(
    "Feeds mutated golden frames and random bytes to the codec, the connection, whole sessions and the schemas, with " +
      "marked valid frames between them. On a failure it prints the smallest input that shows it and the case to repeat, " +
      "and the exit code is 1."
  )
)

Command.run(command, { version: "1" }).pipe(Effect.provide(NodeServices.layer), NodeRuntime.runMain)
