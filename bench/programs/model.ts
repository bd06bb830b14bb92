// Runs a scripted model and prints its base URL, until it is killed.
// usage: node bench/programs/model.ts
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Effect from "effect/Effect"
import * as ScriptedModel from "../../src/cli/ScriptedModel.ts"

const program = Effect.gen(function* () {
  const { baseUrl } = yield* ScriptedModel.make()
  process.stdout.write(`${baseUrl}\n`)
  return yield* Effect.never
}).pipe(Effect.scoped)

NodeRuntime.runMain(program)
