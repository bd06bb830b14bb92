// Worlds for `Interruption`, and how often it strikes: some operations of each program in a plain run, and with
// INTERRUPTION_POINTS=Infinity all of them, under as many interleavings as INTERRUPTION_SEEDS says.
import { assert } from "@effect/vitest"
import { Journal, type Permission, Sidecar, SidecarLimits, type Session, type Vm } from "acp-sidecar"
import { Interruption, ScriptedAgent, Simulation, TestSidecar } from "acp-sidecar/testing"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import * as References from "effect/References"
import type * as Scope from "effect/Scope"
import { behind, type Behind, type Place } from "./places.ts"
import { series } from "./telemetry.ts"

const points = Number(process.env.INTERRUPTION_POINTS ?? 40)
const seeds = process.env.INTERRUPTION_SEEDS
let total = 0

/** What is logged in each of many runs says nothing. */
const quiet = Effect.provideService(References.MinimumLogLevel, "None")

/** Strikes at the program's operations, throws what went wrong, and gives the number of runs. */
export const assertSafe = <World, A, E>(options: Interruption.Options<World, A, E>): number => {
  const { runs } = Interruption.assertSafe({
    ...options,
    make: quiet(options.make),
    body: (world) => quiet(options.body(world)),
    maxPoints: options.maxPoints ?? points,
    seeds: seeds === undefined ? options.seeds : Number(seeds)
  })
  total += runs
  if (process.env.INTERRUPTION_POINTS !== undefined) process.stderr.write(`${total} struck runs\n`)
  return runs
}

/** How many fibers are alive once nothing can run. */
export const liveFibers: Effect.Effect<number> = Effect.andThen(
  Simulation.settle,
  Effect.map(Simulation.here, ({ scheduler }) => scheduler.liveFibers().length)
)

/** No more fibers than there were. */
export const assertFibers = (before: number): Effect.Effect<void> =>
  Effect.gen(function* () {
    if ((yield* liveFibers) <= before) return
    const { scheduler } = yield* Simulation.here
    assert.fail(`more fibers than the ${before} that there were:\n${scheduler.report()}`)
  })

export interface Bare {
  readonly sidecar: Sidecar.Sidecar["Service"]
  readonly journal: Journal.Journal["Service"] | undefined
  readonly vm: Vm.Vm
  /** Every agent that was started. */
  readonly agents: ReadonlyArray<ScriptedAgent.ScriptedAgent>
  /** Agents that live, or are being started. */
  readonly alive: () => number
  readonly fibers: number
  /** The gauges that are not at zero. */
  readonly gauges: () => Readonly<Record<string, unknown>>
  /** Those when it was made. */
  readonly idle: Readonly<Record<string, unknown>>
  /** What there is between a remote sidecar and its client. */
  readonly between: Behind | undefined
  /** The sidecar itself, wherever it is. */
  readonly embedded: Sidecar.Sidecar["Service"]
}

export interface World extends Bare {
  readonly session: Session.Session
  readonly agent: ScriptedAgent.ScriptedAgent
}

export interface Options {
  readonly script?: ScriptedAgent.Script | undefined
  readonly limits?: SidecarLimits.Overrides | undefined
  readonly permission?: Permission.Policy | undefined
  readonly journal?: Layer.Layer<Journal.Journal> | undefined
  /** Milliseconds that it takes to start an agent, and to end it. */
  readonly spawn?: number | undefined
  /** Where the sidecar is: in the app itself, unless given. */
  readonly place?: Place | undefined
}

/** A sidecar with a Vm. */
export const bare = (options: Options = {}): Effect.Effect<Bare, unknown, Scope.Scope> =>
  Effect.gen(function* () {
    const agents: Array<ScriptedAgent.ScriptedAgent> = []
    let alive = 0
    const pause = Effect.sleep(options.spawn ?? 0)
    const launch = () =>
      Effect.gen(function* () {
        yield* Effect.acquireRelease(
          Effect.sync(() => alive++),
          () =>
            Effect.andThen(
              pause,
              Effect.sync(() => alive--)
            )
        )
        yield* pause
        const agent = yield* ScriptedAgent.make(options.script)
        agents.push(agent)
        return agent.transport
      })
    const journal = options.journal ?? Layer.empty
    const layer = Sidecar.layerTest(launch).pipe(
      Layer.provideMerge(journal as Layer.Layer<Journal.Journal>),
      // Without the timers of a heartbeat, so that those of the program are counted alone.
      Layer.provide(SidecarLimits.layer({ heartbeatTimeout: "Infinity", ...options.limits }))
    )
    const registry = new Map()
    const gauges = () =>
      Object.fromEntries(
        series({ spans: [], registry })
          .filter(({ state, type }) => type === "Gauge" && state["value"] !== 0)
          .map(({ attributes, id, state }) => [`${id} ${JSON.stringify(attributes)}`, state["value"]])
      )
    const context = yield* Effect.provideService(Layer.build(layer), Metric.MetricRegistry, registry)
    const embedded = Context.get(context, Sidecar.Sidecar)
    const between = options.place === "remote" ? yield* behind(embedded) : undefined
    const sidecar = between?.sidecar ?? embedded
    const vm = yield* sidecar.openVm({ root: "/work" })
    return {
      sidecar,
      journal: options.journal === undefined ? undefined : Context.get(context, Journal.Journal),
      vm,
      agents,
      alive: () => alive,
      fibers: yield* liveFibers,
      gauges,
      idle: gauges(),
      between,
      embedded
    }
  })

/** After the end of its scope there is no agent, and no gauge counts anything of it. */
export const assertGone = ({ alive, between, gauges }: Bare): void => {
  assert.strictEqual(alive(), 0, "agents")
  assert.strictEqual(between?.clients() ?? 0, 0, "clients")
  assert.deepStrictEqual(gauges(), {})
}

/** The same with a session. */
export const world = (options: Options = {}): Effect.Effect<World, unknown, Scope.Scope> =>
  Effect.gen(function* () {
    const made = yield* bare(options)
    const { permission } = options
    const session = yield* made.vm.openSession({ agent: TestSidecar.profile, permission })
    return { ...made, session, agent: made.agents[0]!, fibers: yield* liveFibers }
  })
