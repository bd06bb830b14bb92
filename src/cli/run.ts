// acp-sidecar run: one turn of one agent, streamed.
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Terminal from "effect/Terminal"
import { statSync } from "node:fs"
import { resolve } from "node:path"
import { text as readText } from "node:stream/consumers"
import type { AgentProfile } from "../AgentProfile.ts"
import type * as Permission from "../Permission.ts"
import type * as Session from "../Session.ts"
import * as Sidecar from "../Sidecar.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import * as TurnOutcome from "../TurnOutcome.ts"
import * as Agents from "./agents.ts"
import * as Ask from "./ask.ts"
import { badInput, codeOf, CommandFailure, type ExitCode, exitCode, fromError, oneLine, sentence } from "./failure.ts"
import { parseTime, parseVariables } from "./input.ts"
import * as LiveAgents from "./LiveAgents.ts"
import * as Output from "./output.ts"
import * as Transcript from "./transcript.ts"

interface Options {
  readonly agent: AgentProfile
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  readonly permission: "ask" | "allow" | "reject"
  readonly timeout: Duration.Duration | undefined
  readonly idleTimeout: Duration.Duration | undefined
  readonly mode: string | undefined
  readonly authenticate: string | undefined
  readonly prompt: string
  readonly isJson: boolean
}

/** How the turn ended, for the exit code and for the user. */
export const conclude = (outcome: TurnOutcome.TurnOutcome): { readonly code: ExitCode; readonly message: string } => {
  switch (outcome._tag) {
    case "Completed":
      return outcome.stopReason === "cancelled"
        ? { code: exitCode.cancelled, message: "The agent cancelled the turn." }
        : {
            code: exitCode.done,
            message: outcome.stopReason === "end_turn" ? "" : `The agent stopped: ${oneLine(outcome.stopReason, 80)}.`
          }
    case "Cancelled":
      return {
        code: exitCode.cancelled,
        message:
          outcome.escalation === "retired"
            ? "The turn was cancelled; the agent did not end it and was stopped."
            : "The turn was cancelled."
      }
    case "Failed":
      return { code: codeOf(outcome.error), message: sentence(outcome.error) }
  }
}

const encodeOutcome = Schema.encodeUnknownSync(Schema.toCodecJson(TurnOutcome.TurnOutcome))

/** One line of `--json`. */
const jsonEvent = (event: SidecarEvent.SessionEvent): unknown =>
  event._tag === "TurnEnded" ? { ...event, outcome: encodeOutcome(event.outcome) } : event

const show = (turn: Session.Turn, isJson: boolean): Effect.Effect<void> => {
  if (isJson) return Stream.runForEach(turn.updates, (event) => Output.json(jsonEvent(event)))
  const transcript = Transcript.make(Output)
  const print = (pieces: ReadonlyArray<Transcript.Piece>) =>
    Effect.forEach(pieces, ({ sink, text }) => Output.write(sink, text), { discard: true })
  return Stream.runForEach(turn.updates, (event) => print(transcript.event(event))).pipe(
    Effect.ensuring(Effect.suspend(() => print(transcript.end())))
  )
}

const setMode = Effect.fnUntraced(function* (session: Session.Session, mode: string) {
  const modes = session.modes?.availableModes ?? []
  if (modes.some(({ id }) => id === mode)) return yield* Effect.mapError(session.setMode(mode), fromError)
  const offered = modes.map(({ id }) => oneLine(id, 80)).join(", ")
  return yield* badInput(
    `--mode "${oneLine(mode, 80)}" is not offered by the agent; ${offered === "" ? "it has no modes" : `its modes are ${offered}`}.`
  )
})

const oneTurn = Effect.fnUntraced(function* (
  options: Options
): Effect.fn.Return<void, CommandFailure, Sidecar.Sidecar | Scope.Scope | Terminal.Terminal> {
  const sidecar = yield* Sidecar.Sidecar
  const permission: Permission.Policy = options.permission === "ask" ? yield* Ask.make : options.permission
  const { authenticate } = options
  const session = yield* sidecar.openVm({ root: options.cwd, env: options.env }).pipe(
    Effect.flatMap((vm) => vm.openSession({ agent: options.agent, permission, authenticate })),
    Effect.mapError(fromError)
  )
  if (options.mode !== undefined) yield* setMode(session, options.mode)
  yield* Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const { idleTimeout, timeout } = options
      const turn = yield* session
        .submit(options.prompt, { idleTimeout, wallTimeout: timeout })
        .pipe(Effect.mapError(fromError))
      const showing = yield* Effect.forkChild(show(turn, options.isJson), { startImmediately: true })
      const exit = yield* Effect.exit(restore(turn.outcome))
      const outcome = Exit.isSuccess(exit) ? exit.value : yield* turn.cancel
      yield* Fiber.await(showing)
      const { code, message } = conclude(outcome)
      const end = { code, message: Exit.isSuccess(exit) ? message : conclude(outcome).message }
      if (options.isJson) {
        yield* Output.json({ _tag: "Outcome", exitCode: code, message, outcome: encodeOutcome(outcome) })
      }
      if (code !== exitCode.done) return yield* new CommandFailure(end)
      if (message !== "") yield* Output.note(message)
    })
  )
}, Effect.scoped)

const time = (
  flag: string,
  text: Option.Option<string>
): Effect.Effect<Duration.Duration | undefined, CommandFailure> => {
  if (Option.isNone(text)) return Effect.undefined
  const parsed = parseTime(text.value)
  return Result.isSuccess(parsed)
    ? Effect.succeed(parsed.success)
    : Effect.fail(badInput(`--${flag} can't be used: ${parsed.failure}.`))
}

