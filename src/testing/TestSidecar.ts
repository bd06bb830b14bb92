/**
 * The smallest sidecar for tests: scripted agents in memory, no processes, any clock.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import * as AgentLauncher from "../AgentLauncher.ts"
import * as AgentProfile from "../AgentProfile.ts"
import type * as Session from "../Session.ts"
import * as Sidecar from "../Sidecar.ts"
import * as SidecarClient from "../SidecarClient.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import * as SidecarServer from "../SidecarServer.ts"
import type * as Vm from "../Vm.ts"
import * as MemorySocket from "./internal/memorySocket.ts"
import * as ScriptedAgent from "./ScriptedAgent.ts"

/**
 * What a test sees of the agents behind its sidecar.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class TestSidecar extends Context.Service<
  TestSidecar,
  {
    /** Every agent that was started, in order. */
    readonly agents: Queue.Dequeue<ScriptedAgent.ScriptedAgent>
    /** What each agent was started with. */
    readonly launches: () => ReadonlyArray<AgentLauncher.Launch>
    /** Agents that were started and have not gone. */
    readonly alive: () => number
  }
>()("acp-sidecar/testing/TestSidecar") {}

/**
 * The profile of the scripted agent.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const profile: AgentProfile.AgentProfile = AgentProfile.make({ name: "scripted", command: ["scripted-agent"] })

/**
 * How the sidecar under test is made: the script of its agents (one for all, or one for each launch) and its limits.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly script?: ScriptedAgent.Script | ((launch: AgentLauncher.Launch) => ScriptedAgent.Script) | undefined
  readonly limits?: SidecarLimits.Overrides | undefined
  /**
   * Where the sidecar is: `embedded`, the default, or `remote`: behind a server and a client with a connection between them
   * in memory, as an app has one that runs as a process. An app's tests may run at both.
   */
  readonly place?: "embedded" | "remote" | undefined
}

/** The same sidecar, as a client sees it. */
const remote: Layer.Layer<Sidecar.Sidecar, never, Sidecar.Sidecar> = Layer.effect(
  Sidecar.Sidecar,
  Effect.gen(function* () {
    const { serve } = yield* SidecarServer.SidecarServer
    const [ours, theirs] = yield* MemorySocket.pair()
    yield* Effect.forkScoped(serve(theirs), { startImmediately: true })
    const { sidecar } = yield* Effect.orDie(SidecarClient.connect(ours, { client: "test" }))
    return sidecar
  })
).pipe(Layer.provide(SidecarServer.layer()))

/**
 * A sidecar whose agents are scripted. It needs nothing, and under `it.effect` its time is that of `TestClock`.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer = (options: Options = {}): Layer.Layer<Sidecar.Sidecar | TestSidecar, SidecarLimits.InvalidLimit> =>
  Layer.unwrap(
    Effect.gen(function* () {
      const agents = yield* Queue.unbounded<ScriptedAgent.ScriptedAgent>()
      const launches: Array<AgentLauncher.Launch> = []
      const all: Array<ScriptedAgent.ScriptedAgent> = []
      const launcher = (launch: AgentLauncher.Launch) =>
        Effect.suspend(() => {
          launches.push(launch)
          const script = typeof options.script === "function" ? options.script(launch) : options.script
          return Effect.map(ScriptedAgent.make(script), (agent) => {
            all.push(agent)
            Queue.offerUnsafe(agents, agent)
            return agent.transport
          })
        })
      const embedded = Layer.provide(Sidecar.layerTest(launcher), SidecarLimits.layer(options.limits ?? {}))
      return Layer.merge(
        options.place === "remote" ? Layer.provide(remote, embedded) : embedded,
        Layer.succeed(
          TestSidecar,
          TestSidecar.of({
            agents,
            launches: () => launches,
            alive: () => all.filter((agent) => !agent.isGone()).length
          })
        )
      )
    })
  )

/**
 * A sidecar and what a test sees of its agents.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Made {
  readonly sidecar: Sidecar.Sidecar["Service"]
  readonly test: TestSidecar["Service"]
  /** Both, for effects that take them from their context, such as `open`: see `Effect.provideContext`. */
  readonly context: Context.Context<Sidecar.Sidecar | TestSidecar>
}

/**
 * Makes the sidecar of `layer` in a scope, whose close disposes it: a fresh world for each run of a simulation.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (options: Options = {}): Effect.Effect<Made, SidecarLimits.InvalidLimit, Scope.Scope> =>
  Effect.map(Layer.build(layer(options)), (context) => ({
    sidecar: Context.get(context, Sidecar.Sidecar),
    test: Context.get(context, TestSidecar),
    context
  }))

/**
 * An open session and the agent behind it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Opened {
  readonly session: Session.Session
  readonly agent: ScriptedAgent.ScriptedAgent
  readonly vm: Vm.Vm
}

/**
 * Opens a session (in a new Vm with root `/work` unless one is given) and gives the agent behind it. Use it for one
 * opening at a time: agents come in the order of their start.
 *
 * @stability unstable
 * @category combinators
 * @since 0.1.0
 */
export const open = (
  options: Partial<Vm.SessionOptions> & { readonly vm?: Vm.Vm | undefined } = {}
): Effect.Effect<Opened, Vm.OpenSessionError | Sidecar.OpenVmError, Sidecar.Sidecar | TestSidecar | Scope.Scope> =>
  Effect.gen(function* () {
    const { vm: given, ...rest } = options
    const sidecar = yield* Sidecar.Sidecar
    const { agents } = yield* TestSidecar
    const vm = given ?? (yield* sidecar.openVm({ root: "/work" }))
    const session = yield* vm.openSession({ agent: profile, ...rest })
    return { session, agent: yield* Queue.take(agents), vm }
  })
