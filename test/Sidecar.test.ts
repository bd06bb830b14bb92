import { assert, describe, it } from "@effect/vitest"
import { type Session, Sidecar, type SidecarEvent } from "acp-sidecar"
import { ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as References from "effect/References"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { beside, idle, is, provided, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"

/** All sidecar events from now on. */
const watch = Effect.gen(function* () {
  const sidecar = yield* Sidecar.Sidecar
  const events: Array<SidecarEvent.SidecarEvent> = []
  yield* beside(Stream.runForEach(sidecar.events, (event) => Effect.sync(() => events.push(event))))
  return events
})

everywhere("the core", (layer) => {
  it.effect("a prompt is answered and its events are read", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      const outcome = yield* turn.await
      assert.strictEqual(outcome._tag, "Completed")
      const events = yield* Stream.runCollect(turn.updates)
      assert.deepStrictEqual(
        events.map((event) => event._tag),
        ["TurnQueued", "TurnStarted", "Update", "TurnEnded"]
      )
    }).pipe(Effect.provide(layer()))
  )

  it.effect("C02, B22: an agent that ignores cancel is given up at the end of the grace period", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("hello")
      assert.isTrue(yield* turn.dispatched)
      const cancelling = yield* Effect.forkChild(turn.cancel, { startImmediately: true })
      yield* TestClock.adjust("9 seconds")
      assert.isUndefined(cancelling.pollUnsafe())
      yield* TestClock.adjust("1 second")
      const outcome = yield* Fiber.join(cancelling)
      assert.deepStrictEqual(outcome, {
        _tag: "Cancelled",
        by: "caller",
        agentReported: null,
        escalation: "retired"
      })
      assert.deepStrictEqual(agent.methods(), [
        "initialize",
        "session/new",
        "session/prompt",
        "session/cancel",
        "session/cancel",
        "$/cancel_request"
      ])
      assert.strictEqual((yield* Effect.flip(session.submit("again")))._tag, "SessionUnusable")
      yield* agent.gone
    }).pipe(Effect.provide(layer({ script: { prompt: () => Effect.never, ignoreCancel: true } })))
  )

  it.effect("B32: a turn on one session delays nothing on another", () =>
    Effect.gen(function* () {
      const { agent, session, vm } = yield* TestSidecar.open()
      const slow = yield* session.submit("slow")
      const held = yield* Queue.take(agent.prompts)
      const other = yield* TestSidecar.open({ vm })
      const fast = yield* other.session.submit("fast")
      const quick = yield* Queue.take(other.agent.prompts)
      yield* quick.end()
      assert.strictEqual((yield* fast.await)._tag, "Completed")
      yield* other.session.close
      yield* held.end()
      assert.strictEqual((yield* slow.await)._tag, "Completed")
      const sidecar = yield* Sidecar.Sidecar
      assert.strictEqual((yield* sidecar.describe).activePrompts, 0)
    }).pipe(Effect.provide(layer({ script: { prompt: "manual" } })))
  )
})

