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
  return oneLine(text, 300)
}

export const exported = <A, E, R>(
  work: Effect.Effect<A, E, R>,
  warn: (problem: string) => Effect.Effect<void>
): Effect.Effect<A, E, R> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const variables = settings(process.env)
      const protocol = variables["OTEL_EXPORTER_OTLP_PROTOCOL"] ?? "http/protobuf"
      if (protocol !== "http/protobuf" && protocol !== "http/json") {
        yield* warn(`OTEL_EXPORTER_OTLP_PROTOCOL is "${oneLine(protocol, 80)}"; use http/protobuf or http/json.`)
        return yield* restore(work)
      }
      const layer = Otlp.layerFromConfig({ resource: { attributes: SidecarMetrics.resourceAttributes } }).pipe(
        Layer.provide(protocol === "http/json" ? OtlpSerialization.layerJson : OtlpSerialization.layerProtobuf),
        Layer.provide(FetchHttpClient.layer),
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
