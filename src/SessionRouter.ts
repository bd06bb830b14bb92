/**
 * Brings what one agent process sends to the session that each frame belongs to. For those who build a host on
 * `acp-sidecar/acp`; an app reads `Session.updates`, and finds the counters in `Session.describe`.
 *
 * @since 0.1.0
 */

import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as AcpProtocol from "./acp/AcpProtocol.ts"
import type { Acp } from "./acp/AcpSchema.ts"
import * as EarlyBuffer from "./internal/earlyBuffer.ts"
import * as Tombstones from "./internal/tombstones.ts"

/**
 * Where the frames of one session go. The identity of the route is its epoch: a resumed session has another one.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Route {
  readonly onUpdate: (update: unknown, bytes: number, at: number) => void
  /** A notification other than `session/update` that concerns this session, see {@link notify}. */
  readonly onNotification?: ((method: string, params: unknown, bytes: number, at: number) => void) | undefined
  /** A frame of this session was over the limit of a line, so it is gone. */
  readonly onTooLarge: (frame: TooLarge) => void
  /** The agent asks this session's user. */
  readonly onPermission: (request: Acp.RequestPermissionRequest) => Effect.Effect<unknown, unknown>
  /** All frames that had come are delivered: wake the readers. */
  readonly flush: () => void
}

/**
 * A frame that was longer than a line may be, in bytes.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface TooLarge {
  readonly bytes: number
  readonly limit: number
}

/**
 * Frames that belonged to no open session, for diagnosis. `late`: the session was closed before. `quarantined`: it was put
 * out, see {@link quarantine}. `buffered`: an update for a session that was not known yet. `dropped`: one of those that
 * found no room or waited too long, or a frame that names no session that there is. `waited`: a request that had to wait
 * for its session to be opened. `sample` is the last such session id, without secrets and at most 64 characters of it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface RouterStats {
  late: number
  quarantined: number
  buffered: number
  dropped: number
  waited: number
  readonly sample: string
}

/** A request for a session to be opened that is on its way. */
interface Opening {
  /** What the session is called, if that is known before. */
  readonly id: string | undefined
  /** What comes for the id from now on is for the session that is being opened. */
  readonly keepsEarly: boolean
}

/** A request of the agent that waits for its session to be opened. */
interface Waiter {
  readonly id: string
  readonly route: Deferred.Deferred<Route | undefined>
}

/**
 * The routes of one agent process.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface SessionRouter {
  readonly limits: EarlyBuffer.Limits & Tombstones.Limits
  readonly stats: RouterStats
  /** @internal The sample, with its secrets. */
  sampled: string
  /** @internal */
  readonly routes: Map<string, Route>
  /** @internal Routes that got something since the last {@link flush}. */
  readonly dirty: Set<Route>
  /** @internal Updates for ids that are not known yet. */
  readonly early: EarlyBuffer.EarlyBuffer
  /** @internal Closed ids. */
  readonly tombstones: Tombstones.Tombstones
  /** @internal */
  readonly openings: Set<Opening>
  /** @internal In the order in which they came. */
  readonly waiters: Set<Waiter>
  /** @internal The process is gone. */
  isClosed: boolean
  /** @internal What a route threw that must not keep others from theirs. {@link flush} throws it. */
  readonly defects: Array<unknown>
}

/** A longer session id is no id, and nothing of it is kept. */
const maxIdLength = 1024
/** Requests that wait for a session to be opened. */
const maxWaiters = 64