everywhere("limits", (layer) => {
  it.effect("B36, A1: no Vm at 0, then up to the cap, past it a refusal, and again after a release", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const first = yield* sidecar.openVm({ root: "/a" })
      yield* sidecar.openVm({ root: "/b" })
      const refused = yield* Effect.flip(sidecar.openVm({ root: "/c" }))
      assert.deepInclude(refused, {
        _tag: "LimitExceeded",
        scope: "sidecar",
        limit: "maxVms",
        max: 2,
        used: 2,
        setting: "ACP_SIDECAR_MAX_VMS"
      })
      assert.include(refused.message, "maxVms of the sidecar is 2 and 2 are used; wait for one to end, or raise")
      assert.strictEqual((yield* sidecar.describe).activeVmCount, 2)
      yield* first.close
      const third = yield* sidecar.openVm({ root: "/c" })
      assert.strictEqual(third.id, "vm-3")
      assert.strictEqual((yield* sidecar.describe).activeVmCount, 2)
    }).pipe(provided(layer({ limits: { maxVms: 2 } })))
  )

  it.effect("no Vm can be opened when that limit is 0", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const refused = yield* Effect.flip(sidecar.openVm({ root: "/a" }))
      assert.strictEqual(refused._tag, "LimitExceeded")
      assert.include(refused.message, "0 are used; raise ACP_SIDECAR_MAX_VMS")
    }).pipe(provided(layer({ limits: { maxVms: 0 } })))
  )

  it.effect("of two Vms that are opened at once for the last place one gets it, wherever they are paused", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      for (let ops = 3; ops <= 12; ops++) {
        const scope = yield* Scope.make()
        const opening = Effect.exit(sidecar.openVm({ root: "/a" })).pipe(
          Scope.provide(scope),
          Effect.provideService(References.MaxOpsBeforeYield, ops)
        )
        const exits = yield* Effect.all([opening, opening], { concurrency: "unbounded" })
        assert.strictEqual(exits.filter(Exit.isSuccess).length, 1)
        yield* Scope.close(scope, Exit.void)
        assert.strictEqual((yield* sidecar.describe).activeVmCount, 0)
      }
    }).pipe(provided(layer({ limits: { maxVms: 1 } })))
  )

  it.effect("a warning comes once at 80 %, and again only after the use fell under 50 %", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const events = yield* watch
      const open = (count: number) =>
        Effect.forEach(Array.from({ length: count }), () => sidecar.openVm({ root: "/a" }))
      const vms = yield* open(10)
      yield* Effect.forEach(vms.slice(0, 5), (vm) => vm.close)
      yield* open(5)
      assert.strictEqual(vms.length, 10)
      yield* idle
      const warnings = () => events.filter((event) => event.kind === "limit_warning")
      assert.strictEqual(warnings().length, 1)
      assert.deepInclude(warnings()[0], { limit: "maxVms", used: 8, max: 10 })
      assert.include(warnings()[0]!.detail, "ACP_SIDECAR_MAX_VMS")
      yield* Effect.forEach(vms.slice(5), (vm) => vm.close)
      const more = (yield* sidecar.describe).vms.length
      assert.strictEqual(more, 5)
      yield* open(5)
      yield* idle
      assert.strictEqual(warnings().length, 1)
    }).pipe(provided(layer({ limits: { maxVms: 10 } })))
  )

  it.effect("after the use fell under 50 % the warning comes again", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const events = yield* watch
      for (let round = 1; round <= 3; round++) {
        const scope = yield* Scope.make()
        for (let i = 0; i < 8; i++) yield* sidecar.openVm({ root: "/a" }).pipe(Scope.provide(scope))
        yield* Scope.close(scope, Exit.void)
        yield* idle
        assert.strictEqual(events.filter((event) => event.kind === "limit_warning").length, round)
      }
    }).pipe(provided(layer({ limits: { maxVms: 10 } })))
  )

  it.effect("a Vm may have limits of its own, and one that makes no sense is refused", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const small = yield* sidecar.openVm({ root: "/a", limits: { maxSessionsPerVm: 1 } })
      yield* small.openSession({ agent: TestSidecar.profile })
      const refused = yield* Effect.flip(small.openSession({ agent: TestSidecar.profile }))
      assert.deepInclude(refused, { _tag: "LimitExceeded", scope: "vm", limit: "maxSessionsPerVm", max: 1 })
      const large = yield* sidecar.openVm({ root: "/b" })
      yield* large.openSession({ agent: TestSidecar.profile })
      yield* large.openSession({ agent: TestSidecar.profile })
      const invalid = yield* Effect.flip(sidecar.openVm({ root: "/c", limits: { maxSessionsPerVm: -1 } }))
      assert.deepInclude(invalid, { _tag: "InvalidLimit", limit: "maxSessionsPerVm" })
      assert.strictEqual((yield* sidecar.describe).activeVmCount, 2)
    }).pipe(provided(layer()))
  )
})

