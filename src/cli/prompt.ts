// acp-sidecar prompt: one turn of a session of a running sidecar.
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { text as readText } from "node:stream/consumers"
import { badInput } from "./failure.ts"
import { time } from "./flags.ts"
import * as Places from "./places.ts"

export const prompt = Command.make(
  "prompt",
  {
    session: Argument.String("session").pipe(Argument.withDescription("Its id, as acp-sidecar ps shows it")),
    text: Argument.String("text").pipe(
      Argument.withDescription("What to tell the agent; - or nothing reads it from stdin"),
      Argument.optional
    ),
    ...Places.flags,
    timeout: Flag.String("timeout").pipe(
      Flag.withMetavar("TIME"),
      Flag.withDescription("Longest time for the turn, such as 5m (default: that of the sidecar)"),
      Flag.optional
    ),
    idleTimeout: Flag.String("idle-timeout").pipe(
      Flag.withMetavar("TIME"),
      Flag.withDescription("Longest silence of the agent within the turn, such as 90s (default: that of the sidecar)"),
      Flag.optional
    ),
    json: Flag.Boolean("json").pipe(
      Flag.withDescription("One event of the turn a line as JSON, then the outcome; nothing else on stdout"),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* (given) {
    const timeout = yield* time("timeout", given.timeout)
    const idleTimeout = yield* time("idle-timeout", given.idleTimeout)
    const text = Option.getOrElse(given.text, () => "-")
    const isTerminal = process.stdin.isTTY === true
    if (Option.isNone(given.text) && isTerminal) {
      return yield* badInput("The prompt is missing: give it after the session, or on stdin.")
    }
    const places = yield* Places.find(given)
    const whole = text === "-" ? yield* Effect.promise(() => readText(process.stdin)) : text
    if (whole.trim() === "") return yield* badInput("The prompt is empty.")
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { main } = yield* Effect.promise(() => import("./promptTurn.ts"))
    yield* main(places, given.session, {
      prompt: whole,
      isAsking: isTerminal && text !== "-",
      timeout,
      idleTimeout,
      isJson: given.json
    })
  })
).pipe(
  Command.withShortDescription("Prompt a session of a running sidecar and stream what its agent does"),
  Command.withDescription(
    "Runs one turn of a session that an app has opened in a running sidecar. As with run, the agent's words go to stdout " +
      "as they come and all else to stderr. The app sees the turn too. On a terminal the agent's questions are put to you " +
      "as well; whoever answers first decides. Otherwise the session's own policy does.\n\n  " +
      "Ctrl-C cancels the turn and waits for the agent to end it; a second Ctrl-C leaves without waiting.\n\n  " +
      "Exit codes: 0 done, 1 failed, 2 bad input, 124 timed out, 130 cancelled."
  ),
  Command.withExamples([
    { command: 'acp-sidecar prompt session-1 "Explain this folder"' },
    { command: "git diff | acp-sidecar prompt session-1 > review.md", description: "The prompt from stdin" },
    { command: 'acp-sidecar prompt session-1 --json "Hello" | jq -c ._tag', description: "Events for a program" }
  ])
)
