// Agents that do not come up: what their callers are told, when they are tried again, and what shows it.
import { assert, describe, it } from "@effect/vitest"
import { AgentProfile, Sidecar, SidecarError } from "acp-sidecar"
import type { SidecarEvent, Vm } from "acp-sidecar"
import { AcpConnection } from "acp-sidecar/acp"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { beside, idle, provided, until } from "./support/events.ts"

const share = (options: Parameters<typeof AgentProfile.sharing>[0] = {}): AgentProfile.AgentProfile => ({
  ...TestSidecar.profile,
  share: AgentProfile.sharing(options)
})
const shared = share()

const openVm = Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work" }))
const info = Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.describe)
const agents = Effect.map(TestSidecar.TestSidecar, (test) => test.agents)
const alive = Effect.map(TestSidecar.TestSidecar, (test) => test.alive())
const launches = Effect.map(TestSidecar.TestSidecar, (test) => test.launches().length)

const reasonOf = (error: Vm.OpenSessionError): SidecarError.StartReason => {
  assert.strictEqual(error._tag, "AgentStartFailed", error.message)
  return (error as SidecarError.AgentStartFailed).reason
}
/** Opens a session that is expected not to open. */
const failure = (vm: Vm.Vm, agent = shared) => Effect.map(Effect.flip(vm.openSession({ agent })), reasonOf)
const failures = (vm: Vm.Vm, times: number, agent = shared) =>
  Effect.forEach(Array.from({ length: times }), () => Effect.map(failure(vm, agent), ({ _tag }) => _tag))
/** Opens a session that is expected to be refused, and gives the refusal. */
const heldBack = (vm: Vm.Vm, agent = shared) =>
  Effect.map(failure(vm, agent), (reason) => {
    assert.strictEqual(reason._tag, "StartHeldBack", reason.message)
    return reason as SidecarError.StartHeldBack
  })

const refuses: ScriptedAgent.Script = { initialize: () => Effect.fail(AcpConnection.refusal(-32603, "no licence")) }
/** An agent that starts only while the switch is on. */
const switched = () => {
  const state = { works: false, script: (): ScriptedAgent.Script => (state.works ? {} : refuses) }
  return state
}

const eventsOf = (kind: SidecarEvent.SidecarEvent["kind"]) =>
  Effect.gen(function* () {
    const seen: Array<SidecarEvent.SidecarEvent> = []
    const { events } = yield* Sidecar.Sidecar
    yield* events.pipe(
      Stream.filter((event) => event.kind === kind),
      Stream.runForEach((event) => Effect.sync(() => seen.push(event))),
      Effect.forkScoped({ startImmediately: true })
    )
    return seen
  })

