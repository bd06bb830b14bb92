/**
 * Whom telemetry goes to: the registry of metrics and their common attributes, and the tracer, if there is one. Small,
 * since each update of a metric looks something up in it, and since it must not keep anything else of a caller alive.
 *
 * @internal
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Tracer from "effect/Tracer"

/** The registry and the attributes as values, defaults too: what is opened later must not bring others. */
export const pick = (context: Context.Context<never>): Context.Context<never> =>
  Context.pick(Tracer.Tracer)(context).pipe(
    Context.add(Metric.MetricRegistry, Context.get(context, Metric.MetricRegistry)),
    Context.add(Metric.CurrentMetricAttributes, Context.get(context, Metric.CurrentMetricAttributes))
  )

export const current: Effect.Effect<Context.Context<never>> = Effect.map(Effect.context<never>(), pick)
