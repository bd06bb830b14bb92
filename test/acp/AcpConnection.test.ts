import { assert, describe, it } from "@effect/vitest"
import { Interruption } from "acp-sidecar/testing"
import * as Arbitrary from "effect/Arbitrary"
import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import * as AcpConnection from "../../src/acp/AcpConnection.ts"
import type * as AcpError from "../../src/acp/AcpError.ts"
import * as AcpTransport from "../../src/acp/AcpTransport.ts"
import * as RawPeer from "../support/rawPeer.ts"
import { settle, until } from "../support/rawPeer.ts"

type Log = Array<unknown>

/** The members that the frames of these tests have. */
const of = (params: unknown) => params as { readonly n: unknown; readonly sessionId: string }

interface Setup extends Partial<AcpConnection.Handlers>, AcpConnection.Options {
  readonly capacity?: number
}

/** A connection to a raw peer, and a log of all that its callbacks were given. */
const connect = Effect.fnUntraced(function* (setup: Setup = {}) {
  const { capacity, maxInbound, maxInboundBytes, maxLineBytes, redact, ...handlers } = setup
  const peer = yield* RawPeer.make(capacity)
  const log: Log = []
  const problems: Array<AcpConnection.Problem> = []
  const connection = yield* AcpConnection.make(
    peer.transport,
    {
      onNotification: (method, params) => void log.push([method, params]),
      onRequest: (method) => Effect.fail(AcpConnection.methodNotFound(method)),
      onProblem: (problem) => void problems.push(problem),
      ...handlers
    },
    { maxInbound, maxInboundBytes, maxLineBytes, redact }
  )
  return { connection, peer, log, problems }
})

const update = (n: unknown): RawPeer.Frame => ({ method: "session/update", params: { n } })
const seen = (n: unknown) => ["session/update", { n }]
const result = (id: string | number | null, value: unknown = {}): RawPeer.Frame => ({ id, result: value })
const failed = (id: string | number | null, code: number, message: string, data?: unknown): RawPeer.Frame => ({
  id,
  error: { code, message, ...(data === undefined ? {} : { data }) }
})
const call = (id: string | number | null, method = "ask"): RawPeer.Frame => ({ id, method, params: {} })
const cancelOf = (requestId: unknown): RawPeer.Frame => ({ method: "$/cancel_request", params: { requestId } })
const bare = (frames: ReadonlyArray<RawPeer.Frame>) =>
  frames.map((frame) => {
    const { jsonrpc, ...rest } = frame as RawPeer.Frame & { readonly jsonrpc: string }
    assert.strictEqual(jsonrpc, "2.0")
    return rest
  })
const errorIn = <A, E>(exit: Exit.Exit<A, E>): E => Option.getOrThrow(Exit.findErrorOption(exit))