/**
 * A router without routes.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (
  limits: SessionRouter["limits"],
  redact: (text: string) => string = (text) => text
): SessionRouter => {
  const self: SessionRouter = {
    limits,
    stats: {
      late: 0,
      quarantined: 0,
      buffered: 0,
      dropped: 0,
      waited: 0,
      // Only when somebody looks: it takes longer than all the rest.
      get sample() {
        return redact(self.sampled)
      }
    },
    sampled: "",
    routes: new Map(),
    dirty: new Set(),
    early: EarlyBuffer.make(limits, (id) => count(self, "dropped", id)),
    tombstones: new Map(),
    openings: new Set(),
    waiters: new Set(),
    isClosed: false,
    defects: []
  }
  return self
}

const count = (self: SessionRouter, what: Exclude<keyof RouterStats, "sample">, id: string): void => {
  self.stats[what]++
  // A piece of a long text keeps all of it alive, a copy doesn't.
  self.sampled = id.length > 64 ? (JSON.parse(JSON.stringify(id.slice(0, 64))) as string) : id
}

/** Counts a frame of a closed session; `false` when there is no such session. */
const isLate = (self: SessionRouter, id: string, now: number): boolean => {
  const tombstone = Tombstones.find(self.tombstones, id, self.limits, now)
  if (tombstone === undefined) return false
  count(self, tombstone.isQuarantined ? "quarantined" : "late", id)
  return true
}

/** What one route throws costs none of the others anything. */
const guarded = (self: SessionRouter, run: () => void): void => {
  try {
    run()
  } catch (error) {
    if (self.defects.length === 0) self.defects.push(error)
  }
}

/**
 * Delivers an update, in the order of the calls. For a closed id it is counted as late. For an id that is not known yet
 * it waits in a buffer, which is bounded in count per id, and in count, bytes and time for all ids; when that is full,
 * the oldest of the id that has most in it is dropped and counted.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const deliver = (self: SessionRouter, id: string, update: unknown, bytes: number, now: number): void => {
  EarlyBuffer.expire(self.early, now)
  const route = self.routes.get(id)
  if (route !== undefined) {
    self.dirty.add(route)
    return route.onUpdate(update, bytes, now)
  }
  if (isLate(self, id, now)) return
  if (self.isClosed || id.length > maxIdLength || !EarlyBuffer.fits(self.early, bytes)) {
    return count(self, "dropped", id)
  }
  EarlyBuffer.put(self.early, id, update, bytes, now)
  count(self, "buffered", id)
}

/**
 * Counts an update that does not say which session it is for.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const unroutable = (self: SessionRouter): void => count(self, "dropped", "")

/** Notifications without a session id, beside the extensions, that concern all sessions. */
const concernsAll: ReadonlySet<string> = new Set(["auth/status_update"])

