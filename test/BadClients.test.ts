// Clients that do not speak the protocol, do not read, or want what is not theirs: each costs itself, and nobody else.
import { assert, describe, it } from "@effect/vitest"
import { type Session, Sidecar, type SidecarClient } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import { TestClock } from "effect/testing"
import { pair } from "../src/testing/internal/memorySocket.ts"
import * as RpcWire from "../src/internal/rpcWire.ts"
import * as Clients from "./support/clients.ts"
import { beside, idle, provided, until } from "./support/events.ts"
import { hanging, manual } from "./support/turns.ts"

const { request } = Clients

/** A raw client that has been welcomed, on a connection that keeps `capacity` pieces, and its server's fiber. */
const welcomed = Effect.fnUntraced(function* (served: Clients.Served, capacity = 64) {
  const [ours, theirs] = yield* pair(capacity)
  const serving = yield* beside(served.server.serve(theirs))
  const client = yield* Clients.raw(ours)
  yield* client.write(Clients.hello())
  const welcome = yield* client.read
  assert.strictEqual(welcome?.["_tag"], "Welcome")
  return { ...client, serving, key: String(welcome?.["key"]) }
})

/** A client that works, with a session whose agent answers. */
const good = Effect.fnUntraced(function* (served: Clients.Served) {
  const connection = yield* served.connect()
  const vm = yield* connection.sidecar.openVm({ root: "/work" })
  const session = yield* vm.openSession({ agent: TestSidecar.profile })
  return { connection, vm, session }
})

const assertWorks = ({
  connection,
  session
}: {
  readonly connection: SidecarClient.Connection
  readonly session: Session.Session
}) =>
  Effect.gen(function* () {
    const outcome = yield* session.prompt("go")
    assert.strictEqual(outcome._tag, "Completed")
    assert.strictEqual((yield* connection.sidecar.describe).state, "ready")
  })

/** Waits until a count no longer rises, with no time passing. */
const stalled = (count: () => number) =>
  Effect.repeat(
    Effect.gen(function* () {
      const before = count()
      yield* idle
      return count() === before
    }),
    { until: (isStalled) => isStalled }
  )

const root = { root: "/work" }

const answering = { prompt: () => Effect.succeed("end_turn") } as const

describe("a client that does not speak the protocol", () => {
  const cases: ReadonlyArray<readonly [name: string, lines: ReadonlyArray<unknown>, why: string]> = [
    ["a line that is no JSON", ["{]\n"], "a line is not JSON"],
    ["a scalar", ["17\n"], "a message that is no object"],
    ["null", ["null\n"], "a message that is no object"],
    ["an array", [[]], "a message that is no object"],
    ["an unknown kind", [{ _tag: "Nonsense" }], "a message of a kind that there is not"],
    ["no kind", [{}], "a message of a kind that there is not"],
    ["a kind of Object.prototype", [{ _tag: "__proto__" }], "a message of a kind that there is not"],
    ["a message of a server", [{ _tag: "Chunk", requestId: 1, values: [] }], "a message of a kind that there is not"],
    ["a request without id", [{ _tag: "Request", tag: "Describe", payload: null }], "a request without id or tag"],
    ["a request without tag", [{ _tag: "Request", id: 1, payload: null }], "a request without id or tag"],
    ["an id that is an object", [request({}, "Describe")], "a request without id or tag"],
    ["an id that is too long", [request("x".repeat(129), "Describe")], "a request without id or tag"],
    ["an ack without id", [{ _tag: "Ack" }], "a message without request id"],
    ["an interrupt without id", [{ _tag: "Interrupt", requestId: null }], "a message without request id"],
    ["the end of its input", [{ _tag: "Eof" }], "the end of its input"],
    ["an id that is in use", [request(1, "Events"), request(1, "Describe")], "request 1 came twice"],
    ["a second hello", [Clients.hello()], "a message of a kind that there is not"]
  ]
  it.effect.each(cases)("is told so, and its connection is closed: %s", ([, lines, why]) =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const other = yield* good(served)
      const client = yield* welcomed(served)
      yield* Effect.forEach(lines, client.write)
      let last: Readonly<Record<string, unknown>> | undefined
      for (let message = yield* client.read; message !== undefined; message = yield* client.read) last = message
      assert.deepStrictEqual(last, { _tag: "Defect", defect: `The connection is closed: ${why}.` })
      yield* Fiber.join(client.serving)
      assert.strictEqual(served.server.clients(), 1)
      yield* assertWorks(other)
    }).pipe(provided(TestSidecar.layer({ script: answering })))
  )
})