describe("responses", () => {
  it.effect("a request gets the result of its own id, whatever the order of the answers", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect()
      const first = yield* Effect.forkChild(connection.request("a", { x: 1 }), { startImmediately: true })
      const second = yield* Effect.forkChild(connection.request("b", undefined), { startImmediately: true })
      assert.deepStrictEqual(bare(peer.sent), [
        { id: 1, method: "a", params: { x: 1 } },
        { id: 2, method: "b" }
      ])
      peer.feed(result(2, "two"), result(1, null))
      assert.deepStrictEqual(yield* Fiber.join(second), "two")
      assert.deepStrictEqual(yield* Fiber.join(first), null)
      assert.strictEqual(connection.stats.pending, 0)
    })
  )

  it.effect("W5, B60: an id that comes back as a string matches our number, and only its plain decimal form does", () =>
    Effect.gen(function* () {
      const { connection, peer, problems } = yield* connect()
      const pending = yield* Effect.forkChild(connection.request("a", {}), { startImmediately: true })
      peer.feed(result("01"), result("1.0"), result(" 1"), result("0x1"), result("1", "mine"))
      assert.strictEqual(yield* Fiber.join(pending), "mine")
      assert.deepStrictEqual(
        problems.map((problem) => problem._tag === "Late" && problem.id),
        ["01", "1.0", " 1", "0x1"]
      )
    })
  )

  it.effect("B60: the peer's own ids are kept apart and answered as they came", () =>
    Effect.gen(function* () {
      const { peer } = yield* connect({ onRequest: (method) => Effect.succeed(method) })
      peer.feed(call(12, "number"), call("12", "string"), call(null, "null"), call("", "empty"))
      yield* until(() => peer.sent.length === 4)
      assert.deepStrictEqual(bare(peer.sent), [
        result(12, "number"),
        result("12", "string"),
        result(null, "null"),
        result("", "empty")
      ])
    })
  )

  it.effect("an error keeps its code, text and data, with secrets taken out of all its strings", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ redact: (text) => text.replaceAll('s"t', "<SECRET>") })
      const pending = yield* Effect.forkChild(connection.request("a", {}), { startImmediately: true })
      peer.feed(failed(1, -32002, 'not s"t', { 's"t': ['of s"t', 7, null], __proto__x: { deep: 's"t' } }))
      const error = errorIn(yield* Fiber.await(pending))
      assert(error._tag === "RequestError")
      assert.deepStrictEqual([error.method, error.code, error.detail], ["a", -32002, "not <SECRET>"])
      assert.deepStrictEqual(error.data, { "<SECRET>": ["of <SECRET>", 7, null], __proto__x: { deep: "<SECRET>" } })
    })
  )

  it.effect("error data that is nested deeper than the stack is cut, and the request still fails", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ redact: (text) => text })
      const pending = yield* Effect.forkChild(connection.request("a", {}), { startImmediately: true })
      const deep = `${"[".repeat(50_000)}${"]".repeat(50_000)}`
      peer.feed(`{"jsonrpc":"2.0","id":1,"error":{"code":5,"message":"deep","data":${deep}}}`)
      const error = errorIn(yield* Fiber.await(pending))
      assert.strictEqual(error._tag, "RequestError")
      assert.strictEqual(connection.stats.defects, 0)
    })
  )

  it.effect("a late, a duplicate and an unknown response are counted and hurt nobody", () =>
    Effect.gen(function* () {
      const { connection, peer, problems } = yield* connect()
      const one = yield* Effect.forkChild(connection.request("a", {}), { startImmediately: true })
      peer.feed(result(1, "first"), result(1, "second"), result(99), failed(null, -32700, "Parse error"))
      assert.strictEqual(yield* Fiber.join(one), "first")
      const two = yield* Effect.forkChild(connection.request("b", {}), { startImmediately: true })
      peer.feed(result(2, "fine"))
      assert.strictEqual(yield* Fiber.join(two), "fine")
      assert.strictEqual(connection.stats.late, 3)
      assert.deepStrictEqual(
        problems.map((problem) => problem._tag),
        ["Late", "Late", "Late"]
      )
      assert.strictEqual(peer.sent.length, 2)
    })
  )

  it.effect("an answer that breaks JSON-RPC, or is too long, fails the request it names and no other", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ maxLineBytes: 1000 })
      const fibers = yield* Effect.forEach(["a", "b", "c"], (method) =>
        Effect.forkChild(connection.request(method, {}), { startImmediately: true })
      )
      peer.feed({ id: 1, result: 1, error: { code: 1, message: "both" } }, result(2, "x".repeat(2000)), result(3, "ok"))
      const [a, b, c] = yield* Effect.forEach(fibers, (fiber) => Fiber.await(fiber))
      const first = errorIn(a!)
      const second = errorIn(b!)
      assert(first._tag === "InvalidResponse" && second._tag === "InvalidResponse")
      assert.strictEqual(first.method, "a")
      assert.match(second.detail, /over the limit of 1000 bytes/)
      assert.deepStrictEqual(c, Exit.succeed("ok"))
      assert.deepStrictEqual([connection.stats.malformed, connection.stats.tooLarge], [1, 1])
    })
  )

  it.effect("a broken or oversized request of the peer is refused by its id and never fails one of ours", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ maxLineBytes: 1000 })
      const pending = yield* Effect.forkChild(connection.request("a", {}), { startImmediately: true })
      const long = { id: 1, method: "ask", params: { text: "x".repeat(2000) } }
      peer.feed('{"jsonrpc":"2.0","id":1,"method":5}', '{"jsonrpc":"2.0","id":1,"method":"m","params":3}', long)
      yield* until(() => peer.sent.length === 4)
      assert.deepStrictEqual(
        bare(peer.sent)
          .slice(1)
          .map((frame) => [frame.id, frame.error?.code]),
        [
          [1, -32600],
          [1, -32600],
          [1, -32600]
        ]
      )
      peer.feed(result(1, "ours"))
      assert.strictEqual(yield* Fiber.join(pending), "ours")
    })
  )

  it.effect("B61: lines of 1 MB go through both ways, in small pieces too", () =>
    Effect.gen(function* () {
      const [near, far] = yield* AcpTransport.makePair()
      const text = "é".repeat(512 * 1024)
      const idle: AcpConnection.Handlers = { onNotification: () => {}, onRequest: () => Effect.void }
      const host = yield* AcpConnection.make(near, idle)
      const pieces: AcpTransport.AcpTransport = {
        ...far,
        incoming: Stream.flatMap(far.incoming, (bytes) =>
          Stream.fromIterable(
            Array.from({ length: Math.ceil(bytes.length / 4093) }, (_, i) => bytes.subarray(i * 4093, (i + 1) * 4093))
          )
        )
      }
      yield* AcpConnection.make(pieces, { ...idle, onRequest: (_, params) => Effect.succeed(params) })
      assert.deepStrictEqual(yield* host.request("echo", { text }), { text })
    })
  )
})

