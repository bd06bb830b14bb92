// Prints what a process that does nothing costs: CPU in ms, and how often it wakes up, per second and window.
// usage: node bench/programs/idle.ts bare|memory|process SESSIONS WINDOWS SECONDS
import type * as Effect from "effect/Effect"

const [kind = "bare", sessions = "100", windows = "3", seconds = "2"] = process.argv.slice(2)

const wait = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

const watch = async (): Promise<void> => {
  // What the start left behind, such as compiling, is to be over.
  await wait(Math.max(0, 6000 - performance.now()))
  const found: Array<{ readonly cpu: number; readonly wakes: number }> = []
  for (let i = 0; i < Number(windows); i++) {
    const before = process.resourceUsage()
    const start = performance.now()
    await wait(Number(seconds) * 1000)
    const after = process.resourceUsage()
    const passed = (performance.now() - start) / 1000
    const micros = after.userCPUTime + after.systemCPUTime - before.userCPUTime - before.systemCPUTime
    found.push({
      cpu: micros / 1000 / passed,
      wakes: (after.voluntaryContextSwitches - before.voluntaryContextSwitches) / passed
    })
  }
  process.stdout.write(JSON.stringify(found))
}

/** The modules are loaded here, so that the bare process has none of them. */
const host = async (): Promise<void> => {
  const Agents = await import("../agents.ts")
  const { promise, provide, scoped, gen } = await import("effect/Effect")
  const { runMain } = await import("@effect/platform-node/NodeRuntime")
  const { layer } = await import("@effect/platform-node/NodeServices")
  const program: Effect.Effect<void> = gen(function* () {
    const { openSessions } = yield* Agents.sidecar(kind as "memory" | "process")
    yield* openSessions(Number(sessions))
    yield* promise(watch)
  }).pipe(scoped, provide(layer))
  runMain(program)
}

await (kind === "bare" ? watch() : host())
