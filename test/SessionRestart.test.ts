// Sessions whose agent process ends by itself and that are brought back on another one.
import { assert, it } from "@effect/vitest"
import { AgentProfile, type Session, type Vm } from "acp-sidecar"
import { AcpConnection } from "acp-sidecar/acp"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import { TestClock } from "effect/testing"
import { beside, chunk, idle, is, provided, soFar, textOf, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"

const shared: AgentProfile.AgentProfile = { ...TestSidecar.profile, share: AgentProfile.sharing({}) }
const resumes: ScriptedAgent.Script = {
  prompt: "manual",
  capabilities: { loadSession: true, sessionCapabilities: { resume: {}, close: {} } }
}
const loads: ScriptedAgent.Script = { prompt: "manual", capabilities: { loadSession: true } }

const nextAgent = Effect.flatMap(TestSidecar.TestSidecar, ({ agents }) => Queue.take(agents))
const launches = Effect.map(TestSidecar.TestSidecar, (test) => test.launches().length)
const alive = Effect.map(TestSidecar.TestSidecar, (test) => test.alive())
const open = (options: Partial<Vm.SessionOptions> = {}) => TestSidecar.open({ restart: "resume", ...options })
const tags = (session: Session.Session) => Effect.map(soFar(session), (events) => events.map(({ _tag }) => _tag))

everywhere("a session that is resumed when its agent ends", (layer) => {
  it.effect("B81, B14: fails what ran and waited with evidence, and goes on with the same agent session", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open()
      const [running, waiting] = [yield* session.submit("one"), yield* session.submit("two")]
      yield* Queue.take(agent.prompts)
      yield* agent.crash({ code: 134 })
      for (const turn of [running, waiting]) {
        const { phase, reason } = yield* Effect.flip(turn.await)
        assert.strictEqual(reason._tag, "ProcessExited")
        assert.strictEqual(phase, turn === running ? "running" : "queued")
      }
      const resumed = yield* until(session, "SessionResumed")
      const info = yield* session.describe
      assert.deepInclude(resumed, { generation: 2, method: "resume", hostId: info.hostId })
      assert.deepInclude(info, { state: "open", generation: 2, turns: [], agentSessionId: session.agentSessionId })
      assert.notStrictEqual(info.hostId, session.hostId)

      const second = yield* nextAgent
      assert.deepStrictEqual(second.methods(), ["initialize", "session/resume"])
      const turn = yield* session.submit("three")
      const prompt = yield* Queue.take(second.prompts)
      assert.deepInclude(prompt, { text: "three", sessionId: session.agentSessionId })
      yield* prompt.say("here")
      yield* prompt.end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      assert.deepStrictEqual(yield* tags(session), [
        "TurnQueued",
        "TurnStarted",
        "TurnQueued",
        "TurnEnded",
        "TurnEnded",
        "AgentExited",
        "SessionResumed",
        "TurnQueued",
        "TurnStarted",
        "Update",
        "TurnEnded"
      ])
    }).pipe(provided(layer({ script: resumes })))
  )

  it.effect("B21: sends no prompt again", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open()
      yield* session.submit("once")
      yield* Queue.take(agent.prompts)
      yield* agent.crash()
      yield* until(session, "SessionResumed")
      yield* idle
      assert.strictEqual(yield* Queue.size((yield* nextAgent).prompts), 0)
    }).pipe(provided(layer({ script: resumes })))
  )

  it.effect("is loaded where the agent offers no more, and its history is not told again", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open()
      yield* agent.update(session.agentSessionId, chunk("before"))
      yield* idle
      yield* agent.crash()
      assert.strictEqual((yield* until(session, "SessionResumed")).method, "load")
      const second = yield* nextAgent
      assert.deepStrictEqual(second.methods(), ["initialize", "session/load"])
      yield* second.update(session.agentSessionId, chunk("after"))
      yield* idle
      const updates = (yield* soFar(session)).filter(is("Update"))
      assert.deepStrictEqual(updates.map(textOf), ["before", "after"])
      assert.deepStrictEqual(
        updates.map(({ afterTurn, turnId }) => [afterTurn, turnId]),
        [
          [null, null],
          [null, null]
        ]
      )
    }).pipe(
      provided(
        layer({
          script: {
            ...loads,
            loadSession: (agent, id) => Effect.as(agent.update(id, chunk("history")), {})
          }
        })
      )
    )
  )

  it.effect("refuses prompts while it is being resumed, and says so", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open()
      yield* agent.crash()
      yield* until(session, "AgentExited")
      const refusal = yield* Effect.flip(session.submit("now"))
      assert.deepInclude(refusal, { _tag: "SessionUnusable", reason: "resuming" })
      assert.include(refusal.message, "try again later")
      yield* idle
      assert.strictEqual((yield* session.describe).state, "resuming")
      yield* TestClock.adjust("5 seconds")
      yield* until(session, "SessionResumed")
      assert.strictEqual((yield* session.describe).state, "open")
    }).pipe(
      provided(
        layer({
          script: { ...resumes, resumeSession: () => Effect.as(Effect.sleep("5 seconds"), {}) }
        })
      )
    )
  )

  it.effect("ends its open questions as crashed, and asks the next ones as ever", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open({ permission: "ask" })
      yield* beside(agent.ask(session.agentSessionId))
      yield* until(session, "PermissionAsked")
      yield* agent.crash()
      assert.strictEqual((yield* until(session, "PermissionAnswered")).answeredBy, "crash")
      yield* until(session, "SessionResumed")
      const asking = yield* beside((yield* nextAgent).ask(session.agentSessionId))
      const { permissionId } = yield* until(session, "PermissionAsked", 2)
      yield* session.answer(permissionId, "allow")
      assert.deepStrictEqual(yield* Fiber.join(asking), { _tag: "Selected", optionId: "allow" })
    }).pipe(provided(layer({ script: resumes })))
  )

  it.effect(
    "T3, B81: takes nothing of what was lost for the next turn's: no tool call, no message, no late answer",
    () =>
      Effect.gen(function* () {
        const { agent, session } = yield* open()
        const lost = yield* session.submit("lost")
        const before = yield* Queue.take(agent.prompts)
        yield* before.update({ sessionUpdate: "tool_call", toolCallId: "tool-1", title: "run it" })
        yield* idle
        yield* agent.crash()
        yield* until(session, "SessionResumed")
        const second = yield* nextAgent
        yield* second.update(session.agentSessionId, { sessionUpdate: "tool_call_update", toolCallId: "tool-1" })
        yield* second.send({ id: before.requestId, result: { stopReason: "end_turn" } })
        yield* idle
        const turn = yield* session.submit("next")
        const prompt = yield* Queue.take(second.prompts)
        yield* prompt.update({ sessionUpdate: "tool_call_update", toolCallId: "tool-1" })
        yield* idle
        assert.deepInclude((yield* session.describe).turns[0], { turnId: turn.id, phase: "running" })
        yield* prompt.end()
        yield* turn.await
        const updates = (yield* soFar(session)).filter(is("Update"))
        assert.deepStrictEqual(
          updates.map(({ afterTurn, turnId }) => [turnId, afterTurn]),
          [
            [lost.id, null],
            [null, null],
            [turn.id, null]
          ]
        )
        assert.strictEqual((yield* session.describe).late, 1)
      }).pipe(provided(layer({ script: resumes })))
  )

  it.effect(
    "is no slower to give up a turn: one that is being cancelled when its agent dies has one end, and no other",
    () =>
      Effect.gen(function* () {
        const { agent, session } = yield* open()
        const turn = yield* session.submit("go")
        yield* Queue.take(agent.prompts)
        const cancelling = yield* beside(turn.cancel)
        yield* idle
        yield* agent.crash()
        assert.strictEqual((yield* Fiber.join(cancelling))._tag, "Cancelled")
        yield* until(session, "SessionResumed")
        const all = yield* tags(session)
        assert.strictEqual(all.filter((tag) => tag === "TurnEnded").length, 1)
        assert.strictEqual((yield* session.describe).state, "open")
      }).pipe(provided(layer({ script: { ...resumes, ignoreCancel: true } })))
  )

  it.effect("B16: one of several on a shared process is resumed with them, on one process", () =>
    Effect.gen(function* () {
      const { agent, session, vm } = yield* open({ agent: shared })
      const other = yield* vm.openSession({ agent: shared, restart: "resume" })
      const third = yield* vm.openSession({ agent: shared })
      yield* agent.crash()
      yield* until(session, "SessionResumed")
      yield* until(other, "SessionResumed")
      assert.strictEqual((yield* until(third, "SessionEnded")).reason, "agent_exited")
      assert.strictEqual(yield* alive, 1)
      assert.strictEqual(yield* launches, 2)
      assert.strictEqual((yield* session.describe).hostId, (yield* other.describe).hostId)
    }).pipe(provided(layer({ script: resumes })))
  )

  it.effect("is asked of another process when the first one does not answer in time", () => {
    let started = 0
    const mute: ScriptedAgent.Script = { ...resumes, resumeSession: () => Effect.never }
    return Effect.gen(function* () {
      const { agent, session } = yield* open({
        agent: { ...shared, share: AgentProfile.sharing({ idleTime: "1 day" }) }
      })
      yield* agent.crash()
      yield* until(session, "AgentExited")
      yield* TestClock.adjust("60 seconds")
      yield* TestClock.adjust("5 seconds")
      yield* until(session, "SessionResumed")
      assert.deepStrictEqual([yield* alive, yield* launches], [1, 3])
    }).pipe(provided(layer({ script: () => (++started === 2 ? mute : resumes) })))
  })
})

