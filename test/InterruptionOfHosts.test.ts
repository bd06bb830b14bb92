// Interruption at each operation of what shares agent processes, and of a session that gets another one.
import { assert, describe, it } from "@effect/vitest"
import { AgentProfile, type Sidecar, type Vm } from "acp-sidecar"
import { ScriptedAgent, Simulation, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Scope from "effect/Scope"
import * as Strikes from "./support/strikes.ts"
import { until } from "./support/events.ts"

const shared: AgentProfile.AgentProfile = { ...TestSidecar.profile, share: AgentProfile.sharing({ idleTime: 20 }) }
const after = <A, E>(millis: number, effect: Effect.Effect<A, E>) => Effect.andThen(Effect.sleep(millis), effect)

/** Takes its time for each phase. */
const slow = (): ScriptedAgent.Script => ({
  capabilities: { loadSession: true, sessionCapabilities: { resume: {}, close: {} } },
  initialize: () =>
    after(
      5,
      Effect.succeed({
        protocolVersion: 1,
        agentCapabilities: { loadSession: true, sessionCapabilities: { resume: {}, close: {} } }
      })
    ),
  resumeSession: () => after(5, Effect.succeed({})),
  closeSession: () => after(5, Effect.succeed({})),
  end: Effect.sleep(5)
})

type Body<A, E> = (world: Strikes.Bare) => Effect.Effect<A, E, Scope.Scope>

/** No process, no place and no lease is left, and another session opens and works. */
const asBefore = ({ alive, fibers, gauges, idle, sidecar, vm }: Strikes.Bare) =>
  Effect.gen(function* () {
    // What is shared is kept for a while, and what fails again and again is held back for a while.
    yield* Effect.sleep("1 minute")
    yield* Simulation.settle
    assert.strictEqual(alive(), 0, "agents")
    assert.deepStrictEqual(gauges(), idle)
    assert.deepInclude(yield* sidecar.describe, { activePrompts: 0, hosts: [], state: "ready" })
    assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [], activePrompts: 0 })
    yield* Strikes.assertFibers(fibers)
    yield* Effect.scoped(
      Effect.gen(function* () {
        const next = yield* vm.openSession({ agent: shared })
        assert.strictEqual((yield* next.prompt("go"))._tag, "Completed")
      })
    )
    yield* Effect.sleep("1 second")
    assert.strictEqual(alive(), 0, "agents")
    yield* Strikes.assertFibers(fibers)
  })
const disposed = ({ alive, fibers, sidecar }: Strikes.Bare) =>
  Effect.gen(function* () {
    yield* sidecar.dispose
    assert.strictEqual(alive(), 0)
    assert.deepInclude(yield* sidecar.describe, { state: "disposed", vms: [], hosts: [] })
    yield* Strikes.assertFibers(fibers)
  })

