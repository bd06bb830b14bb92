/**
 * Sessions that nobody uses: closed after a time, or when their place is needed.
 *
 * @internal
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Session from "../Session.ts"

/** Closes a session once it has not been used for so long; `undefined` when it may stay for good. */
export const watch = (
  session: Session.Session,
  timeout: Duration.Duration,
  close: Effect.Effect<void>
): Effect.Effect<void> | undefined => {
  if (!Duration.isFinite(timeout)) return undefined
  const limit = Duration.toMillis(timeout)
  const look: Effect.Effect<void> = Effect.flatMap(session.describe, ({ idleMillis, state }) => {
    if (state === "ended") return Effect.void
    // A session in use is looked at again when it could have been idle for long enough.
    return idleMillis >= limit ? close : Effect.andThen(Effect.sleep(Duration.millis(limit - idleMillis)), look)
  })
  return look
}

/** The session that has not been used for the longest time, and for at least so long. */
export const oldest = (
  sessions: Iterable<Session.Session>,
  atLeast: Duration.Duration
): Effect.Effect<Session.Session | undefined> =>
  Duration.isFinite(atLeast)
    ? Effect.map(
        Effect.forEach(sessions, (session) => Effect.map(session.describe, (info) => ({ info, session }))),
        (all) => {
          const unused = all.filter(
            ({ info }) =>
              info.state === "open" &&
              info.turns.length + info.pendingPermissions === 0 &&
              info.idleMillis >= Duration.toMillis(atLeast)
          )
          unused.sort((a, b) => b.info.idleMillis - a.info.idleMillis)
          return unused[0]?.session
        }
      )
    : Effect.undefined
