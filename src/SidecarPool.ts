/**
 * Sidecars by name, started when they are first used and disposed when nobody uses them any more.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Address from "./Address.ts"
import * as Observers from "./internal/observers.ts"
import * as PooledSidecar from "./internal/pooledSidecar.ts"
import * as Refusals from "./internal/refusals.ts"
import { uuid } from "./internal/uuid.ts"
import type * as Lease from "./Lease.ts"
import * as LimitUsage from "./LimitUsage.ts"
import * as Sidecar from "./Sidecar.ts"
import type * as SidecarClient from "./SidecarClient.ts"
import * as SidecarError from "./SidecarError.ts"
import * as SidecarLimits from "./SidecarLimits.ts"
import type * as SidecarProgram from "./SidecarProgram.ts"
import type * as Vm from "./Vm.ts"

/**
 * Which sidecar of a pool: one that all share who name the same pool, or one of its own. An empty name is left out.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Placement =
  | { readonly kind: "shared"; readonly pool?: string }
  | { readonly kind: "explicit"; readonly sidecarId: Address.SidecarId }

/**
 * A sidecar that a connector has reached. `lost` resolves when the connection has ended and nobody disposed the sidecar.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Connected {
  readonly sidecar: Sidecar.Sidecar["Service"]
  readonly lost: Effect.Effect<SidecarError.SidecarLost>
  /**
   * Keeps this process alive until the scope closes; a pool has one for each lease. A connection of which there never was
   * one keeps it alive too, and one of which there is none any more lets it end.
   */
  readonly hold?: Effect.Effect<void, never, Scope.Scope> | undefined
}

/**
 * Why a sidecar could not be reached. Nothing of the attempt is left.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type ConnectError = SidecarClient.ConnectError | SidecarProgram.ProgramNotFound | SidecarProgram.ProgramFailed

/**
 * How a pool gets at a sidecar: it starts a process, connects to one that runs, or makes one in this process. The scope
 * that `connect` runs in owns all of it: closing it ends the connection and what was started for it.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class SidecarConnector extends Context.Service<
  SidecarConnector,
  {
    readonly connect: (wanted: {
      readonly sidecarId: Address.SidecarId
      readonly placement: Placement
    }) => Effect.Effect<Connected, ConnectError, Scope.Scope>
  }
>()("acp-sidecar/SidecarConnector") {}

/**
 * Why there is no lease: the sidecar could not be reached, or this one is disposed, being disposed or lost. Ask the pool
 * for another one then.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type LeaseError = ConnectError | SidecarError.Disposed

/**
 * Why a pool gives no handle.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type HandleError = SidecarError.InvalidInput | SidecarError.LimitExceeded | SidecarError.Disposed

/**
 * A snapshot of a sidecar of a pool: a plain value. `activeVmCount` are the leases for Vms that count, those whose Vm is
 * still opening or may not be gone included.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface HandleInfo {
  readonly sidecarId: Address.SidecarId
  readonly placement: Placement
  readonly state: Sidecar.State
  readonly activeVmCount: number
}

/**
 * A sidecar of a pool. Nothing is started before its first lease, and those who want the first one at the same time share
 * one start; when that fails each of them is told, and the next one tries again.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Handle {
  readonly sidecarId: Address.SidecarId
  readonly placement: Placement
  readonly describe: Effect.Effect<HandleInfo>
  /** A lease until it is released. One that the current scope has to give back is warned about. */
  readonly lease: (kind: Lease.Kind) => Effect.Effect<Lease.Lease, LeaseError, Scope.Scope>
  /** The sidecar, with a `package` lease for as long as the current scope is open. Its `dispose` is that of this handle. */
  readonly sidecar: Effect.Effect<Sidecar.Sidecar["Service"], LeaseError, Scope.Scope>
  /**
   * Opens a Vm with a `vm` lease of its own, which is given back when the Vm is closed, by the current scope or its own
   * `close`. When it can't be told within the grace periods that all of the Vm is gone, the lease is kept until the sidecar
   * is disposed.
   */
  readonly openVm: (options: Vm.Options) => Effect.Effect<Vm.Vm, LeaseError | Sidecar.OpenVmError, Scope.Scope>
  /** Disposes it unless there is a lease of any kind; whether it did. */
  readonly disposeIfUnused: Effect.Effect<boolean, DisposeFailed>
  /**
   * Ends the sidecar whatever leases there are: first it, which cancels turns and closes Vms, then the connection. Each has
   * its grace periods and 10 seconds. It may be called any number of times and goes on when a caller is interrupted; while
   * something does not end the state stays `disposing`, and the next call goes on waiting for it.
   */
  readonly dispose: Effect.Effect<void, DisposeFailed>
}

