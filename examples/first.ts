// Two sessions at once. usage: node first.ts COMMAND [ARGUMENT...]   such as: node first.ts gemini --acp
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { AgentProfile, Sidecar } from "acp-sidecar"
import { Console, Effect, Stream } from "effect"

const [command = "claude-agent-acp", ...args] = process.argv.slice(2)
const agent = AgentProfile.make({ command: [command, ...args] })

const program = Effect.gen(function* () {
  const sidecar = yield* Sidecar.Sidecar
  const vm = yield* sidecar.openVm({ root: process.cwd() })
  const chat = yield* vm.openSession({ agent, permission: "reject" })
  const review = yield* vm.openSession({ agent, permission: "reject" })

  const slow = yield* review.submit("Review the last commit.", { lane: "background" })
  const turn = yield* chat.submit("What is this project?")
  yield* Stream.runForEach(turn.text, (text) => Effect.sync(() => process.stdout.write(text)))
  yield* Console.log("\n", yield* turn.await, yield* slow.cancel)
}).pipe(Effect.scoped)

program.pipe(Effect.provide(Sidecar.layer), Effect.provide(NodeServices.layer), NodeRuntime.runMain)
