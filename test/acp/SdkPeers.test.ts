// Our peer against peers built with the ACP SDK, in both directions.
import * as acp from "@agentclientprotocol/sdk"
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as AcpConnection from "../../src/acp/AcpConnection.ts"
import type * as AcpError from "../../src/acp/AcpError.ts"
import { v1 } from "../../src/acp/AcpProtocol.ts"
import * as AcpTransport from "../../src/acp/AcpTransport.ts"
import { until } from "../support/rawPeer.ts"

type Log = Array<unknown>

/** One end of the in-memory pair as the byte streams that the SDK wants. */
const webStreams = (transport: AcpTransport.AcpTransport): acp.Stream =>
  acp.ndJsonStream(
    new WritableStream<Uint8Array>({
      write: (bytes) => {
        if (!transport.send(bytes)) throw new Error("no room")
      }
    }),
    Stream.toReadableStream(transport.incoming)
  )

const chunk = (text: string): acp.SessionUpdate => ({
  sessionUpdate: "agent_message_chunk",
  content: { type: "text", text }
})
const textOf = (update: unknown): string => (update as { readonly content: { readonly text: string } }).content.text
const question = (sessionId: string): acp.RequestPermissionRequest => ({
  sessionId,
  toolCall: { toolCallId: "t1", title: "Run it" },
  options: [{ optionId: "yes", name: "Yes", kind: "allow_once" }]
})
const promptOf = (sessionId: string, text: string) => v1.prompt(sessionId, [{ type: "text", text }])
const wordOf = (params: acp.PromptRequest): string => (params.prompt[0] as { readonly text: string }).text

const failureOf = (exit: Exit.Exit<unknown, AcpError.RequestFailure>) => {
  const error = Option.getOrThrow(Exit.findErrorOption(exit))
  assert(error._tag === "RequestError")
  return { code: error.code, detail: error.detail, data: error.data }
}
const initialize = v1.initialize({ name: "test", version: "1.0.0" })