/**
 * What failed while a sidecar was disposed: the `start` that was under way, the `sidecar` itself, or its `connection`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const DisposeFailure = Schema.Struct({
  sidecarId: Address.SidecarId,
  step: Schema.Literals(["start", "sidecar", "connection"]),
  problem: Schema.String
})
/** @since 0.1.0 */
export type DisposeFailure = typeof DisposeFailure.Type

/**
 * Some of the work of disposing one or more sidecars has failed or did not end in time. The rest of it was done. What has
 * not ended is still counted: dispose again to wait for it.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class DisposeFailed extends Schema.TaggedError<DisposeFailed>()("DisposeFailed", {
  failures: Schema.Array(DisposeFailure)
}) {
  override get message(): string {
    const all = this.failures.map(({ problem, sidecarId, step }) => `the ${step} of ${sidecarId}: ${problem}`)
    return `not all could be disposed (${all.join("; ").replace(/[.\s]+$/, "")}); dispose again to wait for what has not ended.`
  }
}

/**
 * Named sidecars. Whoever asks for the same name gets the same live one; one that is being disposed, is disposed or lost is
 * replaced, and its replacement starts when its process is gone. All of them are disposed when the layer's scope closes.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class SidecarPool extends Context.Service<
  SidecarPool,
  {
    /** The sidecar that all share who give this name, `"default"` unless given. It ends with its last lease. */
    readonly shared: (pool?: string) => Effect.Effect<Handle, HandleError>
    /** A sidecar with this id, or with a new one. It stays until it is disposed, whether it has leases or not. */
    readonly explicit: (id?: string) => Effect.Effect<Handle, HandleError>
    /** All that can be leased, and those that have not ended yet. */
    readonly describe: Effect.Effect<ReadonlyArray<HandleInfo>>
    /** Disposes all sidecars there are, side by side. The pool can be used again afterwards. */
    readonly dispose: Effect.Effect<void, DisposeFailed>
  }
>()("acp-sidecar/SidecarPool") {}

const sharedPrefix = "acp-sidecar-shared:"
const maxNameLength = 64

/** Names become names of files and parts of addresses. */
const problemWith = (name: string): string | undefined =>
  name.length > maxNameLength
    ? `it has ${name.length} characters where ${maxNameLength} are allowed`
    : /[\p{Cc}\p{Cs}\p{Zl}\p{Zp}/\\]/u.test(name)
      ? "it must have no control characters and no slashes"
      : undefined

const problemWithId = (id: string): string | undefined =>
  /^\.*$/.test(id)
    ? "it must have a character other than a dot"
    : id.startsWith(sharedPrefix)
      ? `those that begin with ${sharedPrefix} are shared; use shared(${JSON.stringify(id.slice(sharedPrefix.length, 50))})`
      : problemWith(id)

