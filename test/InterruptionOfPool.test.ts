// Interruption at each operation of pools, leases and their ends; and sidecars that end at each of them.
import { assert, describe, it } from "@effect/vitest"
import type { SidecarPool } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Metric from "effect/Metric"
import type * as Scope from "effect/Scope"
import * as Pool from "./support/pool.ts"
import * as Strikes from "./support/strikes.ts"
import { series } from "./support/telemetry.ts"

interface World extends Pool.World {
  readonly handle: SidecarPool.Handle
  readonly fibers: number
  readonly gauges: () => Readonly<Record<string, unknown>>
  readonly idle: Readonly<Record<string, unknown>>
}

const root = { root: "/work" }
const slow: Pool.Options = { connecting: Effect.sleep(5), closing: Effect.sleep(5), maxSidecars: 1 }

const world = (options: Pool.Options, explicit: boolean) =>
  Effect.gen(function* () {
    const registry = new Map()
    const gauges = () =>
      Object.fromEntries(
        series({ spans: [], registry })
          .filter(({ attributes, id, state, type }) => {
            // The pool's own, whose name stays taken or becomes free.
            const isPool = id.startsWith("acp_sidecar.limit") && attributes["limit"] === "maxSidecars"
            return type === "Gauge" && state["value"] !== 0 && !isPool
          })
          .map(({ attributes, id, state }) => [`${id} ${JSON.stringify(attributes)}`, state["value"]])
      )
    const made = yield* Effect.provideService(Pool.make(options), Metric.MetricRegistry, registry)
    const handle = yield* explicit ? made.pool.explicit("one") : made.pool.shared()
    return { ...made, handle, fibers: yield* Strikes.liveFibers, gauges, idle: gauges() } satisfies World
  })

/** Nothing is left, and the next to ask gets a sidecar that works. */
const asBefore = ({ alive, change, fibers, gauges, handle, idle, mostAlive, pool }: World) =>
  Effect.gen(function* () {
    const { activeVmCount, sidecarId, state } = yield* handle.describe
    assert.include(["ready", "disposed"], state)
    assert.strictEqual(activeVmCount, 0)
    assert.strictEqual(alive(), 0, "connections")
    assert.deepStrictEqual(gauges(), idle)
    yield* Strikes.assertFibers(fibers)
    change({ script: { prompt: () => Effect.succeed("end_turn") } })
    const next = yield* pool.shared()
    if (state === "ready") assert.strictEqual(next, handle)
    yield* Effect.scoped(work(next))
    assert.deepInclude(yield* next.describe, { state: "disposed", activeVmCount: 0 })
    assert.strictEqual(mostAlive(sidecarId), 1)
    assert.strictEqual(alive(), 0, "connections, later")
    yield* Strikes.assertFibers(fibers)
  })

/** It is gone, whatever became of the first call. */
const disposed = ({ alive, fibers, gauges, handle, idle, pool }: World) =>
  Effect.gen(function* () {
    yield* handle.dispose
    assert.deepInclude(yield* handle.describe, { state: "disposed", activeVmCount: 0 })
    assert.deepStrictEqual(yield* pool.describe, [])
    assert.strictEqual(alive(), 0, "connections")
    assert.deepStrictEqual(gauges(), idle)
    yield* Strikes.assertFibers(fibers)
  })

const work = (handle: SidecarPool.Handle) =>
  Effect.gen(function* () {
    const vm = yield* handle.openVm(root)
    const session = yield* vm.openSession({ agent: TestSidecar.profile })
    yield* session.prompt("go")
    yield* vm.close
  })

const isEnd = (error: unknown): boolean =>
  ["Disposed", "AgentStartFailed", "SessionUnusable", "TurnFailed", "ProgramFailed"].includes(
    String((error as { readonly _tag?: unknown })._tag)
  )

const safe = <A, E>(
  body: (world: World) => Effect.Effect<A, E, Scope.Scope>,
  options: Pool.Options & {
    readonly explicit?: boolean
    readonly strike?: (world: World) => Effect.Effect<unknown, unknown>
    readonly after?: (world: World) => Effect.Effect<unknown, unknown>
    readonly seeds?: number
  } = {}
): void => {
  const { after = asBefore, explicit = false, seeds, strike, ...rest } = options
  const runs = Strikes.assertSafe<World, A, E>({
    make: world({ ...slow, script: { prompt: () => Effect.succeed("end_turn") }, ...rest }, explicit),
    body,
    // Not in the step in which it is begun, which may run the callers to their end: the check would not wait for it then.
    strike: strike === undefined ? undefined : (made) => Effect.andThen(Effect.yieldNow, strike(made)),
    seeds,
    check: (made, exit) =>
      Effect.gen(function* () {
        const failure = Exit.findErrorOption(exit)
        const known = failure._tag === "Some" && isEnd(failure.value)
        if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit) && !known) yield* exit
        // What is left of a lost sidecar ends by itself.
        if (strike !== undefined) yield* Effect.sleep(50)
        yield* after(made)
      }),
    closed: ({ alive, gauges }) => {
      assert.strictEqual(alive(), 0, "connections")
      assert.deepStrictEqual(gauges(), {})
    }
  })
  assert.isAbove(runs, 10)
}