describe("our peer as the host of an agent built with the SDK's agent()", () => {
  /** What the agent does depends on the prompt's text. */
  const makeAgent = (seen: Log) => {
    const cancels = new Map<string, () => void>()
    let sessions = 0
    return (
      acp
        .agent({ name: "sdk-agent" })
        // The order matters to the SDK: a handler that is registered first also runs first.
        .onRequest(acp.methods.agent.session.prompt, async ({ client, params, signal }) => {
          const { sessionId } = params
          const say = (text: string) =>
            client.notify(acp.methods.client.session.update, { sessionId, update: chunk(text) })
          switch (wordOf(params)) {
            case "updates": {
              for (let index = 0; index < 50; index++) await say(`${sessionId} ${index}`)
              return { stopReason: "end_turn" }
            }
            case "permission": {
              const { outcome } = await client.request(
                acp.methods.client.session.requestPermission,
                question(sessionId)
              )
              await say(outcome.outcome === "selected" ? outcome.optionId : outcome.outcome)
              return { stopReason: "end_turn" }
            }
            case "hang": {
              const cancelled = new Promise<void>((resolve) => cancels.set(sessionId, resolve))
              await say("hanging")
              await cancelled
              return { stopReason: "cancelled" }
            }
            case "hang until aborted": {
              await say("hanging")
              await new Promise<void>((resolve) => signal.addEventListener("abort", () => resolve()))
              seen.push("aborted")
              throw acp.RequestError.requestCancelled()
            }
            case "withdraw": {
              const abort = new AbortController()
              const asked = client.request(acp.methods.client.session.requestPermission, question(sessionId), {
                cancellationSignal: abort.signal
              })
              await say("asking")
              abort.abort()
              const error = await asked.then(
                () => undefined,
                (reason: unknown) => reason as acp.RequestError
              )
              await say(`withdrawn ${error?.code}`)
              return { stopReason: "end_turn" }
            }
            case "unknown": {
              const error = await client
                .request("_nobody/knows", {})
                .then(() => undefined)
                .catch((reason: unknown) => reason as acp.RequestError)
              await say(`${error?.code} ${error?.message}`)
              return { stopReason: "end_turn" }
            }
          }
          throw new acp.RequestError(-32050, "no such word", { word: wordOf(params), near: ["a", 1, null] })
        })
        .onNotification(acp.methods.agent.session.cancel, ({ params }) => cancels.get(params.sessionId)?.())
        .onRequest(acp.methods.agent.initialize, () => ({ protocolVersion: 1, agentCapabilities: {}, authMethods: [] }))
        .onRequest(acp.methods.agent.session.new, () => ({ sessionId: `s${++sessions}` }))
    )
  }

  const host = Effect.gen(function* () {
    const [near, far] = yield* AcpTransport.makePair()
    const seen: Log = []
    const updates = new Map<string, Array<string>>()
    const asked: Array<(answer: unknown) => void> = []
    let interrupted = 0
    const connection = yield* AcpConnection.make(near, {
      onNotification: (method, params) => {
        assert.strictEqual(method, "session/update")
        const { sessionId, update } = params as acp.SessionNotification
        const texts = updates.get(sessionId) ?? []
        updates.set(sessionId, texts)
        texts.push(textOf(update))
      },
      onRequest: (method) =>
        method === "session/request_permission"
          ? Effect.callback<unknown>((resume) => {
              asked.push((answer) => resume(Effect.succeed(answer)))
              return Effect.sync(() => {
                interrupted++
              })
            })
          : Effect.fail(AcpConnection.methodNotFound(method))
    })
    yield* Effect.acquireRelease(
      Effect.sync(() => makeAgent(seen).connect(webStreams(far))),
      (agent) => Effect.sync(() => agent.close())
    )
    const { protocolVersion } = (yield* connection.request("initialize", initialize)) as acp.InitializeResponse
    assert.strictEqual(protocolVersion, 1)
    const open = Effect.map(
      connection.request("session/new", { cwd: "/", mcpServers: [] }),
      (response) => (response as acp.NewSessionResponse).sessionId
    )
    const prompt = (sessionId: string, text: string, hooks?: AcpConnection.RequestHooks) =>
      connection.request("session/prompt", promptOf(sessionId, text), hooks)
    const textsOf = (sessionId: string) => updates.get(sessionId) ?? []
    return { connection, open, prompt, textsOf, asked, seen, interrupted: () => interrupted }
  })

  it.effect("all updates of a turn come in order and before its response", () =>
    Effect.gen(function* () {
      const { open, prompt, textsOf } = yield* host
      const session = yield* open
      let before = -1
      const response = yield* prompt(session, "updates", { onResponse: () => (before = textsOf(session).length) })
      assert.deepStrictEqual(response, { stopReason: "end_turn" })
      assert.strictEqual(before, 50)
      assert.deepStrictEqual(
        textsOf(session),
        Array.from({ length: 50 }, (_, index) => `s1 ${index}`)
      )
    })
  )

  it.effect("two prompts on two sessions run at once: one ends while the other hangs", () =>
    Effect.gen(function* () {
      const { connection, open, prompt, textsOf } = yield* host
      const [a, b] = [yield* open, yield* open]
      const slow = yield* Effect.forkChild(prompt(a, "hang"))
      yield* until(() => textsOf(a).length === 1)
      assert.deepStrictEqual(yield* prompt(b, "updates"), { stopReason: "end_turn" })
      assert.strictEqual(textsOf(b).length, 50)
      assert.strictEqual(connection.stats.pending, 1)
      const { method, params } = v1.cancel(a)
      yield* connection.notify(method, params)
      assert.deepStrictEqual(yield* Fiber.join(slow), { stopReason: "cancelled" })
    })
  )

  it.effect("a permission makes its round trip while the prompt is pending", () =>
    Effect.gen(function* () {
      const { asked, open, prompt, textsOf } = yield* host
      const session = yield* open
      const turn = yield* Effect.forkChild(prompt(session, "permission"))
      yield* until(() => asked.length === 1)
      asked[0]!({ outcome: { outcome: "selected", optionId: "yes" } })
      assert.deepStrictEqual(yield* Fiber.join(turn), { stopReason: "end_turn" })
      assert.deepStrictEqual(textsOf(session), ["yes"])
    })
  )

  it.effect("session/cancel in the tick of its prompt ends the turn", () =>
    Effect.gen(function* () {
      const { connection, open, prompt } = yield* host
      const session = yield* open
      const turn = yield* Effect.forkChild(prompt(session, "hang"), { startImmediately: true })
      const { method, params } = v1.cancel(session)
      yield* connection.notify(method, params)
      assert.deepStrictEqual(yield* Fiber.join(turn), { stopReason: "cancelled" })
    })
  )

  it.effect("$/cancel_request reaches the agent's handler; its late error hurts nobody", () =>
    Effect.gen(function* () {
      const { connection, open, prompt, seen, textsOf } = yield* host
      const session = yield* open
      const turn = yield* Effect.forkChild(prompt(session, "hang until aborted"))
      yield* until(() => textsOf(session).length === 1)
      yield* Fiber.interrupt(turn)
      yield* until(() => connection.stats.late === 1)
      assert.deepStrictEqual(seen, ["aborted"])
      const polite = yield* connection.start("session/prompt", promptOf(session, "hang until aborted"))
      yield* until(() => textsOf(session).length === 2)
      yield* polite.cancel
      assert.strictEqual(failureOf(yield* Effect.exit(polite.response)).code, -32800)
    })
  )

  it.effect("$/cancel_request of the agent interrupts our handler, and the agent gets -32800", () =>
    Effect.gen(function* () {
      const { connection, interrupted, open, prompt, textsOf } = yield* host
      const session = yield* open
      assert.deepStrictEqual(yield* prompt(session, "withdraw"), { stopReason: "end_turn" })
      assert.deepStrictEqual(textsOf(session), ["asking", "withdrawn -32800"])
      assert.deepStrictEqual([interrupted(), connection.stats.inbound], [1, 0])
    })
  )

  it.effect("an error keeps its code, message and data; an unknown method is -32601 both ways", () =>
    Effect.gen(function* () {
      const { connection, open, prompt, textsOf } = yield* host
      const session = yield* open
      assert.deepStrictEqual(failureOf(yield* Effect.exit(prompt(session, "what"))), {
        code: -32050,
        detail: "no such word",
        data: { word: "what", near: ["a", 1, null] }
      })
      // Ours is worded as theirs.
      const theirs = failureOf(yield* Effect.exit(connection.request("_nobody/knows", {})))
      const { code, data, message } = AcpConnection.methodNotFound("_nobody/knows")
      assert.deepStrictEqual(theirs, { code, detail: message, data })
      yield* prompt(session, "unknown")
      assert.deepStrictEqual(textsOf(session), [`${code} ${message}`])
    })
  )

  it.effect("B57: noise between the frames is never answered, so the agent sees nothing of it", () =>
    Effect.gen(function* () {
      const [near, far] = yield* AcpTransport.makePair()
      const connection = yield* AcpConnection.make(
        {
          ...near,
          incoming: Stream.mapArray(near.incoming, (chunks) => [new TextEncoder().encode("[log] 1\n"), ...chunks])
        },
        { onNotification: () => {}, onRequest: () => Effect.void }
      )
      const agent = makeAgent([]).connect(webStreams(far))
      yield* connection.request("initialize", initialize)
      yield* connection.request("session/new", { cwd: "/", mcpServers: [] })
      assert.strictEqual(connection.stats.noise, 2)
      assert.strictEqual(connection.stats.framesOut, 2)
      agent.close()
    })
  )
})

