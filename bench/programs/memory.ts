// Prints what each of COUNT things costs in KiB, on the heap after a collection and of the process's memory.
// usage: node --expose-gc bench/programs/memory.ts agents|pipes|memory|process|turn COUNT
//   agents   agents in memory, and nothing else
//   pipes    quiet processes with their pipes, and nothing else
//   memory   idle sessions whose agents are in memory
//   turn     the same, after one turn each
//   process  idle sessions whose agents are quiet processes
import { spawn } from "node:child_process"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Effect from "effect/Effect"
import type { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { encodeRequest } from "../../src/acp/AcpCodec.ts"
import * as Agents from "../agents.ts"

const [kind = "", count = "100"] = process.argv.slice(2)
const kept: Array<unknown> = []

const agent = Effect.gen(function* () {
  const transport = yield* Agents.make
  transport.send(encodeRequest(1, "initialize", {}))
  transport.send(encodeRequest(2, "session/new", {}))
  yield* Effect.forkScoped(Stream.runDrain(transport.incoming), { startImmediately: true })
  return transport
})

const pipe = Effect.acquireRelease(
  Effect.promise(async () => {
    const [command, ...args] = Agents.quietCommand
    const child = spawn(command, args, { stdio: "pipe", detached: true })
    let lines = 0
    child.stdin.write("initialize\nsession/new\n")
    child.stderr.resume()
    await new Promise<void>((resolve) =>
      child.stdout.on("data", (data: Buffer) => {
        lines += data.toString().split("\n").length - 1
        if (lines === 2) resolve()
      })
    )
    return child
  }),
  (child) => Effect.sync(() => child.kill())
)

/** What makes one more of them. */
const maker: Effect.Effect<
  Effect.Effect<unknown, never, Scope.Scope>,
  never,
  ChildProcessSpawner | Scope.Scope
> = Effect.gen(function* () {
  if (kind === "agents") return agent
  if (kind === "pipes") return pipe
  const { openSession } = yield* Agents.sidecar(kind === "process" ? "process" : "memory")
  return kind === "turn" ? Effect.tap(openSession, (session) => Effect.orDie(session.prompt("hello"))) : openSession
})

const settle = Effect.promise(async () => {
  for (let i = 0; i < 5; i++) {
    await new Promise((resolve) => setTimeout(resolve, 20))
    globalThis.gc!()
  }
})

const used = Effect.map(settle, () => {
  const { external, heapUsed, rss } = process.memoryUsage()
  return { heap: heapUsed + external, rss }
})

const program = Effect.gen(function* () {
  const one = yield* maker
  const add = Effect.map(one, (made) => kept.push(made))
  for (let i = 0; i < 20; i++) yield* add
  const before = yield* used
  for (let i = 0; i < Number(count); i++) yield* add
  const after = yield* used
  const each = (what: "heap" | "rss") => (after[what] - before[what]) / Number(count) / 1024
  process.stdout.write(JSON.stringify({ heap: each("heap"), rss: each("rss") }))
}).pipe(Effect.scoped, Effect.provide(NodeServices.layer))

NodeRuntime.runMain(program)
