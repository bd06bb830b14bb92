import { assert, it } from "@effect/vitest"
import { AgentProfile, Probe, Sidecar, type Vm } from "acp-sidecar"
import { AcpConnection, AcpError } from "acp-sidecar/acp"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import { program } from "../examples/probe.ts"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import { beside, chunk, idle, provided, until } from "./support/events.ts"
import { everywhere, type Place } from "./support/places.ts"
import * as Strikes from "./support/strikes.ts"
import { manual } from "./support/turns.ts"

const { profile } = TestSidecar
const sharing: AgentProfile.AgentProfile = { ...profile, share: AgentProfile.sharing() }
const everything: ReadonlyArray<Probe.Want> = ["settings", "commands", "sessions"]
const close = { sessionCapabilities: { close: {} } }

const openVm = Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work" }))
/** One answer for both, which are one object unless it has crossed a connection. */
const assertSame = (place: Place, one: unknown, other: unknown): void =>
  place === "embedded" ? assert.strictEqual(one, other) : assert.deepStrictEqual(one, other)

const alive = Effect.map(TestSidecar.TestSidecar, (test) => test.alive())
const starts = Effect.map(TestSidecar.TestSidecar, (test) => test.launches().length)
const hosts = Effect.flatMap(Sidecar.Sidecar, (sidecar) => Effect.map(sidecar.describe, (info) => info.hosts))
const nextAgent = Effect.flatMap(TestSidecar.TestSidecar, ({ agents }) => Queue.take(agents))
const count = (agent: ScriptedAgent.ScriptedAgent, method: string) =>
  agent.methods().filter((each) => each === method).length
