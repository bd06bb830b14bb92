import { assert, describe, it } from "@effect/vitest"
import { Mailbox } from "acp-sidecar"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as References from "effect/References"
import * as Stream from "effect/Stream"
import { beside, idle } from "./support/events.ts"

type Item = number | readonly ["lag", number, number]

const read = (self: Mailbox.Mailbox<number>, from = 1, isOver?: () => boolean): Stream.Stream<Item> =>
  Mailbox.stream<number, Item>(self, {
    from,
    select: (entries) => ({ emit: entries, isLast: false }),
    onLag: (first, to) => Effect.succeed([["lag", first, to]]),
    isOver
  })

const fill = (self: Mailbox.Mailbox<number>, from: number, to: number, bytes = 1) => {
  for (let i = from; i <= to; i++) assert.strictEqual(Mailbox.append(self, i, bytes), i)
  Mailbox.flush(self)
}

const range = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)

describe("reading", () => {
  it.effect("a late reader gets all that is kept and then what comes, until the end", () =>
    Effect.gen(function* () {
      const box = Mailbox.make<number>({ capacity: 100, maxBytes: 1000 })
      fill(box, 1, 3)
      const reader = yield* beside(Stream.runCollect(read(box)))
      yield* idle
      fill(box, 4, 5)
      Mailbox.close(box)
      assert.deepStrictEqual(yield* Fiber.join(reader), range(1, 5))
      assert.deepStrictEqual(yield* Stream.runCollect(read(box)), range(1, 5))
    })
  )

  it.effect("a reader may start in the middle, and beyond the end", () =>
    Effect.gen(function* () {
      const box = Mailbox.make<number>({ capacity: 100, maxBytes: 1000 })
      fill(box, 1, 5)
      const ahead = yield* beside(Stream.runCollect(read(box, 8)))
      yield* idle
      fill(box, 6, 9)
      Mailbox.close(box)
      assert.deepStrictEqual(yield* Stream.runCollect(read(box, 4)), range(4, 9))
      assert.deepStrictEqual(yield* Fiber.join(ahead), [8, 9])
    })
  )

  it.effect("what is added without a flush waits for it, and many entries cost one wake-up", () =>
    Effect.gen(function* () {
      const box = Mailbox.make<number>({ capacity: 100, maxBytes: 1000 })
      const pieces: Array<number> = []
      yield* beside(Stream.runForEachArray(read(box), (items) => Effect.sync(() => pieces.push(items.length))))
      yield* idle
      Mailbox.append(box, 1, 1)
      Mailbox.append(box, 2, 1)
      yield* idle
      assert.deepStrictEqual(pieces, [])
      Mailbox.flush(box)
      yield* idle
      assert.deepStrictEqual(pieces, [2])
    })
  )

  it.effect("a reader that is interrupted leaves nothing behind", () =>
    Effect.gen(function* () {
      const box = Mailbox.make<number>({ capacity: 100, maxBytes: 1000 })
      const readers = yield* Effect.forEach(range(1, 10), () => beside(Stream.runDrain(read(box))))
      yield* idle
      assert.strictEqual(box.waiters.size, 10)
      yield* Fiber.interruptAll(readers)
      assert.strictEqual(box.waiters.size, 0)
    })
  )

  it.effect("a closed mailbox takes nothing more", () =>
    Effect.gen(function* () {
      const box = Mailbox.make<number>({ capacity: 100, maxBytes: 1000 })
      fill(box, 1, 2)
      Mailbox.close(box)
      Mailbox.append(box, 3, 1)
      assert.deepStrictEqual(yield* Stream.runCollect(read(box)), [1, 2])
    })
  )

  it.effect("a reader for which nothing more can come ends, although the mailbox goes on", () =>
    Effect.gen(function* () {
      const box = Mailbox.make<number>({ capacity: 2, maxBytes: 1000 })
      fill(box, 1, 5)
      assert.deepStrictEqual(yield* Stream.runCollect(read(box, 1, () => true)), [["lag", 1, 4], 4, 5])
    })
  )

  it.effect("no reader's code runs within the writer's call", () =>
    Effect.gen(function* () {
      const box = Mailbox.make<number>({ capacity: 100, maxBytes: 1000 })
      let seen = 0
      yield* beside(Stream.runForEach(read(box), () => Effect.sync(() => seen++)))
      yield* idle
      fill(box, 1, 3)
      assert.strictEqual(seen, 0)
      yield* idle
      assert.strictEqual(seen, 3)
    })
  )

  it.effect("nothing is missed when an entry comes while a reader is about to wait", () =>
    Effect.gen(function* () {
      // Readers that are paused at different steps, with a writer that comes in at each of them.
      for (let ops = 3; ops <= 12; ops++) {
        for (let pauses = 0; pauses <= 12; pauses++) {
          const box = Mailbox.make<number>({ capacity: 100, maxBytes: 1000 })
          const reader = yield* Stream.runHead(read(box)).pipe(
            Effect.provideService(References.MaxOpsBeforeYield, ops),
            Effect.forkChild
          )
          yield* Effect.repeat(Effect.yieldNow, { times: pauses })
          fill(box, 1, 1)
          yield* Effect.repeat(Effect.yieldNow, { times: 40 })
          assert.isDefined(reader.pollUnsafe(), `${ops} steps at a time, written after ${pauses} pauses`)
        }
      }
    })
  )
})

describe("the lag policy", () => {
  it.effect("W7, B63: a reader that falls behind skips and is told which entries are gone; another one is not", () =>
    Effect.gen(function* () {
      const box = Mailbox.make<number>({ capacity: 10, maxBytes: 1000 })
      const quick: Array<Item> = []
      yield* beside(Stream.runForEach(read(box), (item) => Effect.sync(() => quick.push(item))))
      yield* idle
      for (let i = 1; i <= 35; i++) {
        fill(box, i, i)
        yield* idle
      }
      Mailbox.close(box)
      yield* idle
      assert.deepStrictEqual(quick, range(1, 35))
      assert.deepStrictEqual(yield* Stream.runCollect(read(box)), [["lag", 1, 26], ...range(26, 35)])
      assert.deepStrictEqual(yield* Stream.runCollect(read(box, 20)), [["lag", 20, 26], ...range(26, 35)])
    })
  )

  it("memory stays within the capacity", () => {
    const box = Mailbox.make<number>({ capacity: 100, maxBytes: 1e9 })
    for (let i = 1; i <= 100_000; i++) Mailbox.append(box, i, 1)
    assert.deepStrictEqual([box.next - box.first, box.bytes], [100, 100])
    // Whatever it is made of, nothing in it has grown.
    assert.isBelow(JSON.stringify(box).length, 20_000)
  })

  it("memory stays within the bytes, and the newest entry is always kept", () => {
    const box = Mailbox.make<number>({ capacity: 100, maxBytes: 100 })
    for (let i = 1; i <= 1000; i++) Mailbox.append(box, i, 30)
    assert.deepStrictEqual([box.bytes, box.next - box.first], [90, 3])
    Mailbox.append(box, 1001, 5000)
    assert.deepStrictEqual([box.bytes, box.next - box.first], [5000, 1])
    Mailbox.append(box, 1002, 1)
    assert.deepStrictEqual([box.bytes, box.next - box.first], [1, 1])
  })

  it.effect("a capacity of 0 still keeps the newest", () =>
    Effect.gen(function* () {
      const box = Mailbox.make<number>({ capacity: 0, maxBytes: 0 })
      fill(box, 1, 3)
      Mailbox.close(box)
      assert.deepStrictEqual(yield* Stream.runCollect(read(box)), [["lag", 1, 3], 3])
    })
  )
})