describe("order", () => {
  it.effect("W3: what a response's hook registers is there for the very next frame of the same chunk", () =>
    Effect.gen(function* () {
      const routes = new Map<string, Log>()
      const lost: Log = []
      const { connection, peer } = yield* connect({
        onNotification: (_, params) => void (routes.get(of(params).sessionId) ?? lost).push(of(params).n)
      })
      const pending = yield* Effect.forkChild(
        connection.request(
          "session/new",
          { cwd: "/", mcpServers: [] },
          { onResponse: (value) => routes.set(of(value).sessionId, []) }
        ),
        { startImmediately: true }
      )
      const frame = (n: number) => ({ method: "session/update", params: { sessionId: "s", n } })
      peer.feed(frame(1), result(1, { sessionId: "s" }), frame(2), frame(3))
      yield* Fiber.join(pending)
      // Whoever awaits may go on before the next frame is read: that is what the hook is for.
      yield* until(() => lost.length + routes.get("s")!.length === 3)
      assert.deepStrictEqual([lost, routes.get("s")], [[1], [2, 3]])
    })
  )

  it.effect("hooks run in order, before whoever awaits, and onResponse only for results", () =>
    Effect.gen(function* () {
      const { connection, log, peer } = yield* connect()
      const hooks = (name: string): AcpConnection.RequestHooks => ({
        onResponse: () => void log.push(`${name} response`),
        onSettled: (exit) => void log.push(`${name} settled ${exit._tag}`)
      })
      const run = (name: string) =>
        Effect.forkChild(
          Effect.ensuring(
            connection.request(name, {}, hooks(name)),
            Effect.sync(() => log.push(`${name} awaited`))
          ),
          { startImmediately: true }
        )
      const fibers = [yield* run("a"), yield* run("b")]
      peer.feed(update(0), result(1), failed(2, 1, "no"), update(1))
      yield* Effect.forEach(fibers, (fiber) => Fiber.await(fiber))
      yield* until(() => log.includes("b awaited") && log.some((entry) => Array.isArray(entry) && entry[1].n === 1))
      const first = log.filter((entry) => typeof entry !== "string" || !entry.endsWith("awaited"))
      assert.deepStrictEqual(first, [seen(0), "a response", "a settled Success", "b settled Failure", seen(1)])
      assert.isBelow(log.indexOf("a settled Success"), log.indexOf("a awaited"))
    })
  )

  it.effect("a notification and a response keep the order of the wire under any chunking", () =>
    Effect.gen(function* () {
      const Sizes = Schema.Array(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 60 }))).check(
        Schema.isMinLength(1),
        Schema.isMaxLength(8)
      )
      const frames = [
        update(1),
        result(1, "one"),
        update("é2"),
        result(2, "two"),
        update(3),
        failed(3, 1, "x"),
        update(4)
      ]
      const wire = new TextEncoder().encode(
        frames.map((frame) => `${JSON.stringify({ jsonrpc: "2.0", ...frame })}\n`).join("")
      )
      const report = yield* Arbitrary.checkEffect(Arbitrary.schema(Sizes), (sizes) =>
        Effect.scoped(
          Effect.gen(function* () {
            const { connection, log, peer } = yield* connect()
            for (const name of ["a", "b", "c"]) {
              yield* connection.start(name, {}, { onSettled: (exit) => void log.push(`${name} ${exit._tag}`) })
            }
            for (let at = 0, turn = 0; at < wire.length; turn++) {
              const size = sizes[turn % sizes.length] ?? 1
              peer.feedBytes(wire.slice(at, at + size))
              at += size
            }
            peer.end()
            yield* connection.ended
            assert.deepStrictEqual(log, [seen(1), "a Success", seen("é2"), "b Success", seen(3), "c Failure", seen(4)])
            return true
          })
        )
      )
      assert.strictEqual((report as { readonly _tag: string })._tag, "Passed")
    })
  )

  it.effect("onChunkEnd comes once after what was read at once, and not for an unfinished line", () =>
    Effect.gen(function* () {
      const log: Log = []
      const { peer } = yield* connect({
        onNotification: (_, params) => void log.push(of(params).n),
        onChunkEnd: () => void log.push("end")
      })
      peer.feed(update(1), update(2))
      yield* until(() => log.length === 3)
      peer.feedBytes(new TextEncoder().encode('{"jsonrpc":"2.0"'))
      yield* settle
      assert.deepStrictEqual(log, [1, 2, "end"])
    })
  )

  it.effect("A5: others run while a flood that was read at once is taken, and its order stays", () =>
    Effect.gen(function* () {
      const frames = 2000
      const log: Array<unknown> = []
      const { peer } = yield* connect({ onNotification: (_, params) => void log.push(of(params).n) })
      const seenByOthers = new Set<number>()
      const other = yield* Effect.forkChild(
        Effect.forever(
          Effect.andThen(
            Effect.sync(() => seenByOthers.add(log.length)),
            Effect.yieldNow
          )
        )
      )
      peer.feed(...Array.from({ length: frames }, (_, n) => update(n)))
      yield* until(() => log.length === frames)
      yield* Fiber.interrupt(other)
      assert.deepStrictEqual(
        log,
        Array.from({ length: frames }, (_, n) => n)
      )
      // Not only none and all of them.
      assert.isAbove(seenByOthers.size, 2)
    })
  )

  it.effect("T3: what was read together with an answer is taken before whoever awaited it goes on", () =>
    Effect.gen(function* () {
      const frames = 2000
      let taken = 0
      const { connection, peer } = yield* connect({ onNotification: () => void taken++ })
      const pending = yield* connection.start("ask", {})
      const atAnswer = yield* Effect.forkChild(
        Effect.map(Effect.andThen(pending.response, Effect.yieldNow), () => taken),
        { startImmediately: true }
      )
      peer.feed(result(pending.id), ...Array.from({ length: frames }, (_, n) => update(n)))
      assert.strictEqual(yield* Fiber.join(atAnswer), frames)
    })
  )
})

describe("an error of any size", () => {
  it.effect("settles its request, with its first 64 Ki characters and without data that is larger", () =>
    Effect.gen(function* () {
      const redact = (text: string) => {
        assert.isAtMost(text.length, 64 * 1024)
        return text.replaceAll("hunter2", "***")
      }
      const { connection, peer } = yield* connect({ redact })
      const small = yield* connection.start("ask", {})
      const large = yield* connection.start("ask", {})
      const long = yield* connection.start("ask", {})
      peer.feed(failed(small.id, 1, "pw hunter2", { "key hunter2": ["hunter2"] }))
      peer.feed(
        failed(
          large.id,
          2,
          "large",
          Array.from({ length: 100_000 }, () => "a")
        )
      )
      peer.feed(failed(long.id, 3, `hunter2${"a".repeat(15_000_000)}`))
      const errors = yield* Effect.forEach([small, large, long], ({ response }) => Effect.flip(response))
      assert.deepInclude(errors[0], { code: 1, detail: "pw ***", data: { "key ***": ["***"] } })
      assert.deepInclude(errors[1], { code: 2, detail: "large", data: "<too large>" })
      assert.deepInclude(errors[2], { code: 3, detail: `***${"a".repeat(64 * 1024 - 7)}` })
      assert.strictEqual(connection.stats.defects, 0)
    })
  )
})

describe("noise", () => {
  it.effect("W2, B57: text, ANSI codes, scalars and log objects are counted, never answered, and cost no frame", () =>
    Effect.gen(function* () {
      const { connection, log, peer, problems } = yield* connect({
        redact: (text) => text.replaceAll("hunter2", "***")
      })
      peer.feed("starting up", "\u001b[32mready\u001b[0m", "42", '["a"]', '{"level":"info","id":1}', "", update(1))
      peer.feed("pw hunter2", update(2))
      yield* until(() => log.length === 2)
      yield* settle
      assert.deepStrictEqual(log, [seen(1), seen(2)])
      assert.strictEqual(connection.stats.noise, 6)
      assert.strictEqual(connection.stats.noiseSample, "pw ***")
      assert.deepStrictEqual(
        problems.map((problem) => problem._tag),
        Array.from({ length: 6 }, () => "Noise")
      )
      assert.deepStrictEqual(peer.sent, [])
    })
  )
})

