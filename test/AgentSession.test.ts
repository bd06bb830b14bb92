// One host that carries many sessions: how they are opened, left and closed at an agent in memory.
import { assert, describe, it } from "@effect/vitest"
import { Address, AgentHost, AgentLauncher, AgentSession, SidecarError, SidecarLimits } from "acp-sidecar"
import type { SessionRouter } from "acp-sidecar"
import { AcpConnection } from "acp-sidecar/acp"
import { ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import * as Strikes from "./support/strikes.ts"
import { beside, chunk, idle } from "./support/events.ts"

interface Hosted {
  readonly host: AgentHost.AgentHost
  readonly agent: ScriptedAgent.ScriptedAgent
}

/** A host with a scripted agent, in the current scope. */
const hosted = (script: ScriptedAgent.Script = {}): Effect.Effect<Hosted, SidecarError.StartReason, Scope.Scope> =>
  Effect.gen(function* () {
    let agent: ScriptedAgent.ScriptedAgent | undefined
    const launch = Effect.map(ScriptedAgent.make(script), (made) => (agent = made).transport)
    const host = yield* AgentHost.start(
      {
        address: { sidecarId: Address.SidecarId.make("sidecar") },
        profile: TestSidecar.profile,
        cwd: "/work",
        env: [],
        limits: SidecarLimits.defaults,
        emit: () => {}
      },
      { phase: "spawn", connection: undefined }
    ).pipe(Effect.provide(AgentLauncher.layer(() => launch)))
    return { host, agent: agent! }
  })

/** A route that keeps the texts that it is told, those of a replay in brackets. */
const listener = (how: AgentSession.How["_tag"] = "New") => {
  const heard: Array<string> = []
  let isReplay = how !== "New"
  const route: SessionRouter.Route = {
    onUpdate: (update) => {
      const { text } = (update as { readonly content: { readonly text: string } }).content
      heard.push(isReplay ? `[${text}]` : text)
    },
    onTooLarge: () => {},
    onPermission: () => Effect.succeed({ outcome: { outcome: "cancelled" } }),
    flush: () => {}
  }
  return { heard, route, onReplayEnd: () => void (isReplay = false) }
}

const start = (): AgentHost.Start => ({ phase: "spawn", connection: undefined })

const open = (
  host: AgentHost.AgentHost,
  options: Partial<AgentSession.Options> = {},
  progress = start()
): Effect.Effect<AgentSession.HostedSession, SidecarError.StartReason, Scope.Scope> =>
  AgentSession.open(host, { how: { _tag: "New" }, cwd: "/work", route: listener().route, ...options }, progress)

/** A session in a scope that is closed by the test. */
const scoped = (host: AgentHost.AgentHost, options: Partial<AgentSession.Options> = {}) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const session = yield* Scope.provide(open(host, options), scope)
    return { ...session, end: Scope.close(scope, Exit.void) }
  })

const failing = (host: AgentHost.AgentHost, options: Partial<AgentSession.Options> = {}, progress = start()) =>
  Effect.flip(Effect.scoped(open(host, options, progress)))

const load = (agentSessionId: string): AgentSession.How => ({ _tag: "Load", agentSessionId })
const resume = (agentSessionId: string): AgentSession.How => ({ _tag: "Resume", agentSessionId })

const all = { loadSession: true, sessionCapabilities: { resume: {}, list: {}, close: {} } }
const closing = { sessionCapabilities: { close: {} } }

const refuse = (code: number, message = "no", data?: unknown) => Effect.fail(AcpConnection.refusal(code, message, data))

const count = (agent: ScriptedAgent.ScriptedAgent, method: string): number =>
  agent.methods().filter((name) => name === method).length

/** Answers that the test gives, one after the other. */
const answers = () => {
  const waiting: Array<Deferred.Deferred<unknown, AcpConnection.Refusal>> = []
  return {
    waiting,
    ask: Effect.suspend(() => {
      const answer = Deferred.makeUnsafe<unknown, AcpConnection.Refusal>()
      waiting.push(answer)
      return Deferred.await(answer)
    }),
    give: (index: number, result: unknown) => Effect.andThen(Deferred.succeed(waiting[index]!, result), idle)
  }
}

