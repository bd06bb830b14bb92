// Claims on a sidecar: what counts, what gives one back, and what is said about it.
import { assert, describe, it } from "@effect/vitest"
import { Address, Lease } from "acp-sidecar"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Logger from "effect/Logger"
import * as Metric from "effect/Metric"
import * as Scope from "effect/Scope"
import * as Observers from "../src/internal/observers.ts"
import { beside, idle } from "./support/events.ts"
import * as Pool from "./support/pool.ts"
import { series } from "./support/telemetry.ts"

const address = { sidecarId: Address.SidecarId.make("one") }

/** A ledger whose releases are counted, and a way to take from it. */
const ledger = (onRelease: Effect.Effect<void> = Effect.void) =>
  Effect.gen(function* () {
    const metrics = yield* Observers.current
    const owner = yield* Effect.scope
    let releases = 0
    const self = Lease.make({
      address,
      metrics,
      onRelease: Effect.andThen(
        Effect.sync(() => releases++),
        onRelease
      )
    })
    const take = (kind: Lease.Kind, warns = false) => Lease.open(self, Lease.reserve(self, kind), owner, { warns })
    return { self, take, owner, releases: () => releases }
  })

/** What is logged while an effect runs. */
const logged = <A, E, R>(effect: Effect.Effect<A, E, R>) => {
  const lines: Array<string> = []
  const logger = Logger.make(({ message }) => void lines.push(String(message)))
  return Effect.map(Effect.provide(effect, Logger.layer([logger])), (value) => ({ lines, value }))
}

