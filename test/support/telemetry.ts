// What a test sees of spans and metrics.
import { Sidecar } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"

export interface Told {
  /** Every span that was started, in order. */
  readonly spans: Array<Tracer.NativeSpan>
  readonly registry: Map<string, Metric.Metric.Metadata<never, never>>
}

const plain = (value: object): Record<string, unknown> => ({ ...value })

/** The series of a registry: name, attributes without the unit, and state. */
export const series = (told: Told) =>
  Array.from(told.registry.values(), (one) => {
    const { unit: _, ...attributes } = (one.attributes ?? {}) as Record<string, string>
    const state = plain((one as unknown as { hooks: { get: (context: unknown) => object } }).hooks.get(undefined))
    return { id: one.id, type: one.type, attributes, state }
  })

/** The value of a gauge or counter, the count of a histogram; all series that have these attributes together. */
export const value = (told: Told, id: string, attributes: Readonly<Record<string, string>> = {}): number =>
  series(told)
    .filter((one) => one.id === id && Object.entries(attributes).every(([key, own]) => one.attributes[key] === own))
    .reduce((sum, { state }) => sum + Number(state["value"] ?? state["count"]), 0)

export const attributes = (span: Tracer.Span): Record<string, unknown> => Object.fromEntries(span.attributes)

export const named = (told: Told, name: string): Tracer.NativeSpan => {
  const found = told.spans.filter((span) => span.name === name)
  if (found.length !== 1) throw new Error(`${found.length} spans ${name}: ${told.spans.map((span) => span.name)}`)
  return found[0]!
}

export const parentName = (span: Tracer.Span): string | undefined => {
  const parent = Option.getOrUndefined(span.parent)
  return parent?._tag === "Span" ? parent.name : parent?.spanId
}

/** Runs a test with a sidecar whose spans and metrics it sees. Without `traced` there is no tracer. */
export const observed = <A, E>(
  options: TestSidecar.Options & { readonly isTraced?: boolean | undefined },
  body: (told: Told) => Effect.Effect<A, E, Sidecar.Sidecar | TestSidecar.TestSidecar>
) =>
  Effect.suspend(() => {
    const told: Told = { spans: [], registry: new Map() }
    const tracer = Tracer.make({
      span: (given) => {
        const span = new Tracer.NativeSpan(given)
        told.spans.push(span)
        return span
      }
    })
    const watched = body(told).pipe(Effect.provide(TestSidecar.layer(options)))
    return Effect.provideService(
      options.isTraced === false ? watched : Effect.provideService(watched, Tracer.Tracer, tracer),
      Metric.MetricRegistry,
      told.registry as never
    )
  })
