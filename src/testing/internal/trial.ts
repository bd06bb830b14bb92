// One run of a machine with given commands, and what came of it.
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import type * as Machine from "../Machine.ts"
import type * as SeededScheduler from "../SeededScheduler.ts"
import * as Simulation from "../Simulation.ts"

/** Runs a check, which throws or is an Effect that fails. */
export const verify = (check: () => void | Effect.Effect<unknown, unknown>): Effect.Effect<unknown, unknown> =>
  Effect.suspend(() => {
    const effect: unknown = check()
    if (Effect.isEffect(effect)) return effect as Effect.Effect<unknown, unknown>
    // Types allow none, but `any` gets by; what it says later would be lost, and the check would seem to hold.
    return effect instanceof Promise
      ? Effect.die(new Error("A check gave a promise, which a simulation can't wait for; give an Effect, or throw."))
      : Effect.void
  })

const callersOf = (fibers: ReadonlyArray<Fiber.Fiber<unknown, unknown>>): Machine.Callers => ({
  leave: (index) =>
    Effect.suspend(() => {
      const waiting = fibers.filter((fiber) => fiber.pollUnsafe() === undefined)
      return waiting.length === 0 ? Effect.void : Fiber.interrupt(waiting[index % waiting.length]!)
    })
})

/** The whole program of one run of a machine. */
const programOf = <System, Model, Command>(
  machine: Machine.Machine<System, Model, Command>,
  steps: ReadonlyArray<Machine.Step<Command>>
): Effect.Effect<void, unknown> =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const fibers: Array<Fiber.Fiber<unknown, unknown>> = []
    const callers = callersOf(fibers)
    const [system, model] = yield* Effect.gen(function* () {
      const system = yield* Scope.provide(machine.start, scope)
      let model = machine.model
      const check = (property: Machine.Check<System, Model> | undefined) =>
        property === undefined ? Effect.void : verify(() => property(system, model))
      for (const { command, settle } of steps) {
        model = machine.next(model, command)
        const caller = machine.perform(system, command, callers)
        fibers.push(yield* Effect.forkChild(caller))
        if (settle) yield* Simulation.settle
        yield* check(machine.always)
        if (settle) yield* check(machine.settled)
      }
      yield* Simulation.settle
      yield* check(machine.always)
      yield* check(machine.settled)
      return [system, model] as const
    }).pipe(Effect.onExit((exit) => Scope.close(scope, Exit.asVoid(exit))))
    // A call that is still waiting now would wait forever: the run reports it as stuck.
    for (const fiber of fibers) {
      const exit = yield* Fiber.await(fiber)
      if (Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause)) yield* exit
    }
    const { always, closed } = machine
    if (always !== undefined) yield* verify(() => always(system, model))
    if (closed !== undefined) yield* verify(() => closed(system, model))
  })

/** One run of a machine with given commands. */
export const runSteps = <System, Model, Command>(
  machine: Machine.Machine<System, Model, Command>,
  steps: ReadonlyArray<Machine.Step<Command>>,
  options: Simulation.Options
): Machine.Trial => {
  const result = Simulation.run(programOf(machine, steps), options)
  return {
    message: Simulation.failureOf(result),
    cause: Simulation.causeOf(result),
    decisions: result.scheduler.decisions,
    choicePoints: result.scheduler.choicePoints ?? [],
    trace: result.trace
  }
}

/** How trials of one sequence are scheduled, and who watches them. */
export interface TrialOptions {
  readonly seed: number
  readonly order?: SeededScheduler.Options["order"]
  readonly maxSteps?: number | undefined
  readonly onTrial?: ((trial: Machine.Trial) => void) | undefined
  /** Whether a failed trial is of the kind that is looked for. */
  readonly wanted?: ((trial: Machine.Trial) => boolean) | undefined
}

/** The plain schedule, then each that differs from it in one choice; stops at the first wanted failure. */
export const everySingleChoice = <System, Model, Command>(
  machine: Machine.Machine<System, Model, Command>,
  steps: ReadonlyArray<Machine.Step<Command>>,
  options: TrialOptions
): { readonly runs: number; readonly trial: Machine.Trial | undefined } => {
  const { maxSteps, onTrial, order, seed, wanted = () => true } = options
  let runs = 0
  const attempt = (decisions: ReadonlyArray<SeededScheduler.Decision>): Machine.Trial => {
    runs++
    const recordChoicePoints = decisions.length === 0
    const trial = runSteps(machine, steps, { seed, order, maxSteps, decisions, recordChoicePoints })
    onTrial?.(trial)
    return trial
  }
  const plain = attempt([])
  if (plain.message !== undefined && wanted(plain)) return { runs, trial: plain }
  for (const point of plain.choicePoints) {
    const trial = attempt([point])
    if (trial.message !== undefined && wanted(trial)) return { runs, trial }
  }
  return { runs, trial: undefined }
}