/**
 * Delivers a notification other than `session/update`. With a `sessionId` in its params it goes to that session, and is
 * counted when there is none: nothing of it is kept. Without one it goes to those whom its method concerns:
 * `auth/status_update` and extensions, whose names begin with an underscore, such as `_auth/status_update`, to all open
 * sessions of the agent; all others, such as `elicitation/complete` and those that begin with `$/`, to nobody.
 * `session/update` is for {@link deliver}; here it counts as an update that can't be delivered.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const notify = (self: SessionRouter, method: string, params: unknown, bytes: number, now: number): void => {
  if (method === AcpProtocol.method.sessionUpdate) return unroutable(self)
  const id = sessionIdOf(params)
  if (id === undefined) {
    if (!method.startsWith("_") && !concernsAll.has(method)) return
    for (const route of self.routes.values()) {
      if (route.onNotification === undefined) continue
      self.dirty.add(route)
      guarded(self, () => route.onNotification?.(method, params, bytes, now))
    }
    return
  }
  const route = self.routes.get(id)
  if (route === undefined) {
    if (!isLate(self, id, now)) count(self, "dropped", id)
    return
  }
  if (route.onNotification === undefined) return
  self.dirty.add(route)
  route.onNotification(method, params, bytes, now)
}

const sessionIdOf = (params: unknown): string | undefined => {
  if (typeof params !== "object" || params === null || !Object.hasOwn(params, "sessionId")) return undefined
  const { sessionId } = params as { readonly sessionId: unknown }
  return typeof sessionId === "string" ? sessionId : undefined
}

/**
 * Why {@link register} would say no: the id has a live route, which an agent that gives two sessions one id would mix up
 * (`open`); it is that of a session that was put out (`quarantined`); or it is longer than 1,024 characters (`too_long`).
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const refusal = (
  self: SessionRouter,
  id: string,
  now: number
): "open" | "quarantined" | "too_long" | undefined => {
  if (id.length > maxIdLength) return "too_long"
  if (self.routes.has(id)) return "open"
  return Tombstones.find(self.tombstones, id, self.limits, now)?.isQuarantined === true ? "quarantined" : undefined
}

/**
 * Opens a route and delivers what came early for it, in order, before anything else can come; then those who wait for it
 * in {@link awaitRoute} go on, after the caller. `false`, and nothing happens, for the reasons of {@link refusal}. The id's
 * tombstone is lifted, and what came while there was one is never delivered. With `isExisting` the session is one that the
 * agent had before: register it when `session/load` is sent, as its history comes before the answer, or when the answer
 * to `session/resume` is decoded. Then only what came since {@link expect} was told the id is delivered.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const register = (
  self: SessionRouter,
  id: string,
  route: Route,
  now: number,
  options?: { readonly isExisting?: boolean | undefined }
): boolean => {
  if (refusal(self, id, now) !== undefined) return false
  EarlyBuffer.expire(self.early, now)
  if (options?.isExisting === true && !keepsEarly(self, id)) EarlyBuffer.drop(self.early, id)
  self.tombstones.delete(id)
  self.routes.set(id, route)
  for (const { bytes, update } of EarlyBuffer.take(self.early, id)) {
    // What it got may have closed it again.
    guarded(self, () => deliver(self, id, update, bytes, now))
  }
  wake(self, (waiter) => waiter.id === id, route)
  return true
}

const keepsEarly = (self: SessionRouter, id: string): boolean => {
  for (const opening of self.openings) if (opening.id === id && opening.keepsEarly) return true
  return false
}

/**
 * Wakes the readers of all sessions that got something since the last time. What a route threw while others were served
 * beside it is thrown at the end, so that the connection counts it.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const flush = (self: SessionRouter): void => {
  if (self.dirty.size > 0) {
    const routes = Array.from(self.dirty)
    self.dirty.clear()
    for (const route of routes) guarded(self, route.flush)
  }
  if (self.defects.length > 0) throw self.defects.pop()
}

const end = (
  self: SessionRouter,
  id: string,
  route: Route,
  options: { readonly isQuarantined: boolean; readonly now: number | undefined }
): void => {
  if (self.routes.get(id) !== route) return
  self.routes.delete(id)
  Tombstones.add(self.tombstones, id, self.limits, options)
}

/**
 * Closes a route and leaves a tombstone for a time, so that what still comes for the id is counted as late. Nothing
 * happens when the id's route is another one by now. Without `now` the time begins with the first frame for the id.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const unregister = (self: SessionRouter, id: string, route: Route, now?: number): void =>
  end(self, id, route, { isQuarantined: false, now })

/**
 * Puts a session out that harms the others: closes its route with a marked tombstone. All that still comes for it is only
 * counted, its requests are refused at once, and no session of that id can be registered for as long as the tombstone
 * lives, which is as long as frames keep coming for it and a time after that. Nothing happens when the id's route is
 * another one by now.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const quarantine = (self: SessionRouter, id: string, route: Route, now?: number): void =>
  end(self, id, route, { isQuarantined: true, now })

/**
 * Tells the session of a frame that was too large. Without an id it is told only when there is just one session it can belong to.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const tooLarge = (self: SessionRouter, id: string | undefined, frame: TooLarge): void => {
  const route =
    id === undefined ? (self.routes.size === 1 ? self.routes.values().next().value : undefined) : self.routes.get(id)
  if (route === undefined) return
  self.dirty.add(route)
  route.onTooLarge(frame)
}

/**
 * The route of a session id, if it is open.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const find = (self: SessionRouter, id: string): Route | undefined => self.routes.get(id)

/**
 * Says that a `session/new`, `session/load` or `session/resume` is on its way, until the function that it gives back is
 * called, which may be done more than once: requests of the agent for a session that it can be are worth a wait, see
 * {@link awaitRoute}. Load and resume know their session's id: what came for that before is dropped and counted.
 *
 * @stability unstable
 * @category opening
 * @since 0.1.0
 */
