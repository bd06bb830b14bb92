// A sidecar in another process, as its app sees it: the connection, its loss, calls that are given up, slow readers.
import { assert, describe, it } from "@effect/vitest"
import {
  type Session,
  Sidecar,
  SidecarClient,
  type SidecarError,
  type SidecarEvent,
  SidecarLimits,
  type Vm
} from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Redacted from "effect/Redacted"
import * as Scope from "effect/Scope"
import * as Socket from "effect/socket/Socket"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { pair } from "../src/testing/internal/memorySocket.ts"
import * as Clients from "./support/clients.ts"
import { beside, chunk, idle, is, provided, textOf, until } from "./support/events.ts"
import { hanging, stuck } from "./support/turns.ts"

const answering = { prompt: () => Effect.succeed("end_turn") } as const
const withSidecar = (options: TestSidecar.Options = { script: answering }) => provided(TestSidecar.layer(options))
const root = { root: "/work" }
const { profile } = TestSidecar
const tagOf = (error: unknown): string => (error as { readonly _tag: string })._tag

const welcome = {
  _tag: "Welcome",
  acpSidecar: 1,
  sidecarId: "acp-sidecar-1",
  version: "0.0.0",
  key: "key",
  limits: SidecarLimits.plain(SidecarLimits.defaults)
}

/** A client on a connection whose other end the test plays. */
const against = Effect.fnUntraced(function* (options: Partial<SidecarClient.Options> = {}, capacity = 64) {
  const [ours, theirs] = yield* pair(capacity)
  const scope = yield* Scope.fork(yield* Effect.scope)
  const server = yield* Scope.provide(Clients.raw(theirs), scope)
  const connecting = yield* beside(Effect.result(SidecarClient.connect(ours, { client: "test", ...options })))
  return { ...server, connecting, close: Scope.close(scope, Exit.void) }
})

describe("a server that is none", () => {
  const cases: ReadonlyArray<readonly [name: string, answer: unknown, detail: RegExp]> = [
    ["garbage", "SSH-2.0-OpenSSH\r\n", /no sidecar/],
    ["an endless line", "x".repeat(65_537), /more than 65536 bytes/],
    ["an unknown answer", { _tag: "Hello" }, /no sidecar/],
    ["a welcome without limits that make sense", { ...welcome, limits: { maxVms: -1 } }, /limits make no sense/],
    ["a welcome without a key", { ...welcome, key: undefined }, /no sidecar/]
  ]
  it.effect.each(cases)("is unreachable when it answers %s", ([, answer, detail]) =>
    Effect.gen(function* () {
      const server = yield* against({ token: Redacted.make("sentinel") })
      yield* server.read
      yield* server.write(answer)
      const result = yield* Fiber.join(server.connecting)
      assert.isTrue(result._tag === "Failure" && result.failure._tag === "SidecarUnreachable")
      if (result._tag !== "Failure") return
      assert.match(result.failure.message, detail)
      assert.notInclude(JSON.stringify(result.failure) + result.failure.message, "sentinel")
      // Its end of the connection is closed at once, and not with the caller's scope.
      assert.isUndefined(yield* server.read)
    })
  )

  it.effect("is unreachable when it says nothing for 10 seconds, or as long as it is given", () =>
    Effect.gen(function* () {
      for (const [handshakeTimeout, millis] of [
        [undefined, 10_000],
        ["2 seconds", 2000]
      ] as const) {
        const server = yield* against({ handshakeTimeout })
        yield* server.read
        yield* TestClock.adjust(millis - 1)
        assert.isUndefined(server.connecting.pollUnsafe())
        yield* TestClock.adjust(1)
        const result = yield* Fiber.join(server.connecting)
        assert.isTrue(result._tag === "Failure")
        if (result._tag === "Failure") assert.match(result.failure.message, new RegExp(`within ${millis} ms`))
        assert.isUndefined(yield* server.read)
      }
    })
  )

  it.effect("is unreachable when it closes, and when it does not even take the hello", () =>
    Effect.gen(function* () {
      const closing = yield* against()
      yield* closing.close
      const result = yield* Fiber.join(closing.connecting)
      assert.isTrue(result._tag === "Failure" && result.failure._tag === "SidecarUnreachable")
      const full = yield* against({}, 0)
      yield* TestClock.adjust("10 seconds")
      assert.strictEqual((yield* Fiber.join(full.connecting))._tag, "Failure")
    })
  )

  it.effect("leaves nothing when the app gives up connecting", () =>
    Effect.gen(function* () {
      const server = yield* against()
      yield* server.read
      yield* Fiber.interrupt(server.connecting)
      assert.isUndefined(yield* server.read)
    })
  )
})

