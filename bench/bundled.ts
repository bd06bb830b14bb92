// The bundled agent with a scripted model, which runs in a process of its own: what it does is not to be measured.
import { spawn } from "node:child_process"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as AgentProfile from "../src/AgentProfile.ts"
import type * as Contenders from "./contenders.ts"
import * as Packed from "./packed.ts"

/** Starts a model and gives its base URL. */
const startModel: Effect.Effect<string, never, Scope.Scope> = Effect.gen(function* () {
  const program = fileURLToPath(new URL("programs/model.ts", import.meta.url))
  const child = yield* Effect.acquireRelease(
    Effect.sync(() => spawn(process.execPath, [program], { stdio: ["ignore", "pipe", "inherit"] })),
    (started) => Effect.sync(() => started.kill())
  )
  return yield* Effect.promise(
    () =>
      new Promise<string>((resolve, reject) => {
        child.once("exit", (code) => reject(new Error(`the model ended with code ${code}`)))
        child.stdout.once("data", (data: Buffer) => resolve(data.toString().trim()))
      })
  )
})

/** The bundled agent, and a model for it until the scope ends. */
export const make: Effect.Effect<Contenders.Driven, never, Scope.Scope> = Effect.gen(function* () {
  const file = yield* Packed.file("cli/demo-agent.mjs")
  return {
    command: [process.execPath, file],
    env: { OPENAI_BASE_URL: yield* startModel },
    hello: "[[say:hello]]",
    streaming: (count) => `[[slow:${count}:0]]`
  }
})

/** Sessions of it share a process, unless they are opened with `share: false`. */
export const profileOf = ({ command, env }: Pick<Contenders.Driven, "command" | "env">): AgentProfile.AgentProfile =>
  AgentProfile.make({ name: "bench", command, env, share: true })