describe("requests of the peer", () => {
  it.effect("an unknown method is refused with -32601 in the SDK's words", () =>
    Effect.gen(function* () {
      const { peer } = yield* connect()
      peer.feed(call(7, "fs/read_text_file"))
      yield* until(() => peer.sent.length === 1)
      assert.deepStrictEqual(bare(peer.sent), [
        failed(7, -32601, '"Method not found": fs/read_text_file', { method: "fs/read_text_file" })
      ])
    })
  )

  it.effect("each way a handler can end gives exactly one answer, and nothing of ours leaks into it", () =>
    Effect.gen(function* () {
      const cycle: Record<string, unknown> = {}
      cycle["self"] = cycle
      const ends: Record<string, () => Effect.Effect<unknown, unknown>> = {
        value: () => Effect.succeed({ ok: true }),
        nothing: () => Effect.void,
        refusal: () => Effect.fail(AcpConnection.refusal(-32000, "sign in", { how: "web" })),
        failure: () => Effect.fail(new Error("secret")),
        defect: () => Effect.die(new Error("secret")),
        throws: () => {
          throw new Error("secret")
        },
        interrupts: () => Effect.interrupt,
        cycle: () => Effect.succeed(cycle),
        bigint: () => Effect.fail(AcpConnection.refusal(-1, "odd", 1n))
      }
      const { connection, peer } = yield* connect({ onRequest: (method) => ends[method]!() })
      const names = Object.keys(ends)
      peer.feed(...names.map((name) => call(name, name)))
      yield* until(() => peer.sent.length >= names.length)
      yield* settle
      assert.strictEqual(peer.sent.length, names.length)
      const internal = { code: -32603, message: "Internal error" }
      assert.deepStrictEqual(
        Object.fromEntries(bare(peer.sent).map((frame) => [frame.id, frame.result ?? frame.error])),
        {
          value: { ok: true },
          nothing: undefined,
          refusal: { code: -32000, message: "sign in", data: { how: "web" } },
          failure: internal,
          defect: internal,
          throws: internal,
          interrupts: { code: -32800, message: "Request cancelled" },
          cycle: internal,
          bigint: internal
        }
      )
      assert.strictEqual(connection.stats.inbound, 0)
    })
  )

  it.effect("at the bound all are handled; one past it is refused, and the next is taken when one has ended", () =>
    Effect.gen(function* () {
      const gates = new Map<string, Deferred.Deferred<string>>()
      const { connection, peer, problems } = yield* connect({
        maxInbound: 3,
        onRequest: (method) => {
          const gate = Deferred.makeUnsafe<string>()
          gates.set(method, gate)
          return Deferred.await(gate)
        }
      })
      peer.feed(call(1, "a"), call(2, "b"), call(3, "c"))
      yield* until(() => gates.size === 3)
      assert.deepStrictEqual([connection.stats.inbound, peer.sent.length], [3, 0])
      peer.feed(call(4, "d"))
      yield* until(() => peer.sent.length === 1)
      assert.deepStrictEqual([peer.sent[0]?.id, peer.sent[0]?.error?.code, connection.stats.overload], [4, -32603, 1])
      assert.deepStrictEqual(
        problems.map((problem) => problem._tag),
        ["Overload"]
      )
      yield* Deferred.succeed(gates.get("b")!, "done")
      yield* until(() => peer.sent.length === 2)
      peer.feed(call(5, "e"))
      yield* until(() => gates.has("e"))
      assert.deepStrictEqual([peer.sent[1]?.id, connection.stats.inbound], [2, 3])
    })
  )

  it.effect("W7: requests are bounded in bytes too; one alone is always taken", () =>
    Effect.gen(function* () {
      const gates = new Map<string, Deferred.Deferred<string>>()
      const { connection, peer } = yield* connect({
        maxInboundBytes: 500,
        onRequest: (method) => {
          const gate = Deferred.makeUnsafe<string>()
          gates.set(method, gate)
          return Deferred.await(gate)
        }
      })
      const big = (id: number, method: string): RawPeer.Frame => ({ id, method, params: { text: "x".repeat(1000) } })
      peer.feed(big(1, "a"), call(2, "b"))
      yield* until(() => peer.sent.length === 1)
      assert.deepStrictEqual([peer.sent[0]?.id, peer.sent[0]?.error?.code, connection.stats.inbound], [2, -32603, 1])
      assert.include(peer.sent[0]?.error?.message, "500 bytes of requests")
      yield* Deferred.succeed(gates.get("a")!, "done")
      yield* until(() => connection.stats.inbound === 0)
      peer.feed(call(3, "c"), call(4, "d"), big(5, "e"))
      yield* until(() => peer.sent.length === 3)
      assert.deepStrictEqual([peer.sent[2]?.id, connection.stats.inbound, connection.stats.overload], [5, 2, 2])
    })
  )

  it.effect("W7: of a method's name and of an id no more is kept or sent back than is needed", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ capacity: 1, maxInbound: 1, onRequest: () => Effect.never })
      yield* connection.notify("fills", {})
      peer.feed(call(1), call("x".repeat(100_000)), call("short"))
      yield* until(() => connection.stats.overload === 2)
      for (let round = 0; round < 3; round++) {
        peer.read()
        yield* settle
      }
      assert.deepStrictEqual(
        peer.sent.map((frame) => frame.id),
        [undefined, "short"]
      )
      const other = yield* connect()
      other.peer.feed(call(1, "m".repeat(100_000)))
      yield* until(() => other.peer.sent.length === 1)
      assert.deepStrictEqual(other.peer.sent[0]?.error?.data, { method: "m".repeat(256) })
      assert.isBelow(JSON.stringify(other.peer.sent[0]).length, 1000)
    })
  )

  it.effect("$/cancel_request interrupts exactly the handlers of that id, which are answered -32800", () =>
    Effect.gen(function* () {
      const interrupted: Log = []
      const { connection, peer } = yield* connect({
        onRequest: (method) => Effect.onInterrupt(Effect.never, () => Effect.sync(() => interrupted.push(method)))
      })
      // The cancel shares a chunk with the request, and one id begins like another.
      peer.feed(call("a", "first"), call("a:b", "second"), call(1, "third"), call("1", "fourth"), cancelOf("a"))
      yield* until(() => peer.sent.length === 1)
      peer.feed(cancelOf(1), cancelOf("unknown"), cancelOf(null), { method: "$/cancel_request" })
      yield* until(() => peer.sent.length === 2)
      yield* settle
      assert.deepStrictEqual(interrupted, ["first", "third"])
      assert.deepStrictEqual(bare(peer.sent), [
        failed("a", -32800, "Request cancelled"),
        failed(1, -32800, "Request cancelled")
      ])
      assert.strictEqual(connection.stats.inbound, 2)
    })
  )

  it.effect("two requests under one id are both served, and one cancel ends both", () =>
    Effect.gen(function* () {
      const { peer } = yield* connect({ onRequest: () => Effect.never })
      peer.feed(call(1, "a"), call(1, "b"), cancelOf(1))
      yield* until(() => peer.sent.length === 2)
      assert.deepStrictEqual(
        peer.sent.map((frame) => [frame.id, frame.error?.code]),
        [
          [1, -32800],
          [1, -32800]
        ]
      )
    })
  )

  it.effect("a cancelled request is answered even when there is no room for the answer at first", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ capacity: 1, onRequest: () => Effect.never })
      yield* connection.notify("fills", {})
      peer.feed(call(1), cancelOf(1))
      yield* until(() => connection.stats.framesIn === 2)
      yield* settle
      peer.feed(cancelOf(1))
      yield* settle
      peer.read()
      yield* until(() => connection.stats.inbound === 0)
      peer.read()
      assert.deepStrictEqual(bare(peer.sent), [{ method: "fills", params: {} }, failed(1, -32800, "Request cancelled")])
    })
  )

  it.effect("refusals wait for room too, as many as may be handled; a flood beyond that loses them", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ capacity: 1, maxInbound: 2, onRequest: () => Effect.never })
      yield* connection.notify("fills", {})
      peer.feed(...Array.from({ length: 10 }, (_, index) => call(index)))
      yield* until(() => connection.stats.overload === 8)
      for (let round = 0; round < 10; round++) {
        peer.read()
        yield* settle
      }
      assert.deepStrictEqual(
        peer.sent.map((frame) => frame.id),
        [undefined, 2, 3]
      )
      assert.strictEqual(connection.stats.inbound, 2)
    })
  )
})

