/**
 * One sidecar of a pool: its connection, which is made for the first lease, its leases, and its end.
 *
 * @internal
 */
import * as Cause from "effect/Cause"
import type * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import * as Address from "../Address.ts"
import * as Lease from "../Lease.ts"
import type * as Sidecar from "../Sidecar.ts"
import * as SidecarError from "../SidecarError.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import type * as SidecarPool from "../SidecarPool.ts"
import type * as Vm from "../Vm.ts"
import * as Closing from "./closing.ts"

type Service = Sidecar.Sidecar["Service"]

/** What a sidecar gets from its pool. */
export interface Owner {
  readonly connector: SidecarPool.SidecarConnector["Service"]
  /** What connections run with, whoever is the first to need one. */
  readonly services: Context.Context<never>
  readonly metrics: Context.Context<never>
  /** Owns the connections. */
  readonly connections: Scope.Scope
  /** Owns the leases. It is closed after the sidecars were disposed. */
  readonly leases: Scope.Scope
  /** Connections that are ending: the next one to a sidecar of that name waits for them. */
  readonly ending: Set<Ending>
  /** Makes room for another sidecar of that name. It must do nothing when the place is another's already. */
  readonly remove: (self: PooledSidecar) => void
  /** Nothing of it is left. */
  readonly gone: (self: PooledSidecar) => void
}

export interface Ending {
  readonly sidecarId: Address.SidecarId
  readonly over: Effect.Effect<void>
}

export interface PooledSidecar {
  readonly handle: SidecarPool.Handle
  readonly state: () => Sidecar.State
  /** The leases that count. */
  readonly leases: Lease.Ledger
}

interface Starting {
  readonly _tag: "Starting"
  readonly done: Deferred.Deferred<Up, SidecarPool.LeaseError>
  waiters: number
  fiber: Fiber.Fiber<void> | undefined
}

interface Up {
  readonly _tag: "Up"
  /** As the connector gave it. */
  readonly sidecar: Service
  /** Keeps this process alive, for each lease and while the sidecar is disposed. */
  readonly hold: Effect.Effect<void, never, Scope.Scope>
  /** Vms that were opened through the handle. */
  readonly vms: Scope.Scope
  /** Ends the connection, and the process if one was started for it. */
  readonly close: Effect.Effect<void>
  isDisposed: boolean
}

type Connection = { readonly _tag: "None" } | Starting | Up

type Disposal = Deferred.Deferred<void, SidecarPool.DisposeFailed>

const none: Connection = { _tag: "None" }

/** How long something may take that has no time of its own, and what is added to the times of others. */
const margin = Duration.seconds(10)

/** How long the close of a Vm, or the disposal of a sidecar, takes at most when nothing is wrong. */
const graceOf = (limits: SidecarLimits.SidecarLimits): Duration.Duration =>
  [limits.closeTimeout, limits.killGrace, margin].reduce(Duration.sum, limits.cancelGrace)

interface Problem {
  readonly problem: string
  readonly isOver: boolean
}

/** Waits for something that goes on when this doesn't; the problem with it, if there is one. */
const within = (waiting: Effect.Effect<unknown>, time: Duration.Duration): Effect.Effect<Problem | undefined> => {
  const exit = Effect.map(Effect.exit(Effect.interruptible(waiting)), (exit): Problem | undefined =>
    Exit.isSuccess(exit) ? undefined : { problem: describe(exit.cause), isOver: true }
  )
  if (!Duration.isFinite(time)) return exit
  return Effect.timeoutOrElse(exit, {
    duration: time,
    orElse: () => Effect.succeed<Problem>({ problem: `it was not over after ${Duration.format(time)}`, isOver: false })
  })
}

const describe = (cause: Cause.Cause<unknown>): string => {
  const error = Cause.squash(cause)
  return error instanceof Error ? error.message : String(error)
}

