import { assert, it } from "@effect/vitest"
import { Sidecar, type Vm } from "acp-sidecar"
import { AcpConnection } from "acp-sidecar/acp"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import { beside, idle, provided, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"

type LayerOf = typeof TestSidecar.layer
const providedBy =
  (layerOf: LayerOf) =>
  (script: ScriptedAgent.Script, limits = {}) =>
    provided(layerOf({ script, limits }))
const refuse = (code: number, message = "no", data?: unknown) => Effect.fail(AcpConnection.refusal(code, message, data))

/** Opens a session that can't be opened, and checks that nothing of it is left. */
const failing = (options: Partial<Vm.SessionOptions> = {}) =>
  Effect.gen(function* () {
    const sidecar = yield* Sidecar.Sidecar
    const { alive } = yield* TestSidecar.TestSidecar
    const vm = yield* sidecar.openVm({ root: "/work" })
    const error = yield* Effect.flip(vm.openSession({ agent: TestSidecar.profile, ...options }))
    yield* nothingLeft(vm)
    assert.strictEqual(alive(), 0)
    return error
  })

const nothingLeft = (vm: Vm.Vm) =>
  Effect.map(vm.describe, ({ opening, sessions }) => assert.deepStrictEqual([opening, sessions.length], [0, 0]))

/** Each phase of a start, with a script that hangs in it. */
const hanging: Record<string, ScriptedAgent.Script> = {
  initialize: { initialize: () => Effect.never },
  authenticate: {
    authMethods: [{ id: "key", name: "Key" }],
    newSession: () => refuse(-32000),
    authenticate: () => Effect.never
  },
  "session/new": { newSession: () => Effect.never }
}

everywhere("an agent that hangs", (layerOf) => {
  const layer = providedBy(layerOf)
  for (const [phase, script] of Object.entries(hanging)) {
    it.effect(`B69, B08: in ${phase} is given up at the end of the budget, with the phase named`, () =>
      Effect.gen(function* () {
        const opening = yield* beside(failing({ authenticate: "key" }))
        yield* TestClock.adjust("59999 millis")
        assert.isUndefined(opening.pollUnsafe())
        yield* TestClock.adjust("1 millis")
        const error = yield* Fiber.join(opening)
        assert.deepInclude(error as object, { _tag: "AgentStartFailed", phase, agent: "scripted" })
        assert.deepInclude((error as { reason: unknown }).reason, { _tag: "StartTimedOut", budgetMillis: 60_000 })
      }).pipe(layer(script))
    )
  }

  it.effect("B67: a session may have a budget of its own, for a first start that takes minutes", () =>
    Effect.gen(function* () {
      const opening = yield* beside(failing({ startTimeout: "3 minutes" }))
      yield* TestClock.adjust("179999 millis")
      assert.isUndefined(opening.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      const error = yield* Fiber.join(opening)
      assert.deepInclude((error as { reason: unknown }).reason, { _tag: "StartTimedOut", budgetMillis: 180_000 })
      for (const time of ["soon", Number.NaN, -1, {}]) {
        const refused = yield* failing({ startTimeout: time as never })
        assert.deepInclude(refused as object, { _tag: "InvalidInput", input: "startTimeout" })
      }
    }).pipe(layer(hanging.initialize!))
  )

  it.effect("B69: one budget covers all phases together", () =>
    Effect.gen(function* () {
      const opening = yield* beside(failing({ authenticate: "key" }))
      yield* idle
      yield* TestClock.adjust("59 seconds")
      assert.isUndefined(opening.pollUnsafe())
      yield* TestClock.adjust("1 seconds")
      const error = yield* Fiber.join(opening)
      assert.deepInclude(error, { phase: "authenticate" })
    }).pipe(
      layer({
        authMethods: [{ id: "key", name: "Key" }],
        initialize: () =>
          Effect.delay(Effect.succeed({ protocolVersion: 1, authMethods: [{ id: "key", name: "Key" }] }), "25 seconds"),
        newSession: () => Effect.delay(refuse(-32000), "25 seconds"),
        authenticate: () => Effect.delay(Effect.succeed({}), "25 seconds")
      })
    )
  )

  it.effect("B08: three that never answer initialize don't block dispose, and each is stopped", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const { alive } = yield* TestSidecar.TestSidecar
      const vm = yield* sidecar.openVm({ root: "/work" })
      const openings = yield* Effect.forEach([1, 2, 3], () =>
        beside(Effect.exit(vm.openSession({ agent: TestSidecar.profile })))
      )
      yield* idle
      assert.strictEqual(alive(), 3)
      assert.strictEqual((yield* vm.describe).opening, 3)
      yield* sidecar.dispose
      assert.strictEqual(alive(), 0)
      for (const opening of openings) {
        const exit = yield* Fiber.join(opening)
        assert.strictEqual(Exit.isFailure(exit) && Exit.findErrorOption(exit).pipe((e) => e._tag), "Some")
      }
      assert.strictEqual(yield* Clock.currentTimeMillis, 0)
    }).pipe(layer(hanging["initialize"]!))
  )
})

