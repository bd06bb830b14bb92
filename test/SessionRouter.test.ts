import { assert, describe, it } from "@effect/vitest"
import { SessionRouter, SidecarLimits } from "acp-sidecar"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"

const router = (limits: Partial<SessionRouter.SessionRouter["limits"]> = {}, redact?: (text: string) => string) =>
  SessionRouter.make({ ...SidecarLimits.defaults, ...limits }, redact)

/** A route that keeps what it gets. */
const route = () => {
  const updates: Array<unknown> = []
  const tooLarge: Array<SessionRouter.TooLarge> = []
  const counts = { flushes: 0 }
  const self: SessionRouter.Route = {
    onUpdate: (update) => void updates.push(update),
    onTooLarge: (frame) => void tooLarge.push(frame),
    onPermission: () => Effect.void,
    flush: () => void counts.flushes++
  }
  return { counts, self, tooLarge, updates }
}

describe("updates", () => {
  it("reach the route of their session and no other, in order", () => {
    const self = router()
    const a = route()
    const b = route()
    assert.isTrue(SessionRouter.register(self, "a", a.self, 0))
    assert.isTrue(SessionRouter.register(self, "b", b.self, 0))
    SessionRouter.deliver(self, "a", 1, 10, 0)
    SessionRouter.deliver(self, "b", 2, 10, 0)
    SessionRouter.deliver(self, "a", 3, 10, 0)
    assert.deepStrictEqual([a.updates, b.updates], [[1, 3], [2]])
  })

  it("wake only the readers of sessions that got some, once for many", () => {
    const self = router()
    const a = route()
    const b = route()
    SessionRouter.register(self, "a", a.self, 0)
    SessionRouter.register(self, "b", b.self, 0)
    SessionRouter.deliver(self, "a", 1, 10, 0)
    SessionRouter.deliver(self, "a", 2, 10, 0)
    SessionRouter.flush(self)
    SessionRouter.flush(self)
    assert.deepStrictEqual([a.counts.flushes, b.counts.flushes], [1, 0])
  })

  it("two sessions never share an id: the second route is refused and the first one stays", () => {
    const self = router()
    const a = route()
    SessionRouter.register(self, "a", a.self, 0)
    assert.isFalse(SessionRouter.register(self, "a", route().self, 0))
    SessionRouter.deliver(self, "a", 1, 10, 0)
    assert.deepStrictEqual(a.updates, [1])
  })
})

describe("updates that come early", () => {
  it("B48: they wait and are delivered first, in order, with a wake-up", () => {
    const self = router()
    SessionRouter.deliver(self, "a", 1, 10, 0)
    SessionRouter.deliver(self, "a", 2, 10, 0)
    const a = route()
    SessionRouter.register(self, "a", a.self, 0)
    SessionRouter.flush(self)
    assert.strictEqual(a.counts.flushes, 1)
    SessionRouter.deliver(self, "a", 3, 10, 0)
    assert.deepStrictEqual(a.updates, [1, 2, 3])
    assert.strictEqual(self.early.bytes, 0)
  })

  it("B48: bounded in count for each id: the oldest makes room and is counted", () => {
    const self = router({ earlyUpdatesPerSession: 3 })
    for (let i = 1; i <= 5; i++) SessionRouter.deliver(self, "a", i, 10, 0)
    assert.strictEqual(self.early.bytes, 30)
    const a = route()
    SessionRouter.register(self, "a", a.self, 0)
    assert.deepStrictEqual(a.updates, [3, 4, 5])
    assert.deepInclude(self.stats, { buffered: 5, dropped: 2 })
  })

  it("B48: bounded in bytes for all ids together: an older id makes room before the newest update does", () => {
    const self = router({ earlyUpdateBytes: 100 })
    SessionRouter.deliver(self, "a", 1, 40, 0)
    SessionRouter.deliver(self, "b", 2, 40, 0)
    SessionRouter.deliver(self, "b", 3, 40, 0)
    // b has dropped its own oldest first, which was enough.
    assert.deepStrictEqual([self.early.bytes, Array.from(self.early.ids.keys())], [80, ["a", "b"]])
    SessionRouter.deliver(self, "a", 4, 90, 0)
    // a's own oldest was not enough, so b went; the newest one is kept.
    const a = route()
    SessionRouter.register(self, "a", a.self, 0)
    assert.deepStrictEqual(a.updates, [4])
    assert.deepStrictEqual([self.early.bytes, self.early.ids.size, self.stats.dropped], [0, 0, 3])
  })

  it("B48: one that is larger than all there is room for is dropped, and what waits stays", () => {
    const self = router({ earlyUpdateBytes: 100 })
    SessionRouter.deliver(self, "a", 1, 40, 0)
    SessionRouter.deliver(self, "a", 2, 101, 0)
    assert.deepStrictEqual([self.early.bytes, self.stats.dropped], [40, 1])
  })

  it("B48: bounded in time", () => {
    const self = router({ earlyUpdateTimeout: Duration.seconds(60) })
    SessionRouter.deliver(self, "a", 1, 10, 0)
    SessionRouter.deliver(self, "b", 2, 10, 59_999)
    const b = route()
    SessionRouter.register(self, "b", b.self, 60_000)
    const a = route()
    SessionRouter.register(self, "a", a.self, 60_000)
    assert.deepStrictEqual([a.updates, b.updates, self.early.bytes], [[], [2], 0])
    assert.strictEqual(self.stats.dropped, 1)
  })

  it("B55: bounded in ids: ghosts are counted, with a sample, and never grow", () => {
    const self = router()
    for (let i = 0; i < 10_000; i++) SessionRouter.deliver(self, `ghost-${i}`, i, 10, 0)
    assert.strictEqual(self.early.ids.size, 1000)
    assert.strictEqual(self.early.bytes, self.early.ids.size * 10)
    assert.strictEqual(self.stats.buffered, 10_000)
    assert.strictEqual(self.stats.dropped, 10_000 - self.early.ids.size)
    assert.strictEqual(self.stats.sample, "ghost-9999")
  })

  it("B55: a monstrous id is not kept, and its sample is short", () => {
    const self = router()
    SessionRouter.deliver(self, "x".repeat(100_000), 1, 100_000, 0)
    assert.deepStrictEqual([self.early.ids.size, self.stats.dropped, self.stats.sample.length], [0, 1, 64])
  })

  it("none are kept when that limit is 0", () => {
    const self = router({ earlyUpdatesPerSession: 0 })
    SessionRouter.deliver(self, "a", 1, 10, 0)
    assert.deepStrictEqual([self.early.ids.size, self.stats.dropped], [0, 1])
  })

  it("an update without a session id is counted", () => {
    const self = router()
    SessionRouter.unroutable(self)
    assert.deepInclude(self.stats, { dropped: 1, sample: "" })
  })

  it("S4: the sample is redacted", () => {
    const self = router({}, (text) => text.replace("hunter2", "<redacted>"))
    SessionRouter.deliver(self, "hunter2", 1, 10, 0)
    assert.strictEqual(self.stats.sample, "<redacted>")
  })
})

