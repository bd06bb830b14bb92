// A turn through the sidecar beside a request through a bare pipe and through the ACP SDK's client.
import * as Effect from "effect/Effect"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare, type Goal } from "../figure.ts"
import { quantile } from "../stats.ts"

export const latency: Bench = {
  about: "a turn of one chunk, from session.prompt to its outcome, beside a bare pipe and the ACP SDK's client",
  detail: undefined,
  run: Effect.fnUntraced(function* (rounds) {
    const each = yield* Contenders.all
    yield* Contenders.interleave(3, (name) => each[name].turns(400))
    const times = yield* Contenders.interleave(rounds(72), (name) => each[name].turns(50))
    const at = (name: Contenders.Name, p: number) => times[name].map((samples) => quantile(samples, p))
    const figure = (label: string, p: number, baseline: "pipe" | "sdk", goal?: Goal) =>
      compare(`latency.${label}.${baseline}`, "ms", at("ours", p), at(baseline, p), goal)
    return [
      figure("p50", 0.5, "pipe", atMost(2)),
      figure("p95", 0.95, "pipe"),
      figure("p50", 0.5, "sdk"),
      figure("p95", 0.95, "sdk")
    ]
  })
}