export const expect = (self: SessionRouter, id?: string): (() => void) => {
  // Such an id can't be registered, so that nothing is to be waited for.
  if (id !== undefined && id.length > maxIdLength) return () => {}
  if (id !== undefined) EarlyBuffer.drop(self.early, id)
  const opening: Opening = { id, keepsEarly: id === undefined || !self.tombstones.has(id) }
  self.openings.add(opening)
  return () => {
    if (self.openings.delete(opening)) wake(self, (waiter) => !isExpected(self, waiter.id), undefined)
  }
}

const isExpected = (self: SessionRouter, id: string): boolean => {
  for (const opening of self.openings) if (opening.id === undefined || opening.id === id) return true
  return false
}

const wake = (self: SessionRouter, which: (waiter: Waiter) => boolean, route: Route | undefined): void => {
  for (const waiter of Array.from(self.waiters)) {
    if (which(waiter)) Deferred.doneUnsafe(waiter.route, Exit.succeed(route))
  }
}

/**
 * The route for a request of the agent. When it is not open, but may become so, since {@link expect} says that such a
 * session is being opened, this waits until it is registered, until no such opening is on its way any more, or until the
 * time is over (infinity means for as long as that takes). `undefined` at once for a closed id, for any other id that
 * nobody opens, and when 64 wait already. Requests for one session go on in the order in which they came. Interruption
 * leaves nothing behind.
 *
 * @stability unstable
 * @category opening
 * @since 0.1.0
 */
export const awaitRoute = (
  self: SessionRouter,
  id: string,
  timeout: Duration.Duration
): Effect.Effect<Route | undefined> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.flatMap(Clock.currentTimeMillis, (now) => {
      const route = self.routes.get(id)
      const isBehind = isWaiting(self, id)
      if (route !== undefined && !isBehind) return Effect.succeed(route)
      if (route === undefined && !mayCome(self, id, now)) return Effect.undefined
      if (self.waiters.size >= maxWaiters || !Duration.isPositive(timeout)) return Effect.succeed(route)
      const waiter: Waiter = { id, route: Deferred.makeUnsafe() }
      if (route !== undefined) Deferred.doneUnsafe(waiter.route, Exit.succeed(route))
      else count(self, "waited", id)
      self.waiters.add(waiter)
      const opened = Deferred.await(waiter.route)
      const inTime = Duration.isFinite(timeout)
        ? Effect.timeoutOrElse(opened, { duration: timeout, orElse: () => Effect.undefined })
        : opened
      return inTime.pipe(
        // Whoever opened it is in the middle of that, and those who came before go first.
        Effect.tap(() => Effect.yieldNow),
        // It may have been closed again, and another session of that id is not the one that was asked for.
        Effect.map((opened) => (self.routes.get(id) === opened ? opened : undefined)),
        restore,
        Effect.ensuring(Effect.sync(() => void self.waiters.delete(waiter)))
      )
    })
  )

const isWaiting = (self: SessionRouter, id: string): boolean => {
  for (const waiter of self.waiters) if (waiter.id === id) return true
  return false
}

const mayCome = (self: SessionRouter, id: string, now: number): boolean =>
  !self.isClosed &&
  id.length <= maxIdLength &&
  Tombstones.find(self.tombstones, id, self.limits, now) === undefined &&
  isExpected(self, id)

/**
 * The process is gone: drops and counts all that waits in the buffer, and those who wait for a route get none. From now on
 * nothing is buffered and nobody waits. Routes stay until they are unregistered.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const close = (self: SessionRouter): void => {
  self.isClosed = true
  EarlyBuffer.clear(self.early)
  wake(self, () => true, undefined)
}
