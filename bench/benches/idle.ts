// What sessions that do nothing cost.
import * as Effect from "effect/Effect"
import { measure } from "../child.ts"
import { atMost, type Bench, compare } from "../figure.ts"

interface Window {
  readonly cpu: number
  readonly wakes: number
}

export const idle: Bench = {
  about: "CPU time per second, and wake-ups, of a host with 100 idle sessions, beside an idle Node of the same age",
  detail: "All of them run at the same time. The agents are in memory, then processes.",
  run: Effect.fnUntraced(function* (rounds) {
    const watch = (kind: "bare" | "memory" | "process") =>
      measure<ReadonlyArray<Window>>("idle.ts", kind, 100, rounds(9), 1)
    const [bare, memory, process] = yield* Effect.all([watch("bare"), watch("memory"), watch("process")], {
      concurrency: "unbounded"
    })
    const goal = atMost(1, "difference")
    const figure = (name: string, ours: ReadonlyArray<Window>) => [
      compare(
        `idle.cpu.${name}`,
        "ms/s",
        ours.map(({ cpu }) => cpu),
        bare.map(({ cpu }) => cpu),
        goal
      ),
      compare(
        `idle.wakes.${name}`,
        "/s",
        ours.map(({ wakes }) => wakes),
        bare.map(({ wakes }) => wakes)
      )
    ]
    return [...figure("memory", memory), ...figure("process", process)]
  })
}
