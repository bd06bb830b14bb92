// The sidecar of a command: its agents are child processes, its limits come from the environment.
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import * as AgentLauncher from "../AgentLauncher.ts"
import * as Sidecar from "../Sidecar.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import { CommandFailure, fromError } from "./failure.ts"
import * as LiveAgents from "./LiveAgents.ts"
import { withTelemetry } from "./telemetry.ts"

/** Starts agents as child processes and keeps their ids for as long as they run. */
export const layerLauncher: Layer.Layer<
  AgentLauncher.AgentLauncher,
  never,
  ChildProcessSpawner | LiveAgents.LiveAgents
> = Layer.effect(
  AgentLauncher.AgentLauncher,
  Effect.gen(function* () {
    const agents = yield* LiveAgents.LiveAgents
    const { launch } = yield* AgentLauncher.AgentLauncher
    return AgentLauncher.AgentLauncher.of({
      launch: Effect.fnUntraced(function* (options) {
        let pid: number | undefined
        const remove = Effect.sync(() => (pid === undefined ? undefined : agents.remove(pid)))
        // Before the start, so that it runs after the end.
        yield* Effect.addFinalizer(() => remove)
        const transport = yield* launch(options)
        pid = transport.pid
        if (pid !== undefined) agents.add(pid)
        yield* Effect.forkScoped(Effect.andThen(transport.ended, remove), { startImmediately: true })
        return transport
      })
    })
  })
).pipe(Layer.provide(AgentLauncher.layerChildProcess))

/** Runs a command's work with a platform and a sidecar of its own, and gives all of it back before it ends. */
export const withSidecar = <A, E extends { readonly _tag: string; readonly message: string }, R>(
  work: Effect.Effect<A, E, R>
): Effect.Effect<
  A,
  CommandFailure,
  Exclude<Exclude<R, Sidecar.Sidecar>, NodeServices.NodeServices> | LiveAgents.LiveAgents
> =>
  work.pipe(
    Effect.provide(Sidecar.layerLauncher.pipe(Layer.provide(layerLauncher), Layer.provide(SidecarLimits.layerFromEnv))),
    Effect.provide(NodeServices.layer),
    Effect.mapError((error) => (error instanceof CommandFailure ? error : fromError(error))),
    withTelemetry
  )
