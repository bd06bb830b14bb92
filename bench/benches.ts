// What is measured. Contenders take turns, round by round, so that a noisy machine is noisy for all of them.
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Contenders from "./contenders.ts"
import type * as Sidecar from "../src/Sidecar.ts"
import { median, quantile, ratio } from "./stats.ts"

/** One figure: ours, and how it stands to a baseline of the same run. Without a goal it is only told. */
export interface Figure {
  readonly bench: string
  readonly value: number
  readonly baseline: number
  readonly unit: "ms" | "updates/s"
  readonly ratio: number
  readonly goal: { readonly is: "at most" | "at least"; readonly ratio: number } | undefined
}

export const isMet = ({ goal, ratio: got }: Figure): boolean | null =>
  goal === undefined ? null : goal.is === "at most" ? got <= goal.ratio : got >= goal.ratio

export interface Bench {
  readonly about: string
  readonly run: Effect.Effect<ReadonlyArray<Figure>, never, Sidecar.Sidecar | Scope.Scope>
}

const contenders = Effect.gen(function* () {
  const session = yield* Effect.flatten(Contenders.openSession)
  return { ours: Contenders.sidecar(session), pipe: yield* Contenders.pipe, sdk: yield* Contenders.sdk }
})
type Name = "ours" | "pipe" | "sdk"

/** Runs all contenders, the first one of a round another one each time, and collects what each gave, in rounds. */
const interleave = Effect.fnUntraced(function* <A>(rounds: number, run: (name: Name) => Effect.Effect<A>) {
  const order: Array<Name> = ["ours", "pipe", "sdk"]
  const results: Record<Name, Array<A>> = { ours: [], pipe: [], sdk: [] }
  for (let round = 0; round < rounds; round++) {
    for (const name of order) results[name].push(yield* run(name))
    order.push(order.shift()!)
  }
  return results
})

const latency: Bench = {
  about: "a turn of one chunk, from session.prompt to its outcome",
  run: Effect.gen(function* () {
    const each = yield* contenders
    yield* interleave(3, (name) => each[name].turns(400))
    const rounds = yield* interleave(72, (name) => each[name].turns(50))
    const at = (name: Name, p: number) => rounds[name].map((times) => quantile(times, p))
    const figure = (label: string, p: number, baseline: "pipe" | "sdk", goal: Figure["goal"]): Figure => ({
      bench: `latency.${label}.${baseline}`,
      value: median(at("ours", p)),
      baseline: median(at(baseline, p)),
      unit: "ms",
      ratio: ratio(at("ours", p), at(baseline, p)),
      goal
    })
    return [
      figure("p50", 0.5, "pipe", { is: "at most", ratio: 2 }),
      figure("p95", 0.95, "pipe", undefined),
      figure("p50", 0.5, "sdk", undefined),
      figure("p95", 0.95, "sdk", undefined)
    ]
  })
}

const updates = 20_000

const streaming = (name: string, about: string, batch: number): Bench => ({
  about: `${updates} updates in one turn, counted through turn.updates; ${about}`,
  run: Effect.gen(function* () {
    const each = yield* contenders
    yield* interleave(3, (contender) => each[contender].stream(updates, batch))
    const rounds = yield* interleave(15, (contender) =>
      Effect.map(each[contender].stream(updates, batch), (ms) => (updates / ms) * 1000)
    )
    const figure = (baseline: "pipe" | "sdk", goal: number): Figure => ({
      bench: `${name}.${baseline}`,
      value: median(rounds.ours),
      baseline: median(rounds[baseline]),
      unit: "updates/s",
      ratio: ratio(rounds.ours, rounds[baseline]),
      goal: { is: "at least", ratio: goal }
    })
    return [figure("pipe", 0.7), figure("sdk", 3)]
  })
})

const throughput = streaming("throughput", "the agent writes them one by one, as agents do, and sets the pace", 1)
const burst = streaming("burst", "the agent writes 64 at a time, so that its reader sets the pace", 64)

const isolation: Bench = {
  about: "session B's turn while a turn of session A, in the same Vm, streams a chunk every 10 ms, beside B alone",
  run: Effect.gen(function* () {
    const open = yield* Contenders.openSession
    const slow = yield* open
    const fast = Contenders.sidecar(yield* open)
    const alone = fast.turns(200)
    const beside = Effect.gen(function* () {
      const turn = yield* Effect.orDie(slow.submit("CHUNKS:1000000 EVERY:10"))
      yield* turn.updates.pipe(
        Stream.filter((event) => event._tag === "Update"),
        Stream.take(1),
        Stream.runDrain
      )
      const times = yield* fast.turns(200)
      const outcome = yield* turn.cancel
      if (outcome._tag !== "Cancelled") return yield* Effect.die(new Error(`A ended by itself: ${outcome._tag}`))
      return times
    })
    yield* fast.turns(1000)
    const rounds: { readonly alone: Array<ReadonlyArray<number>>; readonly beside: Array<ReadonlyArray<number>> } = {
      alone: [],
      beside: []
    }
    for (let round = 0; round < 24; round++) {
      const order = round % 2 === 0 ? (["alone", "beside"] as const) : (["beside", "alone"] as const)
      for (const name of order) rounds[name].push(yield* name === "alone" ? alone : beside)
    }
    const figure = (label: string, p: number, goal: Figure["goal"]): Figure => {
      const at = (name: "alone" | "beside") => rounds[name].map((times) => quantile(times, p))
      return {
        bench: `isolation.${label}.alone`,
        value: median(at("beside")),
        baseline: median(at("alone")),
        unit: "ms",
        ratio: ratio(at("beside"), at("alone")),
        goal
      }
    }
    return [figure("p50", 0.5, { is: "at most", ratio: 1.1 }), figure("p95", 0.95, undefined)]
  })
}

export const benches: Readonly<Record<string, Bench>> = { latency, throughput, burst, isolation }
