/**
 * Virtual time under a seeded scheduler.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { TestClock } from "effect/testing/TestClock"
import type { SeededScheduler } from "./SeededScheduler.ts"

interface Timer {
  readonly at: number
  readonly wake: () => void
}

const nanos = (millis: number) => BigInt(Math.round(millis * 1_000_000))

/**
 * A clock that starts at 0 and moves only when it is told to. It is a `TestClock`, so `TestClock.adjust` and
 * `TestClock.setTime` work on it; both let everything settle before time moves. What differs from `TestClock.layer()`:
 * there are no real timers, timers that are due at the same instant all become ready at once, so that the scheduler
 * may run them in any order, and `fireNext` lets a driver jump to the next timer.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export class VirtualClock implements TestClock {
  #now = 0
  /** Sorted by time, then by the order of registration. */
  #timers: Array<Timer> = []
  readonly #scheduler: SeededScheduler

  constructor(scheduler: SeededScheduler) {
    this.#scheduler = scheduler
  }

  /** How many sleeps are pending. */
  get sleepers(): number {
    return this.#timers.length
  }

  currentTimeMillisUnsafe(): number {
    return this.#now
  }
  currentTimeNanosUnsafe(): bigint {
    return nanos(this.#now)
  }
  monotonicTimeNanosUnsafe(): bigint {
    return nanos(this.#now)
  }
  readonly currentTimeMillis = Effect.sync(() => this.currentTimeMillisUnsafe())
  readonly currentTimeNanos = Effect.sync(() => this.currentTimeNanosUnsafe())
  readonly monotonicTimeNanos = Effect.sync(() => this.monotonicTimeNanosUnsafe())

  sleep(duration: Duration.Duration): Effect.Effect<void> {
    const millis = Duration.toMillis(duration)
    if (millis <= 0) return Effect.yieldNow
    if (!Number.isFinite(millis)) return Effect.never
    return Effect.callback<void>((resume) => {
      const timer: Timer = { at: this.#now + millis, wake: () => resume(Effect.void) }
      let at = this.#timers.length
      while (at > 0 && this.#timers[at - 1]!.at > timer.at) at--
      this.#timers.splice(at, 0, timer)
      return Effect.sync(() => {
        const index = this.#timers.indexOf(timer)
        if (index >= 0) this.#timers.splice(index, 1)
      })
    })
  }

  adjust(duration: Duration.Input): Effect.Effect<void> {
    return Effect.suspend(() => this.setTime(this.#now + Duration.toMillis(Duration.fromInputUnsafe(duration))))
  }

  setTime(timestamp: number): Effect.Effect<void> {
    // Before whoever else waits for things to settle: they haven't, as long as time is on its way.
    const settled = Effect.callback<void>((resume) => {
      const withdraw = this.#scheduler.whenIdle(() => resume(Effect.void), true)
      return Effect.sync(withdraw)
    })
    const step: Effect.Effect<void> = Effect.suspend(() => {
      if ((this.#timers[0]?.at ?? Number.POSITIVE_INFINITY) > timestamp) {
        this.#now = Math.max(this.#now, timestamp)
        return Effect.void
      }
      this.fireNext()
      return Effect.andThen(settled, step)
    })
    return Effect.andThen(settled, step)
  }

  /** Jumps to the next instant at which a timer is due and makes its sleepers ready; `false` when there is none. */
  fireNext(): boolean {
    const first = this.#timers[0]
    if (first === undefined) return false
    this.#now = Math.max(this.#now, first.at)
    while (this.#timers[0]?.at === first.at) this.#scheduler.schedule(this.#timers.shift()!.wake)
    return true
  }

  withLive<A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> {
    return Effect.provideService(effect, Clock.Clock, Context.get(Context.empty(), Clock.Clock))
  }
}
