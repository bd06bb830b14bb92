// acp-sidecar stop: ends running sidecars.
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { badInput } from "./failure.ts"
import * as Places from "./places.ts"

export const stop = Command.make(
  "stop",
  {
    all: Flag.Boolean("all").pipe(
      Flag.withDescription("All named sidecars of this user that run"),
      Flag.withDefault(false)
    ),
    ...Places.flags,
    json: Flag.Boolean("json").pipe(Flag.withDescription("One JSON object a sidecar and line"), Flag.withDefault(false))
  },
  Effect.fnUntraced(function* (given) {
    if (given.all && (Option.isSome(given.socket) || Option.isSome(given.url))) {
      return yield* badInput("Give --all or the one to stop, not both.")
    }
    const places = given.all ? yield* Places.findNamed(given) : yield* Places.find(given)
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { stopSidecars } = yield* Effect.promise(() => import("./stopping.ts"))
    yield* stopSidecars(places, given.all, given.json)
  })
).pipe(
  Command.withShortDescription("Stop a running sidecar, with all its sessions"),
  Command.withDescription(
    "Disposes a running sidecar, whoever uses it: its turns are cancelled, its sessions closed and its agents ended, within " +
      "its own grace periods. Waits until it no longer listens, and says what it ended.\n\n  " +
      "The keys of --json: socket, url, sidecarId, ended (vms, sessions, turns, hosts: how many), millis, problem.\n\n  " +
      "Exit codes: 0 gone, 1 failed, 2 bad input, 124 not gone in time, 130 cancelled. With --all, none to stop is 0."
  ),
  Command.withExamples([
    { command: "acp-sidecar stop", description: "The one that runs" },
    { command: "acp-sidecar stop --socket ~/.acp-sidecar.sock" },
    { command: "acp-sidecar stop --all --json" }
  ])
)
