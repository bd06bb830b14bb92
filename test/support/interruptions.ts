// Strikes a program at each of its operations, one run per operation, and checks what is left each time. Every run gets
// a fresh world and a FIFO scheduler that is driven by hand, so run `k` is the plain run up to operation `k`. No clock:
// a program that sleeps is reported as stuck.
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as Scheduler from "effect/Scheduler"
import type * as Scope from "effect/Scope"

type AnyFiber = Fiber.Fiber<unknown, unknown>

export interface Program<World, A, E> {
  /** Makes what the program works on; its scope is closed after `check`. */
  readonly make: Effect.Effect<World, never, Scope.Scope>
  readonly body: (world: World) => Effect.Effect<A, E, Scope.Scope>
  /** What happens at the chosen operation. Interrupts the body by default. */
  readonly strike?: ((world: World) => void) | undefined
  /** Throws when something is not as it should be, after the body ended and nothing else can run. */
  readonly check: (world: World, exit: Exit.Exit<A, E>, operation: number) => void
}

class HandScheduler implements Scheduler.Scheduler {
  readonly executionMode = "async" as const
  /** Called before each operation of each fiber; `true` makes the fiber step aside first. */
  onOperation: ((fiber: AnyFiber) => boolean) | undefined
  #tasks: Array<() => void> = []
  #idle: Array<() => void> = []
  // After a step aside the runtime asks twice more, for the resumption and for the operation itself.
  #skips = new Map<AnyFiber, number>()

  shouldYield(fiber: AnyFiber): boolean {
    const skips = this.#skips.get(fiber)
    // Nothing real steps aside before a fiber's first operation: it would break `startImmediately`.
    if (skips === undefined) this.#skips.set(fiber, 0)
    if (skips === undefined) return false
    if (skips > 0) {
      this.#skips.set(fiber, skips - 1)
      return false
    }
    const aside = this.onOperation?.(fiber) === true
    if (aside) this.#skips.set(fiber, 2)
    return aside
  }
  makeDispatcher(): Scheduler.SchedulerDispatcher {
    return { scheduleTask: (task) => void this.#tasks.push(task), flush: () => this.drain() }
  }
  drain(): void {
    for (let steps = 0; steps < 100_000; steps++) {
      const next = this.#tasks.shift() ?? this.#idle.shift()
      if (next === undefined) return
      next()
    }
    throw new Error("it never comes to rest")
  }
  /** Waits until nothing else can run. */
  readonly settle: Effect.Effect<void> = Effect.callback<void>((resume) => {
    this.#idle.push(() => resume(Effect.void))
  })
}

/** One run; returns how many operations it had. */
const run = <World, A, E>(program: Program<World, A, E>, at: number): number => {
  const scheduler = new HandScheduler()
  let operations = 0
  const whole = Effect.gen(function* () {
    const world = yield* program.make
    yield* scheduler.settle
    const driver = yield* Effect.withFiber((fiber) => Effect.succeed<AnyFiber>(fiber))
    const root = yield* Effect.forkChild(Effect.scoped(program.body(world)))
    scheduler.onOperation = (fiber) => {
      if (fiber === driver) return false
      // Effect runs up to 32 steps without asking the scheduler, counted here; at 31 every step asks.
      ;(fiber as unknown as { currentOpCount: number }).currentOpCount = 31
      if (++operations !== at) return false
      if (program.strike === undefined) root.interruptUnsafe()
      else program.strike(world)
      return true
    }
    const exit = yield* Fiber.await(root)
    yield* scheduler.settle
    scheduler.onOperation = undefined
    yield* Effect.sync(() => program.check(world, exit, at))
  })
  const fiber = Effect.runFork(Effect.scoped(whole), { scheduler })
  scheduler.drain()
  const exit = fiber.pollUnsafe()
  if (exit === undefined) throw new Error(`struck at operation ${at}: nothing can run, but it has not ended`)
  if (Exit.isFailure(exit)) {
    const [reason] = exit.cause.reasons
    const error = reason?._tag === "Die" ? reason.defect : reason
    throw new Error(`struck at operation ${at}: ${error instanceof Error ? error.message : JSON.stringify(error)}`)
  }
  return operations
}

/** Strikes the program at every operation; throws what went wrong first. Returns the number of runs. */
export const atEveryOperation = <World, A, E>(program: Program<World, A, E>): number => {
  const operations = run(program, 0)
  for (let at = 1; at <= operations; at++) run(program, at)
  return operations
}