/** Without anybody to ask, asking would only hang. */
const decidePermission = (
  given: Option.Option<"ask" | "allow" | "reject">,
  promptIsStdin: boolean
): Effect.Effect<"ask" | "allow" | "reject", CommandFailure> => {
  const canAsk = process.stdin.isTTY === true && !promptIsStdin
  if (Option.isNone(given)) return Effect.succeed(canAsk ? "ask" : "reject")
  if (given.value !== "ask" || canAsk) return Effect.succeed(given.value)
  return Effect.fail(
    badInput("--permission ask needs a terminal on stdin to ask; use --permission allow or --permission reject.")
  )
}

const isFolder = (path: string): boolean => {
  try {
    return statSync(path).isDirectory()
  } catch {
    return false
  }
}

export const run = Command.make(
  "run",
  {
    prompt: Argument.String("prompt").pipe(Argument.withDescription("What to tell the agent; - reads it from stdin")),
    agent: Flag.String("agent").pipe(
      Flag.withMetavar('NAME|"COMMAND"'),
      Flag.withDescription(`One of ${Agents.known.join(", ")}, a path, or a command line (quotes work, no shell)`)
    ),
    cwd: Flag.String("cwd").pipe(
      Flag.withMetavar("DIR"),
      Flag.withDescription("The folder to work in (default: the current one); the agent starts there"),
      Flag.withDefault(".")
    ),
    permission: Flag.Literals("permission", ["ask", "allow", "reject"]).pipe(
      Flag.withDescription("Who answers the agent's questions (default: ask on a terminal, else reject)"),
      Flag.optional
    ),
    timeout: Flag.String("timeout").pipe(
      Flag.withMetavar("TIME"),
      Flag.withDescription("Longest time for the turn, such as 5m (default: ACP_SIDECAR_TURN_TIMEOUT, or none)"),
      Flag.optional
    ),
    idleTimeout: Flag.String("idle-timeout").pipe(
      Flag.withMetavar("TIME"),
      Flag.withDescription(
        "Longest silence of the agent within the turn, such as 90s (default: ACP_SIDECAR_TURN_IDLE_TIMEOUT, or none)"
      ),
      Flag.optional
    ),
    env: Flag.String("env").pipe(
      Flag.withMetavar("NAME=VALUE"),
      Flag.withDescription(
        "A variable for the agent, which otherwise gets only the basic ones and its own; may be repeated"
      ),
      Flag.atLeast(0)
    ),
    mode: Flag.String("mode").pipe(
      Flag.withMetavar("ID"),
      Flag.withDescription("The agent's mode to set before the prompt"),
      Flag.optional
    ),
    authenticate: Flag.String("authenticate").pipe(
      Flag.withMetavar("METHOD"),
      Flag.withDescription("The method to sign in with when the agent asks for it"),
      Flag.optional
    ),
    json: Flag.Boolean("json").pipe(
      Flag.withDescription("One event of the turn a line as JSON, then the outcome; nothing else on stdout"),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* (given) {
    const { authenticate, mode } = given
    const isStdin = given.prompt === "-"
    const permission = yield* decidePermission(given.permission, isStdin)
    const timeout = yield* time("timeout", given.timeout)
    const idleTimeout = yield* time("idle-timeout", given.idleTimeout)
    const env = parseVariables(given.env)
    if (Result.isFailure(env)) return yield* badInput(`--env can't be used: ${env.failure}.`)
    const cwd = resolve(given.cwd)
    if (!isFolder(cwd)) return yield* badInput(`--cwd ${JSON.stringify(cwd)} is not a folder.`)
    const agent = yield* Agents.resolve(given.agent, env.success["PATH"] ?? process.env["PATH"] ?? "")
    const prompt = isStdin ? yield* Effect.promise(() => readText(process.stdin)) : given.prompt
    if (prompt.trim() === "") return yield* badInput("The prompt is empty.")

    const sidecar = Sidecar.layerLauncher.pipe(
      Layer.provide(LiveAgents.layerLauncher),
      Layer.provide(SidecarLimits.layerFromEnv)
    )
    yield* oneTurn({
      agent,
      cwd,
      env: env.success,
      permission,
      timeout,
      idleTimeout,
      mode: Option.getOrUndefined(mode),
      authenticate: Option.getOrUndefined(authenticate),
      prompt,
      isJson: given.json
    }).pipe(
      Effect.provide(sidecar),
      Effect.mapError((error) => (error instanceof CommandFailure ? error : fromError(error)))
    )
  })
).pipe(
  Command.withShortDescription("Run one prompt with an agent and stream what it does"),
  Command.withDescription(
    "Runs one turn of an agent. The agent's words go to stdout as they come; its thoughts, tool calls, plan and all " +
      "messages go to stderr, so that stdout is the answer alone.\n\n" +
      "Ctrl-C cancels the turn and waits for the agent to end it (ACP_SIDECAR_CANCEL_GRACE, 10 s); a second Ctrl-C kills " +
      "the agent with everything it started. SIGTERM, SIGHUP and a reader of stdout that goes away cancel too.\n\n" +
      "Exit codes: 0 done, 1 failed, 2 bad input, 124 timed out, 130 cancelled."
  ),
  Command.withExamples([
    { command: 'acp-sidecar run --agent claude "Explain this folder"' },
    {
      command: 'acp-sidecar run --agent "node my-agent.mjs --fast" --timeout 5m --permission allow "Fix the tests"',
      description: "Any command that speaks ACP"
    },
    { command: "git diff | acp-sidecar run --agent codex - > review.md", description: "The prompt from stdin" },
    { command: 'acp-sidecar run --agent pi --json "Hello" | jq -c ._tag', description: "Events for a program" }
  ])
)
