import { assert, describe, it } from "@effect/vitest"
import { SeededScheduler, Simulation } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberMap from "effect/FiberMap"
import * as Queue from "effect/Queue"
import * as Random from "effect/Random"
import * as RcMap from "effect/RcMap"
import * as Schedule from "effect/Schedule"
import * as Semaphore from "effect/Semaphore"
import { TestClock } from "effect/testing"

/** Three workers over a Semaphore, a Queue, a FiberMap, an RcMap and sleeps; `log` gets each thing that happens. */
const workload = (log: (line: string) => void, settle: Effect.Effect<void>) =>
  Effect.scoped(
    Effect.gen(function* () {
      const permits = yield* Semaphore.make(2)
      const queue = yield* Queue.bounded<string>(2)
      const hosts = yield* RcMap.make({
        lookup: (key: string) =>
          Effect.acquireRelease(
            Effect.sync(() => log(`+${key}`)),
            () => Effect.sync(() => log(`-${key}`))
          ),
        idleTimeToLive: "1 minute"
      })
      const workers = yield* FiberMap.make<string>()
      for (const id of ["a", "b", "c"]) {
        const work = Effect.gen(function* () {
          yield* RcMap.get(hosts, id === "c" ? "y" : "x")
          yield* Queue.offer(queue, `${id}1`)
          yield* Effect.sleep("10 seconds")
          yield* Queue.offer(queue, `${id}2`)
        })
        yield* FiberMap.run(workers, id, permits.withPermit(Effect.scoped(work)))
      }
      yield* Effect.forkScoped(Effect.forever(Effect.map(Queue.take(queue), log)))
      yield* Effect.forkScoped(Effect.andThen(Effect.sleep("5 seconds"), FiberMap.remove(workers, "b")))
      yield* settle
      yield* TestClock.adjust("2 minutes")
      yield* FiberMap.awaitEmpty(workers)
    })
  )

const simulated = Effect.flatMap(Simulation.here, ({ trace }) =>
  workload((line) => trace.push(line), Simulation.settle)
)

const failureOf = <A, E>(program: Effect.Effect<A, E>, options: Partial<Simulation.Options> = {}) =>
  Simulation.failureOf(Simulation.run(program, { seed: 0, ...options })) ?? "none"

