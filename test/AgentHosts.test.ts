import { assert, it } from "@effect/vitest"
import { AgentProfile, Sidecar } from "acp-sidecar"
import type { Session, Vm } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import { TestClock } from "effect/testing"
import { beside, idle, provided, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"
import { manual, stuck } from "./support/turns.ts"

const share = (options: Parameters<typeof AgentProfile.sharing>[0] = {}): AgentProfile.AgentProfile => ({
  ...TestSidecar.profile,
  share: AgentProfile.sharing(options)
})

const openVm = Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work" }))
const openAll = (vm: Vm.Vm, count: number, options: Partial<Vm.SessionOptions> = {}) =>
  Effect.all(
    Array.from({ length: count }, () => vm.openSession({ agent: share(), ...options })),
    { concurrency: "unbounded" }
  )
const alive = Effect.map(TestSidecar.TestSidecar, (test) => test.alive())
const hosts = Effect.flatMap(Sidecar.Sidecar, (sidecar) => Effect.map(sidecar.describe, (info) => info.hosts))
const ids = (sessions: ReadonlyArray<Session.Session>) => new Set(sessions.map((session) => session.agentSessionId))

everywhere("sessions of an agent that shares", (layer) => {
  it.effect("that are opened at once are ten conversations in one process", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const sessions = yield* openAll(vm, 10)
      assert.strictEqual(yield* alive, 1)
      assert.strictEqual(ids(sessions).size, 10)
      const [host, ...others] = yield* hosts
      assert.deepStrictEqual(others, [])
      assert.strictEqual(host!.leases, 10)
      assert.strictEqual(host!.state, "ready")
      assert.isTrue(host!.shared)
      assert.deepStrictEqual(new Set(host!.sessions), new Set(sessions.map((session) => session.id)))
      const ends = yield* Effect.all(
        sessions.map((session) => session.prompt("go")),
        { concurrency: "unbounded" }
      )
      assert.deepStrictEqual(new Set(ends.map((end) => end._tag)), new Set(["Completed"]))
    }).pipe(provided(layer()))
  )

  it.effect("have a process each unless the profile shares, and with share: false whatever it says (B82)", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* openAll(vm, 2, { agent: TestSidecar.profile })
      assert.strictEqual(yield* alive, 2)
      yield* openAll(vm, 2)
      assert.strictEqual(yield* alive, 3)
      yield* openAll(vm, 2, { share: false })
      assert.strictEqual(yield* alive, 5)
    }).pipe(provided(layer()))
  )

  it.effect("have another process where the environment differs (B72)", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* vm.openSession({ agent: share(), env: { ANTHROPIC_AUTH_TOKEN: "one" } })
      yield* vm.openSession({ agent: share(), env: { ANTHROPIC_AUTH_TOKEN: "two" } })
      yield* vm.openSession({ agent: share(), env: { ANTHROPIC_AUTH_TOKEN: "one" } })
      assert.strictEqual(yield* alive, 2)
      const launches = (yield* TestSidecar.TestSidecar).launches()
      assert.deepStrictEqual(
        launches.map(({ env }) => env["ANTHROPIC_AUTH_TOKEN"]),
        ["one", "two"]
      )
    }).pipe(provided(layer()))
  )

  it.effect("may differ in variables that name one session, and the shared process does not get them", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const agent = { ...share(), sessionEnv: ["AGENT_ID"] }
      yield* vm.openSession({ agent, env: { AGENT_ID: "1", MINE: "a" }, sessionEnv: ["MINE"] })
      yield* vm.openSession({ agent, env: { AGENT_ID: "2", MINE: "b" }, sessionEnv: ["MINE"] })
      assert.strictEqual(yield* alive, 1)
      const [launch] = (yield* TestSidecar.TestSidecar).launches()
      assert.isUndefined(launch!.env["AGENT_ID"])
      assert.isUndefined(launch!.env["MINE"])
    }).pipe(provided(layer()))
  )

  it.effect("share within their Vm, or with all Vms, as the profile's scope says", () =>
    Effect.gen(function* () {
      const [one, two] = [yield* openVm, yield* openVm]
      for (const vm of [one, two]) yield* vm.openSession({ agent: share() })
      assert.strictEqual(yield* alive, 2)
      for (const vm of [one, two]) yield* vm.openSession({ agent: share({ scope: "sidecar" }) })
      assert.strictEqual(yield* alive, 3)
      for (const vm of [one, two]) yield* vm.openSession({ agent: share({ scope: "team" }) })
      assert.strictEqual(yield* alive, 4)
    }).pipe(provided(layer()))
  )

  it.effect("get a second process when the first is full, or are refused, as the profile says", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* openAll(vm, 5, { agent: share({ maxSessions: 2 }) })
      assert.strictEqual(yield* alive, 3)
      const agent = share({ scope: "small", maxSessions: 1, whenFull: "refuse" })
      const first = yield* vm.openSession({ agent })
      const refused = yield* Effect.flip(vm.openSession({ agent }))
      assert.strictEqual(refused._tag, "LimitExceeded")
      assert.include(refused.message, "maxSessionsPerHost")
      assert.include(refused.message, "raise share.maxSessions of its profile.")
      yield* first.close
      yield* vm.openSession({ agent })
      assert.strictEqual(yield* alive, 4)
    }).pipe(provided(layer()))
  )
})