describe("a server that breaks the protocol", () => {
  const cases: ReadonlyArray<readonly [name: string, said: unknown, detail: RegExp]> = [
    ["what is no JSON", "{]\n", /not JSON/],
    ["a scalar", "1\n", /no object/],
    ["an unknown kind", { _tag: "__proto__" }, /kind that there is not/],
    ["that something is wrong", { _tag: "Defect", defect: "The connection is closed: so." }, /closed: so/]
  ]
  it.effect.each(cases)("is lost when it says %s", ([, said, detail]) =>
    Effect.gen(function* () {
      const server = yield* against()
      yield* server.read
      yield* server.write(welcome)
      const result = yield* Fiber.join(server.connecting)
      if (result._tag === "Failure") return assert.fail(result.failure.message)
      const opening = yield* beside(Effect.flip(result.success.sidecar.openVm(root)))
      yield* server.read
      yield* server.write(said)
      assert.match((yield* result.success.lost).detail, detail)
      assert.strictEqual((yield* Fiber.join(opening))._tag, "Disposed")
    })
  )

  it.effect("is lost when it sends more of a stream than it was asked for", () =>
    Effect.gen(function* () {
      const server = yield* against()
      yield* server.read
      yield* server.write(welcome)
      const result = yield* Fiber.join(server.connecting)
      if (result._tag === "Failure") return assert.fail(result.failure.message)
      const { lost, sidecar } = result.success
      yield* beside(Stream.runForEach(sidecar.events, () => Effect.never))
      const { id } = (yield* server.read)!
      const address = { sidecarId: "acp-sidecar-1" }
      const piece = {
        _tag: "Chunk",
        requestId: id,
        values: [{ number: 1, at: 1, kind: "disposing", address, detail: "" }]
      }
      yield* server.write(piece)
      yield* idle
      yield* server.write(piece)
      yield* idle
      yield* server.write(piece)
      assert.match((yield* lost).detail, /more of a stream than was asked for/)
    })
  )

  it.effect("gets no answer to what there is not, and harms no other call by a broken one", () =>
    Effect.gen(function* () {
      const server = yield* against()
      yield* server.read
      yield* server.write(welcome)
      const result = yield* Fiber.join(server.connecting)
      if (result._tag === "Failure") return assert.fail(result.failure.message)
      const { sidecar } = result.success
      yield* server.write({ _tag: "Exit", requestId: "unknown", exit: { _tag: "Success", value: 1 } })
      yield* server.write({ _tag: "Chunk", requestId: 77_777, values: [1] })
      const describing = yield* beside(sidecar.describe)
      const { id } = (yield* server.read)!
      yield* server.write({
        _tag: "Exit",
        requestId: id,
        exit: { _tag: "Success", value: { state: "ready", vms: [] } }
      })
      assert.strictEqual((yield* Fiber.join(describing)).state, "ready")
    })
  )
})

interface Everything {
  readonly served: Clients.Served
  readonly connection: SidecarClient.Connection
  readonly vm: Vm.Vm
  readonly session: Session.Session
  readonly turn: Session.Turn
  /** Breaks the connection. */
  readonly cut: Effect.Effect<void>
}

/** Ends a connection as if the process at one end had been killed. */
const breaking = (socket: Socket.Socket) =>
  Effect.scoped(Effect.flatMap(socket.writer, ({ write }) => Effect.orDie(write(new Socket.CloseEvent(1006)))))