const make = Effect.gen(function* () {
  const { maxSidecars } = yield* SidecarLimits.SidecarLimits
  const connector = yield* SidecarConnector
  const metrics = yield* Observers.current
  const scope = yield* Effect.scope
  // Without the layers that the app has built: a connector that builds one of them for a sidecar gets one of its own.
  const services = Context.omit(Layer.CurrentMemoMap)(yield* Effect.context<never>())
  /** All of which something may be left; of some, another one has the name. */
  const all = new Set<PooledSidecar.PooledSidecar>()
  const entries = new Map<Address.SidecarId, PooledSidecar.PooledSidecar>()
  let warning: string | undefined
  const usage = LimitUsage.make({
    address: { sidecarId: Address.SidecarId.make("acp-sidecar-pool") },
    scope: "pool",
    limit: "maxSidecars",
    max: maxSidecars,
    emit: ({ detail }) => {
      warning = detail
    }
  })
  yield* LimitUsage.measure(usage, metrics)
  let isClosed = false
  const owner: PooledSidecar.Owner = {
    connector,
    services,
    metrics,
    leases: yield* Scope.fork(scope, "parallel"),
    connections: yield* Scope.fork(scope, "parallel"),
    ending: new Set(),
    remove: (entry) => {
      const { sidecarId } = entry.handle
      if (entries.get(sidecarId) !== entry) return
      entries.delete(sidecarId)
      LimitUsage.release(usage)
    },
    gone: (entry) => {
      all.delete(entry)
    }
  }

  const get = (sidecarId: Address.SidecarId, placement: Placement): Effect.Effect<Handle, HandleError> =>
    Effect.suspend((): Effect.Effect<Handle, HandleError> => {
      if (isClosed) return Effect.fail(new SidecarError.Disposed({ address: { sidecarId } }))
      const existing = entries.get(sidecarId)
      if (existing?.state() === "ready") return Effect.succeed(existing.handle)
      if (existing === undefined) {
        if (LimitUsage.isFull(usage)) return Effect.fail(LimitUsage.refusal(usage, { sidecarId }))
        LimitUsage.take(usage)
      }
      const entry = PooledSidecar.make(owner, sidecarId, placement, (failures) => new DisposeFailed({ failures }))
      entries.set(sidecarId, entry)
      all.add(entry)
      if (warning === undefined) return Effect.succeed(entry.handle)
      const detail = warning
      warning = undefined
      return Effect.as(Effect.logWarning(`the pool of sidecars: ${detail}`), entry.handle)
    }).pipe(Effect.tapError((error) => Effect.sync(() => Refusals.count(error, metrics))))

  const refuse = (input: string, given: string, problem: string) =>
    Effect.fail(
      new SidecarError.InvalidInput({
        address: usage.address,
        input,
        problem: `${JSON.stringify(given.slice(0, 100))}: ${problem}`
      })
    )

  const dispose = Effect.suspend(() =>
    Effect.forEach(
      Array.from(all),
      ({ handle }) => Effect.match(handle.dispose, { onFailure: ({ failures }) => failures, onSuccess: () => [] }),
      { concurrency: "unbounded" }
    )
  ).pipe(
    Effect.flatMap((all) => {
      const failures = all.flat()
      return failures.length === 0 ? Effect.void : Effect.fail(new DisposeFailed({ failures }))
    })
  )
  yield* Effect.addFinalizer(() =>
    Effect.suspend(() => {
      isClosed = true
      return Effect.catch(dispose, (error) => Effect.logWarning(error.message))
    })
  )

  return SidecarPool.of({
    shared: (pool = "default") =>
      Effect.suspend(() => {
        const problem = problemWith(pool)
        if (problem !== undefined) return refuse("name of the pool", pool, problem)
        return get(
          Address.SidecarId.make(`${sharedPrefix}${pool}`),
          pool === "" ? { kind: "shared" } : { kind: "shared", pool }
        )
      }),
    explicit: (id) =>
      Effect.gen(function* () {
        const problem = id === undefined ? undefined : problemWithId(id)
        if (problem !== undefined) return yield* refuse("id of the sidecar", id!, problem)
        const sidecarId = Address.SidecarId.make(id ?? `acp-sidecar-${yield* uuid}`)
        return yield* get(sidecarId, { kind: "explicit", sidecarId })
      }),
    describe: Effect.suspend(() => Effect.forEach(Array.from(all), ({ handle }) => handle.describe)),
    dispose
  })
})

/**
 * A pool, whose sidecars are reached through the {@link SidecarConnector} that is provided. `maxSidecars` of the limits in
 * force bounds it.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer: Layer.Layer<SidecarPool, never, SidecarConnector> = Layer.effect(SidecarPool, make)

const processWide = Layer.makeMemoMapUnsafe()

/**
 * The one pool of this process, whichever of its runtimes ask for it. It is made for the first of them, with that one's
 * connector and limits, and ends with the last. Give the same connector layer everywhere, so that it lives as long.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerDefault = <E, R>(connector: Layer.Layer<SidecarConnector, E, R>): Layer.Layer<SidecarPool, E, R> =>
  Layer.fromBuild((_, scope) => Layer.buildWithMemoMap(Layer.provide(layer, connector), processWide, scope))

/**
 * A sidecar of the pool as the service `Sidecar`, so that an app runs on it as on one of its own. It has a `package` lease
 * for as long as the layer's scope is open.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerSidecar = (
  which: { readonly pool?: string | undefined } | { readonly explicit: string }
): Layer.Layer<Sidecar.Sidecar, LeaseError | HandleError, SidecarPool> =>
  Layer.effect(
    Sidecar.Sidecar,
    Effect.gen(function* () {
      const pool = yield* SidecarPool
      const handle = "explicit" in which ? pool.explicit(which.explicit) : pool.shared(which.pool)
      // Between the two steps its last lease may have gone, and it with that.
      const leased = Effect.flatMap(handle, (one) => one.sidecar)
      return yield* Effect.retry(leased, { times: 2, while: (error) => error instanceof SidecarError.Disposed })
    })
  )