describe("the SDK's client() as the host of an agent made of our peer", () => {
  interface Session {
    readonly cancelled: Deferred.Deferred<void>
  }

  /** The same agent as above, in Effect. */
  const makeAgent = Effect.fnUntraced(function* (transport: AcpTransport.AcpTransport, seen: Log) {
    const sessions = new Map<string, Session>()
    const say = (sessionId: string, text: string) =>
      Effect.ignore(agent.notify("session/update", { sessionId, update: chunk(text) }))
    const prompt = Effect.fnUntraced(function* (params: acp.PromptRequest) {
      const { sessionId } = params
      switch (wordOf(params)) {
        case "updates": {
          for (let index = 0; index < 50; index++) yield* say(sessionId, `${sessionId} ${index}`)
          return { stopReason: "end_turn" }
        }
        case "permission": {
          const { outcome } = (yield* agent.request(
            "session/request_permission",
            question(sessionId)
          )) as acp.RequestPermissionResponse
          yield* say(sessionId, outcome.outcome === "selected" ? outcome.optionId : outcome.outcome)
          return { stopReason: "end_turn" }
        }
        case "hang": {
          yield* say(sessionId, "hanging")
          yield* Deferred.await(sessions.get(sessionId)!.cancelled)
          return { stopReason: "cancelled" }
        }
        case "hang until aborted": {
          yield* say(sessionId, "hanging")
          return yield* Effect.onInterrupt(Effect.never, () => Effect.sync(() => seen.push("aborted")))
        }
        case "withdraw": {
          const asked = yield* Effect.forkChild(agent.request("session/request_permission", question(sessionId)), {
            startImmediately: true
          })
          yield* say(sessionId, "asking")
          yield* Fiber.interrupt(asked)
          yield* until(() => agent.stats.late === 1)
          return { stopReason: "end_turn" }
        }
        case "unknown": {
          const exit = yield* Effect.exit(agent.request("_nobody/knows", {}))
          const { code, detail } = failureOf(exit)
          yield* say(sessionId, `${code} ${detail}`)
          return { stopReason: "end_turn" }
        }
      }
      return yield* Effect.fail(AcpConnection.refusal(-32050, "no such word", { word: wordOf(params) }))
    })
    const agent: AcpConnection.AcpConnection = yield* AcpConnection.make(transport, {
      onNotification: (method, params) => {
        assert.strictEqual(method, "session/cancel")
        const session = sessions.get((params as acp.CancelNotification).sessionId)
        if (session !== undefined) Deferred.doneUnsafe(session.cancelled, Exit.void)
      },
      onRequest: (method, params) => {
        switch (method) {
          case "initialize":
            return Effect.succeed({ protocolVersion: 1, agentCapabilities: {}, authMethods: [] })
          case "session/new": {
            const sessionId = `s${sessions.size + 1}`
            sessions.set(sessionId, { cancelled: Deferred.makeUnsafe() })
            return Effect.succeed({ sessionId })
          }
          case "session/prompt":
            return prompt(params as acp.PromptRequest)
        }
        return Effect.fail(AcpConnection.methodNotFound(method))
      }
    })
    return agent
  })

  const host: Effect.Effect<
    {
      readonly agent: AcpConnection.AcpConnection
      readonly client: acp.ClientConnection
      readonly seen: Log
      readonly updates: Map<string, Array<string>>
      readonly open: Effect.Effect<string>
      readonly prompt: (
        sessionId: string,
        text: string,
        options?: acp.SendRequestOptions
      ) => Promise<acp.PromptResponse>
      readonly asked: Array<AbortSignal>
    },
    never,
    Scope.Scope
  > = Effect.gen(function* () {
    const [near, far] = yield* AcpTransport.makePair()
    const seen: Log = []
    const updates = new Map<string, Array<string>>()
    const asked: Array<AbortSignal> = []
    const agent = yield* makeAgent(far, seen)
    const client = yield* Effect.acquireRelease(
      Effect.sync(() =>
        acp
          .client({ name: "sdk-client" })
          // Registered first: a response overtakes updates when other handlers come before theirs.
          .onNotification(acp.methods.client.session.update, ({ params }) => {
            const texts = updates.get(params.sessionId) ?? []
            updates.set(params.sessionId, texts)
            texts.push(textOf(params.update))
          })
          .onRequest(acp.methods.client.session.requestPermission, async ({ params, signal }) => {
            asked.push(signal)
            if (updates.get(params.sessionId)?.includes("hold") === true) await new Promise(() => {})
            return { outcome: { outcome: "selected", optionId: "yes" } }
          })
          .connect(webStreams(near))
      ),
      (connection) => Effect.sync(() => connection.close())
    )
    const { protocolVersion } = yield* Effect.promise(() =>
      client.agent.request(acp.methods.agent.initialize, initialize)
    )
    assert.strictEqual(protocolVersion, 1)
    const open = Effect.map(
      Effect.promise(() => client.agent.request(acp.methods.agent.session.new, { cwd: "/", mcpServers: [] })),
      ({ sessionId }) => sessionId
    )
    const prompt = (sessionId: string, text: string, options?: acp.SendRequestOptions) =>
      client.agent.request(acp.methods.agent.session.prompt, promptOf(sessionId, text), options)
    return { agent, client, seen, updates, open, prompt, asked }
  })

  /** How a promise failed. */
  const rejection = (promise: Promise<unknown>): Effect.Effect<acp.RequestError> =>
    Effect.promise(() =>
      promise.then(
        () => Promise.reject(new Error("it did not fail")),
        (error: unknown) => error as acp.RequestError
      )
    )

  it.effect("all updates of a turn come in order and before its response", () =>
    Effect.gen(function* () {
      const { open, prompt, updates } = yield* host
      const session = yield* open
      assert.deepStrictEqual(yield* Effect.promise(() => prompt(session, "updates")), { stopReason: "end_turn" })
      assert.deepStrictEqual(
        updates.get(session),
        Array.from({ length: 50 }, (_, index) => `s1 ${index}`)
      )
    })
  )

  it.effect("two prompts on two sessions run at once, and session/cancel ends the one that hangs", () =>
    Effect.gen(function* () {
      const { agent, client, open, prompt, updates } = yield* host
      const [a, b] = [yield* open, yield* open]
      const slow = prompt(a, "hang")
      yield* until(() => updates.get(a)?.length === 1)
      assert.deepStrictEqual(yield* Effect.promise(() => prompt(b, "updates")), { stopReason: "end_turn" })
      assert.strictEqual(updates.get(b)?.length, 50)
      assert.strictEqual(agent.stats.inbound, 1)
      yield* Effect.promise(() => client.agent.notify(acp.methods.agent.session.cancel, { sessionId: a }))
      assert.deepStrictEqual(yield* Effect.promise(() => slow), { stopReason: "cancelled" })
      yield* until(() => agent.stats.inbound === 0)
    })
  )

  it.effect("a permission makes its round trip while the prompt is pending", () =>
    Effect.gen(function* () {
      const { agent, open, prompt, updates } = yield* host
      const session = yield* open
      assert.deepStrictEqual(yield* Effect.promise(() => prompt(session, "permission")), { stopReason: "end_turn" })
      assert.deepStrictEqual([updates.get(session), agent.stats.pending], [["yes"], 0])
    })
  )

  it.effect("$/cancel_request interrupts our handler, which is answered -32800", () =>
    Effect.gen(function* () {
      const { agent, open, prompt, seen, updates } = yield* host
      const session = yield* open
      const abort = new AbortController()
      const turn = prompt(session, "hang until aborted", { cancellationSignal: abort.signal })
      yield* until(() => updates.get(session)?.length === 1)
      abort.abort()
      const error = yield* rejection(turn)
      assert.deepStrictEqual([error.code, seen, agent.stats.inbound], [-32800, ["aborted"], 0])
    })
  )

  it.effect("interrupting our request cancels the client's handler; its late answer is dropped", () =>
    Effect.gen(function* () {
      const { agent, asked, open, prompt } = yield* host
      const session = yield* open
      assert.deepStrictEqual(yield* Effect.promise(() => prompt(session, "withdraw")), { stopReason: "end_turn" })
      assert.deepStrictEqual([asked.length, agent.stats.pending], [1, 0])
    })
  )

  it.effect("an error keeps its code, message and data; an unknown method is -32601 both ways", () =>
    Effect.gen(function* () {
      const { client, open, prompt, updates } = yield* host
      const session = yield* open
      const error = yield* rejection(prompt(session, "what"))
      assert.deepStrictEqual([error.code, error.message, error.data], [-32050, "no such word", { word: "what" }])
      const { code, data, message } = AcpConnection.methodNotFound("_nobody/knows")
      const unknown = yield* rejection(client.agent.request("_nobody/knows", {}))
      assert.deepStrictEqual([unknown.code, unknown.message, unknown.data], [code, message, data])
      yield* Effect.promise(() => prompt(session, "unknown"))
      assert.deepStrictEqual(updates.get(session), [`${code} ${message}`])
    })
  )

  it.effect("the client's end ends our side", () =>
    Effect.gen(function* () {
      const { agent, open, prompt, updates } = yield* host
      const session = yield* open
      const turn = rejection(prompt(session, "hang"))
      yield* until(() => updates.get(session)?.length === 1)
      yield* agent.close("done")
      assert.match((yield* turn).message, /closed/)
      assert.strictEqual(agent.stats.inbound, 0)
    })
  )
})
