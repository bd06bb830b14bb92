// The work of acp-sidecar cancel, close and stop.
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import * as Address from "../Address.ts"
import * as SidecarError from "../SidecarError.ts"
import * as TurnOutcome from "../TurnOutcome.ts"
import * as Connecting from "./connecting.ts"
import { CommandFailure, type ExitCode, exitCode, fromError, oneLine } from "./failure.ts"
import * as Output from "./output.ts"
import * as Places from "./places.ts"
import * as PsTable from "./psTable.ts"

const encodeOutcome = Schema.encodeUnknownSync(Schema.toCodecJson(TurnOutcome.TurnOutcome))

const how = (outcome: TurnOutcome.TurnOutcome): string => {
  switch (outcome._tag) {
    case "Completed":
      return `it had completed (${oneLine(outcome.stopReason, 80)})`
    case "Cancelled":
      return outcome.escalation === "retired" ? "it was cancelled, and its agent stopped" : "it was cancelled"
    case "Failed":
      return `it failed: ${oneLine(outcome.error.message)}`
  }
}

export const cancelTurn = Effect.fnUntraced(function* (
  places: Places.Places,
  turn: string,
  session: string | undefined,
  isJson: boolean
) {
  const { answered, connection } = yield* Connecting.one(places)
  const { sidecar } = connection
  const turnId = Address.TurnId.make(turn)
  const { vms } = yield* answered(sidecar.describe)
  const owner = vms
    .flatMap((vm) => vm.sessions)
    .find(
      (one) => one.turns.some((running) => running.turnId === turnId) && (session ?? one.sessionId) === one.sessionId
    )
  const address: Address.Address = {
    ...sidecar.address,
    ...(session === undefined ? {} : { sessionId: Address.SessionId.make(session) }),
    turnId
  }
  const notFound = fromError(new SidecarError.NotFound({ address }))
  if (owner === undefined) return yield* notFound
  const found = yield* answered(connection.session(owner.sessionId))
  const result = yield* answered(found.cancel(turnId), Connecting.endTime(sidecar.limits))
  // It has ended in between.
  if (result._tag === "NoActiveTurn") return yield* notFound
  const { outcome } = result
  const { sessionId } = owner
  yield* isJson
    ? Output.write(
        "out",
        Output.jsonLine(outcome, (end) => ({ sidecarId: sidecar.id, sessionId, turnId, outcome: encodeOutcome(end) }))
      )
    : Output.line("out", `${turnId} of ${sessionId}: ${how(outcome)}`)
}, Effect.scoped)

export const closeSession = Effect.fnUntraced(function* (places: Places.Places, session: string, isJson: boolean) {
  const { answered, connection } = yield* Connecting.one(places)
  const { sidecar } = connection
  const found = yield* answered(connection.session(Address.SessionId.make(session)))
  const { state, turns } = yield* answered(found.describe)
  // Its history is kept for a while.
  if (state === "ended") return yield* fromError(new SidecarError.NotFound({ address: found.address }))
  yield* answered(found.close, Connecting.endTime(sidecar.limits))
  const cancelled = turns.map(({ turnId }) => turnId)
  const ended = cancelled.length === 0 ? "" : `, ${cancelled.join(", ")} cancelled`
  yield* isJson
    ? Output.json({ sidecarId: sidecar.id, sessionId: found.id, turns: cancelled })
    : Output.line("out", `${found.id}: closed${ended}`)
}, Effect.scoped)

interface Stopped {
  readonly line: string
  readonly code: ExitCode
  readonly json: Readonly<Record<string, unknown>>
}

const stop = Effect.fnUntraced(function* ({ answered, connection, place }: Connecting.Reached) {
  const { sidecar } = connection
  const began = yield* Clock.currentTimeMillis
  const info = yield* Effect.result(answered(sidecar.describe))
  const time = Connecting.endTime(sidecar.limits)
  const ended = Result.isSuccess(info) ? PsTable.count(info.success) : undefined
  const disposing = answered(sidecar.dispose, time).pipe(
    Effect.andThen(
      Connecting.isListening(place).pipe(
        Effect.repeat({ schedule: Schedule.spaced("20 millis"), while: (isListening) => isListening }),
        Effect.timeoutOption(time)
      )
    ),
    Effect.flatMap(
      Option.match({
        onNone: () =>
          new CommandFailure({
            code: exitCode.timedOut,
            message: `It still listens ${Duration.format(time)} after it was disposed; end its process.`
          }),
        onSome: () => Effect.void
      })
    )
  )
  const result = yield* Effect.result(disposing)
  const millis = (yield* Clock.currentTimeMillis) - began
  const problem = Result.isFailure(result) ? result.failure : undefined
  const what = ended === undefined ? "" : ` (${PsTable.counted(ended)})`
  return {
    code: problem?.code ?? exitCode.done,
    line: `${oneLine(sidecar.id, 100)}: ${problem?.message ?? `stopped${what} in ${Math.round(millis)} ms`}`,
    json: {
      socket: place.socket,
      url: place.url,
      sidecarId: sidecar.id,
      ended: ended ?? null,
      millis: Math.round(millis),
      problem: problem?.message ?? null
    }
  } satisfies Stopped
})

/** All that answer at once, or the one that there is. */
export const stopSidecars = Effect.fnUntraced(function* (places: Places.Places, isAll: boolean, isJson: boolean) {
  const reached = isAll ? yield* Connecting.alive(places) : [yield* Connecting.one(places)]
  if (reached.length === 0) return yield* Output.note("No sidecar runs.")
  const results = yield* Effect.forEach(reached, stop, { concurrency: "unbounded" })
  yield* Effect.forEach(results, ({ json, line }) => (isJson ? Output.json(json) : Output.line("out", line)), {
    discard: true
  })
  const worst = results.find(({ code }) => code !== exitCode.done)
  if (worst !== undefined) return yield* new CommandFailure({ code: worst.code, message: isJson ? worst.line : "" })
}, Effect.scoped)
