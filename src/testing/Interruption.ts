/**
 * Strikes at each operation of a program, one run per operation, and checks what is left each time.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import * as Tracer from "effect/Tracer"
import { verify } from "./internal/trial.ts"
import * as SeededScheduler from "./SeededScheduler.ts"
import * as Simulation from "./Simulation.ts"

/**
 * The program, what happens to it, and what must hold afterwards. Checks throw, or are Effects that fail.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options<World, A, E> {
  /** Makes what the program works on. Its scope is closed after `check`. */
  readonly make: Effect.Effect<World, unknown, Scope.Scope>
  /** The program. It gets a scope of its own, which is closed before `check`. */
  readonly body: (world: World) => Effect.Effect<A, E, Scope.Scope>
  /** What happens at the chosen operation; by default the body is interrupted. It may fail, but not die. */
  readonly strike?: ((world: World) => Effect.Effect<unknown, unknown>) | undefined
  /** What holds when body and strike have ended and nothing can run. */
  readonly check: (world: World, exit: Exit.Exit<A, E>) => void | Effect.Effect<unknown, unknown>
  /** What holds after the world's scope was closed. No fiber and no timer may be left then. */
  readonly closed?: ((world: World) => void | Effect.Effect<unknown, unknown>) | undefined
  /** Interleavings to strike in; 1 by default, which is the plain one. */
  readonly seeds?: number | undefined
  /** At most this many operations per interleaving, spread evenly; all of them by default. */
  readonly maxPoints?: number | undefined
  /** Whether timers that body or strike set may still be pending after `check`; `false` by default. */
  readonly keepsTimers?: boolean | undefined
}

/**
 * A strike that went wrong.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Failure {
  readonly seed: number
  /** Counted from 1; 0 when the program failed with no strike. */
  readonly operation: number
  readonly message: string
  /** The error or defect behind the message; `undefined` for hangs and leaks. */
  readonly cause?: unknown
  /** The kind of the operation and its function's text. */
  readonly code: string
  /** The spans and `Effect.fn` names of the fiber, innermost first. */
  readonly span: string
}

/**
 * What came of all strikes.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Report {
  /** Runs with a strike. */
  readonly runs: number
  /** Operations of the program with no strike, for each interleaving. */
  readonly operations: ReadonlyArray<number>
  readonly failures: ReadonlyArray<Failure>
}

type AnyFiber = Fiber.Fiber<unknown, unknown>

/** Called at each operation, counted from 1; `true` strikes there. */
type OnOperation = (operation: number, fiber: AnyFiber) => boolean

// Effect runs up to 32 steps such as `map` in a row without asking the scheduler. Where these end depends on what ran
// before, so that any step can be the one; with 31 on this internal counter each step asks.
const exposeNextStep = (fiber: AnyFiber): void => {
  ;(fiber as { currentOpCount: number }).currentOpCount = 31
}

const runOnce = <World, A, E>(
  options: Options<World, A, E>,
  seed: number,
  onOperation: OnOperation,
  services?: Context.Context<never>
): { readonly operations: number; readonly message: string | undefined; readonly cause: unknown } => {
  let operations = 0
  const program = Effect.gen(function* () {
    const { clock, scheduler } = yield* Simulation.here
    const inWorld = Effect.gen(function* () {
      const world = yield* options.make
      const context = yield* Effect.context<never>()
      const driver = yield* Effect.withFiber((fiber) => Effect.succeed<AnyFiber>(fiber))
      const { sleepers } = clock
      const root = yield* Effect.forkChild(Effect.scoped(options.body(world)))
      let striker: AnyFiber | undefined
      scheduler.onOperation = (fiber) => {
        if (fiber === driver) return false
        exposeNextStep(fiber)
        if (!onOperation(++operations, fiber)) return false
        // The fiber steps aside and the strike is what happens next. An interrupt inside the operation itself would
        // be pending when it runs: nothing real does that, and `Scope.close` for one then drops its finalizers.
        scheduler.scheduleNext(() => {
          if (options.strike === undefined) root.interruptUnsafe()
          else striker = Effect.runForkWith(context)(options.strike(world), { scheduler })
        })
        return true
      }
      const exit = yield* Fiber.await(root)
      if (striker !== undefined) yield* Effect.catch(Fiber.join(striker), () => Effect.void)
      scheduler.onOperation = undefined
      yield* Simulation.settle
      yield* verify(() => options.check(world, exit))
      yield* Simulation.settle
      const timers = clock.sleepers - sleepers
      if (options.keepsTimers !== true && timers > 0) yield* Effect.die(new Error(`Left behind ${timers} timer(s)`))
      return world
    })
    const world = yield* Effect.scoped(inWorld)
    yield* Simulation.settle
    if (clock.sleepers > 0) yield* Effect.die(new Error(`Left behind ${clock.sleepers} timer(s) after the close`))
    const { closed } = options
    if (closed !== undefined) yield* verify(() => closed(world))
  })
  const result = Simulation.run(program, { seed, decisions: seed === 0 ? [] : undefined, services })
  return { operations, message: Simulation.failureOf(result), cause: Simulation.causeOf(result) }
}