const commands = (...names: ReadonlyArray<string>) => ({
  sessionUpdate: "available_commands_update" as const,
  availableCommands: names.map((name) => ({ name, description: `does ${name}` }))
})
/** All at once. */
const all = <A, E, R>(effects: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(effects, { concurrency: "unbounded" })
const result = <A, E>(fiber: Fiber.Fiber<A, E>): Exit.Exit<A, E> | undefined => fiber.pollUnsafe()
/** Nothing of any probe is left: no process unless sessions have it, no lease, no room taken. */
const assertNothingLeft = Effect.gen(function* () {
  yield* TestClock.adjust("10 seconds")
  yield* idle
  assert.deepStrictEqual(yield* hosts, [])
  assert.strictEqual(yield* alive, 0)
})
/** On a process that a session of the app has as well. */
const assertOnlySession = Effect.gen(function* () {
  yield* idle
  const [host, ...others] = yield* hosts
  assert.deepStrictEqual(others, [])
  assert.deepInclude(host, { leases: 1, state: "ready" })
  assert.strictEqual(host!.sessions.length, 1)
  assert.deepInclude(host!.kept, { routes: 1, left: 0 })
})

const option = (currentValue: string) => ({
  id: "m",
  category: "model",
  type: "select" as const,
  name: "Model",
  currentValue,
  options: []
})

const answers = (answer: Readonly<Record<string, unknown>>): ScriptedAgent.Script => {
  let made = 0
  return {
    capabilities: close,
    newSession: () => Effect.sync(() => ({ sessionId: `probed-${++made}`, ...answer }))
  }
}

everywhere("a probe tells", (layer) => {
  it.effect("the models of the option that is for them, with groups, and how another one is chosen", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const found = yield* vm.probe({ agent: profile })
      assert.deepStrictEqual(found.models, {
        current: "small",
        available: [
          { id: "small", name: "Small", description: "quick" },
          { id: "large", name: "Large", description: null },
          { id: "nameless", name: "nameless", description: null }
        ],
        configId: "the-model"
      })
      assert.strictEqual(found.configOptions.length, 2)
      assert.deepStrictEqual(found.modes, { currentModeId: "ask", availableModes: [{ id: "ask", name: "Ask" }] })
    }).pipe(
      provided(
        layer({
          script: answers({
            modes: { currentModeId: "ask", availableModes: [{ id: "ask", name: "Ask" }] },
            models: { currentModelId: "old", availableModels: [{ modelId: "old", name: "Old" }] },
            configOptions: [
              null,
              {
                id: "the-model",
                category: "model",
                type: "select",
                name: "Model",
                currentValue: "small",
                options: [
                  { group: "g", name: "Group", options: [{ value: "small", name: "Small", description: "quick" }] },
                  { value: "large", name: "Large" },
                  { value: "nameless" },
                  { value: 3, name: "no text" },
                  null
                ]
              }
            ]
          })
        })
      )
    )
  )

  it.effect("a model picker what it needs", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* program(profile, "/work"), ["* One", "  two"])
      const agent = { ...profile, name: "locked", signIn: "run it once" }
      assert.deepStrictEqual(yield* program(agent, "/work"), ["sign in first: run it once"])
    }).pipe(
      provided(
        layer({
          script: ({ profile }) =>
            profile.name === "locked"
              ? { newSession: () => Effect.fail(AcpConnection.refusal(AcpError.code.authRequired, "sign in")) }
              : answers({
                  models: {
                    currentModelId: "one",
                    availableModels: [{ modelId: "one", name: "One" }, { modelId: "two" }]
                  }
                })
        })
      )
    )
  )

  it.effect("the models that an agent tells in the older way", () =>
    Effect.gen(function* () {
      const found = yield* (yield* openVm).probe({ agent: profile })
      assert.deepStrictEqual(found.models, {
        current: "one",
        available: [{ id: "one", name: "One", description: "d" }],
        configId: null
      })
    }).pipe(
      provided(
        layer({
          script: answers({
            models: { currentModelId: "one", availableModels: [{ modelId: "one", name: "One", description: "d" }, 7] },
            configOptions: [{ id: "x", category: "mode", type: "select", name: "x", currentValue: "a", options: [] }]
          })
        })
      )
    )
  )

  it.effect("nothing of what can't be read", () =>
    Effect.gen(function* () {
      const found = yield* (yield* openVm).probe({ agent: profile })
      assert.deepInclude(found, { models: null, modes: null, configOptions: [], commands: null, sessions: null })
    }).pipe(provided(layer({ script: answers({ models: [], modes: "x", configOptions: {} }) })))
  )

  it.effect("options and modes as they are when it ends", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const probing = yield* beside(vm.probe({ agent: profile, want: ["commands"] }))
      yield* idle
      const agent = yield* nextAgent
      const [id] = agent.sessions()
      yield* agent.update(id!, { sessionUpdate: "current_mode_update", currentModeId: "b" })
      yield* agent.update(id!, { sessionUpdate: "config_option_update", configOptions: [option("second")] })
      yield* agent.update(id!, commands("x"))
      const found = yield* Fiber.join(probing)
      assert.strictEqual(found.modes?.currentModeId, "b")
      assert.strictEqual(found.models?.current, "second")
    }).pipe(
      provided(
        layer({
          script: answers({
            modes: { currentModeId: "a", availableModes: [] },
            configOptions: [option("first")]
          })
        })
      )
    )
  )

  it.effect("who the agent is, how long each phase took, and whether its process ran before", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const probing = yield* beside(vm.probe({ agent: sharing, want: everything }))
      for (let i = 0; i < 6; i++) yield* TestClock.adjust("5 millis")
      yield* TestClock.adjust("2 seconds")
      const { at, diagnosis } = yield* Fiber.join(probing)
      assert.deepInclude(diagnosis, {
        agentInfo: { name: "scripted", version: "1" },
        protocolVersion: 1,
        capabilities: close,
        authMethods: [{ id: "key", name: "Key", description: null }],
        signInNeeded: false,
        pid: null,
        wasRunning: false,
        problems: [],
        stderrTail: ""
      })
      const { commands, ...took } = diagnosis.tookMillis
      assert.deepStrictEqual(took, { room: 0, spawn: 0, initialize: 5, "session/new": 10, "session/list": 0 })
      assert.isAtLeast(commands!, 2000 - 15)
      assert.isAtLeast(at, 2000)
      const again = yield* beside(vm.probe({ agent: sharing, refresh: true }))
      yield* TestClock.adjust("10 millis")
      const { wasRunning, tookMillis } = (yield* Fiber.join(again)).diagnosis
      assert.isTrue(wasRunning)
      assert.deepStrictEqual(tookMillis, { room: 0, "session/new": 10 })
    }).pipe(
      provided(
        layer({
          script: {
            initialize: () =>
              Effect.as(Effect.sleep(5), {
                protocolVersion: 1,
                agentCapabilities: close,
                authMethods: [{ id: "key", name: "Key" }],
                agentInfo: { name: "scripted", version: "1" }
              }),
            newSession: () => Effect.as(Effect.sleep(10), { sessionId: "s" })
          }
        })
      )
    )
  )

  it.effect("of an agent that only has to be there, without a session", () =>
    Effect.gen(function* () {
      const found = yield* (yield* openVm).probe({ agent: profile, want: [] })
      const agent = yield* nextAgent
      assert.deepStrictEqual(agent.methods(), ["initialize"])
      assert.strictEqual(found.diagnosis.signInNeeded, null)
      assert.deepStrictEqual(found.diagnosis.tookMillis, { room: 0, spawn: 0, initialize: 0 })
      yield* assertNothingLeft
    }).pipe(provided(layer()))
  )

  it.effect("with the environment of the Vm, of the profile and of its own", () =>
    Effect.gen(function* () {
      const vm = yield* (yield* Sidecar.Sidecar).openVm({ root: "/work", env: { A: "vm", B: "vm" } })
      const agent = { ...profile, env: { C: "profile" } }
      yield* vm.probe({ agent, env: { B: "own" }, cwd: "/other" })
      const [launch] = (yield* TestSidecar.TestSidecar).launches()
      assert.deepInclude(launch!.env, { A: "vm", B: "own", C: "profile" })
      assert.strictEqual(launch!.cwd, "/other")
    }).pipe(provided(layer()))
  )

  it.effect("what it can't use in words, and starts nothing", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const bad: ReadonlyArray<[Probe.Options, string]> = [
        [{ agent: profile, cwd: "relative" }, "cwd"],
        [{ agent: profile, timeout: "soon" as never }, "timeout"],
        [{ agent: profile, commandsTimeout: Number.NaN }, "commandsTimeout"],
        [{ agent: profile, want: ["models" as never] }, "want"],
        [{ agent: { ...sharing, sessionEnv: ["PATH"] } }, "agent"]
      ]
      for (const [options, input] of bad) {
        const error = yield* Effect.flip(vm.probe(options))
        assert.deepInclude(error, { _tag: "InvalidInput", input })
      }
      assert.strictEqual(yield* starts, 0)
    }).pipe(provided(layer()))
  )
})

