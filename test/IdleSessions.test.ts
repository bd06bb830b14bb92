import { assert, it } from "@effect/vitest"
import { AgentProfile, Sidecar } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import { TestClock } from "effect/testing"
import { beside, idle, provided, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"
import { manual } from "./support/turns.ts"

const shared: AgentProfile.AgentProfile = { ...TestSidecar.profile, share: AgentProfile.sharing({}) }
const openVm = Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work" }))
const alive = Effect.map(TestSidecar.TestSidecar, (test) => test.alive())
const closing = { capabilities: { sessionCapabilities: { close: {} } } }

everywhere("a session that nobody uses", (layer) => {
  it.effect("B10: is closed at its agent after its time, and the last of a process takes that along", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const sessions = yield* Effect.forEach(Array.from({ length: 20 }), () => vm.openSession({ agent: shared }))
      const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
      yield* TestClock.adjust("10 minutes")
      for (const session of sessions) assert.strictEqual((yield* until(session, "SessionEnded")).reason, "idle")
      yield* idle
      assert.strictEqual(agent.methods().filter((method) => method === "session/close").length, 20)
      assert.strictEqual((yield* vm.describe).sessions.length, 0)
      yield* TestClock.adjust("1 second")
      yield* idle
      assert.strictEqual(yield* alive, 0)
      const refused = yield* Effect.flip(sessions[0]!.submit("go"))
      assert.isTrue(refused._tag === "SessionUnusable" && refused.reason === "idle")
    }).pipe(provided(layer({ script: closing, limits: { sessionIdleTimeout: "10 minutes" } })))
  )

  it.effect("B11: is gone after the budget of its close, also when its agent never answers that", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* TestClock.adjust("10 minutes")
      assert.strictEqual((yield* until(session, "SessionEnded")).reason, "idle")
      yield* TestClock.adjust("2 seconds")
      yield* idle
      assert.strictEqual(yield* alive, 0)
    }).pipe(
      provided(
        layer({
          script: { ...closing, closeSession: () => Effect.never },
          limits: { sessionIdleTimeout: "10 minutes" }
        })
      )
    )
  )

  it.effect("is not one with a turn or a question, and its time starts anew with the end of these", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* TestClock.adjust("1 hour")
      yield* prompt.end()
      yield* turn.await
      yield* TestClock.adjust("9 minutes")
      const asking = yield* beside(agent.ask(session.agentSessionId))
      yield* idle
      yield* TestClock.adjust("9 minutes")
      const [question] = yield* session.pendingPermissions
      yield* session.answer(question!.permissionId, "allow")
      yield* Fiber.join(asking)
      yield* TestClock.adjust("599 seconds")
      assert.strictEqual((yield* session.describe).state, "open")
      yield* TestClock.adjust("1 second")
      assert.strictEqual((yield* until(session, "SessionEnded")).reason, "idle")
    }).pipe(provided(layer({ script: manual, limits: { sessionIdleTimeout: "10 minutes" } })))
  )

  it.effect(
    "B11: makes room for a new one where the Vm is full, the one longest unused first, and no busy one does",
    () =>
      Effect.gen(function* () {
        const vm = yield* openVm
        const open = vm.openSession({ agent: shared })
        const busy = yield* open
        yield* busy.submit("go")
        const older = yield* open
        yield* TestClock.adjust("1 minute")
        const newer = yield* open
        yield* TestClock.adjust("5 minutes")
        yield* open
        assert.strictEqual((yield* until(older, "SessionEnded")).reason, "idle")
        assert.strictEqual((yield* newer.describe).state, "open")
        yield* open
        assert.strictEqual((yield* until(newer, "SessionEnded")).reason, "idle")
        assert.strictEqual((yield* Effect.flip(open))._tag, "LimitExceeded")
        assert.strictEqual((yield* busy.describe).turns.length, 1)
      }).pipe(provided(layer({ script: manual, limits: { maxSessionsPerVm: 3, reclaimIdleAfter: "5 minutes" } })))
  )
})
