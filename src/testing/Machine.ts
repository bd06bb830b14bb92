/**
 * Random commands against a system and a model of it, with failures shrunk and replayed.
 *
 * @since 0.1.0
 */
import type * as Effect from "effect/Effect"
import * as Hash from "effect/Hash"
import type * as Scope from "effect/Scope"
import { shrink } from "./internal/shrink.ts"
import * as internal from "./internal/trial.ts"
import * as Prng from "./Prng.ts"
import type * as SeededScheduler from "./SeededScheduler.ts"
import type * as Simulation from "./Simulation.ts"

/**
 * A property of a system, given its model: throws, or is an Effect that fails, when it doesn't hold.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Check<System, Model> = (system: System, model: Model) => void | Effect.Effect<unknown, unknown>

/**
 * The callers of the commands given so far. A command may let one of them go away.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Callers {
  /** Interrupts one whose command hasn't ended, counted from the oldest and around; does nothing when there is none. */
  readonly leave: (index: number) => Effect.Effect<void>
}

/**
 * A system under test, the commands it takes, and a pure model that says what it must look like.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Machine<System, Model, Command> {
  /** Makes a fresh system. Its scope is closed when all commands were given, or when a check failed. */
  readonly start: Effect.Effect<System, unknown, Scope.Scope>
  /** The model of a fresh system. */
  readonly model: Model
  /** Draws a command. Name things by index ("the second open session"), so that any part of a sequence makes sense. */
  readonly generate: (prng: Prng.Prng) => Command
  /** The model after a command. Pure. */
  readonly next: (model: Model, command: Command) => Model
  /** Gives a command to the system, in a fiber of its own, its caller: commands overlap. A failure fails the run. */
  readonly perform: (system: System, command: Command, callers: Callers) => Effect.Effect<unknown, unknown>
  /** What holds at any moment; checked after each command. Keep it fast. */
  readonly always?: Check<System, Model> | undefined
  /** What holds when nothing can run unless time moves on. */
  readonly settled?: Check<System, Model> | undefined
  /** What holds after the system's scope was closed. */
  readonly closed?: Check<System, Model> | undefined
  /** A command as reports show it; JSON by default. */
  readonly show?: ((command: Command) => string) | undefined
}

/**
 * A command, and whether everything settles before the next one is given.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Step<Command> {
  readonly command: Command
  readonly settle: boolean
}

/**
 * How far a check has come: sequences of commands tried, runs of the system, and about how many different traces these
 * had.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Progress {
  readonly sequences: number
  readonly runs: number
  readonly traces: number
}

/**
 * What a check tries, and for how long.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface CheckOptions {
  /** Command sequences to try; 300 by default, or as many as there is time for when `millis` is given. */
  readonly runs?: number | undefined
  /** Milliseconds after which no new sequence is begun; no bound by default. */
  readonly millis?: number | undefined
  /** Seed of the first sequence, 0 by default; each next one adds 1. */
  readonly seed?: number | undefined
  /** Commands in a sequence; 30 by default. */
  readonly commands?: number | undefined
  /** Chance, 0 to 1, that everything settles after a command. Without it the seed picks one. */
  readonly settleProbability?: number | undefined
  readonly yieldProbability?: number | undefined
  readonly order?: SeededScheduler.Options["order"]
  readonly maxSteps?: number | undefined
  /**
   * How each sequence is scheduled. `random` (the default): once, from its seed. `fifo`: once, plainly, to compare.
   * `everySingleChoice`: plainly, and again with each single choice changed, which is for short sequences and finds
   * narrow races that random schedules miss.
   */
  readonly schedule?: "random" | "fifo" | "everySingleChoice" | undefined
  /** Random schedules tried for each shorter sequence while shrinking; 30 by default. */
  readonly schedulesPerShrink?: number | undefined
  /** At most about this many runs are spent on shrinking; 10,000 by default. */
  readonly shrinkRuns?: number | undefined
  /** Called after each sequence. */
  readonly onProgress?: ((progress: Progress) => void) | undefined
}

/**
 * A failure, as small as it got, and a token that replays it with the same code.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Counterexample<Command> {
  readonly message: string
  /** The error or defect behind the message, whose stack says where it came from; `undefined` for hangs and leaks. */
  readonly cause?: unknown
  readonly seed: number
  readonly steps: ReadonlyArray<Step<Command>>
  readonly stepsBefore: number
  readonly decisions: ReadonlyArray<SeededScheduler.Decision>
  readonly decisionsBefore: number
  readonly trace: ReadonlyArray<string>
  readonly shrinkRuns: number
  /** Give this to `replay`. */
  readonly token: string
}

/**
 * What a check has tried, and the failure it found.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface CheckResult<Command> extends Progress {
  readonly counterexample: Counterexample<Command> | undefined
}

/**
 * What came of one run of a machine; without a `message` all went well.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Trial {
  readonly message: string | undefined
  /** The error or defect behind the message; `undefined` for hangs and leaks. */
  readonly cause?: unknown
  readonly decisions: ReadonlyArray<SeededScheduler.Decision>
  /** Every choice that could have differed from the plain schedule, if `recordChoicePoints` was set. */
  readonly choicePoints: ReadonlyArray<SeededScheduler.Decision>
  readonly trace: ReadonlyArray<string>
}

