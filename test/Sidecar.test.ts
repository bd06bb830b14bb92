import { assert, describe, it } from "@effect/vitest"
import { Sidecar } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"

describe("the core", () => {
  it.effect("a prompt is answered and its events are read", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      const outcome = yield* turn.await
      assert.strictEqual(outcome._tag, "Completed")
      const events = yield* Stream.runCollect(turn.updates)
      assert.deepStrictEqual(
        events.map((event) => event._tag),
        ["TurnQueued", "TurnStarted", "Update", "TurnEnded"]
      )
    }).pipe(Effect.provide(TestSidecar.layer()))
  )

  it.effect("C02, B22: an agent that ignores cancel is given up at the end of the grace period", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      assert.isTrue(yield* turn.dispatched)
      const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
      yield* TestClock.adjust("9 seconds")
      assert.isUndefined(cancelling.pollUnsafe())
      yield* TestClock.adjust("1 second")
      const outcome = yield* Fiber.join(cancelling)
      assert.deepStrictEqual(outcome, {
        _tag: "Cancelled",
        by: "caller",
        agentReported: null,
        escalation: "retired"
      })
      assert.deepStrictEqual(agent.methods(), [
        "initialize",
        "session/new",
        "session/prompt",
        "session/cancel",
        "$/cancel_request"
      ])
      assert.strictEqual((yield* Effect.flip(session.submit("again")))._tag, "SessionUnusable")
      yield* agent.gone
    }).pipe(Effect.provide(TestSidecar.layer({ script: { prompt: () => Effect.never, ignoreCancel: true } })))
  )

  it.effect("B32: a turn on one session delays nothing on another", () =>
    Effect.gen(function* () {
      const { agent, session, vm } = yield* TestSidecar.open()
      const slow = yield* session.submit("slow")
      const held = yield* Queue.take(agent.prompts)
      const other = yield* TestSidecar.open({ vm })
      const fast = yield* other.session.submit("fast")
      const quick = yield* Queue.take(other.agent.prompts)
      yield* quick.end()
      assert.strictEqual((yield* fast.await)._tag, "Completed")
      yield* other.session.close
      yield* held.end()
      assert.strictEqual((yield* slow.await)._tag, "Completed")
      const sidecar = yield* Sidecar.Sidecar
      assert.strictEqual((yield* sidecar.describe).activePrompts, 0)
    }).pipe(Effect.provide(TestSidecar.layer({ script: { prompt: "manual" } })))
  )
})
