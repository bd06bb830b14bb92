import { assert, describe, it } from "@effect/vitest"
import { Interruption } from "acp-sidecar/testing"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Semaphore from "effect/Semaphore"
import * as MiniCore from "../support/miniCore.ts"

const permitIsBack = (semaphore: Semaphore.Semaphore) =>
  Effect.map(semaphore.takeIfAvailable(1), (free) => assert.isTrue(free, "permit lost"))

const leaky: Interruption.Options<Semaphore.Semaphore, void, never> = {
  make: Semaphore.make(1),
  body: Effect.fn("Leaky.run")(function* (semaphore) {
    yield* semaphore.take(1)
    yield* Effect.sleep("1 second")
    yield* semaphore.release(1)
  }),
  check: permitIsBack
}

describe("interruption at every operation", () => {
  it("proves withPermit safe, sleeps and nested fibers included", () => {
    const report = Interruption.assertSafe({
      make: Semaphore.make(1),
      body: (semaphore) =>
        Effect.all(
          [
            semaphore.withPermit(Effect.sleep("10 seconds")),
            semaphore.withPermit(Effect.andThen(Effect.sleep("20 seconds"), Effect.void))
          ],
          { concurrency: "unbounded" }
        ),
      check: permitIsBack,
      seeds: 5
    })
    assert.strictEqual(report.operations.length, 5)
    assert.strictEqual(
      report.runs,
      report.operations.reduce((sum, count) => sum + count, 0)
    )
    assert.isAbove(report.runs, 100)
  })

  it("finds a lost permit and says at which operation, in which code and in which span", () => {
    const report = Interruption.atEveryOperation(leaky)
    assert.isAbove(report.failures.length, 0)
    for (const { code, operation, span } of report.failures) {
      assert.isAtLeast(operation, 1)
      assert.isAtMost(operation, report.operations[0]!)
      assert.match(code, /^\w+/)
      assert.match(span, /Leaky\.run/)
    }
    assert.match(
      Interruption.format(report),
      /struck at operation \d+ of \d+ \(seed 0\): permit lost: .*\n {2}.+ in Leaky\.run/
    )
    assert.throws(() => Interruption.assertSafe(leaky), /permit lost/)
    const { cause } = report.failures[0]!
    assert.include((cause as Error).stack, "Interruption.test.ts")
  })

  it("strikes between steps that Effect runs in a row as well", () => {
    const steps = Effect.sync(() => 0).pipe(
      Effect.map((number) => number + 1),
      Effect.map((number) => number + 1),
      Effect.map((number) => number + 1),
      Effect.map((number) => number + 1)
    )
    const { failures } = Interruption.atEveryOperation({
      make: Effect.void,
      body: () => steps,
      check: (_, exit) => {
        if (Exit.isFailure(exit)) throw new Error("struck")
      }
    })
    // The result of each step is an operation of its own.
    assert.isAtLeast(failures.filter(({ code }) => code === "Success").length, 4)
  })

  it("takes no more operations than it is told to, others under each seed", () => {
    const report = Interruption.atEveryOperation({ ...leaky, maxPoints: 2, seeds: 3 })
    assert.isAtMost(report.runs, 6)
    assert.isAtLeast(report.runs, 3)
  })

  it("reports what is wrong without any strike as such", () => {
    const broken = { ...leaky, body: () => Effect.void, check: () => Effect.fail(new Error("broken")) }
    const report = Interruption.atEveryOperation(broken)
    assert.deepStrictEqual(
      report.failures.map(({ message, operation }) => [operation, message]),
      [[0, "broken"]]
    )
    assert.strictEqual(Interruption.format(report), "with no strike (seed 0): broken")
  })

  it("finds fibers and timers that are left", () => {
    const report = (body: Effect.Effect<unknown>, options = {}) =>
      Interruption.format(
        Interruption.atEveryOperation({
          make: Effect.void,
          body: () => body,
          check: () => undefined,
          ...options
        })
      )
    const forgotten = Effect.forkDetach(Effect.withSpan(Effect.never, "Reader.loop"))
    assert.match(report(forgotten), /with no strike \(seed 0\): Left behind 1 fiber\(s\):\n[^]*Reader\.loop/)
    const late = Effect.forkDetach(Effect.sleep("1 minute"))
    assert.match(report(late), /with no strike \(seed 0\): Left behind 1 timer\(s\)/)
    assert.match(report(late, { keepsTimers: true }), /Left behind 1 timer\(s\) after the close/)
  })

  it("looks at the world after its close too", () => {
    const closes: Array<string> = []
    const options: Interruption.Options<{ open: boolean }, void, never> = {
      make: Effect.acquireRelease(
        Effect.sync((): { open: boolean } => ({ open: true })),
        (world) => Effect.sync(() => (world.open = false))
      ),
      body: () => Effect.yieldNow,
      check: (world) => assert.isTrue(world.open),
      closed: (world) => {
        closes.push(String(world.open))
        return Effect.sync(() => assert.isFalse(world.open))
      }
    }
    const { runs } = Interruption.assertSafe(options)
    assert.strictEqual(closes.length, runs + 1)
    assert.include(closes, "false")
  })

  it("can do something else than interrupt: a strike", () => {
    interface World {
      readonly door: Deferred.Deferred<string>
      readonly outcomes: Set<string>
    }
    const outcomes = new Set<string>()
    const door: Interruption.Options<World, string, never> = {
      make: Effect.sync(() => ({ door: Deferred.makeUnsafe<string>(), outcomes })),
      body: ({ door }) => Effect.raceFirst(Deferred.await(door), Effect.delay(Effect.succeed("late"), "1 second")),
      strike: ({ door }) => Deferred.succeed(door, "struck"),
      check: ({ outcomes }, exit) => {
        assert.isTrue(Exit.isSuccess(exit))
        if (Exit.isSuccess(exit)) outcomes.add(exit.value)
      }
    }
    Interruption.assertSafe({ ...door, seeds: 3 })
    assert.deepStrictEqual([...outcomes].sort(), ["late", "struck"])
    Interruption.assertSafe({ ...door, strike: () => Effect.fail("no matter") })
    const dying = Interruption.atEveryOperation({ ...door, strike: () => Effect.die(new Error("a bug")) })
    assert.strictEqual(dying.failures.length, dying.runs)
    assert.strictEqual(dying.failures[0]?.message, "a bug")
  })
})