const drawSteps = <System, Model, Command>(
  machine: Machine<System, Model, Command>,
  seed: number,
  options: CheckOptions
): ReadonlyArray<Step<Command>> => {
  const prng = Prng.make(seed, "commands")
  const settleProbability = options.settleProbability ?? prng.pick([0, 0.3, 0.7, 1])
  return Array.from({ length: options.commands ?? 30 }, () => ({
    command: machine.generate(prng),
    settle: prng.chance(settleProbability)
  }))
}

/**
 * Runs random sequences of commands until one fails, which is then shrunk, or until there were enough.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const check = <System, Model, Command>(
  machine: Machine<System, Model, Command>,
  options: CheckOptions = {}
): CheckResult<Command> => {
  const { maxSteps, millis = Number.POSITIVE_INFINITY, onProgress, order, schedule, yieldProbability } = options
  const wanted = options.runs ?? (options.millis === undefined ? 300 : Number.POSITIVE_INFINITY)
  const end = performance.now() + millis
  const traces = new Set<number>()
  let sequences = 0
  let runs = 0
  const onTrial = (trial: Trial) => {
    runs++
    traces.add(Hash.string(trial.trace.join("\n")))
  }
  const once = (steps: ReadonlyArray<Step<Command>>, seed: number): Trial => {
    const decisions = schedule === "fifo" ? [] : undefined
    const trial = internal.runSteps(machine, steps, { seed, yieldProbability, order, maxSteps, decisions })
    onTrial(trial)
    return trial
  }
  let counterexample: Counterexample<Command> | undefined
  while (sequences < wanted && performance.now() < end && counterexample === undefined) {
    const seed = (options.seed ?? 0) + sequences++
    const steps = drawSteps(machine, seed, options)
    const trial =
      schedule === "everySingleChoice"
        ? internal.everySingleChoice(machine, steps, { seed, order, maxSteps, onTrial }).trial
        : once(steps, seed)
    if (trial?.message !== undefined) counterexample = shrink(machine, steps, trial, seed, options)
    onProgress?.({ sequences, runs, traces: traces.size })
  }
  return { sequences, runs, traces: traces.size, counterexample }
}

/**
 * Like `check`, but throws the failure as `format` shows it, with the error behind it as `cause`.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const assertHolds = <System, Model, Command>(
  machine: Machine<System, Model, Command>,
  options: CheckOptions = {}
): CheckResult<Command> => {
  const result = check(machine, options)
  const { counterexample } = result
  if (counterexample === undefined) return result
  throw new Error(format(machine, counterexample), { cause: counterexample.cause })
}

/**
 * One run of a machine with given commands.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const runSteps: <System, Model, Command>(
  machine: Machine<System, Model, Command>,
  steps: ReadonlyArray<Step<Command>>,
  options: Simulation.Options
) => Trial = internal.runSteps

/**
 * Runs given commands under the plain schedule and under each that differs from it in one choice, and stops at the
 * first failure. It misses no race that takes one fiber stepping aside, or one task going first, once.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const everySingleChoice = <System, Model, Command>(
  machine: Machine<System, Model, Command>,
  steps: ReadonlyArray<Step<Command>>,
  options: { readonly seed?: number | undefined; readonly order?: SeededScheduler.Options["order"] } = {}
): { readonly runs: number; readonly trial: Trial | undefined } =>
  internal.everySingleChoice(machine, steps, { ...options, seed: options.seed ?? 0 })

/**
 * Runs what a counterexample's token says again. A token is for the code that printed it.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const replay = <System, Model, Command>(machine: Machine<System, Model, Command>, token: string): Trial => {
  const { steps, ...options } = JSON.parse(token) as Simulation.Options & {
    readonly steps: ReadonlyArray<Step<Command>>
  }
  return internal.runSteps(machine, steps, options)
}

const showDecision = ([at, choice]: SeededScheduler.Decision): string =>
  at < 0
    ? `task ${-at} is not the next but number ${choice + 1} in line`
    : `fiber #${Math.floor(at / 1_000_000)} steps aside before its operation ${at % 1_000_000}`

const shownTrace = 200

/**
 * A counterexample as a failed test should show it, with the last 200 lines of its trace.
 *
 * @stability unstable
 * @category formatting
 * @since 0.1.0
 */
export const format = <System, Model, Command>(
  machine: Machine<System, Model, Command>,
  found: Counterexample<Command>
): string => {
  const show = machine.show ?? ((command: Command) => JSON.stringify(command))
  const { decisions, decisionsBefore, message, seed, shrinkRuns, steps, stepsBefore, token, trace } = found
  return [
    message,
    `seed ${seed}, ${shrinkRuns} runs to shrink`,
    `${steps.length} of ${stepsBefore} commands:`,
    ...steps.map((step, index) => `  ${index + 1}. ${show(step.command)}${step.settle ? "   (then settle)" : ""}`),
    decisions.length === 0
      ? "schedule: plain FIFO"
      : `schedule: ${decisions.length} of ${decisionsBefore} choices differ from FIFO: ${decisions.map(showDecision).join("; ")}`,
    trace.length > shownTrace ? `trace, without its first ${trace.length - shownTrace} lines:` : "trace:",
    ...trace.slice(-shownTrace).map((line) => `  ${line}`),
    `replay token: ${token}`
  ].join("\n")
}