everywhere("commands", (layer) => {
  it.effect("that come before the answer, as from some agents, cost no wait, asked for or not", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (const want of [["commands"], ["settings"]] as const) {
        const found = yield* vm.probe({ agent: profile, want })
        assert.deepStrictEqual(
          found.commands?.map(({ name }) => name),
          ["early"]
        )
      }
    }).pipe(
      provided(
        layer({
          script: { newSession: (agent) => Effect.as(agent.update("s", commands("early")), { sessionId: "s" }) }
        })
      )
    )
  )

  it.effect("that come after the answer are waited for, and none is not the same as none in time", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const wanting = (name: string) => vm.probe({ agent: { ...profile, name }, want: ["commands"] })
      const late = yield* beside(wanting("a b"))
      yield* idle
      const lateAgent = yield* nextAgent
      yield* TestClock.adjust("1999 millis")
      assert.isUndefined(result(late))
      yield* lateAgent.update("s", commands("a", "b"))
      assert.deepStrictEqual(
        (yield* Fiber.join(late)).commands?.map(({ name }) => name),
        ["a", "b"]
      )
      const empty = yield* beside(wanting("empty"))
      yield* idle
      yield* (yield* nextAgent).update("s", commands())
      assert.deepStrictEqual((yield* Fiber.join(empty)).commands, [])
      const never = yield* beside(wanting("never"))
      yield* idle
      yield* TestClock.adjust("2 seconds")
      assert.strictEqual((yield* Fiber.join(never)).commands, null)
    }).pipe(provided(layer({ script: { newSession: () => Effect.succeed({ sessionId: "s" }) } })))
  )

  it.effect("are waited for as long as is said, beside the list of sessions", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const probing = yield* beside(vm.probe({ agent: profile, want: everything, commandsTimeout: "5 seconds" }))
      yield* idle
      yield* TestClock.adjust("3 seconds")
      yield* idle
      yield* TestClock.adjust("1999 millis")
      assert.isUndefined(result(probing))
      yield* TestClock.adjust("1 millis")
      const found = yield* Fiber.join(probing)
      assert.strictEqual(found.commands, null)
      assert.deepInclude(found.diagnosis.tookMillis, { "session/list": 3000, commands: 2000 })
    }).pipe(
      provided(
        layer({
          script: {
            capabilities: { sessionCapabilities: { list: {} } },
            listSessions: () => Effect.as(Effect.sleep("3 seconds"), { sessions: [] })
          }
        })
      )
    )
  )
})

everywhere("the list of sessions", (layer) => {
  const listing = (script: ScriptedAgent.Script) =>
    layer({ script: { capabilities: { sessionCapabilities: { list: {}, close: {} } }, ...script } })

  it.effect("is that of the folder, page by page, without the probe's own session", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const found = yield* vm.probe({ agent: profile, want: ["settings", "sessions"], cwd: "/work/part" })
      assert.deepStrictEqual(found.sessions, {
        sessions: [
          { sessionId: "a", cwd: "/work/part" },
          { sessionId: "b", cwd: "/work/part" }
        ],
        isComplete: true
      })
      const alone = yield* vm.probe({ agent: profile, want: ["sessions"], cwd: "/work/part" })
      assert.strictEqual(alone.sessions?.sessions.length, 3)
      assert.strictEqual(alone.diagnosis.signInNeeded, null)
    }).pipe(
      provided(
        listing({
          newSession: () => Effect.succeed({ sessionId: "own" }),
          listSessions: (_, params) => {
            const { cursor, cwd } = params as { readonly cursor?: string; readonly cwd: string }
            return Effect.succeed(
              cursor === undefined
                ? { sessions: [{ sessionId: "a", cwd }], nextCursor: "2" }
                : {
                    sessions: [
                      { sessionId: "own", cwd },
                      { sessionId: "b", cwd }
                    ]
                  }
            )
          }
        })
      )
    )
  )

  it.effect("is bounded", () =>
    Effect.gen(function* () {
      const found = yield* (yield* openVm).probe({ agent: profile, want: ["sessions"] })
      assert.strictEqual(found.sessions?.sessions.length, 1000)
      assert.isFalse(found.sessions?.isComplete)
    }).pipe(
      provided(
        listing({
          listSessions: () =>
            Effect.sync(() => ({
              sessions: Array.from({ length: 300 }, (_, i) => ({ sessionId: `${i}`, cwd: "/work" })),
              nextCursor: `${Math.random()}`
            }))
        })
      )
    )
  )

  it.effect("is null for an agent that has none to list", () =>
    Effect.gen(function* () {
      const found = yield* (yield* openVm).probe({ agent: profile, want: ["settings", "sessions"] })
      assert.strictEqual(found.sessions, null)
      assert.deepStrictEqual(found.diagnosis.problems, [])
    }).pipe(provided(layer()))
  )

  it.effect("that fails costs nothing but itself, and is asked for again the next time", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const found = yield* vm.probe({ agent: profile, want: ["settings", "sessions"] })
      assert.strictEqual(found.sessions, null)
      assert.strictEqual(found.models?.current, "one")
      const [problem] = found.diagnosis.problems
      assert.strictEqual(problem?.method, "session/list")
      assert.include(problem?.message, "disk is full")
      yield* vm.probe({ agent: profile, want: ["settings", "sessions"] })
      assert.strictEqual(yield* starts, 2)
    }).pipe(
      provided(
        listing({
          newSession: () => Effect.succeed({ sessionId: "s", models: { currentModelId: "one", availableModels: [] } }),
          listSessions: () => Effect.fail(AcpConnection.refusal(-32603, "disk is full"))
        })
      )
    )
  )
})

