/**
 * Who may start a turn: permits of a Vm and of a sidecar, and the lanes.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as PartitionedSemaphore from "effect/PartitionedSemaphore"
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

/**
 * The permits of one Vm or of the sidecar. Waiters are served round-robin between the keys (sessions of a Vm, Vms of a
 * sidecar).
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Gate {
  readonly usage: LimitUsage.LimitUsage
  /** How many of the permits the background lane can't have. */
  readonly reserved: number
  /** @internal */
  readonly permits: PartitionedSemaphore.PartitionedSemaphore<string>
  /** @internal The background lane takes one of these first. */
  readonly background: PartitionedSemaphore.PartitionedSemaphore<string>
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
  permits: PartitionedSemaphore.makeUnsafe({ permits: options.max }),
  background: PartitionedSemaphore.makeUnsafe({ permits: Math.max(0, options.max - options.reserved) })
})

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
  <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> => {
    const counted = Effect.uninterruptibleMask((restore) => {
      LimitUsage.take(self.usage)
      return Effect.ensuring(
        restore(effect),
        Effect.sync(() => LimitUsage.release(self.usage))
      )
    })
    const permitted = self.permits.withPermit(key)(counted)
    return lane === "interactive" ? permitted : self.background.withPermit(key)(permitted)
  }

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
