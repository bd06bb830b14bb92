import { assert, describe, it } from "@effect/vitest"
import { Simulation } from "acp-sidecar/testing"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { TestClock } from "effect/testing"

const succeeds = <A, E>(program: Effect.Effect<A, E>) => {
  for (let seed = 0; seed < 20; seed++) {
    assert.isUndefined(Simulation.failureOf(Simulation.run(program, { seed })))
  }
}

describe("a virtual clock", () => {
  it("lets timers that are due at the same instant race", () => {
    const after5 = (name: string) => Effect.delay(Simulation.trace(name), "5 seconds")
    const race = Effect.gen(function* () {
      yield* Effect.forkChild(after5("deadline"))
      yield* Effect.forkChild(after5("grace"))
      yield* Effect.sleep("6 seconds")
    })
    // No fiber steps aside, so the order can only be that of the timers.
    assert.strictEqual(Simulation.explore(race, { runs: 50, yieldProbability: 0 }).traces, 2)
  })

  it("is where it is moved to before others find that all has settled", () => {
    succeeds(
      Effect.gen(function* () {
        yield* Effect.forkChild(Effect.forever(Effect.sleep("1 second")))
        yield* Effect.forkChild(TestClock.adjust("3500 millis"), { startImmediately: true })
        yield* Simulation.settle
        assert.strictEqual(yield* Clock.currentTimeMillis, 3500)
        yield* Effect.forkChild(TestClock.adjust("3500 millis"))
        yield* Simulation.settle
        assert.strictEqual(yield* Clock.currentTimeMillis, 7000)
      })
    )
  })

  it("moves with TestClock, from timer to timer, and lets everything settle before and after", () => {
    succeeds(
      Effect.gen(function* () {
        const seen: Array<number> = []
        const note = Effect.flatMap(Clock.currentTimeMillis, (now) => Effect.sync(() => void seen.push(now)))
        yield* Effect.forkChild(Effect.forever(Effect.delay(note, "1 second")))
        yield* TestClock.adjust("3500 millis")
        assert.deepStrictEqual(seen, [1000, 2000, 3000])
        assert.strictEqual(yield* Clock.currentTimeMillis, 3500)
        yield* TestClock.setTime(5000)
        assert.deepStrictEqual(seen, [1000, 2000, 3000, 4000, 5000])
        yield* TestClock.setTime(1000)
        assert.strictEqual(yield* Clock.currentTimeMillis, 5000)
      })
    )
  })

  it("forgets the timer of a sleep that is interrupted", () => {
    succeeds(
      Effect.gen(function* () {
        const { clock } = yield* Simulation.here
        const sleeper = yield* Effect.forkChild(Effect.sleep("1 minute"))
        yield* Simulation.settle
        assert.strictEqual(clock.sleepers, 1)
        yield* Fiber.interrupt(sleeper)
        assert.strictEqual(clock.sleepers, 0)
      })
    )
  })

  it("gives the real time to those who ask for it", () => {
    succeeds(
      Effect.gen(function* () {
        assert.isAbove(yield* TestClock.withLive(Clock.currentTimeMillis), 1e12)
        assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      })
    )
  })
})
