// Runs one scenario with real agents, offline, and says what each of them does. `npm run test:agents -- --help`.
import { spawn } from "node:child_process"
import { mkdir } from "node:fs/promises"
import { join, resolve } from "node:path"
import { parseArgs } from "node:util"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as References from "effect/References"
import * as Runtime from "effect/Runtime"
import * as AgentLauncher from "../../src/AgentLauncher.ts"
import { CommandFailure, type ExitCode, exitCode, failed } from "../../src/cli/failure.ts"
import * as Interrupts from "../../src/cli/Interrupts.ts"
import * as LiveAgents from "../../src/cli/LiveAgents.ts"
import * as Output from "../../src/cli/output.ts"
import { withSidecar } from "../../src/cli/sidecar.ts"
import * as Crowd from "./crowd.ts"
import { installArguments, parsePackage, recipes } from "./recipes.ts"
import * as Report from "./report.ts"
import * as Shared from "./shared.ts"
import * as SharedEnds from "./sharedEnds.ts"
import * as Stage from "./stage.ts"
import type { Sessions } from "./step.ts"
import * as Steps from "./steps.ts"

const names = Object.keys(recipes)
const parts = ["alone", "shared"]

const help = `Usage: npm run test:agents -- --agents DIR [NAME...] [--part PART] [--install] [--json]

Runs one scenario with each real agent that is installed in DIR/NAME: start, two sessions with concurrent turns, tool
calls, cancels, prompts while busy, trouble with the model, the death of the agent, close and dispose. Then the same with
ten sessions on one process: words, tools and cancels stay apart, one is closed early, the process is killed, and ends
when it is idle. The model is a scripted server on loopback, so no key and no network are needed, and each agent gets an
empty home folder. It takes three to five minutes an agent. A line with FAILED is a broken contract of the sidecar, and then the exit code is 1; what an
agent can't do is told and is no failure.

Agents (all that are installed by default): ${names.join(", ")}

Options:
  --agents DIR  the folder with the agents, each in a folder of its own
  --part PART   alone, or shared (ten sessions on one process); both by default
  --install     install the named agents (all by default) into DIR first, with npm, where they are missing: 100 to 460 MB each
  --json        one object a line: { agent, step, status, cell, detail, tookMillis }
  --help        this text`

const read = () => {
  try {
    const { positionals, values } = parseArgs({
      allowPositionals: true,
      options: {
        agents: { type: "string" },
        part: { type: "string" },
        install: { type: "boolean", default: false },
        json: { type: "boolean", default: false },
        help: { type: "boolean", short: "h", default: false }
      }
    })
    const unknown = positionals.filter((name) => !Object.hasOwn(recipes, name))
    if (unknown.length > 0) throw new Error(`There is no agent ${unknown.join(", ")}; there are ${names.join(", ")}.`)
    if (values.part !== undefined && !parts.includes(values.part)) {
      throw new Error(`There is no part ${values.part}; there are ${parts.join(" and ")}.`)
    }
    if (values.agents === undefined && !values.help) throw new Error("Say where the agents are: --agents DIR.")
    return { ...values, folder: resolve(values.agents ?? "."), names: positionals }
  } catch (error) {
    console.error((error as Error).message)
    return process.exit(exitCode.badInput)
  }
}

const options = read()

const installedVersion = (name: string) =>
  Stage.installed(join(options.folder, name), parsePackage(recipes[name]!.packages[0]).name)

const npm = (name: string): Effect.Effect<void, CommandFailure> =>
  Effect.callback<void, CommandFailure>((resume) => {
    const child = spawn("npm", installArguments(recipes[name]!, join(options.folder, name)), {
      stdio: ["ignore", "ignore", "inherit"]
    })
    child.once("error", ({ message }) => resume(Effect.fail(failed(`npm could not be started: ${message}`))))
    child.once("close", (code) =>
      resume(code === 0 ? Effect.void : Effect.fail(failed(`npm could not install ${name} (exit code ${code}).`)))
    )
    return Effect.sync(() => void child.kill())
  })

/** The agents to run: those that are named, else those that are there. */
const choose = Effect.gen(function* () {
  const wanted = options.names.length > 0 ? options.names : names
  const found: Array<string> = []
  for (const name of wanted) {
    if (options.install && (yield* installedVersion(name)) === undefined) {
      yield* Output.note(`installing ${name} into ${join(options.folder, name)}`)
      yield* Effect.promise(() => mkdir(join(options.folder, name), { recursive: true }))
      yield* npm(name)
    }
    if ((yield* installedVersion(name)) !== undefined) found.push(name)
    else if (options.names.length > 0 || options.install) {
      const command = ["npm", ...installArguments(recipes[name]!, join(options.folder, name))].join(" ")
      return yield* failed(`${name} is not installed. To install it: ${command}`)
    }
  }
  if (found.length > 0) return found
  const commands = names.map((name) =>
    ["npm", ...installArguments(recipes[name]!, join(options.folder, name))].join(" ")
  )
  return yield* failed(`There is no agent in ${options.folder}. To install some:\n${commands.join("\n")}`)
})

const tell = (result: Report.Result) => (options.json ? Output.json(result) : Output.line("out", Report.line(result)))

/** More than twice what the slowest step may take by the bounds in it. */
const stepBound = Duration.minutes(7)