describe("an agent whose starts fail", () => {
  it.effect("is refused at once after three of them, with when to try again and why", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      assert.deepStrictEqual(yield* failures(vm, 3), ["RequestError", "RequestError", "RequestError"])
      const refusal = yield* heldBack(vm)
      assert.deepInclude(refusal, { failures: 3, retryInMillis: 1000 })
      assert.include(refusal.reason, "no licence")
      assert.include(refusal.message, "3 times in a row")
      assert.include(refusal.message, "try again in 1000 ms")
      assert.strictEqual(yield* launches, 3, "nothing was started for it")
    }).pipe(provided(TestSidecar.layer({ script: refuses })))
  )

  it.effect(
    "is tried again after a second, then after twice as long each time, and never after more than a minute",
    () =>
      Effect.gen(function* () {
        const vm = yield* openVm
        yield* failures(vm, 3)
        for (const delay of [1, 2, 4, 8, 16, 32, 60, 60, 60]) {
          const { retryInMillis } = yield* heldBack(vm)
          assert.strictEqual(retryInMillis, delay * 1000)
          yield* TestClock.adjust(retryInMillis - 1)
          assert.strictEqual((yield* heldBack(vm)).retryInMillis, 1)
          yield* TestClock.adjust(1)
          assert.deepStrictEqual(yield* failures(vm, 1), ["RequestError"])
        }
        assert.strictEqual((yield* heldBack(vm)).failures, 12)
        assert.strictEqual(yield* launches, 12)
      }).pipe(provided(TestSidecar.layer({ script: refuses })))
  )

  it.effect(
    "starts anew once a session has opened: three more failures are needed, and the delay is a second again",
    () => {
      const agent = switched()
      return Effect.gen(function* () {
        const vm = yield* openVm
        yield* failures(vm, 3)
        yield* TestClock.adjust("1 second")
        yield* failures(vm, 1)
        yield* TestClock.adjust("2 seconds")
        agent.works = true
        const session = yield* vm.openSession({ agent: shared })
        assert.deepStrictEqual((yield* info).heldBack, [])
        yield* session.close
        yield* TestClock.adjust("1 second")
        yield* idle
        agent.works = false
        assert.deepStrictEqual(yield* failures(vm, 3), ["RequestError", "RequestError", "RequestError"])
        assert.deepInclude(yield* heldBack(vm), { failures: 3, retryInMillis: 1000 })
      }).pipe(provided(TestSidecar.layer({ script: agent.script })))
    }
  )

  it.effect("is shown by describe, and told by one event for each time that it is held back", () =>
    Effect.gen(function* () {
      const events = yield* eventsOf("host_held_back")
      const vm = yield* openVm
      yield* failures(vm, 2)
      assert.deepStrictEqual((yield* info).heldBack, [])
      yield* failures(vm, 3)
      yield* TestClock.adjust("400 millis")
      const [shown, ...others] = (yield* info).heldBack
      assert.deepStrictEqual(others, [])
      assert.deepInclude(shown, { agent: "scripted", failures: 3, retryInMillis: 600, isOnTrial: false })
      assert.match(shown!.identity, /^[0-9a-f]{12}$/)
      assert.include(shown!.reason, "no licence")
      assert.strictEqual(events.length, 1)
      assert.include(events[0]!.detail, "no licence")
      yield* TestClock.adjust("600 millis")
      yield* failures(vm, 2)
      yield* idle
      assert.strictEqual(events.length, 2)
    }).pipe(provided(TestSidecar.layer({ script: refuses })))
  )

  it.effect("is held back alone: another environment, and an agent with a process of its own, are not", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* failures(vm, 3)
      yield* heldBack(vm)
      const other = yield* Effect.flip(vm.openSession({ agent: shared, env: { ANTHROPIC_AUTH_TOKEN: "other" } }))
      assert.strictEqual(reasonOf(other)._tag, "RequestError")
      assert.deepStrictEqual(
        yield* failures(vm, 5, TestSidecar.profile),
        Array.from({ length: 5 }, () => "RequestError")
      )
      yield* heldBack(vm)
    }).pipe(provided(TestSidecar.layer({ script: refuses })))
  )

  it.effect("is never held back with maxHostFailures 0, nor with maxHostRetryDelay 0", () =>
    Effect.gen(function* () {
      for (const limits of [{ maxHostFailures: 0 }, { maxHostRetryDelay: 0 }]) {
        const vm = yield* Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work", limits }))
        assert.deepStrictEqual(new Set(yield* failures(vm, 20)), new Set(["RequestError"]))
        assert.deepStrictEqual((yield* info).heldBack, [])
      }
    }).pipe(provided(TestSidecar.layer({ script: refuses })))
  )

  it.effect("gives all who wait for it the same failure, which counts once, and nothing is left", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const opening = yield* Effect.forEach(Array.from({ length: 5 }), () => beside(failure(vm)))
      const reasons = yield* Effect.forEach(opening, Fiber.join)
      assert.strictEqual(yield* launches, 1)
      assert.deepStrictEqual(new Set(reasons.map(({ message }) => message)).size, 1)
      yield* idle
      assert.deepInclude(yield* info, { hosts: [], heldBack: [] })
      assert.strictEqual(yield* alive, 0)
      assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
      yield* failures(vm, 2)
      assert.strictEqual((yield* heldBack(vm)).failures, 3)
    }).pipe(provided(TestSidecar.layer({ script: refuses })))
  )

  it.effect("keeps no secret of its environment in the reason that it tells", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const open = Effect.map(
        Effect.flip(vm.openSession({ agent: shared, env: { MY_API_KEY: "sk-very-secret-value" } })),
        reasonOf
      )
      for (let i = 0; i < 3; i++) yield* open
      const refusal = yield* open
      assert.strictEqual(refusal._tag, "StartHeldBack")
      assert.notInclude(refusal.message, "sk-very-secret-value")
      assert.notInclude(JSON.stringify((yield* info).heldBack), "sk-very-secret-value")
    }).pipe(
      provided(
        TestSidecar.layer({
          script: { initialize: () => Effect.fail(AcpConnection.refusal(-32603, "bad key sk-very-secret-value")) }
        })
      )
    )
  )
})

