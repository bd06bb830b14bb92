// How long it takes to begin.
import { execFile, spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"
import { measure } from "../child.ts"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare } from "../figure.ts"
import { median } from "../stats.ts"

const path = (file: string): string => fileURLToPath(new URL(`../../${file}`, import.meta.url))
const bin = path("dist/bin.mjs")

/** Measured as it is packed, and as the sources are now. */
const build = Effect.sync(() => {
  const { status, stderr, stdout } = spawnSync(process.execPath, [path("scripts/build.ts")], { encoding: "utf8" })
  if (status !== 0) throw new Error(`The build failed: ${stdout}${stderr}`)
})

/** Milliseconds from the start of a Node to its end. */
const node = (...args: ReadonlyArray<string>): Effect.Effect<number> =>
  Effect.promise(
    () =>
      new Promise((resolve, reject) => {
        const start = performance.now()
        execFile(process.execPath, args, (error) =>
          error === null ? resolve(performance.now() - start) : reject(error)
        )
      })
  )

const session = (kind: "bare" | "sidecar") =>
  Effect.map(measure<ReadonlyArray<number>>("start.ts", kind, 8), ([first = Number.NaN, ...later]) => ({
    first,
    later: median(later)
  }))

export const start: Bench = {
  about: "the packed command beside an empty Node, and a session from nothing beside an agent by hand",
  detail:
    "The command runs from its start to its end. From nothing: a sidecar, a Vm and a session; by hand: spawn, initialize and session/new over a " +
    "bare pipe. `first` is the first in its process, `later` the next ones; loading modules is not counted.",
  run: Effect.fnUntraced(function* (rounds) {
    yield* build
    const commands = yield* Contenders.alternate(rounds(20), {
      nothing: node("-e", "0"),
      version: node(bin, "--version"),
      help: node(bin, "run", "--help")
    })
    const sessions = yield* Contenders.alternate(rounds(10), { bare: session("bare"), ours: session("sidecar") })
    const of = (name: "bare" | "ours", which: "first" | "later") => sessions[name].map((found) => found[which])
    return [
      compare("start.version.node", "ms", commands.version, commands.nothing, atMost(150, "value")),
      compare("start.help.node", "ms", commands.help, commands.nothing, atMost(150, "value")),
      compare("start.first.pipe", "ms", of("ours", "first"), of("bare", "first"), atMost(20, "difference")),
      compare("start.later.pipe", "ms", of("ours", "later"), of("bare", "later"), atMost(20, "difference"))
    ]
  })
}
