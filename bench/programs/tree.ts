// Prints what a sidecar and all of its agents hold with so many sessions, in KiB: the heap of the sidecar after a
// collection, its memory, that of the agents (what processes share counted once), and how many processes those are.
// usage: node --expose-gc bench/programs/tree.ts shared|own idle|turn BASE_URL AGENT_FILE COUNT...
//   shared  sessions of the bundled agent on one process
//   own     each on a process of its own
//   turn    after one turn each
import { execFile } from "node:child_process"
import { readFile } from "node:fs/promises"
import { promisify } from "node:util"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Effect from "effect/Effect"
import * as Agents from "../agents.ts"
import * as Bundled from "../bundled.ts"

const [kind = "", after = "", baseUrl = "", file = "", ...counts] = process.argv.slice(2)

/** What is shared with other processes counts in part; where there is no `/proc` it counts in whole. */
const sizeOf = async (pid: number): Promise<number> => {
  const text = await readFile(`/proc/${pid}/smaps_rollup`, "utf8").catch(() => "")
  const found = /^Pss:\s+(\d+) kB/m.exec(text)
  if (found !== null) return Number(found[1])
  const { stdout } = await promisify(execFile)("ps", ["-o", "rss=", "-p", `${pid}`])
  return Number(stdout)
}

const settle = Effect.promise(async () => {
  for (let i = 0; i < 5; i++) {
    await new Promise((resolve) => setTimeout(resolve, 50))
    globalThis.gc!()
  }
})

const program = Effect.gen(function* () {
  const profile = Bundled.profileOf({ command: [process.execPath, file], env: { OPENAI_BASE_URL: baseUrl } })
  const { openSession, sidecar } = yield* Agents.sidecar(kind === "own" ? { ...profile, share: false } : profile)
  const found: Array<object> = []
  let sessions = 0
  for (const count of counts.map(Number)) {
    for (; sessions < count; sessions++) {
      const session = yield* openSession
      if (after === "turn") yield* Effect.orDie(session.prompt("[[say:a few words of an answer]]"))
    }
    yield* settle
    const { external, heapUsed } = process.memoryUsage()
    const { hosts } = yield* sidecar.describe
    const sizes = yield* Effect.promise(() => Promise.all(hosts.map(({ pid }) => sizeOf(pid!))))
    found.push({
      sessions,
      processes: hosts.length,
      heap: (heapUsed + external) / 1024,
      host: yield* Effect.promise(() => sizeOf(process.pid)),
      agents: sizes.reduce((sum, size) => sum + size, 0)
    })
  }
  process.stdout.write(JSON.stringify(found))
}).pipe(Effect.scoped, Effect.provide(NodeServices.layer))

NodeRuntime.runMain(program)
