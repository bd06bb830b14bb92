// A sidecar that ends, at its start, what a killed one has left running.
import * as NodeServices from "@effect/platform-node/NodeServices"
import { LaunchRecords, Sidecar } from "acp-sidecar"
import * as NodeProcessTable from "acp-sidecar/NodeProcessTable"
import * as Layer from "effect/Layer"

export const layer = Sidecar.layer.pipe(
  Layer.provide(LaunchRecords.layer()),
  Layer.provide([NodeServices.layer, NodeProcessTable.layer])
)
