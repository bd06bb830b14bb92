// acp-sidecar demo: two prompts at the same time, shown and judged.
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { badInput } from "./failure.ts"
import { parseTime } from "./input.ts"

export const demo = Command.make(
  "demo",
  {
    mode: Argument.Literals("mode", ["sessions", "vms"]).pipe(
      Argument.withDescription("sessions: one VM with two sessions (the default); vms: two VMs with one session each"),
      Argument.withDefault("sessions" as const)
    ),
    slow: Flag.String("slow").pipe(
      Flag.withMetavar("TIME"),
      Flag.withDescription("How long the model of the slow turn waits, from 2s (default 5s)"),
      Flag.withDefault("5s")
    ),
    agent: Flag.String("agent").pipe(
      Flag.withMetavar('NAME|"COMMAND"'),
      Flag.withDescription(
        "bundled (the default), pi, or a command that speaks ACP and asks the model at OPENAI_BASE_URL"
      ),
      Flag.withDefault("bundled")
    ),
    json: Flag.Boolean("json").pipe(
      Flag.withDescription("One JSON object a line; the last one is the verdict"),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* ({ agent, json, mode, slow: slowText }) {
    const slow = parseTime(slowText)
    if (Result.isFailure(slow)) return yield* badInput(`--slow can't be used: ${slow.failure}.`)
    const millis = Duration.toMillis(slow.success)
    if (millis < 2000 || millis > 600_000) {
      return yield* badInput("--slow has to be from 2s to 10m: the fast prompt is sent 1 s after the slow one.")
    }
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { main } = yield* Effect.promise(() => import("./demoExperiment.ts"))
    yield* main({ mode, slow: slow.success, agent, isJson: json })
  })
).pipe(
  Command.withShortDescription("Show two prompts of real agent processes running at the same time"),
  Command.withDescription(
    "Shows that prompts don't wait for each other. Two sessions of a real agent process are opened; prompt A's model " +
      "takes --slow, and one second later prompt B is sent, whose model answers at once. The model is a scripted server " +
      "on loopback, so no key and no network are needed.\n\n  " +
      "The verdict is CONCURRENT when B ends before A and takes less than half of the time that A still has to go.\n\n  " +
      "Exit codes: 0 concurrent, 1 serialized or failed, 2 bad input, 124 the start timed out, 130 cancelled."
  ),
  Command.withExamples([
    { command: "acp-sidecar demo", description: "One VM with two sessions" },
    { command: "acp-sidecar demo vms --slow 8s", description: "Two VMs, and a slower slow turn" },
    { command: "acp-sidecar demo --agent pi", description: "With pi, where it is installed" },
    { command: "acp-sidecar demo --json | tail -n 1", description: "The verdict alone, for a script" }
  ])
)
