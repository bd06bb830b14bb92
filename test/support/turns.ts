// What the tests of turns share.
import { assert } from "@effect/vitest"
import type { Session, SidecarEvent, TurnOutcome } from "acp-sidecar"
import { Sidecar } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"

/** Lets every fiber run until all of them wait; the clock does not move. */
export const rest: Effect.Effect<void> = Effect.forEach(Array.from({ length: 40 }), () => Effect.yieldNow, {
  discard: true
})

/** The events of a session so far. */
export const events = (session: Session.Session): Effect.Effect<ReadonlyArray<SidecarEvent.SessionEvent>> =>
  Effect.flatMap(session.describe, (info) =>
    Effect.map(Stream.runCollect(Stream.take(session.updates, info.events)), (all) => Array.from(all))
  )

/** The outcomes that a session told of, by turn. */
export const endings = (
  session: Session.Session
): Effect.Effect<Record<string, ReadonlyArray<TurnOutcome.TurnOutcome>>> =>
  Effect.map(events(session), (all) => {
    const found: Record<string, Array<TurnOutcome.TurnOutcome>> = {}
    for (const event of all) {
      if (event._tag === "TurnQueued") found[event.turnId] = []
      if (event._tag === "TurnEnded") found[event.turnId]!.push(event.outcome)
    }
    return found
  })

/** Everything that turns hold is given back, in the whole sidecar. */
export const assertIdle: Effect.Effect<void, never, Sidecar.Sidecar> = Effect.gen(function* () {
  yield* rest
  const sidecar = yield* Sidecar.Sidecar
  const info = yield* sidecar.describe
  assert.strictEqual(info.activePrompts, 0, "permits of the sidecar")
  for (const vm of info.vms) {
    assert.strictEqual(vm.activePrompts, 0, "permits of the Vm")
    for (const session of vm.sessions) {
      assert.deepStrictEqual(session.turns, [], "turns")
      assert.strictEqual(session.pendingPermissions, 0, "questions")
    }
  }
})

/** As {@link assertIdle}, and each turn that was accepted has ended exactly once. */
export const assertEnded = (...sessions: ReadonlyArray<Session.Session>): Effect.Effect<void, never, Sidecar.Sidecar> =>
  Effect.gen(function* () {
    yield* assertIdle
    for (const session of sessions) {
      for (const [turn, outcomes] of Object.entries(yield* endings(session))) {
        assert.strictEqual(outcomes.length, 1, `ends of ${turn}`)
      }
    }
  })

/** An agent that works until it is cancelled, and then says so. */
export const hanging = { prompt: () => Effect.never } as const

/** An agent that works for good. */
export const stuck = { prompt: () => Effect.never, ignoreCancel: true } as const

/** An agent whose turns the test ends. */
export const manual = { prompt: "manual" } as const

export const layer = TestSidecar.layer