everywhere("while an agent starts", (layerOf) => {
  const layer = providedBy(layerOf)
  for (const [phase, script] of Object.entries(hanging)) {
    it.effect(`a caller that is interrupted in ${phase} leaves no agent, and its place is given back`, () =>
      Effect.gen(function* () {
        const sidecar = yield* Sidecar.Sidecar
        const { alive } = yield* TestSidecar.TestSidecar
        const vm = yield* sidecar.openVm({ root: "/work" })
        const opening = yield* beside(vm.openSession({ agent: TestSidecar.profile, authenticate: "key" }))
        yield* idle
        assert.strictEqual(alive(), 1)
        yield* Fiber.interrupt(opening)
        assert.strictEqual(alive(), 0)
        yield* nothingLeft(vm)
      }).pipe(layer(script))
    )

    for (const [what, close] of [
      ["its Vm is closed", (vm: Vm.Vm) => vm.close],
      ["the sidecar is disposed", () => Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.dispose)]
    ] as const) {
      it.effect(`when ${what} in ${phase}, the answer is Disposed and the agent is gone`, () =>
        Effect.gen(function* () {
          const sidecar = yield* Sidecar.Sidecar
          const { alive } = yield* TestSidecar.TestSidecar
          const vm = yield* sidecar.openVm({ root: "/work" })
          const opening = yield* beside(
            Effect.flip(vm.openSession({ agent: TestSidecar.profile, authenticate: "key" }))
          )
          yield* idle
          yield* close(vm)
          assert.strictEqual(alive(), 0)
          assert.strictEqual((yield* Fiber.join(opening))._tag, "Disposed")
          assert.strictEqual((yield* Effect.flip(vm.openSession({ agent: TestSidecar.profile })))._tag, "Disposed")
          yield* nothingLeft(vm)
        }).pipe(layer(script))
      )
    }
  }

  const dying: Record<string, ScriptedAgent.Script> = {
    initialize: { initialize: (agent) => Effect.andThen(crash(agent), Effect.never) },
    authenticate: {
      authMethods: [{ id: "key", name: "Key" }],
      newSession: () => refuse(-32000),
      authenticate: (agent) => Effect.andThen(crash(agent), Effect.never)
    },
    "session/new": { newSession: (agent) => Effect.andThen(crash(agent), Effect.never) }
  }
  const crash = (agent: ScriptedAgent.ScriptedAgent) => agent.crash({ code: 7, stderrTail: "no key file" })
  for (const [phase, script] of Object.entries(dying)) {
    it.effect(`B68: an agent that dies in ${phase} fails at once, with its exit code and stderr`, () =>
      Effect.gen(function* () {
        const error = yield* failing({ authenticate: "key" })
        assert.deepInclude(error as object, { _tag: "AgentStartFailed", phase })
        assert.deepInclude((error as { reason: unknown }).reason, {
          _tag: "ProcessExited",
          code: 7,
          stderrTail: "no key file"
        })
        assert.include(error.message, "no key file")
        assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      }).pipe(layer(script))
    )
  }

  it.effect(
    "an agent that dies with its answer to session/new gives a session that has ended, and nothing is left",
    () =>
      Effect.gen(function* () {
        const sidecar = yield* Sidecar.Sidecar
        const vm = yield* sidecar.openVm({ root: "/work" })
        const session = yield* vm.openSession({ agent: TestSidecar.profile })
        yield* until(session, "SessionEnded")
        const refused = yield* Effect.flip(session.submit("go"))
        assert.deepInclude(refused, { _tag: "SessionUnusable", reason: "agent_exited" })
        yield* session.close
        yield* nothingLeft(vm)
      }).pipe(
        layer({
          newSession: (agent) =>
            Effect.andThen(
              agent.together(Effect.andThen(agent.send({ id: 2, result: { sessionId: "s" } }), agent.write("bye\n"))),
              Effect.andThen(agent.crash(), Effect.never)
            )
        })
      )
  )

  it.effect("when the caller's scope is closed already, nothing is left of the session", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const { alive } = yield* TestSidecar.TestSidecar
      const vm = yield* sidecar.openVm({ root: "/work" })
      const caller = yield* Scope.make()
      yield* Scope.close(caller, Exit.void)
      const session = yield* vm.openSession({ agent: TestSidecar.profile }).pipe(Scope.provide(caller))
      assert.strictEqual(alive(), 0)
      assert.deepInclude(yield* Effect.flip(session.submit("go")), { _tag: "SessionUnusable", reason: "closed" })
      yield* nothingLeft(vm)
    }).pipe(layer({}))
  )
})

