import { assert, describe, it } from "@effect/vitest"
import { AgentLauncher, AgentProfile, type Session, Sidecar } from "acp-sidecar"
import { AcpConnection, StderrTail } from "acp-sidecar/acp"
import { ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { beside, chunk, idle, textOf, until } from "./support/events.ts"
import { everywhere, type Place } from "./support/places.ts"
import { attributes, observed, series } from "./support/telemetry.ts"

const plain = "s3ntinel-0f-the-host"
const quoted = 'quo"ted\\s3ntinel/of the vm'
const lines = "-----BEGIN KEY-----\ns3ntinel-first-line-of-it\ns3ntinel-second-line-of-it\n-----END KEY-----"

/** All of them, as an agent may have them in a text. */
const all = `${plain} ${quoted} ${lines.split("\n").join(" ")}`
/** What nothing of ours may have in it, however it is written. */
const traces = [plain, quoted, "s3ntinel-first-line-of-it", "s3ntinel-second-line-of-it", plain.slice(0, 12)]
const forms = traces.flatMap((trace) => [trace, JSON.stringify(trace).slice(1, -1)])

/** Every string in a value, errors with their message and stack. */
const everything = (value: unknown, depth = 0): string => {
  if (depth > 12 || typeof value === "function") return ""
  if (value instanceof Error) {
    return `${value.message} ${value.stack} ${everything({ ...value }, depth + 1)} ${everything(value.cause, depth + 1)}`
  }
  if (typeof value !== "object" || value === null) return String(value)
  return Object.entries(value)
    .map(([key, inner]) => `${key} ${everything(inner, depth + 1)}`)
    .join(" ")
}

const clean = (what: string, value: unknown): void => {
  const text = `${everything(value)} ${JSON.stringify(value)}`
  for (const form of forms) assert.notInclude(text, form, what)
}

const profile = AgentProfile.make({ name: "leaky", command: ["leaky"], passEnv: ["HOST_TOKEN"] })

const openSession = (options: { readonly authenticate?: string } = {}) =>
  Effect.gen(function* () {
    const sidecar = yield* Sidecar.Sidecar
    const { agents } = yield* TestSidecar.TestSidecar
    const vm = yield* sidecar.openVm({ root: "/work", env: { VM_PASSWORD: quoted } })
    const env = { SESSION_PRIVATE_KEY: lines }
    const session = yield* vm.openSession({ agent: profile, env, ...options })
    return { agent: yield* Queue.take(agents), session }
  })

type Needs = Sidecar.Sidecar | TestSidecar.TestSidecar | Scope.Scope

/** Runs a test with agents that have secrets; whatever it does, logs, events and `describe` are clean in the end. */
const guardedAt = (place: Place) => (script: ScriptedAgent.Script, body: Effect.Effect<unknown, unknown, Needs>) => {
  const logged: Array<unknown> = []
  const logger = Logger.make<unknown, void>(({ cause, message }) => void logged.push(message, Cause.pretty(cause)))
  return Effect.gen(function* () {
    const sidecar = yield* Sidecar.Sidecar
    const { launches } = yield* TestSidecar.TestSidecar
    const events: Array<unknown> = []
    yield* beside(Stream.runForEach(sidecar.events, (event) => Effect.sync(() => events.push(event))))
    yield* body
    yield* idle
    assert.deepInclude(launches()[0]!.env, { HOST_TOKEN: plain, VM_PASSWORD: quoted, SESSION_PRIVATE_KEY: lines })
    assert.isAbove(events.length, 0)
    clean("describe", yield* sidecar.describe)
    clean("events", events)
    clean("logs", logged)
  }).pipe(
    Effect.ensuring(Effect.forkDetach(Effect.repeat(TestClock.adjust("5 seconds"), { times: 20 }))),
    Effect.provide(Layer.merge(TestSidecar.layer({ script, place }), Logger.layer([logger]))),
    Effect.provideService(AgentLauncher.HostEnvironment, () => ({ HOST_TOKEN: plain, PATH: "/bin" }))
  )
}

const refuse = (code: number) =>
  Effect.fail(
    AcpConnection.refusal(code, `bad: ${all}`, { deep: [{ text: all, key: quoted }], [plain]: 1, pem: lines })
  )
const cleanFailure = (what: string, tag: string) =>
  Effect.gen(function* () {
    const error = yield* Effect.flip(openSession({ authenticate: "key" }))
    const { reason } = error as { readonly reason: { readonly _tag: string } }
    assert.strictEqual(reason._tag, tag)
    clean(what, error)
  })

everywhere("S4: no secret of an agent's environment is in what the sidecar says", (_layer, place) => {
  const guarded = guardedAt(place)
  const authMethods = [{ id: "key", name: `sign in with ${plain}` }]
  const starts: Record<string, readonly [string, ScriptedAgent.Script]> = {
    "an error of initialize": ["RequestError", { initialize: () => refuse(-32603) }],
    "an error of session/new": ["RequestError", { newSession: () => refuse(-32603) }],
    "an error of authenticate": [
      "RequestError",
      { authMethods, newSession: () => refuse(-32000), authenticate: () => refuse(-32603) }
    ],
    "the wish to sign in": ["AuthRequired", { authMethods, newSession: () => refuse(-32000) }],
    "an invalid answer to initialize": [
      "InvalidResponse",
      { initialize: () => Effect.succeed({ protocolVersion: all }) }
    ],
    "an invalid answer to session/new": ["InvalidResponse", { newSession: () => Effect.succeed({ sessionId: [all] }) }],
    "a broken answer": [
      "InvalidResponse",
      {
        initialize: (agent) =>
          Effect.andThen(agent.write(`{"jsonrpc":"2.0","id":1,"error":"${plain}"}\n`), Effect.never)
      }
    ],
    noise: [
      "NotAnAcpAgent",
      { initialize: (agent) => Effect.andThen(agent.write(`I have ${plain}\n`.repeat(201)), Effect.never) }
    ],
    "noise that is cut within a secret": [
      "NotAnAcpAgent",
      {
        initialize: (agent) =>
          Effect.andThen(agent.write(`${"x".repeat(256 - 15)}${plain}\n`.repeat(201)), Effect.never)
      }
    ],
    "a line of a key in noise": [
      "NotAnAcpAgent",
      { initialize: (agent) => Effect.andThen(agent.write(`${lines}\n`.repeat(201)), Effect.never) }
    ]
  }
  for (const [what, [tag, script]] of Object.entries(starts)) {
    it.effect(`not in ${what}`, () => guarded(script, cleanFailure(what, tag)))
  }

  it.effect("not in a start that timed out after noise", () =>
    guarded(
      { initialize: (agent) => Effect.andThen(agent.write(`I have ${all}\n`), Effect.never) },
      Effect.gen(function* () {
        const opening = yield* beside(cleanFailure("timeout", "StartTimedOut"))
        yield* TestClock.adjust("60 seconds")
        yield* Effect.suspend(() => opening.pollUnsafe() ?? Effect.die("it did not time out"))
      })
    )
  )

  const failing = (
    what: string,
    end: (prompt: ScriptedAgent.PromptTurn, agent: ScriptedAgent.ScriptedAgent) => unknown
  ) =>
    it.effect(`not in ${what}`, () =>
      guarded(
        { prompt: "manual" },
        Effect.gen(function* () {
          const { agent, session } = yield* openSession()
          const turn = yield* session.submit("go")
          const prompt = yield* Queue.take(agent.prompts)
          yield* end(prompt, agent) as Effect.Effect<void>
          const outcome = yield* turn.outcome
          assert.strictEqual(outcome._tag, "Failed")
          clean(what, outcome)
          clean(what, yield* Effect.flip(turn.await))
          yield* idle
          clean(what, yield* session.describe)
        })
      )
    )
  failing("the error of a turn", (prompt) => prompt.fail(-32603, all, { deep: { text: all }, lines }))
  failing("an invalid end of a turn", (prompt, agent) =>
    agent.send({ id: prompt.requestId, result: { stopReason: [all] } })
  )
  failing("an end that is no answer", (prompt, agent) =>
    agent.write(`{"jsonrpc":"2.0","id":${prompt.requestId as number},"error":"${plain}"}\n`)
  )

  it.effect("not in the error of a call", () =>
    guarded(
      { request: () => refuse(-32603) },
      Effect.gen(function* () {
        const { session } = yield* openSession()
        clean("setMode", yield* Effect.flip(session.setMode("code")))
        clean("setConfigOption", yield* Effect.flip(session.setConfigOption("model", "x")))
      })
    )
  )

  it.effect("not in an invalid answer to a call", () =>
    guarded(
      { request: () => Effect.succeed({ configOptions: all }) },
      Effect.gen(function* () {
        const { session } = yield* openSession()
        const error = yield* Effect.flip(session.setConfigOption("model", "x"))
        assert.strictEqual(error.reason._tag, "InvalidResponse")
        clean("setConfigOption", error)
      })
    )
  )

  it.effect("not in anything after noise, ghosts, broken lines and questions that can't be served", () =>
    guarded(
      {},
      Effect.gen(function* () {
        const { agent, session } = yield* openSession()
        yield* agent.write(`${all}\n\u001b[31m${plain}\u001b[0m\n"${plain}"\n{"${plain}":1}\n`)
        yield* agent.write(`{"jsonrpc":"2.0","method":"${plain}","id":{"a":"${plain}"}}\n`)
        yield* agent.write(`{"jsonrpc":"2.0","method":12,"params":{"sessionId":"${plain}"}}\n`)
        yield* agent.update(plain, chunk("ghost"))
        yield* agent.send({ id: plain, method: "session/request_permission", params: { sessionId: plain } })
        yield* agent.send({ id: plain, method: plain, params: { text: all } })
        yield* agent.send({ id: 99, result: all })
        yield* idle
        assert.strictEqual((yield* session.prompt("go"))._tag, "Completed")
        const info = yield* session.describe
        assert.isAbove(info.noise, 3)
        assert.isAbove(info.unrouted.buffered, 0)
        clean("describe", info)
      })
    )
  )

  it.effect("not when a handler fails over a question that has one in it", () =>
    guarded(
      { prompt: "manual" },
      Effect.gen(function* () {
        const sidecar = yield* Sidecar.Sidecar
        const { agents } = yield* TestSidecar.TestSidecar
        const vm = yield* sidecar.openVm({ root: "/work", env: { VM_PASSWORD: quoted } })
        const session: Session.Session = yield* vm.openSession({
          agent: profile,
          env: { SESSION_PRIVATE_KEY: lines },
          permission: () => Effect.die(new Error("the handler is broken"))
        })
        const agent = yield* Queue.take(agents)
        const options = [{ optionId: "no", name: all, kind: "reject_once" as const }]
        yield* agent.ask(session.agentSessionId, options, all)
        yield* until(session, "PermissionAnswered")
      })
    )
  )

  it.effect("what the agent says to its user is passed on as it is", () =>
    guarded(
      { prompt: "manual" },
      Effect.gen(function* () {
        const { agent, session } = yield* openSession()
        yield* agent.update(session.agentSessionId, chunk(plain))
        assert.strictEqual(textOf(yield* until(session, "Update")), plain)
      })
    )
  )
})

everywhere("S4: secrets of sessions", (layer) => {
  it.effect("what the agent's MCP servers are given is not in the error of a start", () => {
    const mcpServers = [
      { name: "files", command: "mcp", args: [], env: [{ name: "FILES_API_KEY", value: plain }] },
      { name: "more files", command: "mcp", args: [], env: [{ name: "FILES_API_KEY", value: "another-s3ntinel" }] },
      { type: "http", name: "web", url: "http://a", headers: [{ name: "Authorization", value: "Bearer web-s3ntinel" }] }
    ] as const
    const script = {
      newSession: () => Effect.fail(AcpConnection.refusal(-32603, `${plain}, another-s3ntinel, web-s3ntinel`))
    }
    return Effect.gen(function* () {
      const error = yield* Effect.flip(TestSidecar.open({ mcpServers: mcpServers as never }))
      assert.notInclude(everything(error), "s3ntinel")
      assert.include(error.message, "<FILES_API_KEY>, <FILES_API_KEY>, <Authorization>")
    }).pipe(Effect.scoped, Effect.provide(layer({ script })))
  })

  it.effect("two secrets of one name of one MCP server are both kept", () => {
    const headers = ["first-s3ntinel", "second-s3ntinel"].map((value) => ({ name: "Cookie", value }))
    const script = { newSession: () => Effect.fail(AcpConnection.refusal(-32603, "first-s3ntinel, second-s3ntinel")) }
    return Effect.gen(function* () {
      const error = yield* Effect.flip(
        TestSidecar.open({ mcpServers: [{ type: "http", name: "web", url: "http://a", headers }] })
      )
      assert.notInclude(everything(error), "s3ntinel")
      assert.include(error.message, "<Cookie>, <Cookie>")
    }).pipe(Effect.scoped, Effect.provide(layer({ script })))
  })

  it.effect("an open session's secrets are kept however many came after it on its process", () => {
    const withHeader = (value: string) => ({
      mcpServers: [
        { type: "http" as const, name: "web", url: "http://a", headers: [{ name: "Authorization", value }] }
      ],
      agent: { ...TestSidecar.profile, share: AgentProfile.sharing() }
    })
    return Effect.gen(function* () {
      const { agent, session, vm } = yield* TestSidecar.open(withHeader("first-s3ntinel"))
      const opened = (value: string) => Effect.scoped(vm.openSession(withHeader(value)))
      yield* opened("short-s3ntinel")
      for (let other = 0; other < 1030; other++) yield* opened(`other-${other}-s3ntinel`)
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* prompt.fail(-32603, "first-s3ntinel, other-1029-s3ntinel, short-s3ntinel")
      const { message } = yield* Effect.flip(turn.await)
      // What is kept of those that were closed is bounded.
      assert.include(message, "<Authorization>, <Authorization>, short-s3ntinel")
    }).pipe(Effect.scoped, Effect.provide(layer({ script: { prompt: "manual" } })))
  })

  it.effect("a secret variable that is not set breaks nothing, neither at the start nor when a sample is shown", () =>
    Effect.gen(function* () {
      // As `process.env.SOME_TOKEN!` gives it.
      const unset = undefined as unknown as string
      const mcpServers = [{ name: "files", command: "mcp", args: [], env: [{ name: "FILES_API_KEY", value: unset }] }]
      const { agent, session } = yield* TestSidecar.open({ env: { SOME_TOKEN: unset, OTHER_TOKEN: plain }, mcpServers })
      yield* agent.update(plain, chunk("for nobody"))
      yield* idle
      assert.strictEqual((yield* session.describe).unrouted.sample, "<OTHER_TOKEN>")
    }).pipe(Effect.scoped, Effect.provide(layer()))
  )
})

describe("what is redacted of an agent's text", () => {
  /** The redactor that a launch gets, in the process that starts it. */
  const redactor = (env: Record<string, string>) =>
    Effect.gen(function* () {
      let redact = (text: string) => text
      const launcher = AgentLauncher.layer((launch) => {
        redact = launch.redact
        return Effect.map(ScriptedAgent.make(), (agent) => agent.transport)
      })
      yield* Effect.gen(function* () {
        const sidecar = yield* Sidecar.Sidecar
        const vm = yield* sidecar.openVm({ root: "/work" })
        yield* vm.openSession({ agent: AgentProfile.make({ command: ["x"] }), env })
      }).pipe(Effect.provide(Layer.provide(Sidecar.layerLauncher, launcher)))
      return redact
    }).pipe(Effect.scoped)

  it.effect("the values of variables whose names sound secret, the longest first", () =>
    Effect.gen(function* () {
      const redact = yield* redactor({
        A_KEY: "abcd1234",
        B_TOKEN: "abcd1234efgh",
        C_PASSPHRASE: "correct horse",
        DB_DSN: "db-secret",
        GIT_PAT: "pat-value",
        OTHER: "not secret"
      })
      assert.strictEqual(
        redact("abcd1234efgh abcd1234 correct horse db-secret pat-value not secret"),
        "<B_TOKEN> <A_KEY> <C_PASSPHRASE> <DB_DSN> <GIT_PAT> not secret"
      )
    })
  )

  it.effect("but not the folder, nor words and small numbers that only stand in such variables", () =>
    Effect.gen(function* () {
      const redact = yield* redactor({ PWD: "/work/tree", AUTH_ENABLED: "true", MAX_TOKENS: "4096", A_KEY: "abc" })
      const text = "true in /work/tree with 4096 abc"
      assert.strictEqual(redact(text), text)
    })
  )

  it.effect("a value in every form that it may have: as it is, in JSON, in a URL, and each line of it", () =>
    Effect.gen(function* () {
      const redact = yield* redactor({ VM_PASSWORD: quoted, PEM_KEY: lines })
      for (const form of [quoted, JSON.stringify(quoted).slice(1, -1), encodeURIComponent(quoted)]) {
        assert.strictEqual(redact(`a ${form} b`), "a <VM_PASSWORD> b")
      }
      assert.strictEqual(redact(`a ${lines} b`), "a <PEM_KEY> b")
      assert.strictEqual(redact(`a ${lines.split("\n")[1]} b`), "a <PEM_KEY> b")
    })
  )

  it.effect("a value with a dollar sign is replaced as it is", () =>
    Effect.gen(function* () {
      const redact = yield* redactor({ A_KEY: "pa$$word$&", "B$&_KEY": "other-value" })
      assert.strictEqual(redact("pa$$word$& other-value"), "<A_KEY> <B$&_KEY>")
    })
  )

  it.effect("what looks like a key, whoever's it is", () =>
    Effect.gen(function* () {
      const redact = yield* redactor({})
      for (const key of [
        "sk-ant-api03-abcdefgh",
        "ghp_0123456789abcdefABCD",
        "github_pat_0123456789abcdefABCD",
        "AIzaSyA-0123456789abcdefghij",
        "xoxb-0123456789-abc",
        "AKIA0123456789ABCDEF",
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"
      ]) {
        assert.strictEqual(redact(`key ${key} end`), "key <redacted> end")
      }
      assert.strictEqual(redact("Authorization: Bearer abcdefghijkl"), "Authorization: Bearer <redacted>")
      assert.strictEqual(redact("https://me:hunter2@host/x"), "https://me:<redacted>@host/x")
      assert.strictEqual(redact("see https://host:8080/a@b"), "see https://host:8080/a@b")
    })
  )

  it.effect("in texts that are made to be slow to search", () =>
    Effect.gen(function* () {
      const redact = yield* redactor({})
      // Each of these beginnings of a token looked at all the rest: 30 s for as many.
      const beginnings = "-eyJaaaaaaaa".repeat(33_000)
      assert.strictEqual(redact(beginnings), beginnings)
      assert.strictEqual(redact("x-eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl"), "x-<redacted>")
      // No engine takes a match of this length; what can't be searched is not shown.
      assert.strictEqual(redact(`sk-${"a".repeat(16_000_000)}`), "<redacted>")
    })
  )

  it.effect("the part of a value where a text was cut, at its start and at its end", () =>
    Effect.gen(function* () {
      const redact = yield* redactor({ A_KEY: "0123456789abcdef" })
      assert.strictEqual(redact("text 0123456789ab"), "text <A_KEY>")
      assert.strictEqual(redact("6789abcdef text"), "<A_KEY> text")
      assert.strictEqual(redact("text 0123456"), "text 0123456")
    })
  )

  it.effect("in the tail of stderr too, when a value comes in two pieces or is cut", () =>
    Effect.gen(function* () {
      const redact = yield* redactor({ A_KEY: plain })
      const tail = StderrTail.make(64, redact)
      const bytes = new TextEncoder().encode(`the key is ${plain}!`)
      tail.push(bytes.slice(0, 16))
      tail.push(bytes.slice(16))
      assert.strictEqual(tail.text(), "the key is <A_KEY>!")
      const cut = StderrTail.make(64, redact)
      for (let i = 0; i < 20; i++) cut.push(new TextEncoder().encode(`${plain} without end, `))
      for (const form of forms) assert.notInclude(cut.text(), form)
    })
  )
})

everywhere("no secret is in spans and metrics", (_layer, place) => {
  const tool = { sessionUpdate: "tool_call", title: all, kind: all, name: plain, toolCallId: all, rawInput: all }
  const script: ScriptedAgent.Script = {
    initialize: () =>
      Effect.succeed({ protocolVersion: 1, agentCapabilities: {}, agentInfo: { name: all, version: plain } }),
    newSession: () =>
      Effect.succeed({
        sessionId: `session of ${all}`,
        configOptions: [{ id: "m", name: all, category: "model", type: "select", currentValue: plain, options: [] }]
      }),
    prompt: (turn) =>
      Effect.gen(function* () {
        if (turn.text === "fail") return yield* refuse(-32000)
        yield* turn.update(tool)
        yield* turn.update({ ...tool, sessionUpdate: "tool_call_update", status: "failed" })
        yield* turn.ask([{ optionId: all, name: all, kind: plain as "allow_once" }], all)
        return all
      })
  }
  it.effect("whatever the agent and the user say", () =>
    observed({ place, script }, (told) =>
      Effect.gen(function* () {
        const { session } = yield* openSession()
        yield* Effect.exit(session.prompt(all))
        yield* Effect.exit(session.prompt("fail"))
        assert.sameMembers(
          told.spans.map(({ name }) => name),
          ["invoke_agent leaky", "execute_tool other", "acp_sidecar.permission", "invoke_agent leaky"]
        )
        const spans = told.spans.map((span) => ({ name: span.name, own: attributes(span), status: span.status }))
        assert.notInclude(everything(spans), "s3ntinel")
        clean(
          "spans",
          spans.map(({ name, own }) => ({ name, own }))
        )
        clean("metrics", series(told))
      }).pipe(Effect.scoped)
    ).pipe(Effect.provideService(AgentLauncher.HostEnvironment, () => ({ HOST_TOKEN: plain, PATH: "/bin" })))
  )
})
