// One session's turns while its neighbour's agent writes as much as the pipe takes.
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare, type Goal } from "../figure.ts"
import { quantile } from "../stats.ts"

const updates = 20_000

/** B's turns during one flood of A, which is read to its end, and as many turns of B alone. */
const round = Effect.fnUntraced(function* (noisy: Contenders.Contender, quiet: Contenders.Contender) {
  const flood = yield* Effect.forkChild(noisy.stream(updates, 64), { startImmediately: true })
  const beside: Array<number> = []
  while (flood.pollUnsafe() === undefined) beside.push(...(yield* quiet.turns(1)))
  yield* Fiber.join(flood)
  return { beside, alone: yield* quiet.turns(Math.max(20, beside.length)) }
})

export const flood: Bench = {
  about: "session B's turn while the agent of session A, in the same Vm, writes all it can, beside B alone",
  detail:
    `A's turn has ${updates.toLocaleString("en-US")} updates and a reader that takes them. The figures named \`pipe\` are ` +
    "those of two bare pipes in one process beside one of them alone, to tell what is the machine's.",
  run: Effect.fnUntraced(function* (rounds) {
    const open = yield* Contenders.openSession
    const ours = [Contenders.sidecar(yield* open), Contenders.sidecar(yield* open)] as const
    const pipes = [yield* Contenders.pipe, yield* Contenders.pipe] as const
    for (const [noisy, quiet] of [ours, pipes]) {
      yield* quiet.turns(1000)
      for (let i = 0; i < 3; i++) yield* round(noisy, quiet)
    }
    const times = yield* Contenders.alternate(rounds(20), { ours: round(...ours), pipes: round(...pipes) })
    const figure = (name: "ours" | "pipes", label: string, p: number, goal?: Goal) =>
      compare(
        `flood.${label}.${name === "ours" ? "alone" : "pipe"}`,
        "ms",
        times[name].map(({ beside }) => quantile(beside, p)),
        times[name].map(({ alone }) => quantile(alone, p)),
        goal
      )
    return [
      figure("ours", "p50", 0.5, atMost(2)),
      figure("ours", "p95", 0.95),
      figure("ours", "max", 1),
      figure("pipes", "p50", 0.5),
      figure("pipes", "p95", 0.95),
      figure("pipes", "max", 1)
    ]
  })
}
