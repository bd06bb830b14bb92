import { assert, it } from "@effect/vitest"
import { AcpConnection } from "acp-sidecar/acp"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { TestClock } from "effect/testing"
import { beside, provided, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"

const option = (currentValue: string) => ({ id: "model", name: "Model", type: "select", currentValue, options: [] })

everywhere("a session's mode and options", (layer) => {
  /** An agent with one mode and one option, which answers through `answer`. */
  const answering = (answer: ScriptedAgent.Script["request"]) =>
    provided(
      layer({
        script: {
          newSession: () =>
            Effect.succeed({
              sessionId: "s",
              modes: { currentModeId: "ask", availableModes: [{ id: "ask", name: "Ask" }] },
              configOptions: [option("small")]
            }),
          request: answer
        }
      })
    )

  it.effect("are those that the agent offered when it was opened", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      assert.strictEqual(session.modes?.currentModeId, "ask")
      assert.deepStrictEqual(yield* session.configOptions, [option("small")] as never)
    }).pipe(answering(undefined))
  )

  it.effect("are set by what the protocol calls for", () => {
    const calls: Array<unknown> = []
    return Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* session.setMode("code")
      assert.deepStrictEqual(yield* session.setConfigOption("model", "large"), [option("large")] as never)
      yield* session.setConfigOption("fast", true)
      assert.deepStrictEqual(calls, [
        ["session/set_mode", { sessionId: "s", modeId: "code" }],
        ["session/set_config_option", { sessionId: "s", configId: "model", value: "large" }],
        ["session/set_config_option", { sessionId: "s", configId: "fast", type: "boolean", value: true }]
      ])
      assert.deepStrictEqual(yield* session.configOptions, [option("large")] as never)
    }).pipe(
      answering((_, method, params) => {
        calls.push([method, params])
        return Effect.succeed({ configOptions: [option("large")] })
      })
    )
  })

  it.effect("that the agent changes right after its answer are the later ones", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const setting = yield* beside(session.setConfigOption("model", "large"))
      yield* agent.together(
        Effect.andThen(
          agent.send({ id: 3, result: { configOptions: [option("large")] } }),
          agent.update("s", { sessionUpdate: "config_option_update", configOptions: [option("huge")] })
        )
      )
      assert.deepStrictEqual(yield* Fiber.join(setting), [option("large")] as never)
      yield* until(session, "Update")
      assert.deepStrictEqual(yield* session.configOptions, [option("huge")] as never)
    }).pipe(answering(() => Effect.never))
  )

  it.effect("that the agent refuses, or answers with nonsense, fail with its reason and stay as they are", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const refused = yield* Effect.flip(session.setMode("no"))
      assert.deepInclude(refused, { _tag: "AgentCallFailed", method: "session/set_mode" })
      assert.deepInclude(refused.reason, { _tag: "RequestError", code: -32602, detail: "no such mode" })
      const nonsense = yield* Effect.flip(session.setConfigOption("model", "x"))
      assert.deepInclude(nonsense.reason, { _tag: "InvalidResponse", method: "session/set_config_option" })
      assert.deepStrictEqual(yield* session.configOptions, [option("small")] as never)
    }).pipe(
      answering((_, method) =>
        method === "session/set_mode"
          ? Effect.fail(AcpConnection.refusal(-32602, "no such mode"))
          : Effect.succeed({ configOptions: "all" })
      )
    )
  )

  it.effect("that the agent never answers time out, and the agent is told", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const setting = yield* beside(Effect.flip(session.setMode("code")))
      yield* TestClock.adjust("29999 millis")
      assert.isUndefined(setting.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      const error = yield* Fiber.join(setting)
      assert.deepInclude(error.reason, { _tag: "CallTimedOut", afterMillis: 30_000 })
      assert.include(error.message, "ACP_SIDECAR_CALL_TIMEOUT")
      assert.deepStrictEqual(agent.methods().slice(-2), ["session/set_mode", "$/cancel_request"])
      assert.strictEqual((yield* session.prompt("go on"))._tag, "Completed")
    }).pipe(answering(() => Effect.never))
  )

  it.effect("can't be set once the session is closed", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* session.close
      assert.strictEqual((yield* Effect.flip(session.setMode("code"))).reason._tag, "HostClosed")
    }).pipe(answering(undefined))
  )
})
