// acp-sidecar cancel: ends a turn of a running sidecar.
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Places from "./places.ts"

export const cancel = Command.make(
  "cancel",
  {
    turn: Argument.String("turn").pipe(Argument.withDescription("Its id, as acp-sidecar ps shows it")),
    session: Flag.String("session").pipe(
      Flag.withMetavar("ID"),
      Flag.withDescription("The session that it has to be a turn of (default: whichever has it)"),
      Flag.optional
    ),
    ...Places.flags,
    json: Flag.Boolean("json").pipe(
      Flag.withDescription("What was cancelled and how it ended, as one JSON object"),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* (given) {
    const places = yield* Places.find(given)
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { cancelTurn } = yield* Effect.promise(() => import("./stopping.ts"))
    yield* cancelTurn(places, given.turn, Option.getOrUndefined(given.session), given.json)
  })
).pipe(
  Command.withShortDescription("Cancel a turn of a running sidecar"),
  Command.withDescription(
    "Cancels a turn, waiting or running, and waits for its end, for which the agent has the grace of its sidecar " +
      "(ACP_SIDECAR_CANCEL_GRACE there). The session goes on.\n\n  " +
      "The keys of --json: sidecarId, sessionId, turnId, outcome.\n\n  " +
      "Exit codes: 0 it has ended, 1 there is no such turn or it failed, 2 bad input, 124 timed out, 130 cancelled."
  ),
  Command.withExamples([
    { command: "acp-sidecar cancel turn-7" },
    { command: "acp-sidecar cancel turn-7 --session session-1 --json" }
  ])
)
