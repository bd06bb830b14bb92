/**
 * Who may start a turn: permits of a Vm and of a sidecar, and the lanes. An app names {@link Lane} and {@link OnBusy} when
 * it submits a prompt; the gates are for those who admit other work in the same way.
 *
 * @since 0.1.0
 */

import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Address from "./Address.ts"
import * as LimitUsage from "./LimitUsage.ts"
import type * as SidecarError from "./SidecarError.ts"
import type { Emit } from "./SidecarEvent.ts"
import type * as SidecarLimits from "./SidecarLimits.ts"

/**
 * The latency class of a prompt. `background` work can never take the last, reserved permits, so that an `interactive`
 * prompt does not wait for it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Lane = "interactive" | "background"

/**
 * What to do with a prompt while the session is busy: wait for its turn (`queue`), be refused (`reject`), or cancel all
 * earlier ones of the session and take their place (`replace`).
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type OnBusy = "queue" | "reject" | "replace"

interface Waiter {
  readonly lane: Lane
  readonly granted: Deferred.Deferred<void>
}

/**
 * The permits of one Vm or of the sidecar. Waiters are served round-robin between the keys (sessions of a Vm, Vms of a
 * sidecar). Effect's `PartitionedSemaphore` is not used for it: in 4.1.0 it loses a permit when a fiber that pauses right
 * after it was given one is interrupted then.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Gate {
  readonly usage: LimitUsage.LimitUsage
  /** How many of the permits the background lane can't have. */
  readonly reserved: number
  /** @internal How many of the used permits the background lane has. */
  background: number
  /** @internal By key, the key whose turn it is first. While a permit is free, only those that can't have it wait. */
  readonly waiting: Map<string, Set<Waiter>>
  /** @internal Permits are being given out. */
  granting: boolean
}

/**
 * A gate with `max` permits.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (options: {
  readonly address: Address.Address
  readonly scope: "vm" | "sidecar"
  readonly limit: keyof SidecarLimits.SidecarLimits
  readonly max: number
  readonly reserved: number
  readonly emit: Emit
}): Gate => ({
  usage: LimitUsage.make(options),
  reserved: Math.min(options.max, options.reserved),
  background: 0,
  waiting: new Map(),
  granting: false
})

const hasRoom = (self: Gate, lane: Lane): boolean =>
  !LimitUsage.isFull(self.usage) && (lane === "interactive" || self.background < self.usage.max - self.reserved)

const take = (self: Gate, lane: Lane): void => {
  if (lane === "background") self.background++
  LimitUsage.take(self.usage)
}

const release = (self: Gate, lane: Lane): void => {
  if (lane === "background") self.background--
  LimitUsage.release(self.usage)
  // A waiter runs within `doneUnsafe` and may release again: the loop that is on its way goes on with that.
  if (self.granting) return
  self.granting = true
  for (let next = dequeue(self); next !== undefined; next = dequeue(self)) {
    take(self, next.lane)
    Deferred.doneUnsafe(next.granted, Exit.void)
  }
  self.granting = false
}

/** Takes out whose turn it is, if there is a permit for it, and puts its key last. */
const dequeue = (self: Gate): Waiter | undefined => {
  for (const [key, waiters] of self.waiting) {
    for (const waiter of waiters) {
      if (!hasRoom(self, waiter.lane)) continue
      remove(self, key, waiter)
      if (waiters.size > 0) {
        self.waiting.delete(key)
        self.waiting.set(key, waiters)
      }
      return waiter
    }
  }
  return undefined
}

const remove = (self: Gate, key: string, waiter: Waiter): void => {
  const waiters = self.waiting.get(key)
  waiters?.delete(waiter)
  if (waiters?.size === 0) self.waiting.delete(key)
}

/**
 * Runs an effect with one permit of the gate. The permit is back on every way out, and an interrupted waiter takes none.
 * Waiting has no bound of its own: whoever calls this bounds it, and asks {@link refusal} first.
 *
 * @stability unstable
 * @category combinators
 * @since 0.1.0
 */
export const withPermit =
  (self: Gate, key: string, lane: Lane) =>
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.uninterruptibleMask((restore) => {
      const use = Effect.ensuring(
        restore(effect),
        Effect.sync(() => release(self, lane))
      )
      if (hasRoom(self, lane)) {
        take(self, lane)
        return use
      }
      const waiter: Waiter = { lane, granted: Deferred.makeUnsafe() }
      const waiters = self.waiting.get(key) ?? new Set()
      self.waiting.set(key, waiters.add(waiter))
      return restore(Deferred.await(waiter.granted)).pipe(
        // It may have been given one in the meantime.
        Effect.onInterrupt(() =>
          Effect.sync(() => (Deferred.isDoneUnsafe(waiter.granted) ? release(self, lane) : remove(self, key, waiter)))
        ),
        Effect.andThen(use)
      )
    })

/**
 * Whether somebody waits for a permit under this key.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const isWaiting = (self: Gate, key: string): boolean => self.waiting.has(key)

/**
 * The refusal for a lane that could never be served, since the gate has no permits for it at all. Those that are reserved
 * count as used.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const refusal = (self: Gate, lane: Lane, address: Address.Address): SidecarError.LimitExceeded | undefined =>
  self.usage.max - (lane === "background" ? self.reserved : 0) > 0
    ? undefined
    : LimitUsage.refusal(self.usage, address, self.usage.max)

/**
 * What a session does with a new prompt, decided from the number of its unfinished turns alone.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Decision = "start" | "queue" | "replace" | "busy" | "full"

/**
 * Decides on a new prompt: `start` while there is room, else by policy.
 *
 * @stability unstable
 * @category decisions
 * @since 0.1.0
 */
export const decide = (
  onBusy: OnBusy,
  unfinished: number,
  limits: Pick<SidecarLimits.SidecarLimits, "maxPromptsPerSession" | "maxQueuedPromptsPerSession">
): Decision => {
  if (unfinished < limits.maxPromptsPerSession) return "start"
  if (limits.maxPromptsPerSession === 0) return "full"
  switch (onBusy) {
    case "reject":
      return "busy"
    case "replace":
      return "replace"
    case "queue":
      return unfinished - limits.maxPromptsPerSession < limits.maxQueuedPromptsPerSession ? "queue" : "full"
  }
}