everywhere("a session that can't be resumed", (layer) => {
  it.effect("ends as one that was not to be, with what was missing", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open()
      yield* agent.crash()
      const ended = yield* until(session, "SessionEnded")
      assert.strictEqual(ended.reason, "agent_exited")
      assert.include(ended.detail, "neither session/resume nor session/load")
      assert.strictEqual(yield* launches, 1, "nothing was started for it")
    }).pipe(provided(layer()))
  )

  it.effect("ends with the agent's refusal, without another try where that says that there is no such session", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open()
      yield* agent.crash()
      const ended = yield* until(session, "SessionEnded")
      assert.strictEqual(ended.reason, "agent_exited")
      assert.include(ended.detail, "no such session")
      assert.deepStrictEqual(yield* tags(session), ["AgentExited", "SessionEnded"])
      assert.strictEqual(yield* launches, 2)
      yield* idle
      assert.strictEqual(yield* alive, 0)
    }).pipe(
      provided(
        layer({
          script: { ...resumes, resumeSession: () => Effect.fail(AcpConnection.refusal(-32002, "no such session")) }
        })
      )
    )
  )

  it.effect("is tried three times, after one and two seconds, each within the time of a start", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* open({ startTimeout: "10 seconds" })
      yield* agent.crash()
      yield* idle
      for (const [seconds, count] of [
        [10, 2],
        [1, 3],
        [10, 3],
        [2, 4]
      ] as const) {
        yield* TestClock.adjust(`${seconds} seconds`)
        yield* idle
        assert.strictEqual(yield* launches, count)
      }
      yield* TestClock.adjust("10 seconds")
      const ended = yield* until(session, "SessionEnded")
      assert.include(ended.detail, "no answer within 10000 ms")
      assert.strictEqual(yield* launches, 4)
    }).pipe(provided(layer({ script: { ...resumes, resumeSession: () => Effect.never } })))
  )

  for (const hostStableTime of ["10 seconds", 0] as const) {
    it.effect(
      `ends when its agent does each time soon after it was resumed, with hostStableTime ${hostStableTime}`,
      () =>
        Effect.gen(function* () {
          const { agent, session } = yield* open()
          yield* agent.crash()
          for (const delay of ["1 second", "2 seconds"] as const) {
            const next = yield* nextAgent
            yield* idle
            yield* next.crash()
            yield* idle
            yield* TestClock.adjust(delay)
            yield* idle
          }
          yield* (yield* nextAgent).crash()
          const ended = yield* until(session, "SessionEnded")
          assert.include(ended.detail, "again and again")
          assert.strictEqual((yield* session.describe).generation, 4)
        }).pipe(provided(layer({ script: resumes, limits: { hostStableTime } })))
    )
  }

  it.effect("is not one that was stopped for a stuck turn: that ends as ever", () =>
    Effect.gen(function* () {
      const { session } = yield* open()
      const turn = yield* session.submit("go")
      yield* idle
      const cancelling = yield* beside(turn.cancel)
      yield* TestClock.adjust("10 seconds")
      yield* Fiber.join(cancelling)
      assert.strictEqual((yield* until(session, "SessionEnded")).reason, "retired")
      assert.strictEqual(yield* launches, 1)
    }).pipe(provided(layer({ script: { ...resumes, prompt: () => Effect.never, ignoreCancel: true } })))
  )

  it.effect("that is closed while it is being resumed ends as closed, and leaves nothing", () =>
    Effect.gen(function* () {
      const { agent, session, vm } = yield* open()
      yield* agent.crash()
      yield* idle
      assert.strictEqual(yield* alive, 1)
      yield* session.close
      assert.strictEqual((yield* until(session, "SessionEnded")).reason, "closed")
      assert.strictEqual(yield* alive, 0)
      assert.deepInclude(yield* vm.describe, { sessions: [], opening: 0 })
    }).pipe(provided(layer({ script: { ...resumes, resumeSession: () => Effect.never } })))
  )
})
