/**
 * What one agent process knows of the sessions that it opens: which it has, which are on their way, and which were left
 * by whoever asked for them.
 *
 * @internal
 */
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberSet from "effect/FiberSet"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type * as AcpConnection from "../acp/AcpConnection.ts"
import type * as AcpError from "../acp/AcpError.ts"
import * as AcpProtocol from "../acp/AcpProtocol.ts"
import * as SessionRouter from "../SessionRouter.ts"

/** Sessions that are ended behind their openers at once; of more the oldest is forgotten. */
const maxLeft = 64

/** How long an answer may take that nobody waits for any more. */
const leftFor = Duration.minutes(10)

/** Somebody opens this id, or ends it. */
export interface Claim {
  readonly isOver: Deferred.Deferred<void>
  /** Whoever opened it went away: it is ended, and then free. */
  isLeft: boolean
}

export interface Openings {
  /** By agent session id, with the route of each: what the agent holds for somebody here. */
  readonly open: Map<string, SessionRouter.Route>
  readonly claims: Map<string, Claim>
  /** What is ended behind its opener, the oldest first; each is told here that it is forgotten. */
  readonly left: Set<Deferred.Deferred<void>>
  /** One sign-in at a time. `signedIn` counts them: a session that was refused before the last one just asks again. */
  readonly signIn: Semaphore.Semaphore
  signedIn: number
  /** Ends a session at the agent, where the agent offers that. */
  readonly requestClose: (id: string) => Effect.Effect<unknown, AcpError.RequestFailure>
  /** The same within a bounded time, however that goes. */
  readonly closeAt: (id: string) => Effect.Effect<void>
  /** Runs something in the scope of the process, bounded in number and time. It may be interrupted, or never begin. */
  readonly behind: (effect: Effect.Effect<void>) => Effect.Effect<void>
}

export const make = Effect.fnUntraced(function* (options: {
  readonly connection: AcpConnection.AcpConnection
  readonly canClose: boolean
  readonly closeTimeout: Duration.Duration
}): Effect.fn.Return<Openings, never, Scope.Scope> {
  const { connection } = options
  const fibers = yield* FiberSet.make<void>()
  const left = new Set<Deferred.Deferred<void>>()
  const requestClose: Openings["requestClose"] = (sessionId) =>
    Effect.suspend(() =>
      connection.isOpen() && options.canClose
        ? connection.request(AcpProtocol.method.sessionClose, { sessionId })
        : Effect.void
    )
  return {
    open: new Map(),
    claims: new Map(),
    left,
    signIn: Semaphore.makeUnsafe(1),
    signedIn: 0,
    requestClose,
    closeAt: (id) =>
      requestClose(id).pipe(Effect.interruptible, Effect.timeoutOption(options.closeTimeout), Effect.ignore),
    behind: (effect) =>
      Effect.suspend(() => {
        const forgotten = Deferred.makeUnsafe<void>()
        for (const oldest of left) {
          if (left.size < maxLeft) break
          left.delete(oldest)
          Deferred.doneUnsafe(oldest, Exit.void)
        }
        left.add(forgotten)
        const bounded = Effect.raceFirst(effect, Deferred.await(forgotten)).pipe(
          Effect.interruptible,
          Effect.timeoutOption(leftFor),
          Effect.ensuring(Effect.sync(() => left.delete(forgotten)))
        )
        return Effect.asVoid(FiberSet.run(fibers, Effect.asVoid(bounded), { startImmediately: true }))
      })
  }
})

/** Takes an id that nobody claims. */
export const claim = (self: Openings, id: string): Claim => {
  const made: Claim = { isOver: Deferred.makeUnsafe(), isLeft: false }
  self.claims.set(id, made)
  return made
}

/** Gives up a claim; nothing happens when it is another one's by now. */
export const release = (self: Openings, id: string, own: Claim): void => {
  if (self.claims.get(id) === own) self.claims.delete(id)
  Deferred.doneUnsafe(own.isOver, Exit.void)
}

const nobody: SessionRouter.Route = {
  onUpdate: () => {},
  onTooLarge: () => {},
  onPermission: () => Effect.void,
  flush: () => {}
}

/** Leaves a tombstone for an id that nobody has got, and drops what came for it. */
export const bury = (router: SessionRouter.SessionRouter, id: string, now: number): void => {
  if (SessionRouter.register(router, id, nobody, now)) SessionRouter.unregister(router, id, nobody, now)
}