describe("a client that never reads", () => {
  it.effect("and asks for all there is is lost after the heartbeat's time, with all that it has", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const other = yield* good(served)
      const client = yield* welcomed(served, 1)
      yield* client.write(request("vm", "Vm.Open", { key: "k", root: "/work" }))
      yield* idle
      for (let id = 0; id < 3; id++) yield* client.write(request(id, "Events"))
      let asked = 0
      const ask = Effect.suspend(() => client.write(request(`d${++asked}`, "Describe")))
      const asking = yield* beside(Effect.forever(ask))
      yield* stalled(() => asked)
      // It is not read from any more.
      assert.isBelow(asked, 1200)
      assert.strictEqual(served.server.clients(), 2)
      yield* TestClock.adjust("40 seconds")
      yield* idle
      assert.strictEqual(served.server.clients(), 1)
      yield* Fiber.join(client.serving)
      yield* Fiber.interrupt(asking)
      assert.strictEqual((yield* (yield* Sidecar.Sidecar).describe).activeVmCount, 1)
      yield* assertWorks(other)
    }).pipe(provided(TestSidecar.layer({ script: answering })))
  )

  it.effect("and whose server is closed does not hold it up", () =>
    Effect.gen(function* () {
      yield* Effect.scoped(
        Effect.gen(function* () {
          const served = yield* Clients.serve()
          const client = yield* welcomed(served, 1)
          for (let id = 0; id < 4; id++) yield* client.write(request(id, "Events"))
          yield* beside(
            Effect.forEach(Array.from({ length: 10 }), (_, id) => client.write(request(`d${id}`, "Describe")))
          )
          yield* idle
          const closing = yield* beside(Fiber.interrupt(client.serving))
          yield* idle
          assert.isDefined(closing.pollUnsafe())
          assert.strictEqual(served.server.clients(), 0)
        })
      )
    }).pipe(provided(TestSidecar.layer({ script: answering })))
  )
})

describe("a client that asks for too much", () => {
  /** Reads what a raw client is answered until the answer to one call, and counts the answers by what they are. */
  const answersUntil = (
    client: { readonly read: Effect.Effect<Readonly<Record<string, unknown>> | undefined> },
    id: unknown
  ) =>
    Effect.gen(function* () {
      const counts: Record<string, number> = {}
      while (true) {
        const message = yield* client.read
        if (message === undefined) return counts
        if (message["requestId"] === id) return counts
        const exit = message["exit"] as {
          readonly _tag: string
          readonly cause?: ReadonlyArray<{ readonly error?: { readonly _tag: string } }>
        }
        const kind = exit._tag === "Success" ? "Success" : String(exit.cause?.[0]?.error?._tag)
        counts[kind] = (counts[kind] ?? 0) + 1
      }
    })

  it.effect("gets an answer to each of ten thousand cancels at once, and others work", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const other = yield* good(served)
      const client = yield* welcomed(served)
      yield* client.write(request("vm", "Vm.Open", { key: "1", root: "/work" }))
      yield* client.read
      const amount = 10_000
      const cancel = (id: number) => JSON.stringify(request(id, "Session.Cancel", { sessionId: "session-unknown" }))
      const counting = yield* beside(answersUntil(client, "last"))
      const piece = 1000
      for (let from = 0; from < amount; from += piece) {
        yield* client.write(Array.from({ length: piece }, (_, index) => `${cancel(from + index)}\n`).join(""))
      }
      yield* client.write(request("last", "Describe"))
      const counts = yield* Fiber.join(counting)
      assert.strictEqual((counts["NotFound"] ?? 0) + (counts["LimitExceeded"] ?? 0), amount)
      yield* assertWorks(other)
    }).pipe(provided(TestSidecar.layer({ script: answering })))
  )

  it.effect("may ack and interrupt a million calls that there are not", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const client = yield* welcomed(served)
      const lines = Array.from(
        { length: 1000 },
        (_, id) => `${JSON.stringify({ _tag: id % 2 === 0 ? "Ack" : "Interrupt", requestId: id })}\n`
      ).join("")
      for (let round = 0; round < 1000; round++) yield* client.write(lines)
      yield* client.write(request("last", "Describe"))
      assert.deepInclude(yield* client.read, { _tag: "Exit", requestId: "last" })
    }).pipe(provided(TestSidecar.layer({ script: answering })))
  )

  it.effect("B36: is told which cap it has reached by the ten thousandth opening, and the others open", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const other = yield* good(served)
      const { sidecar } = yield* served.connect()
      const vm = yield* sidecar.openVm(root)
      yield* vm.openSession({ agent: TestSidecar.profile })
      const refused: Record<string, number> = {}
      for (let index = 0; index < 10_000; index++) {
        const error = yield* Effect.flip(vm.openSession({ agent: TestSidecar.profile }))
        const reason = error._tag === "AgentStartFailed" ? error.reason : error
        const kind = reason._tag === "LimitExceeded" ? `${reason.limit} of the ${reason.scope}` : reason._tag
        refused[kind] = (refused[kind] ?? 0) + 1
      }
      assert.deepStrictEqual(refused, { "maxSessionsPerVm of the vm": 10_000 })
      yield* other.session.close
      const session = yield* other.vm.openSession({ agent: TestSidecar.profile })
      yield* assertWorks({ ...other, session })
    }).pipe(provided(TestSidecar.layer({ script: answering, limits: { maxSessionsPerVm: 1 } })))
  )

  it.effect("B09: leaves nothing of sessions that it has opened and closed again", () =>
    Effect.gen(function* () {
      const { alive } = yield* TestSidecar.TestSidecar
      const served = yield* Clients.serve()
      const connection = yield* served.connect()
      const vm = yield* connection.sidecar.openVm({ root: "/work" })
      for (let index = 0; index < 600; index++) {
        yield* Effect.scoped(
          Effect.flatMap(vm.openSession({ agent: TestSidecar.profile }), (session) => session.prompt("go"))
        )
      }
      assert.strictEqual(alive(), 0)
      assert.deepInclude(yield* vm.describe, { sessions: [], opening: 0 })
      // Of those that have ended the last ones are kept for late readers, and no more.
      assert.isBelow((yield* connection.sessions).length, 200)
    }).pipe(provided(TestSidecar.layer({ script: answering })))
  )
})

