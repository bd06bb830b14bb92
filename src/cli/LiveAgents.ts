// The agent processes of this command, so that a second Ctrl-C can kill them without asking anybody.
import * as Context from "effect/Context"

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