everywhere("what an agent answers", (layerOf) => {
  const layer = providedBy(layerOf)
  it.effect("B76: protocolVersion 99 is a VersionMismatch, and the agent is stopped", () =>
    Effect.gen(function* () {
      const error = yield* failing()
      assert.deepInclude(error, { phase: "initialize" })
      assert.deepInclude((error as { reason: unknown }).reason, { _tag: "VersionMismatch", offered: 1, got: 99 })
    }).pipe(layer({ initialize: () => Effect.succeed({ protocolVersion: 99 }) }))
  )

  const invalid: Record<string, readonly [string, ScriptedAgent.Script]> = {
    "nothing to initialize": ["initialize", { initialize: () => Effect.succeed(null) }],
    "a version in words": ["initialize", { initialize: () => Effect.succeed({ protocolVersion: "one" }) }],
    "authMethods that are none": [
      "initialize",
      { initialize: () => Effect.succeed({ protocolVersion: 1, authMethods: [{ name: "no id" }] }) }
    ],
    "nothing to session/new": ["session/new", { newSession: () => Effect.succeed(null) }],
    "a session without an id": ["session/new", { newSession: () => Effect.succeed({}) }],
    "an empty session id": ["session/new", { newSession: () => Effect.succeed({ sessionId: "" }) }],
    "a numeric session id": ["session/new", { newSession: () => Effect.succeed({ sessionId: 5 }) }],
    "an endless session id": ["session/new", { newSession: () => Effect.succeed({ sessionId: "x".repeat(1025) }) }]
  }
  for (const [what, [phase, script]] of Object.entries(invalid)) {
    it.effect(`${what} is an InvalidResponse`, () =>
      Effect.gen(function* () {
        const error = yield* failing()
        assert.deepInclude(error as object, { phase })
        assert.deepInclude((error as { reason: unknown }).reason, { _tag: "InvalidResponse", method: phase })
      }).pipe(layer(script))
    )
  }

  it.effect("an error of session/new is passed on with its code and data", () =>
    Effect.gen(function* () {
      const error = yield* failing()
      assert.deepInclude(error, { phase: "session/new" })
      assert.deepInclude((error as { reason: unknown }).reason, {
        _tag: "RequestError",
        code: -32603,
        detail: "no disk",
        data: { free: 0 }
      })
    }).pipe(layer({ newSession: () => refuse(-32603, "no disk", { free: 0 }) }))
  )

  it.effect("B57: a command that talks but speaks no ACP is named so after as many lines as are allowed", () =>
    Effect.gen(function* () {
      const error = yield* failing()
      assert.deepInclude(error, { phase: "initialize" })
      assert.deepInclude((error as { reason: unknown }).reason, {
        _tag: "NotAnAcpAgent",
        noiseLines: 4,
        sample: "$ line 4"
      })
      assert.strictEqual(yield* Clock.currentTimeMillis, 0)
    }).pipe(
      layer(
        {
          initialize: (agent) => Effect.andThen(agent.write("$ line 1\n$ line 2\n$ line 3\n$ line 4\n"), Effect.never)
        },
        { maxNoiseBeforeInitialize: 3 }
      )
    )
  )

  it.effect("B57: as many lines as are allowed, and any number later, do no harm", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      for (let i = 0; i < 50; i++) yield* agent.write("\u001b[32mlog\u001b[0m\n")
      assert.strictEqual((yield* session.prompt("go"))._tag, "Completed")
      assert.strictEqual((yield* session.describe).noise, 53)
    }).pipe(
      layer(
        {
          initialize: (agent) =>
            Effect.as(agent.write('starting\n"scalar"\n{"level":"info"}\n'), { protocolVersion: 1 })
        },
        { maxNoiseBeforeInitialize: 3 }
      )
    )
  )
})