describe("messages with something in them that is not for the sidecar", () => {
  const deep = `${"[".repeat(50_000)}${"]".repeat(50_000)}`
  const lines: ReadonlyArray<readonly [name: string, line: string]> = [
    [
      "is nested 50,000 deep",
      `{"_tag":"Request","id":1,"tag":"Vm.Open","payload":{"key":"k","root":"/work","limits":{"maxVms":${deep}}},"headers":[]}\n`
    ],
    [
      "is nested 50,000 deep where no payload is",
      `{"_tag":"Request","id":1,"tag":"Describe","payload":null,"other":${deep}}\n`
    ],
    ["has the payload nested 50,000 deep", `{"_tag":"Request","id":1,"tag":"Vm.Close","payload":${deep}}\n`],
    [
      "has __proto__",
      `{"_tag":"Request","id":1,"tag":"Vm.Open","__proto__":{"polluted":1},"payload":{"__proto__":{"polluted":1},"key":"__proto__","root":"/work","env":{"__proto__":"x"},"limits":{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}}}\n`
    ],
    ["has a tag of Object.prototype", `{"_tag":"Request","id":1,"tag":"constructor","payload":null}\n`],
    [
      "asks for no answer",
      `{"_tag":"Request","id":1,"tag":"Describe","payload":null,"isNotification":true,"discard":true}\n`
    ],
    [
      "has headers and spans",
      `{"_tag":"Request","id":1,"tag":"Describe","payload":null,"headers":[["a","b"],3],"traceId":7,"spanId":{}}\n`
    ],
    ["has a wrong payload", `{"_tag":"Request","id":1,"tag":"Session.Run","payload":{"sessionId":7}}\n`]
  ]
  it.effect.each(lines)("gets one answer when it %s, and the connection goes on", ([, line]) =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const other = yield* good(served)
      const client = yield* welcomed(served)
      yield* client.write(line)
      assert.deepInclude(yield* client.read, { _tag: "Exit", requestId: 1 })
      yield* client.write(request(1, "Describe"))
      assert.deepInclude(yield* client.read, { _tag: "Exit", requestId: 1 })
      assert.isUndefined(({} as { readonly polluted?: unknown }).polluted)
      yield* assertWorks(other)
    }).pipe(provided(TestSidecar.layer({ script: answering })))
  )

  it("is put together from the pieces that it came in, whatever their size", () => {
    const message = { text: "ä€🙂".repeat(2000), list: [1, 2, 3] }
    const bytes = new TextEncoder().encode(`${JSON.stringify(message)}\n\n${JSON.stringify({ next: 1 })}\n{"rest"`)
    for (const size of [1, 2, 3, 7, 1000, 65_536]) {
      const parser = RpcWire.makeParser(100_000)
      const found: Array<unknown> = []
      for (let from = 0; from < bytes.length; from += size) {
        found.push(...parser.decode(bytes.subarray(from, from + size)))
      }
      assert.deepStrictEqual(found, [message, { next: 1 }])
      assert.deepStrictEqual(parser.decode(": 2}\n"), [{ rest: 2 }])
    }
  })

  it.effect("ends its connection when it is too long, before it has all been kept", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const other = yield* good(served)
      const client = yield* welcomed(served)
      const writing = yield* beside(
        Effect.forEach(Array.from({ length: 64 }), () => client.write("x".repeat(65_536)), { discard: true })
      )
      assert.deepStrictEqual(yield* client.read, {
        _tag: "Defect",
        defect: "The connection is closed: a message is too long."
      })
      assert.isUndefined(yield* client.read)
      yield* Fiber.interrupt(writing)
      yield* assertWorks(other)
    }).pipe(provided(TestSidecar.layer({ script: answering, limits: { maxPromptBytes: 1000 } })))
  )
})

