import { assert, describe, it } from "@effect/vitest"
import { Address, Journal } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import { TestClock } from "effect/testing"

const address: Address.Address = { sidecarId: Address.SidecarId.make("s") }

describe("Journal", () => {
  it.effect("a session's events are in it, in order and without a gap, when the session has ended", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* session.prompt("hello")
      yield* session.close
      const journal = yield* Journal.Journal
      const events = yield* journal.read(session.address, 1)
      assert.deepStrictEqual(
        events.map((event) => event._tag),
        ["TurnQueued", "TurnStarted", "Update", "TurnEnded", "SessionEnded"]
      )
      assert.deepStrictEqual(
        events.map((event) => ("number" in event ? event.number : 0)),
        [1, 2, 3, 4, 5]
      )
      assert.deepStrictEqual(yield* journal.read(session.address, 5), events.slice(4))
      assert.deepStrictEqual(yield* journal.read(address, 1), [])
    }).pipe(Effect.provide(Layer.provideMerge(TestSidecar.layer(), Journal.layerMemory())))
  )

  it.effect("the sidecar's journal is the one that its layer was given, not one of whoever opens a Vm", () => {
    const given: Array<string> = []
    const journal = (name: string) =>
      Layer.succeed(
        Journal.Journal,
        Journal.Journal.of({
          append: (_, events) => Effect.sync(() => void given.push(...events.map((event) => `${name} ${event._tag}`))),
          read: () => Effect.succeed([])
        })
      )
    return Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* session.close
      assert.deepStrictEqual(given, ["sidecar SessionEnded"])
    }).pipe(Effect.provide(journal("caller")), Effect.provide(Layer.provide(TestSidecar.layer(), journal("sidecar"))))
  })

  it.effect("a journal that breaks costs no turn, and the log says it", () => {
    const logged: Array<unknown> = []
    const broken = Layer.succeed(
      Journal.Journal,
      Journal.Journal.of({ append: () => Effect.die(new Error("disk full")), read: () => Effect.succeed([]) })
    )
    return Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
      yield* session.close
      assert.strictEqual(logged.length, 1)
      assert.include(String(logged[0]), session.id)
    }).pipe(
      Effect.provide(Layer.provide(TestSidecar.layer(), broken)),
      Effect.provide(Logger.layer([Logger.make(({ message }) => void logged.push(message))]))
    )
  })

  it.effect("a journal that hangs delays no turn, and the close only by closeTimeout", () => {
    const started = Deferred.makeUnsafe<void>()
    const stuck = Layer.succeed(
      Journal.Journal,
      Journal.Journal.of({
        append: () => Effect.andThen(Deferred.succeed(started, undefined), Effect.never),
        read: () => Effect.succeed([])
      })
    )
    return Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
      yield* Deferred.await(started)
      assert.strictEqual((yield* session.prompt("again"))._tag, "Completed")
      const closing = yield* Effect.forkChild(session.close, { startImmediately: true })
      yield* TestClock.adjust("1999 millis")
      assert.isUndefined(closing.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      yield* Fiber.join(closing)
      assert.isTrue(agent.isGone())
    }).pipe(Effect.provide(Layer.provideMerge(TestSidecar.layer(), stuck)))
  })

  it.effect("the one in memory keeps the last events of the last sessions", () =>
    Effect.gen(function* () {
      const journal = yield* Journal.Journal
      const event = (number: number) => ({ _tag: "TurnQueued", number, at: 0, turnId: "t" }) as never
      const named = (name: string): Address.Address => ({ ...address, sessionId: Address.SessionId.make(name) })
      yield* journal.append(named("a"), [event(1), event(2)])
      yield* journal.append(named("a"), [event(3)])
      assert.deepStrictEqual(yield* journal.read(named("a"), 1), [event(2), event(3)])
      yield* journal.append(named("b"), [event(1), event(2), event(3)])
      assert.deepStrictEqual(yield* journal.read(named("b"), 1), [event(2), event(3)])
      yield* journal.append(named("c"), [event(1)])
      assert.deepStrictEqual(yield* journal.read(named("a"), 1), [])
    }).pipe(Effect.provide(Journal.layerMemory({ capacity: 2, sessions: 2 })))
  )
})