everywhere("a shared process", (layer) => {
  it.effect("stays for the idle time after its last session, which a new one stops", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (const session of yield* openAll(vm, 3)) yield* session.close
      yield* TestClock.adjust("900 millis")
      const [idleHost] = yield* hosts
      assert.strictEqual(idleHost!.leases, 0)
      const session = yield* vm.openSession({ agent: share() })
      yield* TestClock.adjust("10 seconds")
      assert.strictEqual(yield* alive, 1)
      yield* session.close
      yield* TestClock.adjust("1 second")
      yield* idle
      assert.strictEqual(yield* alive, 0)
      assert.deepStrictEqual(yield* hosts, [])
    }).pipe(provided(layer()))
  )

  it.effect("that is still ending is awaited, so that there are never two", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const { agents } = yield* TestSidecar.TestSidecar
      const session = yield* vm.openSession({ agent: share() })
      yield* session.close
      yield* TestClock.adjust("1 second")
      yield* idle
      const next = yield* beside(vm.openSession({ agent: share() }))
      yield* idle
      const [ending] = yield* hosts
      assert.strictEqual(ending!.state, "ending")
      assert.strictEqual(yield* Queue.size(agents), 1)
      yield* TestClock.adjust("3 seconds")
      yield* Fiber.join(next)
      assert.strictEqual(yield* Queue.size(agents), 2)
      assert.strictEqual(yield* alive, 1)
    }).pipe(provided(layer({ script: { end: Effect.sleep("3 seconds") } })))
  )

  it.effect("that dies tells each of its sessions once, and the next open starts another (B14, B16)", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const { agents } = yield* TestSidecar.TestSidecar
      const sessions = yield* openAll(vm, 3)
      const turns = yield* Effect.forEach(sessions, (session) => session.submit("go"))
      yield* idle
      yield* (yield* Queue.take(agents)).crash({ code: 134 })
      for (const turn of turns) {
        const failure = yield* Effect.flip(turn.await)
        assert.strictEqual(failure.reason._tag, "ProcessExited")
      }
      for (const session of sessions) assert.strictEqual((yield* until(session, "SessionEnded")).reason, "agent_exited")
      const again = yield* vm.openSession({ agent: share() })
      assert.strictEqual(yield* alive, 1)
      const [host] = yield* hosts
      assert.strictEqual(host!.restarts, 1)
      assert.strictEqual(again.hostId, host!.hostId)
    }).pipe(provided(layer({ script: manual })))
  )

  it.effect("loses a session that does not end its turn, and goes on with the others", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const [stubborn, other] = yield* openAll(vm, 2)
      const turn = yield* stubborn!.submit("go")
      const beside_ = yield* other!.submit("go")
      yield* idle
      const cancelling = yield* beside(turn.cancel)
      yield* TestClock.adjust("10 seconds")
      const outcome = yield* Fiber.join(cancelling)
      assert.isTrue(outcome._tag === "Cancelled" && outcome.escalation === "quarantined")
      assert.strictEqual((yield* until(stubborn!, "SessionEnded")).reason, "quarantined")
      assert.strictEqual(yield* alive, 1)
      const [info] = (yield* other!.describe).turns
      assert.strictEqual(info!.phase, "running")
      const rest = yield* beside(beside_.cancel)
      yield* TestClock.adjust("10 seconds")
      const end = yield* Fiber.join(rest)
      assert.isTrue(end._tag === "Cancelled" && end.escalation === "retired")
      yield* idle
      assert.strictEqual(yield* alive, 0)
    }).pipe(provided(layer({ script: stuck })))
  )

  it.effect("whose start is left by its last caller is ended, and not by one of several", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const first = yield* beside(vm.openSession({ agent: share() }))
      const second = yield* beside(vm.openSession({ agent: share() }))
      yield* idle
      yield* Fiber.interrupt(first)
      assert.strictEqual(yield* alive, 1)
      yield* Fiber.interrupt(second)
      assert.strictEqual(yield* alive, 0)
      assert.deepStrictEqual(yield* hosts, [])
    }).pipe(provided(layer({ script: { initialize: () => Effect.never } })))
  )
})

everywhere("a sidecar without room for another process", (layer) => {
  it.effect("ends one that serves nobody rather than refuse (B39)", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const session = yield* vm.openSession({ agent: share() })
      const refused = yield* Effect.flip(vm.openSession({ agent: TestSidecar.profile }))
      assert.strictEqual(refused._tag, "LimitExceeded")
      yield* session.close
      yield* vm.openSession({ agent: TestSidecar.profile })
      assert.strictEqual(yield* alive, 1)
    }).pipe(provided(layer({ limits: { maxHosts: 1 } })))
  )
})