describe("many sessions of one agent", () => {
  it.effect("have an id each, and each gets what is its own", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted()
      const listeners = Array.from({ length: 10 }, () => listener())
      const sessions = yield* Effect.forEach(listeners, ({ route }) => open(host, { route }), {
        concurrency: "unbounded"
      })
      const ids = sessions.map((session) => session.agentSessionId)
      assert.strictEqual(new Set(ids).size, 10)
      for (const id of ids) yield* agent.update(id, chunk(id))
      yield* idle
      assert.deepStrictEqual(
        listeners.map(({ heard }) => heard),
        ids.map((id) => [id])
      )
    })
  )

  it.effect("B48: what comes around the answer to session/new reaches the new one, in order, and none is lost", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({
        newSession: (agent) => Effect.as(agent.update("s", chunk("before")), { sessionId: "s" })
      })
      const { heard, route } = listener()
      const seen: Array<ReadonlyArray<string>> = []
      yield* open(host, { route, onOpen: () => void seen.push([...heard]) })
      yield* agent.update("s", chunk("after"))
      yield* idle
      assert.deepStrictEqual(seen, [["before"]])
      assert.deepStrictEqual(heard, ["before", "after"])
    })
  )

  it.effect("B51: what comes late for a closed one reaches nobody, also when its id is resumed", () =>
    Effect.gen(function* () {
      const answer = answers()
      const { agent, host } = yield* hosted({ capabilities: all, resumeSession: () => answer.ask })
      const first = listener()
      const { agentSessionId: id, end } = yield* scoped(host, { route: first.route })
      yield* end
      yield* agent.update(id, chunk("late"))
      yield* idle
      const again = listener("Resume")
      const opening = yield* beside(open(host, { how: resume(id), ...again }))
      yield* idle
      yield* agent.update(id, chunk("still late"))
      yield* idle
      yield* answer.give(0, {})
      yield* Fiber.join(opening)
      yield* agent.update(id, chunk("new"))
      yield* idle
      assert.deepStrictEqual([first.heard, again.heard], [[], ["new"]])
      assert.strictEqual(host.router.stats.late, 2)
    })
  )

  it.effect("B51: nor when the answer to session/resume takes longer than a closed id is remembered", () =>
    Effect.gen(function* () {
      const answer = answers()
      const { agent, host } = yield* hosted({ capabilities: all, resumeSession: () => answer.ask })
      const { agentSessionId: id, end } = yield* scoped(host)
      yield* end
      const { heard, ...told } = listener("Resume")
      const opening = yield* beside(open(host, { how: resume(id), ...told }))
      yield* idle
      yield* TestClock.adjust(SidecarLimits.defaults.tombstoneTimeout)
      yield* agent.update(id, chunk("very late"))
      yield* idle
      yield* answer.give(0, {})
      yield* Fiber.join(opening)
      assert.deepStrictEqual(heard, [])
      assert.strictEqual(host.router.stats.dropped, 1)
    })
  )
})

describe("session/load", () => {
  const replaying: ScriptedAgent.Script = {
    capabilities: all,
    loadSession: (agent, id) =>
      Effect.as(
        Effect.forEach(Array.from({ length: 50 }), (_, i) => agent.update(id, chunk(`${i}`))),
        null
      )
  }

  it.effect("B77: the replay is what comes before the answer, and all after it is not", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted(replaying)
      const { heard, ...told } = listener("Load")
      const { agentSessionId, response } = yield* open(host, { how: load("old"), ...told })
      assert.strictEqual(agentSessionId, "old")
      assert.deepStrictEqual(response, { sessionId: "old" })
      assert.deepStrictEqual(
        heard.slice(0, 50),
        Array.from({ length: 50 }, (_, i) => `[${i}]`)
      )
      for (let i = 50; i < 55; i++) yield* agent.update("old", chunk(`${i}`))
      yield* idle
      assert.deepStrictEqual(heard.slice(50), ["50", "51", "52", "53", "54"])
    })
  )

  it.effect("B77: an update in one write with the answer is on its own side of it", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({ capabilities: all, loadSession: () => Effect.never })
      const { heard, ...told } = listener("Load")
      const opening = yield* beside(open(host, { how: load("old"), ...told }))
      yield* idle
      yield* agent.together(
        Effect.gen(function* () {
          yield* agent.update("old", chunk("a"))
          yield* agent.send({ id: 2, result: {} })
          yield* agent.update("old", chunk("b"))
        })
      )
      yield* Fiber.join(opening)
      yield* idle
      assert.deepStrictEqual(heard, ["[a]", "b"])
    })
  )

  it.effect("what it answers with is what the session begins with", () =>
    Effect.gen(function* () {
      const answer = { configOptions: [], modes: { currentModeId: "a", availableModes: [] }, _meta: { kept: 1 } }
      const { host } = yield* hosted({ capabilities: all, loadSession: () => Effect.succeed(answer) })
      const seen: Array<unknown> = []
      const { response } = yield* open(host, { how: load("old"), onOpen: (response) => void seen.push(response) })
      assert.deepStrictEqual(response, { ...answer, sessionId: "old" } as typeof response)
      assert.deepStrictEqual(seen, [response])
    })
  )

  it.effect("gets the id, the folder and the servers", () =>
    Effect.gen(function* () {
      const asked: Array<unknown> = []
      const script: ScriptedAgent.Script = {
        capabilities: all,
        loadSession: (_agent, _id, params) =>
          Effect.as(
            Effect.sync(() => void asked.push(params)),
            null
          ),
        resumeSession: (_agent, _id, params) =>
          Effect.as(
            Effect.sync(() => void asked.push(params)),
            {}
          )
      }
      const { host } = yield* hosted(script)
      const mcpServers = [{ name: "files", command: "mcp", args: [], env: [] }]
      yield* open(host, { how: load("a"), mcpServers, cwd: "/there" })
      yield* open(host, { how: resume("b"), cwd: "/there" })
      assert.deepStrictEqual(asked, [
        { sessionId: "a", cwd: "/there", mcpServers },
        { sessionId: "b", cwd: "/there", mcpServers: [] }
      ])
    })
  )

  for (const result of [3, "done", [], { configOptions: "none" }, { modes: 1 }]) {
    it.effect(`an answer that can't be used, ${JSON.stringify(result)}, is an InvalidResponse`, () =>
      Effect.gen(function* () {
        const { host } = yield* hosted({ capabilities: all, loadSession: () => Effect.succeed(result) })
        assert.deepInclude(yield* failing(host, { how: load("old") }), {
          _tag: "InvalidResponse",
          method: "session/load"
        })
        assert.strictEqual(host.router.routes.size, 0)
      })
    )
  }

  it.effect("that the agent refuses leaves no route, and what still comes reaches nobody", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({
        capabilities: all,
        loadSession: (agent, id) => Effect.andThen(agent.update(id, chunk("some")), refuse(-32002, "unknown"))
      })
      const { heard, ...told } = listener("Load")
      assert.deepInclude(yield* failing(host, { how: load("old"), ...told }), { _tag: "RequestError", code: -32002 })
      yield* agent.update("old", chunk("more"))
      yield* idle
      assert.deepStrictEqual(heard, ["[some]"])
      assert.strictEqual(host.router.routes.size, 0)
    })
  )
})

