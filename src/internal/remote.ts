/**
 * Calls of a sidecar in another process, and what becomes of them when it is lost.
 *
 * @internal
 */
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type * as Queue from "effect/Queue"
import type * as RpcClient from "effect/rpc/RpcClient"
import { RpcClientError } from "effect/rpc/RpcClientError"
import * as Scheduler from "effect/Scheduler"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as Stream from "effect/Stream"
import type * as Address from "../Address.ts"
import * as SidecarError from "../SidecarError.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import type * as SidecarRpc from "../SidecarRpc.ts"
import type * as RpcClientWire from "./rpcClientWire.ts"

export type Rpc = RpcClient.FromGroup<typeof SidecarRpc.SidecarRpc, RpcClientError>

export interface Remote {
  readonly address: Address.Address
  readonly limits: SidecarLimits.SidecarLimits
  /** Owns what runs here for sessions; it is closed after the connection has ended. */
  readonly scope: Scope.Scope
  /** Why nothing can be had from the sidecar any more. */
  readonly lost: () => SidecarError.SidecarLost | undefined
  /** A call that steers; as many at once as the sidecar allows, the others wait. */
  readonly control: <A, E>(call: (rpc: Rpc) => Effect.Effect<A, E>) => Effect.Effect<A, Failure<E>>
  /** A call that is work, in room of its own; `LimitExceeded` when there is none. */
  readonly work: <A, E>(
    call: (rpc: Rpc) => Effect.Effect<A, E>
  ) => Effect.Effect<A, WorkFailure<E> | SidecarError.LimitExceeded>
  /** A call that is work and waits for its room. */
  readonly patient: <A, E>(call: (rpc: Rpc) => Effect.Effect<A, E>) => Effect.Effect<A, Failure<E>>
  /** A call that is work, in room that was taken for it. */
  readonly roomy: <A, E>(call: (rpc: Rpc) => Effect.Effect<A, E>) => Effect.Effect<A, WorkFailure<E>>
  /** A stream; it has room of its own of as many as the sidecar allows, and waits for it. */
  readonly stream: <A, E>(
    call: (rpc: Rpc, options: RpcClientWire.GateOptions) => Effect.Effect<Queue.Dequeue<A, E>, never, Scope.Scope>
  ) => Stream.Stream<A, Failure<Exclude<E, Cause.Done>>>
  /** Room for one piece of work that lasts; `false` when there is none. */
  readonly takeRoom: Effect.Effect<boolean>
  readonly giveRoom: Effect.Effect<void>
  readonly nextKey: () => string
}

export type WorkFailure<E> = Exclude<E, RpcClientError> | SidecarError.SidecarLost
/** Without the refusal that {@link Remote.control} avoids by waiting. */
export type Failure<E> = Exclude<E, RpcClientError | SidecarError.LimitExceeded> | SidecarError.SidecarLost

