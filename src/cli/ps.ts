// acp-sidecar ps: the running sidecars and what they have.
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Places from "./places.ts"

export const ps = Command.make(
  "ps",
  {
    ...Places.flags,
    json: Flag.Boolean("json").pipe(
      Flag.withDescription("One JSON object a sidecar and line, with the same keys each"),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* (given) {
    const places = yield* Places.find(given)
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { main } = yield* Effect.promise(() => import("./psList.ts"))
    yield* main(places, given.json)
  })
).pipe(
  Command.withShortDescription("Show running sidecars with their sessions, turns and agents"),
  Command.withDescription(
    "Shows the sidecars that run: their VMs, sessions, turns (phase and lane) and agent processes. Without --socket, --url " +
      "and ACP_SIDECAR_SOCKET those are the ones with a socket in the state folder: ACP_SIDECAR_STATE, or else " +
      "$XDG_STATE_HOME/acp-sidecar or ~/.local/state/acp-sidecar. A socket where nobody answers is shown as dead.\n\n  " +
      "The keys of --json: socket, url, state (ready, disposing, disposed, unreachable), problem, sidecarId, version, " +
      "activePrompts, vms (vmId, root, opening, activePrompts, sessions), hosts (hostId, agent, pid, state, sessions, " +
      "uptimeMillis, memoryBytes, restarts, …) and heldBack (agent, retryInMillis, reason, …). A session has sessionId, " +
      "agentSessionId, agent, pid, hostId, cwd, state, pendingPermissions, idleMillis, turns (turnId, phase, lane) and more. " +
      "What is not known is null or [].\n\n  " +
      "Exit codes: 0 shown, also when there is none, 1 the one that was chosen does not answer, 2 bad input, 130 cancelled."
  ),
  Command.withExamples([
    { command: "acp-sidecar ps" },
    {
      command: "acp-sidecar ps --json | jq -r '.vms[].sessions[].sessionId'",
      description: "All sessions, for a script"
    },
    { command: "acp-sidecar ps --url ws://127.0.0.1:8123 --token-file ~/.acp-sidecar.token" }
  ])
)
