/**
 * How much of a limit is used, and the warning before it is all. For those who bound something in the same way; an app
 * sees it in `describe` and in the `limit_warning` events of its sidecar.
 *
 * @since 0.1.0
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Metric from "effect/Metric"
import type * as Scope from "effect/Scope"
import type * as Address from "./Address.ts"
import * as SidecarError from "./SidecarError.ts"
import type { Emit } from "./SidecarEvent.ts"
import * as SidecarLimits from "./SidecarLimits.ts"
import * as SidecarMetrics from "./SidecarMetrics.ts"

/**
 * A counter against a limit. It warns when 80 % are used, and again only after the use fell under 50 %. Limits of 0 and
 * 1 never warn: for them a full limit is the normal state.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface LimitUsage {
  readonly address: Address.Address
  readonly scope: SidecarError.LimitExceeded["scope"]
  readonly limit: keyof SidecarLimits.SidecarLimits
  readonly max: number
  readonly emit: Emit
  used: number
  warned: boolean
  /** @internal Whose registry has it, see {@link measure}. */
  metrics: Context.Context<never> | undefined
  /** @internal */
  readonly gauge: Metric.Gauge<number>
}

/**
 * What a counter is made of.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Options = Pick<LimitUsage, "address" | "scope" | "limit" | "max" | "emit">

/**
 * A counter at zero, in no metrics.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (options: Options): LimitUsage => ({
  ...options,
  metrics: undefined,
  used: 0,
  warned: false,
  gauge: SidecarMetrics.limits.used({ limit: options.limit })
})

/**
 * Puts a new counter into the metrics of a registry, until the scope closes. Then it is taken out of them, with what is
 * used of it, and goes on counting.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const measure = (self: LimitUsage, metrics: Context.Context<never>): Effect.Effect<void, never, Scope.Scope> => {
  const max = SidecarMetrics.limits.max({ limit: self.limit })
  return Effect.asVoid(
    Effect.acquireRelease(
      Effect.sync(() => {
        self.metrics = metrics
        max.modifyUnsafe(self.max, metrics)
      }),
      () =>
        Effect.sync(() => {
          self.metrics = undefined
          max.modifyUnsafe(-self.max, metrics)
          if (self.used > 0) self.gauge.modifyUnsafe(-self.used, metrics)
        })
    )
  )
}

/**
 * Counts one up. Whether there is room is for the caller to check first, see {@link isFull}.
 *
 * @stability unstable
 * @category counting
 * @since 0.1.0
 */
export const take = (self: LimitUsage): void => {
  self.used++
  if (self.metrics !== undefined) self.gauge.modifyUnsafe(1, self.metrics)
  if (self.warned || self.max <= 1 || self.used < self.max * 0.8) return
  self.warned = true
  self.emit({
    kind: "limit_warning",
    address: self.address,
    detail: `${self.used} of ${self.max} of ${self.limit} are used; raise ${SidecarLimits.setting(self.limit)} if that is expected`,
    limit: self.limit,
    used: self.used,
    max: self.max
  })
}

/**
 * Counts one down.
 *
 * @stability unstable
 * @category counting
 * @since 0.1.0
 */
export const release = (self: LimitUsage): void => {
  self.used--
  if (self.metrics !== undefined) self.gauge.modifyUnsafe(-1, self.metrics)
  if (self.used < self.max * 0.5) self.warned = false
}

/**
 * Whether no more may be taken.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const isFull = (self: LimitUsage): boolean => self.used >= self.max

/**
 * The refusal that a full limit gives. `used` is the counter's own unless given.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const refusal = (
  self: LimitUsage,
  address: Address.Address = self.address,
  used: number = self.used
): SidecarError.LimitExceeded =>
  new SidecarError.LimitExceeded({
    address,
    scope: self.scope,
    limit: self.limit,
    max: self.max,
    used,
    setting: SidecarLimits.setting(self.limit)
  })
