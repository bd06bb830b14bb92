import { setFlagsFromString } from "node:v8"
import { runInNewContext } from "node:vm"
import { assert, describe, it } from "@effect/vitest"
import { SessionRouter, SidecarLimits } from "acp-sidecar"
import * as Arbitrary from "effect/Arbitrary"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import { TestClock } from "effect/testing"
import { beside, idle } from "./support/events.ts"
import * as Strikes from "./support/strikes.ts"

const router = (limits: Partial<SessionRouter.SessionRouter["limits"]> = {}, redact?: (text: string) => string) =>
  SessionRouter.make({ ...SidecarLimits.defaults, ...limits }, redact)

/** A route that keeps what it gets. */
const route = () => {
  const updates: Array<unknown> = []
  const tooLarge: Array<SessionRouter.TooLarge> = []
  const notifications: Array<unknown> = []
  const counts = { flushes: 0 }
  const self: SessionRouter.Route = {
    onUpdate: (update) => void updates.push(update),
    onNotification: (method, params, bytes, at) => void notifications.push([method, params, bytes, at]),
    onTooLarge: (frame) => void tooLarge.push(frame),
    onPermission: () => Effect.void,
    flush: () => void counts.flushes++
  }
  return { counts, notifications, self, tooLarge, updates }
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

  it("none are kept when one of the limits is 0", () => {
    for (const limit of ["earlyUpdatesPerSession", "earlyUpdatesPerAgent", "earlyUpdateBytes"] as const) {
      const self = router({ [limit]: 0 })
      SessionRouter.deliver(self, "a", 1, 10, 0)
      assert.deepStrictEqual([self.early.ids.size, self.stats.dropped, self.stats.buffered], [0, 1, 0], limit)
    }
  })

  it("B48: bounded in count for all ids together, at the cap, past it, and after some were delivered", () => {
    const self = router({ earlyUpdatesPerAgent: 4 })
    for (const id of ["a", "b", "c", "d"]) SessionRouter.deliver(self, id, id, 10, 0)
    assert.deepStrictEqual([self.early.count, self.stats.dropped], [4, 0])
    SessionRouter.deliver(self, "e", "e", 10, 0)
    assert.deepStrictEqual([Array.from(self.early.ids.keys()), self.stats.dropped], [["b", "c", "d", "e"], 1])
    SessionRouter.register(self, "b", route().self, 0)
    SessionRouter.deliver(self, "e", "e", 10, 0)
    assert.deepStrictEqual([self.early.count, self.stats.dropped], [4, 1])
  })

  it("B48: a flood for an id that is not known costs what waits for another one nothing", () => {
    const self = router({ earlyUpdatesPerSession: 1000, earlyUpdatesPerAgent: 10, earlyUpdateBytes: 1000 })
    SessionRouter.deliver(self, "a", "first", 100, 0)
    SessionRouter.deliver(self, "a", "second", 100, 0)
    for (let i = 0; i < 100; i++) SessionRouter.deliver(self, "many", i, 1, 0)
    for (let i = 0; i < 100; i++) SessionRouter.deliver(self, "large", i, 500, 0)
    const a = route()
    SessionRouter.register(self, "a", a.self, 0)
    assert.deepStrictEqual(a.updates, ["first", "second"])
  })

  it("B48: each update has a time of its own", () => {
    const self = router({ earlyUpdateTimeout: Duration.seconds(60) })
    SessionRouter.deliver(self, "a", 1, 10, 0)
    SessionRouter.deliver(self, "a", 2, 10, 30_000)
    const a = route()
    SessionRouter.register(self, "a", a.self, 60_000)
    assert.deepStrictEqual([a.updates, self.stats.dropped], [[2], 1])
  })

  it("B48: what is too old goes with any other update, and with the limit off it stays", () => {
    const self = router({ earlyUpdateTimeout: Duration.seconds(60) })
    SessionRouter.register(self, "open", route().self, 0)
    SessionRouter.deliver(self, "a", 1, 10, 0)
    SessionRouter.deliver(self, "b", 2, 10, 1)
    SessionRouter.deliver(self, "open", 3, 10, 60_000)
    assert.deepStrictEqual([Array.from(self.early.ids.keys()), self.early.bytes, self.early.count], [["b"], 10, 1])
    SessionRouter.deliver(self, "open", 3, 10, 60_001)
    assert.deepStrictEqual([self.early.ids.size, self.early.bytes, self.early.count], [0, 0, 0])
    for (const [id, at] of [
      ["a", 70_000],
      ["b", 80_000],
      ["c", 90_000]
    ] as const)
      SessionRouter.deliver(self, id, 1, 10, at)
    for (const at of [130_000, 140_000]) SessionRouter.deliver(self, "open", 3, 10, at)
    assert.deepStrictEqual(Array.from(self.early.ids.keys()), ["c"])
    const off = router({ earlyUpdateTimeout: Duration.infinity })
    SessionRouter.deliver(off, "a", 1, 10, 0)
    SessionRouter.deliver(off, "b", 1, 10, 1e15)
    assert.strictEqual(off.early.count, 2)
  })

  it("B48: once the agent is gone nothing waits and nothing is kept", () => {
    const self = router()
    SessionRouter.deliver(self, "a", 1, 10, 0)
    SessionRouter.deliver(self, "b", 2, 10, 0)
    SessionRouter.close(self)
    assert.deepStrictEqual([self.early.ids.size, self.early.bytes, self.early.count, self.stats.dropped], [0, 0, 0, 2])
    SessionRouter.deliver(self, "a", 3, 10, 0)
    const a = route()
    assert.isTrue(SessionRouter.register(self, "a", a.self, 0))
    SessionRouter.close(self)
    assert.deepStrictEqual([a.updates, self.early.count, self.stats.dropped, self.stats.buffered], [[], 0, 3, 2])
  })

  it("what one route throws costs no other update and no other session, and is thrown when all have theirs", () => {
    const self = router()
    const seen: Array<unknown> = []
    const throwing: SessionRouter.Route = {
      ...route().self,
      onUpdate: (update) => {
        seen.push(update)
        if (update === 1) throw new Error("broken")
      },
      onNotification: () => {
        throw new Error("broken too")
      },
      flush: () => {
        throw new Error("broken again")
      }
    }
    const other = route()
    SessionRouter.deliver(self, "a", 1, 10, 0)
    SessionRouter.deliver(self, "a", 2, 10, 0)
    assert.isTrue(SessionRouter.register(self, "a", throwing, 0))
    SessionRouter.register(self, "b", other.self, 0)
    SessionRouter.notify(self, "_all", {}, 10, 0)
    assert.deepStrictEqual([seen, other.notifications.length], [[1, 2], 1])
    assert.throws(() => SessionRouter.flush(self), /^broken$/)
    assert.strictEqual(other.counts.flushes, 1)
    SessionRouter.flush(self)
    SessionRouter.deliver(self, "a", 3, 10, 0)
    assert.throws(() => SessionRouter.flush(self), /^broken again$/)
  })

  it("an update without a session id is counted", () => {
    const self = router()
    SessionRouter.unroutable(self)
    assert.deepInclude(self.stats, { dropped: 1, sample: "" })
  })

  it("B55: nothing of an id of a megabyte is kept, whatever it comes in", () => {
    setFlagsFromString("--expose-gc")
    const collect = runInNewContext("gc") as () => void
    const heap = () => {
      collect()
      return process.memoryUsage().heapUsed / 2 ** 20
    }
    const idOf = (i: number) => JSON.parse(`"${i}${"x".repeat(2 ** 20)}"`) as string
    const before = heap()
    const routers = Array.from({ length: 40 }, (_, i) => {
      const self = router()
      const { self: refused } = route()
      SessionRouter.expect(self, idOf(i))
      SessionRouter.deliver(self, idOf(i), 1, 10, 0)
      SessionRouter.notify(self, "_x", { sessionId: idOf(i) }, 10, 0)
      assert.strictEqual(SessionRouter.refusal(self, idOf(i), 0), "too_long")
      assert.isFalse(SessionRouter.register(self, idOf(i), refused, 0))
      SessionRouter.quarantine(self, idOf(i), refused, 0)
      return self
    })
    assert.isBelow(heap() - before, 10)
    for (const self of routers) {
      assert.deepInclude(self.stats, { buffered: 0, dropped: 2, late: 0 })
      assert.strictEqual(self.stats.sample.length, 64)
      assert.deepStrictEqual([self.openings.size, self.early.count, self.tombstones.size], [0, 0, 0])
    }
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

  it("B51: a tombstone lasts for its time, and what comes later is early again", () => {
    const at = (time: number, limits: Partial<SessionRouter.SessionRouter["limits"]>, closedAt: number | undefined) => {
      const self = router(limits)
      const { self: r } = route()
      SessionRouter.register(self, "a", r, 0)
      SessionRouter.unregister(self, "a", r, closedAt)
      SessionRouter.deliver(self, "a", 1, 10, time)
      return [self.stats.late, self.stats.buffered, self.tombstones.size]
    }
    const limits = { tombstoneTimeout: Duration.minutes(10) }
    assert.deepStrictEqual(at(600_999, limits, 1000), [1, 0, 1])
    assert.deepStrictEqual(at(601_000, limits, 1000), [0, 1, 0])
    assert.deepStrictEqual(at(1000, { tombstoneTimeout: Duration.zero }, 1000), [0, 1, 0])
    assert.deepStrictEqual(at(1e15, { tombstoneTimeout: Duration.infinity }, 1000), [1, 0, 1])
    // A close that doesn't know the time: it begins with the first frame.
    assert.deepStrictEqual(at(601_000, limits, undefined), [1, 0, 1])
    const self = router(limits)
    const { self: r } = route()
    SessionRouter.register(self, "a", r, 0)
    SessionRouter.unregister(self, "a", r)
    for (const time of [1000, 600_999, 601_000]) SessionRouter.deliver(self, "a", 1, 10, time)
    assert.deepInclude(self.stats, { late: 2, buffered: 1 })
  })

  it("B51: tombstones whose time is over make room first", () => {
    const self = router({ maxTombstones: 2, tombstoneTimeout: Duration.seconds(10) })
    const close = (id: string, now: number, how = SessionRouter.unregister) => {
      const { self: r } = route()
      SessionRouter.register(self, id, r, now)
      how(self, id, r, now)
    }
    close("q", 0, SessionRouter.quarantine)
    close("a", 5000)
    close("b", 11_000)
    assert.deepStrictEqual(Array.from(self.tombstones.keys()), ["a", "b"])
    // One that is marked outlives the others.
    close("r", 12_000, SessionRouter.quarantine)
    close("c", 12_000)
    close("d", 12_000)
    assert.deepStrictEqual(Array.from(self.tombstones.keys()), ["r", "d"])
    close("s", 12_000, SessionRouter.quarantine)
    close("t", 12_000, SessionRouter.quarantine)
    assert.deepStrictEqual(Array.from(self.tombstones.keys()), ["s", "t"])
  })

  it("B51: a load starts with nothing of what came before it was sent, and gets its history before the answer", () => {
    const self = router()
    const first = route()
    SessionRouter.register(self, "a", first.self, 0)
    SessionRouter.unregister(self, "a", first.self, 0)
    SessionRouter.deliver(self, "a", "stale", 10, 0)
    const second = route()
    assert.isTrue(SessionRouter.register(self, "a", second.self, 0, { isExisting: true }))
    SessionRouter.deliver(self, "a", "history", 10, 0)
    assert.deepStrictEqual([second.updates, self.stats.late], [["history"], 1])
    // Without a tombstone, too.
    SessionRouter.deliver(self, "b", "stale", 10, 0)
    SessionRouter.expect(self)
    SessionRouter.expect(self, "other")
    const b = route()
    SessionRouter.register(self, "b", b.self, 0, { isExisting: true })
    SessionRouter.deliver(self, "b", "history", 10, 0)
    assert.deepStrictEqual([b.updates, self.stats.dropped], [["history"], 1])
  })

  it("B51: a resume gets nothing that came while its id was closed", () => {
    const self = router({ tombstoneTimeout: Duration.seconds(10) })
    const first = route()
    SessionRouter.register(self, "a", first.self, 0)
    SessionRouter.unregister(self, "a", first.self, 0)
    SessionRouter.deliver(self, "a", "stale", 10, 0)
    const done = SessionRouter.expect(self, "a")
    SessionRouter.deliver(self, "a", "stale too", 10, 9999)
    // Not even when the time of the tombstone ends in between.
    SessionRouter.deliver(self, "a", "and this", 10, 10_000)
    const second = route()
    SessionRouter.register(self, "a", second.self, 10_000, { isExisting: true })
    done()
    SessionRouter.deliver(self, "a", "fresh", 10, 10_000)
    assert.deepStrictEqual(second.updates, ["fresh"])
    assert.deepInclude(self.stats, { late: 2, buffered: 1, dropped: 1 })
  })

  it("B48: a resume in a new process gets what came between the request and its answer, and nothing older", () => {
    const self = router()
    SessionRouter.deliver(self, "a", "older", 10, 0)
    SessionRouter.expect(self, "b")
    const done = SessionRouter.expect(self, "a")
    SessionRouter.deliver(self, "a", "commands", 10, 0)
    const a = route()
    SessionRouter.register(self, "a", a.self, 0, { isExisting: true })
    done()
    assert.deepStrictEqual([a.updates, self.stats.dropped], [["commands"], 1])
  })
})

describe("a session that is put out", () => {
  const out = (limits: Partial<SessionRouter.SessionRouter["limits"]> = {}) => {
    const self = router(limits)
    const a = route()
    const b = route()
    SessionRouter.register(self, "a", a.self, 0)
    SessionRouter.register(self, "b", b.self, 0)
    SessionRouter.quarantine(self, "a", a.self, 0)
    return { a, b, self }
  }

  it("W1: gets no more frames, all that come are counted, and its neighbour goes on", () => {
    const { a, b, self } = out()
    SessionRouter.deliver(self, "a", 1, 10, 0)
    SessionRouter.notify(self, "_x", { sessionId: "a" }, 10, 0)
    SessionRouter.deliver(self, "b", 2, 10, 0)
    assert.deepStrictEqual([a.updates, a.notifications, b.updates], [[], [], [2]])
    assert.deepInclude(self.stats, { quarantined: 2, late: 0, buffered: 0, sample: "a" })
    assert.isUndefined(SessionRouter.find(self, "a"))
  })

  it("can't be registered again, until nothing has come for it for the time of a tombstone", () => {
    const { self } = out({ tombstoneTimeout: Duration.seconds(10) })
    const again = route()
    assert.strictEqual(SessionRouter.refusal(self, "a", 9000), "quarantined")
    assert.isFalse(SessionRouter.register(self, "a", again.self, 18_000))
    assert.isFalse(SessionRouter.register(self, "a", again.self, 18_000, { isExisting: true }))
    SessionRouter.deliver(self, "a", 1, 10, 27_000)
    assert.isUndefined(SessionRouter.refusal(self, "a", 37_000))
    assert.isTrue(SessionRouter.register(self, "a", again.self, 37_000))
    assert.deepStrictEqual([again.updates, self.stats.quarantined], [[], 1])
  })

  it.effect("has its requests refused at once, also while sessions are being opened", () =>
    Effect.gen(function* () {
      const { self } = out()
      SessionRouter.expect(self)
      SessionRouter.expect(self, "a")
      assert.isUndefined(yield* SessionRouter.awaitRoute(self, "a", Duration.infinity))
      assert.strictEqual(self.stats.waited, 0)
    })
  )

  it("W1: also by its own first update, and then gets no more of those that waited", () => {
    const self = router()
    const seen: Array<unknown> = []
    const a: SessionRouter.Route = {
      ...route().self,
      onUpdate: (update) => {
        seen.push(update)
        SessionRouter.quarantine(self, "a", a, 0)
      }
    }
    for (const update of [1, 2, 3]) SessionRouter.deliver(self, "a", update, 10, 0)
    assert.isTrue(SessionRouter.register(self, "a", a, 0))
    assert.deepStrictEqual([seen, self.stats.quarantined, self.early.count], [[1], 2, 0])
  })

  it("W1: by what comes for all sessions, gets no more of it", () => {
    const self = router()
    const b = route()
    const a: SessionRouter.Route = {
      ...route().self,
      onNotification: () => SessionRouter.quarantine(self, "b", b.self, 0)
    }
    SessionRouter.register(self, "a", a, 0)
    SessionRouter.register(self, "b", b.self, 0)
    SessionRouter.notify(self, "_x", {}, 10, 0)
    assert.deepStrictEqual(b.notifications, [])
  })

  it("is the one of that route: another epoch stays", () => {
    const { self } = out()
    const b = route()
    SessionRouter.quarantine(self, "b", b.self, 0)
    assert.isDefined(SessionRouter.find(self, "b"))
    assert.strictEqual(SessionRouter.refusal(self, "b", 0), "open")
  })

  it("is forgotten at once when no tombstones are kept", () => {
    const { self } = out({ maxTombstones: 0 })
    assert.isTrue(SessionRouter.register(self, "a", route().self, 0))
  })
})

describe("notifications", () => {
  it("that name a session reach it and no other, with a wake-up", () => {
    const self = router()
    const a = route()
    const b = route()
    SessionRouter.register(self, "a", a.self, 0)
    SessionRouter.register(self, "b", b.self, 0)
    const params = { sessionId: "a", more: 1 }
    SessionRouter.notify(self, "elicitation/complete", params, 10, 5)
    SessionRouter.flush(self)
    assert.deepStrictEqual([a.notifications, b.notifications], [[["elicitation/complete", params, 10, 5]], []])
    assert.deepStrictEqual([a.counts.flushes, b.counts.flushes], [1, 0])
  })

  it("that name none reach those whom their method concerns", () => {
    const concerned = (method: string, params: unknown) => {
      const self = router()
      const a = route()
      const b = route()
      SessionRouter.register(self, "a", a.self, 0)
      SessionRouter.register(self, "b", b.self, 0)
      const { onNotification: _, ...deaf } = route().self
      SessionRouter.register(self, "c", deaf, 0)
      SessionRouter.notify(self, method, params, 10, 0)
      SessionRouter.flush(self)
      assert.deepStrictEqual(a.counts.flushes, a.notifications.length)
      assert.deepStrictEqual(a.notifications, b.notifications)
      return [a.notifications.length, self.stats.dropped]
    }
    for (const method of ["_auth/status_update", "auth/status_update", "_anything"]) {
      for (const params of [undefined, null, 1, "text", [], {}, { sessionId: 1 }, Object.create({ sessionId: "a" })]) {
        assert.deepStrictEqual(concerned(method, params), [1, 0], method)
      }
    }
    for (const method of ["elicitation/complete", "$/anything", "$/cancel_request", "unknown", ""]) {
      assert.deepStrictEqual(concerned(method, {}), [0, 0], method)
    }
    // Those are counted, and never for all.
    assert.deepStrictEqual(concerned("session/update", {}), [0, 1])
    assert.deepStrictEqual(concerned("session/update", { sessionId: "a" }), [0, 1])
  })

  it("B55: those for no open session are counted, and nothing of them waits", () => {
    const self = router()
    const a = route()
    SessionRouter.notify(self, "_x", { sessionId: "a" }, 10, 0)
    SessionRouter.register(self, "a", a.self, 0)
    SessionRouter.unregister(self, "a", a.self, 0)
    SessionRouter.notify(self, "_x", { sessionId: "a" }, 10, 0)
    assert.deepStrictEqual([a.notifications, self.early.count], [[], 0])
    assert.deepInclude(self.stats, { dropped: 1, late: 1, buffered: 0 })
  })

  it("are nothing to a session that doesn't ask for them", () => {
    const self = router()
    const { onNotification: _, ...deaf } = route().self
    SessionRouter.register(self, "a", deaf, 0)
    SessionRouter.notify(self, "_x", { sessionId: "a" }, 10, 0)
    assert.deepStrictEqual([self.dirty.size, self.stats.dropped], [0, 0])
  })
})

describe("requests for a session that is being opened", () => {
  const second = Duration.seconds(1)
  const waiting = (self: SessionRouter.SessionRouter, id: string, timeout = second) =>
    beside(SessionRouter.awaitRoute(self, id, timeout))

  it.effect("get the route at once when it is open, and none at once when nobody opens it", () =>
    Effect.gen(function* () {
      const self = router()
      const a = route()
      SessionRouter.register(self, "a", a.self, 0)
      SessionRouter.expect(self, "other")
      assert.strictEqual(yield* SessionRouter.awaitRoute(self, "a", second), a.self)
      assert.isUndefined(yield* SessionRouter.awaitRoute(self, "b", second))
      assert.deepStrictEqual([self.stats.waited, self.waiters.size], [0, 0])
    })
  )

  for (const id of [undefined, "a"]) {
    it.effect(`B48: wait until it is registered, its id being ${id === undefined ? "unknown" : "known"} before`, () =>
      Effect.gen(function* () {
        const self = router()
        const done = SessionRouter.expect(self, id)
        const asking = yield* waiting(self, "a")
        yield* TestClock.adjust(999)
        assert.isUndefined(asking.pollUnsafe())
        const a = route()
        SessionRouter.register(self, "a", a.self, 999)
        // The one who registers it is not done yet.
        assert.isUndefined(asking.pollUnsafe())
        done()
        assert.strictEqual(yield* Fiber.join(asking), a.self)
        assert.deepStrictEqual([self.stats.waited, self.stats.sample, self.waiters.size], [1, "a", 0])
      })
    )
  }

  it.effect("get none once nothing that it can be is being opened", () =>
    Effect.gen(function* () {
      const self = router()
      const one = SessionRouter.expect(self)
      const two = SessionRouter.expect(self)
      const known = SessionRouter.expect(self, "b")
      const a = yield* waiting(self, "a", Duration.infinity)
      const b = yield* waiting(self, "b", Duration.infinity)
      one()
      one()
      yield* idle
      assert.isUndefined(a.pollUnsafe())
      two()
      yield* idle
      assert.deepStrictEqual(a.pollUnsafe(), Exit.succeed(undefined))
      assert.isUndefined(b.pollUnsafe())
      known()
      yield* idle
      assert.deepStrictEqual(b.pollUnsafe(), Exit.succeed(undefined))
      assert.deepStrictEqual([self.waiters.size, self.openings.size], [0, 0])
    })
  )

  it.effect("get none when the time is over: at 0, at it, and never when it is off", () =>
    Effect.gen(function* () {
      const self = router()
      SessionRouter.expect(self)
      assert.isUndefined(yield* SessionRouter.awaitRoute(self, "a", Duration.zero))
      assert.strictEqual(self.stats.waited, 0)
      const asking = yield* waiting(self, "a")
      const patient = yield* waiting(self, "a", Duration.infinity)
      yield* TestClock.adjust(999)
      assert.isUndefined(asking.pollUnsafe())
      yield* TestClock.adjust(1)
      assert.deepStrictEqual(asking.pollUnsafe(), Exit.succeed(undefined))
      yield* TestClock.adjust("1000 days")
      assert.isUndefined(patient.pollUnsafe())
      assert.strictEqual(self.waiters.size, 1)
      yield* Fiber.interrupt(patient)
      assert.strictEqual(self.waiters.size, 0)
    })
  )

  it.effect("B51: get none at once for a closed id, though a resume of it is on its way", () =>
    Effect.gen(function* () {
      const self = router()
      const a = route()
      SessionRouter.register(self, "a", a.self, 0)
      SessionRouter.unregister(self, "a", a.self, 0)
      SessionRouter.expect(self, "a")
      SessionRouter.expect(self)
      assert.isUndefined(yield* SessionRouter.awaitRoute(self, "a", Duration.infinity))
      yield* TestClock.adjust(SidecarLimits.defaults.tombstoneTimeout)
      const later = yield* waiting(self, "a")
      assert.isUndefined(later.pollUnsafe())
    })
  )

  it.effect("T3: get none when the session that was opened is closed again, nor another one of its id", () =>
    Effect.gen(function* () {
      const self = router()
      SessionRouter.expect(self)
      const asking = yield* waiting(self, "a")
      const first = route()
      SessionRouter.register(self, "a", first.self, 0)
      SessionRouter.unregister(self, "a", first.self, 0)
      SessionRouter.register(self, "a", route().self, 0)
      assert.isUndefined(yield* Fiber.join(asking))
    })
  )

  it.effect("go on in the order in which they came, also before one that came when it was open", () =>
    Effect.gen(function* () {
      const self = router()
      SessionRouter.expect(self)
      const order: Array<number> = []
      const ask = (number: number, id = "a") =>
        beside(Effect.map(SessionRouter.awaitRoute(self, id, second), (found) => found && void order.push(number)))
      yield* ask(1)
      yield* ask(2)
      yield* ask(0, "b")
      yield* ask(3)
      SessionRouter.register(self, "a", route().self, 0)
      yield* ask(4)
      assert.deepStrictEqual(order, [])
      yield* idle
      assert.deepStrictEqual(order, [1, 2, 3, 4])
      assert.deepStrictEqual([self.waiters.size, self.stats.waited], [1, 4])
    })
  )

  it.effect("are at most 64, at the cap, past it, and after one has gone; an endless id doesn't wait", () =>
    Effect.gen(function* () {
      const self = router()
      SessionRouter.expect(self)
      const fibers = yield* Effect.forEach(Array.from({ length: 64 }), () => waiting(self, "a", Duration.infinity))
      assert.strictEqual(self.waiters.size, 64)
      assert.isUndefined(yield* SessionRouter.awaitRoute(self, "a", Duration.infinity))
      yield* Fiber.interrupt(fibers[0]!)
      assert.isUndefined(yield* SessionRouter.awaitRoute(self, "x".repeat(1025), Duration.infinity))
      const last = yield* waiting(self, "a", Duration.infinity)
      const a = route()
      SessionRouter.register(self, "a", a.self, 0)
      assert.strictEqual(yield* Fiber.join(last), a.self)
      for (const fiber of fibers.slice(1)) assert.strictEqual(yield* Fiber.join(fiber), a.self)
      assert.strictEqual(self.waiters.size, 0)
    })
  )

  it.effect("get none once the agent is gone, and nobody waits any more", () =>
    Effect.gen(function* () {
      const self = router()
      SessionRouter.expect(self)
      const asking = yield* waiting(self, "a", Duration.infinity)
      SessionRouter.close(self)
      assert.isUndefined(yield* Fiber.join(asking))
      assert.isUndefined(yield* SessionRouter.awaitRoute(self, "a", Duration.infinity))
    })
  )

  it("leave nothing when they are interrupted at any operation, and the others get their route", () => {
    for (const what of ["register", "release", "time", "close"] as const) {
      const runs = Strikes.assertSafe({
        make: Effect.gen(function* () {
          const self = router()
          const opened = route().self
          const done = SessionRouter.expect(self)
          const before = yield* Effect.forkScoped(SessionRouter.awaitRoute(self, "a", second))
          const event = Effect.sync(() => {
            if (what === "register") SessionRouter.register(self, "a", opened, 10)
            if (what === "release") done()
            if (what === "close") SessionRouter.close(self)
          })
          const happening = yield* Effect.forkScoped(Effect.andThen(Effect.sleep(10), event))
          const expected = what === "register" ? opened : undefined
          return { before, expected, happening, self }
        }),
        body: ({ self }) =>
          Effect.gen(function* () {
            const behind = yield* waiting(self, "a", second)
            const found = yield* SessionRouter.awaitRoute(self, "a", Duration.millis(900))
            return [found, yield* Fiber.join(behind)]
          }),
        check: ({ before, expected, happening, self }, exit) =>
          Effect.gen(function* () {
            yield* Fiber.join(happening)
            assert.strictEqual(yield* Fiber.join(before), expected)
            if (Exit.isSuccess(exit)) assert.deepStrictEqual(exit.value, [expected, expected])
            assert.strictEqual(self.waiters.size, 0)
          }),
        seeds: 3
      })
      assert.isAbove(runs, 10)
    }
  })
})

describe("any sequence of what can happen", () => {
  const ids = ["a", "b", "c"] as const
  const limits: SessionRouter.SessionRouter["limits"] = {
    earlyUpdatesPerSession: 3,
    earlyUpdatesPerAgent: 5,
    earlyUpdateBytes: 100,
    earlyUpdateTimeout: Duration.millis(50),
    maxTombstones: 2,
    tombstoneTimeout: Duration.millis(100)
  }
  const within = (maximum: number) => Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum })))
  const Steps = Arbitrary.array(Arbitrary.all([within(11), within(2), within(60)]), { maxLength: 60 })

  it.prop(
    "B48, B51: keeps order, loses nothing but what is counted, and tells nothing of a closed session to a later one",
    [Steps],
    ([steps]) => {
      const self = SessionRouter.make(limits)
      const open = new Map<string, ReturnType<typeof route>>()
      const logs: Array<ReadonlyArray<unknown>> = []
      /** The model: closed ids, the oldest first, and the updates that came for them. */
      let closed: Array<{ readonly id: string; since: number; readonly isOut: boolean }> = []
      const stale = new Set<number>()
      const releases: Array<() => void> = []
      let now = 0
      let sent = 0
      const isAlive = (one: { readonly since: number }) => now - one.since < 100
      const tombstone = (id: string) => {
        const found = closed.find((one) => one.id === id && isAlive(one))
        if (found?.isOut === true) found.since = now
        return found
      }
      const bury = (id: string, isOut: boolean) => {
        const a = open.get(id)
        if (a === undefined) return
        open.delete(id)
        if (isOut) SessionRouter.quarantine(self, id, a.self, now)
        else SessionRouter.unregister(self, id, a.self, now)
        closed = [...closed.filter((one) => one.id !== id && isAlive(one)), { id, since: now, isOut }]
        if (closed.length <= 2) return
        const first = closed.find((one) => !one.isOut) ?? closed[0]
        closed = closed.filter((one) => one !== first)
      }
      const begin = (id: string, isExisting: boolean) => {
        const a = route()
        const isRefused = open.has(id) || tombstone(id)?.isOut === true
        assert.strictEqual(SessionRouter.register(self, id, a.self, now, { isExisting }), !isRefused)
        if (isRefused) return
        closed = closed.filter((one) => one.id !== id)
        open.set(id, a)
        logs.push(a.updates)
      }
      const send = (id: string, bytes: number) => {
        const number = ++sent
        const { buffered } = self.stats
        const isStale = !open.has(id) && tombstone(id) !== undefined
        if (isStale) stale.add(number)
        SessionRouter.deliver(self, id, number, bytes, now)
        if (open.has(id)) assert.strictEqual(open.get(id)!.updates.at(-1), number)
        else if (!isStale) {
          // The newest one is what is kept.
          assert.strictEqual(self.stats.buffered, buffered + 1)
          assert.strictEqual(self.early.ids.get(id)?.updates.at(-1)?.update, number)
        }
      }
      for (const [kind, index, amount] of steps) {
        const id = ids[index]!
        if (kind <= 4) send(id, amount)
        else if (kind === 5) begin(id, false)
        else if (kind === 6) begin(id, true)
        else if (kind === 7) bury(id, false)
        else if (kind === 8) bury(id, amount < 20)
        else if (kind === 9) now += amount
        else if (kind === 10) releases.push(SessionRouter.expect(self, amount < 30 ? id : undefined))
        else releases.shift()?.()

        const kept = Array.from(self.early.ids.values(), ({ updates }) => updates)
        assert.isAtMost(Math.max(0, ...kept.map((updates) => updates.length)), 3)
        assert.isAtMost(self.early.count, 5)
        assert.isAtMost(self.early.bytes, 100)
        assert.strictEqual(self.early.count, kept.flat().length)
        assert.strictEqual(
          self.early.bytes,
          kept.flat().reduce((sum, { bytes }) => sum + bytes, 0)
        )
        assert.isTrue(kept.every((updates) => updates.length > 0))
        const { dropped, late, quarantined } = self.stats
        const delivered = logs.flat() as ReadonlyArray<number>
        assert.strictEqual(sent, delivered.length + dropped + late + quarantined + self.early.count)
        assert.strictEqual(late + quarantined, stale.size)
        assert.isFalse(delivered.some((number) => stale.has(number)))
        assert.strictEqual(new Set(delivered).size, delivered.length)
        for (const log of logs)
          assert.deepStrictEqual(
            log,
            (log as Array<number>).toSorted((a, b) => a - b)
          )
        assert.deepStrictEqual(Array.from(self.routes.keys()).toSorted(), Array.from(open.keys()).toSorted())
      }
      for (const release of releases) release()
      SessionRouter.close(self)
      assert.deepStrictEqual([self.early.count, self.early.bytes, self.openings.size], [0, 0, 0])
    },
    { arbitrary: { runs: 1000 } }
  )
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