describe("the trial of an agent that was held back", () => {
  it.effect("is one process, which all join that come meanwhile", () => {
    const agent = switched()
    return Effect.gen(function* () {
      const vm = yield* openVm
      yield* failures(vm, 3)
      yield* TestClock.adjust("1 second")
      agent.works = true
      const opening = yield* Effect.forEach(Array.from({ length: 4 }), () => beside(vm.openSession({ agent: shared })))
      for (const one of opening) yield* Fiber.join(one)
      assert.strictEqual(yield* launches, 4)
    }).pipe(provided(TestSidecar.layer({ script: agent.script })))
  })

  it.effect(
    "is one process also where each session needs another, which is refused until it has shown that it works",
    () => {
      const single = share({ maxSessions: 1 })
      const proceed = Latch.makeUnsafe(false)
      const agent = switched()
      const script = (): ScriptedAgent.Script =>
        agent.works ? { initialize: () => Effect.as(proceed.await, { protocolVersion: 1 }) } : refuses
      return Effect.gen(function* () {
        const vm = yield* openVm
        yield* failures(vm, 3, single)
        yield* TestClock.adjust("1 second")
        agent.works = true
        const trial = yield* beside(vm.openSession({ agent: single }))
        yield* idle
        assert.strictEqual((yield* info).heldBack[0]!.isOnTrial, true)
        yield* heldBack(vm, single)
        assert.strictEqual(yield* launches, 4)
        yield* proceed.open
        yield* Fiber.join(trial)
        yield* vm.openSession({ agent: single })
        assert.strictEqual(yield* launches, 5)
      }).pipe(provided(TestSidecar.layer({ script })))
    }
  )

  it.effect("that its caller leaves decides nothing: the next caller makes another one at once", () => {
    const agent = switched()
    const script = (): ScriptedAgent.Script => (agent.works ? { initialize: () => Effect.never } : refuses)
    return Effect.gen(function* () {
      const vm = yield* openVm
      yield* failures(vm, 3)
      yield* TestClock.adjust("1 second")
      agent.works = true
      const trial = yield* beside(vm.openSession({ agent: shared }))
      yield* idle
      yield* Fiber.interrupt(trial)
      yield* idle
      assert.strictEqual(yield* alive, 0)
      agent.works = false
      assert.deepStrictEqual(yield* failures(vm, 1), ["RequestError"])
      assert.deepInclude(yield* heldBack(vm), { failures: 4, retryInMillis: 2000 })
    }).pipe(provided(TestSidecar.layer({ script })))
  })
})

describe("an agent that ends by itself", () => {
  /** Starts a process that has no session yet, and lets it die after a time. */
  const crashAfter = (vm: Vm.Vm, time: string & Parameters<typeof TestClock.adjust>[0]) =>
    Effect.gen(function* () {
      const opening = yield* beside(failure(vm))
      yield* idle
      yield* TestClock.adjust(time)
      yield* (yield* Queue.take(yield* agents)).crash({ code: 3 })
      const reason = yield* Fiber.join(opening)
      yield* idle
      return reason._tag
    })
  const silent: ScriptedAgent.Script = { newSession: () => Effect.never }

  it.effect("soon after its start, before it had a session, is held back like one that does not start", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (let i = 0; i < 3; i++) assert.strictEqual(yield* crashAfter(vm, "9 seconds"), "ProcessExited")
      const refusal = yield* heldBack(vm)
      assert.include(refusal.reason, "exited with code 3")
      yield* TestClock.adjust("1 second")
      yield* beside(failure(vm))
      yield* idle
      assert.strictEqual((yield* info).hosts[0]!.restarts, 3)
    }).pipe(provided(TestSidecar.layer({ script: silent, limits: { startTimeout: "1 hour" } })))
  )

  it.effect("after it had lived for a while is not, and the failures before it are forgotten", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (let i = 0; i < 2; i++) yield* crashAfter(vm, "1 second")
      yield* crashAfter(vm, "10 seconds")
      for (let i = 0; i < 2; i++) yield* crashAfter(vm, "1 second")
      assert.deepStrictEqual((yield* info).heldBack, [])
      yield* crashAfter(vm, "1 second")
      assert.strictEqual((yield* info).heldBack.length, 1)
    }).pipe(provided(TestSidecar.layer({ script: silent, limits: { startTimeout: "1 hour" } })))
  )

  it.effect("with a session that had opened is no failed start, however often (B16)", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (let i = 0; i < 6; i++) {
        const session = yield* vm.openSession({ agent: shared })
        yield* (yield* Queue.take(yield* agents)).crash()
        yield* until(session, "SessionEnded")
      }
      yield* vm.openSession({ agent: shared })
      assert.strictEqual((yield* info).hosts[0]!.restarts, 6)
    }).pipe(provided(TestSidecar.layer({ limits: { maxHostFailures: 1 } })))
  )
})

