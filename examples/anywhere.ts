// The same program with a sidecar inside it, as its child, or as a process that apps share.
// usage: node anywhere.ts embedded|process|shared COMMAND [ARGUMENT...]
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { AgentProfile, Sidecar, SidecarPool } from "acp-sidecar"
import * as NodeConnector from "acp-sidecar/NodeConnector"
import { Console, Effect, Layer } from "effect"

const [place = "", command = "claude-agent-acp", ...args] = process.argv.slice(2)
const agent = AgentProfile.make({ command: [command, ...args] })

const program = Effect.gen(function* () {
  const sidecar = yield* Sidecar.Sidecar
  const vm = yield* sidecar.openVm({ root: process.cwd() })
  const session = yield* vm.openSession({ agent, permission: "reject" })
  const end = yield* session.prompt("What is this project?")
  yield* Console.log(`${sidecar.id}: ${end._tag}`)
}).pipe(Effect.scoped)

const pooled = SidecarPool.layerSidecar({ pool: "default" }).pipe(Layer.provide(SidecarPool.layer))
const embedded = Sidecar.layer
const child = pooled.pipe(Layer.provide(NodeConnector.layerChildProcess()))
const shared = pooled.pipe(Layer.provide(NodeConnector.layerSocket()))

const layer = new Map(Object.entries({ embedded, process: child, shared })).get(place)
if (layer === undefined) throw new Error("Say where: embedded, process or shared.")
program.pipe(Effect.provide(layer), Effect.provide(NodeServices.layer), NodeRuntime.runMain)
