// A command's connection to a running sidecar, as an operator. Nothing here waits for a sidecar that does not answer.
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as NodeConnector from "../NodeConnector.ts"
import * as SidecarClient from "../SidecarClient.ts"
import type * as SidecarLimits from "../SidecarLimits.ts"
import { CommandFailure, exitCode, failed, fromError, oneLine } from "./failure.ts"
import * as Places from "./places.ts"

export interface Reached {
  readonly place: Places.Place
  readonly connection: SidecarClient.Connection
  /**
   * The answer to a call. It fails when the connection is lost, and when there is none within `time`, 5 seconds by default.
   */
  readonly answered: <A, E extends { readonly _tag: string; readonly message: string }>(
    call: Effect.Effect<A, E>,
    time?: Duration.Duration
  ) => Effect.Effect<A, CommandFailure>
}

/** What a sidecar may take to answer what needs no work. */
const answerTime = Duration.seconds(5)
/** The longest that a command waits for something to end. */
const maxEndTime = Duration.minutes(2)

/** What a turn, a session or all of a sidecar may take to end, by its own limits. */
export const endTime = (limits: SidecarLimits.SidecarLimits): Duration.Duration =>
  Duration.min(
    [limits.cancelGrace, limits.closeTimeout, limits.hostExitTimeout, limits.killGrace].reduce(
      Duration.sum,
      answerTime
    ),
    maxEndTime
  )

/** Why a sidecar could not be reached, with its place. */
const unreached = (place: Places.Place, error: SidecarClient.ConnectError): string => {
  const where = Places.nameOf(place)
  const detail = oneLine(error.detail).replace(/[.\s]+$/, "")
  return error._tag === "SidecarUnreachable"
    ? `The sidecar at ${where} can't be reached: ${detail}; check that it runs and where it listens.`
    : `The sidecar at ${where} refused the connection: ${detail}.`
}

const open = ({ socket, url }: Places.Place) =>
  url === null ? NodeConnector.socket(socket ?? "", answerTime) : NodeConnector.webSocket(url, answerTime)

/** Whether somebody listens there, a sidecar or not. */
export const isListening = (place: Places.Place): Effect.Effect<boolean> =>
  Effect.flatMap(open(place), (wire) => wire.reader).pipe(Effect.scoped, Effect.isSuccess)

/** Until the scope closes. */
export const reach = Effect.fnUntraced(function* (
  place: Places.Place
): Effect.fn.Return<Reached, CommandFailure, Scope.Scope> {
  // Closed after the connection has ended, which ends all calls.
  const calls = yield* Scope.fork(yield* Effect.scope)
  const connection = yield* Effect.flatMap(open(place), (wire) =>
    SidecarClient.connect(wire, {
      client: "acp-sidecar command",
      role: "operator",
      token: place.token,
      handshakeTimeout: answerTime
    })
  ).pipe(Effect.mapError((error) => failed(unreached(place, error))))
  const lost = Effect.flatMap(connection.lost, (error) => Effect.fail(fromError(error)))
  return {
    place,
    connection,
    answered: (call, time = answerTime) =>
      Effect.gen(function* () {
        const asking = yield* Effect.forkIn(Effect.mapError(call, fromError), calls, { startImmediately: true })
        const answer = yield* Effect.raceFirst(lost, Fiber.join(asking)).pipe(
          Effect.timeoutOrElse({
            duration: time,
            orElse: () =>
              Effect.fail(
                new CommandFailure({
                  code: exitCode.timedOut,
                  message: `The sidecar at ${Places.nameOf(place)} did not answer within ${Duration.format(time)}.`
                })
              )
          })
        )
        // Some calls make nothing of a loss.
        return yield* Effect.raceFirst(lost, Effect.as(Effect.yieldNow, answer))
      })
  }
})

/** Each of them, side by side: a connection, or why there is none. */
export const reachAll = (
  places: Places.Places
): Effect.Effect<ReadonlyArray<Result.Result<Reached, CommandFailure>>, never, Scope.Scope> =>
  Effect.forEach(places.all, (place) => Effect.result(reach(place)), { concurrency: "unbounded" })

const noneRuns = ({ all, folder }: Places.Places): string => {
  const where = folder ?? ""
  const dead = all.length === 0 ? "" : `, those that were there do not answer: ${all.map(Places.nameOf).join(", ")}`
  return oneLine(`No sidecar runs (looked in ${where}${dead}); ${Places.howToStart(where)}`, 2000)
}

/** What is said when there is none. */
export const nothing = (places: Places.Places): CommandFailure => failed(noneRuns(places))

/** Those that answer. One that was chosen has to. */
export const alive = Effect.fnUntraced(function* (
  places: Places.Places
): Effect.fn.Return<ReadonlyArray<Reached>, CommandFailure, Scope.Scope> {
  if (places.folder === undefined) return [yield* reach(places.all[0]!)]
  return (yield* reachAll(places)).flatMap((one) => Option.toArray(Result.getSuccess(one)))
})

/** The one sidecar that is meant. */
export const one = Effect.fnUntraced(function* (
  places: Places.Places
): Effect.fn.Return<Reached, CommandFailure, Scope.Scope> {
  const [first, ...others] = yield* alive(places)
  if (first === undefined) return yield* nothing(places)
  if (others.length === 0) return first
  const names = [first, ...others].map(({ connection, place }) => `${Places.nameOf(place)} (${connection.sidecar.id})`)
  return yield* new CommandFailure({
    code: exitCode.badInput,
    message: oneLine(`Several sidecars run: ${names.join(", ")}; choose one with --socket PATH.`, 4000)
  })
})
