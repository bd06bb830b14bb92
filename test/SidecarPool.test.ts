// Named sidecars: who gets which, when they start and when they end.
import { assert, describe, it } from "@effect/vitest"
import { type Lease, Sidecar, SidecarPool } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import { beside, idle } from "./support/events.ts"
import * as Pool from "./support/pool.ts"
import { hanging, stuck } from "./support/turns.ts"

/** Something that was taken in a scope of its own, and the end of that scope. */
const held = <A, E>(taking: Effect.Effect<A, E, Scope.Scope>) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const value = yield* Scope.provide(taking, scope)
    return { value, end: Scope.close(scope, Exit.void) }
  })

const root = { root: "/work" }
const stateOf = (handle: SidecarPool.Handle) => Effect.map(handle.describe, ({ state }) => state)

describe("handles", () => {
  it.effect("name a shared sidecar by its pool and an explicit one by its id, and describe them plainly", () =>
    Effect.gen(function* () {
      const { pool, starts } = yield* Pool.make()
      const all = [
        [yield* pool.shared(), "acp-sidecar-shared:default", { kind: "shared", pool: "default" }],
        [yield* pool.shared("editor"), "acp-sidecar-shared:editor", { kind: "shared", pool: "editor" }],
        [yield* pool.shared(""), "acp-sidecar-shared:", { kind: "shared" }],
        [yield* pool.explicit("mine"), "mine", { kind: "explicit", sidecarId: "mine" }]
      ] as const
      for (const [handle, sidecarId, placement] of all) {
        assert.deepStrictEqual<unknown>(yield* handle.describe, {
          sidecarId,
          placement,
          state: "ready",
          activeVmCount: 0
        })
      }
      const { sidecarId } = yield* pool.explicit()
      assert.match(sidecarId, /^acp-sidecar-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
      assert.notStrictEqual((yield* pool.explicit()).sidecarId, sidecarId)
      assert.strictEqual((yield* pool.describe).length, 6)
      assert.strictEqual(starts(), 0)
    })
  )

  it.effect("are the same for the same name, and others for other names", () =>
    Effect.gen(function* () {
      const { pool } = yield* Pool.make()
      const many = yield* Effect.all(
        Array.from({ length: 100 }, () => pool.shared("one")),
        { concurrency: "unbounded" }
      )
      assert.strictEqual(new Set(many).size, 1)
      assert.notStrictEqual(yield* pool.shared("two"), many[0])
      assert.strictEqual(yield* pool.explicit("two"), yield* pool.explicit("two"))
    })
  )

  it.effect("refuse names that can't be names of files", () =>
    Effect.gen(function* () {
      const { pool } = yield* Pool.make()
      for (const name of ["a/b", "a\\b", "a\nb", "\u0000", "\u007f", "\u2028", "\ud800", "x".repeat(65)]) {
        for (const get of [pool.shared, pool.explicit]) {
          const error = yield* Effect.flip(get(name))
          assert.strictEqual(error._tag, "InvalidInput", JSON.stringify(name))
        }
      }
      for (const id of ["", ".", "..", "acp-sidecar-shared:default"]) {
        assert.strictEqual((yield* Effect.flip(pool.explicit(id)))._tag, "InvalidInput", id)
      }
      yield* pool.shared("x".repeat(64))
      yield* pool.shared("Arbeit mit Umlauten: äöü")
      assert.strictEqual((yield* pool.describe).length, 2)
    })
  )

  it.effect("are refused by a full pool, which keeps its live ones and takes others once one is disposed", () =>
    Effect.gen(function* () {
      const { links, pool } = yield* Pool.make({ maxSidecars: 2 })
      const one = yield* pool.shared("one")
      const two = yield* pool.explicit("two")
      yield* two.sidecar
      const error = yield* Effect.flip(pool.shared("three"))
      assert.deepInclude(error, { _tag: "LimitExceeded", scope: "pool", limit: "maxSidecars", used: 2, max: 2 })
      assert.include(error.message, "acp-sidecar-shared:three")
      assert.include(error.message, "ACP_SIDECAR_MAX_SIDECARS")
      // Those that are there can be had all the same.
      assert.strictEqual(yield* pool.shared("one"), one)
      yield* one.dispose
      const three = yield* pool.shared("three")
      assert.strictEqual(yield* pool.explicit("two"), two)
      assert.strictEqual((yield* Effect.flip(pool.shared("four")))._tag, "LimitExceeded")
      // One that is lost makes room as well.
      yield* links[0]!.lose
      yield* idle
      yield* pool.shared("four")
      assert.strictEqual(yield* pool.shared("three"), three)
    })
  )

  it.effect("are refused when nothing fits, and by a pool that is closed", () =>
    Effect.gen(function* () {
      const none = yield* Pool.make({ maxSidecars: 0 })
      assert.deepInclude(yield* Effect.flip(none.pool.shared()), { _tag: "LimitExceeded", used: 0, max: 0 })
      const { end, value } = yield* held(Pool.make())
      const handle = yield* value.pool.shared()
      yield* end
      assert.strictEqual((yield* Effect.flip(value.pool.shared()))._tag, "Disposed")
      assert.strictEqual((yield* Effect.flip(Effect.scoped(handle.sidecar)))._tag, "Disposed")
      assert.strictEqual(yield* stateOf(handle), "disposed")
    })
  )
})

describe("the start", () => {
  it.effect("is made for the first lease, and is one for a hundred callers at once", () =>
    Effect.gen(function* () {
      const { alive, links, pool, starts } = yield* Pool.make({ connecting: Effect.sleep(100) })
      const handle = yield* pool.shared()
      const taking = Effect.flatMap(pool.shared(), (one) => held(one.lease("package")))
      const all = yield* beside(
        Effect.all(
          Array.from({ length: 100 }, () => taking),
          { concurrency: "unbounded" }
        )
      )
      yield* TestClock.adjust(100)
      const leases = yield* Fiber.join(all)
      assert.strictEqual(starts(), 1)
      assert.deepStrictEqual<unknown>(links[0]!.wanted, { sidecarId: handle.sidecarId, placement: handle.placement })
      for (const { value } of leases.slice(1)) yield* value.release
      assert.strictEqual(yield* stateOf(handle), "ready")
      yield* leases[0]!.value.release
      assert.deepStrictEqual([yield* stateOf(handle), alive()], ["disposed", 0])
    })
  )

  it.effect("fails for all who wait for it, leaves nothing, and is tried again by the next one", () =>
    Effect.gen(function* () {
      const fails = Effect.andThen(Effect.sleep(100), Effect.fail(Pool.unreachable))
      const { alive, change, pool, starts } = yield* Pool.make({ connecting: fails })
      const handle = yield* pool.shared()
      const failing = Effect.flip(Effect.scoped(handle.openVm(root)))
      const all = yield* beside(Effect.all([failing, failing, failing], { concurrency: "unbounded" }))
      yield* TestClock.adjust(100)
      for (const error of yield* Fiber.join(all)) assert.strictEqual(error, Pool.unreachable)
      assert.deepStrictEqual([starts(), alive()], [1, 0])
      assert.deepInclude(yield* handle.describe, { state: "ready", activeVmCount: 0 })
      change({})
      const { id } = yield* Effect.scoped(handle.openVm(root))
      assert.deepStrictEqual([id, starts()], ["vm-1", 2])
    })
  )

  it.effect("that dies is a defect for those who wait, and leaves nothing either", () =>
    Effect.gen(function* () {
      const { alive, change, pool } = yield* Pool.make({ connecting: Effect.die("a bug") })
      const handle = yield* pool.shared()
      const exit = yield* Effect.exit(Effect.scoped(handle.sidecar))
      assert.include(String(exit), "a bug")
      assert.strictEqual(alive(), 0)
      change({})
      yield* Effect.scoped(handle.sidecar)
    })
  )

  it.effect("goes on when one who waits for it goes away, and ends with the last of them", () =>
    Effect.gen(function* () {
      const { alive, change, pool, starts } = yield* Pool.make({ connecting: Effect.never })
      const handle = yield* pool.shared()
      const first = yield* beside(Effect.scoped(handle.openVm(root)))
      const second = yield* beside(Effect.scoped(handle.openVm(root)))
      yield* idle
      assert.deepInclude(yield* handle.describe, { activeVmCount: 2 })
      yield* Fiber.interrupt(first)
      assert.deepStrictEqual([starts(), alive()], [1, 1])
      yield* Fiber.interrupt(second)
      assert.deepStrictEqual([starts(), alive()], [1, 0])
      assert.deepInclude(yield* handle.describe, { state: "ready", activeVmCount: 0 })
      change({})
      yield* Effect.scoped(handle.openVm(root))
      assert.strictEqual(starts(), 2)
    })
  )

  it.effect("that was given up is waited for by the next one", () =>
    Effect.gen(function* () {
      const world = yield* Pool.make({ connecting: Effect.never, closing: Effect.sleep(1000) })
      const handle = yield* world.pool.explicit("one")
      const first = yield* beside(Effect.scoped(handle.sidecar))
      yield* idle
      const leaving = yield* beside(Fiber.interrupt(first))
      yield* idle
      world.change({ closing: Effect.sleep(1000) })
      const second = yield* beside(held(handle.sidecar))
      yield* idle
      assert.strictEqual(world.starts(), 1)
      yield* TestClock.adjust(1000)
      yield* Fiber.join(leaving)
      yield* Fiber.join(second)
      assert.deepStrictEqual([world.starts(), world.mostAlive("one")], [2, 1])
      world.change({})
    })
  )
})

describe("leases", () => {
  it.effect("of a Vm that is opening keep the last other Vm from disposing the sidecar", () =>
    Effect.gen(function* () {
      const latch = Latch.makeUnsafe(true)
      const { alive, pool, starts } = yield* Pool.make({
        sidecar: (sidecar) => ({ openVm: (options) => Effect.andThen(latch.await, sidecar.openVm(options)) })
      })
      const handle = yield* pool.shared()
      const first = yield* held(handle.openVm(root))
      yield* latch.close
      const second = yield* beside(held(handle.openVm(root)))
      yield* idle
      assert.deepInclude(yield* handle.describe, { activeVmCount: 2 })
      yield* first.value.close
      assert.deepInclude(yield* handle.describe, { state: "ready", activeVmCount: 1 })
      yield* latch.open
      const { value } = yield* Fiber.join(second)
      assert.deepStrictEqual([starts(), alive()], [1, 1])
      yield* value.close
      assert.deepStrictEqual([yield* stateOf(handle), alive()], ["disposed", 0])
    })
  )

  it.effect("of both kinds must be given back before a shared sidecar ends", () =>
    Effect.gen(function* () {
      const { links, pool } = yield* Pool.make()
      const handle = yield* pool.shared()
      const vm = yield* held(handle.openVm(root))
      const whole = yield* held(handle.sidecar)
      assert.strictEqual(yield* handle.disposeIfUnused, false)
      yield* vm.end
      assert.deepInclude(yield* handle.describe, { state: "ready", activeVmCount: 0 })
      assert.deepInclude(yield* links[0]!.sidecar.describe, { state: "ready", activeVmCount: 0 })
      assert.strictEqual(yield* handle.disposeIfUnused, false)
      yield* whole.end
      assert.strictEqual(yield* stateOf(handle), "disposed")
      assert.deepInclude(yield* links[0]!.sidecar.describe, { state: "disposed" })
      assert.deepStrictEqual(yield* pool.describe, [])
    })
  )

  it.effect("leave an explicit sidecar as it is when the last one goes, until it is disposed if unused", () =>
    Effect.gen(function* () {
      const { alive, pool, starts } = yield* Pool.make()
      const handle = yield* pool.explicit()
      yield* Effect.scoped(handle.openVm(root))
      yield* Effect.scoped(handle.sidecar)
      assert.deepStrictEqual([yield* stateOf(handle), starts(), alive()], ["ready", 1, 1])
      assert.strictEqual(yield* handle.disposeIfUnused, true)
      assert.deepStrictEqual([yield* stateOf(handle), alive()], ["disposed", 0])
      assert.strictEqual(yield* handle.disposeIfUnused, true)
    })
  )

  it.effect("are given back when a Vm can't be opened, and a sidecar that nobody uses is disposed", () =>
    Effect.gen(function* () {
      const { alive, pool } = yield* Pool.make()
      const handle = yield* pool.shared()
      const failing = Effect.flip(Effect.scoped(handle.openVm({ root: "not absolute" })))
      const whole = yield* held(handle.sidecar)
      assert.strictEqual((yield* failing)._tag, "InvalidInput")
      assert.deepInclude(yield* handle.describe, { state: "ready", activeVmCount: 0 })
      yield* whole.end
      const next = yield* pool.shared()
      const error = yield* Effect.flip(Effect.scoped(next.openVm({ root: "not absolute" })))
      assert.strictEqual(error._tag, "InvalidInput")
      assert.deepStrictEqual([yield* stateOf(next), alive()], ["disposed", 0])
    })
  )

  it.effect("are kept when the end of the Vm can't be confirmed in time, until the sidecar is disposed", () =>
    Effect.gen(function* () {
      const { alive, pool } = yield* Pool.make({
        sidecar: (sidecar) => ({
          openVm: (options) => Effect.tap(sidecar.openVm(options), () => Effect.addFinalizer(() => Effect.never))
        })
      })
      const handle = yield* pool.shared()
      const { end } = yield* held(handle.openVm(root))
      const ending = yield* beside(end)
      yield* TestClock.adjust("23 seconds")
      assert.strictEqual(ending.pollUnsafe(), undefined)
      yield* TestClock.adjust("1 second")
      yield* Fiber.join(ending)
      assert.deepInclude(yield* handle.describe, { state: "ready", activeVmCount: 1 })
      assert.strictEqual(yield* handle.disposeIfUnused, false)
      yield* Effect.scoped(handle.sidecar)
      assert.deepStrictEqual([yield* stateOf(handle), alive()], ["ready", 1])
      yield* handle.dispose
      assert.deepInclude(yield* handle.describe, { state: "disposed", activeVmCount: 0 })
      assert.strictEqual(alive(), 0)
    })
  )

  it.effect("are kept when what is left of a Vm that could not be opened does not end", () =>
    Effect.gen(function* () {
      const { pool } = yield* Pool.make({
        sidecar: (sidecar) => ({
          openVm: (options) =>
            Effect.andThen(
              Effect.addFinalizer(() => Effect.never),
              sidecar.openVm(options)
            )
        })
      })
      const handle = yield* pool.shared()
      const opening = yield* beside(Effect.flip(Effect.scoped(handle.openVm({ root: "not absolute" }))))
      yield* TestClock.adjust("24 seconds")
      assert.strictEqual((yield* Fiber.join(opening))._tag, "InvalidInput")
      assert.deepInclude(yield* handle.describe, { state: "ready", activeVmCount: 1 })
      yield* handle.dispose
    })
  )

  it.effect("wait for the grace periods of their own Vm, and so does the disposal", () =>
    Effect.gen(function* () {
      const { pool } = yield* Pool.make({
        sidecar: (sidecar) => ({
          openVm: (options) => Effect.tap(sidecar.openVm(options), () => Effect.addFinalizer(() => Effect.never)),
          dispose: Effect.never
        })
      })
      const handle = yield* pool.shared()
      const { end } = yield* held(handle.openVm({ ...root, limits: { cancelGrace: "1 minute" } }))
      const ending = yield* beside(end)
      yield* TestClock.adjust("73 seconds")
      assert.strictEqual(ending.pollUnsafe(), undefined)
      yield* TestClock.adjust("1 second")
      yield* Fiber.join(ending)
      const disposing = yield* beside(Effect.flip(handle.dispose))
      yield* TestClock.adjust("73 seconds")
      assert.strictEqual(disposing.pollUnsafe(), undefined)
      yield* TestClock.adjust("1 second")
      const { failures } = yield* Fiber.join(disposing)
      assert.strictEqual(failures.length, 1)
    })
  )

  it.effect("are kept when the end of the Vm fails", () =>
    Effect.gen(function* () {
      const { pool } = yield* Pool.make({
        sidecar: (sidecar) => ({
          openVm: (options) =>
            Effect.tap(sidecar.openVm(options), () => Effect.addFinalizer(() => Effect.die("no answer")))
        })
      })
      const handle = yield* pool.shared()
      yield* (yield* handle.openVm(root)).close
      assert.deepInclude(yield* handle.describe, { state: "ready", activeVmCount: 1 })
      yield* handle.dispose
    })
  )
})

describe("a sidecar that is lost", () => {
  it.effect("C07: reads disposed at once, and the next one to ask gets another", () =>
    Effect.gen(function* () {
      const { links, mostAlive, pool, starts } = yield* Pool.make({ closing: Effect.sleep(1000) })
      const handle = yield* pool.shared()
      const vm = yield* held(handle.openVm(root))
      yield* links[0]!.lose
      yield* idle
      assert.deepInclude(yield* handle.describe, { state: "disposed", activeVmCount: 0 })
      const error = yield* Effect.flip(Effect.scoped(handle.openVm(root)))
      assert.deepInclude(error, { _tag: "Disposed" })
      assert.include(error.message, "it was killed")
      const next = yield* pool.shared()
      assert.notStrictEqual(next, handle)
      // It waits for the end of the one before it.
      const opening = yield* beside(held(next.openVm(root)))
      yield* idle
      assert.strictEqual(starts(), 1)
      yield* TestClock.adjust(1000)
      yield* Fiber.join(opening)
      assert.deepStrictEqual([starts(), mostAlive(next.sidecarId)], [2, 1])
      // What is left of the old one ends without harm to the new one.
      yield* vm.end
      yield* handle.dispose
      assert.strictEqual(yield* pool.shared(), next)
      assert.deepInclude(yield* next.describe, { state: "ready", activeVmCount: 1 })
    }).pipe(Effect.ensuring(Effect.forkDetach(TestClock.adjust("1 minute"))))
  )

  it.effect("C07: is noticed by a Vm that it refuses, too", () =>
    Effect.gen(function* () {
      const { links, pool } = yield* Pool.make()
      const handle = yield* pool.shared()
      yield* handle.sidecar
      yield* links[0]!.sidecar.dispose
      const error = yield* Effect.flip(Effect.scoped(handle.openVm(root)))
      assert.strictEqual(error._tag, "Disposed")
      assert.strictEqual(yield* stateOf(handle), "disposed")
      yield* Effect.scoped((yield* pool.shared()).openVm(root))
    })
  )
})

describe("a sidecar behind a connection", () => {
  it.effect("works as one in this process does, and is disposed with its last lease", () =>
    Effect.gen(function* () {
      const { made, pool } = yield* Pool.makeRemote({ script: { prompt: () => Effect.succeed("end_turn") } })
      const handle = yield* pool.shared()
      const vm = yield* handle.openVm(root)
      const session = yield* vm.openSession({ agent: TestSidecar.profile })
      assert.strictEqual((yield* session.prompt("go"))._tag, "Completed")
      const whole = yield* held(handle.sidecar)
      yield* vm.close
      assert.deepInclude(yield* whole.value.describe, { state: "ready", activeVmCount: 0 })
      yield* whole.end
      assert.strictEqual(yield* stateOf(handle), "disposed")
      assert.deepInclude(yield* made[0]!.sidecar.describe, { state: "disposed" })
    })
  )

  it.effect("C07: reads disposed when its process dies, and the next one starts another", () =>
    Effect.gen(function* () {
      const world = yield* Pool.makeRemote({ script: hanging })
      const { made, pool } = world
      const handle = yield* pool.shared()
      const vm = yield* handle.openVm(root)
      const session = yield* vm.openSession({ agent: TestSidecar.profile })
      const turn = yield* session.submit("go")
      yield* idle
      yield* world.break()
      yield* idle
      assert.deepInclude(yield* handle.describe, { state: "disposed", activeVmCount: 0 })
      assert.deepInclude(yield* Effect.flip(turn.await), { _tag: "TurnFailed" })
      yield* vm.close
      assert.strictEqual((yield* Effect.flip(Effect.scoped(handle.openVm(root))))._tag, "Disposed")
      const next = yield* pool.shared()
      yield* Effect.scoped(next.openVm(root))
      assert.strictEqual(made.length, 2)
    }).pipe(Effect.ensuring(Effect.forkDetach(TestClock.adjust("1 minute"))))
  )
})

describe("dispose", () => {
  it.effect("C03: of an idle sidecar takes no time, and of one with a turn that does not end the grace", () =>
    Effect.gen(function* () {
      const { links, pool } = yield* Pool.make({ script: stuck })
      const handle = yield* pool.explicit()
      const vm = yield* handle.openVm(root)
      yield* vm.openSession({ agent: TestSidecar.profile })
      yield* handle.dispose
      assert.strictEqual(yield* stateOf(handle), "disposed")
      const other = yield* pool.explicit()
      const session = yield* (yield* other.openVm(root)).openSession({ agent: TestSidecar.profile })
      yield* session.submit("go")
      yield* Queue.take(links[1]!.test.agents)
      yield* idle
      const disposing = yield* beside(other.dispose)
      yield* TestClock.adjust("9 seconds")
      assert.deepStrictEqual([disposing.pollUnsafe(), yield* stateOf(other)], [undefined, "disposing"])
      yield* TestClock.adjust("3 seconds")
      yield* Fiber.join(disposing)
      assert.strictEqual(yield* stateOf(other), "disposed")
    })
  )

  it.effect("takes no leases from its first moment, and goes on when its caller is interrupted", () =>
    Effect.gen(function* () {
      const { alive, pool } = yield* Pool.make({ closing: Effect.sleep(1000) })
      const handle = yield* pool.shared()
      yield* handle.sidecar
      const first = yield* beside(handle.dispose)
      yield* idle
      yield* Fiber.interrupt(first)
      assert.strictEqual(yield* stateOf(handle), "disposing")
      assert.strictEqual((yield* Effect.flip(Effect.scoped(handle.lease("vm"))))._tag, "Disposed")
      const second = yield* beside(handle.dispose)
      yield* TestClock.adjust(1000)
      yield* Fiber.join(second)
      assert.deepStrictEqual([yield* stateOf(handle), alive()], ["disposed", 0])
      yield* handle.dispose
    })
  )

  it.effect("is done once for all who ask for it at the same time", () =>
    Effect.gen(function* () {
      let times = 0
      const count = Effect.andThen(
        Effect.sleep(1000),
        Effect.sync(() => times++)
      )
      const { alive, pool } = yield* Pool.make({ sidecar: () => ({ dispose: Effect.asVoid(count) }) })
      const handle = yield* pool.explicit()
      yield* handle.sidecar
      const all = [handle.dispose, handle.dispose, handle.disposeIfUnused, pool.dispose]
      const disposing = yield* beside(Effect.all(all, { concurrency: "unbounded" }))
      yield* TestClock.adjust(1000)
      yield* Fiber.join(disposing)
      assert.deepStrictEqual([times, alive()], [1, 0])
    })
  )

  it.effect("refuses a Vm whose opening ends after it", () =>
    Effect.gen(function* () {
      const { alive, pool } = yield* Pool.make({
        sidecar: (sidecar) => ({
          openVm: (options) => Effect.uninterruptible(Effect.tap(sidecar.openVm(options), () => Effect.sleep(1000)))
        })
      })
      const handle = yield* pool.shared()
      const opening = yield* beside(Effect.flip(Effect.scoped(handle.openVm(root))))
      yield* idle
      yield* handle.dispose
      yield* TestClock.adjust(1000)
      assert.strictEqual((yield* Fiber.join(opening))._tag, "Disposed")
      assert.deepInclude(yield* handle.describe, { state: "disposed", activeVmCount: 0 })
      assert.strictEqual(alive(), 0)
    })
  )

  it.effect("tells of all that failed, and has disposed it nevertheless", () =>
    Effect.gen(function* () {
      const { alive, pool } = yield* Pool.make({
        closing: Effect.die(new Error("no such process")),
        sidecar: () => ({ dispose: Effect.die(new Error("no answer")) })
      })
      const handle = yield* pool.explicit("one")
      yield* handle.sidecar
      const error = yield* Effect.flip(handle.dispose)
      assert.deepStrictEqual<unknown>(error.failures, [
        { sidecarId: "one", step: "sidecar", problem: "no answer" },
        { sidecarId: "one", step: "connection", problem: "no such process" }
      ])
      assert.include(error.message, "the sidecar of one: no answer; the connection of one: no such process")
      assert.deepStrictEqual([yield* stateOf(handle), alive()], ["disposed", 1])
      yield* handle.dispose
    })
  )

  it.effect("is bounded in time; what has not ended stays disposing, is replaced, and can be waited for again", () =>
    Effect.gen(function* () {
      const latch = Latch.makeUnsafe(false)
      const { change, pool } = yield* Pool.make({ closing: latch.await, sidecar: () => ({ dispose: Effect.never }) })
      const handle = yield* pool.shared()
      yield* handle.sidecar
      const disposing = yield* beside(Effect.flip(handle.dispose))
      yield* TestClock.adjust("24 seconds")
      assert.strictEqual(disposing.pollUnsafe(), undefined)
      yield* TestClock.adjust("12 seconds")
      const error = yield* Fiber.join(disposing)
      assert.deepStrictEqual(
        error.failures.map(({ step }) => step),
        ["sidecar", "connection"]
      )
      assert.strictEqual(yield* stateOf(handle), "disposing")
      const next = yield* pool.shared()
      assert.notStrictEqual(next, handle)
      assert.strictEqual((yield* pool.describe).length, 2)
      const again = yield* beside(handle.dispose)
      yield* latch.open
      change({})
      yield* TestClock.adjust("24 seconds")
      yield* Effect.exit(Fiber.join(again))
      assert.strictEqual(yield* stateOf(handle), "disposed")
      // A replacement is not removed by the one before it.
      assert.strictEqual(yield* pool.shared(), next)
      assert.deepInclude(yield* next.describe, { state: "ready" })
    }).pipe(Effect.ensuring(Effect.forkDetach(TestClock.adjust("1 minute"))))
  )

  it.effect("ends a start that is under way", () =>
    Effect.gen(function* () {
      const { alive, pool } = yield* Pool.make({ connecting: Effect.never })
      const handle = yield* pool.shared()
      const opening = yield* beside(Effect.flip(Effect.scoped(handle.openVm(root))))
      yield* idle
      yield* handle.dispose
      assert.strictEqual((yield* Fiber.join(opening))._tag, "Disposed")
      assert.deepStrictEqual([yield* stateOf(handle), alive()], ["disposed", 0])
    })
  )

  it.effect("of the pool ends all side by side, and of its scope too", () =>
    Effect.gen(function* () {
      const { end, value } = yield* held(Pool.make({ closing: Effect.sleep(1000) }))
      const { alive, pool } = value
      const leases: Array<Lease.Lease> = []
      for (const name of ["a", "b", "c"]) leases.push((yield* held((yield* pool.shared(name)).lease("vm"))).value)
      const disposing = yield* beside(pool.dispose)
      yield* TestClock.adjust(1000)
      yield* Fiber.join(disposing)
      assert.deepStrictEqual([alive(), yield* pool.describe], [0, []])
      assert.deepStrictEqual(
        leases.map((lease) => lease.state()),
        ["released", "released", "released"]
      )
      for (const name of ["a", "b", "c"]) yield* held((yield* pool.shared(name)).sidecar)
      const ending = yield* beside(end)
      yield* TestClock.adjust(1000)
      yield* Fiber.join(ending)
      assert.strictEqual(alive(), 0)
    })
  )

  it.effect("of the pool tells of all failures", () =>
    Effect.gen(function* () {
      const { pool } = yield* Pool.make({ sidecar: () => ({ dispose: Effect.die(new Error("no")) }) })
      for (const id of ["a", "b"]) yield* (yield* pool.explicit(id)).sidecar
      const { failures } = yield* Effect.flip(pool.dispose)
      assert.deepStrictEqual<unknown>(
        failures.map(({ sidecarId }) => sidecarId),
        ["a", "b"]
      )
    })
  )
})

describe("layers", () => {
  const scripted = (options: Pool.Options = {}) => {
    const { service, ...seen } = Pool.connector(options)
    return { connector: Layer.succeed(SidecarPool.SidecarConnector, service), ...seen }
  }
  const app = Effect.gen(function* () {
    const vm = yield* (yield* Sidecar.Sidecar).openVm(root)
    const session = yield* vm.openSession({ agent: TestSidecar.profile })
    return (yield* session.prompt("go"))._tag
  }).pipe(Effect.scoped)

  it.effect("give an app that uses the service Sidecar one of a pool, until their scope closes", () =>
    Effect.gen(function* () {
      for (const which of [{}, { pool: "editor" }, { explicit: "mine" }]) {
        const { alive, connector, links } = scripted({ script: { prompt: () => Effect.succeed("end_turn") } })
        const layer = SidecarPool.layerSidecar(which).pipe(Layer.provide(SidecarPool.layer), Layer.provide(connector))
        const tag = yield* Effect.provide(
          Effect.tap(app, () => Effect.sync(() => assert.strictEqual(alive(), 1))),
          layer
        )
        assert.deepStrictEqual([tag, links.length, alive()], ["Completed", 1, 0])
      }
    })
  )

  it.effect("dispose the sidecar of the pool when the app disposes its own", () =>
    Effect.gen(function* () {
      const { alive, pool } = yield* Pool.make()
      yield* Effect.gen(function* () {
        yield* (yield* Sidecar.Sidecar).dispose
        assert.strictEqual(alive(), 0)
      }).pipe(Effect.provide(SidecarPool.layerSidecar({})), Effect.provideService(SidecarPool.SidecarPool, pool))
      assert.deepStrictEqual(yield* pool.describe, [])
    })
  )

  it.effect("take another sidecar when the first one ends before they have a lease on it", () =>
    Effect.gen(function* () {
      const { pool, starts } = yield* Pool.make()
      let times = 0
      const shared = (name?: string) =>
        Effect.tap(pool.shared(name), ({ dispose }) => (times++ < 2 ? Effect.orDie(dispose) : Effect.void))
      const build = Layer.build(SidecarPool.layerSidecar({ pool: "one" }))
      yield* Effect.provideService(build, SidecarPool.SidecarPool, { ...pool, shared })
      assert.deepStrictEqual([times, starts()], [3, 1])
      const always = (name?: string) => Effect.tap(pool.shared(name), ({ dispose }) => Effect.orDie(dispose))
      const error = yield* Effect.flip(
        Effect.provideService(build, SidecarPool.SidecarPool, { ...pool, shared: always })
      )
      assert.strictEqual(error._tag, "Disposed")
    })
  )

  it.effect("that a connector builds are its own, whichever of them the app has", () =>
    Effect.gen(function* () {
      const constant = Sidecar.layerTest(() => Effect.die("no agent is started"))
      const connect = () =>
        Effect.map(Layer.build(constant), (built) => ({
          sidecar: Context.get(built, Sidecar.Sidecar),
          lost: Effect.never
        }))
      const pool = Layer.provide(SidecarPool.layer, Layer.succeed(SidecarPool.SidecarConnector, { connect }))
      yield* Effect.gen(function* () {
        const own = yield* Sidecar.Sidecar
        const { explicit } = yield* SidecarPool.SidecarPool
        const one = yield* (yield* explicit()).sidecar
        const two = yield* (yield* explicit()).sidecar
        assert.strictEqual(new Set([own.id, one.id, two.id]).size, 3)
        yield* one.dispose
        assert.deepInclude(yield* own.describe, { state: "ready" })
        assert.deepInclude(yield* two.describe, { state: "ready" })
      }).pipe(Effect.provide(Layer.merge(constant, pool)))
    })
  )

  it.effect("share one pool between all runtimes of a process, until the last of them ends", () =>
    Effect.gen(function* () {
      const { alive, connector, starts } = scripted()
      const build = held(Layer.build(SidecarPool.layerDefault(connector)))
      const one = yield* build
      const two = yield* build
      const get = SidecarPool.SidecarPool.use((pool) => pool.shared())
      const handle = yield* Effect.provide(get, one.value)
      assert.strictEqual(yield* Effect.provide(get, two.value), handle)
      yield* held(handle.sidecar)
      yield* one.end
      assert.deepStrictEqual([alive(), starts()], [1, 1])
      yield* two.end
      assert.strictEqual(alive(), 0)
      const three = yield* build
      assert.notStrictEqual(yield* Effect.provide(get, three.value), handle)
      yield* three.end
    })
  )
})