everywhere("the session of a probe", (layer) => {
  it.effect("is none of the app, refuses what the agent asks, and ends at the agent", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm
      const probing = yield* beside(vm.probe({ agent: sharing, want: ["commands"] }))
      yield* idle
      const agent = yield* nextAgent
      const [id] = agent.sessions()
      assert.deepStrictEqual(yield* agent.ask(id!), { _tag: "Cancelled" })
      yield* agent.update(id!, chunk("hello"))
      const info = yield* sidecar.describe
      assert.deepStrictEqual(info.vms[0]!.sessions, [])
      assert.strictEqual(info.vms[0]!.opening, 0)
      assert.deepInclude(info.hosts[0], { leases: 1, sessions: [] })
      yield* agent.update(id!, commands("x"))
      yield* Fiber.join(probing)
      yield* idle
      assert.deepStrictEqual(agent.sessions(), [])
      assert.deepInclude((yield* hosts)[0], { leases: 0 })
      assert.deepInclude((yield* hosts)[0]!.kept, { routes: 0, left: 0 })
      yield* assertNothingLeft
    }).pipe(provided(layer({ script: { capabilities: close } })))
  )

  it.effect("leaves a process of its own that ends with it, unless the profile shares", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* vm.openSession({ agent: profile })
      yield* vm.probe({ agent: profile })
      yield* idle
      assert.strictEqual(yield* starts, 2)
      assert.strictEqual(yield* alive, 1)
    }).pipe(provided(layer()))
  )

  it.effect("B70: never signs in, also where a method is named, and tells that it is needed and how", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const named = { agent: sharing, authenticate: "key" }
      for (let i = 1; i <= 2; i++) {
        const { diagnosis, models } = yield* vm.probe({ ...named, want: everything })
        assert.isTrue(diagnosis.signInNeeded)
        assert.deepStrictEqual(diagnosis.authMethods, [{ id: "key", name: "Key", description: "by key" }])
        assert.strictEqual(models, null)
      }
      const agent = yield* nextAgent
      // Not remembered, as its user may have signed in meanwhile.
      assert.strictEqual(count(agent, "session/new"), 2)
      assert.strictEqual(count(agent, "authenticate"), 0)
      const { diagnosis } = yield* vm.probe({ ...named, want: ["sessions"] })
      assert.isTrue(diagnosis.signInNeeded)
      assert.strictEqual(count(agent, "authenticate"), 0)
    }).pipe(
      provided(
        layer({
          script: {
            capabilities: { sessionCapabilities: { list: {} } },
            authMethods: [{ id: "key", name: "Key", description: "by key" } as never],
            newSession: () => Effect.fail(AcpConnection.refusal(AcpError.code.authRequired, "sign in")),
            listSessions: () => Effect.fail(AcpConnection.refusal(AcpError.code.authRequired, "sign in"))
          }
        })
      )
    )
  )
})

everywhere("probes of the same at the same time", (layer, place) => {
  for (const agent of [profile, sharing]) {
    it.effect(`are one start and one session, ten of them, ${agent.share === false ? "alone" : "shared"}`, () =>
      Effect.gen(function* () {
        const vm = yield* openVm
        const found = yield* all(Array.from({ length: 10 }, () => vm.probe({ agent })))
        for (const one of found) assertSame(place, one, found[0])
        assert.strictEqual(yield* starts, 1)
        assert.strictEqual(count(yield* nextAgent, "session/new"), 1)
        yield* assertNothingLeft
      }).pipe(provided(layer()))
    )
  }

  it.effect("join the process of a session of the app", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const probing = Array.from({ length: 10 }, () => vm.probe({ agent: sharing }))
      yield* all<unknown, unknown, Scope.Scope>([vm.openSession({ agent: sharing }), ...probing])
      assert.strictEqual(yield* starts, 1)
      assert.strictEqual(count(yield* nextAgent, "session/new"), 2)
    }).pipe(provided(layer()))
  )

  it.effect("are others when folder, environment, agent or what is asked for differ", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const other = yield* openVm
      yield* all([
        vm.probe({ agent: profile }),
        vm.probe({ agent: profile, cwd: "/other" }),
        vm.probe({ agent: profile, env: { A: "1" } }),
        vm.probe({ agent: { ...profile, command: ["another"] } }),
        vm.probe({ agent: profile, want: ["sessions"] }),
        other.probe({ agent: profile })
      ])
      assert.strictEqual(yield* starts, 6)
    }).pipe(provided(layer()))
  )

  it.effect("have a time of their own: of 5 and 100 ms the first is told so, and the second gets the answer", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const short = yield* beside(Effect.flip(vm.probe({ agent: profile, timeout: 5 })))
      const long = yield* beside(vm.probe({ agent: profile, timeout: 100 }))
      yield* idle
      yield* TestClock.adjust(4)
      assert.isUndefined(result(short))
      yield* TestClock.adjust(1)
      const error = yield* Fiber.join(short)
      assert.deepInclude(error, { _tag: "ProbeTimedOut", afterMillis: 5, phase: "session/new", agent: "scripted" })
      assert.include(error.message, "ACP_SIDECAR_PROBE_TIMEOUT")
      yield* TestClock.adjust(44)
      assert.isUndefined(result(long))
      yield* TestClock.adjust(1)
      assert.strictEqual((yield* Fiber.join(long)).agent, "scripted")
      assert.strictEqual(yield* starts, 1)
      yield* assertNothingLeft
    }).pipe(provided(layer({ script: { newSession: () => Effect.as(Effect.sleep(50), { sessionId: "s" }) } })))
  )

  it.effect("go on when whoever asked first goes away, and end with the last who waits", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const probing = yield* Effect.forEach([1, 2, 3], () => beside(vm.probe({ agent: profile, timeout: "1 hour" })))
      const agent = yield* nextAgent
      yield* idle
      yield* Fiber.interrupt(probing[0]!)
      yield* TestClock.adjust("1 minute")
      yield* Fiber.interrupt(probing[2]!)
      yield* idle
      assert.isFalse(agent.isGone())
      yield* Fiber.interrupt(probing[1]!)
      yield* idle
      assert.isTrue(agent.isGone())
      yield* assertNothingLeft
    }).pipe(provided(layer({ script: { newSession: () => Effect.never } })))
  )

  it.effect("that begin when the last one has just left are a start of their own", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const first = yield* beside(vm.probe({ agent: profile }))
      yield* idle
      yield* Fiber.interrupt(first)
      const second = yield* beside(vm.probe({ agent: profile }))
      yield* idle
      assert.strictEqual(yield* starts, 2)
      yield* Fiber.interrupt(second)
      yield* assertNothingLeft
    }).pipe(provided(layer({ script: { newSession: () => Effect.never } })))
  )
})