describe("cancelling our own requests", () => {
  it.effect("interrupting a request sends $/cancel_request once; its late answer is counted", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect()
      const fiber = yield* Effect.forkChild(connection.request("slow", {}), { startImmediately: true })
      yield* Fiber.interrupt(fiber)
      assert.deepStrictEqual(bare(peer.sent), [{ id: 1, method: "slow", params: {} }, cancelOf(1)])
      assert.strictEqual(connection.stats.pending, 0)
      peer.feed(failed(1, -32800, "cancelled"))
      yield* until(() => connection.stats.late === 1)
    })
  )

  it.effect("cancel of a pending request keeps waiting, does nothing once answered, and abandon forgets it", () =>
    Effect.gen(function* () {
      const settled: Log = []
      const { connection, peer } = yield* connect()
      const one = yield* connection.start("a", {}, { onSettled: (exit) => void settled.push(exit._tag) })
      yield* one.cancel
      peer.feed(result(1, "after all"))
      assert.strictEqual(yield* one.response, "after all")
      assert.strictEqual(yield* one.response, "after all")
      yield* one.cancel
      const two = yield* connection.start("b", {}, { onSettled: (exit) => void settled.push(exit._tag) })
      yield* two.abandon
      yield* two.abandon
      yield* two.cancel
      peer.feed(result(2))
      yield* until(() => connection.stats.late === 1)
      assert.deepStrictEqual(
        bare(peer.sent).map((frame) => frame.method),
        ["a", "$/cancel_request", "b"]
      )
      assert.deepStrictEqual(settled, ["Success"])
    })
  )

  it("interrupting a request at any operation leaves nothing registered and never cancels what was not sent", () => {
    const { runs } = Interruption.assertSafe({
      make: connect(),
      body: ({ connection, peer }) =>
        Effect.gen(function* () {
          yield* Effect.forkScoped(
            Effect.andThen(
              Effect.yieldNow,
              Effect.sync(() => peer.feed(update(1), result(1, "ok"), update(2)))
            )
          )
          return yield* connection.request("slow", {})
        }),
      check: ({ connection, log, peer }, exit) =>
        Effect.sync(() => {
          const methods = peer.sent.map((frame) => frame.method)
          assert.deepStrictEqual([connection.stats.pending, connection.stats.defects], [0, 0])
          if (Exit.isSuccess(exit)) assert.deepStrictEqual([exit.value, methods], ["ok", ["slow"]])
          else {
            assert.isTrue(Cause.hasInterruptsOnly(exit.cause))
            // Either it never left, or it was cancelled, or its answer had come already.
            const answered = connection.stats.framesIn === 3 && connection.stats.late === 0
            assert.include(
              methods.length === 1 && answered ? ["slow"] : ["", "slow,$/cancel_request"],
              methods.length === 1 && answered ? methods[0]! : methods.join()
            )
          }
          if (connection.stats.framesIn === 3) assert.deepStrictEqual(log, [seen(1), seen(2)])
        })
    })
    assert.isAbove(runs, 20)
  })

  it("interrupting a start that waits for room, at any operation, has sent it and registered it, or neither", () => {
    const { runs } = Interruption.assertSafe({
      make: Effect.gen(function* () {
        const setup = yield* connect({ capacity: 1 })
        yield* Effect.orDie(setup.connection.notify("fills", {}))
        return { ...setup, started: false }
      }),
      body: (world) =>
        Effect.gen(function* () {
          yield* Effect.forkScoped(
            Effect.andThen(
              Effect.yieldNow,
              Effect.sync(() => world.peer.read())
            )
          )
          // As a turn does it: nothing comes between the start and the note of it.
          yield* Effect.uninterruptible(
            Effect.map(world.connection.start("waits", {}), () => {
              world.started = true
            })
          )
        }),
      check: ({ connection, peer, started }) =>
        Effect.sync(() => {
          peer.read()
          assert.deepStrictEqual(
            peer.sent.map((frame) => frame.method),
            started ? ["fills", "waits"] : ["fills"]
          )
          assert.strictEqual(connection.stats.pending, started ? 1 : 0)
        })
    })
    assert.isAbove(runs, 10)
  })

  it("room that comes at any operation of a start that finds none is never missed", () => {
    const { runs } = Interruption.assertSafe({
      make: Effect.gen(function* () {
        const setup = yield* connect({ capacity: 1 })
        yield* Effect.orDie(setup.connection.notify("fills", {}))
        return { ...setup, started: false, struck: false, over: false }
      }),
      body: (world) =>
        Effect.gen(function* () {
          const starting = Effect.map(world.connection.start("waits", {}), () => {
            world.started = true
          })
          yield* Effect.forkScoped(starting)
          for (let round = 0; round < 20; round++) {
            if (round === 15) world.over = true
            yield* Effect.yieldNow
          }
        }),
      strike: (world) =>
        Effect.sync(() => {
          world.struck = !world.over
          world.peer.read()
        }),
      check: ({ started, struck }) => Effect.sync(() => assert.isTrue(started || !struck))
    })
    assert.isAbove(runs, 20)
  })

  for (const [name, room] of [
    ["with room for the answer", undefined],
    ["without room for the answer", 1]
  ] as const) {
    it(`a cancel at any operation of a handler, ${name}, gives exactly one answer`, () => {
      const { runs } = Interruption.assertSafe({
        make: Effect.gen(function* () {
          const work = { cleaned: 0 }
          const world = yield* connect({
            ...(room === undefined ? {} : { capacity: room }),
            onRequest: () =>
              Effect.yieldNow.pipe(
                Effect.andThen(Effect.yieldNow),
                Effect.as("done"),
                Effect.ensuring(Effect.sync(() => work.cleaned++))
              )
          })
          if (room !== undefined) yield* Effect.orDie(world.connection.notify("fills", {}))
          return { ...world, work }
        }),
        body: ({ connection, peer }) =>
          Effect.gen(function* () {
            peer.feed(call(1))
            for (let round = 0; round < 20; round++) {
              yield* Effect.yieldNow
              if (round > 10) peer.read()
            }
            assert.strictEqual(connection.stats.inbound, 0)
          }),
        strike: ({ peer }) => Effect.sync(() => peer.feed(cancelOf(1))),
        check: ({ connection, peer }) =>
          Effect.sync(() => {
            peer.read()
            const answers = peer.sent.filter((frame) => frame.method === undefined)
            assert.strictEqual(answers.length, 1)
            assert.include(["done", -32800], answers[0]!.result ?? answers[0]!.error?.code)
            assert.deepStrictEqual([connection.stats.inbound, connection.stats.defects], [0, 0])
          })
      })
      assert.isAbove(runs, 20)
    })
  }

  it("the end of the connection at any operation of a handler interrupts it and leaves nothing", () => {
    const { runs } = Interruption.assertSafe({
      make: Effect.gen(function* () {
        const work = { begun: 0, over: 0 }
        const world = yield* connect({
          onRequest: () =>
            Effect.sync(() => work.begun++).pipe(
              Effect.andThen(Effect.yieldNow),
              Effect.andThen(Effect.yieldNow),
              Effect.ensuring(Effect.sync(() => work.over++))
            )
        })
        return { ...world, work, struck: false }
      }),
      body: ({ connection, peer }) =>
        Effect.gen(function* () {
          peer.feed(call(1))
          for (let round = 0; round < 10; round++) yield* Effect.yieldNow
          assert.isAtMost(connection.stats.inbound, 1)
        }),
      strike: (world) =>
        Effect.sync(() => {
          world.struck = true
          world.peer.end()
        }),
      check: ({ connection, peer, struck, work }) =>
        Effect.sync(() => {
          assert.strictEqual(connection.isOpen(), !struck)
          assert.strictEqual(connection.stats.inbound, 0)
          assert.isAtLeast(work.over, work.begun)
          assert.isAtMost(peer.sent.length, 1)
        })
    })
    assert.isAbove(runs, 20)
  })
})