describe("session/resume", () => {
  it.effect("B78: what an agent replays although it should not is told as replay", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({
        capabilities: all,
        resumeSession: (agent, id) =>
          Effect.as(
            Effect.forEach(["a", "b"], (text) => agent.update(id, chunk(text))),
            {}
          )
      })
      const { heard, ...told } = listener("Resume")
      yield* open(host, { how: resume("old"), ...told })
      yield* agent.update("old", chunk("c"))
      yield* idle
      assert.deepStrictEqual(heard, ["[a]", "[b]", "c"])
    })
  )

  it.effect("has its route at the answer, not before, and what came before it was asked for is dropped", () =>
    Effect.gen(function* () {
      const answer = answers()
      const { agent, host } = yield* hosted({ capabilities: all, resumeSession: () => answer.ask })
      yield* agent.update("old", chunk("stale"))
      yield* idle
      const { heard, ...told } = listener("Resume")
      const opening = yield* beside(open(host, { how: resume("old"), ...told }))
      yield* idle
      assert.strictEqual(host.router.routes.size, 0)
      yield* answer.give(0, null)
      yield* Fiber.join(opening)
      assert.strictEqual(host.router.routes.size, 1)
      assert.deepStrictEqual(heard, [])
    })
  )
})

describe("what the agent does not offer", () => {
  const cases: ReadonlyArray<readonly [AgentSession.How, ScriptedAgent.Script["capabilities"], RegExp]> = [
    [load("a"), {}, /session\/load; open a new session/],
    [load("a"), { sessionCapabilities: { resume: {} } }, /session\/load; resume the session/],
    [resume("a"), {}, /session\/resume; open a new session/],
    [resume("a"), { loadSession: true }, /session\/resume; load the session/]
  ]
  for (const [how, capabilities, sentence] of cases) {
    it.effect(`${how._tag} at an agent with ${JSON.stringify(capabilities)} is NotSupported and sends nothing`, () =>
      Effect.gen(function* () {
        const { agent, host } = yield* hosted({ capabilities })
        const progress = start()
        const error = yield* failing(host, { how }, progress)
        assert.strictEqual(error._tag, "NotSupported")
        assert.match(error.message, sentence)
        assert.strictEqual(progress.phase, how._tag === "Load" ? "session/load" : "session/resume")
        assert.deepStrictEqual(agent.methods(), ["initialize"])
      })
    )
  }
})