everywhere("scopes", (layer) => {
  it.effect("a Vm and its sessions end with the scope of whoever opened it, and the sidecar lives on", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const { alive } = yield* TestSidecar.TestSidecar
      const caller = yield* Scope.make()
      const vm = yield* sidecar.openVm({ root: "/a" }).pipe(Scope.provide(caller))
      yield* vm.openSession({ agent: TestSidecar.profile })
      assert.strictEqual(alive(), 1)
      yield* Scope.close(caller, Exit.void)
      assert.strictEqual(alive(), 0)
      assert.deepInclude(yield* sidecar.describe, { state: "ready", activeVmCount: 0 })
      assert.strictEqual((yield* Effect.flip(vm.openSession({ agent: TestSidecar.profile })))._tag, "Disposed")
    }).pipe(provided(layer()))
  )

  it.effect("a Vm whose caller's scope is closed already is closed, and holds nothing", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const caller = yield* Scope.make()
      yield* Scope.close(caller, Exit.void)
      const vm = yield* sidecar.openVm({ root: "/a" }).pipe(Scope.provide(caller))
      assert.strictEqual((yield* Effect.flip(vm.openSession({ agent: TestSidecar.profile })))._tag, "Disposed")
      assert.deepInclude(yield* sidecar.describe, { state: "ready", activeVmCount: 0, vms: [] })
    }).pipe(provided(layer()))
  )

  it.effect("whoever goes away as its call begins runs its finalizers, wherever it was paused", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      let finalized = 0
      for (let ops = 3; ops <= 60; ops++) {
        const opening = yield* Effect.scoped(sidecar.openVm({ root: "/a" })).pipe(
          Effect.ensuring(Effect.sync(() => finalized++)),
          Effect.provideService(References.MaxOpsBeforeYield, ops),
          beside
        )
        yield* Fiber.interrupt(opening)
        assert.strictEqual(finalized, ops - 2, `${ops}`)
      }
      assert.deepInclude(yield* sidecar.describe, { state: "ready", activeVmCount: 0 })
    }).pipe(provided(layer()))
  )

  it.effect("when all of the layer's scope goes, so does every agent", () =>
    Effect.gen(function* () {
      const layerScope = yield* Scope.make()
      const context = yield* Layer.buildWithScope(layer(), layerScope)
      const sidecar = Context.get(context, Sidecar.Sidecar)
      const { alive } = Context.get(context, TestSidecar.TestSidecar)
      const vm = yield* sidecar.openVm({ root: "/a" })
      yield* vm.openSession({ agent: TestSidecar.profile })
      yield* Scope.close(layerScope, Exit.void)
      assert.strictEqual(alive(), 0)
      assert.strictEqual((yield* sidecar.describe).state, "disposed")
      // And there is nothing left to do.
      yield* sidecar.dispose
      yield* vm.close
    })
  )

  it.effect("a session that is closed leaves nothing in the scope of its opener, nor in its Vm's", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const caller = yield* Scope.make()
      const vm = yield* sidecar.openVm({ root: "/a" }).pipe(Scope.provide(caller))
      const count = () => {
        const { state } = caller
        return state._tag === "Open" ? (state.finalizers?.size ?? 1) : 0
      }
      const before = count()
      for (let i = 0; i < 1000; i++) {
        const session = yield* vm.openSession({ agent: TestSidecar.profile }).pipe(Scope.provide(caller))
        yield* session.close
      }
      assert.strictEqual(count(), before)
      for (let i = 0; i < 100; i++) {
        const other = yield* sidecar.openVm({ root: "/b" }).pipe(Scope.provide(caller))
        yield* other.close
      }
      assert.strictEqual(count(), before)
      yield* Scope.close(caller, Exit.void)
      assert.strictEqual((yield* sidecar.describe).activeVmCount, 0)
    }).pipe(provided(layer()))
  )
})