/** Runs one step to its result; only an interrupt goes through. */
const attempt = Effect.fnUntraced(function* <A, R>(
  agent: string,
  step: string,
  effect: Effect.Effect<A, { readonly message: string }, R>,
  found: (value: A) => Pick<Report.Result, "cell" | "detail"> & { readonly cannot?: boolean }
) {
  const from = yield* Clock.currentTimeMillis
  const exit = yield* effect.pipe(
    Effect.timeoutOrElse({
      duration: stepBound,
      orElse: () => Effect.fail({ message: `it was not done within ${Duration.toMinutes(stepBound)} minutes` })
    }),
    Effect.catchDefect((defect) => Effect.fail({ message: `a defect: ${String(defect)}` })),
    Effect.result
  )
  const tookMillis = (yield* Clock.currentTimeMillis) - from
  if (exit._tag === "Failure") {
    const detail = exit.failure.message.replaceAll(/\s+/g, " ")
    return [{ agent, step, status: "failed", cell: "", detail, tookMillis } satisfies Report.Result, undefined] as const
  }
  const { cannot = false, cell, detail } = found(exit.success)
  const result: Report.Result = { agent, step, status: cannot ? "cannot" : "ok", cell, detail, tookMillis }
  return [result, exit.success] as const
})

const runAgent = Effect.fnUntraced(function* (name: string) {
  const recipe = recipes[name]!
  const version = yield* installedVersion(name)
  const known = parsePackage(recipe.packages[0])
  if (version !== known.version) {
    yield* Output.note(
      `${known.name} is installed as ${version}; what is known about it was measured with ${known.version}`
    )
  }
  const results: Array<Report.Result> = []
  const add = (result: Report.Result) => {
    results.push(result)
    return tell(result)
  }
  yield* add({ agent: name, step: "version", status: "ok", cell: `${version}`, detail: known.name, tookMillis: 0 })
  const alone = Effect.gen(function* () {
    const stage = yield* Stage.make(recipe, join(options.folder, name))
    const [started, made] = yield* attempt(name, "start", Steps.start(stage), ({ found }) => found)
    yield* add(started)
    for (const step of Steps.steps) {
      // Without sessions there is only one thing left to look at.
      if (made === undefined && step.name !== "afterwards") continue
      const work = step.run(stage, made?.sessions as Sessions)
      const [result] = yield* attempt(name, step.name, work, (value) => value)
      yield* add(result)
    }
  })
  const shared = Effect.gen(function* () {
    const stage = yield* Stage.make(recipe, join(options.folder, name), Crowd.share)
    const [started, made] = yield* attempt(name, "shared, start", Shared.start(stage), ({ found }) => found)
    yield* add(started)
    for (const step of [...Shared.steps, ...SharedEnds.steps]) {
      const isLast = step.name === "shared, afterwards"
      if (made?.crowd === undefined && !isLast) continue
      // Where one has to come after the other, how they are side by side is not worth the time.
      if (made?.isOneByOne === true && step !== Shared.join && !isLast) continue
      const crowd = made?.crowd ?? { all: [], decide: () => Effect.succeed("reject") }
      const work = Effect.andThen(Crowd.restore(stage, crowd), step.run(stage, crowd))
      const [result] = yield* attempt(name, step.name, work, (value) => value)
      yield* add(result)
    }
  })
  const chosen = { alone, shared }
  for (const [part, work] of Object.entries(chosen)) {
    if (options.part !== undefined && options.part !== part) continue
    yield* withSidecar(Effect.scoped(work)).pipe(
      // Of this machine's environment agents get nothing but what the recipe says.
      Effect.provideService(AgentLauncher.HostEnvironment, () => ({}))
    )
  }
  return results
})

const all = Effect.gen(function* () {
  const results: Array<Report.Result> = []
  for (const name of yield* choose) results.push(...(yield* runAgent(name)))
  const lines = Report.verdict(results)
  if (options.json) yield* Output.json({ type: "verdict", failed: results.filter(isFailed).length })
  else yield* Output.line("out", ["", Report.table(results), "", ...lines].join("\n"))
  const code: ExitCode = results.some(isFailed) ? exitCode.failed : exitCode.done
  return code
}).pipe(
  // The second prompt of a busy session is a limit that is used up on purpose.
  Effect.provideService(References.MinimumLogLevel, "Error")
)

const isFailed = ({ status }: Report.Result) => status === "failed"

const main = Effect.gen(function* () {
  const interrupts = yield* Interrupts.make
  const work = yield* Effect.forkChild(all, { startImmediately: true })
  yield* Effect.forkChild(Interrupts.guard(interrupts, work), { startImmediately: true })
  const exit: Exit.Exit<ExitCode, CommandFailure> = yield* Fiber.await(work)
  if (Exit.isSuccess(exit)) return exit.value
  if (Cause.hasInterruptsOnly(exit.cause)) return exitCode.cancelled
  const error = Cause.squash(exit.cause)
  yield* Output.note(error instanceof Error ? error.message : String(error))
  return error instanceof CommandFailure ? error.code : exitCode.failed
}).pipe(Effect.scoped, Effect.provideService(LiveAgents.LiveAgents, LiveAgents.make()))

const runMain = Runtime.makeRunMain(({ fiber, teardown }) => {
  fiber.addObserver((exit) => teardown(exit, (code) => process.exit(code)))
})

if (options.help) console.log(help)
else {
  runMain(main, {
    disableErrorReporting: true,
    teardown: (exit, onExit) => onExit(Exit.isSuccess(exit) ? (exit.value as ExitCode) : exitCode.failed)
  })
}
