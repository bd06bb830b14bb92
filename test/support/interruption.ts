// Does something to a program at each of its operations, one run per operation, and checks what is left each time: by
// default its root fiber is interrupted, as a caller that goes away would be.
//
// Each run gets a fresh world, a scheduler that is driven by hand and a clock that jumps when nothing else can run, so
// that run `k` is the plain run up to operation `k`, and a sleep costs nothing. With a seed, fibers also step aside at
// random. It relies on `currentOpCount`, an internal: with 31 in it every step of a fiber asks the scheduler.
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as Scheduler from "effect/Scheduler"
import type * as Scope from "effect/Scope"

type AnyFiber = Fiber.Fiber<unknown, unknown>

class HandScheduler implements Scheduler.Scheduler {
  readonly executionMode = "async" as const
  /** Called before each operation of each fiber; `true` makes the fiber step aside first. */
  onOperation: ((fiber: AnyFiber) => boolean) | undefined
  readonly live = new Set<AnyFiber>()
  #tasks: Array<() => void> = []
  #idle: Array<() => void> = []
  // After a step aside the runtime asks twice more, for the resumption and for the operation itself.
  #skips = new WeakMap<AnyFiber, number>()

  shouldYield(fiber: AnyFiber): boolean {
    if (!this.live.has(fiber)) {
      // Nothing real steps aside before a fiber's first operation: it would break `startImmediately`.
      this.live.add(fiber)
      fiber.addObserver(() => this.live.delete(fiber))
      return false
    }
    const skips = this.#skips.get(fiber) ?? 0
    if (skips > 0) {
      this.#skips.set(fiber, skips - 1)
      return false
    }
    const aside = this.onOperation?.(fiber) === true
    if (aside) this.#skips.set(fiber, 2)
    return aside
  }
  makeDispatcher(): Scheduler.SchedulerDispatcher {
    return { scheduleTask: (task) => this.add(task), flush: () => this.drain() }
  }
  add(task: () => void): void {
    this.#tasks.push(task)
  }
  /** The next thing that happens. */
  addFirst(task: () => void): void {
    this.#tasks.unshift(task)
  }
  step(): boolean {
    const next = this.#tasks.shift() ?? this.#idle.shift()
    next?.()
    return next !== undefined
  }
  drain(): void {
    while (this.step());
  }
  /** Waits until nothing else can run unless time moves on. */
  readonly settle: Effect.Effect<void> = Effect.callback<void>((resume) => {
    this.#idle.push(() => resume(Effect.void))
  })
}

