// Random commands against the core, under random interleavings. `npm run simulate -- --help`.
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { Machine } from "../../src/testing/index.ts"
import * as Core from "./machine.ts"
import * as Shared from "./shared/machine.ts"

/** `core`: sessions with a process each, and all that turns do. `shared`: sessions that share processes. */
const names = ["core", "shared"] as const
type Name = (typeof names)[number]

/** With `exhaustive`, some sessions are open from the start. */
const machines = {
  core: (count: (what: string) => void, exhaustive: boolean) => Core.make({ count, open: exhaustive ? 2 : 0 }),
  shared: (count: (what: string) => void, exhaustive: boolean) => Shared.make({ count, open: exhaustive ? 1 : 0 })
}

/** How often each thing was reached, by kind. */
const table = (counts: ReadonlyMap<string, number>): string => {
  const rows = Array.from(counts)
    .sort(([left], [right]) => left.localeCompare(right))
    .map(([what, times]) => `  ${String(times).padStart(9)}  ${what}`)
  return ["reached:", ...rows].join("\n")
}

interface Settings {
  readonly machine: Option.Option<Name>
  readonly runs: Option.Option<number>
  readonly millis: Option.Option<number>
  readonly seed: number
  readonly commands: Option.Option<number>
  readonly exhaustive: boolean
  readonly replay: Option.Option<string>
  readonly json: boolean
}

/** Gives what `use` makes of a machine, whose commands are known to nobody here. */
const withMachine = <A>(
  name: Name,
  count: (what: string) => void,
  exhaustive: boolean,
  use: <System, Model, Command>(machine: Machine.Machine<System, Model, Command>) => A
): A => (name === "core" ? use(machines.core(count, exhaustive)) : use(machines.shared(count, exhaustive)))

const replay = (token: string, { exhaustive, json, machine }: Settings): boolean => {
  const name = Option.getOrElse(machine, () => "core" as const)
  const { message, trace } = withMachine(
    name,
    () => {},
    exhaustive,
    (made) => Machine.replay(made, token)
  )
  if (json) console.log(JSON.stringify({ message: message ?? null, trace }))
  else console.log([...trace.map((line) => `  ${line}`), message ?? "No violation."].join("\n"))
  return message === undefined
}

const simulate = (name: Name, { commands, exhaustive, json, millis, runs, seed }: Settings): boolean => {
  const counts = new Map<string, number>()
  const count = (what: string): void => void counts.set(what, (counts.get(what) ?? 0) + 1)
  const start = performance.now()
  let told = start
  const rate = (made: number) => Math.round((made / (performance.now() - start)) * 1000)
  return withMachine(name, count, exhaustive, (machine) => {
    const result = Machine.check(machine, {
      seed,
      runs: Option.getOrUndefined(runs) ?? (Option.isSome(millis) ? undefined : exhaustive ? 100 : 1000),
      millis: Option.getOrUndefined(millis),
      commands: Option.getOrElse(commands, () => (exhaustive ? 3 : 30)),
      schedule: exhaustive ? "everySingleChoice" : "random",
      // What overlaps is what short sequences are for.
      settleProbability: exhaustive ? 0.2 : undefined,
      onProgress: (progress) => {
        if (performance.now() - told < 5000) return
        told = performance.now()
        console.error(
          `${name}: ${progress.sequences} sequences, ${progress.runs} runs, ${rate(progress.runs)} a second`
        )
      }
    })
    const seconds = (performance.now() - start) / 1000
    const { counterexample, sequences, traces } = result
    if (json) {
      const reached = Object.fromEntries(counts)
      console.log(
        JSON.stringify({
          machine: name,
          seed,
          sequences,
          runs: result.runs,
          traces,
          seconds,
          reached,
          counterexample: counterexample ?? null
        })
      )
    } else {
      console.log(`machine: ${name}`)
      console.log(table(counts))
      console.log(
        `${sequences} sequences from seed ${seed}, ${result.runs} runs, ${traces} different traces, ${seconds.toFixed(1)} s, ${rate(result.runs)} runs a second`
      )
      console.log(counterexample === undefined ? "No violation." : Machine.format(machine, counterexample))
    }
    return counterexample === undefined
  })
}

const positive = (name: string, what: string) =>
  Flag.Int(name).pipe(
    Flag.withDescription(what),
    Flag.filter(
      (value) => value > 0,
      () => `--${name} has to be more than 0.`
    ),
    Flag.optional
  )

const command = Command.make(
  "npm run simulate --",
  {
    machine: Flag.Literals("machine", names).pipe(
      Flag.withDescription("core: a process for each session; shared: sessions share processes. Both by default"),
      Flag.optional
    ),
    runs: positive("runs", "Sequences of commands to try (1,000 by default, 100 with --exhaustive)"),
    millis: positive("millis", "Milliseconds after which no new sequence is begun"),
    seed: Flag.Int("seed").pipe(
      Flag.withDescription("Seed of the first sequence; each next adds 1"),
      Flag.withDefault(0)
    ),
    commands: positive("commands", "Commands in a sequence (30 by default, 3 with --exhaustive)"),
    exhaustive: Flag.Boolean("exhaustive").pipe(
      Flag.withDescription("Short sequences, each with every single step of a fiber coming late"),
      Flag.withDefault(false)
    ),
    replay: Flag.String("replay").pipe(
      Flag.withDescription("Run what a token says again; with the --machine and the --exhaustive that printed it"),
      Flag.optional
    ),
    json: Flag.Boolean("json").pipe(Flag.withDescription("One JSON object"), Flag.withDefault(false))
  },
  (settings) =>
    Effect.sync(() => {
      const wanted = Option.match(settings.machine, { onNone: () => names, onSome: (name) => [name] })
      const good = Option.isSome(settings.replay)
        ? replay(settings.replay.value, settings)
        : wanted.map((name) => simulate(name, settings)).every(Boolean)
      if (!good) process.exitCode = 1
    })
).pipe(
  Command.withDescription(
    "Tests the core against a model: a real sidecar with scripted agents gets random commands (open, prompt, cancel, " +
      "answer, close, crash, garbage, dispose, …) whose callers overlap and go away, under a random scheduler and a " +
      "virtual clock. A failure is shrunk and printed with a token that repeats it. Exit code 1 when there is one."
  )
)

Command.run(command, { version: "0.1.0" }).pipe(Effect.provide(NodeServices.layer), NodeRuntime.runMain)