everywhere("a probe that times out", (layer) => {
  const hangs = (): ScriptedAgent.Script => {
    let sessions = 0
    return {
      ...manual,
      capabilities: close,
      newSession: () => {
        const mine = ++sessions
        return Effect.suspend(() => (mine === 2 ? Effect.never : Effect.succeed({ sessionId: `s${mine}` })))
      }
    }
  }

  it.effect("has its process replaced when nobody else has that", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const agent = { ...sharing, share: AgentProfile.sharing({ idleTime: "1 hour" }) }
      yield* vm.probe({ agent, want: [] })
      const error = yield* beside(Effect.flip(vm.probe({ agent, timeout: "1 second" })))
      yield* TestClock.adjust("1 second")
      assert.strictEqual((yield* Fiber.join(error))._tag, "ProbeTimedOut")
      yield* vm.openSession({ agent })
      assert.strictEqual(yield* starts, 2)
      assert.strictEqual(yield* alive, 1)
      yield* assertOnlySession
    }).pipe(
      provided(
        layer({
          script: (
            (first) => () =>
              first++ === 0 ? { newSession: () => Effect.never } : {}
          )(0)
        })
      )
    )
  )

  it.effect("has it replaced too when two time out together", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const agent = { ...sharing, share: AgentProfile.sharing({ idleTime: "1 hour" }) }
      const probing = yield* Effect.forEach(["/a", "/b", "/c"], (cwd) =>
        beside(Effect.flip(vm.probe({ agent, cwd, timeout: "1 second" })))
      )
      yield* TestClock.adjust("1 second")
      for (const each of probing) assert.strictEqual((yield* Fiber.join(each))._tag, "ProbeTimedOut")
      yield* assertNothingLeft
    }).pipe(provided(layer({ script: { newSession: () => Effect.never } })))
  )

  const deaf: ScriptedAgent.Script = { capabilities: close, closeSession: () => Effect.never }
  const timeOut = (folders: ReadonlyArray<string>) =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const agent = { ...sharing, share: AgentProfile.sharing({ idleTime: "1 hour" }) }
      const options = { agent, want: ["commands"], commandsTimeout: "1 hour", timeout: "1 second" } as const
      const probing = yield* Effect.forEach(folders, (cwd) => beside(Effect.flip(vm.probe({ ...options, cwd }))))
      yield* idle
      yield* TestClock.adjust("1 second")
      for (const each of probing) assert.deepInclude(yield* Fiber.join(each), { phase: "commands" })
      yield* idle
    })

  it.effect("does not wait for its agent to close a session before that", () =>
    Effect.gen(function* () {
      yield* timeOut(["/a"])
      assert.strictEqual(yield* alive, 0)
    }).pipe(provided(layer({ script: deaf })))
  )

  it.effect("has it replaced by the last of those that time out together and still close their sessions", () =>
    Effect.gen(function* () {
      yield* timeOut(["/a", "/b", "/c"])
      yield* assertNothingLeft
    }).pipe(provided(layer({ script: deaf })))
  )

  it.effect("keeps it when whoever asked only went away", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const agent = { ...sharing, share: AgentProfile.sharing({ idleTime: "1 hour" }) }
      const probing = yield* beside(vm.probe({ agent }))
      yield* idle
      yield* Fiber.interrupt(probing)
      yield* idle
      assert.strictEqual(yield* alive, 1)
      assert.deepInclude((yield* hosts)[0], { leases: 0 })
    }).pipe(provided(layer({ script: { newSession: () => Effect.never } })))
  )

  it.effect("leaves the sessions of its process alone, and their turns", () =>
    Effect.gen(function* () {
      const { agent, session, vm } = yield* TestSidecar.open({ agent: sharing })
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      const probing = yield* beside(Effect.flip(vm.probe({ agent: sharing })))
      yield* TestClock.adjust("30 seconds")
      assert.deepInclude(yield* Fiber.join(probing), { _tag: "ProbeTimedOut", phase: "session/new" })
      yield* prompt.say("still here")
      yield* prompt.end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      assert.strictEqual(yield* starts, 1)
      assert.include(agent.methods(), "$/cancel_request")
      const next = yield* vm.openSession({ agent: sharing })
      assert.strictEqual(next.pid, session.pid)
      assert.strictEqual(yield* starts, 1)
    }).pipe(provided(layer({ script: hangs() })))
  )

  it.effect("has the session of a late answer closed at the agent, and leaves nothing", () =>
    Effect.gen(function* () {
      const { agent, session, vm } = yield* TestSidecar.open({ agent: sharing })
      const probing = yield* beside(Effect.flip(vm.probe({ agent: sharing, timeout: "1 second" })))
      yield* TestClock.adjust("1 second")
      yield* Fiber.join(probing)
      yield* idle
      assert.deepInclude((yield* hosts)[0], { leases: 1 })
      yield* TestClock.adjust("9 seconds")
      yield* idle
      assert.deepStrictEqual(agent.sessions(), [session.agentSessionId])
      assert.strictEqual(count(agent, "session/close"), 1)
      yield* assertOnlySession
      yield* agent.update("late", chunk("too late"))
      yield* idle
      assert.strictEqual((yield* hosts)[0]!.late, 1)
    }).pipe(
      provided(
        layer({
          script: {
            capabilities: close,
            newSession: (
              (sessions) => () =>
                Effect.suspend(() =>
                  sessions++ === 0
                    ? Effect.succeed({ sessionId: "first" })
                    : Effect.as(Effect.sleep("10 seconds"), { sessionId: "late" })
                )
            )(0)
          }
        })
      )
    )
  )

  it.effect("before its agent answers initialize ends that, and the next one starts anew", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (const agent of [profile, sharing]) {
        const before = yield* starts
        for (let i = 1; i <= 2; i++) {
          const probing = yield* beside(Effect.flip(vm.probe({ agent })))
          yield* TestClock.adjust("29 seconds")
          assert.strictEqual(yield* alive, 1)
          yield* TestClock.adjust("1 second")
          const error = yield* Fiber.join(probing)
          assert.deepInclude(error, { _tag: "ProbeTimedOut", phase: "initialize", afterMillis: 30_000 })
          yield* idle
          assert.strictEqual(yield* alive, 0)
          assert.strictEqual(yield* starts, before + i)
        }
      }
      yield* assertNothingLeft
    }).pipe(provided(layer({ script: { initialize: () => Effect.never } })))
  )

  it.effect("while a session waits for the same start leaves it to that", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const probing = yield* beside(Effect.flip(vm.probe({ agent: sharing, timeout: "1 second" })))
      const opening = yield* beside(vm.openSession({ agent: sharing }))
      yield* TestClock.adjust("1 second")
      assert.deepInclude(yield* Fiber.join(probing), { _tag: "ProbeTimedOut", phase: "initialize" })
      yield* TestClock.adjust("4 seconds")
      const exit = yield* Fiber.await(opening)
      assert.isTrue(Exit.isSuccess(exit))
      assert.strictEqual(yield* starts, 1)
    }).pipe(
      provided(
        layer({
          script: { initialize: () => Effect.as(Effect.sleep("5 seconds"), { protocolVersion: 1 }) }
        })
      )
    )
  )

  it.effect("in its list closes its session as well", () =>
    Effect.gen(function* () {
      const { agent, vm } = yield* TestSidecar.open({ agent: sharing })
      const probing = yield* beside(Effect.flip(vm.probe({ agent: sharing, want: everything })))
      yield* TestClock.adjust("30 seconds")
      assert.deepInclude(yield* Fiber.join(probing), { _tag: "ProbeTimedOut", phase: "session/list" })
      yield* assertOnlySession
      assert.strictEqual(agent.sessions().length, 1)
    }).pipe(
      provided(
        layer({
          script: {
            capabilities: { sessionCapabilities: { close: {}, list: {} } },
            listSessions: () => Effect.never
          }
        })
      )
    )
  )

  it.effect("does not make a sharing agent count as one that fails to start", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (let i = 0; i < 20; i++) {
        const probing = yield* beside(Effect.flip(vm.probe({ agent: sharing, timeout: 5 })))
        yield* TestClock.adjust(5)
        yield* Fiber.join(probing)
      }
      const opening = yield* beside(vm.openSession({ agent: sharing }))
      yield* TestClock.adjust(10)
      assert.isTrue(Exit.isSuccess(yield* Fiber.await(opening)))
    }).pipe(provided(layer({ script: { initialize: () => Effect.as(Effect.sleep(10), { protocolVersion: 1 }) } })))
  )
})

