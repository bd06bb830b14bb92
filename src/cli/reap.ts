// acp-sidecar reap: ends what killed sidecars have left running.
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"

export const reap = Command.make(
  "reap",
  {
    json: Flag.Boolean("json").pipe(
      Flag.withDescription("One JSON object: folder, records, live, reaped, gone, foreign, kept, broken"),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* ({ json }) {
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { main } = yield* Effect.promise(() => import("./reaping.ts"))
    yield* main(json)
  })
).pipe(
  Command.withShortDescription("End agents that killed sidecars have left running"),
  Command.withDescription(
    "Looks through the launch records (in ACP_SIDECAR_STATE) for agents whose sidecar or app is dead, and ends them with " +
      "everything they started: TERM, and KILL after 2 s. Each start of a sidecar does the same. A live sidecar's agents " +
      "are left alone, and so is a process that only has the number of one.\n\n  " +
      "Exit codes: 0 done, 1 something may still run, 2 bad input."
  ),
  Command.withExamples([
    { command: "acp-sidecar reap" },
    { command: "acp-sidecar reap --json | jq .reaped", description: "How many agents were ended, for a script" }
  ])
)