/** A sidecar that nobody uses yet. A plain step, so that the pool can look for one and put this in its place in one. */
export const make = (
  owner: Owner,
  sidecarId: Address.SidecarId,
  placement: SidecarPool.Placement,
  failed: (failures: ReadonlyArray<SidecarPool.DisposeFailure>) => SidecarPool.DisposeFailed
): PooledSidecar => {
  const address: Address.Address = { sidecarId }
  let state: Sidecar.State = "ready"
  let connection: Connection = none
  let lost: string | undefined
  let longestGrace = Duration.zero
  /** Starts that were given up and of which something may be left. */
  const stopping = new Set<Ending>()
  let disposal: Disposal | undefined

  const whyNot = Effect.suspend(() =>
    Effect.fail(new SidecarError.Disposed(lost === undefined ? { address } : { address, detail: lost }))
  )

  // The start of the connection, shared by all who wait for it.

  const previousAreGone = Effect.suspend(() =>
    Effect.forEach(
      Array.from(owner.ending).filter((other) => other.sidecarId === sidecarId),
      ({ over }) => over,
      { discard: true }
    )
  )

  const givenUp = (own: Starting): void => {
    Deferred.doneUnsafe(own.done, Exit.fail(new SidecarError.Disposed({ address })))
  }

  const start = (own: Starting): Effect.Effect<void> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        // From here on whoever interrupts this fiber can be sure that all below runs. Before, it may have been given up.
        own.fiber = Fiber.getCurrent() as Fiber.Fiber<void>
        if (connection !== own) return givenUp(own)
        const scope = yield* Scope.fork(owner.connections)
        const close = yield* Closing.make(scope, owner.connections, { mayBeLeft: true })
        // Closed after the connection, when none of them can be waiting for an answer.
        const vms = yield* Scope.fork(scope, "parallel")
        const connecting = Effect.andThen(previousAreGone, owner.connector.connect({ sidecarId, placement }))
        const exit = yield* Effect.exit(restore(Scope.provide(connecting, scope)))
        if (Exit.isSuccess(exit) && connection === own) {
          const { hold = Effect.void, lost, sidecar } = exit.value
          const up: Up = { _tag: "Up", sidecar, hold, vms, close, isDisposed: false }
          connection = up
          longestGrace = graceOf(sidecar.limits)
          Deferred.doneUnsafe(own.done, Exit.succeed(up))
          const watch = Effect.flatMap(lost, ({ message }) => onLost(up, message))
          yield* Effect.forkIn(Effect.interruptible(watch), scope, { startImmediately: true })
          return
        }
        const left = yield* within(close, margin)
        if (left !== undefined) yield* Effect.logWarning(`${sidecarId} did not start, and is not gone: ${left.problem}`)
        if (connection === own) connection = none
        const error = Exit.isSuccess(exit) ? undefined : Cause.findErrorOption(exit.cause)
        const isDefect = Exit.isFailure(exit) && Cause.hasDies(exit.cause)
        Deferred.doneUnsafe(
          own.done,
          error?._tag === "Some"
            ? Exit.fail(error.value)
            : isDefect
              ? (exit as Exit.Exit<never>)
              : Exit.fail(new SidecarError.Disposed({ address }))
        )
      })
    ).pipe(Effect.updateContext(() => owner.services))

  /** Ends a start and waits until nothing of it is left. */
  const stop = (own: Starting): Effect.Effect<Problem | undefined> => {
    // Not when the effect runs, but in one step with whatever led to this: nobody may join the start any more.
    const ending: Ending = { sidecarId, over: Effect.asVoid(Effect.exit(Deferred.await(own.done))) }
    owner.ending.add(ending)
    stopping.add(ending)
    if (connection === own) connection = none
    return Effect.suspend(() => {
      if (own.fiber === undefined) givenUp(own)
      const stopped = own.fiber === undefined ? Effect.void : Fiber.interrupt(own.fiber)
      return Effect.map(within(stopped, Duration.sum(margin, margin)), (problem) => {
        owner.ending.delete(ending)
        stopping.delete(ending)
        return problem
      })
    })
  }

  /** The connection, for somebody who has a lease already. */
  const connect: Effect.Effect<Up, SidecarPool.LeaseError> = Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      if (state !== "ready") return yield* whyNot
      if (connection._tag === "Up") return connection
      let own: Starting
      if (connection._tag === "Starting") {
        own = connection
        own.waiters++
      } else {
        own = { _tag: "Starting", done: Deferred.makeUnsafe(), waiters: 1, fiber: undefined }
        connection = own
        yield* Effect.forkIn(start(own), owner.connections, { startImmediately: true })
      }
      const exit = yield* Effect.exit(restore(Deferred.await(own.done)))
      own.waiters--
      if (Exit.hasInterrupts(exit) && own.waiters === 0 && connection === own) {
        const left = yield* stop(own)
        if (left !== undefined) yield* Effect.logWarning(`the start of ${sidecarId} did not stop: ${left.problem}`)
      }
      return yield* exit
    })
  )

  // Leases.

  const leases = Lease.make({
    address,
    metrics: owner.metrics,
    onRelease: Effect.suspend(() => {
      const isUnused = () =>
        placement.kind === "shared" && state === "ready" && connection._tag === "Up" && Lease.isUnused(leases)
      return Effect.catch(disposeWhen(isUnused), (error) => Effect.logWarning(error.message))
    })
  })

  /** A lease, counted before anything else happens and given back when `prepare` fails or is interrupted. */
  const lend = <A, E>(
    kind: Lease.Kind,
    prepare: (open: Lease.Open, up: Up) => Effect.Effect<A, E>,
    warns = false
  ): Effect.Effect<A, E | SidecarPool.LeaseError, Scope.Scope> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const caller = yield* Effect.scope
        if (state !== "ready") return yield* whyNot
        const open = yield* Lease.open(leases, Lease.reserve(leases, kind), owner.leases, { warns })
        const prepared = Effect.flatMap(connect, (up) =>
          Effect.andThen(Scope.provide(up.hold, open.scope), prepare(open, up))
        )
        const exit = yield* Effect.exit(restore(prepared))
        // What is disposed or lost has ended the lease.
        if (Exit.isFailure(exit) || open.lease.state() === "released") {
          yield* open.lease.release
          return yield* Exit.isFailure(exit) ? exit : whyNot
        }
        yield* open.tie(caller)
        return exit.value
      })
    )

  const openVm = (options: Vm.Options) =>
    lend("vm", ({ lease, scope: claim }, up) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.gen(function* () {
          const scope = yield* Scope.fork(up.vms)
          const close = yield* Closing.make(scope, up.vms, { mayBeLeft: true })
          let grace = graceOf(up.sidecar.limits)
          // Runs before the lease is given back, which it is not when this can't tell that the Vm is gone.
          yield* Scope.addFinalizer(
            claim,
            Effect.suspend(() =>
              Effect.flatMap(within(close, grace), (left) =>
                left === undefined || state !== "ready" ? Effect.void : lease.retain(left.problem)
              )
            )
          )
          const opening = Effect.tapError(up.sidecar.openVm(options), (error) =>
            error._tag === "Disposed" ? onLost(up, error.message) : Effect.void
          )
          const vm = yield* restore(Scope.provide(opening, scope))
          const own = yield* Effect.orElseSucceed(
            SidecarLimits.make(options.limits ?? {}, up.sidecar.limits),
            () => up.sidecar.limits
          )
          grace = graceOf(own)
          longestGrace = Duration.max(longestGrace, grace)
          return { ...vm, close: lease.release } satisfies Vm.Vm
        })
      )
    )

  // The end.

  const forget = (): void => {
    Lease.forfeit(leases)
    owner.remove(self)
  }

  const end = (run: Disposal, ending: Ending): Effect.Effect<void> =>
    Effect.gen(function* () {
      const failures: Array<SidecarPool.DisposeFailure> = []
      const note = (step: SidecarPool.DisposeFailure["step"], found: Problem | undefined): boolean => {
        if (found !== undefined) failures.push({ sidecarId, step, problem: found.problem })
        return found === undefined || found.isOver
      }
      const now = connection
      let isOver = true
      if (now._tag === "Starting") {
        isOver = note("start", yield* stop(now))
      } else if (now._tag === "Up") {
        if (lost === undefined && !now.isDisposed) {
          const dispose = Effect.scoped(Effect.andThen(now.hold, now.sidecar.dispose))
          const disposing = yield* Effect.forkIn(dispose, owner.connections, { startImmediately: true })
          now.isDisposed = note("sidecar", yield* within(Fiber.join(disposing), longestGrace))
          if (!now.isDisposed) disposing.interruptUnsafe()
        }
        isOver = note("connection", yield* within(now.close, Duration.sum(margin, now.sidecar.limits.killGrace)))
      }
      // Their callers have gone away and wait for them, but not the scope of the pool.
      for (const { over } of Array.from(stopping)) note("start", yield* within(over, Duration.sum(margin, margin)))
      owner.ending.delete(ending)
      if (isOver) {
        connection = none
        state = "disposed"
        forget()
        owner.gone(self)
      }
      disposal = undefined
      Deferred.doneUnsafe(run, failures.length === 0 ? Exit.void : Exit.fail(failed(failures)))
    }).pipe(Effect.uninterruptible)

  /** From now on, and not when the effect runs, it takes no leases and whoever has its name next waits for its end. */
  const begin = (): { readonly run: Disposal; readonly going: Effect.Effect<unknown> } => {
    const run: Disposal = Deferred.makeUnsafe()
    const ending: Ending = { sidecarId, over: Effect.asVoid(Effect.exit(Deferred.await(run))) }
    disposal = run
    if (state === "ready") state = "disposing"
    if (connection !== none) owner.ending.add(ending)
    // On behalf of all who wait for it: when one of them goes away, it goes on.
    return { run, going: Effect.forkIn(end(run, ending), owner.connections, { startImmediately: true }) }
  }

  const onLost = (up: Up, why: string): Effect.Effect<void> =>
    Effect.suspend(() => {
      if (connection !== up || state !== "ready") return Effect.void
      state = "disposed"
      lost = why
      const { going } = begin()
      forget()
      return Effect.andThen(going, Effect.logWarning(why))
    }).pipe(Effect.uninterruptible)

  /** Looks and begins in one step, so that no lease comes in between; whether it was to be disposed. */
  const disposeWhen = (isDue: () => boolean): Effect.Effect<boolean, SidecarPool.DisposeFailed> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.suspend(() => {
        if (!isDue()) return Effect.succeed(false)
        if (disposal !== undefined) return Effect.as(restore(Deferred.await(disposal)), true)
        if (state === "disposed" && connection === none) return Effect.succeed(true)
        const begun = begin()
        return begun.going.pipe(Effect.andThen(restore(Deferred.await(begun.run))), Effect.as(true))
      })
    )
  const dispose = Effect.asVoid(disposeWhen(() => true))

  const disposeOrLog = Effect.catch(dispose, (error) => Effect.logWarning(error.message))

  const handle: SidecarPool.Handle = {
    sidecarId,
    placement,
    describe: Effect.sync(() => ({ sidecarId, placement, state, activeVmCount: Lease.count(leases, "vm") })),
    lease: (kind) => lend(kind, ({ lease }) => Effect.succeed(lease), true),
    sidecar: lend("package", (_, up) => Effect.succeed({ ...up.sidecar, dispose: disposeOrLog })),
    openVm,
    disposeIfUnused: disposeWhen(() => Lease.isUnused(leases)),
    dispose
  }
  const self: PooledSidecar = { handle, state: () => state, leases }
  return self
}