const everything = Effect.fnUntraced(function* (): Effect.fn.Return<
  Everything,
  unknown,
  Sidecar.Sidecar | TestSidecar.TestSidecar | Scope.Scope
> {
  const served = yield* Clients.serve()
  const [ours, theirs] = yield* pair()
  yield* beside(served.server.serve(theirs))
  const connection = yield* SidecarClient.connect(ours, { client: "test" })
  const vm = yield* connection.sidecar.openVm(root)
  const session = yield* vm.openSession({ agent: profile })
  const turn = yield* session.submit("one")
  yield* turn.dispatched
  return { served, connection, vm, session, turn, cut: Effect.andThen(breaking(theirs), idle) }
})

const exitTag = (exit: Exit.Exit<unknown, unknown> | undefined): string => {
  if (exit === undefined) return "still waiting"
  const failure = Exit.findErrorOption(exit)
  return failure._tag === "Some" ? tagOf(failure.value) : Exit.isSuccess(exit) ? "success" : "a defect or interruption"
}

describe("L4: a sidecar that is lost", () => {
  it.effect("ends each call that is pending at once, typed", () =>
    Effect.gen(function* () {
      const { connection, cut, session, turn, vm } = yield* everything()
      const queued = yield* session.submit("two")
      const calls: Readonly<Record<string, Effect.Effect<unknown, unknown, Scope.Scope>>> = {
        "TurnFailed by await": turn.await,
        "TurnFailed by prompt": session.prompt("three"),
        "success by outcome": queued.outcome,
        "success by dispatched": queued.dispatched,
        "success by cancel": turn.cancel,
        "success by the session's cancel": session.cancel(),
        "success by lost": connection.lost,
        "AgentCallFailed by setMode": session.setMode("m")
      }
      const fibers = yield* Effect.forEach(Object.entries(calls), ([name, call]) =>
        Effect.map(beside(call), (fiber) => [name, fiber] as const)
      )
      yield* idle
      yield* cut
      for (const [name, fiber] of fibers) assert.strictEqual(exitTag(fiber.pollUnsafe()), name.split(" ")[0], name)
      for (const one of [turn, queued]) {
        const outcome = yield* one.outcome
        assert.isTrue(outcome._tag === "Failed" && outcome.error.reason._tag === "SidecarLost", outcome._tag)
      }
      yield* session.close
      yield* vm.close
    }).pipe(withSidecar({ script: { ...stuck, request: () => Effect.never } }))
  )

  it.effect("ends openings and probes that are pending at once, typed", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const [ours, theirs] = yield* pair()
      const serving = yield* beside(served.server.serve(theirs))
      const { sidecar } = yield* SidecarClient.connect(ours, { client: "test" })
      const vm = yield* sidecar.openVm(root)
      const opening = yield* beside(Effect.flip(vm.openSession({ agent: profile })))
      const probing = yield* beside(Effect.flip(vm.probe({ agent: profile })))
      yield* idle
      yield* Fiber.interrupt(serving)
      for (const waiting of [Fiber.join(opening), Fiber.join(probing)]) {
        const error = (yield* waiting as Effect.Effect<unknown>) as SidecarError.Disposed
        assert.strictEqual(error._tag, "Disposed")
        assert.match(String(error.detail), /connection was closed/)
      }
    }).pipe(withSidecar({ script: { newSession: () => Effect.never } }))
  )

  it.effect("answers each later call at once, typed, and reads disposed", () =>
    Effect.gen(function* () {
      const { connection, cut, session, turn, vm } = yield* everything()
      const { sidecar } = connection
      yield* sidecar.describe
      yield* cut
      const { detail } = yield* connection.lost
      assert.deepStrictEqual(yield* connection.lost, yield* connection.lost)
      const failures: ReadonlyArray<readonly [string, Effect.Effect<unknown, unknown, Scope.Scope>]> = [
        ["Disposed", sidecar.openVm(root)],
        ["Disposed", vm.openSession({ agent: profile })],
        ["Disposed", vm.probe({ agent: profile })],
        ["SessionUnusable", session.submit("x")],
        ["SessionUnusable", session.prompt("x")],
        ["AgentCallFailed", session.setMode("m")],
        ["AgentCallFailed", session.setConfigOption("c", true)],
        ["PermissionNotPending", session.answer("p", "allow")],
        ["TurnFailed", turn.await],
        ["NotFound", vm.session(session.id)],
        ["NotFound", connection.vm(vm.id)],
        ["NotFound", connection.session(session.id)]
      ]
      for (const [tag, call] of failures) {
        const error = yield* Effect.flip(call)
        assert.strictEqual(tagOf(error), tag)
        if (tag === "Disposed") assert.strictEqual((error as SidecarError.Disposed).detail, detail)
        if (tag === "SessionUnusable") {
          assert.strictEqual((error as SidecarError.SessionUnusable).reason, "sidecar_lost")
        }
      }
      assert.deepInclude(yield* sidecar.describe, {
        sidecarId: sidecar.id,
        state: "disposed",
        activeVmCount: 0,
        activePrompts: 0,
        vms: [],
        limits: SidecarLimits.plain(sidecar.limits)
      })
      assert.deepInclude(yield* session.describe, { state: "ended", turns: [] })
      assert.deepInclude(yield* vm.describe, { vmId: vm.id, sessions: [] })
      assert.deepStrictEqual(yield* session.cancel(), { _tag: "NoActiveTurn" })
      assert.deepStrictEqual(yield* session.pendingPermissions, [])
      assert.strictEqual((yield* turn.cancel)._tag, "Failed")
      yield* session.close
      yield* vm.close
      yield* sidecar.dispose
    }).pipe(withSidecar({ script: stuck }))
  )

  it.effect("ends streams with one end of each turn and of the session, numbered on, and events with disposed", () =>
    Effect.gen(function* () {
      const { connection, cut, session, turn } = yield* everything()
      const queued = yield* session.submit("two")
      const events = yield* beside(Stream.runCollect(connection.sidecar.events))
      const updates = yield* beside(Stream.runCollect(session.updates))
      const ofTurn = yield* beside(Stream.runCollect(turn.updates))
      yield* idle
      yield* cut
      const all = Array.from(yield* Fiber.join(updates))
      const ends = all.filter(is("TurnEnded"))
      assert.deepStrictEqual(
        ends.map(({ turnId }) => turnId),
        [turn.id, queued.id]
      )
      for (const { outcome } of ends) assert.strictEqual(outcome._tag, "Failed")
      const last = all.at(-1)!
      assert.isTrue(last._tag === "SessionEnded" && last.reason === "sidecar_lost", last._tag)
      assert.deepStrictEqual(
        all.map((event) => ("number" in event ? event.number : -1)),
        all.map((_, index) => index + 1)
      )
      const one = Array.from(yield* Fiber.join(ofTurn))
      assert.deepStrictEqual(one.filter(is("TurnEnded")).length, 1)
      assert.strictEqual(one.at(-1)!._tag, "TurnEnded")
      const seen = Array.from(yield* Fiber.join(events))
      assert.strictEqual(seen.at(-1)!.kind, "disposed")
      // And those that are begun later end as well.
      const later = Array.from(yield* Stream.runCollect(session.updates))
      assert.deepStrictEqual(
        later.map(({ _tag }) => _tag),
        ["SessionEnded"]
      )
    }).pipe(withSidecar({ script: stuck }))
  )

  it.effect("says nothing of a loss when the app closed the connection, or disposed", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const scope = yield* Scope.make()
      const { lost, sidecar } = yield* Scope.provide(served.connect(), scope)
      const losing = yield* beside(lost)
      yield* Scope.close(scope, Exit.void)
      const error = yield* Effect.flip(sidecar.openVm(root))
      assert.deepInclude(error, { _tag: "Disposed", detail: "this app has closed the connection" })
      const other = yield* served.connect()
      const losingOther = yield* beside(other.lost)
      yield* other.sidecar.dispose
      yield* idle
      assert.isUndefined(losing.pollUnsafe())
      assert.isUndefined(losingOther.pollUnsafe())
    }).pipe(withSidecar())
  )

  it.effect("is one that was silent for 30 seconds, also when it does not take what is sent", () =>
    Effect.gen(function* () {
      for (const capacity of [64, 1]) {
        const server = yield* against({}, capacity)
        yield* server.read
        yield* server.write(welcome)
        const result = yield* Fiber.join(server.connecting)
        if (result._tag === "Failure") return assert.fail(result.failure.message)
        const { lost, sidecar } = result.success
        const waiting = yield* beside(
          Effect.all(
            Array.from({ length: 5 }, () => Effect.flip(sidecar.openVm(root))),
            { concurrency: "unbounded" }
          )
        )
        yield* TestClock.adjust("25 seconds")
        yield* server.write({ _tag: "Pong" })
        yield* TestClock.adjust("25 seconds")
        assert.isUndefined(waiting.pollUnsafe())
        yield* TestClock.adjust("15 seconds")
        assert.match((yield* lost).detail, /said nothing for 30000 ms/)
        for (const error of yield* Fiber.join(waiting)) assert.strictEqual(error._tag, "Disposed")
      }
    })
  )

  it.effect("C03: is disposed within the grace when an agent works for good, and at once when it is idle", () =>
    Effect.gen(function* () {
      const { connection, served, turn } = yield* everything()
      const disposing = yield* beside(connection.sidecar.dispose)
      yield* TestClock.adjust("9 seconds")
      assert.isUndefined(disposing.pollUnsafe())
      yield* TestClock.adjust("4 seconds")
      yield* Fiber.join(disposing)
      assert.strictEqual((yield* turn.outcome)._tag, "Cancelled")
      assert.strictEqual((yield* connection.sidecar.describe).state, "disposed")
      yield* served.server.disposed
    }).pipe(withSidecar({ script: stuck }))
  )
})

