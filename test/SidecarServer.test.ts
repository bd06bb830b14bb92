// Who may connect, what each client sees and reaches, and what becomes of it when it goes away.
import { assert, describe, it } from "@effect/vitest"
import { Sidecar, SidecarClient, SidecarRpc, type SidecarEvent } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Logger from "effect/Logger"
import * as Queue from "effect/Queue"
import * as Redacted from "effect/Redacted"
import * as References from "effect/References"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import * as Clients from "./support/clients.ts"
import { beside, chunk, idle, is, provided, until } from "./support/events.ts"
import { hanging } from "./support/turns.ts"

const answering = { prompt: () => Effect.succeed("end_turn") } as const
const withSidecar = (options: TestSidecar.Options = { script: answering }) => provided(TestSidecar.layer(options))
const root = { root: "/work" }
const { profile } = TestSidecar
const { request } = Clients

const dialRaw = (served: Clients.Served) => Effect.flatMap(served.dial, Clients.raw)

/** A connection of its own that the test ends. */
const connectIn = Effect.fnUntraced(function* (served: Clients.Served, options?: Partial<SidecarClient.Options>) {
  const scope = yield* Scope.fork(yield* Effect.scope)
  const connection = yield* Scope.provide(served.connect(options), scope)
  return { ...connection, disconnect: Effect.andThen(Scope.close(scope, Exit.void), idle) }
})

/** Opens in a scope that outlives its connection, as an app does that comes back. */
const lasting = <A, E>(effect: Effect.Effect<A, E, Scope.Scope>) =>
  Effect.suspend(() => Scope.provide(effect, Scope.makeUnsafe()))

