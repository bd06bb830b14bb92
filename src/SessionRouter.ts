/**
 * Brings the updates of one agent process to the session that each belongs to. For those who build a host on
 * `acp-sidecar/acp`; an app reads `Session.updates`, and finds the counters in `Session.describe`.
 *
 * @since 0.1.0
 */

import * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type { Acp } from "./acp/AcpSchema.ts"
import type * as SidecarLimits from "./SidecarLimits.ts"

/**
 * Where the frames of one session go. The identity of the route is its epoch: a resumed session has another one.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Route {
  readonly onUpdate: (update: unknown, bytes: number, at: number) => void
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

interface Early {
  readonly updates: Array<{ readonly update: unknown; readonly bytes: number }>
  readonly since: number
}

/**
 * Updates that belonged to no open session, for diagnosis. `late`: the session was closed before. `buffered`: the session
 * was not known yet. `dropped`: one of those that found no room or waited too long, or an update without a session id.
 * `sample` is the last such session id.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface RouterStats {
  late: number
  buffered: number
  dropped: number
  sample: string
}

/**
 * The routes of one agent process.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface SessionRouter {
  readonly limits: Pick<
    SidecarLimits.SidecarLimits,
    "earlyUpdatesPerSession" | "earlyUpdateBytes" | "earlyUpdateTimeout" | "maxTombstones"
  >
  readonly stats: RouterStats
  /** @internal Removes secrets from the sample. */
  readonly redact: (text: string) => string
  /** @internal */
  readonly routes: Map<string, Route>
  /** @internal Routes that got something since the last {@link flush}. */
  readonly dirty: Set<Route>
  /** @internal Updates for ids that are not known yet, the oldest id first. */
  readonly early: Map<string, Early>
  /** @internal */
  earlyBytes: number
  /** @internal Closed ids, the oldest first. */
  readonly tombstones: Set<string>
}

/** Session ids with early updates; an agent makes one session at a time, so more than a few are nonsense. */
const maxEarlySessions = 16

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
): SessionRouter => ({
  limits,
  redact,
  stats: { late: 0, buffered: 0, dropped: 0, sample: "" },
  routes: new Map(),
  dirty: new Set(),
  early: new Map(),
  earlyBytes: 0,
  tombstones: new Set()
})

const forget = (self: SessionRouter, id: string): void => {
  const early = self.early.get(id)
  if (early === undefined) return
  self.early.delete(id)
  for (const { bytes } of early.updates) self.earlyBytes -= bytes
}

const count = (self: SessionRouter, what: "late" | "buffered" | "dropped", id: string, updates = 1): void => {
  self.stats[what] += updates
  self.stats.sample = self.redact(id.slice(0, 64))
}

/** Makes room: all that waits for an id is dropped. */
const evict = (self: SessionRouter, id: string, early: Early): void => {
  count(self, "dropped", id, early.updates.length)
  forget(self, id)
}

/**
 * Delivers an update, in the order of the calls. For a closed id it is counted as late. For an id that is not known yet
 * it waits in a bounded buffer (count per id, bytes in all, time); when that is full the oldest is dropped and counted.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const deliver = (self: SessionRouter, id: string, update: unknown, bytes: number, now: number): void => {
  const route = self.routes.get(id)
  if (route !== undefined) {
    self.dirty.add(route)
    return route.onUpdate(update, bytes, now)
  }
  if (self.tombstones.has(id)) return count(self, "late", id)
  expire(self, now)
  const { earlyUpdateBytes, earlyUpdatesPerSession } = self.limits
  if (id.length > 1024 || bytes > earlyUpdateBytes || earlyUpdatesPerSession === 0) return count(self, "dropped", id)
  let early = self.early.get(id)
  if (early === undefined) {
    if (self.early.size >= maxEarlySessions) evict(self, ...self.early.entries().next().value!)
    early = { updates: [], since: now }
    self.early.set(id, early)
  }
  early.updates.push({ update, bytes })
  self.earlyBytes += bytes
  count(self, "buffered", id)
  while (
    early.updates.length > earlyUpdatesPerSession ||
    (self.earlyBytes > earlyUpdateBytes && early.updates.length > 1)
  ) {
    self.earlyBytes -= early.updates.shift()!.bytes
    count(self, "dropped", id)
  }
  // Other ids hold the rest of the bytes; the oldest of them make room.
  for (const [other, waiting] of Array.from(self.early)) {
    if (self.earlyBytes <= earlyUpdateBytes) return
    if (other !== id) evict(self, other, waiting)
  }
}

/**
 * Counts an update that does not say which session it is for.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const unroutable = (self: SessionRouter): void => count(self, "dropped", "")

const expire = (self: SessionRouter, now: number): void => {
  const timeout = Duration.toMillis(self.limits.earlyUpdateTimeout)
  for (const [id, early] of Array.from(self.early)) {
    if (now - early.since >= timeout) evict(self, id, early)
  }
}

/**
 * Opens a route and delivers what came early for it, in order, before anything else can come. `false` when the id has a
 * live route already: an agent that gives two sessions one id would mix them up.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const register = (self: SessionRouter, id: string, route: Route, now: number): boolean => {
  if (self.routes.has(id)) return false
  expire(self, now)
  self.tombstones.delete(id)
  self.routes.set(id, route)
  const early = self.early.get(id)
  if (early === undefined) return true
  forget(self, id)
  self.dirty.add(route)
  for (const { bytes, update } of early.updates) route.onUpdate(update, bytes, now)
  return true
}

/**
 * Wakes the readers of all sessions that got something since the last time.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const flush = (self: SessionRouter): void => {
  if (self.dirty.size === 0) return
  for (const route of self.dirty) route.flush()
  self.dirty.clear()
}

/**
 * Closes a route and leaves a tombstone. Nothing happens when the id's route is another one by now.
 *
 * @stability unstable
 * @category routing
 * @since 0.1.0
 */
export const unregister = (self: SessionRouter, id: string, route: Route): void => {
  if (self.routes.get(id) !== route) return
  self.routes.delete(id)
  if (self.limits.maxTombstones === 0) return
  self.tombstones.add(id)
  if (self.tombstones.size > self.limits.maxTombstones) self.tombstones.delete(self.tombstones.values().next().value!)
}

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