describe("ids that can't be used cost their own session alone", () => {
  const long = "x".repeat(1024 * 1024)
  const bad: ReadonlyArray<readonly [string, unknown, RegExp]> = [
    ["of 1 MB", { sessionId: long }, /1048576 characters, and 1024 are allowed/],
    ["that are empty", { sessionId: "" }, /its session id is empty/],
    ["that are missing", {}, /no session id/],
    ["that are numbers", { sessionId: 3 }, /no session id/],
    ["in an answer that is null", null, /no session id/]
  ]
  for (const [which, result, sentence] of bad) {
    it.effect(`${which}, given by the agent`, () =>
      Effect.gen(function* () {
        let first = true
        const { agent, host } = yield* hosted({
          newSession: () =>
            Effect.sync(() => {
              if (!first) return result
              first = false
              return { sessionId: "good" }
            })
        })
        const { heard, route } = listener()
        yield* open(host, { route })
        const error = yield* failing(host)
        assert.deepInclude(error, { _tag: "InvalidResponse", method: "session/new" })
        assert.match(error.message, sentence)
        assert.isBelow(error.message.length, 500)
        yield* agent.update("good", chunk("on"))
        yield* idle
        assert.deepStrictEqual(heard, ["on"])
        assert.strictEqual(host.connection.stats.pending, 0)
      })
    )
  }

  it.effect("of 1,024 characters can be used", () =>
    Effect.gen(function* () {
      const id = "x".repeat(1024)
      const { host } = yield* hosted({ newSession: () => Effect.succeed({ sessionId: id }) })
      assert.strictEqual((yield* open(host)).agentSessionId, id)
    })
  )

  it.effect("given to load and resume are refused before anything is sent", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({ capabilities: all })
      for (const how of [load(""), load(long), resume(""), resume(long)]) {
        assert.strictEqual((yield* failing(host, { how }))._tag, "UnusableSessionId")
      }
      assert.deepStrictEqual(agent.methods(), ["initialize"])
    })
  )

  it.effect("given twice: the second is refused, and the first is neither closed nor mixed up with it", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({
        capabilities: all,
        newSession: () => Effect.succeed({ sessionId: "same" })
      })
      const first = listener()
      yield* open(host, { route: first.route })
      const error = yield* failing(host)
      assert.strictEqual(error._tag, "InvalidResponse")
      assert.match(error.message, /the agent gave the id of a session that is open; .*share: false in its profile/)
      yield* agent.update("same", chunk("on"))
      yield* idle
      assert.deepStrictEqual(first.heard, ["on"])
      assert.strictEqual(count(agent, "session/close"), 0)
    })
  )

  it.effect("of a session that is open, or being opened, can't be loaded or resumed again", () =>
    Effect.gen(function* () {
      const answer = answers()
      const { agent, host } = yield* hosted({
        capabilities: all,
        loadSession: () => answer.ask,
        resumeSession: () => answer.ask
      })
      const { agentSessionId } = yield* open(host)
      const opening = yield* beside(open(host, { how: resume("old") }))
      const loading = yield* beside(open(host, { how: load("older") }))
      yield* idle
      const sent = agent.methods().length
      for (const id of [agentSessionId, "old", "older"]) {
        for (const how of [load(id), resume(id)]) {
          const error = yield* failing(host, { how })
          assert.strictEqual(error._tag, "UnusableSessionId")
          assert.include(error.message, "is open here")
        }
      }
      assert.strictEqual(agent.methods().length, sent)
      yield* answer.give(0, {})
      yield* answer.give(1, {})
      yield* Effect.all([Fiber.join(opening), Fiber.join(loading)])
      assert.strictEqual(host.router.routes.size, 3)
    })
  )
})

describe("an agent that refuses a session beside others", () => {
  const one: ScriptedAgent.Script = {
    newSession: (agent) =>
      Effect.suspend(() => (agent.sessions().length > 0 ? refuse(-32603, "busy") : Effect.succeed({ sessionId: "s" })))
  }

  it.effect("fails that one with what it means and what to do, and the others go on", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted(one)
      const { heard, route } = listener()
      yield* open(host, { route })
      const error = yield* failing(host)
      assert.deepInclude(error, { _tag: "OneSessionOnly", code: -32603, detail: "busy", others: 1 })
      assert.include(error.message, "only one session per process")
      assert.include(error.message, "share: false")
      yield* agent.update("s", chunk("on"))
      yield* idle
      assert.deepStrictEqual(heard, ["on"])
    })
  )

  it.effect("is told as it said it when there are no others, or when the request itself was at fault", () =>
    Effect.gen(function* () {
      let code = -32603
      let refuses = true
      const { host } = yield* hosted({
        newSession: () => Effect.suspend(() => (refuses ? refuse(code) : Effect.succeed({ sessionId: "s" })))
      })
      assert.deepInclude(yield* failing(host), { _tag: "RequestError", code: -32603 })
      refuses = false
      yield* open(host)
      refuses = true
      code = -32602
      assert.deepInclude(yield* failing(host), { _tag: "RequestError", code: -32602 })
    })
  )
})

