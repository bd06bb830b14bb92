// The work of acp-sidecar ps.
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Connecting from "./connecting.ts"
import { CommandFailure, exitCode } from "./failure.ts"
import * as Output from "./output.ts"
import type * as Places from "./places.ts"
import * as PsTable from "./psTable.ts"

const look = Effect.fnUntraced(function* (place: Places.Place) {
  const { answered, connection } = yield* Connecting.reach(place)
  return { _tag: "Info", version: connection.version, info: yield* answered(connection.sidecar.describe) } as const
}, Effect.scoped)

const see = (place: Places.Place): Effect.Effect<PsTable.Seen> =>
  Effect.map(Effect.result(look(place)), (result) => ({
    socket: place.socket,
    url: place.url,
    found: Result.isSuccess(result)
      ? result.success
      : ({ _tag: "Unreachable", problem: result.failure.message } as const)
  }))

export const main = Effect.fnUntraced(function* (places: Places.Places, isJson: boolean) {
  const all = yield* Effect.forEach(places.all, see, { concurrency: "unbounded" })
  const text = isJson ? all.map((seen) => JSON.stringify(PsTable.json(seen))) : PsTable.lines(all)
  yield* Effect.forEach(text, (line) => Output.line("out", line), { discard: true })
  const isAlive = all.some(({ found }) => found._tag === "Info")
  if (isAlive) return
  if (places.folder !== undefined) return yield* Output.note(Connecting.nothing(places).message)
  return yield* new CommandFailure({ code: exitCode.failed, message: isJson ? "" : "The sidecar does not answer." })
})