/** Runs up to the operation again, watching the primitives, to say what it is. */
const lookUp = <World, A, E>(options: Options<World, A, E>, seed: number, operation: number) => {
  let span = ""
  let code = "(unknown operation)"
  let armed = false
  const native = Context.get(Context.empty(), Tracer.Tracer)
  const watching = Tracer.make({
    span: (spanOptions) => native.span(spanOptions),
    context: (primitive, fiber) => {
      if (armed) {
        armed = false
        code = describe(primitive)
      }
      return primitive["~effect/Effect/evaluate"](fiber)
    }
  })
  const watch: OnOperation = (index, fiber) => {
    if (index === operation) {
      span = SeededScheduler.nameOf(fiber)
      armed = true
    }
    return false
  }
  runOnce(options, seed, watch, Context.make(Tracer.Tracer, watching))
  return { code, span }
}

const describe = (primitive: object): string => {
  const fields = primitive as Record<string, unknown>
  const kind = String(fields["~effect/Effect/identifier"])
  const argument = fields["~effect/Effect/args"]
  return typeof argument === "function" ? `${kind}(${argument.toString().replace(/\s+/g, " ").slice(0, 80)})` : kind
}

const shown = 10

/**
 * Runs the program once for each of its operations, those of nested fibers included, and interrupts it there, as a
 * caller that goes away would; or does what `strike` says. Each run has a fresh world, and is the same as the one with
 * no strike up to that operation. Sleeps cost no time.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const atEveryOperation = <World, A, E>(options: Options<World, A, E>): Report => {
  const operations: Array<number> = []
  const failures: Array<Failure> = []
  let runs = 0
  for (let seed = 0; seed < (options.seeds ?? 1); seed++) {
    const plain = runOnce(options, seed, () => false)
    operations.push(plain.operations)
    if (plain.message !== undefined) {
      const { cause, message } = plain
      failures.push({ seed, operation: 0, message, cause, code: "(no strike)", span: "" })
      continue
    }
    const stride = Math.max(1, plain.operations / (options.maxPoints ?? Number.POSITIVE_INFINITY))
    // Where not all operations get their turn, each seed takes others.
    for (
      let point = 1 + (stride > 1 ? (seed * 0.37 * stride) % stride : 0);
      point <= plain.operations;
      point += stride
    ) {
      const operation = Math.floor(point)
      runs++
      const { cause, message } = runOnce(options, seed, (index) => index === operation)
      if (message === undefined) continue
      const where = failures.length < shown ? lookUp(options, seed, operation) : { code: "(not looked up)", span: "" }
      failures.push({ seed, operation, message, cause, ...where })
    }
  }
  return { runs, operations, failures }
}

/**
 * The failures of a report as a failed test should show them, at most 10.
 *
 * @stability unstable
 * @category formatting
 * @since 0.1.0
 */
export const format = (report: Report): string =>
  report.failures
    .slice(0, shown)
    .map(({ code, message, operation, seed, span }) =>
      operation === 0
        ? `with no strike (seed ${seed}): ${message}`
        : `struck at operation ${operation} of ${report.operations[seed]} (seed ${seed}): ${message}\n  ${code} in ${span}`
    )
    .concat(report.failures.length > shown ? [`... and ${report.failures.length - shown} more`] : [])
    .join("\n")

/**
 * Like `atEveryOperation`, but throws what went wrong, with the error behind the first failure as `cause`.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const assertSafe = <World, A, E>(options: Options<World, A, E>): Report => {
  const report = atEveryOperation(options)
  const [first] = report.failures
  if (first !== undefined) throw new Error(format(report), { cause: first.cause })
  return report
}
