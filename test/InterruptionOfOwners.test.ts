// Interruption at each operation of whatever owns something: sessions, hosts, Vms and sidecars.
import { assert, describe, it } from "@effect/vitest"
import { Address, AgentHost, AgentLauncher, AgentSession, Sidecar, SidecarLimits, type Vm } from "acp-sidecar"
import type { SessionRouter } from "acp-sidecar"
import { AcpConnection, AcpError } from "acp-sidecar/acp"
import { ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import { chunk } from "./support/events.ts"
import { everywhere, type Place } from "./support/places.ts"
import * as Strikes from "./support/strikes.ts"

const { profile } = TestSidecar
const methods = [{ id: "key", name: "Key" }]

/** Takes its time for each phase, wants its user to sign in, and says something before and after its answer. */
const slow = (): ScriptedAgent.Script => {
  let signedIn = false
  const after = <A, E>(millis: number, effect: Effect.Effect<A, E>) => Effect.andThen(Effect.sleep(millis), effect)
  return {
    initialize: () =>
      after(
        5,
        Effect.succeed({
          protocolVersion: 1,
          authMethods: methods,
          agentCapabilities: { sessionCapabilities: { close: {} } }
        })
      ),
    authenticate: () =>
      after(
        5,
        Effect.sync(() => {
          signedIn = true
          return {}
        })
      ),
    newSession: (agent) =>
      Effect.suspend(() =>
        signedIn
          ? agent.update("s", chunk("early")).pipe(Effect.andThen(Effect.sleep(5)), Effect.as({ sessionId: "s" }))
          : Effect.fail(AcpConnection.refusal(AcpError.code.authRequired, "sign in"))
      ),
    closeSession: () => after(5, Effect.succeed({}))
  }
}

type Body<A, E> = (world: Strikes.Bare) => Effect.Effect<A, E, Scope.Scope>

const disposed = ({ alive, fibers, sidecar }: Strikes.Bare) =>
  Effect.gen(function* () {
    // Whatever became of the first call, another one finishes it.
    yield* sidecar.dispose
    assert.strictEqual(alive(), 0)
    assert.deepInclude(yield* sidecar.describe, { state: "disposed", vms: [], activePrompts: 0, activeVmCount: 0 })
    yield* Strikes.assertFibers(fibers)
  })

/** Where all is given back and nothing was harmed: another session opens, works and closes. */
const asBefore = ({ alive, fibers, gauges, idle, sidecar, vm }: Strikes.Bare) =>
  Effect.gen(function* () {
    assert.strictEqual(alive(), 0, "agents")
    assert.deepStrictEqual(gauges(), idle)
    assert.deepInclude(yield* sidecar.describe, { activePrompts: 0, activeVmCount: 1, state: "ready" })
    assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [], activePrompts: 0 })
    yield* Strikes.assertFibers(fibers)
    yield* Effect.scoped(
      Effect.gen(function* () {
        const next = yield* vm.openSession({ agent: profile, authenticate: "key" })
        assert.strictEqual((yield* next.prompt("go"))._tag, "Completed")
      })
    )
    yield* Strikes.assertFibers(fibers)
  })

const safeAt =
  (place: Place) =>
  <A, E>(
    body: Body<A, E>,
    options: Strikes.Options & {
      readonly strike?: (world: Strikes.Bare) => Effect.Effect<unknown, unknown>
      /** What holds afterwards; else all is as before. */
      readonly after?: (world: Strikes.Bare) => Effect.Effect<unknown, unknown>
      /** Failures of the body that are an answer to the strike. */
      readonly fails?: (error: E) => boolean
      readonly seeds?: number
    } = {}
  ): void => {
    const { after = asBefore, fails, seeds, strike, ...rest } = options
    const runs = Strikes.assertSafe<Strikes.Bare, A, E>({
      // The script has a state, so each world gets its own.
      make: Effect.suspend(() => Strikes.bare({ script: slow(), spawn: 5, place, ...rest })),
      body,
      strike,
      seeds,
      check: (world, exit) =>
        Effect.gen(function* () {
          const failure = Exit.findErrorOption(exit)
          const known = failure._tag === "Some" && fails?.(failure.value) === true
          if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit) && !known) yield* exit
          yield* after(world)
        }),
      closed: Strikes.assertGone
    })
    assert.isAbove(runs, 10)
  }

const open = (vm: Vm.Vm) => vm.openSession({ agent: profile, authenticate: "key" })
const isOver = (error: Vm.OpenSessionError): boolean =>
  error._tag === "Disposed" || (error._tag === "AgentStartFailed" && error.reason._tag === "ProcessExited")

