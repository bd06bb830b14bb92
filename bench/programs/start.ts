// Prints how many ms it takes from nothing to a session of an agent process.
// usage: node bench/programs/start.ts bare|sidecar TIMES
//   bare     spawn, initialize and session/new by hand
//   sidecar  a sidecar, a Vm and a session
// The first time is that of a process that has done nothing before. Loading modules is not counted.
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Effect from "effect/Effect"
import type { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import type * as Scope from "effect/Scope"
import * as Contenders from "../contenders.ts"

const [kind = "", times = "1"] = process.argv.slice(2)

const open: Effect.Effect<unknown, never, ChildProcessSpawner | Scope.Scope> =
  kind === "bare" ? Contenders.pipe : Effect.flatten(Contenders.openSession)

const program = Effect.gen(function* () {
  const found: Array<number> = []
  for (let i = 0; i < Number(times); i++) {
    const start = performance.now()
    yield* Effect.scoped(Effect.tap(open, () => Effect.sync(() => found.push(performance.now() - start))))
  }
  process.stdout.write(JSON.stringify(found))
}).pipe(Effect.provide(NodeServices.layer))

NodeRuntime.runMain(program)
