/**
 * The port through which agents are started: a child process in production, anything that speaks bytes in tests.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import type * as Scope from "effect/Scope"
import type * as AcpError from "./acp/AcpError.ts"
import * as AcpTransport from "./acp/AcpTransport.ts"
import type * as AgentProfile from "./AgentProfile.ts"

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
 * Starts agents. Closing the scope of a launch ends the agent, and resolves when it is gone.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class AgentLauncher extends Context.Service<
  AgentLauncher,
  {
    readonly launch: (launch: Launch) => Effect.Effect<AcpTransport.AcpTransport, AcpError.SpawnError, Scope.Scope>
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

/**
 * Starts agents as child processes, each in a process group of its own.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerChildProcess: Layer.Layer<AgentLauncher, never, ChildProcessSpawner> = Layer.effect(
  AgentLauncher,
  Effect.map(ChildProcessSpawner, (spawner) =>
    AgentLauncher.of({
      launch: ({ cwd, env, killGrace, profile, redact, stderrTailBytes }) => {
        const [command, ...args] = profile.command
        return AcpTransport.makeChildProcess({ command, args, cwd, env, killGrace, redact, stderrTailBytes }).pipe(
          Effect.provideService(ChildProcessSpawner, spawner)
        )
      }
    })
  )
)

/**
 * Starts agents through a function: for tests, and for agents that run somewhere else.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer = (
  launch: (launch: Launch) => Effect.Effect<AcpTransport.AcpTransport, AcpError.SpawnError, Scope.Scope>
): Layer.Layer<AgentLauncher> => Layer.succeed(AgentLauncher, AgentLauncher.of({ launch }))