const safe = <A, E>(
  body: Body<A, E>,
  options: Strikes.Options & {
    readonly strike?: (world: Strikes.Bare) => Effect.Effect<unknown, unknown>
    readonly after?: (world: Strikes.Bare) => Effect.Effect<unknown, unknown>
    readonly fails?: (error: E) => boolean
    readonly seeds?: number
  } = {}
): void => {
  const { after = asBefore, fails, seeds, strike, ...rest } = options
  const runs = Strikes.assertSafe<Strikes.Bare, A, E>({
    make: Effect.suspend(() => Strikes.bare({ script: slow(), spawn: 5, ...rest })),
    body,
    strike,
    seeds,
    // The idle time of a shared process, which `after` lets pass.
    keepsTimers: true,
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

const open = (vm: Vm.Vm, options: Partial<Vm.SessionOptions> = {}) => vm.openSession({ agent: shared, ...options })
const isOver = (error: unknown): boolean => {
  const { _tag, reason } = error as Vm.OpenSessionError & { readonly reason?: { readonly _tag: string } }
  return _tag === "Disposed" || (_tag === "AgentStartFailed" && reason?._tag === "ProcessExited")
}
const crash = ({ agents }: Strikes.Bare) => Effect.forEach(agents, (agent) => agent.crash())

describe("sessions that share a process, struck at whatever operation", () => {
  const both: Body<unknown, Sidecar.OpenVmError | Vm.OpenSessionError> = ({ vm }) =>
    Effect.gen(function* () {
      const [one] = yield* Effect.all([open(vm), open(vm)], { concurrency: "unbounded" })
      yield* one.close
    })

  it("leave no process, no lease and no place when their caller goes away", () => {
    safe(both, { limits: { maxHosts: 1 }, seeds: 3 })
  })

  it("leave nothing when another one opens and closes beside them, and share with it", () => {
    safe(both, { limits: { maxHosts: 1 }, strike: ({ vm }) => Effect.scoped(open(vm)), seeds: 2 })
  })

  it("leave nothing when their process dies", () => {
    safe(both, { limits: { maxHosts: 1 }, strike: crash, fails: isOver, seeds: 2 })
  })

  it("leave nothing when their Vm closes", () => {
    safe(both, {
      strike: ({ vm }) => vm.close,
      fails: isOver,
      after: ({ alive, sidecar, vm }) =>
        Effect.gen(function* () {
          yield* vm.close
          yield* Effect.sleep("1 minute")
          assert.strictEqual(alive(), 0)
          assert.deepInclude(yield* sidecar.describe, { vms: [], hosts: [] })
        })
    })
  })

  it("leave nothing when the sidecar is disposed", () => {
    safe(both, { strike: ({ sidecar }) => sidecar.dispose, fails: isOver, after: disposed })
  })

  it("leave nothing when their agent does not start, and is held back", () => {
    let works = false
    const failing = ({ vm }: Strikes.Bare) =>
      Effect.gen(function* () {
        for (let i = 0; i < 4; i++) yield* Effect.exit(open(vm))
        works = true
      })
    safe(
      (world) =>
        Effect.suspend(() => {
          works = false
          return Effect.ensuring(
            failing(world),
            Effect.sync(() => (works = true))
          )
        }),
      {
        seeds: 2,
        script: {
          ...slow(),
          initialize: () =>
            after(
              5,
              Effect.suspend(() => (works ? Effect.succeed({ protocolVersion: 1 }) : Effect.never))
            )
        },
        limits: { maxHosts: 1, startTimeout: 20, maxHostFailures: 2 }
      }
    )
  })
})

describe("a process that is given up, struck at whatever operation", () => {
  const stuck = (): ScriptedAgent.Script => ({ ...slow(), prompt: () => Effect.never, ignoreCancel: true })
  const work: Body<unknown, unknown> = ({ vm }) =>
    Effect.gen(function* () {
      const session = yield* open(vm)
      const turn = yield* session.submit("go")
      yield* turn.dispatched
      yield* turn.cancel
      yield* until(session, "SessionEnded")
    })
  const gone = ({ alive, fibers, gauges, idle, sidecar }: Strikes.Bare) =>
    Effect.gen(function* () {
      yield* Effect.sleep("1 minute")
      yield* Simulation.settle
      assert.strictEqual(alive(), 0, "agents")
      assert.deepStrictEqual(gauges(), idle)
      assert.deepInclude(yield* sidecar.describe, { activePrompts: 0, hosts: [] })
      yield* Strikes.assertFibers(fibers)
    })

  it("leaves nothing when its caller goes away", () => {
    safe(work, { script: stuck(), limits: { maxHosts: 1, cancelGrace: 20 }, after: gone, seeds: 2 })
  })

  it("leaves nothing when another session opens meanwhile", () => {
    safe(work, {
      script: stuck(),
      limits: { maxHosts: 1, cancelGrace: 20 },
      strike: ({ vm }) => Effect.scoped(open(vm)),
      after: gone
    })
  })
})

describe("a session that is resumed, struck at whatever operation", () => {
  const resumed =
    (agent: AgentProfile.AgentProfile): Body<unknown, unknown> =>
    ({ agents, vm }) =>
      Effect.gen(function* () {
        const session = yield* open(vm, { agent, restart: "resume" })
        const turn = yield* session.submit("lost")
        yield* agents[0]!.crash()
        yield* turn.outcome
        yield* until(session, "SessionResumed")
        yield* session.prompt("go")
        yield* session.close
      })
  const fails = (error: unknown): boolean =>
    isOver(error) || ["TurnFailed", "SessionUnusable"].includes((error as { readonly _tag: string })._tag)
  /** A session that has ended tells nobody of a resumption. */
  const orEnded =
    (body: Body<unknown, unknown>): Body<unknown, unknown> =>
    (world) =>
      Effect.timeoutOption(body(world), "1 minute")

  for (const [name, agent] of [
    ["on a process of its own", TestSidecar.profile],
    ["on a shared process", shared]
  ] as const) {
    it(`leaves nothing when its caller goes away, ${name}`, () => {
      safe(resumed(agent), { limits: { maxHosts: 1 }, fails, seeds: 2 })
    })

    it(`leaves nothing when its process dies, whichever it is, ${name}`, () => {
      safe(orEnded(resumed(agent)), { limits: { maxHosts: 1 }, strike: crash, fails })
    })

    it(`leaves nothing when the sidecar is disposed, ${name}`, () => {
      safe(orEnded(resumed(agent)), { strike: ({ sidecar }) => sidecar.dispose, fails, after: disposed })
    })
  }

  it("leaves nothing when its attempts take too long", () => {
    safe(orEnded(resumed(shared)), {
      limits: { maxHosts: 1, startTimeout: 30, hostExitTimeout: 30 },
      script: { ...slow(), resumeSession: () => Effect.never },
      fails
    })
  })
})

describe("the end of a process that nobody uses any more", () => {
  it("and the opening of a session in the same moment end in one process, under every seed (B38)", () => {
    const reused: Array<boolean> = []
    const program = Effect.gen(function* () {
      const world = yield* Strikes.bare({ script: slow(), limits: { maxHosts: 1 }, spawn: 5 })
      const { alive, sidecar, vm } = world
      yield* Effect.scoped(open(vm))
      // It is closed at the agent within 5 ms, and then kept for 20 ms.
      yield* Effect.sleep(20)
      const session = yield* open(vm)
      assert.strictEqual((yield* session.prompt("go"))._tag, "Completed")
      assert.strictEqual(alive(), 1)
      const { hosts } = yield* sidecar.describe
      assert.strictEqual(hosts.length, 1)
      reused.push(world.agents.length === 1)
    })
    Simulation.assertHolds(program, { runs: Number(process.env.INTERRUPTION_SEEDS ?? 1) * 40 })
    assert.deepStrictEqual(new Set(reused), new Set([true, false]), "either was first")
  })
})
