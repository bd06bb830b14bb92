/**
 * An Effect scheduler whose every choice comes from a seed.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Scheduler from "effect/Scheduler"
import * as Prng from "./Prng.ts"

/**
 * A choice that differs from what a plain first-in-first-out scheduler would do. `at` is `fiber * 1_000_000 + n` when
 * the fiber stepped aside before its operation `n`, and `-n` when the run's task `n` was not the next in line. Such
 * keys stay the same when another decision is dropped, which shrinking needs.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Decision = readonly [at: number, choice: number]

/**
 * How a scheduler chooses.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly seed: number | string
  /** Chance, 0 to 1, that a fiber steps aside before an operation. Without it the seed picks one, 0 to 0.5. */
  readonly yieldProbability?: number | undefined
  /** Chance, 0 to 1, that another task than the next in line runs. Without it the seed picks one, 0 to 1. */
  readonly reorderProbability?: number | undefined
  /**
   * `perFiber` (the default) keeps the order of one fiber's tasks, as Effect's own scheduler promises. `any` keeps no
   * order and may show runs that can't happen.
   */
  readonly order?: "perFiber" | "any" | undefined
  /** Makes exactly these choices in place of random ones; `[]` is the plain first-in-first-out schedule. */
  readonly decisions?: ReadonlyArray<Decision> | undefined
  /** Whether `choicePoints` is kept; `false` by default. */
  readonly recordChoicePoints?: boolean | undefined
  /** Tasks after which a run counts as a livelock; 1,000,000 by default. */
  readonly maxSteps?: number | undefined
  /**
   * `manual` (the default): somebody calls `step`, as `Simulation.run` does. `immediate`: tasks run by themselves, so
   * that the scheduler can be given to `Effect.runPromise`.
   */
  readonly drive?: "manual" | "immediate" | undefined
}

/**
 * A live fiber as reports show it. `number` counts from 1 in each run, so that two runs compare; `name` has its spans
 * and `Effect.fn` names, innermost first.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface FiberInfo {
  readonly number: number
  readonly fiber: Fiber.Fiber<unknown, unknown>
  readonly name: string
}

/**
 * Called before each operation of a fiber but its first; `true` makes the fiber step aside before it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type OnOperation = (fiber: Fiber.Fiber<unknown, unknown>) => boolean

/**
 * Thrown by `step` when more than `maxSteps` tasks have run; the message names the live fibers.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class Livelock extends Error {
  override readonly name = "Livelock"
}

// No odds suit every bug: some need chaos, some need all but one or two choices to be plain. Varying them between seeds
// finds more than any fixed ones.
const swarm = { yield: [0, 0.005, 0.02, 0.1, 0.3, 0.5], reorder: [0, 0.05, 0.5, 1] }

interface Seen {
  readonly number: number
  operations: number
  /** Questions to skip because it has just stepped aside. */
  skip: number
}

interface Lane {
  readonly tasks: Array<readonly [task: () => void, priority: number]>
  listed: boolean
}

