/**
 * The clocks of a turn. Each of these ends by itself when the turn does.
 *
 * @internal
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Turn from "../Turn.ts"

/** Ends the turn when it was not admitted in time. */
export const admission = (turn: Turn.TurnState, timeout: Duration.Duration): Effect.Effect<void> | undefined =>
  Duration.isFinite(timeout)
    ? unlessOver(
        Deferred.await(turn.dispatched),
        Effect.andThen(
          Effect.sleep(timeout),
          Effect.sync(() => Turn.expire(turn))
        )
      )
    : undefined

/** Ends the turn when it has run for too long. */
export const wall = (turn: Turn.TurnState): Effect.Effect<void> | undefined => {
  if (!Duration.isFinite(turn.wallTimeout)) return undefined
  const afterMillis = Duration.toMillis(turn.wallTimeout)
  return unlessOver(
    Deferred.await(turn.ended),
    Effect.andThen(
      Effect.sleep(turn.wallTimeout),
      Effect.sync(() => Turn.breach(turn, { _tag: "Wall", afterMillis }))
    )
  )
}

/** Ends the turn when nothing has come for too long; `idleFor` says for how long, in milliseconds. */
export const idle = (turn: Turn.TurnState, idleFor: () => number): Effect.Effect<void> | undefined => {
  if (!Duration.isFinite(turn.idleTimeout)) return undefined
  const limit = Duration.toMillis(turn.idleTimeout)
  const watch = Effect.flatMap(Clock.currentTimeMillis, (startedAt) => {
    const look: Effect.Effect<void> = Effect.flatMap(Clock.currentTimeMillis, (now) => {
      const afterMillis = Math.min(idleFor(), now - startedAt)
      if (afterMillis >= limit) return Effect.sync(() => Turn.breach(turn, { _tag: "Idle", afterMillis }))
      return Effect.andThen(Effect.sleep(Duration.millis(limit - afterMillis)), look)
    })
    return look
  })
  return unlessOver(Deferred.await(turn.ended), watch)
}

const unlessOver = (over: Effect.Effect<unknown>, clock: Effect.Effect<void>): Effect.Effect<void> =>
  Effect.raceFirst(Effect.asVoid(over), clock)
