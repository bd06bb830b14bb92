// What a turn costs when many run at once.
import * as Effect from "effect/Effect"
import * as Agents from "../agents.ts"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare } from "../figure.ts"

const turnsOfRound = 5000

/** Microseconds of CPU time per turn with this many sessions, each of which runs one turn after the other beside all others. */
const costWith = (count: number) =>
  Effect.gen(function* () {
    const { openSessions } = yield* Agents.sidecar("memory")
    const sessions = yield* openSessions(count)
    const run = (each: number) =>
      Effect.forEach(
        sessions,
        Effect.fnUntraced(function* (session) {
          for (let i = 0; i < each; i++) yield* Effect.orDie(session.prompt("hello"))
        }),
        { concurrency: "unbounded", discard: true }
      )
    yield* run(1)
    const start = process.cpuUsage()
    yield* run(turnsOfRound / count)
    const { system, user } = process.cpuUsage(start)
    return (user + system) / turnsOfRound
  }).pipe(Effect.scoped)

export const turns: Bench = {
  about: "the CPU time of a turn with 10, 100 and 1,000 sessions that each have one running, beside one session",
  detail: "The agents are in memory and answer at once, so that it is the host alone that works.",
  run: Effect.fnUntraced(function* (rounds) {
    yield* costWith(1)
    yield* costWith(100)
    const costs = yield* Contenders.alternate(rounds(9), {
      one: costWith(1),
      ten: costWith(10),
      hundred: costWith(100),
      thousand: costWith(1000)
    })
    return [
      compare("turns.10.one", "µs", costs.ten, costs.one, atMost(1.5)),
      compare("turns.100.one", "µs", costs.hundred, costs.one, atMost(1.5)),
      compare("turns.1000.one", "µs", costs.thousand, costs.one, atMost(1.5)),
      compare("turns.1000.ten", "µs", costs.thousand, costs.ten, atMost(1.5))
    ]
  })
}
