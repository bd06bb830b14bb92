// The scripted model of the demo, and an agent that is set up to ask it.
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { mkdir, mkdtemp, realpath, rm, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import * as AgentProfile from "../AgentProfile.ts"
import * as Agents from "./agents.ts"
import { badInput, type CommandFailure, failed } from "./failure.ts"
import * as ScriptedModel from "./ScriptedModel.ts"

/** Requests that came in, by lane. Each one is told once `isLoud` is set. */
export interface Lanes {
  slow: number
  fast: number
  isLoud: boolean
}

export interface Demo {
  readonly profile: AgentProfile.AgentProfile
  /** An empty folder to work in. */
  readonly folder: string
  readonly lanes: Lanes
}

const model = "scripted"
const apiKey = "scripted-no-key-needed"

const temporaryFolder: Effect.Effect<string, CommandFailure, Scope.Scope> = Effect.acquireRelease(
  Effect.tryPromise({
    try: async () => realpath(await mkdtemp(join(tmpdir(), "acp-sidecar-demo-"))),
    catch: (cause) => failed(`A temporary folder could not be made in ${tmpdir()}: ${(cause as Error).message}`)
  }),
  (folder) => Effect.ignore(Effect.tryPromise(() => rm(folder, { recursive: true, force: true, maxRetries: 5 })))
)

const writeJson = (path: string, content: unknown) =>
  Effect.tryPromise({
    try: async () => {
      await mkdir(dirname(path), { recursive: true })
      await writeFile(path, JSON.stringify(content, null, 2))
    },
    catch: (cause) => failed(`${path} could not be written: ${(cause as Error).message}`)
  })

/** pi takes its models from a file in the home folder, so it gets a home of its own. */
const forPi = Effect.fnUntraced(function* (baseUrl: string, path: string) {
  if (!Agents.isOnPath("pi", path)) return yield* Agents.notInstalled(AgentProfile.pi, "pi")
  const home = yield* temporaryFolder
  const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }
  const size = { contextWindow: 100_000, maxTokens: 4096 }
  yield* writeJson(join(home, ".pi/agent/models.json"), {
    providers: {
      scripted: {
        baseUrl,
        api: "openai-completions",
        apiKey,
        models: [{ id: model, name: "Scripted", reasoning: false, input: ["text"], cost, ...size }]
      }
    }
  })
  yield* writeJson(join(home, ".pi/agent/settings.json"), {
    defaultProvider: "scripted",
    defaultModel: model,
    quietStartup: true
  })
  return { HOME: home, PI_OFFLINE: "1", PI_SKIP_VERSION_CHECK: "1", PI_TELEMETRY: "0" }
})

/**
 * Starts the model and prepares the agent for it. All of it, temporary folders included, ends with the scope. A request
 * is answered after `onRequest`.
 */
export const make = Effect.fnUntraced(function* (
  agent: string,
  onRequest: (event: ScriptedModel.ModelEvent) => Effect.Effect<void>
): Effect.fn.Return<Demo, CommandFailure, Scope.Scope> {
  const path = process.env["PATH"] ?? ""
  const name = agent.trim()
  if (Object.hasOwn(AgentProfile.builtIn, name) && name !== AgentProfile.pi.name) return yield* unsupported(name)
  const profile = yield* Agents.resolve(agent, path)
  const lanes: Lanes = { slow: 0, fast: 0, isLoud: false }
  const folder = yield* temporaryFolder
  const { baseUrl } = yield* ScriptedModel.make({
    onEvent: (event) =>
      Effect.suspend(() => {
        if (event.type !== "request") return Effect.void
        lanes[event.lane]++
        return lanes.isLoud ? onRequest(event) : Effect.void
      })
  }).pipe(Effect.mapError((error) => failed(`The scripted model ${error.message}.`)))
  const env =
    profile === AgentProfile.pi
      ? yield* forPi(baseUrl, path)
      : { OPENAI_BASE_URL: baseUrl, OPENAI_API_KEY: apiKey, OPENAI_MODEL: model }
  return { profile: { ...profile, env: { ...profile.env, ...env }, passEnv: [] }, folder, lanes }
})

const unsupported = (name: string): CommandFailure =>
  badInput(
    `The demo can't run "${name}", whose model is configured in its own files: use bundled, pi, or a command that asks ` +
      "the OpenAI-compatible model at OPENAI_BASE_URL. To run one turn of it there is acp-sidecar run."
  )
