import { assert, describe, it } from "@effect/vitest"
import { SidecarLimits } from "acp-sidecar"
import * as Flood from "../src/internal/flood.ts"

const limits: Flood.Limits = { maxIdleOutputBytes: 100, maxBrokenFrames: 2 }

describe("a session that is flooded", () => {
  it("W1: is one that gets more than the limit outside of any turn: at the cap, past it, and after a turn", () => {
    const self = Flood.make()
    Flood.idle(self, 60)
    Flood.idle(self, 40)
    assert.isUndefined(Flood.decide(self, limits))
    Flood.idle(self, 1)
    assert.deepStrictEqual(Flood.decide(self, limits), { limit: "maxIdleOutputBytes", max: 100, used: 101, frames: 3 })
    Flood.turn(self)
    assert.isUndefined(Flood.decide(self, limits))
    Flood.idle(self, 100)
    assert.isUndefined(Flood.decide(self, limits))
  })

  it("W1: is one of which more frames than the limit can't be read, in all its turns together", () => {
    const self = Flood.make()
    Flood.broken(self)
    Flood.turn(self)
    Flood.broken(self)
    assert.isUndefined(Flood.decide(self, limits))
    Flood.broken(self)
    assert.deepStrictEqual(Flood.decide(self, limits), { limit: "maxBrokenFrames", max: 2, used: 3, frames: 3 })
    Flood.turn(self)
    assert.isDefined(Flood.decide(self, limits))
  })

  it("at 0 is one that gets anything at all, and nothing is no flood", () => {
    const none: Flood.Limits = { maxIdleOutputBytes: 0, maxBrokenFrames: 0 }
    const self = Flood.make()
    assert.isUndefined(Flood.decide(self, none))
    Flood.idle(self, 0)
    assert.isUndefined(Flood.decide(self, none))
    Flood.broken(self)
    assert.strictEqual(Flood.decide(self, none)?.limit, "maxBrokenFrames")
    Flood.idle(self, 1)
    assert.strictEqual(Flood.decide(self, none)?.limit, "maxIdleOutputBytes")
  })

  it("by default after 64 MiB or 1000 broken frames", () => {
    const self = Flood.make()
    Flood.idle(self, 64 * 1024 * 1024)
    for (let i = 0; i < 1000; i++) Flood.broken(self)
    assert.isUndefined(Flood.decide(self, SidecarLimits.defaults))
    Flood.broken(self)
    assert.strictEqual(Flood.decide(self, SidecarLimits.defaults)?.limit, "maxBrokenFrames")
  })
})
