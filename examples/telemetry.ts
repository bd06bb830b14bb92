// An app that exports the sidecar's spans and metrics over OTLP.
import { Sidecar, SidecarMetrics } from "acp-sidecar"
import * as FetchHttpClient from "effect/http/FetchHttpClient"
import * as Layer from "effect/Layer"
import * as Otlp from "effect/observability/Otlp"

const telemetry = Otlp.layerJson({
  baseUrl: "http://localhost:4318",
  resource: { serviceName: "my-app", attributes: SidecarMetrics.resourceAttributes }
}).pipe(Layer.provide(FetchHttpClient.layer))

/** The sidecar, with the tracer and the exporter for the app as well. Provide a platform such as `NodeServices.layer`. */
export const layer = Sidecar.layer.pipe(Layer.provideMerge(telemetry))