everywhere("what a probe found", (layer, place) => {
  it.effect("is remembered for its time, for the same question alone", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const first = yield* vm.probe({ agent: profile })
      yield* TestClock.adjust("299 seconds")
      // The same content, in another object.
      assertSame(place, yield* vm.probe({ agent: { ...profile }, cwd: "/work", want: ["settings"] }), first)
      yield* vm.probe({ agent: profile, cwd: "/other" })
      assert.strictEqual(yield* starts, 2)
      yield* TestClock.adjust("1 second")
      const second = yield* vm.probe({ agent: profile })
      assert.notStrictEqual(second, first)
      assert.strictEqual(second.at - first.at, 300_000)
      assert.strictEqual(yield* starts, 3)
    }).pipe(provided(layer()))
  )

  it.effect("is asked for again with refresh, once for all that want it, and then remembered", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const first = yield* vm.probe({ agent: profile })
      const [second, third] = yield* all([1, 2].map(() => vm.probe({ agent: profile, refresh: true })))
      assert.notStrictEqual(second, first)
      assertSame(place, second, third)
      assertSame(place, yield* vm.probe({ agent: profile }), second)
      assert.strictEqual(yield* starts, 2)
    }).pipe(provided(layer()))
  )

  it.effect("is not remembered when it failed, and then what was known before isn't either", () => {
    let isBroken = true
    return Effect.gen(function* () {
      const vm = yield* openVm
      const error = yield* Effect.flip(vm.probe({ agent: profile }))
      assert.deepInclude(error, { _tag: "ProbeFailed", phase: "session/new", agent: "scripted" })
      assert.include(error.message, "no disk")
      isBroken = false
      yield* vm.probe({ agent: profile })
      assert.strictEqual(yield* starts, 2)
      isBroken = true
      yield* Effect.flip(vm.probe({ agent: profile, refresh: true }))
      yield* Effect.flip(vm.probe({ agent: profile }))
      assert.strictEqual(yield* starts, 4)
    }).pipe(
      provided(
        layer({
          script: {
            newSession: () =>
              Effect.suspend(() =>
                isBroken ? Effect.fail(AcpConnection.refusal(-32603, "no disk")) : Effect.succeed({ sessionId: "s" })
              )
          }
        })
      )
    )
  })

  it.effect("is remembered of 64 questions, the last ones", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const ask = (folder: number) => vm.probe({ agent: sharing, cwd: `/${folder}`, want: [] })
      for (let i = 0; i < 65; i++) yield* ask(i)
      const agent = yield* nextAgent
      yield* agent.crash()
      yield* idle
      for (let i = 1; i < 65; i++) yield* ask(i)
      assert.strictEqual(yield* starts, 1)
      yield* ask(0)
      assert.strictEqual(yield* starts, 2)
    }).pipe(provided(layer()))
  )
})

