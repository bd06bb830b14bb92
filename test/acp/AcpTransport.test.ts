import { assert, describe, it } from "@effect/vitest"
import { AcpTransport } from "acp-sidecar/acp"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"

const frame = (size: number) => new Uint8Array(size)

describe("a pair in memory", () => {
  it.effect("takes so many frames, and more once some were read", () =>
    Effect.gen(function* () {
      const [near, far] = yield* AcpTransport.makePair({ capacity: 2 })
      let rooms = 0
      near.onRoom?.(() => rooms++)
      assert.deepStrictEqual([near.send(frame(1)), near.send(frame(1)), near.send(frame(1))], [true, true, false])
      assert.strictEqual((yield* Stream.runCollect(Stream.take(far.incoming, 1))).length, 1)
      assert.isAbove(rooms, 0)
      assert.isTrue(near.send(frame(1)))
      // The other direction has room of its own.
      assert.isTrue(far.send(frame(1)))
    })
  )

  it.effect("W7: takes so many bytes, one frame alone in any case, and more once some were read", () =>
    Effect.gen(function* () {
      const [near, far] = yield* AcpTransport.makePair({ maxBytes: 10 })
      assert.isTrue(near.send(frame(100)))
      assert.isFalse(near.send(frame(1)))
      yield* Stream.runDrain(Stream.take(far.incoming, 1))
      assert.deepStrictEqual([near.send(frame(6)), near.send(frame(5)), near.send(frame(4))], [true, false, true])
      assert.isFalse(near.send(frame(1)))
    })
  )

  it.effect("ends on both sides, after what was sent, when one of them closes, and takes nothing more", () =>
    Effect.gen(function* () {
      const [near, far] = yield* AcpTransport.makePair()
      near.send(frame(3))
      yield* near.close
      assert.strictEqual((yield* Stream.runCollect(far.incoming)).length, 1)
      assert.strictEqual((yield* Stream.runCollect(near.incoming)).length, 0)
      assert.strictEqual((yield* far.ended)._tag, "TransportClosed")
      assert.strictEqual(yield* near.ended, yield* far.ended)
      assert.isFalse(far.send(frame(1)))
      yield* far.close
    })
  )
})
