// One session's turns while its neighbour's agent is talking.
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare, type Goal } from "../figure.ts"
import { quantile } from "../stats.ts"

export const isolation: Bench = {
  about: "session B's turn while a turn of session A, in the same Vm, streams a chunk every 10 ms, beside B alone",
  detail: undefined,
  run: Effect.fnUntraced(function* (rounds) {
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
    const times = yield* Contenders.alternate(rounds(24), { alone, beside })
    const figure = (label: string, p: number, goal?: Goal) => {
      const at = (name: "alone" | "beside") => times[name].map((samples) => quantile(samples, p))
      return compare(`isolation.${label}.alone`, "ms", at("beside"), at("alone"), goal)
    }
    return [figure("p50", 0.5, atMost(1.1)), figure("p95", 0.95)]
  })
}