everywhere("an agent that dies", (layer) => {
  for (const phase of ["initialize", "newSession", "listSessions"] as const) {
    it.effect(`within ${phase} fails the probe at once, with what it left, and the next one starts anew`, () =>
      Effect.gen(function* () {
        const vm = yield* openVm
        for (let i = 1; i <= 2; i++) {
          const errors = yield* all([1, 2].map(() => Effect.flip(vm.probe({ agent: sharing, want: everything }))))
          for (const error of errors) {
            assert.strictEqual(error._tag, "ProbeFailed")
            assert.strictEqual((error as Probe.ProbeFailed).reason._tag, "ProcessExited")
            assert.include(error.message, "out of memory")
          }
          yield* idle
          assert.strictEqual(yield* starts, i)
        }
        yield* assertNothingLeft
      }).pipe(
        provided(
          layer({
            script: {
              capabilities: { sessionCapabilities: { list: {} } },
              [phase]: (agent: ScriptedAgent.ScriptedAgent) =>
                Effect.andThen(agent.crash({ code: 3, stderrTail: "out of memory" }), Effect.never)
            }
          })
        )
      )
    )
  }

  it.effect("while its commands are waited for is told at once, as are the sessions beside it", () =>
    Effect.gen(function* () {
      const { agent, session, vm } = yield* TestSidecar.open({ agent: sharing })
      const probing = yield* beside(Effect.flip(vm.probe({ agent: sharing, want: ["commands"] })))
      yield* idle
      yield* agent.crash()
      assert.deepInclude(yield* Fiber.join(probing), { _tag: "ProbeFailed", phase: "commands" })
      assert.strictEqual((yield* until(session, "SessionEnded")).reason, "agent_exited")
      yield* vm.probe({ agent: sharing })
      assert.strictEqual(yield* starts, 2)
    }).pipe(provided(layer()))
  )
})

everywhere("the room of probes", (layer) => {
  it.effect("is theirs alone: with none left sessions open and work, and with all others full they have it", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const probing = yield* beside(vm.probe({ agent: { ...profile, name: "hangs" } }))
      yield* idle
      const other = yield* openVm
      const error = yield* Effect.flip(other.probe({ agent: profile }))
      assert.deepInclude(error, { _tag: "LimitExceeded", scope: "sidecar", limit: "maxProbes", used: 1, max: 1 })
      const session = yield* vm.openSession({ agent: profile })
      assert.strictEqual((yield* session.prompt("go"))._tag, "Completed")
      yield* Fiber.interrupt(probing)
      yield* idle
      yield* vm.probe({ agent: profile })
    }).pipe(
      provided(
        layer({
          limits: { maxProbes: 1, maxSessionsPerVm: 1, maxPromptsPerSidecar: 1 },
          script: ({ profile }) => (profile.name === "hangs" ? { newSession: () => Effect.never } : {})
        })
      )
    )
  )

  it.effect("takes no place from the sessions of a process, and needs none", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const agent = { ...sharing, share: AgentProfile.sharing({ maxSessions: 1, whenFull: "refuse" }) }
      const probing = yield* beside(vm.probe({ agent, want: ["commands"] }))
      yield* idle
      yield* vm.openSession({ agent })
      yield* TestClock.adjust("2 seconds")
      yield* Fiber.join(probing)
      yield* vm.probe({ agent })
      assert.deepInclude(yield* Effect.flip(vm.openSession({ agent })), {
        _tag: "LimitExceeded",
        limit: "maxSessionsPerHost",
        used: 1
      })
      assert.strictEqual(yield* starts, 1)
    }).pipe(provided(layer()))
  )

  it.effect("is waited for where a probe only gives its place back", () => {
    const end = Latch.makeUnsafe(false)
    return Effect.gen(function* () {
      const vm = yield* openVm
      yield* vm.probe({ agent: profile })
      const next = yield* beside(vm.probe({ agent: profile, refresh: true }))
      yield* idle
      assert.isUndefined(result(next))
      yield* end.open
      yield* Fiber.join(next)
      assert.strictEqual(yield* starts, 2)
    }).pipe(provided(layer({ limits: { maxProbes: 1 }, script: { end: Effect.suspend(() => end.await) } })))
  })

  it.effect("and a place among the processes are two things: without the latter it is refused", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* vm.openSession({ agent: profile })
      assert.deepInclude(yield* Effect.flip(vm.probe({ agent: profile })), { _tag: "LimitExceeded", limit: "maxHosts" })
    }).pipe(provided(layer({ limits: { maxHosts: 1 } })))
  )
})

