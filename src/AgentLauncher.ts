/**
 * The port through which agents are started: a child process in production, anything that speaks bytes in tests.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import { ChildProcessSpawner, make as makeSpawner } from "effect/process/ChildProcessSpawner"
import * as Scope from "effect/Scope"
import type * as AcpError from "./acp/AcpError.ts"
import * as AcpTransport from "./acp/AcpTransport.ts"
import type * as AgentProfile from "./AgentProfile.ts"
import * as LaunchRecords from "./LaunchRecords.ts"
import type * as SidecarError from "./SidecarError.ts"

/**
 * One launch: the profile, the folder to start in, and the whole environment the agent gets.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Launch {
  readonly profile: AgentProfile.AgentProfile
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  readonly stderrTailBytes: number
  readonly killGrace: Duration.Duration
  /** Removes secrets from what the agent writes to stderr. */
  readonly redact: (text: string) => string
}

/**
 * Why an agent could not be started.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type LaunchError = AcpError.SpawnError | SidecarError.LaunchNotRecorded

/**
 * Starts agents. Closing the scope of a launch ends the agent, and resolves when it is gone.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class AgentLauncher extends Context.Service<
  AgentLauncher,
  {
    readonly launch: (launch: Launch) => Effect.Effect<AcpTransport.AcpTransport, LaunchError, Scope.Scope>
  }
>()("acp-sidecar/AgentLauncher") {}

/**
 * The environment of the host, of which agents get the allowed part. By default it is that of this process, read once
 * per launch.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export const HostEnvironment: Context.Reference<() => Readonly<Record<string, string | undefined>>> = Context.Reference<
  () => Readonly<Record<string, string | undefined>>
>("acp-sidecar/HostEnvironment", {
  defaultValue: () => () =>
    (globalThis as { readonly process?: { readonly env?: Record<string, string | undefined> } }).process?.env ?? {}
})

const makeProcess = ({ cwd, env, killGrace, profile, redact, stderrTailBytes }: Launch) => {
  const [command, ...args] = profile.command
  return AcpTransport.makeChildProcess({ command, args, cwd, env, killGrace, redact, stderrTailBytes })
}

/** The record is there before the process is, and goes when that is gone. */
const makeRecorded = Effect.fnUntraced(function* (
  launch: Launch,
  spawner: ChildProcessSpawner["Service"],
  records: LaunchRecords.LaunchRecords["Service"]
): Effect.fn.Return<AcpTransport.AcpTransport, LaunchError, Scope.Scope> {
  const record = yield* records.open(launch.profile.name)
  let noted: Exit.Exit<void, SidecarError.LaunchNotRecorded> = Exit.void
  // One step, so that no process lives whose number is not known to its record, and before anything is said to it.
  const noting = makeSpawner((command) =>
    spawner.spawn(command).pipe(
      Effect.tap(({ pid }) =>
        Effect.map(Effect.exit(record.started(Number(pid))), (exit) => {
          noted = exit
        })
      ),
      Effect.uninterruptible
    )
  )
  const transport = yield* makeProcess({ ...launch, env: { ...launch.env, ...record.env } }).pipe(
    Effect.provideService(ChildProcessSpawner, noting)
  )
  yield* noted
  return transport
})

/**
 * Starts agents as child processes, each in a process group of its own. Where `LaunchRecords` is provided, each is
 * recorded before it is spoken to and has the variable `ACP_SIDECAR_LAUNCH` in its environment; one that can't be
 * recorded is ended and fails with `LaunchNotRecorded`.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerChildProcess: Layer.Layer<AgentLauncher, never, ChildProcessSpawner> = Layer.effect(
  AgentLauncher,
  Effect.gen(function* () {
    const spawner = yield* ChildProcessSpawner
    const records = Option.getOrUndefined(yield* Effect.serviceOption(LaunchRecords.LaunchRecords))
    return AgentLauncher.of({
      launch: (launch) => {
        if (records === undefined) return Effect.provideService(makeProcess(launch), ChildProcessSpawner, spawner)
        return Effect.gen(function* () {
          // In order also where the caller's scope ends things side by side: the process first, then its record.
          const scope = yield* Scope.fork(yield* Effect.scope)
          return yield* makeRecorded(launch, spawner, records).pipe(
            Scope.provide(scope),
            Effect.onError(() => Scope.close(scope, Exit.void))
          )
        })
      }
    })
  })
)

/**
 * Starts agents through a function: for tests, and for agents that run somewhere else.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer = (
  launch: (launch: Launch) => Effect.Effect<AcpTransport.AcpTransport, LaunchError, Scope.Scope>
): Layer.Layer<AgentLauncher> => Layer.succeed(AgentLauncher, AgentLauncher.of({ launch }))
