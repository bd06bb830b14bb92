// One session's turns while another one on the same process is flooded.
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import * as Agents from "../agents.ts"
import * as Bundled from "../bundled.ts"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare, type Goal } from "../figure.ts"
import { quantile } from "../stats.ts"

const updates = 20_000

/** B's turns during one flood of A, which is read to its end, and as many turns of B alone; both are new. */
const round = (open: Effect.Effect<Contenders.Contender, never, Scope.Scope>) =>
  Effect.gen(function* () {
    const noisy = yield* open
    const quiet = yield* open
    const flood = yield* Effect.forkChild(noisy.stream(updates, 64), { startImmediately: true })
    const beside: Array<number> = []
    while (flood.pollUnsafe() === undefined) beside.push(...(yield* quiet.turns(1)))
    yield* Fiber.join(flood)
    return { beside, alone: yield* quiet.turns(Math.max(20, beside.length)) }
  }).pipe(Effect.scoped)

const withAgent = Effect.fnUntraced(function* (
  name: string,
  driven: Contenders.Driven,
  rounds: (whole: number) => number
) {
  const { openSession } = yield* Agents.sidecar(Bundled.profileOf(driven))
  // It stays, so that the process does.
  yield* openSession
  const both = {
    ours: round(Effect.map(openSession, (session) => Contenders.sidecar(session, driven))),
    pipes: round(yield* Contenders.pipes(driven))
  }
  yield* Contenders.alternate(3, both)
  const times = yield* Contenders.alternate(rounds(20), both)
  const at = (side: "ours" | "pipes", when: "beside" | "alone", p: number) =>
    times[side].map((samples) => quantile(samples[when], p))
  const figure = (side: "ours" | "pipes", label: string, p: number, goal?: Goal) =>
    compare(
      `neighbour.${name}.${label}.${side === "ours" ? "alone" : "pipe"}`,
      "ms",
      at(side, "beside", p),
      at(side, "alone", p),
      goal
    )
  return [
    figure("ours", "p50", 0.5, atMost(2)),
    figure("ours", "p95", 0.95),
    figure("ours", "max", 1),
    figure("pipes", "p50", 0.5),
    figure("pipes", "p95", 0.95),
    figure("pipes", "max", 1),
    compare(`neighbour.${name}.both.pipe`, "ms", at("ours", "beside", 0.5), at("pipes", "beside", 0.5))
  ]
}, Effect.scoped)

/** As an agent with several sessions should, it looks at its input between two batches. */
const fair: Contenders.Driven = {
  ...Contenders.lean,
  streaming: (count, batch) => `CHUNKS:${count} BATCH:${batch} FAIR:1`
}

export const neighbour: Bench = {
  about: "session B's turn while the agent writes all it can for session A, on the same process, beside B alone",
  detail:
    `A's turn has ${updates.toLocaleString("en-US")} updates and a reader that takes them. The figures named \`pipe\` are those of the same two sessions ` +
    "over one bare pipe, to tell what is the agent's: B's prompt waits in the agent, and its answer behind A's updates in the pipe. `both` is B " +
    "beside the flood through the sidecar, beside B beside the flood over the pipe. `lean` is an agent that costs next to nothing, `bundled` the bundled one with a scripted model.",
  run: Effect.fnUntraced(function* (rounds) {
    const lean = yield* withAgent("lean", fair, rounds)
    return [...lean, ...(yield* withAgent("bundled", yield* Bundled.make, rounds))]
  })
}
