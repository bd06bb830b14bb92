// acp-sidecar agents: the agents that are known, and which of them are here.
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Agents from "./agents.ts"
import * as Output from "./output.ts"

export const agents = Command.make(
  "agents",
  {
    json: Flag.Boolean("json").pipe(
      Flag.withDescription("One JSON document: agents, each with name, installed, path, version, command, install, …"),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* ({ json }) {
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const [Installation, Table] = yield* Effect.promise(() =>
      Promise.all([import("./installation.ts"), import("./agentsTable.ts")])
    )
    const found = Agents.profiles.map((profile) => Installation.of(profile, process.env["PATH"] ?? ""))
    if (json) return yield* Output.json(Table.json(found))
    const width = Output.isTerminal("out") ? Output.columns() : Infinity
    const lines = Table.lines(found, { width, isColored: Output.canColor("out") })
    yield* Output.line("out", lines.join("\n"))
  })
).pipe(
  Command.withShortDescription("List the known agents, which are installed here, and how to install the others"),
  Command.withDescription(
    "Lists the agents that --agent knows by name: those whose command is on PATH, with the version that their npm " +
      "package names, and for the others how to install them. Nothing is started.\n\n  " +
      "Exit codes: 0 done, 2 bad input, 130 cancelled."
  ),
  Command.withExamples([
    { command: "acp-sidecar agents" },
    {
      command: "acp-sidecar agents --json | jq -r '.agents[] | select(.installed) | .name'",
      description: "The names of those that are installed, for a script"
    }
  ])
)
