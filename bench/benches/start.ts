// How long it takes to begin.
import { execFile } from "node:child_process"
import * as Effect from "effect/Effect"
import { measure } from "../child.ts"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare } from "../figure.ts"
import * as Packed from "../packed.ts"
import { median } from "../stats.ts"

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
    const bin = yield* Packed.file("bin.mjs")
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
