// Many updates in one turn, through the sidecar, a bare pipe and the ACP SDK's client.
import * as Effect from "effect/Effect"
import * as Contenders from "../contenders.ts"
import { atLeast, type Bench, compare } from "../figure.ts"

const updates = 20_000

const streaming = (name: string, about: string, batch: number): Bench => ({
  about: `${updates.toLocaleString("en-US")} updates in one turn, counted through turn.updates, ${about}`,
  detail: undefined,
  run: Effect.fnUntraced(function* (rounds) {
    const each = yield* Contenders.all
    yield* Contenders.interleave(3, (contender) => each[contender].stream(updates, batch))
    const rates = yield* Contenders.interleave(rounds(15), (contender) =>
      Effect.map(each[contender].stream(updates, batch), (ms) => (updates / ms) * 1000)
    )
    const figure = (baseline: "pipe" | "sdk", goal: number) =>
      compare(`${name}.${baseline}`, "updates/s", rates.ours, rates[baseline], atLeast(goal))
    return [figure("pipe", 0.7), figure("sdk", 3)]
  })
})

export const throughput = streaming("throughput", "written one by one, as agents do", 1)
export const burst = streaming("burst", "written 64 at a time: the reader sets the pace", 64)