describe("many at once", () => {
  it.effect("a thousand connections are served, and leave nothing when they go", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      yield* Effect.scoped(
        Effect.gen(function* () {
          const all = yield* Effect.forEach(Array.from({ length: 1000 }), () => served.connect())
          assert.strictEqual(served.server.clients(), 1000)
          yield* Effect.forEach(all, ({ sidecar }) => sidecar.describe, { concurrency: "unbounded" })
        })
      )
      yield* served.server.unused
      assert.strictEqual(served.server.clients(), 0)
    }).pipe(provided(TestSidecar.layer({ script: answering })))
  )

  it.effect.each([135, 1000])(
    "C08: %i prompts at once go through on one connection, and what steers them meanwhile",
    (amount) =>
      Effect.gen(function* () {
        const { agents } = yield* TestSidecar.TestSidecar
        const served = yield* Clients.serve()
        const { sidecar } = yield* served.connect()
        const vm = yield* sidecar.openVm({ root: import.meta.dirname })
        const sessions: Array<Session.Session> = []
        for (let index = 0; index < amount; index++)
          sessions.push(yield* vm.openSession({ agent: TestSidecar.profile }))
        const running = yield* beside(
          Effect.forEach(sessions, (session) => session.prompt("go"), { concurrency: "unbounded" })
        )
        yield* Effect.forEach(sessions, (session) => until(session, "TurnStarted"))
        // Meanwhile what steers gets through.
        const described = yield* sidecar.describe
        assert.strictEqual(described.activePrompts, amount)
        const cancelling = yield* beside(
          Effect.forEach(sessions.slice(0, 10), (session) => session.cancel(), { concurrency: "unbounded" })
        )
        const all = yield* Queue.takeBetween(agents, amount, amount)
        for (const agent of all) {
          const prompt = yield* Queue.take(agent.prompts)
          yield* prompt.end()
        }
        for (const result of yield* Fiber.join(cancelling)) assert.strictEqual(result._tag, "Settled")
        const outcomes = yield* Fiber.join(running)
        const completed = outcomes.filter(({ _tag }) => _tag === "Completed").length
        assert.deepStrictEqual([outcomes.length, completed], [amount, amount - 10])
      }).pipe(
        provided(
          TestSidecar.layer({
            script: { ...manual },
            limits: {
              maxSessionsPerVm: 1000,
              maxPromptsPerVm: 1000,
              maxPromptsPerSidecar: 1000,
              reservedInteractivePerVm: 0,
              reservedInteractivePerSidecar: 0
            }
          })
        )
      )
  )

  it.effect("waits for turns that are queued keep no cancel from getting through", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const { session } = yield* good(served)
      const turn = yield* session.submit("one")
      const queued = yield* Effect.forEach(Array.from({ length: 4 }), () => session.submit("later"))
      const waiting = yield* Effect.forEach(queued, ({ dispatched }) => beside(dispatched))
      yield* idle
      assert.strictEqual((yield* turn.cancel)._tag, "Cancelled")
      for (const one of queued) assert.strictEqual((yield* one.cancel)._tag, "Cancelled")
      yield* Effect.forEach(waiting, Fiber.join)
    }).pipe(provided(TestSidecar.layer({ script: hanging, limits: { maxControlCallsPerClient: 2 } })))
  )

  it.effect("a client with little room waits for it, or is refused with the limit, and has it back afterwards", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const { session, vm } = yield* good(served)
      const one = yield* session.submit("one")
      const two = yield* session.submit("two")
      for (const call of [
        session.submit("three"),
        session.prompt("four"),
        vm.openSession({ agent: TestSidecar.profile })
      ]) {
        const error = (yield* Effect.flip(call as Effect.Effect<unknown, unknown>)) as object
        assert.deepInclude(error as Record<string, unknown>, {
          _tag: "LimitExceeded",
          limit: "maxCallsPerClient",
          scope: "client",
          max: 2
        })
      }
      const reading = yield* beside(until(session, "TurnEnded"))
      yield* idle
      assert.isUndefined(reading.pollUnsafe())
      yield* one.cancel
      assert.strictEqual((yield* Fiber.join(reading)).turnId, one.id)
      yield* two.cancel
      // Room that is given back by giving up is there at once.
      for (let index = 0; index < 50; index++) yield* Effect.timeoutOption(until(session, "SessionEnded"), 0)
      yield* until(session, "TurnEnded", 2)
      const again = yield* session.submit("five")
      yield* again.cancel
    }).pipe(provided(TestSidecar.layer({ script: hanging, limits: { maxCallsPerClient: 2 } })))
  )
})
