/**
 * Spans that start in one fiber and end in another. They are made by hand, in the very step that they tell of, so that
 * no turn can be lost in between; without a tracer of the app none is made.
 *
 * @internal
 */
import * as Context from "effect/Context"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as LogLevel from "effect/LogLevel"
import * as Option from "effect/Option"
import * as References from "effect/References"
import * as Tracer from "effect/Tracer"

export interface Traced {
  readonly tracer: Tracer.Tracer
  readonly span: Tracer.Span
}

export type Attributes = Readonly<Record<string, unknown>>

/** Whether the caller wants spans at all. */
export const isWanted = (caller: Fiber.Fiber<unknown, unknown>): boolean => caller.getRef(References.TracerEnabled)

/** The tracer of the caller, else the session's; none when both are the one that keeps nothing. */
const tracerOf = (
  caller: Fiber.Fiber<unknown, unknown>,
  session: Context.Context<never>
): Tracer.Tracer | undefined => {
  if (!isWanted(caller)) return undefined
  const own = caller.getRef(Tracer.Tracer)
  if (own !== Tracer.nativeTracer) return own
  const other = Context.get(session, Tracer.Tracer)
  return other === Tracer.nativeTracer ? undefined : other
}

/** The span that the caller is in. Those that are not to be seen by others are skipped, as Effect does. */
export const parentOf = (caller: Fiber.Fiber<unknown, unknown>): Option.Option<Tracer.AnySpan> => {
  let span = Context.getOption(caller.context, Tracer.ParentSpan)
  while (Option.isSome(span) && Context.get(span.value.annotations, Tracer.DisablePropagation)) {
    span = span.value._tag === "Span" ? span.value.parent : Option.none()
  }
  return span
}

const start = (
  tracer: Tracer.Tracer,
  options: Pick<Parameters<Tracer.Tracer["span"]>[0], "name" | "kind" | "parent" | "sampled" | "startTime" | "links">,
  attributes: Attributes
): Tracer.Span => {
  const span = tracer.span({ ...options, annotations: Context.empty(), root: Option.isNone(options.parent) })
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined) span.attribute(name, value)
  return span
}

/** A span of kind `client` under whatever the caller is in. */
export const client = (
  caller: Fiber.Fiber<unknown, unknown>,
  session: Context.Context<never>,
  options: { readonly name: string; readonly startTime: () => bigint; readonly attributes: () => Attributes }
): Traced | undefined => {
  const tracer = tracerOf(caller, session)
  if (tracer === undefined) return undefined
  const parent = parentOf(caller)
  const level = caller.getRef(Tracer.CurrentTraceLevel)
  const sampled =
    !(Option.isSome(parent) && !parent.value.sampled) &&
    !LogLevel.isGreaterThan(caller.getRef(Tracer.MinimumTraceLevel), level)
  const links = [...caller.getRef(References.TracerSpanLinks)]
  const attributes = { ...caller.getRef(References.TracerSpanAnnotations), ...options.attributes() }
  const startTime = options.startTime()
  return {
    tracer,
    span: start(tracer, { name: options.name, kind: "client", parent, sampled, startTime, links }, attributes)
  }
}

/** A span of kind `internal` under another. */
export const child = (parent: Traced, name: string, startTime: bigint, attributes: Attributes): Tracer.Span => {
  const { sampled } = parent.span
  return start(
    parent.tracer,
    { name, kind: "internal", parent: Option.some(parent.span), sampled, startTime, links: [] },
    attributes
  )
}

/** What goes to the agent, so that its own spans can join. Nothing of a span that is not sampled. */
export const traceparent = ({ span }: Traced): string | undefined => {
  const text = `00-${span.traceId.padStart(32, "0")}-${span.spanId}-01`
  return span.sampled && /^00-[0-9a-f]{32}-[0-9a-f]{16}-01$/.test(text) ? text : undefined
}

/** How a span ends that failed: the kind of failure and no text of others, which may say anything. */
export const failure = (errorType: string, where: string): Exit.Exit<never, Error> => {
  const error = new Error(`${where} failed: ${errorType}`)
  error.name = errorType
  // Where it was made says nothing.
  error.stack = `${error.name}: ${error.message}`
  return Exit.fail(error)
}

export const interrupted: Exit.Exit<never> = Exit.interrupt()