describe("the handshake", () => {
  const token = Redacted.make("sentinel-of-the-token")
  const cases: ReadonlyArray<readonly [name: string, lines: ReadonlyArray<unknown>, reason: string, detail: RegExp]> = [
    ["another version", [Clients.hello({ acpSidecar: 2 })], "version", /speaks version 1 and not 2/],
    ["a version of the future, whatever else it says", [{ acpSidecar: 99, name: 1 }], "version", /not 99/],
    ["no token", [Clients.hello()], "token", /token file/],
    ["a wrong token", [Clients.hello({ token: "sentinel-of-the-tokem" })], "token", /token file/],
    ["a token that is too long", [Clients.hello({ token: "sentinel-of-the-token-" })], "token", /token file/],
    ["a token that is no text", [Clients.hello({ token: 7 })], "malformed", /no hello/],
    ["garbage", ["GET / HTTP/1.1\r\nHost: x\r\n\r\n"], "malformed", /no hello/],
    ["an empty line", ["\n"], "malformed", /no hello/],
    ["null", ["null\n"], "malformed", /no hello/],
    ["a name that is too long", [Clients.hello({ client: "x".repeat(257) })], "malformed", /no hello/],
    ["an unknown role", [Clients.hello({ role: "root" })], "malformed", /no hello/],
    ["a line of more than 64 KiB", ["x".repeat(65_537)], "malformed", /more than 65536 bytes/],
    ["a line of more than 64 KiB in pieces", Array.from({ length: 70 }, () => "x".repeat(1000)), "malformed", /65536/],
    [
      "a role that is not given",
      [Clients.hello({ token: Redacted.value(token), role: "operator" })],
      "role",
      /as an app/
    ],
    [
      "an unknown key",
      [Clients.hello({ token: Redacted.value(token), resume: "k" })],
      "resume",
      /no client with this key/
    ],
    [
      "a message before the welcome",
      [
        `${JSON.stringify(Clients.hello({ token: Redacted.value(token) }))}\n${JSON.stringify(request(1, "Describe"))}\n`
      ],
      "malformed",
      /no hello/
    ]
  ]
  it.effect.each(cases)("refuses %s with the reason, and closes the connection", ([, lines, reason, detail]) =>
    Effect.gen(function* () {
      const served = yield* Clients.serve({ token, operators: false })
      const client = yield* dialRaw(served)
      yield* Effect.forEach(lines, client.write)
      const refused = yield* client.read
      assert.deepInclude(refused, { _tag: "HandshakeRefused", reason })
      assert.match(String(refused?.["detail"]), detail)
      assert.isUndefined(yield* client.read)
      assert.strictEqual(served.server.clients(), 0)
      assert.strictEqual(served.server.welcomed(), 0)
      yield* served.server.unused
      assert.notInclude(JSON.stringify(refused), "sentinel")
    }).pipe(withSidecar())
  )

  it.effect("takes a first line of 64 KiB", () =>
    Effect.gen(function* () {
      const client = yield* dialRaw(yield* Clients.serve())
      const line = JSON.stringify(Clients.hello({ filling: "" }))
      const filling = "x".repeat(SidecarRpc.maxHandshakeBytes - line.length)
      yield* client.write(Clients.hello({ filling }))
      assert.strictEqual((yield* client.read)?.["_tag"], "Welcome")
    }).pipe(withSidecar())
  )

  it.effect.each(["", '{"acpSidecar":1,'])("ends in time for a client that says %j and then nothing", (said) =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const client = yield* dialRaw(served)
      yield* client.write(said)
      const answer = yield* beside(client.read)
      yield* TestClock.adjust("4 seconds")
      assert.isUndefined(answer.pollUnsafe())
      yield* TestClock.adjust("1 second")
      assert.deepInclude(yield* Fiber.join(answer), { _tag: "HandshakeRefused", reason: "timeout" })
      assert.isUndefined(yield* client.read)
    }).pipe(withSidecar())
  )

  it.effect("refuses who comes when it is full, and takes the next when one has gone", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const first = yield* connectIn(served)
      const second = yield* connectIn(served)
      const refused = yield* Effect.flip(served.connect())
      assert.deepInclude(refused, { _tag: "HandshakeRefused", reason: "full" })
      assert.include(refused.message, "ACP_SIDECAR_MAX_CLIENTS")
      // Nor is there room for one more connection of those that it has.
      assert.deepInclude(yield* Effect.flip(served.connect({ resume: first.key })), { reason: "full" })
      yield* second.disconnect
      assert.strictEqual(served.server.clients(), 1)
      yield* served.connect({ resume: first.key })
      yield* served.connect()
    }).pipe(withSidecar({ script: answering, limits: { maxClients: 2 } }))
  )

  it.effect("refuses who comes after the end of the sidecar", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      yield* (yield* Sidecar.Sidecar).dispose
      yield* served.server.disposed
      assert.deepInclude(yield* Effect.flip(served.connect()), { _tag: "HandshakeRefused", reason: "disposed" })
    }).pipe(withSidecar())
  )

  it.effect("leaves the token out of errors, logs and what is described", () =>
    Effect.gen(function* () {
      const logged: Array<string> = []
      const logger = Logger.make(({ message }) => void logged.push(JSON.stringify(message)))
      yield* Effect.gen(function* () {
        const served = yield* Clients.serve({ token })
        const wrong = Redacted.make("another-sentinel")
        const refused = yield* Effect.flip(served.connect({ token: wrong }))
        const connection = yield* connectIn(served, { token })
        const described = yield* connection.sidecar.describe
        yield* connection.disconnect
        assert.isAbove(logged.length, 0)
        const all = JSON.stringify([refused, refused.message, String(refused), described, logged, String(connection)])
        assert.notInclude(all, "sentinel")
      }).pipe(Effect.provide(Logger.layer([logger])), Effect.provideService(References.MinimumLogLevel, "All"))
    }).pipe(withSidecar())
  )
})