everywhere("a session that is being opened, struck at whatever operation", (_layer, place) => {
  const safe = safeAt(place)
  it("leaves nothing when its caller goes away, through spawn, initialize, authenticate and session/new", () => {
    safe(({ vm }) => open(vm), { limits: { maxSessionsPerVm: 1 }, seeds: 3 })
  })

  it("leaves nothing when its caller goes away before it answers any of these", () => {
    for (const phase of ["initialize", "authenticate", "newSession"] as const) {
      safe(({ vm }) => Effect.timeoutOption(Effect.scoped(open(vm)), "20 millis"), {
        limits: { maxSessionsPerVm: 1 },
        script: { ...slow(), [phase]: () => Effect.never },
        after: ({ alive, fibers, vm }) =>
          Effect.gen(function* () {
            assert.strictEqual(alive(), 0)
            assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
            yield* Strikes.assertFibers(fibers)
          })
      })
    }
  })

  it("leaves nothing when its time is up", () => {
    safe(({ vm }) => Effect.exit(vm.openSession({ agent: profile, authenticate: "key", startTimeout: "12 millis" })), {
      limits: { maxSessionsPerVm: 1 }
    })
  })

  it("fails, typed, when its Vm is closed", () => {
    safe(({ vm }) => open(vm), {
      strike: ({ vm }) => vm.close,
      fails: isOver,
      seeds: 2,
      after: ({ alive, sidecar, vm }) =>
        Effect.gen(function* () {
          yield* vm.close
          assert.strictEqual(alive(), 0)
          assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
          assert.strictEqual((yield* sidecar.describe).activeVmCount, 0)
        })
    })
  })

  it("fails, typed, when the sidecar is disposed", () => {
    safe(({ vm }) => open(vm), {
      strike: ({ sidecar }) => sidecar.dispose,
      fails: isOver,
      after: disposed
    })
  })

  it("fails, typed, when its agent dies, or is a session that has ended", () => {
    safe(({ vm }) => open(vm), {
      limits: { maxSessionsPerVm: 1 },
      strike: ({ agents }) => Effect.forEach(agents, (agent) => agent.crash()),
      fails: isOver,
      seeds: 2
    })
  })

  it("keeps its place from whoever wants the last one meanwhile", () => {
    const taken: Array<string> = []
    safe(({ vm }) => open(vm), {
      limits: { maxSessionsPerVm: 1 },
      strike: ({ vm }) =>
        Effect.scoped(open(vm)).pipe(
          Effect.exit,
          Effect.tap((exit) => Effect.sync(() => taken.push(exit._tag)))
        ),
      fails: (error) => error._tag === "LimitExceeded"
    })
    assert.include(taken, "Failure")
  })
})

everywhere("a session that works and is closed, struck at whatever operation", (_layer, place) => {
  const safe = safeAt(place)
  const work: Body<unknown, unknown> = ({ vm }) =>
    Effect.gen(function* () {
      const session = yield* open(vm)
      yield* session.prompt("go")
      yield* session.close
    })

  it("leaves nothing when its caller goes away, whose scope waits for a close that it began and left", () => {
    safe(work, { limits: { maxSessionsPerVm: 1 }, seeds: 2 })
  })

  it("leaves nothing when another one is opened and closed beside it", () => {
    safe(work, { strike: ({ vm }) => Effect.scoped(open(vm)) })
  })
})

everywhere("a Vm, struck at whatever operation", (_layer, place) => {
  const safe = safeAt(place)
  const work = ({ sidecar }: Strikes.Bare) =>
    Effect.gen(function* () {
      const vm = yield* sidecar.openVm({ root: "/other", limits: { maxSessionsPerVm: 1 } })
      yield* open(vm)
      yield* vm.close
    })

  it("leaves nothing when its caller goes away, whose scope waits for a close that it began and left", () => {
    safe(work, { limits: { maxVms: 3 }, seeds: 2 })
  })

  it("leaves nothing when it is closed by its scope alone", () => {
    safe(({ sidecar }) => Effect.scoped(sidecar.openVm({ root: "/other" })), { limits: { maxVms: 3 } })
  })

  it("fails, typed, when the sidecar is disposed, and is not listed after that", () => {
    safe(work, {
      strike: ({ sidecar }) => sidecar.dispose,
      fails: (error) => error._tag === "Disposed" || (error._tag === "AgentStartFailed" && isOver(error)),
      after: disposed
    })
  })
})

