// acp-sidecar demo: prompts at the same time, shown and judged.
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import { badInput } from "./failure.ts"
import { parseTime } from "./input.ts"

export const demo = Command.make(
  "demo",
  {
    mode: Argument.Literals("mode", ["sessions", "vms", "sidecars", "shared"]).pipe(
      Argument.withDescription(
        "sessions: one VM with two sessions (the default); vms: two VMs with one session each; sidecars: two sidecars with " +
          "one session each; shared: many sessions in one agent process"
      ),
      Argument.withDefault("sessions" as const)
    ),
    where: Flag.Literals("in", ["embedded", "process"]).pipe(
      Flag.withDescription("Where the sidecar runs: in this process (the default), or in one of its own"),
      Flag.withDefault("embedded" as const)
    ),
    slow: Flag.String("slow").pipe(
      Flag.withMetavar("TIME"),
      Flag.withDescription("How long the model of the slow turn waits, from 2s (default 5s)"),
      Flag.withDefault("5s")
    ),
    sessions: Flag.Int("sessions").pipe(
      Flag.withMetavar("N"),
      Flag.withDescription("How many sessions demo shared opens, from 2 to 50 (default 10)"),
      Flag.optional
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
  Effect.fnUntraced(function* ({ agent, json, mode, sessions: given, slow: slowText, where }) {
    const slow = parseTime(slowText)
    if (Result.isFailure(slow)) return yield* badInput(`--slow can't be used: ${slow.failure}.`)
    const millis = Duration.toMillis(slow.success)
    if (millis < 2000 || millis > 600_000) {
      return yield* badInput("--slow has to be from 2s to 10m: a shorter wait can hardly be told from none.")
    }
    const sessions = Option.getOrElse(given, () => 10)
    if (Option.isSome(given) && mode !== "shared") return yield* badInput("--sessions is for demo shared alone.")
    if (sessions < 2 || sessions > 50) return yield* badInput("--sessions has to be from 2 to 50.")
    // Loaded when it is needed, so that help and mistakes are answered at once.
    if (mode === "shared") {
      const { main } = yield* Effect.promise(() => import("./demoShared.ts"))
      return yield* main({ sessions, slow: slow.success, agent, isJson: json, where })
    }
    const { main } = yield* Effect.promise(() => import("./demoExperiment.ts"))
    yield* main({ mode, slow: slow.success, agent, isJson: json, where })
  })
).pipe(
  Command.withShortDescription("Show prompts of real agent processes running at the same time"),
  Command.withDescription(
    "Shows that prompts don't wait for each other. Two sessions of a real agent process are opened; prompt A's model " +
      "takes --slow, and one second later prompt B is sent, whose model answers at once. The model is a scripted server " +
      "on loopback, so no key and no network are needed.\n\n  " +
      "The verdict is CONCURRENT when B ends before A and takes less than half of the time that A still has to go.\n\n  " +
      "demo sidecars does this with two sidecars, and then disposes that of A while a prompt of B runs: INDEPENDENT when " +
      "that prompt completes, and one more after it. With --in process each sidecar is a process of its own, acp-sidecar " +
      "serve --stdio, and the demo is an app that is connected to it.\n\n  " +
      "demo shared opens --sessions sessions in one agent process and prompts all of them at once, each for a word of " +
      "its own. The model answers as soon as it has all prompts, the first of them --slow later. The verdict is SHARED " +
      "when the sidecar and the table of processes have one agent process, and CONCURRENT when the model had all prompts " +
      "at once and no session waited for the slow one; and no session may get another's id or answer.\n\n  " +
      "Exit codes: 0 all as it should be, 1 not so or failed, 2 bad input, 124 the start timed out, 130 cancelled."
  ),
  Command.withExamples([
    { command: "acp-sidecar demo", description: "One VM with two sessions" },
    { command: "acp-sidecar demo vms --slow 8s", description: "Two VMs, and a slower slow turn" },
    { command: "acp-sidecar demo sidecars --in process", description: "Two sidecars in processes of their own" },
    { command: "acp-sidecar demo shared --sessions 20", description: "Twenty sessions in one agent process" },
    { command: "acp-sidecar demo --agent pi", description: "With pi, where it is installed" },
    { command: "acp-sidecar demo --json | tail -n 1", description: "The verdict alone, for a script" }
  ])
)