describe("what a client reaches (S1)", () => {
  const agent = { ...profile, share: false }
  interface Ids {
    readonly vmId: string
    readonly sessionId: string
    readonly turnId: string
  }
  const prompt = { prompt: "hi" }
  /** The payload of each call that takes an id; `undefined` for those that take none. */
  const payloads: Readonly<Record<string, ((ids: Ids) => unknown) | undefined>> = {
    Describe: undefined,
    Events: undefined,
    Dispose: undefined,
    Abandon: undefined,
    "Vm.Open": undefined,
    "Session.List": undefined,
    "Vm.Close": ({ vmId }) => ({ vmId }),
    "Vm.Describe": ({ vmId }) => ({ vmId }),
    "Vm.Probe": ({ vmId }) => ({ vmId, agent }),
    "Session.Open": ({ vmId }) => ({ key: "k", vmId, agent }),
    "Session.Attach": ({ sessionId }) => ({ sessionId }),
    "Session.Close": ({ sessionId }) => ({ sessionId }),
    "Session.Describe": ({ sessionId }) => ({ sessionId }),
    "Session.Prompt": ({ sessionId }) => ({ sessionId, ...prompt }),
    "Session.Run": ({ sessionId }) => ({ sessionId, ...prompt, key: "k" }),
    "Session.Submit": ({ sessionId }) => ({ sessionId, ...prompt }),
    "Session.Cancel": ({ sessionId, turnId }) => ({ sessionId, turnId }),
    "Session.Updates": ({ sessionId }) => ({ sessionId }),
    "Session.PendingPermissions": ({ sessionId }) => ({ sessionId }),
    "Session.Answer": ({ sessionId }) => ({ sessionId, permissionId: "p", decision: "allow" }),
    "Session.Questions": ({ sessionId }) => ({ sessionId }),
    "Session.Decide": ({ sessionId }) => ({ sessionId, key: "k", decision: "allow" }),
    "Session.SetMode": ({ sessionId }) => ({ sessionId, modeId: "m" }),
    "Session.SetConfigOption": ({ sessionId }) => ({ sessionId, configId: "c", value: true }),
    "Session.ConfigOptions": ({ sessionId }) => ({ sessionId }),
    "Turn.Outcome": ({ sessionId, turnId }) => ({ sessionId, turnId }),
    "Turn.Dispatched": ({ sessionId, turnId }) => ({ sessionId, turnId }),
    "Turn.Updates": ({ sessionId, turnId }) => ({ sessionId, turnId })
  }

  it("has a row for each call", () => {
    assert.deepStrictEqual(Object.keys(payloads).sort(), Array.from(SidecarRpc.SidecarRpc.requests.keys()).sort())
  })

  it.effect("gives the same answer for what belongs to another as for what does not exist, in each call", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const { sidecar } = yield* served.connect()
      const vm = yield* sidecar.openVm(root)
      const session = yield* vm.openSession({ agent: profile, permission: () => Effect.never })
      const turn = yield* session.submit("work")
      yield* turn.dispatched
      const theirs: Ids = { vmId: vm.id, sessionId: session.id, turnId: turn.id }
      const unknown: Ids = { vmId: "vm-unknown", sessionId: "session-unknown", turnId: "turn-unknown" }
      const client = yield* dialRaw(served)
      yield* client.write(Clients.hello())
      yield* client.read
      const before = yield* session.describe
      for (const [tag, payload] of Object.entries(payloads)) {
        if (payload === undefined) continue
        const ask = Effect.fnUntraced(function* (ids: Ids) {
          yield* client.write(request(1, tag, payload(ids)))
          const answer = yield* client.read
          assert.strictEqual(answer?.["_tag"], "Exit", tag)
          let text = JSON.stringify(answer)
          for (const [name, id] of Object.entries(ids)) text = text.replaceAll(JSON.stringify(id), name)
          return text
        })
        const [one, other] = [yield* ask(theirs), yield* ask(unknown)]
        assert.strictEqual(one, other, tag)
        assert.match(one, /"_tag":"(NotFound|Disposed)"/, tag)
      }
      assert.deepStrictEqual(yield* session.describe, before)
      assert.deepInclude(yield* session.cancel(), { _tag: "Settled" })
    }).pipe(withSidecar({ script: hanging }))
  )

  it.effect("shows an app its own Vms, sessions, processes and events, whoever came first, and an operator all", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const kinds = (connection: SidecarClient.Connection) =>
        Effect.gen(function* () {
          const seen: Array<SidecarEvent.SidecarEvent> = []
          yield* beside(
            Stream.runForEach(connection.sidecar.events, (event) => Effect.sync(() => void seen.push(event)))
          )
          return seen
        })
      const one = yield* served.connect()
      const seenByOne = yield* kinds(one)
      const other = yield* connectIn(served)
      const seenByOther = yield* kinds(other)
      const operator = yield* served.connect({ role: "operator" })
      const seenByOperator = yield* kinds(operator)
      yield* idle
      const ours = yield* one.sidecar.openVm(root)
      const theirs = yield* lasting(other.sidecar.openVm(root))
      const session = yield* lasting(theirs.openSession({ agent: profile }))
      yield* idle
      const ids = (info: Sidecar.SidecarInfo) => info.vms.map(({ vmId }) => vmId)
      assert.deepStrictEqual(ids(yield* one.sidecar.describe), [ours.id])
      assert.deepStrictEqual((yield* one.sidecar.describe).hosts, [])
      assert.deepStrictEqual(ids(yield* other.sidecar.describe), [theirs.id])
      assert.strictEqual((yield* other.sidecar.describe).hosts.length, 1)
      assert.deepStrictEqual(ids(yield* operator.sidecar.describe), [ours.id, theirs.id])
      assert.deepStrictEqual(yield* one.sessions, [])
      assert.deepStrictEqual(
        (yield* operator.sessions).map(({ sessionId }) => sessionId),
        [session.id]
      )
      assert.strictEqual((yield* operator.session(session.id)).id, session.id)
      assert.deepStrictEqual(
        yield* Effect.flip(one.session(session.id)).pipe(Effect.map(({ _tag }) => _tag)),
        "NotFound"
      )
      yield* other.disconnect
      yield* ours.close
      yield* idle
      const vmsOf = (events: ReadonlyArray<SidecarEvent.SidecarEvent>) =>
        Array.from(new Set(events.map(({ address }) => address.vmId)))
      assert.deepStrictEqual(vmsOf(seenByOne), [ours.id])
      assert.deepStrictEqual(
        seenByOne.map(({ kind }) => kind),
        ["vm_opened", "vm_closed"]
      )
      assert.deepStrictEqual(
        seenByOne.map(({ number }, index) => number - seenByOne[0]!.number - index),
        [0, 0]
      )
      assert.deepStrictEqual(
        vmsOf(seenByOther).filter((id) => id !== undefined && id !== theirs.id),
        []
      )
      assert.includeMembers(vmsOf(seenByOperator), [ours.id, theirs.id])
      assert.strictEqual(yield* TestSidecar.TestSidecar.use(({ alive }) => Effect.sync(alive)), 0)
    }).pipe(withSidecar())
  )

  it.effect("ends what an app has when it disposes, and the sidecar when no other has anything", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const one = yield* served.connect()
      const other = yield* served.connect()
      yield* one.sidecar.openVm(root)
      const vm = yield* other.sidecar.openVm(root)
      yield* one.sidecar.dispose
      assert.deepInclude(yield* one.sidecar.describe, { state: "disposed", activeVmCount: 0 })
      assert.strictEqual((yield* Effect.flip(one.sidecar.openVm(root)))._tag, "Disposed")
      assert.deepInclude(yield* other.sidecar.describe, { state: "ready", activeVmCount: 1 })
      yield* vm.openSession({ agent: profile })
      const again = yield* Effect.flip(served.connect({ resume: one.key }))
      assert.deepInclude(again, { reason: "resume" })
      yield* other.sidecar.dispose
      yield* served.server.disposed
      assert.strictEqual((yield* (yield* Sidecar.Sidecar).describe).state, "disposed")
    }).pipe(withSidecar())
  )

  it.effect("does not dispose of a sidecar in which another is opening its first Vm's session", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const one = yield* served.connect()
      const client = yield* dialRaw(served)
      yield* client.write(Clients.hello())
      yield* client.read
      yield* client.write(request(1, "Vm.Open", { key: "1", root: "/work" }))
      yield* one.sidecar.dispose
      assert.strictEqual((yield* (yield* Sidecar.Sidecar).describe).state, "ready")
      // And one that has disposed of what it had opens nothing more, whatever its program does.
      const late = yield* dialRaw(served)
      yield* late.write(Clients.hello())
      yield* late.read
      yield* late.write(request(1, "Dispose"))
      yield* late.read
      yield* late.write(request(2, "Vm.Open", { key: "2", root: "/work" }))
      assert.deepInclude((yield* late.read)?.["exit"].cause[0].error, { _tag: "Disposed" })
    }).pipe(withSidecar())
  )
})

