import { assert, describe, it } from "@effect/vitest"
import { AcpConnection } from "acp-sidecar/acp"
import { ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { beside, chunk, idle, provided, soFar, textOf, until } from "../support/events.ts"

/** A bare connection to a scripted agent, with the texts that came in. */
const connect = (script?: ScriptedAgent.Script) =>
  Effect.gen(function* () {
    const agent = yield* ScriptedAgent.make(script)
    const texts: Array<string> = []
    const connection = yield* AcpConnection.make(agent.transport, {
      onNotification: (_, params) =>
        void texts.push(
          (params as { readonly update: { readonly content: { readonly text: string } } }).update.content.text
        ),
      onRequest: () => Effect.never
    })
    return { agent, connection, texts }
  })

describe("a scripted agent", () => {
  it.effect("without a script behaves: it starts, answers ok, and ends a cancelled turn with cancelled", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      assert.deepInclude(yield* turn.await, { _tag: "Completed", stopReason: "end_turn" })
      assert.deepStrictEqual((yield* soFar(session)).map(textOf).filter(Boolean), ["ok"])
      assert.deepStrictEqual(agent.methods(), ["initialize", "session/new", "session/prompt"])
      assert.strictEqual((yield* Queue.take(agent.prompts)).text, "go")
    }).pipe(provided(TestSidecar.layer()))
  )

  it.effect("ends a cancelled turn politely, and records the cancel", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      yield* turn.dispatched
      assert.deepInclude(yield* turn.cancel, { _tag: "Cancelled", agentReported: "cancelled", escalation: "none" })
      assert.strictEqual(yield* Queue.take(agent.cancels), session.agentSessionId)
    }).pipe(provided(TestSidecar.layer({ script: { prompt: () => Effect.never } })))
  )

  it.effect("with ignoreCancel goes on", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      yield* turn.dispatched
      const cancelling = yield* beside(turn.cancel)
      yield* TestClock.adjust("3 seconds")
      assert.deepInclude(yield* Fiber.join(cancelling), { _tag: "Cancelled", agentReported: "end_turn" })
    }).pipe(
      provided(
        TestSidecar.layer({
          script: { ignoreCancel: true, prompt: () => Effect.as(Effect.sleep("3 seconds"), "end_turn") }
        })
      )
    )
  )

  it.effect("carries many sessions, whose ids, turns and cancels are kept apart", () =>
    Effect.gen(function* () {
      const { agent, connection } = yield* connect({ prompt: (turn) => Effect.as(turn.cancelled, turn.text) })
      const ids: Array<string> = []
      for (let i = 0; i < 3; i++) {
        const answer = yield* connection.request("session/new", { cwd: `/${i}`, mcpServers: [] })
        ids.push((answer as { readonly sessionId: string }).sessionId)
      }
      assert.strictEqual(new Set(ids).size, 3)
      assert.deepStrictEqual(agent.sessions(), ids)
      const turns = yield* Effect.forEach(ids, (sessionId) =>
        beside(connection.request("session/prompt", { sessionId, prompt: [{ type: "text", text: sessionId }] }))
      )
      yield* connection.notify("session/cancel", { sessionId: ids[1]! })
      assert.deepStrictEqual(yield* Fiber.join(turns[1]!), { stopReason: ids[1] })
      yield* idle
      assert.deepStrictEqual(
        turns.map((turn) => turn.pollUnsafe() === undefined),
        [true, false, true]
      )
      yield* connection.request("session/close", { sessionId: ids[0]! })
      assert.deepStrictEqual(agent.sessions(), ids.slice(1))
    })
  )

  it.effect("loads, resumes and lists sessions when its capabilities say so, and else does not know how", () =>
    Effect.gen(function* () {
      const calls = (connection: AcpConnection.AcpConnection) => [
        connection.request("session/load", { sessionId: "a", cwd: "/", mcpServers: [] }),
        connection.request("session/resume", { sessionId: "b", cwd: "/work" }),
        connection.request("session/list", {})
      ]
      const able = yield* connect({
        capabilities: { loadSession: true, sessionCapabilities: { resume: {}, list: {} } },
        loadSession: (agent, id) => Effect.as(agent.update(id, chunk("replayed")), null)
      })
      assert.deepStrictEqual(yield* Effect.all(calls(able.connection)), [
        null,
        {},
        {
          sessions: [
            { sessionId: "a", cwd: "/" },
            { sessionId: "b", cwd: "/work" }
          ]
        }
      ])
      assert.deepStrictEqual(able.texts, ["replayed"])
      const plain = yield* connect()
      for (const call of calls(plain.connection)) {
        assert.deepInclude(yield* Effect.flip(call), { _tag: "RequestError", code: -32601 })
      }
      assert.deepStrictEqual(plain.agent.sessions(), [])
    })
  )

  it.effect("writes what is put together as one piece, also when that is nested or fails", () =>
    Effect.gen(function* () {
      const agent = yield* ScriptedAgent.make()
      const say = (text: string) => agent.update("s", chunk(text))
      yield* say("a")
      yield* agent.together(
        Effect.gen(function* () {
          yield* say("b")
          yield* agent.together(Effect.andThen(say("c"), say("d")))
          yield* say("e")
        })
      )
      yield* Effect.exit(agent.together(Effect.andThen(say("f"), Effect.fail("no"))))
      yield* agent.together(Effect.void)
      yield* say("g")
      yield* agent.crash()
      const pieces = yield* Stream.runCollect(agent.transport.incoming)
      const texts = pieces.map((bytes) =>
        Array.from(new TextDecoder().decode(bytes).matchAll(/"text":"(\w)"/g), (match) => match[1])
      )
      assert.deepStrictEqual(texts, [["a"], ["b", "c", "d", "e"], ["f"], ["g"]])
    }).pipe(Effect.scoped)
  )

  it.effect("loses nothing when two put something together at once", () =>
    Effect.gen(function* () {
      const agent = yield* ScriptedAgent.make()
      const say = (text: string) => agent.update("s", chunk(text))
      const first = yield* beside(
        agent.together(Effect.andThen(say("a"), Effect.andThen(Effect.sleep("1 second"), say("b"))))
      )
      yield* idle
      const second = yield* beside(
        agent.together(Effect.andThen(say("c"), Effect.andThen(Effect.sleep("2 seconds"), say("d"))))
      )
      yield* idle
      yield* TestClock.adjust("3 seconds")
      yield* Fiber.join(first)
      yield* Fiber.join(second)
      yield* say("e")
      yield* agent.crash()
      const pieces = yield* Stream.runCollect(agent.transport.incoming)
      const all = pieces.map((bytes) => new TextDecoder().decode(bytes)).join("")
      assert.deepStrictEqual(
        Array.from(all.matchAll(/"text":"(\w)"/g), (match) => match[1]),
        ["a", "c", "b", "d", "e"]
      )
    }).pipe(Effect.scoped)
  )

  it.effect("that is paused reads nothing until it is resumed, and then all in order", () =>
    Effect.gen(function* () {
      const { agent, connection } = yield* connect()
      yield* agent.pause
      const asking = yield* beside(connection.request("initialize", { protocolVersion: 1 }))
      yield* connection.notify("session/cancel", { sessionId: "s" })
      yield* idle
      assert.deepStrictEqual(agent.methods(), [])
      assert.isUndefined(asking.pollUnsafe())
      yield* agent.resume
      yield* Fiber.join(asking)
      yield* idle
      assert.deepStrictEqual(agent.methods(), ["initialize", "session/cancel"])
    }).pipe(Effect.scoped)
  )

  it.effect("that is resumed takes more than its pipe holds, without the clock", () =>
    Effect.gen(function* () {
      const { agent, connection } = yield* connect()
      yield* agent.pause
      const sending = yield* beside(
        Effect.forEach(Array.from({ length: 3000 }), () => connection.notify("_x", {}), { discard: true })
      )
      yield* idle
      assert.isUndefined(sending.pollUnsafe())
      yield* agent.resume
      yield* Fiber.join(sending)
    }).pipe(Effect.scoped)
  )

  it.effect("that crashes is gone with its code, after what it wrote has arrived", () =>
    Effect.gen(function* () {
      const { agent, connection, texts } = yield* connect()
      yield* agent.update("s", chunk("last words"))
      yield* agent.crash({ code: 3, stderrTail: "why" })
      assert.isTrue(agent.isGone())
      assert.deepInclude(yield* connection.ended, { _tag: "ProcessExited", code: 3, signal: null, stderrTail: "why" })
      assert.deepInclude(yield* agent.gone, { code: 3 })
      assert.deepStrictEqual(texts, ["last words"])
      // A second crash changes nothing.
      yield* agent.crash({ signal: "SIGKILL" })
      assert.deepInclude(yield* agent.gone, { code: 3 })
    }).pipe(Effect.scoped)
  )

  it.effect("that was ended by its host is gone with code 0", () =>
    Effect.gen(function* () {
      const { agent, connection } = yield* connect()
      assert.isFalse(agent.isGone())
      yield* connection.close("a test")
      assert.deepInclude(yield* agent.gone, { _tag: "ProcessExited", code: 0 })
    }).pipe(Effect.scoped)
  )

  it.effect("may answer a prompt twice, and late: nobody but the counter notices", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const first = yield* session.submit("one")
      const one = yield* Queue.take(agent.prompts)
      yield* one.end()
      yield* one.end("refusal")
      assert.deepInclude(yield* first.await, { stopReason: "end_turn" })
      const second = yield* session.submit("two")
      const two = yield* Queue.take(agent.prompts)
      yield* one.end("refusal")
      yield* two.end("max_tokens")
      assert.deepInclude(yield* second.await, { stopReason: "max_tokens" })
      assert.strictEqual((yield* session.describe).late, 2)
    }).pipe(provided(TestSidecar.layer({ script: { prompt: "manual" } })))
  )

  it.effect("may fail a prompt, with a code, a message and data", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("one")
      yield* (yield* Queue.take(agent.prompts)).fail(-32603, "no", { why: 1 })
      const error = yield* Effect.flip(turn.await)
      assert.deepInclude((error as { readonly reason: object }).reason, {
        _tag: "RequestError",
        code: -32603,
        detail: "no",
        data: { why: 1 }
      })
    }).pipe(provided(TestSidecar.layer({ script: { prompt: "manual" } })))
  )

  it.effect("takes a question back when its asking is interrupted, unless it was answered", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const asked = yield* beside(agent.ask(session.agentSessionId))
      yield* until(session, "PermissionAsked")
      yield* Fiber.interrupt(asked)
      assert.strictEqual((yield* until(session, "PermissionAnswered")).answeredBy, "withdrawn")
      const again = yield* beside(agent.ask(session.agentSessionId))
      const { permissionId } = yield* until(session, "PermissionAsked", 2)
      yield* session.answer(permissionId, "allow")
      yield* idle
      yield* Fiber.interrupt(again)
      yield* idle
      assert.strictEqual((yield* session.describe).pendingPermissions, 0)
      assert.strictEqual((yield* until(session, "PermissionAnswered", 2)).answeredBy, "user")
    }).pipe(provided(TestSidecar.layer()))
  )

  it.effect("asks about whatever tool call a test wants its app's policy to see", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({
        permission: ({ toolCall: { kind, title } }) =>
          Effect.succeed(kind === "read" || title === "npm test" ? "allow" : "reject")
      })
      yield* beside(session.prompt("go"))
      const turn = yield* Queue.take(agent.prompts)
      const choice = (optionId: string) => ({ _tag: "Selected" as const, optionId })
      assert.deepStrictEqual(yield* turn.ask(undefined, { kind: "read" }), choice("allow"))
      assert.deepStrictEqual(yield* turn.ask(undefined, { title: "npm test", kind: "execute" }), choice("allow"))
      assert.deepStrictEqual(yield* turn.ask(undefined, "tool-7"), choice("reject"))
    }).pipe(provided(TestSidecar.layer({ script: { prompt: "manual" } })))
  )

  it.effect("can be scripted by launch, and each launch is recorded", () =>
    Effect.gen(function* () {
      const a = yield* TestSidecar.open({ env: { WHO: "a" } })
      const b = yield* TestSidecar.open({ env: { WHO: "b" } })
      assert.deepInclude(yield* a.session.prompt("go"), { stopReason: "a" })
      assert.deepInclude(yield* b.session.prompt("go"), { stopReason: "b" })
      const { alive, launches } = yield* TestSidecar.TestSidecar
      assert.deepStrictEqual([launches().length, alive()], [2, 2])
      yield* a.session.close
      assert.strictEqual(alive(), 1)
    }).pipe(provided(TestSidecar.layer({ script: (launch) => ({ prompt: () => Effect.succeed(launch.env["WHO"]!) }) })))
  )

  it.effect("a five-minute timeout of an app takes no time to test", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const app = yield* beside(session.prompt("go").pipe(Effect.timeoutOption("5 minutes")))
      yield* TestClock.adjust("5 minutes")
      assert.strictEqual((yield* Fiber.join(app))._tag, "None")
      const events = yield* Stream.runCollect(Stream.take(session.updates, 3))
      assert.deepInclude(events[2], { _tag: "TurnEnded" })
    }).pipe(provided(TestSidecar.layer({ script: { prompt: () => Effect.never } })))
  )
})
