/**
 * What is remembered of closed session ids.
 *
 * @internal
 */
import * as Duration from "effect/Duration"
import type * as SidecarLimits from "../SidecarLimits.ts"

export type Limits = Pick<SidecarLimits.SidecarLimits, "maxTombstones" | "tombstoneTimeout">

export interface Tombstone {
  /** Since when; `undefined` until somebody looks who knows the time. */
  since: number | undefined
  /** The session was put out, see `SessionRouter.quarantine`. */
  readonly isQuarantined: boolean
}

/** By session id, the oldest first. */
export type Tombstones = Map<string, Tombstone>

const isOver = (tombstone: Tombstone, limits: Limits, now: number): boolean =>
  now - (tombstone.since ??= now) >= Duration.toMillis(limits.tombstoneTimeout)

/** The tombstone of an id, if its time is not over. That of a quarantined session lasts for as long as it is asked for. */
export const find = (self: Tombstones, id: string, limits: Limits, now: number): Tombstone | undefined => {
  const found = self.get(id)
  if (found === undefined) return undefined
  if (isOver(found, limits, now)) {
    self.delete(id)
    return undefined
  }
  if (found.isQuarantined) found.since = now
  return found
}

/** Over the limit the oldest goes, and that of a quarantined session only when there is no other. */
export const add = (
  self: Tombstones,
  id: string,
  limits: Limits,
  options: { readonly isQuarantined: boolean; readonly now: number | undefined }
): void => {
  const { isQuarantined, now } = options
  if (now !== undefined) {
    for (const [old, tombstone] of self) if (isOver(tombstone, limits, now)) self.delete(old)
  }
  if (limits.maxTombstones === 0) return
  self.set(id, { since: now, isQuarantined })
  if (self.size > limits.maxTombstones) self.delete(oldest(self))
}

const oldest = (self: Tombstones): string => {
  for (const [id, { isQuarantined }] of self) if (!isQuarantined) return id
  return self.keys().next().value!
}
