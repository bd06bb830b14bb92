/**
 * One at a time, between processes that share a folder.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Option from "effect/Option"
import type * as PlatformError from "effect/PlatformError"
import * as Random from "effect/Random"
import * as ProcessTable from "../ProcessTable.ts"
import { uuid } from "./uuid.ts"

interface Claim {
  readonly file: string
  readonly pid: number
  readonly startTime: string
  readonly id: string
}

/** The claim that a file's name tells, so that there is none of which only a part is written. */
const parse = (file: string, prefix: string): Claim | undefined => {
  if (!file.startsWith(prefix)) return undefined
  const [, pid, startTime, id] = /^(\d+)_([^_]*)_([0-9a-f-]{36})$/.exec(file.slice(prefix.length)) ?? []
  if (pid === undefined || startTime === undefined || id === undefined) return undefined
  try {
    return { file, pid: Number(pid), startTime: decodeURIComponent(startTime), id }
  } catch {
    return undefined
  }
}

/**
 * Runs work while no other caller with this folder and name does, in whatever process: a file stands for each that wants
 * to, and whoever sees no other one's file after its own is there may go on. Of two that see each other the one with the
 * smaller id waits, the other takes its file away for a moment. The file of a dead process counts for nothing, so nobody
 * has to be trusted to take it away. Waiting can be interrupted and has no bound of its own.
 */
export const exclusively = Effect.fnUntraced(function* <A, E, R>(
  folder: string,
  name: string,
  work: Effect.Effect<A, E, R>
): Effect.fn.Return<
  A,
  E | PlatformError.PlatformError | ProcessTable.ProcessTableError,
  R | FileSystem.FileSystem | ProcessTable.ProcessTable
> {
  const fs = yield* FileSystem.FileSystem
  const table = yield* ProcessTable.ProcessTable
  const { pid, startTime } = table.self
  const prefix = `.${name}.claim_`
  const id = yield* uuid
  // An underscore parts the fields, and is the one character of them that is not escaped otherwise.
  const escaped = encodeURIComponent(startTime).replaceAll("_", "%5F")
  const file = `${folder}/${prefix}${pid}_${escaped}_${id}`
  const withdraw = fs.remove(file, { force: true })
  const pause = Effect.flatMap(Random.nextIntBetween(5, 25), (millis) => Effect.sleep(millis))

  const others = Effect.gen(function* () {
    const live: Array<Claim> = []
    for (const entry of yield* fs.readDirectory(folder)) {
      const claim = parse(entry, prefix)
      if (claim === undefined || claim.id === id) continue
      if ((yield* table.startTime(claim.pid)) === claim.startTime) live.push(claim)
      // Nobody ever has this name again, so it can't be another's.
      else yield* fs.remove(`${folder}/${entry}`, { force: true })
    }
    return live
  })

  const attempt = Effect.gen(function* () {
    for (;;) {
      const live = yield* others
      if (live.length === 0) return Option.some(yield* work)
      if (live.some((other) => other.id < id)) return Option.none<A>()
      yield* pause
    }
  })

  for (;;) {
    const done = yield* Effect.acquireUseRelease(
      fs.writeFileString(file, "", { flag: "wx", mode: 0o600 }),
      () => attempt,
      () => Effect.ignore(withdraw, { log: "Debug" })
    )
    if (Option.isSome(done)) return done.value
    yield* pause
  }
})
