// Telemetry of a command, by the standard OTEL_* variables. Nothing of it is loaded unless one of them asks for it.
import * as Effect from "effect/Effect"
import * as Output from "./output.ts"

const isSet = (name: string): boolean => (process.env[name] ?? "") !== ""

const isWanted = (): boolean =>
  process.env["OTEL_SDK_DISABLED"]?.toLowerCase() !== "true" &&
  ["", "TRACES_", "METRICS_", "LOGS_"].some((signal) => isSet(`OTEL_EXPORTER_OTLP_${signal}ENDPOINT`))

/** Runs a command's work and exports what it tells, where that is wanted. It never makes the command fail. */
export const withTelemetry = <A, E, R>(work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.suspend(() => {
    if (!isWanted()) return work
    return Effect.flatMap(
      Effect.promise(() => import("./otlp.ts")),
      ({ exported }) => exported(work, (problem) => Output.note(`telemetry is off: ${problem}`))
    )
  })
