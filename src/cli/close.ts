// acp-sidecar close: ends a session of a running sidecar.
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Places from "./places.ts"

export const close = Command.make(
  "close",
  {
    session: Argument.String("session").pipe(Argument.withDescription("Its id, as acp-sidecar ps shows it")),
    ...Places.flags,
    json: Flag.Boolean("json").pipe(
      Flag.withDescription("What was closed, as one JSON object"),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* (given) {
    const places = yield* Places.find(given)
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { closeSession } = yield* Effect.promise(() => import("./stopping.ts"))
    yield* closeSession(places, given.session, given.json)
  })
).pipe(
  Command.withShortDescription("Close a session of a running sidecar"),
  Command.withDescription(
    "Cancels what runs in a session, closes it and waits until that is done. Its agent process ends too, unless other " +
      "sessions share it.\n\n  " +
      "The keys of --json: sidecarId, sessionId, turns (those that were cancelled).\n\n  " +
      "Exit codes: 0 closed, 1 there is no such session or it failed, 2 bad input, 124 timed out, 130 cancelled."
  ),
  Command.withExamples([
    { command: "acp-sidecar close session-1" },
    { command: "acp-sidecar close session-1 --socket ~/.acp-sidecar.sock --json" }
  ])
)