everywhere("dispose", (layer) => {
  it.effect("C03: idle, it takes no time", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      yield* TestSidecar.open()
      yield* TestSidecar.open()
      yield* sidecar.dispose
      assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      assert.deepInclude(yield* sidecar.describe, { state: "disposed", activeVmCount: 0, activePrompts: 0, vms: [] })
      assert.strictEqual((yield* Effect.flip(sidecar.openVm({ root: "/a" })))._tag, "Disposed")
    }).pipe(provided(layer()))
  )

  it.effect("C03, L5: with 100 turns whose agents ignore cancel it takes one grace period", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const { alive } = yield* TestSidecar.TestSidecar
      const turns: Array<Session.Turn> = []
      for (let v = 0; v < 10; v++) {
        const vm = yield* sidecar.openVm({ root: "/a" })
        for (let s = 0; s < 10; s++) {
          const session = yield* vm.openSession({ agent: TestSidecar.profile })
          turns.push(yield* session.submit("go"))
        }
      }
      assert.strictEqual((yield* sidecar.describe).activePrompts, 100)
      const disposing = yield* beside(sidecar.dispose)
      yield* TestClock.adjust("9999 millis")
      assert.isUndefined(disposing.pollUnsafe())
      assert.strictEqual((yield* sidecar.describe).state, "disposing")
      yield* TestClock.adjust("1 millis")
      yield* Fiber.join(disposing)
      assert.strictEqual(alive(), 0)
      for (const turn of turns) {
        assert.deepStrictEqual(yield* turn.outcome, {
          _tag: "Cancelled",
          by: "dispose",
          agentReported: null,
          escalation: "retired"
        })
      }
      assert.deepInclude(yield* sidecar.describe, { state: "disposed", activePrompts: 0 })
    }).pipe(provided(layer({ script: { prompt: () => Effect.never, ignoreCancel: true } })))
  )

  it.effect("L5: an interrupted caller doesn't stop it, and a later one waits for the rest", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const { session } = yield* TestSidecar.open()
      yield* session.submit("go")
      const first = yield* beside(sidecar.dispose)
      yield* TestClock.adjust("4 seconds")
      yield* Fiber.interrupt(first)
      assert.strictEqual((yield* sidecar.describe).state, "disposing")
      assert.strictEqual((yield* Effect.flip(sidecar.openVm({ root: "/a" })))._tag, "Disposed")
      const later = yield* Effect.forEach([1, 2, 3], () => beside(sidecar.dispose))
      yield* TestClock.adjust("5 seconds")
      assert.isTrue(later.every((fiber) => fiber.pollUnsafe() === undefined))
      yield* TestClock.adjust("1 seconds")
      yield* Fiber.joinAll(later)
      assert.strictEqual((yield* sidecar.describe).state, "disposed")
      yield* sidecar.dispose
    }).pipe(provided(layer({ script: { prompt: () => Effect.never, ignoreCancel: true } })))
  )

  it.effect("L5: closing a session, its Vm and the sidecar at once ends each of them", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const { alive } = yield* TestSidecar.TestSidecar
      const { session, vm } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      const closing = yield* Effect.forEach(
        [session.close, vm.close, sidecar.dispose, vm.close, session.close],
        (close) => beside(close)
      )
      yield* TestClock.adjust("10 seconds")
      yield* Fiber.joinAll(closing)
      assert.strictEqual((yield* turn.outcome)._tag, "Cancelled")
      assert.strictEqual(alive(), 0)
    }).pipe(provided(layer({ script: { prompt: () => Effect.never, ignoreCancel: true } })))
  )

  it.effect("closing wherever the closers are paused ends all of them", () =>
    Effect.gen(function* () {
      for (let ops = 3; ops <= 14; ops++) {
        yield* Effect.gen(function* () {
          const sidecar = yield* Sidecar.Sidecar
          const { alive } = yield* TestSidecar.TestSidecar
          const { session, vm } = yield* TestSidecar.open()
          const closing = yield* Effect.forEach([session.close, vm.close, sidecar.dispose, session.close], (close, i) =>
            Effect.forkChild(Effect.provideService(close, References.MaxOpsBeforeYield, ops + i))
          )
          yield* Fiber.joinAll(closing)
          assert.strictEqual(alive(), 0)
        }).pipe(Effect.scoped, Effect.provide(layer(), { local: true }))
      }
    })
  )
})

everywhere("events", (layer) => {
  it.effect("are numbered without gaps, in order, and end with the sidecar", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const reading = yield* beside(Stream.runCollect(sidecar.events))
      const { session, vm } = yield* TestSidecar.open()
      yield* session.prompt("go")
      yield* session.close
      yield* vm.close
      yield* sidecar.dispose
      const events = yield* Fiber.join(reading)
      assert.deepStrictEqual(
        events.map(({ number, kind }) => [number, kind]),
        [
          "vm_opened",
          "host_started",
          "session_opened",
          "turn_ended",
          "session_ended",
          "host_exited",
          "vm_closed",
          "disposing",
          "disposed"
        ].map((kind, i) => [i + 1, kind])
      )
      assert.isTrue(events.every((event) => event.address.sidecarId === sidecar.id))
      assert.deepStrictEqual(yield* Stream.runCollect(sidecar.events), [])
    }).pipe(provided(layer()))
  )

  it.effect("a reader that stalls misses the oldest of them, and no other reader misses any", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const gate = yield* Deferred.make<void>()
      const slow: Array<number> = []
      const stalled = yield* beside(
        Stream.runForEach(sidecar.events, ({ number }) =>
          Effect.andThen(
            Effect.sync(() => slow.push(number)),
            Deferred.await(gate)
          )
        )
      )
      const events = yield* watch
      for (let i = 0; i < 1000; i++) {
        const vm = yield* sidecar.openVm({ root: "/a" })
        yield* vm.close
        if (i % 50 === 0) yield* idle
      }
      yield* sidecar.dispose
      yield* Deferred.succeed(gate, undefined)
      yield* Fiber.join(stalled)
      assert.deepStrictEqual(
        events.map(({ number }) => number),
        Array.from({ length: 2002 }, (_, i) => i + 1)
      )
      assert.strictEqual(slow.at(-1), 2002)
      assert.isAtMost(slow.length, 1026)
    }).pipe(provided(layer()))
  )
})