everywhere("a Vm that closes", (layer) => {
  it.effect("ends its probes, and takes no more", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const probing = yield* Effect.forEach([profile, sharing], (agent) =>
        beside(Effect.flip(vm.probe({ agent, timeout: Infinity })))
      )
      yield* idle
      yield* vm.close
      for (const each of probing) assert.strictEqual((yield* Fiber.join(each))._tag, "Disposed")
      assert.strictEqual((yield* Effect.flip(vm.probe({ agent: profile })))._tag, "Disposed")
      yield* assertNothingLeft
    }).pipe(provided(layer({ script: { newSession: () => Effect.never } })))
  )

  it.effect("forgets what they found", () =>
    Effect.gen(function* () {
      yield* Effect.flatMap(openVm, (vm) => Effect.andThen(vm.probe({ agent: profile }), vm.close))
      yield* Effect.flatMap(openVm, (vm) => vm.probe({ agent: profile }))
      assert.strictEqual(yield* starts, 2)
    }).pipe(provided(layer()))
  )
})

everywhere("a probe, struck at whatever operation", (_layer, place) => {
  const slow = (): ScriptedAgent.Script => {
    const after = <A, E>(millis: number, effect: Effect.Effect<A, E>) => Effect.andThen(Effect.sleep(millis), effect)
    let made = 0
    return {
      initialize: () =>
        after(
          5,
          Effect.succeed({ protocolVersion: 1, agentCapabilities: { sessionCapabilities: { close: {}, list: {} } } })
        ),
      newSession: (agent) =>
        after(
          5,
          Effect.suspend(() => Effect.as(agent.update(`s${++made}`, chunk("early")), { sessionId: `s${made}` }))
        ),
      listSessions: () => after(5, Effect.succeed({ sessions: [] })),
      closeSession: () => after(5, Effect.succeed({}))
    }
  }
  const asBefore = ({ agents, alive, fibers, gauges, idle, sidecar, vm }: Strikes.Bare) =>
    Effect.gen(function* () {
      // The idle time of a shared process, which is none of the probe's.
      yield* Effect.sleep("5 seconds")
      assert.strictEqual(alive(), 0, "agents")
      assert.deepStrictEqual(gauges(), idle)
      assert.deepInclude(yield* sidecar.describe, { activeVmCount: 1, hosts: [] })
      assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
      assert.isTrue(agents.every((agent) => agent.isGone()))
      yield* Strikes.assertFibers(fibers)
    })
  const safe = <A>(
    body: (vm: Vm.Vm) => Effect.Effect<A, unknown>,
    options: Strikes.Options & {
      readonly strike?: (world: Strikes.Bare) => Effect.Effect<unknown, unknown>
      readonly check?: (world: Strikes.Bare) => Effect.Effect<unknown, unknown>
      readonly fails?: boolean
      readonly seeds?: number
    } = {}
  ): void => {
    const { check = asBefore, fails, seeds, strike, ...rest } = options
    const runs = Strikes.assertSafe<Strikes.Bare, A, unknown>({
      make: Effect.suspend(() => Strikes.bare({ script: slow(), place, spawn: 5, limits: { maxProbes: 2 }, ...rest })),
      body: ({ vm }) => body(vm),
      strike,
      seeds,
      check: (world, exit) =>
        Effect.gen(function* () {
          if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit) && fails !== true) yield* exit
          yield* check(world)
        }),
      closed: Strikes.assertGone
    })
    assert.isAbove(runs, 10)
  }
  const probe = (agent: AgentProfile.AgentProfile) => (vm: Vm.Vm) =>
    vm.probe({ agent, want: everything, commandsTimeout: 10 })

  for (const agent of [profile, sharing]) {
    const how = agent.share === false ? "on a process of its own" : "on a process that is shared"
    it(`leaves nothing when its caller goes away, ${how}`, () => {
      safe(probe(agent), { seeds: 3 })
    })

    it(`leaves nothing when its time is up, ${how}`, () => {
      for (const timeout of [3, 8, 12, 18, 24])
        safe((vm) => Effect.exit(vm.probe({ agent, want: everything, timeout })))
    })

    it(`leaves nothing of two when one goes away, ${how}`, () => {
      const impatient = (vm: Vm.Vm) => Effect.exit(vm.probe({ agent, want: everything, timeout: 8 }))
      safe((vm) => all<unknown, unknown, never>([probe(agent)(vm), impatient(vm)]), { seeds: 2 })
    })

    it(`leaves nothing when its agent dies, ${how}`, () => {
      const strike = ({ agents }: Strikes.Bare) => Effect.forEach(agents, (each) => each.crash())
      safe(probe(agent), { strike, fails: true, seeds: 2 })
    })

    it(`leaves nothing when its Vm closes, ${how}`, () => {
      safe(probe(agent), {
        strike: ({ vm }) => vm.close,
        fails: true,
        check: ({ alive, sidecar, vm }) =>
          Effect.gen(function* () {
            yield* vm.close
            yield* Effect.sleep("5 seconds")
            assert.strictEqual(alive(), 0)
            assert.deepInclude(yield* sidecar.describe, { activeVmCount: 0, hosts: [] })
          })
      })
    })
  }

  it("does no harm to a session beside it on its process", () => {
    safe(
      (vm) =>
        Effect.scoped(
          Effect.gen(function* () {
            const session = yield* vm.openSession({ agent: sharing })
            yield* Effect.exit(vm.probe({ agent: sharing, timeout: 3 }))
            assert.strictEqual((yield* session.prompt("go"))._tag, "Completed")
          })
        ),
      { seeds: 2 }
    )
  })
})
