import { assert, it } from "@effect/vitest"
import { AgentProfile, Sidecar, type Session, type Vm } from "acp-sidecar"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import { TestClock } from "effect/testing"
import { beside, chunk, idle, is, provided, soFar, textOf, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"
import { manual } from "./support/turns.ts"

const agent: AgentProfile.AgentProfile = { ...TestSidecar.profile, share: AgentProfile.sharing({}) }
const openVm = Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work" }))
const firstAgent = Effect.flatMap(TestSidecar.TestSidecar, ({ agents }) => Queue.take(agents))

const tell = (scripted: ScriptedAgent.ScriptedAgent, sessionId: string, from: number, count: number) =>
  Effect.forEach(Array.from({ length: count }), (_, i) => scripted.update(sessionId, chunk(`${from + i}`)))

const replaying = (count: number): ScriptedAgent.Script => {
  const answer = (scripted: ScriptedAgent.ScriptedAgent, sessionId: string) =>
    Effect.as(tell(scripted, sessionId, 0, count), {})
  return {
    capabilities: { loadSession: true, sessionCapabilities: { resume: {}, close: {}, list: {} } },
    loadSession: answer,
    resumeSession: answer
  }
}

const updates = (session: Session.Session) =>
  Effect.map(soFar(session), (events) =>
    events.filter(is("Update")).map((event) => ({ text: textOf(event), isReplay: event.replay === true }))
  )

const openFrom = (vm: Vm.Vm, from: Session.From) => vm.openSession({ agent, from })

everywhere("a session that the agent has had before", (layer) => {
  it.effect("B77: is loaded with its history, which is told from what comes after the answer", () =>
    Effect.gen(function* () {
      const session = yield* openFrom(yield* openVm, { agentSessionId: "old", method: "load" })
      yield* tell(yield* firstAgent, "old", 50, 5)
      yield* idle
      const all = yield* updates(session)
      assert.strictEqual(session.agentSessionId, "old")
      assert.deepStrictEqual(
        all.map(({ text }) => text),
        Array.from({ length: 55 }, (_, i) => `${i}`)
      )
      assert.strictEqual(all.filter(({ isReplay }) => isReplay).length, 50)
      assert.isTrue(all.slice(50).every(({ isReplay }) => !isReplay))
    }).pipe(provided(layer({ script: replaying(50) })))
  )

  it.effect("B78: is resumed without its history, also where the agent tells it all the same", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const session = yield* openFrom(vm, { agentSessionId: "old", method: "resume" })
      yield* tell(yield* firstAgent, "old", 3, 1)
      yield* idle
      assert.deepStrictEqual(
        (yield* updates(session)).map(({ text }) => text),
        ["3"]
      )
      const kept = yield* openFrom(vm, { agentSessionId: "older", method: "resume", replay: "keep" })
      yield* idle
      assert.deepStrictEqual(
        (yield* updates(kept)).map(({ isReplay }) => isReplay),
        [true, true, true]
      )
      const dropped = yield* openFrom(vm, { agentSessionId: "oldest", method: "load", replay: "drop" })
      assert.deepStrictEqual(yield* updates(dropped), [])
    }).pipe(provided(layer({ script: replaying(3) })))
  )

  it.effect("is refused with a type where the agent does not offer that", () =>
    Effect.gen(function* () {
      const refused = yield* Effect.flip(openFrom(yield* openVm, { agentSessionId: "old", method: "load" }))
      assert.isTrue(refused._tag === "AgentStartFailed" && refused.reason._tag === "NotSupported", refused.message)
    }).pipe(provided(layer()))
  )

  it.effect("B51: gets nothing of what came late for it before it was resumed", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const held = yield* vm.openSession({ agent })
      const first = yield* vm.openSession({ agent })
      const scripted = yield* firstAgent
      const id = first.agentSessionId
      yield* first.close
      for (const text of ["late", "later"]) yield* scripted.update(id, chunk(text))
      yield* idle
      const again = yield* openFrom(vm, { agentSessionId: id, method: "resume" })
      yield* idle
      assert.deepStrictEqual(yield* updates(again), [])
      assert.strictEqual((yield* again.describe).unrouted.late, 2)
      assert.strictEqual(held.hostId, again.hostId)
      yield* scripted.update(id, chunk("new"))
      yield* idle
      assert.deepStrictEqual(yield* updates(again), [{ text: "new", isReplay: false }])
    }).pipe(provided(layer({ script: { capabilities: { sessionCapabilities: { resume: {}, close: {} } } } })))
  )
})

