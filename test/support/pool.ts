// A pool whose sidecars are in memory, with a connector that does what a test wants of it.
import {
  Sidecar,
  SidecarClient,
  SidecarError,
  SidecarLimits,
  SidecarPool,
  SidecarProgram,
  SidecarServer
} from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import * as MemorySocket from "../../src/testing/internal/memorySocket.ts"

type Service = Sidecar.Sidecar["Service"]

/** One connection that was made. */
export interface Link extends TestSidecar.Made {
  readonly wanted: { readonly sidecarId: string; readonly placement: SidecarPool.Placement }
  /** The process is gone, and nobody has disposed the sidecar. */
  readonly lose: Effect.Effect<void>
}

export interface Options extends TestSidecar.Options {
  /** Before a connection is there: it may wait, hang or fail. */
  readonly connecting?: Effect.Effect<void, SidecarPool.ConnectError> | undefined
  /** While a connection is ended: it may wait, hang or die. */
  readonly closing?: Effect.Effect<void> | undefined
  readonly sidecar?: ((sidecar: Service) => Partial<Service>) | undefined
  readonly maxSidecars?: number | undefined
}

export interface World {
  readonly pool: SidecarPool.SidecarPool["Service"]
  /** Those that were made, in order. */
  readonly links: ReadonlyArray<Link>
  /** Attempts to connect. */
  readonly starts: () => number
  /** Connections that are there, or being made or ended. */
  readonly alive: () => number
  readonly aliveOf: (id: string) => number
  /** The most of them at once, by id. */
  readonly mostAlive: (id: string) => number
  /** Changes what the connector does from now on. */
  readonly change: (options: Options) => void
}

export const connector = (first: Options) => {
  let options = first
  const links: Array<Link> = []
  let starts = 0
  const alive = new Map<string, number>()
  const most = new Map<string, number>()
  const add = (id: string, by: number) => {
    const now = (alive.get(id) ?? 0) + by
    alive.set(id, now)
    most.set(id, Math.max(now, most.get(id) ?? 0))
  }
  const connect: SidecarPool.SidecarConnector["Service"]["connect"] = (wanted) =>
    Effect.gen(function* () {
      starts++
      yield* Effect.acquireRelease(
        Effect.sync(() => add(wanted.sidecarId, 1)),
        () =>
          Effect.andThen(
            Effect.suspend(() => options.closing ?? Effect.void),
            Effect.sync(() => add(wanted.sidecarId, -1))
          )
      )
      yield* options.connecting ?? Effect.void
      const made = yield* Effect.orDie(Effect.provideService(TestSidecar.make(options), Sidecar.Id, wanted.sidecarId))
      const lost = Deferred.makeUnsafe<SidecarError.SidecarLost>()
      const address = { sidecarId: wanted.sidecarId }
      const error = new SidecarError.SidecarLost({ address, detail: "it was killed" })
      links.push({ ...made, wanted, lose: Effect.asVoid(Deferred.succeed(lost, error)) })
      return { sidecar: { ...made.sidecar, ...options.sidecar?.(made.sidecar) }, lost: Deferred.await(lost) }
    })
  return {
    service: { connect },
    links,
    starts: () => starts,
    alive: () => Array.from(alive.values()).reduce((sum, one) => sum + one, 0),
    aliveOf: (id: string) => alive.get(id) ?? 0,
    mostAlive: (id: string) => most.get(id) ?? 0,
    change: (next: Options) => {
      options = next
    }
  }
}

/** A pool in the current scope. */
export const make = (options: Options = {}): Effect.Effect<World, never, Scope.Scope> =>
  Effect.gen(function* () {
    const { service, ...seen } = connector(options)
    const context = yield* Layer.build(
      SidecarPool.layer.pipe(
        Layer.provide(Layer.succeed(SidecarPool.SidecarConnector, service)),
        Layer.provide(SidecarLimits.layer({ maxSidecars: options.maxSidecars }))
      )
    ).pipe(Effect.orDie)
    return { pool: Context.get(context, SidecarPool.SidecarPool), ...seen }
  })

/**
 * The same with real clients and servers, over connections in memory: what a lost process is to an app. `break` ends the
 * newest connection, as the death of the process would.
 */
export const makeRemote = (
  options: TestSidecar.Options = {}
): Effect.Effect<
  {
    readonly pool: SidecarPool.SidecarPool["Service"]
    readonly break: () => Effect.Effect<void>
    readonly made: Array<TestSidecar.Made>
  },
  never,
  Scope.Scope
> =>
  Effect.gen(function* () {
    const made: Array<TestSidecar.Made> = []
    let serving: Fiber.Fiber<void> | undefined
    const connect: SidecarPool.SidecarConnector["Service"]["connect"] = ({ sidecarId }) =>
      Effect.gen(function* () {
        const one = yield* Effect.orDie(Effect.provideService(TestSidecar.make(options), Sidecar.Id, sidecarId))
        made.push(one)
        const served = yield* Layer.build(SidecarServer.layer()).pipe(Effect.provideContext(one.context))
        const [ours, theirs] = yield* MemorySocket.pair()
        const { serve } = Context.get(served, SidecarServer.SidecarServer)
        serving = yield* Effect.forkScoped(serve(theirs), { startImmediately: true })
        return yield* SidecarClient.connect(ours, { client: "test" })
      })
    const context = yield* Layer.build(
      Layer.provide(SidecarPool.layer, Layer.succeed(SidecarPool.SidecarConnector, { connect }))
    )
    return {
      pool: Context.get(context, SidecarPool.SidecarPool),
      break: () => (serving === undefined ? Effect.void : Fiber.interrupt(serving)),
      made
    }
  })

/** A connector's own error. */
export const unreachable = new SidecarProgram.ProgramFailed({
  program: "acp-sidecar",
  problem: "it ended",
  code: 1,
  signal: null,
  stderrTail: ""
})
