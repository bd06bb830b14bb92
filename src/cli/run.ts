// acp-sidecar run: one turn of one agent, streamed.
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import { text as readText } from "node:stream/consumers"
import * as Agents from "./agents.ts"
import { badInput, type CommandFailure } from "./failure.ts"
import { folder, time } from "./flags.ts"
import { parseVariables } from "./input.ts"

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
    const cwd = yield* folder("cwd", given.cwd)
    const agent = yield* Agents.resolve(given.agent, env.success["PATH"] ?? process.env["PATH"] ?? "")
    const prompt = isStdin ? yield* Effect.promise(() => readText(process.stdin)) : given.prompt
    if (prompt.trim() === "") return yield* badInput("The prompt is empty.")

    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { main } = yield* Effect.promise(() => import("./oneTurn.ts"))
    yield* main({
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
    })
  })
).pipe(
  Command.withShortDescription("Run one prompt with an agent and stream what it does"),
  Command.withDescription(
    "Runs one turn of an agent. The agent's words go to stdout as they come; its thoughts, tool calls, plan and all " +
      "messages go to stderr, so that stdout is the answer alone.\n\n  " +
      "Ctrl-C cancels the turn and waits for the agent to end it (ACP_SIDECAR_CANCEL_GRACE, 10 s); a second Ctrl-C kills " +
      "the agent with everything it started. SIGTERM, SIGHUP and a reader of stdout that goes away cancel too.\n\n  " +
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