export const make = (options: {
  readonly address: Address.Address
  readonly limits: SidecarLimits.SidecarLimits
  readonly rpc: Rpc
  readonly wire: RpcClientWire.ClientWire
  readonly scope: Scope.Scope
  readonly lost: () => SidecarError.SidecarLost | undefined
}): Remote => {
  const { address, limits, lost, rpc, wire } = options
  const controls = Semaphore.makeUnsafe(Math.max(1, limits.maxControlCallsPerClient))
  const room = Semaphore.makeUnsafe(limits.maxCallsPerClient)
  let keys = 0
  const lostNow = (detail: string) => lost() ?? new SidecarError.SidecarLost({ address, detail })
  /** What the end of the connection makes of a call. A sidecar that ends interrupts what it does for others. */
  const lossOf = (cause: Cause.Cause<unknown>): SidecarError.SidecarLost | undefined => {
    if (Cause.hasInterruptsOnly(cause)) return lostNow("it has ended")
    const failure = Option.getOrUndefined(Cause.findErrorOption(cause))
    return failure instanceof RpcClientError ? lostNow(failure.reason.message) : undefined
  }
  // In a fiber of its own: one that is interrupted in the step before its request is sent ends without its finalizers.
  const guard = <A, E>(call: Effect.Effect<A, E>): Effect.Effect<A, WorkFailure<E>> =>
    Effect.catchCause(Effect.raceAllFirst([call]), (cause): Effect.Effect<A, WorkFailure<E>> => {
      const loss = lossOf(cause)
      return loss === undefined ? Effect.failCause(cause as Cause.Cause<WorkFailure<E>>) : Effect.fail(loss)
    })
  /** Where a sidecar allows none at all. */
  const unlimited = <A, E>(call: Effect.Effect<A, E>) =>
    Effect.mapError(call, (error) =>
      error instanceof SidecarError.LimitExceeded
        ? new SidecarError.SidecarLost({ address, detail: error.message })
        : error
    ) as Effect.Effect<A, Exclude<E, SidecarError.LimitExceeded> | SidecarError.SidecarLost>
  return {
    address,
    limits,
    scope: options.scope,
    lost,
    control: (call) => unlimited(guard(controls.withPermit(begun(() => call(rpc))))) as never,
    work: (call) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.flatMap(
          room.takeIfAvailable(1),
          (isTaken): Effect.Effect<never, never> =>
            (isTaken
              ? Effect.ensuring(restore(guard(begun(() => call(rpc)))), room.release(1))
              : (lost() ?? full(limits, address))) as never
        )
      ),
    patient: (call) => unlimited(guard(room.withPermit(begun(() => call(rpc))))) as never,
    roomy: (call) => guard(begun(() => call(rpc))),
    stream: (call) =>
      Stream.unwrap(
        Effect.as(
          room.takeScoped(1),
          wire.gated((gate) => call(rpc, gate))
        )
      ).pipe(
        Stream.catchCause((cause): Stream.Stream<never, unknown> => {
          const loss = lossOf(cause)
          return loss === undefined ? Stream.failCause(cause) : Stream.fail(loss)
        })
      ) as never,
    takeRoom: room.takeIfAvailable(1),
    giveRoom: Effect.asVoid(room.release(1)),
    nextKey: () => `${++keys}`
  }
}

/** There is no room for one more call. */
export const full = (limits: SidecarLimits.SidecarLimits, address: Address.Address): SidecarError.LimitExceeded =>
  new SidecarError.LimitExceeded({
    address,
    scope: "client",
    limit: "maxCallsPerClient",
    max: limits.maxCallsPerClient,
    used: limits.maxCallsPerClient,
    setting: SidecarLimits.setting("maxCallsPerClient")
  })

/**
 * A call whose fiber does not step aside before it waits for the answer: were it interrupted there, effect/rpc would end it
 * with a defect and without its finalizers.
 */
const begun = <A, E>(call: () => Effect.Effect<A, E>): Effect.Effect<A, E> =>
  Effect.provideService(Effect.suspend(call), Scheduler.PreventSchedulerYield, true)

/** Without the keys that have no value. */
export const compact = <A extends object>(given: A): { [K in keyof A]: Exclude<A[K], undefined> } =>
  Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined)) as never

/** A time as JSON; what is no time stays as it is, for the sidecar to say so. */
export const time = (given: unknown): unknown => {
  if (typeof given === "bigint") return time(Duration.nanos(given))
  if (typeof given === "number" && !Number.isFinite(given)) return String(given)
  if (!Duration.isDuration(given)) return given
  return Duration.isFinite(given) ? Duration.toMillis(given) : "Infinity"
}

/** A call under a name: when whoever waits for it goes away it is given up there, and what it opened is closed. */
export const named = <A, E>(
  remote: Remote,
  call: (key: string) => Effect.Effect<A, E>,
  restore: <B, F>(effect: Effect.Effect<B, F>) => Effect.Effect<B, F>
): Effect.Effect<A, E> =>
  Effect.suspend(() => {
    const key = remote.nextKey()
    return Effect.onInterrupt(restore(call(key)), () => Effect.ignore(remote.control((rpc) => rpc["Abandon"]({ key }))))
  })