describe("signing in", () => {
  const authMethods = [{ id: "key", name: "Key" }]
  const wanting = (): ScriptedAgent.Script => {
    let isIn = false
    let made = 0
    return {
      authMethods,
      capabilities: all,
      authenticate: () =>
        Effect.as(
          Effect.andThen(
            idle,
            Effect.sync(() => (isIn = true))
          ),
          {}
        ),
      newSession: () =>
        Effect.suspend(() => (isIn ? Effect.succeed({ sessionId: `s${++made}` }) : refuse(-32000, "who are you"))),
      loadSession: () => Effect.suspend(() => (isIn ? Effect.succeed(null) : refuse(-32000, "who are you")))
    }
  }

  it.effect("B70: -32000 is AuthRequired with the methods, and nobody is signed in unasked", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted(wanting())
      for (const authenticate of [undefined, "other"]) {
        const error = yield* failing(host, { authenticate })
        assert.deepInclude(error, { _tag: "AuthRequired", detail: "who are you", methods: authMethods })
      }
      assert.strictEqual(count(agent, "authenticate"), 0)
    })
  )

  it.effect("B70: with a method the user is signed in once, also when ten sessions are opened at once", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted(wanting())
      const sessions = yield* Effect.forEach(
        Array.from({ length: 10 }, (_, i) => i),
        () => open(host, { authenticate: "key" }),
        { concurrency: "unbounded" }
      )
      assert.strictEqual(new Set(sessions.map((session) => session.agentSessionId)).size, 10)
      assert.strictEqual(count(agent, "authenticate"), 1)
      assert.strictEqual(count(agent, "session/new"), 20)
    })
  )

  it.effect("B70: an agent that still wants it afterwards is not asked a third time", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({ authMethods, newSession: () => refuse(-32000) })
      const progress = start()
      assert.strictEqual((yield* failing(host, { authenticate: "key" }, progress))._tag, "AuthRequired")
      assert.deepStrictEqual(agent.methods(), ["initialize", "session/new", "authenticate", "session/new"])
      assert.strictEqual(progress.phase, "session/new")
    })
  )

  it.effect("works for a session that is loaded too", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted(wanting())
      const { heard, ...told } = listener("Load")
      yield* open(host, { how: load("old"), authenticate: "key", ...told })
      yield* agent.update("old", chunk("on"))
      yield* idle
      assert.deepStrictEqual(heard, ["on"])
    })
  )
})