describe("a call that is given up", () => {
  it.effect("is given up in the sidecar, and leaves nothing", () =>
    Effect.gen(function* () {
      const { alive } = yield* TestSidecar.TestSidecar
      const embedded = yield* Sidecar.Sidecar
      const { sidecar } = yield* (yield* Clients.serve()).connect()
      const vm = yield* sidecar.openVm(root)
      const opening = yield* beside(vm.openSession({ agent: profile }))
      yield* idle
      assert.strictEqual(alive(), 1)
      yield* Fiber.interrupt(opening)
      yield* idle
      assert.strictEqual(alive(), 0)
      assert.deepInclude((yield* embedded.describe).vms[0], { opening: 0, sessions: [] })
      const probing = yield* beside(vm.probe({ agent: profile }))
      yield* idle
      assert.strictEqual(alive(), 1)
      yield* Fiber.interrupt(probing)
      yield* idle
      assert.strictEqual(alive(), 0)
    }).pipe(withSidecar({ script: { newSession: () => Effect.never } }))
  )

  it.effect("cancels its turn when it is a prompt", () =>
    Effect.gen(function* () {
      const { session } = yield* everything()
      yield* session.cancel()
      const running = yield* beside(session.prompt("two"))
      yield* until(session, "TurnStarted", 2)
      yield* Fiber.interrupt(running)
      const ended = yield* until(session, "TurnEnded", 2)
      assert.deepInclude(ended.outcome, { _tag: "Cancelled", by: "interruption" })
    }).pipe(withSidecar({ script: hanging }))
  )
})