describe("a caller of a pool that goes away at whatever operation", () => {
  it("leaves no lease and no connection, through the start and the end", () => {
    safe(({ handle }) => Effect.flatMap(handle.lease("package"), (lease) => lease.release), { seeds: 3 })
    safe(({ handle }) => Effect.scoped(handle.lease("vm")), { seeds: 2 })
    safe(({ handle }) => handle.sidecar, { seeds: 2 })
  })

  it("leaves no Vm", () => {
    safe(({ handle }) => work(handle), { seeds: 2 })
    safe(({ handle }) => handle.openVm(root), { seeds: 2 })
  })

  it("leaves no Vm of a sidecar behind a connection", () => {
    safe(({ handle }) => Effect.scoped(work(handle)), { place: "remote" })
    safe(({ handle }) => Effect.all([Effect.scoped(work(handle)), Effect.scoped(handle.sidecar)]), { place: "remote" })
  })

  it("leaves nothing when the start fails, or does not end", () => {
    const fails = Effect.andThen(Effect.sleep(5), Effect.fail(Pool.unreachable))
    safe(({ handle }) => Effect.scoped(handle.openVm(root)), { connecting: fails })
    safe(({ handle }) => Effect.timeoutOption(Effect.scoped(handle.openVm(root)), 20), { connecting: Effect.never })
  })

  it("leaves nothing when several share the start", () => {
    safe(
      ({ handle }) =>
        Effect.all([Effect.scoped(work(handle)), Effect.scoped(handle.sidecar), Effect.scoped(work(handle))], {
          concurrency: "unbounded"
        }),
      { seeds: 4 }
    )
  })

  it("leaves nothing when one of them leaves early", () => {
    safe(
      ({ handle }) =>
        Effect.all([Effect.timeoutOption(Effect.scoped(work(handle)), 2), Effect.scoped(work(handle))], {
          concurrency: "unbounded"
        }),
      { seeds: 3 }
    )
  })

  it("leaves a disposal that goes on", () => {
    const leased = (end: (world: World) => Effect.Effect<unknown, unknown>) => (made: World) =>
      Effect.gen(function* () {
        yield* work(made.handle)
        yield* made.handle.sidecar
        yield* end(made)
      })
    const options = { explicit: true, after: disposed, seeds: 2 }
    safe(
      leased(({ handle }) => handle.dispose),
      options
    )
    safe(
      leased(({ pool }) => pool.dispose),
      options
    )
    safe(
      leased(({ handle }) => Effect.all([handle.dispose, handle.dispose], { concurrency: "unbounded" })),
      options
    )
    safe(({ handle }) => Effect.andThen(Effect.scoped(work(handle)), handle.disposeIfUnused), options)
  })
})

describe("a sidecar that ends at whatever operation of its callers", () => {
  const several = ({ handle }: World) =>
    Effect.all([Effect.exit(Effect.scoped(work(handle))), Effect.exit(Effect.scoped(handle.sidecar))], {
      concurrency: "unbounded"
    })

  it("leaves nothing when it is lost, and the next one works", () => {
    safe(several, { strike: ({ links }) => links.at(-1)?.lose ?? Effect.void, seeds: 3 })
  })

  it("leaves nothing when it is disposed, by its handle or its pool", () => {
    safe(several, { strike: ({ handle }) => handle.dispose, seeds: 3 })
    safe(several, { strike: ({ pool }) => pool.dispose, seeds: 2 })
  })

  it("leaves nothing when it is disposed as unused", () => {
    safe(several, { strike: ({ handle }) => handle.disposeIfUnused, seeds: 2 })
  })

  it("has one live connection at a time, whoever replaces it", () => {
    const again = ({ pool }: World) =>
      Effect.all(
        Array.from({ length: 3 }, () =>
          Effect.retry(
            Effect.flatMap(pool.shared(), (handle) => Effect.scoped(handle.openVm(root))),
            { times: 5, while: (error) => error._tag === "Disposed" }
          )
        ),
        { concurrency: "unbounded" }
      )
    safe(again, { strike: ({ links }) => links.at(-1)?.lose ?? Effect.void, seeds: 2 })
    safe(again, { strike: ({ handle }) => handle.dispose, seeds: 2 })
  })
})