everywhere("H3: a crash", (layer) => {
  it.effect("B14, B16: ends the session once with the evidence, gives its place back, and the next open works", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const events = yield* watch
      const { agent, session, vm } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* prompt.say("almost")
      yield* agent.crash({ code: 134, stderrTail: "out of memory" })
      const outcome = yield* turn.outcome
      assert.strictEqual(outcome._tag, "Failed")
      assert.deepInclude(outcome._tag === "Failed" ? outcome.error.reason : {}, {
        _tag: "ProcessExited",
        code: 134,
        stderrTail: "out of memory"
      })
      const all = yield* Stream.runCollect(session.updates)
      const ends = all.filter(is("SessionEnded"))
      assert.strictEqual(ends.length, 1)
      assert.strictEqual(all.at(-1), ends[0])
      assert.deepInclude(ends[0], { reason: "agent_exited" })
      assert.include(ends[0]!.detail, "code 134")
      yield* session.close
      assert.strictEqual((yield* vm.describe).sessions.length, 0)
      assert.strictEqual((yield* sidecar.describe).activePrompts, 0)
      assert.strictEqual(events.filter((event) => event.kind === "session_ended").length, 1)

      const next = yield* TestSidecar.open({ vm })
      const again = yield* next.session.submit("go")
      yield* (yield* Queue.take(next.agent.prompts)).end()
      assert.strictEqual((yield* again.await)._tag, "Completed")
    }).pipe(provided(layer({ script: { prompt: "manual" }, limits: { maxSessionsPerVm: 1 } })))
  )

  it.effect("B19: an agent that closes its output is told from one that exits", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      yield* agent.closeOutput
      yield* idle
      // It is the transport that knows; in memory the agent lives on until it is ended.
      yield* agent.crash({ signal: "SIGKILL" })
      assert.include((yield* until(session, "SessionEnded")).detail, "SIGKILL")
    }).pipe(provided(layer()))
  )

  it.effect("a crash of one agent is nothing to the session beside it", () =>
    Effect.gen(function* () {
      const { agent, vm } = yield* TestSidecar.open()
      const other = yield* TestSidecar.open({ vm })
      yield* agent.crash()
      yield* idle
      assert.strictEqual((yield* other.session.prompt("go"))._tag, "Completed")
      assert.strictEqual((yield* vm.describe).sessions.length, 1)
    }).pipe(provided(layer()))
  )
})

everywhere("describe", (layer) => {
  it.effect("is plain data that survives JSON", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      yield* session.submit("go")
      yield* session.submit("later", { lane: "background" })
      const prompt = yield* Queue.take(agent.prompts)
      yield* beside(prompt.ask())
      yield* until(session, "PermissionAsked")
      const info = yield* sidecar.describe
      assert.deepStrictEqual(JSON.parse(JSON.stringify(info)), info)
      assert.deepInclude(info, { state: "ready", activeVmCount: 1, activePrompts: 1 })
      assert.deepInclude(info.limits, { cancelGrace: 10_000, turnTimeout: "off", maxVms: 64 })
      const [vm] = info.vms
      assert.deepInclude(vm as object, { vmId: "vm-1", root: "/work", opening: 0, activePrompts: 1 })
      assert.deepInclude(vm!.sessions[0] as object, {
        sessionId: "session-1",
        agentSessionId: "agent-session-1",
        agent: "scripted",
        pid: null,
        cwd: "/work",
        state: "open",
        pendingPermissions: 1
      })
      assert.deepStrictEqual(
        vm!.sessions[0]!.turns.map(({ lane, phase }) => [phase, lane]),
        [
          ["running", "interactive"],
          ["queued", "background"]
        ]
      )
    }).pipe(provided(layer({ script: { prompt: "manual" } })))
  )
})

describe("layerTest", () => {
  it.effect("gives another sidecar, with agents of its own, at each call, also within one program", () =>
    Effect.gen(function* () {
      const launches: Array<string> = []
      const layer = (name: string) =>
        Sidecar.layerTest(() =>
          Effect.suspend(() => {
            launches.push(name)
            return Effect.map(ScriptedAgent.make(), ({ transport }) => transport)
          })
        )
      const open = Effect.gen(function* () {
        const sidecar = yield* Sidecar.Sidecar
        const vm = yield* sidecar.openVm({ root: "/work" })
        yield* vm.openSession({ agent: TestSidecar.profile })
        return sidecar
      })
      const both = Effect.all([open, Effect.provide(open, layer("inner"))])
      const [outer, inner] = yield* Effect.provide(both, layer("outer"))
      assert.notStrictEqual(outer.id, inner.id)
      assert.deepStrictEqual(launches, ["outer", "inner"])
    })
  )
})