describe("A5: a reader that stalls", () => {
  const flood = { prompt: "manual" } as const

  it.effect("holds up nothing else on its connection, and lags like any other (W7)", () =>
    Effect.gen(function* () {
      const { connection, session, turn } = yield* everything()
      const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
      const prompt = yield* Queue.take(agent.prompts)
      const seen: Array<SidecarEvent.SessionEvent> = []
      let isStalled = true
      const stalled = yield* beside(
        session.updates.pipe(
          Stream.tap((event) =>
            Effect.suspend(() => (isStalled && event._tag === "Update" ? Effect.never : Effect.void))
          ),
          Stream.runDrain
        )
      )
      const slow = yield* Queue.unbounded<void>()
      const late = yield* beside(
        session.updates.pipe(
          Stream.takeUntil(is("TurnEnded")),
          Stream.runForEach((event) => {
            seen.push(event)
            return event._tag === "Update" && isStalled ? Effect.asVoid(Queue.take(slow)) : Effect.void
          })
        )
      )
      // Slowly enough for all that is between the two to take what it can.
      for (let index = 0; index < 500; index++) {
        yield* prompt.update(chunk(`${index}`))
        if (index % 10 === 0) yield* idle
      }
      // All of these go through meanwhile.
      const quick = yield* Stream.runCollect(Stream.takeUntil(session.updates, (event) => textOf(event) === "499"))
      assert.isAbove(Array.from(quick).length, 1)
      const other = yield* (yield* connection.sidecar.openVm(root)).openSession({ agent: profile })
      const theirs = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
      const asked = yield* other.submit("x")
      yield* Effect.flatMap(Queue.take(theirs.prompts), (one) => one.end())
      assert.strictEqual((yield* asked.outcome)._tag, "Completed")
      assert.strictEqual((yield* connection.sidecar.describe).vms.length, 2)
      yield* prompt.end()
      assert.strictEqual((yield* turn.outcome)._tag, "Completed")
      isStalled = false
      yield* Queue.offer(slow, undefined)
      yield* Fiber.join(late)
      const lags = seen.filter((event) => event._tag === "Lagged")
      assert.isAbove(lags.length, 0)
      let next = 1
      for (const event of seen) {
        assert.strictEqual(event._tag === "Lagged" ? event.from : event.number, next)
        next = event._tag === "Lagged" ? event.to : event.number + 1
      }
      assert.isBelow(seen.length, 400)
      yield* Fiber.interrupt(stalled)
    }).pipe(withSidecar({ script: flood, limits: { mailboxCapacity: 50 } }))
  )

  it.effect("gets its events, and others their answers, from a server that reads nothing meanwhile", () =>
    Effect.gen(function* () {
      const server = yield* against({}, 1)
      yield* server.read
      yield* server.write(welcome)
      const result = yield* Fiber.join(server.connecting)
      if (result._tag === "Failure") return assert.fail(result.failure.message)
      const { sidecar } = result.success
      const seen: Array<string> = []
      yield* beside(Stream.runForEach(sidecar.events, ({ kind }) => Effect.sync(() => void seen.push(kind))))
      const events = yield* server.read
      const describing = yield* beside(sidecar.describe)
      const describe = yield* server.read
      // More than the connection keeps.
      for (let index = 0; index < 5; index++) yield* beside(Effect.exit(sidecar.openVm(root)))
      yield* idle
      const address = { sidecarId: "acp-sidecar-1" }
      const values = [{ number: 1, at: 1, kind: "disposing", address, detail: "" }]
      yield* server.write({ _tag: "Chunk", requestId: events?.["id"], values })
      yield* server.write({
        _tag: "Exit",
        requestId: describe?.["id"],
        exit: { _tag: "Success", value: { state: "ready", vms: [] } }
      })
      assert.strictEqual((yield* Fiber.join(describing)).state, "ready")
      assert.deepStrictEqual(seen, ["disposing"])
    })
  )

  it.effect("gets all events in order where nothing is dropped", () =>
    Effect.gen(function* () {
      const { session } = yield* everything()
      const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
      const prompt = yield* Queue.take(agent.prompts)
      const reading = yield* beside(
        session.updates.pipe(
          Stream.takeUntil(is("TurnEnded")),
          Stream.tap(() => Effect.yieldNow),
          Stream.runCollect
        )
      )
      for (let index = 0; index < 2000; index++) yield* prompt.update(chunk(`${index}`))
      yield* prompt.end()
      const all = Array.from(yield* Fiber.join(reading))
      assert.deepStrictEqual(
        all.map((event) => ("number" in event ? event.number : -1)),
        all.map((_, index) => index + 1)
      )
      assert.deepStrictEqual(
        all.map(textOf).filter((text) => text !== ""),
        Array.from({ length: 2000 }, (_, index) => `${index}`)
      )
    }).pipe(withSidecar({ script: flood }))
  )
})
