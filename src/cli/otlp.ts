// The export of telemetry over OTLP.
import * as Cause from "effect/Cause"
import * as Config from "effect/Config"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Otlp from "effect/observability/Otlp"
import * as OtlpSerialization from "effect/observability/OtlpSerialization"
import * as Scope from "effect/Scope"
import pkg from "../../package.json" with { type: "json" }
import * as SidecarMetrics from "../SidecarMetrics.ts"
import { oneLine } from "./failure.ts"

/** How long the end of a command may wait for what is still to be exported, in milliseconds. */
const lastMoment = 1500

type Variables = Readonly<Record<string, string>>

/** Our defaults, those of OpenTelemetry where Effect has others, and no wait at the end that is longer than ours. */
const settings = (environment: Readonly<Record<string, string | undefined>>): Variables => {
  const given = Object.entries(environment).filter(
    (entry): entry is [string, string] => entry[0].startsWith("OTEL_") && (entry[1] ?? "") !== ""
  )
  const set = Object.fromEntries(given)
  const resource = (set["OTEL_RESOURCE_ATTRIBUTES"] ?? "").split(",").map((pair) => pair.split("=")[0]!.trim())
  const defaults: Record<string, string> = {
    OTEL_TRACES_EXPORTER: "otlp",
    OTEL_METRICS_EXPORTER: "otlp",
    OTEL_LOGS_EXPORTER: "otlp"
  }
  if (!resource.includes("service.name")) defaults["OTEL_SERVICE_NAME"] = pkg.name
  if (!resource.includes("service.version")) defaults["OTEL_SERVICE_VERSION"] = pkg.version
  const bounds = ["TRACES", "METRICS", "LOGS"].map((signal) => {
    const name = `OTEL_EXPORTER_OTLP_${signal}_TIMEOUT`
    const wanted = Number(set[name] ?? set["OTEL_EXPORTER_OTLP_TIMEOUT"] ?? lastMoment)
    return [name, String(wanted >= 0 ? Math.min(wanted, lastMoment) : lastMoment)]
  })
  return { ...defaults, ...set, ...Object.fromEntries(bounds) }
}

/** A setting that is not understood, as one sentence. */
const problemOf = (cause: Cause.Cause<unknown>): string => {
  const error = Cause.squash(cause)
  const text = error instanceof Config.ConfigError || error instanceof Error ? error.message : String(error)
  return oneLine(text.replace(/^SchemaError\(([^]*)\)$/, "$1"), 300)
}

const endpointProblem = (endpoint: string): string | undefined => {
  // The port of `localhost:4318` would be the rest of a URL with the scheme `localhost`.
  if (!/^https?:\/\//i.test(endpoint.trim())) return "has to start with http:// or https://"
  const { password, username } = URL.canParse(endpoint) ? new URL(endpoint) : {}
  return username || password ? "can't have a user name or password in it; give OTEL_EXPORTER_OTLP_HEADERS" : undefined
}

const isHeader = (pair: string): boolean => {
  const at = pair.indexOf("=")
  try {
    const headers = new Headers([[pair.slice(0, at).trim(), decodeURIComponent(pair.slice(at + 1)).trim()]])
    return at > 0 && [...headers].length === 1
  } catch {
    return false
  }
}

const headersProblem = (headers: string): string | undefined =>
  headers.split(",").every((pair) => pair.trim() === "" || isHeader(pair))
    ? undefined
    : "has to be NAME=VALUE, with commas between, and what is special in a value as in a URL"

const protocolProblem = (protocol: string): string | undefined =>
  protocol === "http/protobuf" || protocol === "http/json"
    ? undefined
    : `is "${oneLine(protocol, 80)}"; use http/protobuf or http/json`

const timeProblem = (millis: string): string | undefined =>
  Number(millis) < 1 ? "has to be at least 1 (a millisecond)" : undefined

/** What would be taken, and then nothing would arrive, or too much. Values may be secret, so that none is told. */
const unusable = (set: Variables): string | undefined => {
  const ofSignals = ["", "TRACES_", "METRICS_", "LOGS_"].flatMap((signal) => {
    const variable = `OTEL_EXPORTER_OTLP_${signal}`
    return [
      [`${variable}ENDPOINT`, endpointProblem],
      [`${variable}HEADERS`, headersProblem],
      [`${variable}PROTOCOL`, protocolProblem]
    ] as const
  })
  const times = ["OTEL_BSP_SCHEDULE_DELAY", "OTEL_BLRP_SCHEDULE_DELAY", "OTEL_METRIC_EXPORT_INTERVAL"]
  for (const [name, problem] of [...ofSignals, ...times.map((time) => [time, timeProblem] as const)]) {
    const value = set[name]
    const found = value === undefined ? undefined : problem(value)
    if (found !== undefined) return `${name} ${found}.`
  }
  return undefined
}

export const exported = <A, E, R>(
  work: Effect.Effect<A, E, R>,
  warn: (problem: string) => Effect.Effect<void>
): Effect.Effect<A, E, R> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const variables = settings(process.env)
      const problem = unusable(variables)
      if (problem !== undefined) {
        yield* warn(problem)
        return yield* restore(work)
      }
      const protocol = variables["OTEL_EXPORTER_OTLP_PROTOCOL"]
      const layer = Otlp.layerFromConfig({ resource: { attributes: SidecarMetrics.resourceAttributes } }).pipe(
        Layer.provide(protocol === "http/json" ? OtlpSerialization.layerJson : OtlpSerialization.layerProtobuf),
        // A redirect would take the headers along, which may be keys, to whatever host it names.
        Layer.provide(
          FetchHttpClient.layer.pipe(Layer.provide(Layer.succeed(FetchHttpClient.RequestInit, { redirect: "manual" })))
        ),
        Layer.provide(ConfigProvider.layer(ConfigProvider.fromEnvRecord(variables)))
      )
      const scope = yield* Scope.make()
      const built = yield* Effect.exit(Layer.buildWithScope(layer, scope))
      if (Exit.isFailure(built)) {
        yield* Scope.close(scope, Exit.void)
        yield* warn(problemOf(built.cause))
        return yield* restore(work)
      }
      const exit = yield* Effect.exit(restore(Effect.provideContext(work, built.value)))
      // What has not been sent by then is lost: the command is done, whoever was to hear of it.
      yield* Scope.close(scope, exit)
      return yield* exit
    })
  )