describe("a client that goes away", () => {
  it.effect("has its turns cancelled and its Vms closed", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const connection = yield* connectIn(served)
      const vm = yield* lasting(connection.sidecar.openVm(root))
      const session = yield* lasting(vm.openSession({ agent: profile }))
      const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
      const running = yield* beside(Effect.exit(session.prompt("one")))
      yield* session.submit("two")
      yield* Queue.take(agent.prompts)
      yield* connection.disconnect
      yield* served.server.unused
      assert.strictEqual(served.server.clients(), 0)
      assert.isDefined(running.pollUnsafe())
      const info = yield* (yield* Sidecar.Sidecar).describe
      assert.deepInclude(info, { activeVmCount: 0, activePrompts: 0, state: "ready" })
      assert.isTrue(agent.isGone())
    }).pipe(withSidecar({ script: hanging }))
  )

  it.effect("B84: with detach its turns go on, and it comes back to all events, none of them twice", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const first = yield* connectIn(served, { onDisconnect: "detach" })
      const vm = yield* lasting(first.sidecar.openVm(root))
      const session = yield* lasting(vm.openSession({ agent: profile }))
      const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
      const running = yield* beside(Effect.exit(session.prompt("one")))
      yield* session.submit("two")
      const turn = yield* Queue.take(agent.prompts)
      yield* turn.say("before")
      const seen = yield* Stream.runCollect(Stream.takeUntil(session.updates, is("Update")))
      const cursor = seen.at(-1)!
      assert.strictEqual(cursor._tag, "Update")
      yield* first.disconnect
      assert.strictEqual(Exit.isFailure(yield* Fiber.join(running)), true)
      assert.strictEqual(served.server.clients(), 1)
      yield* TestClock.adjust("9 minutes")
      yield* turn.say("meanwhile")
      yield* turn.end()
      yield* idle

      const back = yield* served.connect({ resume: first.key })
      assert.deepStrictEqual(yield* back.sessions, [session.address])
      assert.strictEqual((yield* back.vm(vm.id)).id, vm.id)
      const found = yield* back.session(session.id)
      const next = yield* beside(until(found, "TurnEnded", 2))
      const rest = yield* beside(
        Stream.runCollect(
          Stream.takeUntil(found.updatesFrom((cursor as { readonly number: number }).number + 1), is("SessionEnded"))
        )
      )
      const second = yield* Queue.take(agent.prompts)
      yield* second.end()
      assert.strictEqual((yield* Fiber.join(next)).outcome._tag, "Completed")
      // The absence is over: it does not end later.
      yield* TestClock.adjust("20 minutes")
      assert.strictEqual(served.server.clients(), 1)
      yield* found.close
      const numbers = [...seen, ...(yield* Fiber.join(rest))].map((event) =>
        event._tag === "Lagged" ? -1 : event.number
      )
      assert.deepStrictEqual(
        numbers,
        numbers.map((_, index) => index + 1)
      )
    }).pipe(withSidecar({ script: { prompt: "manual" } }))
  )

  it.effect("loses what it detached from when it does not come back in time", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      for (let round = 0; round < 3; round++) {
        const connection = yield* connectIn(served, { onDisconnect: "detach" })
        const vm = yield* lasting(connection.sidecar.openVm(root))
        yield* lasting(vm.openSession({ agent: profile }))
        yield* connection.disconnect
        const again = yield* connectIn(served, { resume: connection.key })
        yield* TestClock.adjust("9 minutes")
        yield* again.disconnect
        yield* TestClock.adjust("9 minutes")
        assert.strictEqual(served.server.clients(), 1)
        yield* TestClock.adjust("2 minutes")
        yield* served.server.unused
        assert.deepInclude(yield* Effect.flip(served.connect({ resume: connection.key })), { reason: "resume" })
        assert.strictEqual((yield* (yield* Sidecar.Sidecar).describe).activeVmCount, 0)
      }
    }).pipe(withSidecar({ script: hanging }))
  )

  it.effect(
    "B44: with a policy function of its own its questions are refused at their deadline and never allowed",
    () =>
      Effect.gen(function* () {
        const served = yield* Clients.serve()
        const connection = yield* connectIn(served, { onDisconnect: "detach" })
        const vm = yield* lasting(connection.sidecar.openVm(root))
        const asked = yield* Deferred.make<void>()
        const session = yield* lasting(
          vm.openSession({
            agent: profile,
            permission: () => Effect.andThen(Deferred.succeed(asked, undefined), Effect.never)
          })
        )
        const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
        const running = yield* beside(Effect.exit(session.prompt("go")))
        const turn = yield* Queue.take(agent.prompts)
        const answer = yield* beside(turn.ask())
        yield* Deferred.await(asked)
        yield* connection.disconnect
        yield* Fiber.join(running)
        yield* TestClock.adjust("59 seconds")
        assert.isUndefined(answer.pollUnsafe())
        yield* TestClock.adjust("1 second")
        const given = yield* Fiber.join(answer)
        assert.strictEqual(given._tag === "Selected" ? given.optionId : given._tag, "reject")
      }).pipe(withSidecar({ script: { prompt: "manual" }, limits: { permissionTimeout: "1 minute" } }))
  )

  it.effect("B45: finds the questions that wait when it is back, and answers them", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const connection = yield* connectIn(served, { onDisconnect: "detach" })
      const vm = yield* lasting(connection.sidecar.openVm(root))
      const session = yield* lasting(vm.openSession({ agent: profile, permission: "ask" }))
      const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
      const turnId = (yield* session.submit("go")).id
      const turn = yield* Queue.take(agent.prompts)
      const answer = yield* beside(turn.ask())
      yield* until(session, "PermissionAsked")
      yield* connection.disconnect
      const back = yield* served.connect({ resume: connection.key })
      const found = yield* back.session(session.id)
      const [question] = yield* found.pendingPermissions
      assert.strictEqual(question?.turnId, turnId)
      const asked = yield* until(found, "PermissionAsked")
      assert.strictEqual(asked.permissionId, question?.permissionId)
      yield* found.answer(asked.permissionId, "allow")
      assert.deepInclude(yield* Fiber.join(answer), { _tag: "Selected" })
      const again = yield* Effect.flip(found.answer(asked.permissionId, "allow"))
      assert.deepInclude(again, { _tag: "PermissionNotPending", answeredBy: "user" })
      yield* turn.end()
      assert.strictEqual((yield* until(found, "TurnEnded")).outcome._tag, "Completed")
    }).pipe(withSidecar({ script: { prompt: "manual" } }))
  )

  it.effect("harms nothing with the end of its first connection while it has a second", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const first = yield* connectIn(served)
      const vm = yield* lasting(first.sidecar.openVm(root))
      const session = yield* lasting(vm.openSession({ agent: profile }))
      const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
      const second = yield* connectIn(served, { resume: first.key })
      assert.strictEqual(served.server.clients(), 1)
      const found = yield* second.session(session.id)
      const running = yield* beside(found.prompt("of the second"))
      const turn = yield* Queue.take(agent.prompts)
      yield* first.disconnect
      yield* turn.update(chunk("still there"))
      yield* turn.end()
      assert.strictEqual((yield* Fiber.join(running))._tag, "Completed")
      assert.isFalse(agent.isGone())
      yield* second.disconnect
      assert.strictEqual(served.server.clients(), 0)
      assert.isTrue(agent.isGone())
    }).pipe(withSidecar({ script: { prompt: "manual" } }))
  )
})

