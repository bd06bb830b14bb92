// How long the end takes when nobody wants to stop.
import * as Effect from "effect/Effect"
import * as Agents from "../agents.ts"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare } from "../figure.ts"

const grace = 500
const many = 100

/** Milliseconds until a sidecar is disposed whose sessions have a turn each and agents that ignore the cancel. */
const disposing = (kind: Agents.Kind, count: number) =>
  Effect.gen(function* () {
    const { openSessions, sidecar } = yield* Agents.sidecar(kind, { cancelGrace: grace })
    for (const session of yield* openSessions(count)) {
      const turn = yield* Effect.orDie(session.submit("HOLD"))
      yield* turn.dispatched
    }
    const start = performance.now()
    yield* sidecar.dispose
    return performance.now() - start
  }).pipe(Effect.scoped)

export const dispose: Bench = {
  about: `the end of a sidecar with ${many} turns whose agents ignore the cancel, beside one with one such turn`,
  detail: `Its cancelGrace is ${grace} ms. The agents are in memory, then processes.`,
  run: Effect.fnUntraced(function* (rounds) {
    const times = yield* Contenders.alternate(rounds(7), {
      memory: disposing("memory", many),
      memoryOne: disposing("memory", 1),
      process: disposing("process", many),
      processOne: disposing("process", 1)
    })
    const goal = atMost(grace + 500, "value")
    return [
      compare("dispose.memory.one", "ms", times.memory, times.memoryOne, goal),
      compare("dispose.process.one", "ms", times.process, times.processOne, goal)
    ]
  })
}
