import { assert, describe, it } from "@effect/vitest"
import { Address, AgentHost, AgentLauncher, AgentSession, Sidecar, SidecarLimits } from "acp-sidecar"
import { ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as References from "effect/References"
import * as Scope from "effect/Scope"
import { beside, idle, provided } from "./support/events.ts"
import { everywhere } from "./support/places.ts"

const { profile } = TestSidecar
const openVm = Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work" }))

everywhere("places for sessions", (layer) => {
  it.effect("B36: none at 0", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const refused = yield* Effect.flip(vm.openSession({ agent: profile }))
      assert.deepInclude(refused, { _tag: "LimitExceeded", scope: "vm", max: 0, used: 0 })
    }).pipe(provided(layer({ limits: { maxSessionsPerVm: 0 } })))
  )

  it.effect("B36, A1: up to the cap, past it a refusal that starts nothing, and again after a close", () =>
    Effect.gen(function* () {
      const { alive } = yield* TestSidecar.TestSidecar
      const vm = yield* openVm
      const first = yield* vm.openSession({ agent: profile })
      yield* vm.openSession({ agent: profile })
      for (let i = 0; i < 10_000; i++) {
        const refused = yield* Effect.flip(vm.openSession({ agent: profile }))
        assert.deepInclude(refused, {
          _tag: "LimitExceeded",
          scope: "vm",
          limit: "maxSessionsPerVm",
          max: 2,
          used: 2,
          setting: "ACP_SIDECAR_MAX_SESSIONS_PER_VM"
        })
      }
      assert.strictEqual(alive(), 2)
      yield* first.close
      yield* vm.openSession({ agent: profile })
      assert.strictEqual((yield* vm.describe).sessions.length, 2)
    }).pipe(provided(layer({ limits: { maxSessionsPerVm: 2 } })))
  )

  it.effect("L2: a place is taken before the agent is started, so that two at once don't both get the last one", () =>
    Effect.gen(function* () {
      const { launches } = yield* TestSidecar.TestSidecar
      const vm = yield* openVm
      const openings = yield* Effect.forEach([1, 2], () => beside(Effect.exit(vm.openSession({ agent: profile }))))
      yield* idle
      assert.strictEqual(launches().length, 1)
      assert.isUndefined(openings[0]!.pollUnsafe())
      assert.isTrue(Exit.isFailure(yield* Fiber.join(openings[1]!)))
      assert.strictEqual((yield* vm.describe).opening, 1)
      yield* Fiber.interrupt(openings[0]!)
      assert.strictEqual((yield* vm.describe).opening, 0)
    }).pipe(provided(layer({ limits: { maxSessionsPerVm: 1 }, script: { newSession: () => Effect.never } })))
  )

  it.effect("of two sessions that are opened at once for the last place one gets it, wherever they are paused", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      for (let ops = 3; ops <= 12; ops++) {
        const scope = yield* Scope.make()
        const opening = Effect.exit(vm.openSession({ agent: profile })).pipe(
          Scope.provide(scope),
          Effect.provideService(References.MaxOpsBeforeYield, ops)
        )
        const exits = yield* Effect.all([opening, opening], { concurrency: "unbounded" })
        assert.strictEqual(exits.filter(Exit.isSuccess).length, 1)
        yield* Scope.close(scope, Exit.void)
        assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
      }
    }).pipe(provided(layer({ limits: { maxSessionsPerVm: 1 } })))
  )

  it.effect("A2, B12: turns that succeed, fail or are cancelled give their place back, each time", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const { agent, session } = yield* TestSidecar.open()
      for (let i = 0; i < 6; i++) {
        const turn = yield* session.submit("go")
        const prompt = yield* Queue.take(agent.prompts)
        if (i % 3 === 0) yield* prompt.end()
        if (i % 3 === 1) yield* prompt.fail(-32603, "no")
        if (i % 3 === 2) yield* beside(Effect.andThen(prompt.cancelled, prompt.end("cancelled")))
        yield* i % 3 === 2 ? turn.cancel : turn.outcome
        assert.strictEqual((yield* sidecar.describe).activePrompts, 0)
      }
    }).pipe(provided(layer({ script: { prompt: "manual" }, limits: { maxPromptsPerVm: 1 } })))
  )
})