describe("a peer that does not read", () => {
  it.effect("senders wait for room in the order of their calls and go on without time passing", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ capacity: 2 })
      const fibers = yield* Effect.forEach([1, 2, 3, 4, 5, 6], (n) =>
        Effect.forkChild(n % 2 === 0 ? connection.notify(`n${n}`, {}) : connection.start(`n${n}`, {}), {
          startImmediately: true
        })
      )
      yield* settle
      assert.strictEqual(connection.stats.framesOut, 2)
      // There is room for one, but nobody was told yet: whoever calls now must not overtake those who wait.
      peer.read(1, true)
      const last = yield* Effect.forkChild(connection.notify("last", {}), { startImmediately: true })
      for (let round = 0; round < 5; round++) {
        yield* settle
        peer.read()
      }
      yield* Effect.forEach([...fibers, last], (fiber) => Fiber.join(fiber))
      peer.read()
      assert.deepStrictEqual(
        peer.sent.map((frame) => frame.method),
        ["n1", "n2", "n3", "n4", "n5", "n6", "last"]
      )
    })
  )

  it.effect("W7: a small frame does not overtake a large one that waits for room, and goes when that gives up", () =>
    Effect.gen(function* () {
      const [near, far] = yield* AcpTransport.makePair({ maxBytes: 200 })
      const connection = yield* AcpConnection.make(near, { onNotification: () => {}, onRequest: () => Effect.void })
      const fork = (method: string, size: number) =>
        Effect.forkChild(connection.notify(method, { text: "x".repeat(size) }), { startImmediately: true })
      const sent = () => connection.stats.notificationsOut
      yield* fork("first", 0)
      yield* fork("large", 150)
      yield* fork("small", 0)
      const larger = yield* fork("larger", 180)
      yield* fork("last", 0)
      yield* settle
      assert.strictEqual(sent(), 1)
      const lines = yield* Stream.runCollect(
        Stream.take(Stream.splitLines(Stream.decodeText(far.incoming)), 2).pipe(Stream.tap(() => settle))
      )
      assert.deepStrictEqual(
        lines.map((line) => JSON.parse(line).method),
        ["first", "large"]
      )
      assert.strictEqual(sent(), 3)
      yield* Fiber.interrupt(larger)
      yield* settle
      assert.strictEqual(sent(), 4)
    })
  )

  it.effect("interrupting whoever waits leaves no trace and lets the others go on", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ capacity: 1 })
      yield* connection.notify("fills", {})
      const fork = (method: string) => Effect.forkChild(connection.request(method, {}), { startImmediately: true })
      const [gone, stays] = [yield* fork("gone"), yield* fork("stays")]
      assert.strictEqual(connection.stats.pending, 0)
      yield* Fiber.interrupt(gone)
      peer.read()
      yield* until(() => connection.stats.pending === 1)
      peer.read()
      assert.deepStrictEqual(
        peer.sent.map((frame) => frame.method),
        ["fills", "stays"]
      )
      peer.feed(result(peer.sent[1]!.id!, "answer"))
      assert.strictEqual(yield* Fiber.join(stays), "answer")
    })
  )

  it.effect("whoever waits for room fails with the connection's end", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect({ capacity: 1 })
      yield* connection.notify("fills", {})
      const settled: Log = []
      const hooks = { onSettled: () => void settled.push("settled") }
      const fibers = [
        yield* Effect.forkChild(connection.request("a", {}, hooks), { startImmediately: true }),
        yield* Effect.forkChild(connection.notify("b", {}), { startImmediately: true })
      ]
      peer.end()
      for (const fiber of fibers)
        assert.strictEqual(errorIn(yield* Fiber.await<unknown, AcpError.RequestFailure>(fiber))._tag, "ProcessExited")
      assert.deepStrictEqual(settled, [])
    })
  )

  it.effect("a transport that can't tell when there is room is asked again", () =>
    Effect.gen(function* () {
      const peer = yield* RawPeer.make(1)
      const connection = yield* AcpConnection.make(
        { ...peer.transport, onRoom: undefined },
        { onNotification: () => {}, onRequest: () => Effect.void }
      )
      yield* connection.notify("a", {})
      const fiber = yield* Effect.forkChild(connection.notify("b", {}), { startImmediately: true })
      peer.read()
      yield* TestClock.adjust("10 millis")
      yield* Fiber.join(fiber)
    })
  )

  it.effect("more frames than the in-memory pair holds pass without time passing", () =>
    Effect.gen(function* () {
      const [near, far] = yield* AcpTransport.makePair({ capacity: 4 })
      const got: Log = []
      const host = yield* AcpConnection.make(near, {
        onNotification: (_, params) => void got.push(of(params).n),
        onRequest: () => Effect.void
      })
      const agent = yield* AcpConnection.make(far, { onNotification: () => {}, onRequest: () => Effect.void })
      yield* Effect.forEach(
        Array.from({ length: 500 }, (_, n) => n),
        (n) => agent.notify("_count", { n }),
        { concurrency: "unbounded", discard: true }
      )
      yield* until(() => got.length === 500)
      assert.deepStrictEqual(
        got,
        Array.from({ length: 500 }, (_, n) => n)
      )
      assert.isTrue(host.isOpen())
    })
  )
})

