import { assert, it } from "@effect/vitest"
import { Sidecar, type TurnOutcome } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { everywhere } from "./support/places.ts"
import { assertEnded, assertIdle, endings, events, hanging, manual, rest, stuck } from "./support/turns.ts"

const chunk = (text: string, more: object = {}) => ({
  sessionUpdate: "agent_message_chunk",
  content: { type: "text", text },
  ...more
})

const cancelled = (by: string, agentReported: string | null, escalation = "none") =>
  ({ _tag: "Cancelled", by, agentReported, escalation }) as TurnOutcome.Cancelled

everywhere("T1: every accepted turn ends exactly once and gives everything back", (layer) => {
  const open = TestSidecar.open({ permission: "ask" })

  it.effect("when the agent completes it", () =>
    Effect.gen(function* () {
      const { session } = yield* open
      const turn = yield* session.submit("hello")
      const outcome = yield* turn.await
      assert.deepInclude(outcome, { _tag: "Completed", stopReason: "end_turn" })
      assert.deepStrictEqual(yield* endings(session), { [turn.id]: [outcome] })
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer()))
  )

  it.effect("when it is cancelled", () =>
    Effect.gen(function* () {
      const { session } = yield* open
      const turn = yield* session.submit("hello")
      assert.deepStrictEqual(yield* turn.cancel, cancelled("caller", "cancelled"))
      assert.deepStrictEqual(yield* turn.cancel, cancelled("caller", "cancelled"), "a later cancel just tells")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("when the agent fails it", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open
      const turn = yield* session.submit("hello")
      yield* (yield* Queue.take(agent.prompts)).fail(-32603, "no")
      assert.strictEqual((yield* turn.outcome)._tag, "Failed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("when the agent's answer is nested deeper than the stack", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open
      const turn = yield* session.submit("hello")
      const { requestId } = yield* Queue.take(agent.prompts)
      const nested = `${"[".repeat(100_000)}${"]".repeat(100_000)}`
      yield* agent.write(
        `{"jsonrpc":"2.0","id":${requestId},"result":{"stopReason":"end_turn","_meta":{"n":${nested}}}}\n`
      )
      assert.strictEqual((yield* turn.outcome)._tag, "Completed")
      assert.strictEqual((yield* Stream.runCollect(turn.updates)).at(-1)?._tag, "TurnEnded")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("when the agent crashes, while one runs, one waits and a question is open", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open
      const one = yield* session.submit("one")
      const two = yield* session.submit("two")
      const held = yield* Queue.take(agent.prompts)
      yield* Effect.forkChild(held.ask(), { startImmediately: true })
      yield* rest
      assert.strictEqual((yield* session.describe).pendingPermissions, 1)
      yield* agent.crash({ code: 134 })
      assert.strictEqual((yield* one.outcome)._tag, "Failed")
      assert.strictEqual((yield* two.outcome)._tag, "Failed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("when a later prompt replaces it", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open
      const one = yield* session.submit("one")
      const two = yield* session.submit("two", { onBusy: "replace" })
      assert.deepStrictEqual(yield* one.outcome, cancelled("replaced", "cancelled"))
      yield* rest
      assert.deepStrictEqual(
        Array.from(yield* Queue.takeAll(agent.prompts), (turn) => turn.text),
        ["one", "two"]
      )
      yield* two.cancel
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("when it is cancelled while it waits: no byte is sent for it", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open
      const one = yield* session.submit("one")
      const two = yield* session.submit("two")
      assert.deepStrictEqual(yield* two.cancel, cancelled("caller", null))
      assert.isFalse(yield* two.dispatched)
      yield* rest
      assert.deepStrictEqual(agent.methods().slice(2), ["session/prompt"])
      yield* one.cancel
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("when its session closes, the waiting ones too", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open
      const one = yield* session.submit("one")
      const two = yield* session.submit("two")
      yield* session.close
      assert.deepStrictEqual(yield* one.outcome, cancelled("close", "cancelled"))
      assert.deepStrictEqual(yield* two.outcome, cancelled("close", null))
      assert.isTrue(agent.isGone())
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("B18: when the sidecar is disposed, which is no crash", () =>
    Effect.gen(function* () {
      const { session } = yield* open
      const one = yield* session.submit("one")
      const two = yield* session.submit("two")
      yield* (yield* Sidecar.Sidecar).dispose
      assert.deepStrictEqual(yield* one.outcome, cancelled("dispose", "cancelled"))
      assert.deepStrictEqual(yield* two.outcome, cancelled("dispose", null))
      assert.strictEqual((yield* TestSidecar.TestSidecar).alive(), 0)
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("C02, C03: disposing with an agent that ignores it takes the grace period and no longer", () =>
    Effect.gen(function* () {
      const { session } = yield* open
      const turn = yield* session.submit("one")
      const disposing = yield* Effect.forkChild((yield* Sidecar.Sidecar).dispose, { startImmediately: true })
      yield* TestClock.adjust("9999 millis")
      assert.isUndefined(disposing.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      yield* Fiber.join(disposing)
      assert.deepStrictEqual(yield* turn.outcome, cancelled("dispose", null, "retired"))
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: stuck })))
  )

  it.effect("the next turn of a session starts after the end of the one before was told", () =>
    Effect.gen(function* () {
      const { session } = yield* open
      for (let i = 0; i < 5; i++) yield* session.submit("hello")
      yield* rest
      const all = (yield* events(session)).filter(
        (event) => event._tag.startsWith("Turn") && event._tag !== "TurnQueued"
      )
      assert.deepStrictEqual(
        all.map((event) => event._tag),
        Array.from({ length: 5 }).flatMap(() => ["TurnStarted", "TurnEnded"])
      )
    }).pipe(Effect.provide(layer()))
  )

  it.effect("C09: no clock decides that a turn is over", () =>
    Effect.gen(function* () {
      const { session } = yield* open
      for (let i = 0; i < 300; i++) yield* session.prompt("hello")
      assert.strictEqual(yield* Effect.clockWith((clock) => clock.currentTimeMillis), 0)
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer()))
  )
})

everywhere("T2: a cancel settles within the grace period, whatever the agent does", (layer) => {
  it.effect("C01: a cancel in the same tick as its prompt is never lost", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      for (let i = 0; i < 20; i++) {
        const turn = yield* session.submit("hello")
        const result = yield* session.cancel()
        assert.deepStrictEqual(result, {
          _tag: "Settled",
          turnId: turn.id,
          outcome: cancelled("caller", "cancelled")
        })
      }
      assert.deepStrictEqual(
        agent.methods().slice(2),
        Array.from({ length: 20 }).flatMap(() => ["session/prompt", "session/cancel"])
      )
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("C01, B24: prompt and cancel of two callers in one tick reach the agent in this order", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      for (let i = 0; i < 20; i++) {
        const [outcome, result] = yield* Effect.all([session.prompt("hello"), session.cancel()], {
          concurrency: "unbounded"
        })
        assert.deepStrictEqual(outcome, cancelled("caller", "cancelled"))
        assert.strictEqual(result._tag, "Settled")
      }
      assert.deepStrictEqual(
        agent.methods().slice(2),
        Array.from({ length: 20 }).flatMap(() => ["session/prompt", "session/cancel"])
      )
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("B24: an agent that was not reading finds the prompt first and then the cancel", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      yield* agent.pause
      const turn = yield* session.submit("hello")
      const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
      yield* TestClock.adjust("1 second")
      yield* agent.resume
      assert.deepStrictEqual(yield* Fiber.join(cancelling), cancelled("caller", "cancelled"))
      assert.deepStrictEqual(agent.methods().slice(2), ["session/prompt", "session/cancel"])
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  const timeline = (canClose: boolean) =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
      const seen: Array<string> = []
      for (let at = 0; at <= 10_000; at += 100) {
        yield* rest
        for (const method of agent.methods().slice(3 + seen.length)) seen.push(`${at} ${method}`)
        if (cancelling.pollUnsafe() !== undefined) return [...seen, `${at} ${(yield* Fiber.join(cancelling))._tag}`]
        const info = yield* (yield* Sidecar.Sidecar).describe
        assert.strictEqual(info.activePrompts, 1, "the permit is kept during the grace period")
        yield* TestClock.adjust("100 millis")
      }
      return seen
    }).pipe(
      Effect.provide(
        layer({
          script: {
            ...stuck,
            closeSession: () => Effect.never,
            ...(canClose ? { capabilities: { sessionCapabilities: { close: {} } } } : {})
          }
        })
      )
    )

  it.effect("B22, C02: it is asked twice, asked harder after half of it, and retired at its end", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* timeline(false), [
        "0 session/cancel",
        "1300 session/cancel",
        "5000 $/cancel_request",
        "10000 Cancelled"
      ])
    })
  )

  it.effect(
    "C01: an agent that loses a cancel which comes before it has begun is asked again, and its session goes on",
    () =>
      Effect.gen(function* () {
        const { agent, session } = yield* TestSidecar.open()
        const turn = yield* session.submit("hello")
        const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
        yield* TestClock.adjust("1249 millis")
        assert.isUndefined(cancelling.pollUnsafe())
        yield* TestClock.adjust("1 millis")
        assert.deepStrictEqual(yield* Fiber.join(cancelling), cancelled("caller", "cancelled"))
        assert.deepStrictEqual(agent.methods().slice(2), ["session/prompt", "session/cancel", "session/cancel"])
        assert.strictEqual((yield* session.describe).state, "open")
        yield* assertEnded(session)
      }).pipe(Effect.provide(layer({ script: { prompt: () => Effect.never, ignoreCancel: "first" } })))
  )

  it.effect("B22: where the agent has session/close, that is tried at three quarters", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* timeline(true), [
        "0 session/cancel",
        "1300 session/cancel",
        "5000 $/cancel_request",
        "7500 session/close",
        "10000 Cancelled"
      ])
    })
  )

  it.effect("B22: each step can be the one that works, and the outcome says which", () =>
    Effect.gen(function* () {
      for (const [after, escalation, usable] of [
        [4, "none", true],
        [6, "cancel_request", true],
        [8, "session_close", false]
      ] as const) {
        const { agent, session } = yield* TestSidecar.open()
        const turn = yield* session.submit("hello")
        const held = yield* Queue.take(agent.prompts)
        const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
        yield* TestClock.adjust(`${after} seconds`)
        yield* held.end("cancelled")
        assert.deepStrictEqual(yield* Fiber.join(cancelling), cancelled("caller", "cancelled", escalation))
        const next = yield* Effect.result(session.submit("next"))
        assert.strictEqual(next._tag, usable ? "Success" : "Failure")
        if (next._tag === "Failure") assert.deepInclude(next.failure, { _tag: "SessionUnusable", reason: "retired" })
        else yield* (yield* Queue.take(agent.prompts)).end()
        yield* assertEnded(session)
      }
    }).pipe(Effect.provide(layer({ script: { ...manual, capabilities: { sessionCapabilities: { close: {} } } } })))
  )

  it.effect("B22: an agent that ends the turn on session/close and never answers that call has ended it", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      const held = yield* Queue.take(agent.prompts)
      const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
      yield* TestClock.adjust("8 seconds")
      assert.strictEqual(agent.methods().at(-1), "session/close")
      yield* held.end("cancelled")
      yield* rest
      assert.deepStrictEqual(cancelling.pollUnsafe(), Exit.succeed(cancelled("caller", "cancelled", "session_close")))
      yield* assertEnded(session)
    }).pipe(
      Effect.provide(
        layer({
          script: { ...manual, capabilities: { sessionCapabilities: { close: {} } }, closeSession: () => Effect.never }
        })
      )
    )
  )

  it.effect("B28: a cancel that found no room is not sent once the agent has ended the turn", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      const held = yield* Queue.take(agent.prompts)
      const { send } = agent.transport
      Object.assign(agent.transport, { send: () => false })
      const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
      yield* rest
      yield* held.end()
      yield* rest
      assert.deepStrictEqual(cancelling.pollUnsafe(), Exit.succeed(cancelled("caller", "end_turn", "none")))
      Object.assign(agent.transport, { send })
      yield* TestClock.adjust("20 seconds")
      assert.notInclude(agent.methods(), "session/cancel")
      const next = yield* session.submit("next")
      yield* (yield* Queue.take(agent.prompts)).end()
      assert.strictEqual((yield* next.await)._tag, "Completed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("C02: what waited behind a retired turn fails, typed, and was never sent", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const two = yield* session.submit("two")
      yield* Effect.forkChild(one.cancel, { startImmediately: true })
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual(yield* one.outcome, cancelled("caller", null, "retired"))
      const failed = yield* Effect.flip(two.await)
      assert.strictEqual(failed.phase, "queued")
      assert.strictEqual(failed.reason._tag, "HostClosed")
      assert.strictEqual(agent.methods().filter((method) => method === "session/prompt").length, 1)
      const started = (yield* events(session)).filter((event) => event._tag === "TurnStarted")
      assert.strictEqual(started.length, 1)
      assert.deepInclude(yield* Effect.flip(session.submit("three")), { _tag: "SessionUnusable", reason: "retired" })
      yield* agent.gone
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: stuck })))
  )

  for (const grace of [0, 1000]) {
    it.effect(`a grace period of ${grace} ms is enough to ask, and not longer`, () =>
      Effect.gen(function* () {
        const { agent, session } = yield* TestSidecar.open()
        const turn = yield* session.submit("hello")
        const sent: Array<string> = []
        const { send } = agent.transport
        Object.assign(agent.transport, {
          send: (frame: Uint8Array) => {
            sent.push(JSON.parse(new TextDecoder().decode(frame)).method)
            return send(frame)
          }
        })
        const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
        yield* TestClock.adjust(grace)
        assert.deepStrictEqual(yield* Fiber.join(cancelling), cancelled("caller", null, "retired"))
        assert.deepStrictEqual(sent, ["session/cancel", "session/cancel", "$/cancel_request"])
        yield* assertEnded(session)
      }).pipe(Effect.provide(layer({ script: stuck, limits: { cancelGrace: grace } })))
    )
  }

  it.effect("B25: an agent that answers end_turn to a cancel has cancelled", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      const held = yield* Queue.take(agent.prompts)
      const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
      yield* Queue.take(agent.cancels)
      yield* held.end("end_turn")
      assert.deepStrictEqual(yield* Fiber.join(cancelling), cancelled("caller", "end_turn"))
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  for (const code of [-32800, -32603]) {
    it.effect(`B17: an agent that answers a cancel with error ${code} has cancelled, and takes the next prompt`, () =>
      Effect.gen(function* () {
        const { agent, session } = yield* TestSidecar.open()
        const turn = yield* session.submit("hello")
        const held = yield* Queue.take(agent.prompts)
        const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
        yield* held.fail(code, "stopped")
        assert.deepStrictEqual(yield* Fiber.join(cancelling), cancelled("caller", `error ${code}`))
        const next = yield* session.submit("next")
        yield* (yield* Queue.take(agent.prompts)).end()
        assert.strictEqual((yield* next.outcome)._tag, "Completed")
        yield* assertEnded(session)
      }).pipe(Effect.provide(layer({ script: manual })))
    )
  }

  it.effect("an answer to a cancel that makes no sense, and a crash, end it as well", () =>
    Effect.gen(function* () {
      const one = yield* TestSidecar.open()
      const first = yield* one.session.submit("hello")
      const held = yield* Queue.take(one.agent.prompts)
      const cancelling = yield* Effect.forkChild(first.cancel, { startImmediately: true })
      yield* one.agent.send({ id: held.requestId, result: 7 })
      assert.deepStrictEqual(yield* Fiber.join(cancelling), cancelled("caller", "an invalid answer"))
      const two = yield* TestSidecar.open()
      const second = yield* two.session.submit("hello")
      const crashing = yield* Effect.forkChild(second.cancel, { startImmediately: true })
      yield* rest
      yield* two.agent.crash()
      assert.deepStrictEqual(yield* Fiber.join(crashing), cancelled("caller", null))
      yield* assertEnded(one.session, two.session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("B28: a cancel while idle sends nothing, and the next prompt works", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      assert.deepStrictEqual(yield* session.cancel(), { _tag: "NoActiveTurn" })
      const turn = yield* session.submit("hello")
      yield* turn.await
      assert.deepStrictEqual(yield* session.cancel(), { _tag: "NoActiveTurn" })
      assert.deepStrictEqual(yield* session.cancel(turn.id), { _tag: "NoActiveTurn" })
      assert.strictEqual((yield* turn.cancel)._tag, "Completed")
      assert.strictEqual((yield* session.prompt("again"))._tag, "Completed")
      yield* rest
      assert.deepStrictEqual(agent.methods().slice(2), ["session/prompt", "session/prompt"])
    }).pipe(Effect.provide(layer()))
  )

  it.effect("B25: a cancel that crosses with the answer on the wire is a cancel, and says what the agent said", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      const held = yield* Queue.take(agent.prompts)
      yield* held.end()
      assert.deepStrictEqual(yield* turn.cancel, cancelled("caller", "end_turn"))
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("B31: a cancel by turn id hits that turn and no other", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const [one, two, three] = [
        yield* session.submit("one"),
        yield* session.submit("two"),
        yield* session.submit("three")
      ]
      assert.deepInclude(yield* session.cancel(two.id), { _tag: "Settled", turnId: two.id })
      assert.deepStrictEqual(yield* two.outcome, cancelled("caller", null))
      assert.deepInclude(yield* session.cancel(one.id), { _tag: "Settled", turnId: one.id })
      yield* rest
      const info = yield* session.describe
      assert.deepStrictEqual(info.turns, [{ turnId: three.id, phase: "running", lane: "interactive" }])
      assert.strictEqual(agent.methods().filter((method) => method === "session/cancel").length, 1)
      yield* three.cancel
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("B31: without a turn id it hits the oldest, not the prompt that came last", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      yield* session.submit("two")
      assert.deepInclude(yield* session.cancel(), { turnId: one.id })
      yield* rest
      assert.strictEqual((yield* session.describe).turns.length, 1)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("B40: open questions are answered as cancelled first, and so is one that is asked then", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const turn = yield* session.submit("hello")
      const held = yield* Queue.take(agent.prompts)
      const asked = [
        yield* Effect.forkChild(held.ask(undefined, "tool-1"), { startImmediately: true }),
        yield* Effect.forkChild(held.ask(undefined, "tool-2"), { startImmediately: true })
      ]
      yield* rest
      assert.strictEqual((yield* session.pendingPermissions).length, 2)
      const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
      for (const fiber of asked) assert.deepStrictEqual(yield* Fiber.join(fiber), { _tag: "Cancelled" })
      assert.deepStrictEqual(yield* held.ask(undefined, "tool-3"), { _tag: "Cancelled" })
      yield* held.end("cancelled")
      assert.deepStrictEqual(yield* Fiber.join(cancelling), cancelled("caller", "cancelled"))
      const answers = (yield* events(session)).filter((event) => event._tag === "PermissionAnswered")
      assert.deepStrictEqual(
        answers.map((event) => [event.answeredBy, event.optionId]),
        [
          ["cancel", null],
          ["cancel", null],
          ["cancel", null]
        ]
      )
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("a turn that ends with an open question leaves none", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const turn = yield* session.submit("hello")
      const reading = yield* Effect.forkChild(Stream.runCollect(turn.updates), { startImmediately: true })
      const held = yield* Queue.take(agent.prompts)
      const asked = yield* Effect.forkChild(held.ask(), { startImmediately: true })
      yield* rest
      yield* held.end()
      assert.strictEqual((yield* turn.outcome)._tag, "Completed")
      assert.deepStrictEqual(yield* Fiber.join(asked), { _tag: "Cancelled" })
      assert.deepStrictEqual(
        Array.from(yield* Fiber.join(reading), (event) => event._tag),
        ["TurnQueued", "TurnStarted", "PermissionAsked", "PermissionAnswered", "TurnEnded"]
      )
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )
})

everywhere("T3: nothing crosses from one turn into another", (layer) => {
  const said = (all: ReadonlyArray<{ readonly _tag: string }>) =>
    all
      .filter((event) => event._tag === "Update")
      .map((event) => {
        const { afterTurn, turnId, update } = event as unknown as {
          turnId: string | null
          afterTurn: string | null
          update: { content?: { text: string }; toolCallId?: string }
        }
        return [update.content?.text ?? update.toolCallId, turnId, afterTurn]
      })

  it.effect("C06, B52, B54: an update 300 ms after the response comes after its own turn, not in the next", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const first = yield* Queue.take(agent.prompts)
      yield* first.say("in one")
      yield* first.end()
      yield* one.outcome
      yield* TestClock.adjust("300 millis")
      yield* first.say("late")
      yield* rest
      const two = yield* session.submit("two")
      const second = yield* Queue.take(agent.prompts)
      yield* second.say("in two")
      yield* second.end()
      yield* two.outcome
      assert.deepStrictEqual(said(yield* events(session)), [
        ["in one", one.id, null],
        ["late", null, one.id],
        ["in two", two.id, null]
      ])
      assert.deepStrictEqual(said(Array.from(yield* Stream.runCollect(two.updates))), [["in two", two.id, null]])
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("B52: an update in one piece with the response that it follows comes after its turn", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const two = yield* session.submit("two")
      const first = yield* Queue.take(agent.prompts)
      yield* agent.together(Effect.andThen(first.say("before"), Effect.andThen(first.end(), first.say("after"))))
      yield* one.outcome
      yield* rest
      assert.deepStrictEqual(said(yield* events(session)), [
        ["before", one.id, null],
        ["after", null, one.id]
      ])
      yield* (yield* Queue.take(agent.prompts)).end()
      yield* two.outcome
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("B53: what comes before any turn belongs to none", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      yield* agent.update(session.agentSessionId, chunk("hi"))
      yield* rest
      assert.deepStrictEqual(said(yield* events(session)), [["hi", null, null]])
    }).pipe(Effect.provide(layer()))
  )

  it.effect("B23: a late answer settles its own prompt and no other", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const two = yield* session.submit("two")
      const [first, second] = [yield* Queue.take(agent.prompts), yield* Queue.take(agent.prompts)]
      yield* Effect.forkChild(one.cancel, { startImmediately: true })
      yield* rest
      yield* first.end("cancelled")
      assert.deepStrictEqual(yield* one.outcome, cancelled("caller", "cancelled"))
      yield* rest
      assert.deepStrictEqual(
        (yield* session.describe).turns.map((turn) => turn.turnId),
        [two.id]
      )
      yield* first.end("end_turn")
      yield* rest
      assert.strictEqual((yield* session.describe).turns.length, 1, "a second answer to the first settles nothing")
      assert.strictEqual((yield* session.describe).late, 1)
      yield* second.end("max_tokens")
      assert.deepInclude(yield* two.outcome, { _tag: "Completed", stopReason: "max_tokens" })
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual, limits: { maxPromptsPerSession: 2 } })))
  )

  it.effect("B23: a turn that was given up is not settled again by its late answer, nor is its neighbour", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const first = yield* Queue.take(agent.prompts)
      yield* first.end()
      yield* one.outcome
      const two = yield* session.submit("two")
      const second = yield* Queue.take(agent.prompts)
      yield* first.end("refusal")
      yield* first.fail(-32603, "no")
      yield* rest
      assert.strictEqual((yield* session.describe).turns.length, 1)
      yield* second.end()
      assert.deepInclude(yield* two.outcome, { stopReason: "end_turn" })
      assert.deepInclude(yield* one.outcome, { stopReason: "end_turn" })
      assert.strictEqual((yield* session.describe).late, 2)
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("a tool call and a message stay with the turn in which they began", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const first = yield* Queue.take(agent.prompts)
      yield* first.update({ sessionUpdate: "tool_call", toolCallId: "tool", title: "build" })
      yield* first.update(chunk("a", { messageId: "message" }))
      yield* first.end()
      yield* one.outcome
      const two = yield* session.submit("two")
      const second = yield* Queue.take(agent.prompts)
      yield* second.update({ sessionUpdate: "tool_call_update", toolCallId: "tool", status: "completed" })
      yield* second.update(chunk("b", { messageId: "message" }))
      yield* second.update(chunk("c"))
      yield* second.update({ sessionUpdate: "tool_call_update", toolCallId: "other", status: "completed" })
      yield* second.end()
      yield* two.outcome
      assert.deepStrictEqual(said(yield* events(session)), [
        ["tool", one.id, null],
        ["a", one.id, null],
        ["tool", null, one.id],
        ["b", null, one.id],
        ["c", two.id, null],
        ["other", two.id, null]
      ])
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("a turn's updates end with it, for readers that come long after too", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      yield* one.await
      for (let i = 0; i < 5; i++) yield* session.prompt("more")
      const late = Array.from(yield* Stream.runCollect(one.updates))
      assert.deepStrictEqual(
        late.map((event) => event._tag),
        ["Lagged"]
      )
    }).pipe(Effect.provide(layer({ limits: { mailboxCapacity: 4 } })))
  )
})

everywhere("T4: a failed turn says why, with evidence", (layer) => {
  const failure = (run: (opened: TestSidecar.Opened) => Effect.Effect<void>) =>
    Effect.gen(function* () {
      const opened = yield* TestSidecar.open()
      const turn = yield* opened.session.submit("hello")
      yield* run(opened)
      const failed = yield* Effect.flip(turn.await)
      assert.deepStrictEqual(yield* turn.outcome, { _tag: "Failed", error: failed })
      assert.deepStrictEqual(failed.address, turn.address)
      assert.strictEqual(failed.phase, "running")
      assert.include(failed.message, turn.id)
      yield* assertEnded(opened.session)
      return failed.reason
    })

  it.effect("B14: the process exited, with its code, its stderr and the time since its last frame", () =>
    Effect.gen(function* () {
      const reason = yield* failure(({ agent }) =>
        Effect.gen(function* () {
          yield* (yield* Queue.take(agent.prompts)).say("one chunk")
          yield* TestClock.adjust("3 seconds")
          yield* agent.crash({ code: 134, stderrTail: "assertion failed\n" })
        })
      )
      assert.deepInclude(reason, { _tag: "ProcessExited", code: 134, sinceLastFrameMillis: 3000 })
      assert.include(reason.message, "assertion failed")
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("B14: the process was killed, with the signal", () =>
    Effect.gen(function* () {
      const reason = yield* failure(({ agent }) => agent.crash({ signal: "SIGKILL" }))
      assert.deepInclude(reason, { _tag: "ProcessExited", signal: "SIGKILL" })
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("the agent refused, with its code and data", () =>
    Effect.gen(function* () {
      const reason = yield* failure(({ agent }) =>
        Effect.flatMap(Queue.take(agent.prompts), (held) => held.fail(-32001, "too long", { max: 1 }))
      )
      assert.deepInclude(reason, { _tag: "RequestError", code: -32001, detail: "too long" })
      assert.deepStrictEqual(reason._tag === "RequestError" ? reason.data : undefined, { max: 1 })
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("the answer makes no sense", () =>
    Effect.gen(function* () {
      const reason = yield* failure(({ agent }) =>
        Effect.flatMap(Queue.take(agent.prompts), (held) => agent.send({ id: held.requestId, result: { stop: 1 } }))
      )
      assert.deepInclude(reason, { _tag: "InvalidResponse", method: "session/prompt" })
      assert.include(reason.message, "stopReason")
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("B15: an idle or a wall deadline passed, or one for the admission: see T5 and A1", () =>
    Effect.gen(function* () {
      const reason = yield* failure(() => TestClock.adjust("20 seconds"))
      assert.deepInclude(reason, { _tag: "TurnTimedOut", deadline: "wall", escalation: "retired" })
    }).pipe(Effect.provide(layer({ script: stuck, limits: { turnTimeout: "10 seconds" } })))
  )

  it.effect("an agent's error before the next prompt is the agent's, the session goes on", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      yield* (yield* Queue.take(agent.prompts)).fail(-32800, "cancelled by itself")
      assert.strictEqual((yield* Effect.flip(one.await)).reason._tag, "RequestError")
      const two = yield* session.submit("two")
      yield* (yield* Queue.take(agent.prompts)).end()
      assert.strictEqual((yield* two.await)._tag, "Completed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )
})

everywhere("T5: deadlines cancel, then retire", (layer) => {
  const outcomeAt = (turn: { readonly outcome: Effect.Effect<TurnOutcome.TurnOutcome> }) =>
    Effect.forkChild(
      Effect.flatMap(turn.outcome, (outcome) =>
        Effect.clockWith((clock) => Effect.map(clock.currentTimeMillis, (at) => [at, outcome] as const))
      ),
      { startImmediately: true }
    )

  it.effect("B15: an agent that falls silent is cancelled, and the escalation that it took is in the error", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello", { idleTimeout: "1 minute" })
      const held = yield* Queue.take(agent.prompts)
      const end = yield* outcomeAt(turn)
      for (let i = 0; i < 5; i++) {
        yield* TestClock.adjust("50 seconds")
        yield* held.say("still here")
        yield* rest
      }
      yield* TestClock.adjust("70 seconds")
      const [at, outcome] = yield* Fiber.join(end)
      assert.strictEqual(at, 250_000 + 60_000 + 10_000)
      assert.strictEqual(outcome._tag, "Failed")
      if (outcome._tag === "Failed") {
        assert.deepInclude(outcome.error.reason, {
          _tag: "TurnTimedOut",
          deadline: "idle",
          afterMillis: 60_000,
          escalation: "retired"
        })
        assert.include(outcome.error.message, "ACP_SIDECAR_TURN_IDLE_TIMEOUT")
      }
      assert.strictEqual((yield* Effect.flip(session.submit("again")))._tag, "SessionUnusable")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("an agent that obeys keeps its session", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello", { idleTimeout: "1 minute" })
      yield* TestClock.adjust("1 minute")
      const { reason } = yield* Effect.flip(turn.await)
      assert.deepInclude(reason, { deadline: "idle", afterMillis: 60_000, escalation: "none" })
      const next = yield* session.submit("next")
      yield* next.cancel
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("idle time stands still while a question is open and starts anew with its answer", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const turn = yield* session.submit("hello", { idleTimeout: "1 minute" })
      const held = yield* Queue.take(agent.prompts)
      const end = yield* outcomeAt(turn)
      yield* TestClock.adjust("50 seconds")
      yield* Effect.forkChild(held.ask(), { startImmediately: true })
      yield* rest
      yield* TestClock.adjust("9 minutes")
      assert.isUndefined(end.pollUnsafe())
      const [question] = yield* session.pendingPermissions
      yield* session.answer(question!.permissionId, "allow")
      yield* TestClock.adjust("59 seconds")
      assert.strictEqual((yield* session.describe).turns[0]!.phase, "running")
      yield* TestClock.adjust("1 seconds")
      assert.strictEqual((yield* session.describe).turns[0]!.phase, "cancelling")
      yield* held.end("cancelled")
      const [, outcome] = yield* Fiber.join(end)
      assert.strictEqual(outcome._tag, "Failed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("the wall deadline stops for nothing", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const turn = yield* session.submit("hello")
      const held = yield* Queue.take(agent.prompts)
      const asked = yield* Effect.forkChild(held.ask(), { startImmediately: true })
      for (let i = 0; i < 5; i++) {
        yield* TestClock.adjust("59 seconds")
        yield* held.say("busy")
      }
      yield* TestClock.adjust("5 seconds")
      assert.deepStrictEqual(yield* Fiber.join(asked), { _tag: "Cancelled" })
      yield* held.say("sorry")
      yield* held.end("cancelled")
      const { reason } = yield* Effect.flip(turn.await)
      assert.deepInclude(reason, { deadline: "wall", afterMillis: 300_000, escalation: "none" })
      assert.include(reason.message, "ACP_SIDECAR_TURN_TIMEOUT")
      const said = (yield* events(session)).filter((event) => event._tag === "Update")
      assert.strictEqual(said.length, 6, "what it said on its way out is kept")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual, limits: { turnTimeout: "5 minutes" } })))
  )

  it.effect("a turn's own deadlines win over the limits, and Infinity turns them off", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const off = yield* session.submit("off", { wallTimeout: Infinity, idleTimeout: Infinity })
      yield* TestClock.adjust("1 hour")
      assert.strictEqual((yield* session.describe).turns[0]!.phase, "running")
      yield* off.cancel
      const short = yield* session.submit("short", { wallTimeout: "1 second" })
      yield* TestClock.adjust("1 second")
      assert.deepInclude((yield* Effect.flip(short.await)).reason, { deadline: "wall", afterMillis: 1000 })
      const usual = yield* session.submit("usual")
      yield* TestClock.adjust("1 minute")
      assert.deepInclude((yield* Effect.flip(usual.await)).reason, { deadline: "wall", afterMillis: 60_000 })
      yield* assertEnded(session)
    }).pipe(
      Effect.provide(layer({ script: hanging, limits: { turnTimeout: "1 minute", turnIdleTimeout: "2 minutes" } }))
    )
  )

  it.effect("a deadline that is no time is refused", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      for (const input of ["idleTimeout", "wallTimeout"] as const) {
        for (const time of ["5 bananas", Number.NaN, -1, "-5 seconds", {}, { secs: 5 }]) {
          const refused = yield* Effect.flip(session.submit("hello", { [input]: time as "5 seconds" }))
          assert.deepInclude(refused, { _tag: "InvalidInput", input })
        }
      }
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer()))
  )

  it.effect("a prompt that breaks when it is looked at, and a lane and a policy that don't exist, are refused", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const refused = (prompt: unknown, options: object = {}) => Effect.flip(session.submit(prompt as "x", options))
      const broken: ReadonlyArray<unknown> = [
        Object.assign([{ type: "text", text: "x" }], { toJSON: () => undefined }),
        [
          {
            get type() {
              throw new Error("no")
            }
          }
        ],
        [{ type: "text", text: 1n }]
      ]
      for (const prompt of broken) assert.deepInclude(yield* refused(prompt), { _tag: "InvalidInput", input: "prompt" })
      // What is no policy would be a queue without an end.
      for (const input of ["lane", "onBusy"]) {
        const choice = yield* refused("hello", { [input]: "bogus" })
        assert.deepInclude(choice, { _tag: "InvalidInput", input })
      }
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer()))
  )

  it.effect("waiting to be admitted is not running: it costs neither deadline", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const two = yield* session.submit("two", { idleTimeout: "1 second", wallTimeout: "1 second" })
      yield* TestClock.adjust("1 minute")
      assert.strictEqual((yield* session.describe).turns.length, 2)
      yield* one.cancel
      yield* TestClock.adjust("1 second")
      assert.deepInclude((yield* Effect.flip(two.await)).reason, { _tag: "TurnTimedOut", afterMillis: 1000 })
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect(
    "B24: a prompt that finds no room on its way to the agent has its deadline, and can be cancelled, too",
    () =>
      Effect.gen(function* () {
        const { agent, session } = yield* TestSidecar.open()
        const { send } = agent.transport
        Object.assign(agent.transport, { send: () => false })
        const one = yield* session.submit("one", { wallTimeout: "1 second" })
        yield* TestClock.adjust("1 second")
        const failed = yield* Effect.flip(one.await)
        assert.strictEqual(failed.phase, "queued")
        assert.deepInclude(failed.reason, { _tag: "TurnTimedOut", deadline: "wall", escalation: "none" })
        const two = yield* session.submit("two")
        assert.deepStrictEqual(yield* two.cancel, cancelled("caller", null))
        assert.deepStrictEqual([yield* one.dispatched, yield* two.dispatched], [false, false])
        Object.assign(agent.transport, { send })
        const three = yield* session.submit("three")
        assert.strictEqual((yield* Queue.take(agent.prompts)).text, "three")
        yield* three.cancel
        assert.deepStrictEqual(agent.methods().slice(2), ["session/prompt", "session/cancel"])
        yield* assertEnded(session)
      }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("no clock is left after a turn", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello", { idleTimeout: "1 minute", wallTimeout: "1 minute" })
      yield* turn.await
      const before = (yield* session.describe).events
      yield* TestClock.adjust("1 hour")
      assert.strictEqual((yield* session.describe).events, before)
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer()))
  )
})

everywhere("callers that go away", (layer) => {
  it.effect("interrupting `prompt` cancels the turn and waits for its end", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const caller = yield* Effect.forkChild(session.prompt("hello"), { startImmediately: true })
      const held = yield* Queue.take(agent.prompts)
      const interrupting = yield* Effect.forkChild(Fiber.interrupt(caller), { startImmediately: true })
      yield* Queue.take(agent.cancels)
      assert.isUndefined(interrupting.pollUnsafe())
      yield* held.end("cancelled")
      yield* Fiber.join(interrupting)
      const [outcomes] = Object.values(yield* endings(session))
      assert.deepStrictEqual(outcomes, [cancelled("interruption", "cancelled")])
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("interrupting `turn.await` cancels the turn and waits for its end", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      yield* Fiber.interrupt(yield* Effect.forkChild(turn.await, { startImmediately: true }))
      assert.deepStrictEqual((yield* endings(session))[turn.id], [cancelled("interruption", "cancelled")])
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("interrupting `prompt` while it waits to be admitted sends nothing", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      yield* Fiber.interrupt(yield* Effect.forkChild(session.prompt("two"), { startImmediately: true }))
      assert.strictEqual((yield* session.describe).turns.length, 1)
      yield* one.cancel
      yield* rest
      assert.deepStrictEqual(agent.methods().slice(2), ["session/prompt", "session/cancel"])
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("interrupting `turn.outcome`, `dispatched` or the updates leaves the turn alone", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      for (const reading of [turn.outcome, turn.dispatched, Stream.runDrain(turn.updates)]) {
        yield* Fiber.interrupt(yield* Effect.forkChild(reading, { startImmediately: true }))
      }
      yield* rest
      assert.strictEqual((yield* session.describe).turns[0]!.phase, "running")
      yield* (yield* Queue.take(agent.prompts)).end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("in the same tick as well: nothing goes on for a caller that is gone", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      for (const startImmediately of [true, false]) {
        const caller = yield* Effect.forkChild(session.prompt("hello"), { startImmediately })
        caller.interruptUnsafe()
        yield* Fiber.await(caller)
        assert.deepStrictEqual((yield* session.describe).turns, [])
      }
      const turn = yield* session.submit("hello")
      const caller = yield* Effect.forkChild(turn.await, { startImmediately: true })
      caller.interruptUnsafe()
      assert.deepStrictEqual(yield* turn.outcome, cancelled("interruption", "cancelled"))
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("an accepted turn goes on without the one who submitted it", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const caller = yield* Effect.forkChild(Effect.andThen(session.submit("hello"), Effect.never), {
        startImmediately: true
      })
      const held = yield* Queue.take(agent.prompts)
      yield* Fiber.interrupt(caller)
      yield* held.end()
      yield* rest
      assert.deepInclude(Object.values(yield* endings(session))[0]![0], { _tag: "Completed" })
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("who cancels first is named; those who come later wait for the same end", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      const held = yield* Queue.take(agent.prompts)
      const one = yield* Effect.forkChild(session.cancel(turn.id), { startImmediately: true })
      const two = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
      const other = yield* session.submit("instead", { onBusy: "replace" })
      yield* Fiber.interrupt(yield* Effect.forkChild(other.await, { startImmediately: true }))
      const three = yield* Effect.forkChild(session.close, { startImmediately: true })
      yield* rest
      assert.isUndefined(three.pollUnsafe())
      yield* held.end("cancelled")
      assert.deepInclude(yield* Fiber.join(one), { outcome: cancelled("caller", "cancelled") })
      assert.deepStrictEqual(yield* Fiber.join(two), cancelled("caller", "cancelled"))
      yield* Fiber.join(three)
      assert.strictEqual(agent.methods().filter((method) => method === "session/cancel").length, 1)
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("an idempotency key gives the earlier turn, running or ended, and sends nothing", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one", { idempotencyKey: "key" })
      const same = yield* session.submit("one", { idempotencyKey: "key", onBusy: "reject" })
      assert.strictEqual(same.id, one.id)
      yield* (yield* Queue.take(agent.prompts)).end()
      yield* one.await
      assert.strictEqual((yield* session.submit("one", { idempotencyKey: "key" })).id, one.id)
      assert.strictEqual((yield* session.prompt("one", { idempotencyKey: "key" }))._tag, "Completed")
      const other = yield* session.submit("one", { idempotencyKey: "other" })
      assert.notStrictEqual(other.id, one.id)
      yield* (yield* Queue.take(agent.prompts)).end()
      yield* other.await
      assert.strictEqual(agent.methods().filter((method) => method === "session/prompt").length, 2)
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("the last 256 idempotency keys are remembered", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const first = yield* session.submit("hello", { idempotencyKey: "0" })
      for (let i = 1; i < 256; i++) yield* session.prompt("hello", { idempotencyKey: `${i}` })
      assert.strictEqual((yield* session.submit("hello", { idempotencyKey: "0" })).id, first.id)
      yield* session.prompt("hello", { idempotencyKey: "256" })
      assert.notStrictEqual((yield* session.submit("hello", { idempotencyKey: "0" })).id, first.id)
      yield* assertIdle
    }).pipe(Effect.provide(layer()))
  )

  it.effect("a prompt that waits is sent as it was accepted, whatever its caller does to it meanwhile", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      yield* session.submit("first")
      const first = yield* Queue.take(agent.prompts)
      const blocks = [{ type: "text" as const, text: "second" }]
      const turn = yield* session.submit(blocks)
      blocks[0]!.text = "something else"
      blocks.push({ type: "text", text: 1n as never })
      yield* first.end()
      const second = yield* Queue.take(agent.prompts)
      assert.strictEqual(second.text, "second")
      yield* second.end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
    }).pipe(Effect.provide(layer({ script: manual })))
  )
})
