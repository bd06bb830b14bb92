import { assert, describe, it } from "@effect/vitest"
import { Sidecar } from "acp-sidecar"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import { textOf } from "../support/events.ts"
import { faulty, layer, open, openVm, texts, untilText } from "../support/faultyAgent.ts"
import { newMark, running } from "../support/processes.ts"

const MiB = 1024 * 1024

describe("sessions side by side", () => {
  it.live("B32: a fast turn overtakes a slow one, and their sessions open and close meanwhile", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const slow = yield* vm.openSession({ agent: faulty() })
      const fast = yield* vm.openSession({ agent: faulty() })
      const order: Array<string> = []
      const note = (name: string) => Effect.sync(() => order.push(name))
      const held = yield* slow.submit("{hang}")
      yield* untilText(held, "chunk 0")
      const holding = yield* Effect.forkChild(Effect.andThen(held.await, note("slow")), { startImmediately: true })
      for (let round = 1; round <= 3; round++) {
        assert.strictEqual((yield* fast.prompt("hello"))._tag, "Completed")
        yield* note(`fast ${round}`)
      }
      const third = yield* vm.openSession({ agent: faulty() })
      assert.strictEqual((yield* third.prompt("hello"))._tag, "Completed")
      yield* third.close
      yield* note("third")
      yield* held.cancel
      yield* Fiber.join(holding)
      assert.deepStrictEqual(order, ["fast 1", "fast 2", "fast 3", "third", "slow"])
    }).pipe(Effect.provide(layer()))
  )

  it.live("ten sessions that prompt at the same time all get their own answer", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm()
      const numbers = Array.from({ length: 10 }, (_, index) => index)
      const sessions = yield* Effect.forEach(numbers, () => vm.openSession({ agent: faulty(`mark=${mark}`) }), {
        concurrency: "unbounded"
      })
      assert.strictEqual(new Set(sessions.map((session) => session.pid)).size, 10)
      const turns = yield* Effect.forEach(sessions, (session, index) => session.submit(`{text=own ${index}} {hang}`))
      for (const turn of turns) yield* untilText(turn, "chunk 0")
      assert.strictEqual((yield* sidecar.describe).activePrompts, 10)
      yield* Effect.forEach(turns, (turn) => turn.cancel, { concurrency: "unbounded" })
      for (const [index, turn] of turns.entries()) {
        assert.deepStrictEqual(yield* texts(turn), [`own ${index}`, "chunk 0"])
      }
      assert.strictEqual((yield* sidecar.describe).activePrompts, 0)
      yield* vm.close
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer()))
  )

  it.live("B61: a line of 1 MB goes through, in both directions", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty())
      const text = "x".repeat(MiB)
      const turn = yield* session.submit(`${text} {echo} {chunks=0}`)
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      assert.deepStrictEqual(yield* texts(turn), [`${text} {echo} {chunks=0}`])
    }).pipe(Effect.provide(layer()))
  )

  it.live("W1, W6: a line over the limit costs its turn and nothing else", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const session = yield* vm.openSession({ agent: faulty() })
      const other = yield* vm.openSession({ agent: faulty() })
      const beside = yield* other.submit("{hang}")
      yield* untilText(beside, "chunk 0")
      const turn = yield* session.submit("{oversized=17} {hang}")
      const outcome = yield* turn.outcome
      assert.strictEqual(outcome._tag, "Failed")
      if (outcome._tag !== "Failed" || outcome.error.reason._tag !== "OutputExceeded") {
        return assert.fail(JSON.stringify(outcome))
      }
      assert.strictEqual(outcome.error.reason.limit, "maxLineBytes")
      assert.strictEqual(outcome.error.reason.max, 16 * MiB)
      assert.isAbove(outcome.error.reason.used, 17 * MiB)
      const next = yield* session.submit("{text=on}")
      assert.strictEqual((yield* next.await)._tag, "Completed")
      assert.deepStrictEqual(yield* texts(next), ["on", "chunk 0"])
      assert.strictEqual((yield* beside.cancel)._tag, "Cancelled")
    }).pipe(Effect.provide(layer()))
  )

  it.live("C05: a turn over its output limit is ended, and the next one is clean", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty())
      const turn = yield* session.submit("{flood=20000} {hang}")
      const outcome = yield* turn.outcome
      assert.isTrue(outcome._tag === "Failed" && outcome.error.reason._tag === "OutputExceeded")
      const next = yield* session.submit("{text=clean} {chunks=0}")
      assert.strictEqual((yield* next.await)._tag, "Completed")
      assert.deepStrictEqual(yield* texts(next), ["clean"])
    }).pipe(Effect.provide(layer({ maxTurnOutputBytes: 100_000 })))
  )

  it.live("C04, B63: 20,000 updates of one session arrive in order while 10 others go on", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const noisy = yield* vm.openSession({ agent: faulty() })
      const calm = yield* vm.openSession({ agent: faulty() })
      const far = yield* open(faulty())
      const running = yield* far.submit("{hang}")
      yield* untilText(running, "chunk 0")
      const sibling = yield* vm.openSession({ agent: faulty() })
      const beside = yield* sibling.submit("{hang}")
      yield* untilText(beside, "chunk 0")
      const idle = yield* Effect.forEach(Array.from({ length: 7 }), () => vm.openSession({ agent: faulty() }))
      const flood = yield* noisy.submit("{chunks=0} {flood=20000}")
      const reading = yield* Effect.forkChild(Stream.runCollect(flood.updates), { startImmediately: true })
      const took: Array<number> = []
      let rounds = 0
      while (reading.pollUnsafe() === undefined && rounds < 1000) {
        const [time, outcome] = yield* Effect.timed(calm.prompt("hello"))
        assert.strictEqual(outcome._tag, "Completed")
        took.push(Duration.toMillis(time))
        rounds++
      }
      const events = yield* Fiber.join(reading)
      assert.isAbove(rounds, 1)
      assert.isBelow(Math.max(...took), 5000)
      const received = events.map(textOf).filter((text) => text !== "")
      assert.strictEqual(received.length, 20_000)
      assert.isTrue(received.every((text, index) => text === `flood ${index}`))
      assert.strictEqual((yield* running.cancel)._tag, "Cancelled")
      assert.strictEqual((yield* beside.cancel)._tag, "Cancelled")
      for (const session of [noisy, calm, far, sibling, ...idle]) {
        assert.strictEqual((yield* session.prompt("on"))._tag, "Completed")
      }
    }).pipe(Effect.provide(layer()))
  )

  it.live(
    "C10: 20 idle sessions have no timer of their own: they wait for their agents alone",
    () =>
      Effect.gen(function* () {
        const timers = () => process.getActiveResourcesInfo().filter((name) => name === "Timeout").length
        const before = timers()
        const vm = yield* openVm()
        const sessions = yield* Effect.forEach(
          Array.from({ length: 20 }),
          () =>
            Effect.gen(function* () {
              const session = yield* vm.openSession({ agent: faulty() })
              assert.strictEqual((yield* session.prompt("hello", { idleTimeout: "1 hour" }))._tag, "Completed")
              return session
            }),
          { concurrency: "unbounded" }
        )
        // The test runner has a few that come and go.
        assert.isBelow(timers() - before, 5)
        for (const session of sessions) assert.deepInclude(yield* session.describe, { state: "open", turns: [] })
      }).pipe(Effect.provide(layer())),
    60_000
  )

  it.live("C04: with nobody who reads, the flood ends as well, and a late reader is told what it missed", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty())
      const turn = yield* session.submit("{chunks=0} {flood=20000}")
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      const events = yield* Stream.runCollect(turn.updates)
      const [first] = events
      assert.isTrue(first?._tag === "Lagged" && first.to > 19_000, JSON.stringify(first))
      assert.strictEqual(events.map(textOf).at(-2), "flood 19999")
      assert.strictEqual(events.at(-1)?._tag, "TurnEnded")
    }).pipe(Effect.provide(layer({ mailboxCapacity: 1000 })))
  )
})