everywhere("sessions of a Vm", (layer) => {
  it.effect("S1: the session of another Vm and one that never was get the same answer", () =>
    Effect.gen(function* () {
      const mine = yield* TestSidecar.open()
      const other = yield* openVm
      assert.strictEqual((yield* mine.vm.session(mine.session.id)).id, mine.session.id)
      const theirs = yield* Effect.flip(other.session(mine.session.id))
      const unknown = yield* Effect.flip(other.session(Address.SessionId.make("session-999")))
      assert.strictEqual(theirs._tag, "NotFound")
      assert.strictEqual(unknown._tag, "NotFound")
      assert.strictEqual(theirs.message.replace(mine.session.id, "X"), unknown.message.replace("session-999", "X"))
      yield* mine.session.close
      assert.strictEqual((yield* Effect.flip(mine.vm.session(mine.session.id)))._tag, "NotFound")
    }).pipe(provided(layer()))
  )

  it.effect("a session ends with the scope of whoever opened it", () =>
    Effect.gen(function* () {
      const { alive } = yield* TestSidecar.TestSidecar
      const vm = yield* openVm
      const caller = yield* Scope.make()
      const session = yield* vm.openSession({ agent: profile }).pipe(Scope.provide(caller))
      yield* Scope.close(caller, Exit.void)
      assert.strictEqual(alive(), 0)
      assert.strictEqual((yield* Effect.flip(session.submit("go")))._tag, "SessionUnusable")
      yield* session.close
      assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
    }).pipe(provided(layer()))
  )

  it.effect("a session that was closed may be closed again, by anyone and by its opener's scope", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const caller = yield* Scope.make()
      const session = yield* vm.openSession({ agent: profile }).pipe(Scope.provide(caller))
      yield* Effect.all([session.close, session.close, Scope.close(caller, Exit.void)], { concurrency: "unbounded" })
      yield* session.close
      yield* vm.close
      yield* session.close
      assert.strictEqual((yield* vm.describe).opening, 0)
    }).pipe(provided(layer()))
  )

  it.effect("an interrupted close goes on, and the next caller waits for its end", () =>
    Effect.gen(function* () {
      const gate = yield* Deferred.make<void>()
      const { agent, session } = yield* TestSidecar.open()
      yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      const first = yield* beside(session.close)
      yield* beside(Effect.andThen(prompt.cancelled, Effect.andThen(Deferred.await(gate), prompt.end("cancelled"))))
      yield* idle
      yield* Fiber.interrupt(first)
      const second = yield* beside(session.close)
      yield* idle
      assert.isUndefined(second.pollUnsafe())
      yield* Deferred.succeed(gate, undefined)
      yield* Fiber.join(second)
      yield* agent.gone
    }).pipe(provided(layer({ script: { prompt: "manual" } })))
  )

  it.effect("the close of a Vm ends its sessions and no other Vm's", () =>
    Effect.gen(function* () {
      const { alive } = yield* TestSidecar.TestSidecar
      const mine = yield* TestSidecar.open()
      yield* TestSidecar.open({ vm: mine.vm })
      const other = yield* TestSidecar.open()
      assert.strictEqual(alive(), 3)
      yield* mine.vm.close
      assert.strictEqual(alive(), 1)
      assert.strictEqual((yield* other.session.prompt("go"))._tag, "Completed")
    }).pipe(provided(layer()))
  )
})

describe("one agent process", () => {
  const options = (emit: AgentHost.Options["emit"]): AgentHost.Options => ({
    address: { sidecarId: Address.SidecarId.make("s") },
    profile,
    cwd: "/work",
    env: [],
    limits: SidecarLimits.defaults,
    emit
  })
  const route = {
    onUpdate: () => {},
    onTooLarge: () => {},
    onPermission: () => Effect.void,
    flush: () => {}
  }
  const request = { how: { _tag: "New" as const }, cwd: "/work", authenticate: undefined }

  it.effect("that gives two sessions one id is refused the second one, and the first one lives on", () =>
    Effect.gen(function* () {
      const progress: AgentHost.Start = { phase: "spawn", connection: undefined }
      const host = yield* AgentHost.start(
        options(() => {}),
        progress
      )
      const first = yield* AgentSession.open(host, { ...request, route: { ...route } }, progress)
      assert.strictEqual(first.agentSessionId, "same")
      const scope = yield* Scope.make()
      const refused = yield* AgentSession.open(host, { ...request, route: { ...route } }, progress).pipe(
        Scope.provide(scope),
        Effect.flip
      )
      assert.deepInclude(refused, { _tag: "InvalidResponse", method: "session/new" })
      yield* Scope.close(scope, Exit.void)
      assert.isDefined(host.router.routes.get("same"))
    }).pipe(
      Effect.scoped,
      Effect.provide(
        AgentLauncher.layer(() =>
          Effect.map(
            ScriptedAgent.make({ newSession: () => Effect.succeed({ sessionId: "same" }) }),
            (agent) => agent.transport
          )
        )
      )
    )
  )

  it.effect("B51: a closed route leaves a tombstone", () =>
    Effect.gen(function* () {
      const progress: AgentHost.Start = { phase: "spawn", connection: undefined }
      const host = yield* AgentHost.start(
        options(() => {}),
        progress
      )
      const scope = yield* Scope.make()
      const { agentSessionId } = yield* AgentSession.open(host, { ...request, route }, progress).pipe(
        Scope.provide(scope)
      )
      assert.isTrue(host.router.routes.has(agentSessionId))
      yield* Scope.close(scope, Exit.void)
      assert.isFalse(host.router.routes.has(agentSessionId))
      assert.isTrue(host.router.tombstones.has(agentSessionId))
    }).pipe(
      Effect.scoped,
      Effect.provide(AgentLauncher.layer(() => Effect.map(ScriptedAgent.make(), (agent) => agent.transport)))
    )
  )

  it.effect("tells of its start and, once, of its end, whether it was ended or died", () =>
    Effect.gen(function* () {
      const kinds: Array<string> = []
      const progress: AgentHost.Start = { phase: "spawn", connection: undefined }
      const scope = yield* Scope.make()
      const host = yield* AgentHost.start(
        options((event) => kinds.push(event.kind)),
        progress
      ).pipe(Scope.provide(scope))
      yield* host.retire("a test")
      yield* idle
      yield* Scope.close(scope, Exit.void)
      assert.deepStrictEqual(kinds, ["host_started", "host_exited"])
      assert.isFalse(host.connection.isOpen())
    }).pipe(Effect.provide(AgentLauncher.layer(() => Effect.map(ScriptedAgent.make(), (agent) => agent.transport))))
  )
})
