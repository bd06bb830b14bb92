// A five-minute timeout, tested in milliseconds.
import { assert, it } from "@effect/vitest"
import { TestSidecar } from "acp-sidecar/testing"
import { Effect, Fiber } from "effect"
import { TestClock } from "effect/testing"

it.effect("a turn that takes more than five minutes is ended", () =>
  Effect.gen(function* () {
    const { agent, session } = yield* TestSidecar.open()
    const turn = yield* session.submit("Think hard.", { wallTimeout: "5 minutes" })
    const end = yield* Effect.forkChild(Effect.flip(turn.await))

    yield* TestClock.adjust("5 minutes")
    const error = yield* Fiber.join(end)
    assert.strictEqual(error.reason._tag, "TurnTimedOut")
    // The agent was asked to stop, and the session goes on.
    assert.deepStrictEqual(agent.methods().slice(-1), ["session/cancel"])
    assert.strictEqual((yield* session.describe).state, "open")
  }).pipe(Effect.provide(TestSidecar.layer({ script: { prompt: () => Effect.never } })))
)