/**
 * A scheduler that draws two kinds of choices from its seed: which fiber's next task runs, and whether a fiber steps
 * aside before its next operation. What it chose is in `decisions`, from which the same run can be made again.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export class SeededScheduler implements Scheduler.Scheduler {
  readonly executionMode = "async" as const
  readonly seed: number | string
  readonly yieldProbability: number
  readonly reorderProbability: number
  /** The choices of this run that differ from the plain schedule. */
  readonly decisions: Array<Decision> = []
  /** Every choice that could have differed from the plain schedule, made or not, if the options ask for it. */
  readonly choicePoints: Array<Decision> | undefined
  /** Tasks run so far. */
  steps = 0
  /** Operations seen so far, all fibers together. */
  operations = 0
  onOperation: OnOperation | undefined

  readonly #prng: Prng.Prng
  readonly #replay: ReadonlyMap<number, number> | undefined
  readonly #anyOrder: boolean
  readonly #maxSteps: number
  readonly #pump: Scheduler.SchedulerDispatcher | undefined
  readonly #lanes: Array<Lane> = []
  readonly #urgent: Array<() => void> = []
  readonly #idle: Array<() => void> = []
  readonly #fibers = new Map<Fiber.Fiber<unknown, unknown>, Seen>()
  #fiberCount = 0
  #pumping = false

  constructor(options: Options) {
    const odds = Prng.make(options.seed, "swarm")
    this.seed = options.seed
    this.yieldProbability = options.yieldProbability ?? odds.pick(swarm.yield)
    this.reorderProbability = options.reorderProbability ?? odds.pick(swarm.reorder)
    this.choicePoints = options.recordChoicePoints === true ? [] : undefined
    this.#prng = Prng.make(options.seed, "schedule")
    this.#replay = options.decisions && new Map(options.decisions)
    this.#anyOrder = options.order === "any"
    this.#maxSteps = options.maxSteps ?? 1_000_000
    this.#pump = options.drive === "immediate" ? new Scheduler.MixedScheduler().makeDispatcher() : undefined
  }

  shouldYield(fiber: Fiber.Fiber<unknown, unknown>): boolean {
    this.operations++
    const seen = this.#fibers.get(fiber)
    if (seen === undefined) {
      this.#fibers.set(fiber, { number: ++this.#fiberCount, operations: 0, skip: 0 })
      fiber.addObserver(() => this.#fibers.delete(fiber))
      // No choice before the very first operation: `startImmediately` promises that it runs in the fork itself.
      return false
    }
    if (seen.skip > 0) {
      // After a step aside the runtime asks twice more: for the resumption, an operation of its own, and again for the
      // operation itself. Saying yes to the former lets every yield breed yields, and a run might never end.
      seen.skip--
      return false
    }
    const wanted = this.onOperation?.(fiber) === true
    const chosen = this.#choose(seen.number * 1_000_000 + ++seen.operations, 2, this.yieldProbability) === 1
    if (wanted || chosen) seen.skip = 2
    return wanted || chosen
  }

  makeDispatcher(): Scheduler.SchedulerDispatcher {
    const lane: Lane = { tasks: [], listed: false }
    return {
      scheduleTask: (task, priority) => this.schedule(task, priority, this.#anyOrder ? undefined : lane),
      flush: () => this.drain()
    }
  }

  /** Adds a task. Without a lane it is ordered against no other task. */
  schedule(task: () => void, priority = 0, lane: Lane = { tasks: [], listed: false }): void {
    let at = lane.tasks.length
    while (at > 0 && lane.tasks[at - 1]![1] > priority) at--
    lane.tasks.splice(at, 0, [task, priority])
    if (!lane.listed) {
      lane.listed = true
      this.#lanes.push(lane)
    }
    this.#wake()
  }

  /** Adds a task that runs before all others. */
  scheduleNext(task: () => void): void {
    this.#urgent.push(task)
    this.#wake()
  }

  /** Runs one task; `false` when none is ready. */
  step(): boolean {
    const count = this.#lanes.length
    if (count === 0 && this.#urgent.length === 0) return false
    if (++this.steps > this.#maxSteps) {
      throw new Livelock(`More than ${this.#maxSteps} tasks ran (seed ${this.seed}). Live fibers:\n${this.report()}`)
    }
    const urgent = this.#urgent.shift()
    if (urgent !== undefined) {
      urgent()
      return true
    }
    const at = count === 1 ? 0 : this.#choose(-this.steps, count, this.reorderProbability)
    const lane = this.#lanes[at]!
    this.#lanes.splice(at, 1)
    const task = lane.tasks.shift()![0]
    // The lane goes to the end of the list, so the plain schedule is a fair round robin.
    lane.listed = lane.tasks.length > 0
    if (lane.listed) this.#lanes.push(lane)
    task()
    return true
  }

  /** Runs one callback of `whenIdle`; `false` when tasks are ready or there is none. */
  stepIdle(): boolean {
    if (this.#lanes.length > 0 || this.#urgent.length > 0) return false
    const callback = this.#idle.shift()
    callback?.()
    return callback !== undefined
  }

  /** Runs everything that can run. */
  drain(): void {
    while (this.step() || this.stepIdle());
  }

  /** Calls back once, the next time no task is ready, `first` before others. The returned function withdraws it. */
  whenIdle(callback: () => void, first = false): () => void {
    if (first) this.#idle.unshift(callback)
    else this.#idle.push(callback)
    this.#wake()
    return () => {
      const at = this.#idle.indexOf(callback)
      if (at >= 0) this.#idle.splice(at, 1)
    }
  }

  /** Waits until no task is ready: every fiber waits for time to move on, or for something outside. */
  readonly settle: Effect.Effect<void> = Effect.callback<void>((resume) => {
    const withdraw = this.whenIdle(() => resume(Effect.void))
    return Effect.sync(withdraw)
  })

  /** Fibers that have begun under this scheduler and haven't ended, oldest first. */
  liveFibers(): Array<FiberInfo> {
    return Array.from(this.#fibers, ([fiber, { number }]) => ({ number, fiber, name: nameOf(fiber) }))
  }

  /** The live fibers, one a line. */
  report(): string {
    return formatFibers(this.liveFibers())
  }

  #choose(at: number, bound: number, probability: number): number {
    for (let other = 1; other < bound && this.choicePoints !== undefined; other++) this.choicePoints.push([at, other])
    let choice = 0
    if (this.#replay !== undefined) choice = (this.#replay.get(at) ?? 0) % bound
    else if (this.#prng.chance(probability)) choice = 1 + this.#prng.int(bound - 1)
    if (choice !== 0) this.decisions.push([at, choice])
    return choice
  }

  #wake(): void {
    if (this.#pump === undefined || this.#pumping) return
    this.#pumping = true
    this.#pump.scheduleTask(() => {
      this.#pumping = false
      this.drain()
    }, 0)
  }
}

/**
 * The spans and `Effect.fn` names of a fiber, innermost first.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const nameOf = (fiber: Fiber.Fiber<unknown, unknown>): string => {
  const names: Array<string> = []
  const span = fiber.cache.span
  if (span?._tag === "Span") names.push(span.name)
  for (let frame = fiber.cache.stackFrame; frame !== undefined && names.length < 6; frame = frame.parent) {
    if (names.at(-1) !== frame.name && !frame.name.endsWith(" (definition)")) names.push(frame.name)
  }
  return names.join(" < ") || "(unnamed fiber)"
}

/**
 * Fibers as reports show them, one a line.
 *
 * @stability unstable
 * @category formatting
 * @since 0.1.0
 */
export const formatFibers = (fibers: ReadonlyArray<FiberInfo>): string =>
  fibers.map((fiber) => `  #${fiber.number} ${fiber.name}`).join("\n") || "  (none)"