describe("the end", () => {
  it.effect("the buffered frames come first, then every request fails with one reason and its evidence", () =>
    Effect.gen(function* () {
      const { connection, log, peer } = yield* connect()
      const fibers = yield* Effect.forEach(["a", "b", "c"], (method) =>
        Effect.forkChild(connection.request(method, {}), { startImmediately: true })
      )
      peer.feed(update(1))
      yield* until(() => log.length === 1)
      yield* TestClock.adjust("3 seconds")
      peer.feed(update(2), result(2, "in time"))
      // The last line has no newline.
      peer.feedBytes(new TextEncoder().encode(JSON.stringify({ jsonrpc: "2.0", ...update(3) })))
      peer.end(AcpTransport.exited({ signal: "SIGKILL", stderrTail: "boom" }))
      const [a, b, c] = yield* Effect.forEach(fibers, (fiber) => Fiber.await(fiber))
      assert.deepStrictEqual(log, [seen(1), seen(2), seen(3)])
      assert.deepStrictEqual(b, Exit.succeed("in time"))
      const error = errorIn(a!)
      assert.strictEqual(errorIn(c!), error)
      assert(error._tag === "ProcessExited")
      assert.deepStrictEqual(
        [error.code, error.signal, error.stderrTail, error.sinceLastFrameMillis],
        [null, "SIGKILL", "boom", 0]
      )
      assert.strictEqual(yield* connection.ended, error)
      assert.strictEqual(connection.endReason(), error)
      assert.strictEqual(connection.isOpen(), false)
      assert.strictEqual(errorIn(yield* Effect.exit(connection.request("late", {}))), error)
      assert.strictEqual(errorIn(yield* Effect.exit(connection.notify("late", {}))), error)
    })
  )

  it.effect("the time since the last frame is told", () =>
    Effect.gen(function* () {
      const { connection, log, peer } = yield* connect()
      peer.feed(update(1))
      yield* until(() => log.length === 1)
      yield* TestClock.adjust("5 seconds")
      peer.end()
      const end = yield* connection.ended
      assert(end._tag === "ProcessExited")
      assert.strictEqual(end.sinceLastFrameMillis, 5000)
    })
  )

  it.effect("requests fail before the handlers that still run are interrupted, and those send nothing", () =>
    Effect.gen(function* () {
      const order: Log = []
      const { connection, peer } = yield* connect({
        onRequest: () => Effect.onInterrupt(Effect.never, () => Effect.sync(() => order.push("handler interrupted")))
      })
      yield* connection.start("a", {}, { onSettled: () => void order.push("request failed") })
      peer.feed(call(1))
      yield* until(() => connection.stats.inbound === 1)
      peer.end()
      yield* connection.ended
      yield* until(() => connection.stats.inbound === 0)
      assert.deepStrictEqual(order, ["request failed", "handler interrupted"])
      assert.strictEqual(peer.sent.length, 1)
    })
  )

  it.effect("B18: close fails what waits with HostClosed, closes the transport, and drops what comes after", () =>
    Effect.gen(function* () {
      const { connection, log, peer } = yield* connect({ onRequest: () => Effect.never })
      const pending = yield* Effect.forkChild(connection.request("a", {}), { startImmediately: true })
      peer.feed(call(9))
      yield* until(() => connection.stats.inbound === 1)
      peer.feed(update(1))
      yield* connection.close("the session was closed")
      yield* connection.close("again")
      const error = errorIn(yield* Fiber.await(pending))
      assert(error._tag === "HostClosed")
      assert.strictEqual(error.reason, "the session was closed")
      yield* settle
      assert.deepStrictEqual([log, peer.closed, connection.stats.inbound], [[], 2, 0])
    })
  )

  it.effect("a handler may close the connection: the rest of its chunk is dropped", () =>
    Effect.gen(function* () {
      let connection: AcpConnection.AcpConnection | undefined
      const log: Log = []
      const setup = yield* connect({
        onNotification: (_, params) => {
          log.push(of(params).n)
          if (of(params).n === 2) Effect.runFork(connection!.close("enough"))
        },
        onRequest: () => Effect.andThen(connection!.close("enough"), Effect.never)
      })
      connection = setup.connection
      setup.peer.feed(update(1), update(2), update(3), call(1))
      yield* connection.ended
      yield* settle
      assert.deepStrictEqual([log, connection.stats.inbound, setup.peer.sent], [[1, 2], 0, []])
    })
  )

  it.effect("a request's handler that closes the connection is itself interrupted", () =>
    Effect.gen(function* () {
      let connection: AcpConnection.AcpConnection | undefined
      let over = 0
      const setup = yield* connect({
        onRequest: () =>
          Effect.andThen(connection!.close("enough"), Effect.never).pipe(Effect.ensuring(Effect.sync(() => over++)))
      })
      connection = setup.connection
      setup.peer.feed(call(1))
      yield* until(() => over === 1)
      assert.strictEqual(connection.stats.inbound, 0)
    })
  )

  it.effect("closing the scope fails what waits, interrupts handlers, and waits for them", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      let over = false
      const { connection, peer } = yield* connect({
        onRequest: () => Effect.onInterrupt(Effect.never, () => Effect.sync(() => (over = true)))
      }).pipe(Scope.provide(scope))
      const pending = yield* Effect.forkChild(connection.request("a", {}), { startImmediately: true })
      peer.feed(call(1))
      yield* until(() => connection.stats.inbound === 1)
      yield* Scope.close(scope, Exit.void)
      assert.isTrue(over)
      assert.strictEqual(errorIn(yield* Fiber.await(pending))._tag, "HostClosed")
      assert.strictEqual((yield* connection.ended)._tag, "HostClosed")
    })
  )

  it.effect("a transport with a bug ends the connection in place of leaving everyone waiting", () =>
    Effect.gen(function* () {
      const peer = yield* RawPeer.make()
      const connection = yield* AcpConnection.make(
        { ...peer.transport, incoming: Stream.die(new Error("bug")) },
        { onNotification: () => {}, onRequest: () => Effect.void }
      )
      const exit = yield* Effect.exit(connection.request("a", {}))
      assert.strictEqual(errorIn(exit)._tag, "HostClosed")
      assert.strictEqual(connection.stats.defects, 1)
    })
  )
})

