/**
 * Whom telemetry goes to: the registry of metrics, and the tracer, of the current fiber. Small, since each update of a
 * metric looks something up in it, and since it must not keep anything else of a caller alive.
 *
 * @internal
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Tracer from "effect/Tracer"

export const pick = Context.pick(Metric.MetricRegistry, Metric.CurrentMetricAttributes, Tracer.Tracer)

export const current: Effect.Effect<Context.Context<never>> = Effect.map(Effect.context<never>(), pick)