class JumpingClock implements Clock.Clock {
  #now = 0
  #timers: Array<{ readonly at: number; readonly wake: () => void }> = []
  readonly currentTimeMillis = Effect.sync(() => this.currentTimeMillisUnsafe())
  readonly currentTimeNanos = Effect.sync(() => this.currentTimeNanosUnsafe())
  readonly monotonicTimeNanos = Effect.sync(() => this.currentTimeNanosUnsafe())
  get sleepers(): number {
    return this.#timers.length
  }
  currentTimeMillisUnsafe(): number {
    return this.#now
  }
  currentTimeNanosUnsafe(): bigint {
    return BigInt(Math.round(this.#now * 1_000_000))
  }
  monotonicTimeNanosUnsafe(): bigint {
    return this.currentTimeNanosUnsafe()
  }
  sleep(duration: Duration.Duration): Effect.Effect<void> {
    const millis = Duration.toMillis(duration)
    if (millis <= 0) return Effect.yieldNow
    if (!Number.isFinite(millis)) return Effect.never
    return Effect.callback<void>((resume) => {
      const timer = { at: this.#now + millis, wake: () => resume(Effect.void) }
      this.#timers.push(timer)
      return Effect.sync(() => {
        this.#timers = this.#timers.filter((other) => other !== timer)
      })
    })
  }
  /** Jumps to the next instant at which somebody wants to wake; `false` when there is none. */
  jump(scheduler: HandScheduler): boolean {
    if (this.#timers.length === 0) return false
    this.#now = Math.min(...this.#timers.map((timer) => timer.at))
    const due = this.#timers.filter((timer) => timer.at <= this.#now)
    this.#timers = this.#timers.filter((timer) => timer.at > this.#now)
    for (const timer of due) scheduler.add(timer.wake)
    return true
  }
}

export interface Program<World, A, E> {
  /** Makes what the program works on; its scope is closed after `check`. */
  readonly make: Effect.Effect<World, unknown, Scope.Scope>
  readonly body: (world: World) => Effect.Effect<A, E, Scope.Scope>
  /** What happens at the chosen operation. Interrupts the body by default. */
  readonly strike?: ((world: World) => Effect.Effect<unknown, unknown>) | undefined
  /** Throws or dies when something is not as it should be, after the body ended and nothing else can run. */
  readonly check: (world: World, exit: Exit.Exit<A, E>) => Effect.Effect<void>
  /** Throws when something is left after the world's scope was closed. */
  readonly closed?: ((world: World) => void) | undefined
  /** At most this many operations, spread evenly. */
  readonly maxPoints?: number | undefined
  /** Interleavings; 1 by default, which is the plain one. */
  readonly seeds?: number | undefined
}

const random = (seed: number) => {
  let state = seed * 2_654_435_761 + 1
  return () => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) | 0
    return (state >>> 8) / 0x1_00_00_00
  }
}

/** One run; the strike comes before the given operation, if at all. */
const runOnce = <World, A, E>(program: Program<World, A, E>, seed: number, at: number) => {
  const scheduler = new HandScheduler()
  const clock = new JumpingClock()
  const chance = random(seed)
  const context = Context.make(Clock.Clock, clock) as Context.Context<never>
  let operations = 0
  let world: World | undefined
  const main = Effect.gen(function* () {
    const made = yield* Effect.orDie(program.make)
    world = made
    const { sleepers } = clock
    const driver = yield* Effect.withFiber((fiber) => Effect.succeed<AnyFiber>(fiber))
    const root = yield* Effect.forkChild(Effect.scoped(program.body(made)))
    const strike = program.strike
    scheduler.onOperation = (fiber) => {
      if (fiber === driver) return false
      ;(fiber as unknown as { currentOpCount: number }).currentOpCount = 31
      if (++operations !== at) return seed > 0 && chance() < 0.05
      scheduler.addFirst(() => {
        if (strike === undefined) root.interruptUnsafe()
        else Effect.runForkWith(context)(strike(made), { scheduler })
      })
      return true
    }
    const exit = yield* Fiber.await(root)
    scheduler.onOperation = undefined
    yield* scheduler.settle
    yield* program.check(made, exit)
    yield* scheduler.settle
    if (clock.sleepers > sleepers) yield* Effect.die(new Error(`${clock.sleepers - sleepers} timers are left`))
  })
  const fiber = Effect.runForkWith(context)(Effect.scoped(main), { scheduler })
  for (let steps = 0; fiber.pollUnsafe() === undefined; steps++) {
    if (steps > 200_000) throw new Error("it never comes to rest")
    if (!scheduler.step() && !clock.jump(scheduler)) break
  }
  scheduler.drain()
  const exit = fiber.pollUnsafe()
  const problems: Array<string> = []
  if (exit === undefined) {
    problems.push("nothing can run, but it has not ended")
    fiber.interruptUnsafe()
  } else if (Exit.isFailure(exit)) problems.push(Cause.pretty(exit.cause).split("\n")[0]!)
  else if (scheduler.live.size > 0) problems.push(`${scheduler.live.size} fibers are left`)
  else if (clock.sleepers > 0) problems.push(`${clock.sleepers} timers are left`)
  else if (world !== undefined) {
    try {
      program.closed?.(world)
    } catch (error) {
      problems.push(String(error))
    }
  }
  return { operations, problem: problems[0] }
}

/** Strikes at each operation and throws what went wrong; gives the number of runs. */
export const assertSafe = <World, A, E>(program: Program<World, A, E>): number => {
  let runs = 0
  const failures: Array<string> = []
  for (let seed = 0; seed < (program.seeds ?? 1); seed++) {
    const plain = runOnce(program, seed, 0)
    if (plain.problem !== undefined) throw new Error(`seed ${seed}, with no strike: ${plain.problem}`)
    const stride = Math.max(1, plain.operations / (program.maxPoints ?? Number.POSITIVE_INFINITY))
    for (let point = 1 + seed * 0.37 * stride; point <= plain.operations; point += stride) {
      const operation = Math.floor(point)
      runs++
      const { problem } = runOnce(program, seed, operation)
      if (problem === undefined) continue
      failures.push(`seed ${seed}, operation ${operation} of ${plain.operations}: ${problem}`)
      if (failures.length >= 10) throw new Error(failures.join("\n"))
    }
  }
  if (failures.length > 0) throw new Error(failures.join("\n"))
  return runs
}
