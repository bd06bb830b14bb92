// The command line: reads the arguments, runs one command, and gives the exit code.
import * as Cause from "effect/Cause"
import * as CliConfig from "effect/cli/CliConfig"
import * as CliOutput from "effect/cli/CliOutput"
import * as Command from "effect/cli/Command"
import * as GlobalFlag from "effect/cli/GlobalFlag"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Runtime from "effect/Runtime"
import pkg from "../package.json" with { type: "json" }
import { agents } from "./cli/agentsCommand.ts"
import { cancel } from "./cli/cancel.ts"
import { close } from "./cli/close.ts"
import { doctor } from "./cli/doctor.ts"
import { demo } from "./cli/demo.ts"
import { CommandFailure, type ExitCode, exitCode, oneLine } from "./cli/failure.ts"
import * as Interrupts from "./cli/Interrupts.ts"
import * as LiveAgents from "./cli/LiveAgents.ts"
import * as Output from "./cli/output.ts"
import { prompt } from "./cli/prompt.ts"
import { ps } from "./cli/ps.ts"
import { reap } from "./cli/reap.ts"
import { run } from "./cli/run.ts"
import { serve } from "./cli/serve.ts"
import { stop } from "./cli/stop.ts"

const root = Command.make("acp-sidecar").pipe(
  Command.withDescription(
    "Runs coding agents that speak ACP (Agent Client Protocol): many sessions, concurrent turns, under supervision.\n\n  " +
      "The limits of the sidecar are set by environment variables (ACP_SIDECAR_*), for example " +
      "ACP_SIDECAR_START_TIMEOUT='2 minutes' or ACP_SIDECAR_TURN_TIMEOUT=off."
  ),
  Command.withExamples([
    { command: "acp-sidecar demo", description: "See two prompts run at the same time, with no key and no network" },
    { command: 'acp-sidecar run --agent claude "Explain this folder"', description: "Run one prompt with an agent" },
    { command: "acp-sidecar ps", description: "See the sidecars that run, with their sessions and agents" },
    { command: "acp-sidecar doctor gemini", description: "See whether an agent works here" }
  ]),
  Command.withSubcommands([demo, run, agents, doctor, serve, ps, prompt, cancel, close, stop, reap])
)

/** Help is what was asked for; a mistake gets a sentence and a hint, not a page. */
const presenter: CliOutput.Presenter = {
  present: (event) => {
    if (event._tag === "InvalidInvocation") {
      const problem = event.errors.map((error) => oneLine(error.message)).join("; ")
      const path = event.commandPath.join(" ")
      return Output.line("err", `acp-sidecar: ${problem}${/[.?!]$/.test(problem) ? "" : "."} See ${path} --help.`)
    }
    return event._tag === "Version"
      ? Output.line("out", `${event.name} ${event.version}`)
      : CliOutput.defaultPresenter.present(event)
  }
}

const logger = Logger.make<unknown, void>(({ logLevel, message }) => {
  if (logLevel === "Debug" || logLevel === "Trace" || logLevel === "Info") return
  const [first] = Array.isArray(message) ? message : [message]
  process.stderr.write(`acp-sidecar: ${oneLine(String(first))}\n`)
})

const codeOf = (
  cause: Cause.Cause<unknown>,
  interrupted: ExitCode
): { readonly code: ExitCode; readonly message: string } => {
  if (Cause.hasInterruptsOnly(cause)) return { code: interrupted, message: "" }
  const error = Cause.squash(cause)
  if (error instanceof CommandFailure) return error
  const tag = (error as { readonly _tag?: unknown } | null)?._tag
  // The presenter has said what there is to say.
  if (tag === "ShowHelp") {
    const { errors } = error as { readonly errors: ReadonlyArray<unknown> }
    return { code: errors.length === 0 ? exitCode.done : exitCode.badInput, message: "" }
  }
  const message = error instanceof Error ? error.message : String(error)
  return { code: exitCode.failed, message: oneLine(`internal error: ${message}`) }
}

type WithoutPlatform<T> =
  T extends Effect.Effect<infer A, infer E, infer R> ? Effect.Effect<A, E, Exclude<R, Command.Environment>> : never

const main = Effect.gen(function* () {
  const interrupts = yield* Interrupts.make
  const ending = yield* Interrupts.Ending
  // The platform is for prompts and flags that read files, of which there are none here. Commands bring their own, so
  // that help and mistakes don't wait for it to load.
  const parsed = Command.runWith(root, { version: pkg.version })(process.argv.slice(2))
  const command = yield* (parsed as WithoutPlatform<typeof parsed>).pipe(
    Effect.provide(
      Layer.mergeAll(
        Logger.layer([logger]),
        CliOutput.layerPresenter(presenter),
        CliConfig.layer({ builtIns: [GlobalFlag.Help, GlobalFlag.Version, GlobalFlag.Completions] })
      )
    ),
    Effect.forkChild({ startImmediately: true })
  )
  yield* Effect.forkChild(Interrupts.guard(interrupts, command), { startImmediately: true })
  const exit = yield* Fiber.await(command)
  if (Exit.isSuccess(exit)) return Output.isLost() ? exitCode.failed : exitCode.done
  const { code, message } = codeOf(exit.cause, ending.code)
  if (message !== "") yield* Output.note(message)
  return code
}).pipe(Effect.scoped, Effect.provideService(LiveAgents.LiveAgents, LiveAgents.make()))

const runMain = Runtime.makeRunMain(({ fiber, teardown }) => {
  fiber.addObserver((exit) => teardown(exit, (code) => process.exit(code)))
})

runMain(main, {
  disableErrorReporting: true,
  teardown: (exit, onExit) => onExit(Exit.isSuccess(exit) ? (exit.value as ExitCode) : exitCode.failed)
})
