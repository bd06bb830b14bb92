// Clients that do not speak the protocol, do not read, or want what is not theirs: each costs itself, and nobody else.
import { assert, describe, it } from "@effect/vitest"
import { Sidecar, type Session, type SidecarClient } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { TestClock } from "effect/testing"
import { pair } from "../src/testing/internal/memorySocket.ts"
import * as Clients from "./support/clients.ts"
import { beside, idle, provided } from "./support/events.ts"

const request = (id: unknown, tag: string, payload: unknown = null) => ({
  _tag: "Request",
  id,
  tag,
  payload,
  headers: []
})

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