describe("the heartbeat", () => {
  it.effect("B18: loses a client that is silent for 30 seconds, and its turns end as cancelled, not as a crash", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const client = yield* dialRaw(served)
      yield* client.write(Clients.hello())
      yield* client.read
      yield* client.write(request(1, "Vm.Open", { key: "1", root: "/work" }))
      const vmId = (yield* client.read)?.["exit"].value.address.vmId
      const agent = { ...profile, share: false }
      yield* client.write(request(2, "Session.Open", { key: "2", vmId, agent }))
      const { sessionId } = (yield* client.read)!["exit"].value.address
      const operator = yield* served.connect({ role: "operator" })
      const session = yield* operator.session(sessionId)
      yield* client.write(request(3, "Session.Run", { key: "3", sessionId, prompt: "go" }))
      yield* until(session, "TurnStarted")
      const ending = yield* beside(until(session, "TurnEnded"))
      yield* TestClock.adjust("25 seconds")
      yield* client.write({ _tag: "Ping" })
      assert.deepStrictEqual(yield* client.read, { _tag: "Pong" })
      yield* TestClock.adjust("25 seconds")
      assert.isUndefined(ending.pollUnsafe())
      yield* TestClock.adjust("15 seconds")
      const { outcome } = yield* Fiber.join(ending)
      assert.strictEqual(outcome._tag, "Cancelled")
      yield* idle
      assert.strictEqual(served.server.clients(), 1)
    }).pipe(withSidecar({ script: hanging }))
  )

  it.effect("keeps a client that lives and is idle for hours", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const connection = yield* served.connect()
      yield* connection.sidecar.openVm(root)
      const lost = yield* beside(connection.lost)
      for (let hour = 0; hour < 5; hour++) yield* TestClock.adjust("1 hour")
      assert.isUndefined(lost.pollUnsafe())
      assert.strictEqual((yield* connection.sidecar.describe).activeVmCount, 1)
    }).pipe(withSidecar())
  )
})