everywhere("a sidecar, struck at whatever operation", (layer, place) => {
  const safe = safeAt(place)
  it("leaves nothing when its layer is built, used and closed", () => {
    const runs = Strikes.assertSafe({
      make: Effect.map(Strikes.liveFibers, (fibers) => ({ fibers, alive: (): number => 0 })),
      body: (world: { alive: () => number; readonly fibers: number }) =>
        Effect.gen(function* () {
          const context = yield* Layer.build(layer({ script: slow() }))
          world.alive = Context.get(context, TestSidecar.TestSidecar).alive
          const sidecar = Context.get(context, Sidecar.Sidecar)
          const vm = yield* sidecar.openVm({ root: "/work" })
          const session = yield* open(vm)
          yield* session.submit("go")
        }),
      check: ({ alive, fibers }, exit) =>
        Effect.gen(function* () {
          if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit)) yield* exit
          assert.strictEqual(alive(), 0)
          yield* Strikes.assertFibers(fibers)
        }),
      seeds: 2
    })
    assert.isAbove(runs, 10)
  })

  const dispose: Body<unknown, unknown> = ({ sidecar, vm }) =>
    Effect.gen(function* () {
      const session = yield* open(vm)
      yield* session.submit("hangs")
      yield* open(vm)
      yield* sidecar.dispose
    })
  const stubborn = (): ScriptedAgent.Script => ({
    initialize: () => Effect.succeed({ protocolVersion: 1 }),
    prompt: () => Effect.never,
    ignoreCancel: true
  })

  it("ends in another dispose when the first one is interrupted, with an agent that ignores its cancel", () => {
    safe(dispose, { script: stubborn(), after: disposed, seeds: 2 })
  })

  it("ends once when it is disposed beside that", () => {
    safe(dispose, {
      script: stubborn(),
      strike: ({ sidecar }) => sidecar.dispose,
      fails: () => true,
      after: disposed
    })
  })

  it("ends once when its Vm closes meanwhile", () => {
    safe(dispose, { script: stubborn(), strike: ({ vm }) => vm.close, fails: () => true, after: disposed })
  })
})

describe("an agent's host, struck at whatever operation", () => {
  interface Hosted {
    readonly fibers: number
    readonly agents: Array<ScriptedAgent.ScriptedAgent>
    readonly context: Context.Context<AgentLauncher.AgentLauncher>
    readonly kinds: Array<string>
    router: SessionRouter.SessionRouter | undefined
  }
  const make: Effect.Effect<Hosted, unknown, Scope.Scope> = Effect.gen(function* () {
    const agents: Array<ScriptedAgent.ScriptedAgent> = []
    const context = yield* Layer.build(
      AgentLauncher.layer(() =>
        Effect.andThen(
          Effect.sleep(5),
          Effect.map(ScriptedAgent.make(slow()), (agent) => {
            agents.push(agent)
            return agent.transport
          })
        )
      )
    )
    return { fibers: yield* Strikes.liveFibers, agents, context, kinds: [], router: undefined }
  })
  const start = (world: Hosted) =>
    AgentHost.start(
      {
        address: { sidecarId: Address.SidecarId.make("s") },
        profile,
        cwd: "/work",
        env: [],
        limits: SidecarLimits.defaults,
        emit: (event) => void world.kinds.push(event.kind)
      },
      { phase: "spawn", connection: undefined }
    ).pipe(Effect.provideContext(world.context))
  const route: SessionRouter.Route = {
    onUpdate: () => {},
    onTooLarge: () => {},
    onPermission: () => Effect.void,
    flush: () => {}
  }
  const newSession = (host: AgentHost.AgentHost) =>
    AgentSession.open(
      host,
      { how: { _tag: "New" }, cwd: "/work", authenticate: "key", route: { ...route } },
      { phase: "spawn", connection: undefined }
    )
  const check = ({ agents, fibers, kinds, router }: Hosted, exit: Exit.Exit<unknown, unknown>) =>
    Effect.gen(function* () {
      if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit)) yield* exit
      assert.isTrue(agents.every((agent) => agent.isGone()))
      assert.strictEqual(router?.routes.size ?? 0, 0, "routes")
      // It is told of as often as it has been started.
      assert.isTrue(kinds.length === 0 || kinds.join() === "host_started,host_exited", kinds.join())
      yield* Strikes.assertFibers(fibers)
    })

  it("leaves no agent and no route, and tells of its end if it told of its start", () => {
    const body = (world: Hosted) =>
      Effect.gen(function* () {
        const host = yield* start(world)
        world.router = host.router
        yield* newSession(host)
      })
    assert.isAbove(Strikes.assertSafe({ make, body, check, seeds: 2 }), 10)
  })

  it("keeps its other sessions when the opening of one is interrupted, and has no route of that", () => {
    const runs = Strikes.assertSafe({
      make: Effect.gen(function* () {
        const world = yield* make
        const host = yield* start(world)
        return { host, fibers: yield* Strikes.liveFibers }
      }),
      body: ({ host }) => Effect.scoped(newSession(host)),
      check: ({ fibers, host }, exit) =>
        Effect.gen(function* () {
          if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit)) yield* exit
          assert.strictEqual(host.router.routes.size, 0)
          // The agent may still be at work on it, and its answer is waited for.
          yield* Effect.sleep(50)
          assert.deepStrictEqual([host.connection.stats.pending, AgentSession.left(host)], [0, 0])
          yield* Strikes.assertFibers(fibers)
          yield* Effect.scoped(
            Effect.gen(function* () {
              yield* newSession(host)
              assert.strictEqual(host.router.routes.size, 1)
            })
          )
          assert.isAtLeast(host.router.tombstones.size, 1)
        }),
      seeds: 2
    })
    assert.isAbove(runs, 10)
  })
})