describe("a simulation", () => {
  it("is the same for the same seed, and for the choices that it made", () => {
    for (let seed = 0; seed < 30; seed++) {
      const first = Simulation.run(simulated, { seed })
      assert.isUndefined(Simulation.failureOf(first))
      assert.deepStrictEqual(Simulation.run(simulated, { seed }).trace, first.trace)
      const { decisions } = first.scheduler
      assert.deepStrictEqual(Simulation.run(simulated, { seed, decisions }).trace, first.trace)
    }
  })

  it("shows other interleavings under other seeds, where the plain schedule shows one", () => {
    assert.strictEqual(Simulation.explore(simulated, { runs: 50, decisions: [] }).traces, 1)
    const found = Simulation.explore(simulated, { runs: 300 })
    assert.strictEqual(found.failures, 0)
    assert.isAbove(found.traces, 10)
  })

  it("has a failure, and its seed, among many runs", () => {
    const unsafe = Effect.gen(function* () {
      let balance = 0
      const deposit = Effect.gen(function* () {
        const before = yield* Effect.sync(() => balance)
        yield* Effect.sync(() => (balance = before + 1))
      })
      yield* Effect.all([deposit, deposit], { concurrency: "unbounded" })
      assert.strictEqual(balance, 2)
    })
    const { failures, first, runs } = Simulation.explore(unsafe, { runs: 100 })
    assert.strictEqual(runs, 100)
    assert.isAbove(failures, 0)
    assert.isBelow(failures, 100)
    assert.include(failureOf(unsafe, { seed: first!.seed }), first!.message)
  })

  it("throws the first failure of many runs with its seed, its trace and the error itself", () => {
    const refused = new Error("refused")
    const program = Effect.andThen(Simulation.trace("asked"), Effect.fail(refused))
    try {
      Simulation.assertHolds(program, { runs: 3, seed: 5 })
    } catch (error) {
      assert.strictEqual((error as Error).message, "refused\nseed 5; 3 of 3 runs failed\ntrace:\n  asked")
      assert.strictEqual((error as Error).cause, refused)
      assert.strictEqual(Simulation.assertHolds(Effect.void, { runs: 3 }).failures, 0)
      return
    }
    assert.fail("nothing was thrown")
  })

  it("lets time jump when nothing else can run, unless it must not", () => {
    const program = Effect.as(Effect.sleep("1 hour"), "done")
    const { clock, exit } = Simulation.run(program, { seed: 0 })
    assert.deepStrictEqual(exit, Exit.succeed("done"))
    assert.strictEqual(clock.currentTimeMillisUnsafe(), 3_600_000)
    assert.match(failureOf(program, { autoAdvance: false }), /^Nothing can run/)
  })

  it("draws random numbers, and schedules with jitter, from its seed", () => {
    const draw = Effect.gen(function* () {
      const number = yield* Random.next
      const times: Array<number> = []
      const noting = Effect.flatMap(Simulation.here, ({ clock }) =>
        Effect.sync(() => void times.push(clock.currentTimeMillisUnsafe()))
      )
      yield* Effect.repeat(noting, Schedule.spaced("1 second").pipe(Schedule.jittered, Schedule.upTo({ times: 3 })))
      return [number, ...times]
    })
    const { exit } = Simulation.run(draw, { seed: 1 })
    assert.deepStrictEqual(Simulation.run(draw, { seed: 1 }).exit, exit)
    assert.notDeepEqual(Simulation.run(draw, { seed: 2 }).exit, exit)
  })

  it("lets a fiber that is started at once begin at once, and puts off each operation at most once", () => {
    const program = Effect.gen(function* () {
      let begun = false
      yield* Effect.forkChild(
        Effect.sync(() => (begun = true)),
        { startImmediately: true }
      )
      assert.isTrue(begun)
      yield* Effect.forEach([1, 2, 3], () => Effect.yieldNow)
    })
    assert.strictEqual(failureOf(program, { yieldProbability: 1, maxSteps: 200 }), "none")
  })

  it("names the fibers of a hang at once, by span and function", () => {
    const stuck = Effect.all([Effect.withSpan(Effect.never, "Turn.wait"), Effect.void], { concurrency: "unbounded" })
    assert.match(failureOf(stuck), /^Nothing can run, but the program has not ended\. Live fibers:\n[^]*Turn\.wait/)
    const inner = Effect.fn("Reader.next")(function* () {
      yield* Effect.never
    })
    const outer = Effect.fn("Reader.run")(function* () {
      yield* inner()
    })
    assert.match(failureOf(outer()), /Reader\.next < Reader\.run/)
  })

  it("names the fibers that a program left behind", () => {
    const loop = Effect.fn("Reader.loop")(function* () {
      yield* Effect.never
    })
    assert.match(failureOf(Effect.forkDetach(loop())), /^Left behind 1 fiber\(s\):\n {2}#\d+ Reader\.loop/)
    assert.strictEqual(failureOf(Effect.forkChild(loop())), "none")
  })

  it("ends a livelock, and names who runs", () => {
    const spinning = Effect.withSpan(Effect.forever(Effect.yieldNow), "Spinner")
    assert.match(failureOf(spinning, { maxSteps: 1000 }), /^More than 1000 tasks[^]*Spinner/)
    const forgotten = Effect.forkDetach(spinning)
    assert.match(failureOf(forgotten, { maxSteps: 1000 }), /^More than 1000 tasks[^]*Spinner/)
  })

  it("says how a program failed or died", () => {
    assert.strictEqual(failureOf(Effect.fail(new Error("no luck"))), "no luck")
    assert.strictEqual(failureOf(Effect.die(new Error("a bug"))), "a bug")
    assert.strictEqual(failureOf(Effect.void), "none")
  })

  it.effect("is asked for in vain outside of one", () =>
    Effect.gen(function* () {
      yield* Simulation.trace("goes nowhere")
      const exit = yield* Effect.exit(Simulation.here)
      assert.isTrue(Exit.hasDies(exit))
    })
  )
})

describe("a seeded scheduler outside a simulation", () => {
  // `TestClock.layer` wraps the scheduler it is built under, so it is built under the seeded one. `adjust` moves time at
  // once: without `settle` before it, a fiber that has not reached its sleep yet would sleep past the end of the test.
  it.effect("drives itself, under the real TestClock too", () =>
    Effect.gen(function* () {
      const runWith = (seed: number) =>
        Effect.promise(async () => {
          const log: Array<string> = []
          const scheduler = new SeededScheduler.SeededScheduler({ seed, drive: "immediate" })
          const program = workload((line) => log.push(line), scheduler.settle)
          await Effect.runPromise(Effect.provide(program, TestClock.layer()), { scheduler })
          return log.join(" ")
        })
      const logs = new Set<string>()
      for (let seed = 0; seed < 40; seed++) {
        const log = yield* runWith(seed)
        assert.strictEqual(yield* runWith(seed), log)
        logs.add(log)
      }
      assert.isAbove(logs.size, 3)
    })
  )

  it("keeps the order of one fiber's tasks, unless told otherwise", () => {
    const ordersOf = (order: "perFiber" | "any") => {
      const orders = new Set<string>()
      for (let seed = 0; seed < 50; seed++) {
        const scheduler = new SeededScheduler.SeededScheduler({ seed, order })
        const one = scheduler.makeDispatcher()
        const two = scheduler.makeDispatcher()
        let ran = ""
        for (const name of ["a", "b"]) one.scheduleTask(() => (ran += name), 0)
        two.scheduleTask(() => (ran += "X"), 0)
        scheduler.drain()
        orders.add(ran)
      }
      return [...orders].sort()
    }
    assert.deepStrictEqual(ordersOf("perFiber"), ["Xab", "aXb", "abX"].sort())
    assert.strictEqual(ordersOf("any").length, 6)
  })
})