describe("what the server keeps of turns", () => {
  it.effect("a late reader of a long one has all of it, however many others have ended since", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const { sidecar } = yield* served.connect()
      const vm = yield* sidecar.openVm(root)
      const session = yield* vm.openSession({ agent: profile })
      const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
      const long = yield* session.submit("long")
      const held = yield* Queue.take(agent.prompts)
      for (let i = 0; i < 600; i++) {
        const short = yield* session.submit("short")
        yield* (yield* Queue.take(agent.prompts)).end()
        yield* short.outcome
      }
      yield* held.end()
      assert.strictEqual((yield* long.outcome)._tag, "Completed")
      const events = yield* Stream.runCollect(long.updates)
      assert.deepStrictEqual(
        events.map(({ _tag }) => _tag),
        ["TurnQueued", "TurnStarted", "TurnEnded"]
      )
    }).pipe(withSidecar({ script: { prompt: "manual" }, limits: { maxPromptsPerSession: 2 } }))
  )
})

describe("two connections of one client", () => {
  const gate = Latch.makeUnsafe(false)
  it.effect("may name their openings alike, and give up their own", () =>
    Effect.gen(function* () {
      const served = yield* Clients.serve()
      const one = yield* dialRaw(served)
      yield* one.write(Clients.hello())
      const { key } = (yield* one.read)!
      const other = yield* dialRaw(served)
      yield* other.write(Clients.hello({ resume: key }))
      yield* other.read
      yield* one.write(request(1, "Vm.Open", { key: "a", root: "/work" }))
      const { vmId } = (yield* one.read)!["exit"].value.address
      yield* one.write(request(2, "Session.Open", { key: "b", vmId, agent: profile }))
      yield* idle
      yield* other.write(request(1, "Session.Open", { key: "b", vmId, agent: profile }))
      yield* idle
      yield* one.write({ _tag: "Interrupt", requestId: 2 })
      yield* one.write(request(3, "Abandon", { key: "b" }))
      yield* idle
      yield* gate.open
      assert.strictEqual((yield* other.read)!["exit"]._tag, "Success")
      yield* other.write(request(2, "Vm.Describe", { vmId }))
      assert.strictEqual((yield* other.read)!["exit"].value.sessions.length, 1)
    }).pipe(withSidecar({ script: { newSession: () => Effect.as(gate.await, { sessionId: "s" }) } }))
  )
})
