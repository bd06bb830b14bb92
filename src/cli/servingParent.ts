// Whether the process that wanted a sidecar is still there.
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as NodeProcessTable from "../NodeProcessTable.ts"
import * as ProcessTable from "../ProcessTable.ts"
import { badInput, type CommandFailure } from "./failure.ts"

const lookEvery = "500 millis"

const isThere = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM"
  }
}

/** On Linux its number alone is not trusted, which may be another's by now. Elsewhere the question costs too much. */
const look = Effect.fnUntraced(function* (pid: number): Effect.fn.Return<Effect.Effect<boolean>, CommandFailure> {
  const missing = badInput(`--parent ${pid}: there is no such process.`)
  const ask = Effect.sync(() => isThere(pid))
  if (!(yield* ask)) return yield* missing
  if (process.platform !== "linux") return ask
  const table = Option.getOrUndefined(
    yield* Effect.option(ProcessTable.ProcessTable.pipe(Effect.provide(NodeProcessTable.layer)))
  )
  if (table === undefined) return ask
  const startTime = Effect.orElseSucceed(table.startTime(pid), () => undefined)
  const since = yield* startTime
  if (since === null) return yield* missing
  // What can't be told for now counts as there.
  return since === undefined ? ask : Effect.map(startTime, (now) => now === undefined || now === since)
})

/** The client of stdin and stdout. Nothing is read here, so an end behind unread input is not seen. */
const streamsEnded: Effect.Effect<void> = Effect.callback((resume) => {
  const done = () => resume(Effect.void)
  const events = [
    [process.stdin, "end"],
    [process.stdin, "close"],
    [process.stdin, "error"],
    [process.stdout, "error"],
    [process.stdout, "close"]
  ] as const
  for (const [stream, event] of events) stream.once(event, done)
  return Effect.sync(() => {
    for (const [stream, event] of events) stream.off(event, done)
  })
})

/** Resolves when the parent is gone: the process that was named, and with stdio whoever started this one. */
export const gone = Effect.fnUntraced(function* (options: {
  readonly parent: number | undefined
  readonly isStdio: boolean
}): Effect.fn.Return<Effect.Effect<void>, CommandFailure> {
  const { isStdio, parent } = options
  const own = process.ppid
  const named = parent === undefined ? undefined : yield* look(parent)
  const isLive = Effect.gen(function* () {
    if ((isStdio || parent === own) && process.ppid !== own) return false
    return named === undefined || (yield* named)
  })
  const watched = Effect.asVoid(Effect.repeat(isLive, { schedule: Schedule.spaced(lookEvery), while: (live) => live }))
  if (isStdio) return Effect.raceFirst(watched, streamsEnded)
  return parent === undefined ? Effect.never : watched
})