describe("a start that takes too long", () => {
  const never: ScriptedAgent.Script = { initialize: () => Effect.never }

  it.effect("ends its process, and the next caller gets a fresh one", () => {
    const agent = switched()
    return Effect.gen(function* () {
      const vm = yield* openVm
      const opening = yield* Effect.forEach(Array.from({ length: 3 }), () => beside(failure(vm)))
      yield* idle
      yield* TestClock.adjust("1 minute")
      for (const one of opening) assert.strictEqual((yield* Fiber.join(one))._tag, "StartTimedOut")
      yield* idle
      assert.strictEqual(yield* alive, 0)
      assert.deepStrictEqual((yield* info).hosts, [])
      agent.works = true
      yield* vm.openSession({ agent: shared })
      assert.strictEqual(yield* launches, 2)
    }).pipe(provided(TestSidecar.layer({ script: () => (agent.works ? {} : never) })))
  })

  it.effect("counts as a failure, though its callers leave in the same moment", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (let i = 0; i < 3; i++) {
        const opening = yield* beside(failure(vm))
        yield* idle
        yield* TestClock.adjust("1 minute")
        assert.strictEqual((yield* Fiber.join(opening))._tag, "StartTimedOut")
      }
      assert.include((yield* heldBack(vm)).reason, "no answer within 60000 ms")
    }).pipe(provided(TestSidecar.layer({ script: never })))
  )

  it.effect("for a caller in a hurry says nothing of the agent", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (let i = 0; i < 5; i++) {
        const opening = yield* beside(
          Effect.map(Effect.flip(vm.openSession({ agent: shared, startTimeout: "5 millis" })), reasonOf)
        )
        yield* idle
        yield* TestClock.adjust("5 millis")
        assert.strictEqual((yield* Fiber.join(opening))._tag, "StartTimedOut")
        yield* idle
      }
      assert.deepStrictEqual((yield* info).heldBack, [])
    }).pipe(provided(TestSidecar.layer({ script: never })))
  )

  it.effect(
    "and whose process can't be killed keeps its place until it is gone: callers are told at their deadline",
    () => {
      const exit = Latch.makeUnsafe(false)
      const agent = switched()
      return Effect.gen(function* () {
        const vm = yield* openVm
        const first = yield* beside(failure(vm))
        yield* idle
        yield* TestClock.adjust("1 minute")
        // The process is waited for as long as killing it may take.
        yield* TestClock.adjust("7 seconds")
        assert.strictEqual((yield* Fiber.join(first))._tag, "StartTimedOut")
        assert.strictEqual((yield* info).hosts[0]!.state, "ending")
        agent.works = true
        const second = yield* beside(failure(vm))
        yield* idle
        yield* TestClock.adjust("9 seconds")
        assert.isUndefined(second.pollUnsafe())
        yield* TestClock.adjust("1 second")
        const reason = yield* Fiber.join(second)
        assert.strictEqual(reason._tag, "HostStillEnding")
        assert.strictEqual(yield* launches, 1, "never two of one identity")
        const third = yield* beside(vm.openSession({ agent: shared }))
        yield* idle
        yield* exit.open
        yield* idle
        yield* Fiber.join(third)
        assert.strictEqual(yield* launches, 2)
        assert.strictEqual(yield* alive, 1)
      }).pipe(provided(TestSidecar.layer({ script: () => (agent.works ? {} : { ...never, end: exit.await }) })))
    }
  )
})