everywhere("an agent that wants its user to sign in", (layerOf) => {
  const layer = providedBy(layerOf)
  const authMethods = [
    { id: "key", name: "API key" },
    { id: "oauth", name: "Browser" }
  ]
  const signsIn = (works: boolean): ScriptedAgent.Script => {
    let signedIn = false
    return {
      authMethods,
      authenticate: () => Effect.sync(() => ((signedIn = works), {})),
      newSession: () => (signedIn ? Effect.succeed({ sessionId: "s" }) : refuse(-32000, "sign in"))
    }
  }

  it.effect("B70: without a method named it is AuthRequired with the methods, and nothing was tried", () =>
    Effect.gen(function* () {
      const opening = yield* Effect.forkChild(failing())
      const { agents } = yield* TestSidecar.TestSidecar
      const agent = yield* Queue.take(agents)
      const error = yield* Fiber.join(opening)
      assert.deepInclude((error as { reason: unknown }).reason, {
        _tag: "AuthRequired",
        methods: authMethods,
        detail: "sign in"
      })
      assert.deepStrictEqual(agent.methods(), ["initialize", "session/new"])
    }).pipe(layer(signsIn(true)))
  )

  it.effect("B70: with one named it is done once and the session asked for again", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ authenticate: "key" })
      assert.deepStrictEqual(agent.methods(), ["initialize", "session/new", "authenticate", "session/new"])
      assert.strictEqual((yield* session.prompt("go"))._tag, "Completed")
    }).pipe(layer(signsIn(true)))
  )

  it.effect("B70: when that doesn't help it is AuthRequired, after one try", () =>
    Effect.gen(function* () {
      const opening = yield* Effect.forkChild(failing({ authenticate: "key" }))
      const { agents } = yield* TestSidecar.TestSidecar
      const agent = yield* Queue.take(agents)
      const error = yield* Fiber.join(opening)
      assert.deepInclude((error as { reason: unknown }).reason, { _tag: "AuthRequired" })
      assert.deepStrictEqual(agent.methods(), ["initialize", "session/new", "authenticate", "session/new"])
    }).pipe(layer(signsIn(false)))
  )

  it.effect("B70: a method that it doesn't offer is not tried", () =>
    Effect.gen(function* () {
      const error = yield* failing({ authenticate: "carrier-pigeon" })
      assert.deepInclude((error as { reason: unknown }).reason, { _tag: "AuthRequired", methods: authMethods })
    }).pipe(layer({ ...signsIn(true), authenticate: () => Effect.die("it was tried") }))
  )

  it.effect("B70: a refusal of authenticate itself is passed on, in that phase", () =>
    Effect.gen(function* () {
      const error = yield* failing({ authenticate: "key" })
      assert.deepInclude(error, { phase: "authenticate" })
      assert.deepInclude((error as { reason: unknown }).reason, { _tag: "RequestError", code: -32001 })
    }).pipe(layer({ ...signsIn(true), authenticate: () => refuse(-32001, "wrong key") }))
  )
})

everywhere("what can't be opened", (layerOf) => {
  const layer = providedBy(layerOf)
  for (const cwd of ["work", "./work", "", "~/work", "/work\0"]) {
    it.effect(`a session in ${JSON.stringify(cwd)}: InvalidInput, and no agent was started`, () =>
      Effect.gen(function* () {
        const { launches } = yield* TestSidecar.TestSidecar
        assert.deepInclude(yield* failing({ cwd }), { _tag: "InvalidInput", input: "cwd" })
        assert.strictEqual(launches().length, 0)
      }).pipe(layer({}))
    )
  }

  it.effect("a Vm in a relative folder: InvalidInput", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      assert.deepInclude(yield* Effect.flip(sidecar.openVm({ root: "work" })), { _tag: "InvalidInput", input: "root" })
      assert.strictEqual((yield* sidecar.describe).activeVmCount, 0)
    }).pipe(layer({}))
  )

  it.effect("a session may have a folder of its own; else it has that of its Vm", () =>
    Effect.gen(function* () {
      const { session, vm } = yield* TestSidecar.open({ cwd: "/elsewhere" })
      yield* TestSidecar.open({ vm })
      const { launches } = yield* TestSidecar.TestSidecar
      assert.deepStrictEqual(
        launches().map((launch) => launch.cwd),
        ["/elsewhere", "/work"]
      )
      assert.strictEqual((yield* session.describe).cwd, "/elsewhere")
    }).pipe(layer({}))
  )

  it.effect("mcpServers and the folder are what session/new is asked with", () => {
    const asked = Deferred.makeUnsafe<unknown>()
    const mcpServers = [{ name: "files", command: "mcp", args: [], env: [] }]
    return Effect.gen(function* () {
      yield* TestSidecar.open({ mcpServers })
      assert.deepStrictEqual(yield* Deferred.await(asked), { cwd: "/work", mcpServers })
    }).pipe(
      layer({
        newSession: (_, params) =>
          Effect.sync(() => {
            Deferred.doneUnsafe(asked, Exit.succeed(params))
            return { sessionId: "s" }
          })
      })
    )
  })
})