describe("an opening that is left", () => {
  it.effect("is told to the agent, and what its late answer gives is closed and reaches nobody", () =>
    Effect.gen(function* () {
      const answer = answers()
      let isFirst = true
      const { agent, host } = yield* hosted({
        capabilities: closing,
        newSession: () =>
          Effect.suspend(() => {
            if (!isFirst) return answer.ask
            isFirst = false
            return Effect.succeed({ sessionId: "other" })
          })
      })
      const other = listener()
      yield* open(host, { route: other.route })
      const { heard, route } = listener()
      const opening = yield* beside(Effect.scoped(open(host, { route })))
      yield* idle
      yield* Fiber.interrupt(opening)
      assert.strictEqual(AgentSession.left(host), 1)
      yield* idle
      assert.strictEqual(count(agent, "$/cancel_request"), 1)
      yield* agent.update("late", chunk("early"))
      yield* idle
      yield* answer.give(0, { sessionId: "late" })
      yield* agent.update("late", chunk("more"))
      yield* agent.update("other", chunk("on"))
      yield* idle
      assert.deepStrictEqual([heard, other.heard], [[], ["on"]])
      assert.deepStrictEqual(agent.sessions(), ["other"])
      assert.strictEqual(count(agent, "session/close"), 1)
      assert.isTrue(host.router.tombstones.has("late"))
      assert.deepStrictEqual([AgentSession.left(host), host.connection.stats.pending], [0, 0])
    })
  )

  it.effect("ends with the agent's word that it was cancelled", () =>
    Effect.gen(function* () {
      const answer = answers()
      const { agent, host } = yield* hosted({ capabilities: closing, newSession: () => answer.ask })
      const opening = yield* beside(Effect.scoped(open(host)))
      yield* idle
      yield* Fiber.interrupt(opening)
      yield* Deferred.fail(answer.waiting[0]!, AcpConnection.refusal(-32800, "cancelled"))
      yield* idle
      assert.strictEqual(AgentSession.left(host), 0)
      assert.strictEqual(count(agent, "session/close"), 0)
    })
  )

  it("is closed too when it is left between the answer and its return", () => {
    const left = Strikes.assertSafe({
      make: Effect.gen(function* () {
        const made = yield* hosted({ capabilities: all })
        return { ...made, fibers: yield* Strikes.liveFibers }
      }),
      body: ({ host }) => Effect.scoped(open(host)),
      check: ({ agent, fibers, host }, exit) =>
        Effect.gen(function* () {
          if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit)) yield* exit
          assert.deepStrictEqual(agent.sessions(), [])
          assert.deepStrictEqual([host.router.routes.size, AgentSession.left(host)], [0, 0])
          assert.strictEqual(host.connection.stats.pending, 0)
          assert.strictEqual(host.openings.open.size + host.openings.claims.size, 0)
          assert.strictEqual(host.router.openings.size, 0)
          assert.strictEqual(count(agent, "session/new"), count(agent, "session/close"))
          yield* Strikes.assertFibers(fibers)
        }),
      maxPoints: Number.POSITIVE_INFINITY,
      seeds: 2
    })
    assert.isAbove(left, 50)
  })

  for (const how of [load("old"), resume("old")]) {
    it(`${how._tag} is interrupted at whatever operation and leaves nothing`, () => {
      const runs = Strikes.assertSafe({
        make: Effect.gen(function* () {
          const made = yield* hosted({
            capabilities: all,
            authMethods: [{ id: "key", name: "Key" }],
            authenticate: () => Effect.as(Effect.sleep(1), {}),
            loadSession: (agent, id) => replay(agent, id),
            resumeSession: (agent, id) => replay(agent, id)
          })
          return { ...made, fibers: yield* Strikes.liveFibers }
        }),
        body: ({ host }) => Effect.scoped(open(host, { how, authenticate: "key" })),
        check: ({ agent, fibers, host }, exit) =>
          Effect.gen(function* () {
            if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit)) yield* exit
            yield* Effect.sleep(50)
            assert.deepStrictEqual(agent.sessions(), [])
            assert.deepStrictEqual([host.router.routes.size, AgentSession.left(host)], [0, 0])
            assert.strictEqual(host.connection.stats.pending, 0)
            assert.strictEqual(host.openings.open.size + host.openings.claims.size, 0)
            assert.strictEqual(host.router.openings.size, 0)
            yield* Strikes.assertFibers(fibers)
            // The id is free again.
            yield* Effect.scoped(open(host, { how, authenticate: "key" }))
          }),
        seeds: 2
      })
      assert.isAbove(runs, 50)
    })
  }

  /** Wants a sign-in at first, and then replays one update. */
  const replay = (agent: ScriptedAgent.ScriptedAgent, id: string) =>
    Effect.gen(function* () {
      if (!agent.methods().includes("authenticate")) return yield* refuse(-32000)
      yield* Effect.sleep(1)
      yield* agent.update(id, chunk("one"))
      yield* Effect.sleep(1)
      return {}
    })

  it.effect("keeps its id until the agent has answered: another opening of it waits", () =>
    Effect.gen(function* () {
      const answer = answers()
      const { agent, host } = yield* hosted({ capabilities: all, loadSession: () => answer.ask })
      const first = yield* beside(Effect.scoped(open(host, { how: load("old") })))
      yield* idle
      yield* Fiber.interrupt(first)
      const { heard, ...told } = listener("Load")
      const second = yield* beside(open(host, { how: load("old"), ...told }))
      yield* idle
      yield* agent.update("old", chunk("of the first"))
      yield* idle
      assert.strictEqual(count(agent, "session/load"), 1)
      yield* answer.give(0, {})
      yield* idle
      assert.deepStrictEqual(agent.methods().slice(1), [
        "session/load",
        "$/cancel_request",
        "session/close",
        "session/load"
      ])
      yield* agent.update("old", chunk("of the second"))
      yield* answer.give(1, {})
      yield* Fiber.join(second)
      assert.deepStrictEqual(heard, ["[of the second]"])
      assert.strictEqual(count(agent, "session/close"), 1)
    })
  )

  it.effect("whose late answer has the id of a session that is open does not close that", () =>
    Effect.gen(function* () {
      const answer = answers()
      const { agent, host } = yield* hosted({ capabilities: closing, newSession: () => answer.ask })
      const first = yield* beside(Effect.scoped(open(host)))
      yield* idle
      yield* Fiber.interrupt(first)
      const second = yield* beside(open(host))
      yield* idle
      yield* answer.give(1, { sessionId: "same" })
      yield* Fiber.join(second)
      yield* answer.give(0, { sessionId: "same" })
      assert.strictEqual(count(agent, "session/close"), 0)
      assert.strictEqual(host.router.routes.size, 1)
      assert.strictEqual(AgentSession.left(host), 0)
    })
  )

  it.effect("is forgotten after ten minutes, and of more than 64 the oldest is", () =>
    Effect.gen(function* () {
      const answer = answers()
      const { agent, host } = yield* hosted({ capabilities: closing, newSession: () => answer.ask })
      for (let i = 0; i < 65; i++) {
        const opening = yield* beside(Effect.scoped(open(host)))
        yield* idle
        yield* Fiber.interrupt(opening)
      }
      yield* idle
      assert.deepStrictEqual([AgentSession.left(host), host.connection.stats.pending], [64, 64])
      // The first is the one that is forgotten: its answer is late, and nothing is known of it.
      yield* answer.give(0, { sessionId: "first" })
      yield* answer.give(1, { sessionId: "second" })
      assert.strictEqual(host.connection.stats.late, 1)
      assert.deepStrictEqual(agent.sessions(), ["first"])
      yield* TestClock.adjust("599999 millis")
      yield* idle
      assert.strictEqual(AgentSession.left(host), 63)
      yield* TestClock.adjust("1 millis")
      yield* idle
      assert.deepStrictEqual([AgentSession.left(host), host.connection.stats.pending], [0, 0])
    })
  )

  it.effect("does not delay the end of its process, whatever it does not answer", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const { host } = yield* Scope.provide(
        hosted({ capabilities: closing, newSession: () => Effect.never, closeSession: () => Effect.never }),
        scope
      )
      const opening = yield* beside(Effect.scoped(open(host)))
      yield* idle
      yield* Fiber.interrupt(opening)
      // No time passes: this would hang.
      yield* Scope.close(scope, Exit.void)
      assert.deepStrictEqual([AgentSession.left(host), host.connection.stats.pending], [0, 0])
    })
  )

  it.effect("at an agent that does not read costs its caller no time either", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({ newSession: () => Effect.never })
      yield* agent.pause
      const openings = yield* Effect.forEach(Array.from({ length: 1100 }), () => beside(Effect.scoped(open(host))))
      yield* idle
      // Some were never sent.
      yield* Effect.forEach(openings, Fiber.interrupt, { discard: true })
      assert.isAtMost(AgentSession.left(host), 64)
    })
  )

  it.effect("and its requests for a session that nobody opens any more are refused at once", () =>
    Effect.gen(function* () {
      const { host } = yield* hosted({ newSession: () => Effect.never })
      const opening = yield* beside(Effect.scoped(open(host)))
      yield* idle
      assert.strictEqual(host.router.openings.size, 1)
      yield* Fiber.interrupt(opening)
      assert.strictEqual(host.router.openings.size, 0)
    })
  )
})