describe("a lease", () => {
  it.effect("is counted by its kind from the moment it is reserved, and given back once", () =>
    Effect.gen(function* () {
      const registry = new Map()
      const { releases, self, take } = yield* Effect.provideService(ledger(), Metric.MetricRegistry, registry)
      const gauges = () =>
        series({ spans: [], registry })
          .filter(({ id }) => id === "acp_sidecar.leases.active")
          .map(({ attributes, state }) => [attributes["kind"], state["value"]])
      const claim = Lease.reserve(self, "vm")
      assert.deepStrictEqual([Lease.count(self, "vm"), Lease.count(self, "package")], [1, 0])
      const vm = yield* Lease.open(self, claim, yield* Effect.scope, { warns: false })
      const whole = yield* take("package")
      assert.deepStrictEqual([Lease.count(self, "vm"), Lease.count(self, "package")], [1, 1])
      assert.deepStrictEqual(gauges(), [
        ["vm", 1],
        ["package", 1]
      ])
      yield* vm.lease.release
      yield* vm.lease.release
      assert.deepStrictEqual([vm.lease.state(), releases(), Lease.isUnused(self)], ["released", 1, false])
      yield* Effect.all([whole.lease.release, whole.lease.release], { concurrency: "unbounded" })
      assert.deepStrictEqual([whole.lease.state(), releases(), Lease.isUnused(self)], ["released", 2, true])
      assert.deepStrictEqual(gauges(), [
        ["vm", 0],
        ["package", 0]
      ])
    }).pipe(Effect.scoped)
  )

  it.effect("is given back by the end of a scope that it is tied to, which waits for all of it", () =>
    Effect.gen(function* () {
      const latch = Latch.makeUnsafe(false)
      const { releases, self, take } = yield* ledger(latch.await)
      const { lease, tie } = yield* take("vm")
      const caller = yield* Scope.make()
      yield* tie(caller)
      const closing = yield* beside(Scope.close(caller, Exit.void))
      const releasing = yield* beside(lease.release)
      yield* idle
      assert.deepStrictEqual([lease.state(), releases(), Lease.isUnused(self)], ["released", 1, true])
      assert.deepStrictEqual([closing.pollUnsafe(), releasing.pollUnsafe()], [undefined, undefined])
      yield* latch.open
      yield* Fiber.join(closing)
      yield* Fiber.join(releasing)
      assert.strictEqual(releases(), 1)
    }).pipe(Effect.scoped)
  )

  it.effect("leaves nothing in the scope it was tied to when it is released first", () =>
    Effect.gen(function* () {
      const { take } = yield* ledger()
      const caller = yield* Scope.make()
      for (let i = 0; i < 10; i++) {
        const { lease, tie } = yield* take("vm")
        yield* tie(caller)
        yield* lease.release
      }
      assert.strictEqual(caller.state._tag, "Empty")
    }).pipe(Effect.scoped)
  )

  it.effect("is warned about once when only its scope gave it back", () =>
    Effect.gen(function* () {
      const { take } = yield* ledger()
      const dropped = yield* logged(
        Effect.gen(function* () {
          const caller = yield* Scope.make()
          const { lease, tie } = yield* take("vm", true)
          yield* tie(caller)
          yield* Scope.close(caller, Exit.void)
          yield* lease.release
          yield* Scope.close(caller, Exit.void)
        })
      )
      assert.deepStrictEqual(dropped.lines, ["a vm lease on one was not released before its scope closed"])
      const released = yield* logged(
        Effect.gen(function* () {
          const { lease, tie } = yield* take("vm", true)
          yield* tie(yield* Effect.scope)
          yield* lease.release
        }).pipe(Effect.scoped)
      )
      assert.deepStrictEqual(released.lines, [])
      const unwarned = yield* logged(
        Effect.scoped(Effect.flatMap(take("vm"), ({ tie }) => Effect.flatMap(Effect.scope, tie)))
      )
      assert.deepStrictEqual(unwarned.lines, [])
    }).pipe(Effect.scoped)
  )

  it.effect("that is retained counts until all are forfeited, and says so once", () =>
    Effect.gen(function* () {
      const { releases, self, take } = yield* ledger()
      const { lease } = yield* take("vm")
      const other = yield* take("package")
      const { lines } = yield* logged(Effect.andThen(lease.retain("no answer"), lease.retain("no answer")))
      assert.strictEqual(lines.length, 1)
      assert.include(lines[0], "is not confirmed: no answer")
      yield* lease.release
      assert.deepStrictEqual([lease.state(), Lease.count(self, "vm"), releases()], ["retained", 1, 0])
      Lease.forfeit(self)
      assert.deepStrictEqual([lease.state(), other.lease.state(), Lease.isUnused(self)], ["released", "released", true])
      // It is over: nothing is counted or said any more.
      yield* other.lease.release
      const late = yield* logged(other.lease.retain("no answer"))
      assert.deepStrictEqual([late.lines, releases(), Lease.isUnused(self)], [[], 0, true])
    }).pipe(Effect.scoped)
  )

  it.effect("ends with the scope that owns it", () =>
    Effect.gen(function* () {
      const owner = yield* Scope.make()
      const { self, take } = yield* Scope.provide(ledger(), owner)
      yield* take("vm")
      yield* Scope.close(owner, Exit.void)
      assert.isTrue(Lease.isUnused(self))
    })
  )
})

describe("a lease of a pool", () => {
  it.effect("is warned about when its scope gives it back, and not when it was released or is one of a Vm", () =>
    Effect.gen(function* () {
      const { pool } = yield* Pool.make()
      const handle = yield* pool.explicit("one")
      const { lines } = yield* logged(
        Effect.gen(function* () {
          yield* Effect.scoped(handle.lease("package"))
          yield* Effect.scoped(Effect.flatMap(handle.lease("vm"), (lease) => lease.release))
          yield* Effect.scoped(handle.sidecar)
          yield* Effect.scoped(handle.openVm({ root: "/work" }))
        })
      )
      assert.deepStrictEqual(lines, ["a package lease on one was not released before its scope closed"])
    })
  )

  it.effect("is gone with its sidecar, and releasing it later does nothing", () =>
    Effect.gen(function* () {
      const { pool } = yield* Pool.make()
      const handle = yield* pool.shared()
      const lease = yield* handle.lease("vm")
      assert.deepInclude(lease, { kind: "vm", address: { sidecarId: handle.sidecarId } })
      yield* handle.dispose
      assert.strictEqual(lease.state(), "released")
      const next = yield* pool.shared()
      yield* (yield* next.lease("vm")).retain("a reason")
      yield* lease.release
      assert.deepInclude(yield* next.describe, { state: "ready", activeVmCount: 1 })
    })
  )
})
