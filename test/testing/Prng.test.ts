import { assert, describe, it } from "@effect/vitest"
import { Prng } from "acp-sidecar/testing"

const take = (prng: Prng.Prng) => Array.from({ length: 1000 }, () => prng.int(10))

describe("a seeded generator", () => {
  it("gives the same numbers for the same seed and label, and others for others", () => {
    const numbers = take(Prng.make(7, "a"))
    assert.deepStrictEqual(take(Prng.make(7, "a")), numbers)
    for (const other of [Prng.make(8, "a"), Prng.make(7, "b"), Prng.make("seven", "a")]) {
      assert.notDeepEqual(take(other), numbers)
    }
  })

  it("draws each number about as often as any other", () => {
    const numbers = take(Prng.make(1))
    for (let number = 0; number < 10; number++) {
      const count = numbers.filter((drawn) => drawn === number).length
      assert.isAtLeast(count, 70)
      assert.isAtMost(count, 130)
    }
    const prng = Prng.make(2)
    const hits = Array.from({ length: 1000 }, () => prng.chance(0.25)).filter(Boolean).length
    assert.isAtLeast(hits, 200)
    assert.isAtMost(hits, 300)
  })

  it("picks an item, if there is one", () => {
    assert.strictEqual(Prng.make(1).pick(["only"]), "only")
    assert.throws(() => Prng.make(1).pick([]), RangeError)
  })
})