describe("closing a session at the agent", () => {
  it.effect("asks it with session/close, once, and then ends its route", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({ capabilities: closing })
      const { agentSessionId, end } = yield* scoped(host)
      yield* AgentSession.close(host, agentSessionId)
      assert.isTrue(host.router.routes.has(agentSessionId))
      yield* AgentSession.close(host, agentSessionId)
      yield* end
      assert.strictEqual(count(agent, "session/close"), 1)
      assert.isFalse(host.router.routes.has(agentSessionId))
      assert.deepStrictEqual(agent.sessions(), [])
    })
  )

  it.effect("happens by itself at the end of the scope, and not at an agent that does not offer it", () =>
    Effect.gen(function* () {
      const polite = yield* hosted({ capabilities: closing })
      yield* (yield* scoped(polite.host)).end
      assert.strictEqual(count(polite.agent, "session/close"), 1)
      const other = yield* hosted()
      yield* (yield* scoped(other.host)).end
      assert.strictEqual(count(other.agent, "session/close"), 0)
    })
  )

  it.effect("tells how it went when it is asked to, and is not done again at the end of the scope", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({ capabilities: closing, closeSession: () => refuse(-32603, "not now") })
      const { agentSessionId, end } = yield* scoped(host)
      const error = yield* Effect.flip(AgentSession.requestClose(host, agentSessionId))
      assert.deepInclude(error, { _tag: "RequestError", method: "session/close", detail: "not now" })
      yield* AgentSession.requestClose(host, agentSessionId)
      yield* end
      assert.strictEqual(count(agent, "session/close"), 1)
    })
  )

  it.effect("B11: takes no longer than closeTimeout at an agent that offers it and never answers", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({ capabilities: closing, closeSession: () => Effect.never })
      const { agentSessionId, end } = yield* scoped(host)
      const ending = yield* beside(end)
      yield* TestClock.adjust("1999 millis")
      assert.isUndefined(ending.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      yield* Fiber.join(ending)
      assert.isFalse(host.router.routes.has(agentSessionId))
      assert.strictEqual(host.connection.stats.pending, 0)
      assert.strictEqual(count(agent, "session/close"), 1)
    })
  )

  it.effect("of one does nothing to another, which may have its id by then", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted({ capabilities: all })
      const first = yield* scoped(host)
      yield* first.end
      const again = yield* scoped(host, { how: resume(first.agentSessionId) })
      yield* first.end
      assert.isTrue(host.router.routes.has(first.agentSessionId))
      assert.deepStrictEqual(agent.sessions(), [again.agentSessionId])
      yield* again.end
      assert.strictEqual(count(agent, "session/close"), 2)
    })
  )
})

