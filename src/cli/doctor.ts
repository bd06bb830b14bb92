// acp-sidecar doctor: whether an agent works here, and if not, why and what to do.
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Agents from "./agents.ts"
import { badInput, exitCode } from "./failure.ts"
import { folder, time } from "./flags.ts"
import { parseVariables } from "./input.ts"

export const doctor = Command.make(
  "doctor",
  {
    agent: Argument.String("agent").pipe(
      Argument.withDescription(`One of ${Agents.known.join(", ")}, a path, or a command line (quotes work, no shell)`)
    ),
    cwd: Flag.String("cwd").pipe(
      Flag.withMetavar("DIR"),
      Flag.withDescription("The folder to start it in (default: the current one)"),
      Flag.withDefault(".")
    ),
    timeout: Flag.String("timeout").pipe(
      Flag.withMetavar("TIME"),
      Flag.withDescription(
        "Longest time for the start as a whole, and for the prompt, such as 30s (default: ACP_SIDECAR_START_TIMEOUT)"
      ),
      Flag.optional
    ),
    env: Flag.String("env").pipe(
      Flag.withMetavar("NAME=VALUE"),
      Flag.withDescription("A variable for the agent; may be repeated"),
      Flag.atLeast(0)
    ),
    authenticate: Flag.String("authenticate").pipe(
      Flag.withMetavar("METHOD"),
      Flag.withDescription("The method to sign in with when the agent asks for it; without it nothing signs in"),
      Flag.optional
    ),
    prompt: Flag.String("prompt").pipe(
      Flag.withMetavar("TEXT"),
      Flag.withDescription(
        "Also run this prompt, with permission for nothing; it may cost money. Without it no prompt is sent"
      ),
      Flag.optional
    ),
    json: Flag.Boolean("json").pipe(
      Flag.withDescription(
        "One JSON document on stdout: works, problem, findings, command, package, environment, phases, initialize, " +
          "session, prompt, stdout, stderr, end, quirks; the steps go to stderr"
      ),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* (given) {
    const timeout = yield* time("timeout", given.timeout)
    const env = parseVariables(given.env)
    if (Result.isFailure(env)) return yield* badInput(`--env can't be used: ${env.failure}.`)
    const cwd = yield* folder("cwd", given.cwd)
    const prompt = Option.getOrUndefined(given.prompt)
    if (prompt?.trim() === "") return yield* badInput("--prompt is empty.")
    // A known agent that is not installed is something to report.
    const path = env.success["PATH"] ?? process.env["PATH"] ?? ""
    const agent = yield* Agents.resolve(given.agent, path, "The agent").pipe(
      Effect.catchTag("CommandFailure", (failure) =>
        failure.code === exitCode.badInput
          ? Effect.fail(failure)
          : Effect.succeed(Result.getOrThrow(Agents.parse(given.agent)))
      )
    )
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { main } = yield* Effect.promise(() => import("./examination.ts"))
    yield* main({
      agent,
      cwd,
      env: env.success,
      timeout,
      authenticate: Option.getOrUndefined(given.authenticate),
      prompt,
      isJson: given.json
    })
  })
).pipe(
  Command.withShortDescription("Start an agent and say whether it works, and if not, why and what to do"),
  Command.withDescription(
    "Starts an agent, opens a session, ends it again, and reports each step with its time: versions, what it can do, how " +
      "to sign in, its modes, models and options, what it writes beside ACP, and how it ends. The last line is the " +
      "verdict. Nothing is sent to a model unless --prompt is given, nothing signs in unless --authenticate is given, and " +
      "nothing is left running. Secrets are taken out of everything that is shown.\n\n  " +
      "Exit codes: 0 works, 1 does not, 2 bad input, 124 a step timed out, 130 cancelled."
  ),
  Command.withExamples([
    { command: "acp-sidecar doctor claude" },
    { command: 'acp-sidecar doctor "node my-agent.mjs --fast" --timeout 10s', description: "Any command" },
    { command: 'acp-sidecar doctor gemini --prompt "Say hello"', description: "Its model too" },
    { command: "acp-sidecar doctor codex --authenticate api-key", description: "With a sign-in, if it asks for one" },
    { command: "acp-sidecar doctor pi --json | jq .problem", description: "For a script; null when it works" }
  ])
)