everywhere("a session that shares its agent", (layer) => {
  it.effect("is cut off alone when it is flooded outside of its turns, and the others go on", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const flooded = yield* vm.openSession({ agent })
      const other = yield* vm.openSession({ agent })
      const scripted = yield* firstAgent
      for (let i = 0; i < 20; i++) yield* scripted.update(flooded.agentSessionId, chunk("x".repeat(100)))
      const end = yield* until(flooded, "SessionEnded")
      assert.strictEqual(end.reason, "quarantined")
      assert.include(end.detail, "maxIdleOutputBytes")
      assert.strictEqual((yield* other.prompt("go"))._tag, "Completed")
      yield* scripted.update(flooded.agentSessionId, chunk("more"))
      yield* idle
      assert.isAbove((yield* other.describe).unrouted.quarantined, 0)
      const [host] = (yield* (yield* Sidecar.Sidecar).describe).hosts
      assert.deepStrictEqual(host!.sessions, [other.id])
    }).pipe(provided(layer({ limits: { maxIdleOutputBytes: 1000 } })))
  )

  it.effect("gets notifications of the agent's own, those for it alone and those for all", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const [one, two] = [yield* vm.openSession({ agent }), yield* vm.openSession({ agent })]
      const scripted = yield* firstAgent
      yield* scripted.send({ method: "_auth/status_update", params: { status: "ok" } })
      yield* scripted.send({ method: "_mine/note", params: { sessionId: one.agentSessionId } })
      yield* idle
      const methods = (session: Session.Session) =>
        Effect.map(soFar(session), (events) => events.filter(is("Notification")).map(({ method }) => method))
      assert.deepStrictEqual(yield* methods(one), ["_auth/status_update", "_mine/note"])
      assert.deepStrictEqual(yield* methods(two), ["_auth/status_update"])
    }).pipe(provided(layer()))
  )

  it.effect("B38: names the sessions that the agent may be busy with when its opening takes too long", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const asking = yield* vm.openSession({ agent, permission: "ask" })
      yield* vm.openSession({ agent })
      const scripted = yield* firstAgent
      yield* beside(scripted.ask(asking.agentSessionId))
      yield* idle
      const opening = yield* beside(Effect.flip(vm.openSession({ agent, startTimeout: "5 seconds" })))
      yield* TestClock.adjust("5 seconds")
      const refused = yield* Fiber.join(opening)
      assert.isTrue(refused._tag === "AgentStartFailed" && refused.reason._tag === "StartTimedOut")
      if (refused._tag !== "AgentStartFailed" || refused.reason._tag !== "StartTimedOut") return
      assert.strictEqual(refused.reason.blockedBy.length, 1)
      assert.include(refused.message, asking.id)
      // A process of its own is not held up.
      yield* vm.openSession({ agent, share: false })
    }).pipe(
      provided(
        layer({
          script: () => {
            let opened = 0
            return {
              ...manual,
              newSession: () => (++opened > 2 ? Effect.never : Effect.succeed({ sessionId: `agent-session-${opened}` }))
            }
          }
        })
      )
    )
  )

  it.effect("that its caller has left while it was opened is closed at the agent when the answer comes", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* vm.openSession({ agent })
      const scripted = yield* firstAgent
      const opening = yield* beside(vm.openSession({ agent }))
      yield* idle
      yield* Fiber.interrupt(opening)
      yield* TestClock.adjust("3 seconds")
      yield* idle
      assert.deepStrictEqual(scripted.methods().slice(-3), ["session/new", "$/cancel_request", "session/close"])
      const [host] = (yield* (yield* Sidecar.Sidecar).describe).hosts
      assert.strictEqual(host!.leases, 1)
    }).pipe(
      provided(
        layer({
          script: () => {
            let opened = 0
            return {
              capabilities: { sessionCapabilities: { close: {} } },
              newSession: () =>
                Effect.as(++opened > 1 ? Effect.sleep("3 seconds") : Effect.void, { sessionId: `s-${opened}` })
            }
          }
        })
      )
    )
  )
})