describe("B38: a start that timed out behind others", () => {
  const timedOut = (blockedBy?: ReadonlyArray<string>) =>
    new SidecarError.StartTimedOut({
      budgetMillis: 60_000,
      stderrTail: "warming up",
      noiseSample: "",
      ...(blockedBy === undefined ? {} : { blockedBy })
    })

  it("names those that its agent has not answered, and what to do", () => {
    const { message } = timedOut(["sidecar/vm-1/session-1"])
    assert.include(message, "has not answered other questions first")
    assert.include(message, "busy with sidecar/vm-1/session-1;")
    assert.include(message, "a process of its own")
  })

  it("names a few of many", () => {
    const message = timedOut(["a", "b", "c", "d", "e"]).message
    assert.include(message, "busy with a, b, c and 2 more;")
  })

  it("speaks of none by default", () => {
    assert.deepStrictEqual(timedOut().blockedBy, [])
    assert.include(timedOut().message, "it last wrote: warming up")
  })
})

describe("listing the sessions of an agent", () => {
  const listing = (pages: ReadonlyArray<unknown>): ScriptedAgent.Script => ({
    capabilities: all,
    listSessions: (_agent, params) =>
      Effect.sync(() => pages[Number((params as { readonly cursor?: string }).cursor ?? 0) % pages.length])
  })
  const page = (from: number, size: number, nextCursor?: string) => ({
    sessions: Array.from({ length: size }, (_, i) => ({ sessionId: `old-${from + i}`, cwd: "/work" })),
    ...(nextCursor === undefined ? {} : { nextCursor })
  })

  it.effect("takes all pages, in order", () =>
    Effect.gen(function* () {
      const { host } = yield* hosted(listing([page(0, 2, "1"), page(2, 2, "2"), page(4, 1)]))
      const { isComplete, sessions } = yield* AgentSession.list(host)
      assert.isTrue(isComplete)
      assert.deepStrictEqual(
        sessions.map((session) => session.sessionId),
        ["old-0", "old-1", "old-2", "old-3", "old-4"]
      )
    })
  )

  it.effect("stops at the number that is asked for, and says so", () =>
    Effect.gen(function* () {
      const { agent, host } = yield* hosted(listing([page(0, 2, "1"), page(2, 2, "2"), page(4, 1)]))
      for (const max of [0, 1, 2, 3, 4]) {
        const { isComplete, sessions } = yield* AgentSession.list(host, { max })
        assert.deepStrictEqual([isComplete, sessions.length], [false, max])
      }
      assert.strictEqual(count(agent, "session/list"), 1 + 1 + 1 + 2 + 2)
      assert.isTrue((yield* AgentSession.list(host, { max: 5 })).isComplete)
    })
  )

  it.effect("stops at an agent whose pages go round in circles, or never end", () =>
    Effect.gen(function* () {
      const circles = yield* hosted(listing([page(0, 1, "1"), page(1, 1, "0")]))
      assert.isFalse((yield* AgentSession.list(circles.host)).isComplete)
      assert.strictEqual(count(circles.agent, "session/list"), 3)
      let pages = 0
      const endless = yield* hosted({
        capabilities: all,
        listSessions: () => Effect.sync(() => ({ sessions: [], nextCursor: `${++pages}` }))
      })
      assert.isFalse((yield* AgentSession.list(endless.host)).isComplete)
      assert.strictEqual(pages, 100)
    })
  )

  it.effect("is NotSupported where it is not offered, and an answer that is no list is an InvalidResponse", () =>
    Effect.gen(function* () {
      const without = yield* hosted()
      assert.strictEqual((yield* Effect.flip(AgentSession.list(without.host)))._tag, "NotSupported")
      for (const answer of [null, {}, { sessions: [{}] }, { sessions: [], nextCursor: 3 }]) {
        const { host } = yield* hosted(listing([answer]))
        assert.strictEqual((yield* Effect.flip(AgentSession.list(host)))._tag, "InvalidResponse")
      }
    })
  )

  it.effect("asks for those of a folder", () =>
    Effect.gen(function* () {
      const asked: Array<unknown> = []
      const { host } = yield* hosted({
        capabilities: all,
        listSessions: (_agent, params) => Effect.sync(() => (asked.push(params), { sessions: [] }))
      })
      yield* AgentSession.list(host, { cwd: "/work" })
      yield* AgentSession.list(host)
      assert.deepStrictEqual(asked, [{ cwd: "/work" }, {}])
    })
  )
})
