// The agent processes of this command, so that a second Ctrl-C can kill them without asking anybody.
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import * as AgentLauncher from "../AgentLauncher.ts"

export class LiveAgents extends Context.Service<
  LiveAgents,
  {
    readonly add: (pid: number) => void
    readonly remove: (pid: number) => void
    /** Kills each agent with its whole process group, and from now on each new one. */
    readonly kill: () => void
  }
>()("acp-sidecar/cli/LiveAgents") {}

const killGroup = (pid: number) => {
  try {
    process.kill(process.platform === "win32" ? pid : -pid, "SIGKILL")
  } catch {
    // It is gone already.
  }
}

export const make = (): LiveAgents["Service"] => {
  const pids = new Set<number>()
  let isKilling = false
  return {
    add: (pid) => {
      pids.add(pid)
      if (isKilling) killGroup(pid)
    },
    remove: (pid) => void pids.delete(pid),
    kill: () => {
      isKilling = true
      for (const pid of pids) killGroup(pid)
    }
  }
}

/** Starts agents as child processes and keeps their ids for as long as they run. */
export const layerLauncher: Layer.Layer<AgentLauncher.AgentLauncher, never, ChildProcessSpawner | LiveAgents> =
  Layer.effect(
    AgentLauncher.AgentLauncher,
    Effect.gen(function* () {
      const agents = yield* LiveAgents
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
