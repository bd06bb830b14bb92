/**
 * Runs of an Effect program that follow from a seed: the interleaving of fibers, random numbers and time.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Random from "effect/Random"
import type * as Scope from "effect/Scope"
import * as SeededScheduler from "./SeededScheduler.ts"
import * as VirtualClock from "./VirtualClock.ts"

/**
 * What a program may use of the simulation it runs in. Lines in `trace` tell runs apart.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Here {
  readonly scheduler: SeededScheduler.SeededScheduler
  readonly clock: VirtualClock.VirtualClock
  readonly trace: Array<string>
}

/**
 * How a program runs. `drive` is always `manual` here.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options extends Omit<SeededScheduler.Options, "drive"> {
  /** Whether time jumps to the next timer when nothing can run (the default), or the program counts as stuck. */
  readonly autoAdvance?: boolean | undefined
  /** Services for every fiber of the run, such as a `Tracer`. */
  readonly services?: Context.Context<never> | undefined
}

/**
 * What came of a run.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Run<A, E> extends Here {
  /** Absent when the program got stuck or ran in circles. */
  readonly exit: Exit.Exit<A, E> | undefined
  /** Why there is no `exit`, with the live fibers. */
  readonly stuck: string | undefined
  /** Fibers that were alive after the program had ended and all that could run had run. */
  readonly leaked: ReadonlyArray<SeededScheduler.FiberInfo>
  /** Sleeps that were pending then. */
  readonly sleepers: number
}

const Current = Context.Reference<Here | undefined>("acp-sidecar/testing/Simulation", {
  defaultValue: () => undefined
})

/**
 * The simulation that this fiber runs in. Dies outside of one.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const here: Effect.Effect<Here> = Effect.withFiber((fiber) => {
  const current = fiber.getRef(Current)
  return current === undefined
    ? Effect.die(new Error("This runs in no simulation; start it with Simulation.run."))
    : Effect.succeed(current)
})

/**
 * Adds a line to the run's trace. Does nothing outside a simulation.
 *
 * @stability unstable
 * @category combinators
 * @since 0.1.0
 */
export const trace = (line: string): Effect.Effect<void> =>
  Effect.withFiber((fiber) => {
    fiber.getRef(Current)?.trace.push(line)
    return Effect.void
  })

/**
 * Waits until nothing can run unless time moves on. Dies outside a simulation.
 *
 * @stability unstable
 * @category combinators
 * @since 0.1.0
 */
export const settle: Effect.Effect<void> = Effect.flatMap(here, ({ scheduler }) => scheduler.settle)

/**
 * Runs a program to its end, synchronously, under a `SeededScheduler` and a `VirtualClock` of its own, and closes its
 * scope. Two runs with the same options are the same. A program that waits for a promise, a native timer or I/O can't
 * go on and is reported as stuck.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const run = <A, E>(program: Effect.Effect<A, E, Scope.Scope>, options: Options): Run<A, E> => {
  const scheduler = new SeededScheduler.SeededScheduler(options)
  const clock = new VirtualClock.VirtualClock(scheduler)
  const current: Here = { scheduler, clock, trace: [] }
  const context = (options.services ?? Context.empty()).pipe(
    Context.add(Clock.Clock, clock),
    Context.add(Current, current)
  )
  const seeded = Effect.scoped(program).pipe(Random.withSeed(String(options.seed)))
  let stuck: string | undefined
  const fiber = Effect.runForkWith(context)(seeded, { scheduler })
  try {
    while (fiber.pollUnsafe() === undefined) {
      if (scheduler.step() || scheduler.stepIdle()) continue
      if (options.autoAdvance !== false && clock.fireNext()) continue
      stuck = `Nothing can run, but the program has not ended. Live fibers:\n${scheduler.report()}`
      break
    }
    if (stuck === undefined) scheduler.drain()
  } catch (error) {
    if (!(error instanceof SeededScheduler.Livelock)) throw error
    stuck = error.message
  }
  const result: Run<A, E> = {
    ...current,
    exit: stuck === undefined ? fiber.pollUnsafe() : undefined,
    stuck,
    leaked: scheduler.liveFibers(),
    sleepers: clock.sleepers
  }
  // After the report, so that a stuck run holds on to nothing.
  if (stuck !== undefined) fiber.interruptUnsafe()
  return result
}

/**
 * What is wrong with a run: it failed, died, got stuck, ran in circles or left fibers behind; `undefined` when nothing is.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const failureOf = <A, E>(result: Run<A, E>): string | undefined => {
  if (result.stuck !== undefined) return result.stuck
  if (result.exit !== undefined && Exit.isFailure(result.exit)) {
    const [error] = Cause.prettyErrors(result.exit.cause)
    return error?.message ?? Cause.pretty(result.exit.cause)
  }
  if (result.leaked.length === 0) return undefined
  return `Left behind ${result.leaked.length} fiber(s):\n${SeededScheduler.formatFibers(result.leaked)}`
}

/**
 * The error or defect that a run ended with, whose stack says where it came from; `undefined` when it ended otherwise.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const causeOf = <A, E>(result: Run<A, E>): unknown =>
  result.exit !== undefined && Exit.isFailure(result.exit) ? Cause.squash(result.exit.cause) : undefined

/**
 * What came of many runs: how many there were, how many failed, how the first of these did (with its trace, and the
 * error it ended with, if any), and how many different traces there were.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Exploration {
  readonly runs: number
  readonly traces: number
  readonly failures: number
  readonly first:
    | {
        readonly seed: number
        readonly message: string
        readonly trace: ReadonlyArray<string>
        readonly cause: unknown
      }
    | undefined
}

/**
 * Runs one program under `runs` seeds, from `seed` (0 by default) on. Never throws; `assertHolds` does.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const explore = <A, E>(
  program: Effect.Effect<A, E, Scope.Scope>,
  options: Omit<Options, "seed"> & { readonly runs: number; readonly seed?: number | undefined }
): Exploration => {
  const traces = new Set<string>()
  let failures = 0
  let first: Exploration["first"]
  for (let index = 0; index < options.runs; index++) {
    const seed = (options.seed ?? 0) + index
    const result = run(program, { ...options, seed })
    traces.add(result.trace.join("\n"))
    const message = failureOf(result)
    if (message === undefined) continue
    failures++
    first ??= { seed, message, trace: result.trace, cause: causeOf(result) }
  }
  return { runs: options.runs, traces: traces.size, failures, first }
}

/**
 * Like `explore`, but throws the first failure: its message, its seed and its trace, with the error itself as `cause`.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const assertHolds = <A, E>(
  program: Effect.Effect<A, E, Scope.Scope>,
  options: Parameters<typeof explore>[1]
): Exploration => {
  const result = explore(program, options)
  const { failures, first, runs } = result
  if (first === undefined) return result
  const lines = [first.message, `seed ${first.seed}; ${failures} of ${runs} runs failed`, "trace:"]
  throw new Error([...lines, ...first.trace.map((line) => `  ${line}`)].join("\n"), { cause: first.cause })
}
