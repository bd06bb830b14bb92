/**
 * Updates for session ids that are not known yet: bounded per id, and in count, bytes and time for all of them.
 *
 * @internal
 */
import * as Duration from "effect/Duration"
import type * as SidecarLimits from "../SidecarLimits.ts"

export type Limits = Pick<
  SidecarLimits.SidecarLimits,
  "earlyUpdatesPerSession" | "earlyUpdatesPerAgent" | "earlyUpdateBytes" | "earlyUpdateTimeout"
>

export interface EarlyUpdate {
  readonly update: unknown
  readonly bytes: number
  readonly at: number
}

interface Waiting {
  /** The oldest first, never empty. */
  readonly updates: Array<EarlyUpdate>
  bytes: number
}

export interface EarlyBuffer {
  readonly limits: Limits
  /** Told of each update that is dropped. */
  readonly onDrop: (id: string) => void
  /** The oldest id first. */
  readonly ids: Map<string, Waiting>
  count: number
  bytes: number
  /** Nothing is too old before that time. */
  expiresAt: number
}

export const make = (limits: Limits, onDrop: (id: string) => void): EarlyBuffer => ({
  limits,
  onDrop,
  ids: new Map(),
  count: 0,
  bytes: 0,
  expiresAt: Infinity
})

const dropOldest = (self: EarlyBuffer, id: string, waiting: Waiting): void => {
  const { bytes } = waiting.updates.shift()!
  waiting.bytes -= bytes
  self.bytes -= bytes
  self.count--
  if (waiting.updates.length === 0) self.ids.delete(id)
  self.onDrop(id)
}

/** Whose oldest update makes room: the id with the most of it, but never the update that has just come. */
const largest = (self: EarlyBuffer, newest: string, size: (waiting: Waiting) => number): readonly [string, Waiting] => {
  let found: readonly [string, Waiting] | undefined
  for (const entry of self.ids) {
    if (entry[0] === newest && entry[1].updates.length === 1) continue
    if (found === undefined || size(entry[1]) > size(found[1])) found = entry
  }
  return found!
}

const ofCount = (waiting: Waiting): number => waiting.updates.length
const ofBytes = (waiting: Waiting): number => waiting.bytes

/** Whether there is any room for an update of this size. */
export const fits = ({ limits }: EarlyBuffer, bytes: number): boolean =>
  limits.earlyUpdatesPerSession > 0 && limits.earlyUpdatesPerAgent > 0 && bytes <= limits.earlyUpdateBytes

/** Keeps one that fits. What is over a bound is dropped, the oldest first, where most is kept. */
export const put = (self: EarlyBuffer, id: string, update: unknown, bytes: number, at: number): void => {
  const { limits } = self
  let waiting = self.ids.get(id)
  if (waiting === undefined) self.ids.set(id, (waiting = { updates: [], bytes: 0 }))
  if (self.count === 0) self.expiresAt = at + Duration.toMillis(limits.earlyUpdateTimeout)
  waiting.updates.push({ update, bytes, at })
  waiting.bytes += bytes
  self.bytes += bytes
  self.count++
  if (waiting.updates.length > limits.earlyUpdatesPerSession) dropOldest(self, id, waiting)
  while (self.count > limits.earlyUpdatesPerAgent) dropOldest(self, ...largest(self, id, ofCount))
  while (self.bytes > limits.earlyUpdateBytes) dropOldest(self, ...largest(self, id, ofBytes))
}

/** Drops what is too old. */
export const expire = (self: EarlyBuffer, now: number): void => {
  if (now < self.expiresAt) return
  const timeout = Duration.toMillis(self.limits.earlyUpdateTimeout)
  self.expiresAt = Infinity
  for (const [id, waiting] of Array.from(self.ids)) {
    while (waiting.updates.length > 0 && now - waiting.updates[0]!.at >= timeout) dropOldest(self, id, waiting)
    const [oldest] = waiting.updates
    if (oldest !== undefined) self.expiresAt = Math.min(self.expiresAt, oldest.at + timeout)
  }
}

/** Takes out what waits for an id, the oldest first. */
export const take = (self: EarlyBuffer, id: string): ReadonlyArray<EarlyUpdate> => {
  const waiting = self.ids.get(id)
  if (waiting === undefined) return []
  self.ids.delete(id)
  self.bytes -= waiting.bytes
  self.count -= waiting.updates.length
  return waiting.updates
}

/** Drops what waits for an id. */
export const drop = (self: EarlyBuffer, id: string): void => {
  for (const _ of take(self, id)) self.onDrop(id)
}

/** Drops all. */
export const clear = (self: EarlyBuffer): void => {
  for (const id of Array.from(self.ids.keys())) drop(self, id)
}