describe("updates that come late", () => {
  it("B51: a closed id has a tombstone, and nothing stale reaches a session that is resumed under it", () => {
    const self = router()
    const first = route()
    SessionRouter.register(self, "a", first.self, 0)
    SessionRouter.unregister(self, "a", first.self)
    SessionRouter.deliver(self, "a", "stale", 10, 0)
    const second = route()
    SessionRouter.register(self, "a", second.self, 0)
    SessionRouter.deliver(self, "a", "fresh", 10, 0)
    assert.deepStrictEqual([first.updates, second.updates], [[], ["fresh"]])
    assert.deepInclude(self.stats, { late: 1, sample: "a" })
  })

  it("B51: the end of an earlier epoch doesn't close the route of a later one", () => {
    const self = router()
    const first = route()
    SessionRouter.register(self, "a", first.self, 0)
    SessionRouter.unregister(self, "a", first.self)
    const second = route()
    SessionRouter.register(self, "a", second.self, 0)
    SessionRouter.unregister(self, "a", first.self)
    assert.strictEqual(SessionRouter.find(self, "a"), second.self)
  })

  it("B51: tombstones are bounded, the oldest goes first", () => {
    const self = router({ maxTombstones: 3 })
    for (const id of ["a", "b", "c", "d"]) {
      const { self: r } = route()
      SessionRouter.register(self, id, r, 0)
      SessionRouter.unregister(self, id, r)
    }
    assert.deepStrictEqual(Array.from(self.tombstones.keys()), ["b", "c", "d"])
    // An id that was used again is as young as its last end.
    const b = route()
    SessionRouter.register(self, "b", b.self, 0)
    SessionRouter.unregister(self, "b", b.self)
    assert.deepStrictEqual(Array.from(self.tombstones.keys()), ["c", "d", "b"])
    const none = router({ maxTombstones: 0 })
    const { self: r } = route()
    SessionRouter.register(none, "a", r, 0)
    SessionRouter.unregister(none, "a", r)
    assert.strictEqual(none.tombstones.size, 0)
  })
})

describe("frames that are too large", () => {
  const frame = { bytes: 9, limit: 5 }

  it("W1: one costs the session that it names and no other", () => {
    const self = router()
    const a = route()
    const b = route()
    SessionRouter.register(self, "a", a.self, 0)
    SessionRouter.register(self, "b", b.self, 0)
    SessionRouter.tooLarge(self, "b", frame)
    assert.deepStrictEqual([a.tooLarge.length, b.tooLarge.length], [0, 1])
  })

  it("W1: one that names none costs the only session, and nobody when there are two", () => {
    const self = router()
    const a = route()
    SessionRouter.register(self, "a", a.self, 0)
    SessionRouter.tooLarge(self, undefined, frame)
    SessionRouter.tooLarge(self, "ghost", frame)
    assert.strictEqual(a.tooLarge.length, 1)
    const b = route()
    SessionRouter.register(self, "b", b.self, 0)
    SessionRouter.tooLarge(self, undefined, frame)
    assert.deepStrictEqual([a.tooLarge.length, b.tooLarge.length], [1, 0])
  })
})