describe("callbacks that throw", () => {
  it.effect("cost their own frame, are counted, and the reader goes on", () =>
    Effect.gen(function* () {
      const log: Log = []
      const { connection, peer } = yield* connect({
        onNotification: (_, params) => {
          if (of(params).n === 1) throw new Error("bug")
          log.push(of(params).n)
        },
        onProblem: () => {
          throw new Error("bug")
        },
        onChunkEnd: () => {
          throw new Error("bug")
        }
      })
      peer.feed(update(1), "noise", update(2))
      peer.feed(update(3))
      yield* until(() => log.length === 2)
      assert.deepStrictEqual(log, [2, 3])
      yield* until(() => connection.stats.defects >= 3)
      assert.isTrue(connection.isOpen())
    })
  )

  it.effect("a hook that throws makes its request die, at the connection's end too, and no other request", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect()
      const bug = () => {
        throw new Error("bug")
      }
      const settled: Log = []
      const onSettled = (exit: Exit.Exit<unknown, unknown>) => void settled.push(exit._tag)
      const fibers = yield* Effect.forEach(
        [{ onResponse: bug, onSettled }, { onSettled: bug }, { onSettled: bug }, { onSettled }],
        (hooks) => Effect.forkChild(connection.request("a", {}, hooks), { startImmediately: true })
      )
      peer.feed(result(1), result(2))
      const dies = (fiber: Fiber.Fiber<unknown, unknown>) =>
        Effect.map(Fiber.await(fiber), (exit) => Exit.isFailure(exit) && Cause.hasDies(exit.cause))
      assert.isTrue(yield* dies(fibers[0]!))
      assert.isTrue(yield* dies(fibers[1]!))
      peer.end()
      assert.isTrue(yield* dies(fibers[2]!))
      assert.strictEqual(errorIn(yield* Fiber.await(fibers[3]!))._tag, "ProcessExited")
      assert.deepStrictEqual([settled, connection.stats.defects], [["Failure", "Failure"], 3])
    })
  )

  it.effect("params that are not JSON make the request die with nothing registered or sent", () =>
    Effect.gen(function* () {
      const { connection, peer } = yield* connect()
      assert.isTrue(Exit.isFailure(yield* Effect.exit(connection.request("a", { n: 1n }))))
      assert.isTrue(Exit.isFailure(yield* Effect.exit(connection.notify("a", { n: 1n }))))
      assert.deepStrictEqual([connection.stats.pending, peer.sent], [0, []])
    })
  )

  it.effect("nothing is called before make has returned, even when the transport has frames already", () =>
    Effect.gen(function* () {
      const peer = yield* RawPeer.make()
      peer.feed("noise", update(1))
      const log: Log = []
      const connection: AcpConnection.AcpConnection = yield* AcpConnection.make(peer.transport, {
        onNotification: () => void log.push(connection.stats.framesIn),
        onRequest: () => Effect.void,
        onProblem: () => void log.push(connection.stats.noise)
      })
      yield* until(() => log.length === 2)
      assert.deepStrictEqual([log, connection.stats.defects], [[1, 2], 0])
    })
  )
})