describe("the mini core, interrupted at every operation", () => {
  const core = (bug?: MiniCore.Bug): Interruption.Options<MiniCore.MiniCore, void, never> => ({
    make: MiniCore.make({ limit: 1, bug }),
    body: Effect.fnUntraced(function* (core) {
      yield* core.open
      yield* core.prompt(0, "slow")
      yield* core.prompt(0, "ask")
      yield* Effect.sleep("12 seconds")
      yield* core.answer(0)
      yield* core.prompt(0, "flood")
      yield* core.cancel(0)
      yield* core.close(0)
    }),
    check: (core) => assert.strictEqual(new Set(core.ended.map(([turn]) => turn)).size, core.ended.length),
    closed: (core) => {
      assert.strictEqual(core.ended.length, core.gauges.started, "turns without a terminal event")
      for (const key of ["hosts", "questions", "permitsTaken", "running", "sessions"] as const) {
        assert.strictEqual(core.gauges[key], 0, `${key} left`)
      }
    },
    // An idle host waits a minute for its next session.
    keepsTimers: true
  })

  it("is safe under several interleavings", () => {
    assert.isAbove(Interruption.assertSafe({ ...core(), seeds: 3, maxPoints: 200 }).runs, 500)
  })

  it("is safe when its agent crashes there", () => {
    assert.isAbove(Interruption.assertSafe({ ...core(), strike: ({ crash }) => crash, maxPoints: 150 }).runs, 100)
  })

  it("has the session found that outlives its core", () => {
    assert.isAbove(Interruption.atEveryOperation({ ...core("hostLeak"), maxPoints: 20 }).failures.length, 0)
  })
})
