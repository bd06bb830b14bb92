// The sidecar of a command: its agents are child processes, its limits come from the environment.
import { join, resolve } from "node:path"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Effect from "effect/Effect"
import type * as FileSystem from "effect/FileSystem"
import * as Layer from "effect/Layer"
import type { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import * as AgentLauncher from "../AgentLauncher.ts"
import * as LaunchRecords from "../LaunchRecords.ts"
import * as NodeProcessTable from "../NodeProcessTable.ts"
import type { ProcessTableError } from "../ProcessTable.ts"
import * as Sidecar from "../Sidecar.ts"
import type * as SidecarError from "../SidecarError.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import { CommandFailure, fromError } from "./failure.ts"
import * as LiveAgents from "./LiveAgents.ts"
import { withTelemetry } from "./telemetry.ts"

type RecordsError = SidecarError.LaunchNotRecorded | ProcessTableError

/** Where `ACP_SIDECAR_STATE` wants launch records; `undefined`: at their default place. */
export const recordsFolder = (): string | undefined => {
  const state = (process.env["ACP_SIDECAR_STATE"] ?? "").trim()
  if (state === "off" || process.platform === "win32") return "off"
  return state === "" ? undefined : join(resolve(state), "launches")
}

/** Child processes with launch records, in `ACP_SIDECAR_STATE`. Where its default can't be used, without, and says so. */
const layerChildProcess: Layer.Layer<
  AgentLauncher.AgentLauncher,
  RecordsError,
  ChildProcessSpawner | FileSystem.FileSystem
> = Layer.unwrap(
  Effect.sync(() => {
    const folder = recordsFolder()
    if (folder === "off") return AgentLauncher.layerChildProcess
    const recorded = AgentLauncher.layerChildProcess.pipe(
      Layer.provide(LaunchRecords.layer({ folder })),
      Layer.provide(NodeProcessTable.layer)
    )
    if (folder !== undefined) return recorded
    return Layer.catch(recorded, (error) =>
      Layer.provideMerge(
        AgentLauncher.layerChildProcess,
        Layer.effectDiscard(
          Effect.logWarning(`${error.message}; agents are not ended at the next start if this process is killed.`)
        )
      )
    )
  })
)

/** Starts agents as child processes and keeps their ids for as long as they run. */
export const layerLauncher: Layer.Layer<
  AgentLauncher.AgentLauncher,
  RecordsError,
  ChildProcessSpawner | FileSystem.FileSystem | LiveAgents.LiveAgents
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
).pipe(Layer.provide(layerChildProcess))

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
