// Three sessions of one agent, each in a turn, whose agent writes fuzzed bytes for any of them: each gets what is its own,
// in order, and nothing of a neighbour; each turn ends as its agent said, and the next one runs.
import assert from "node:assert/strict"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Queue from "effect/Queue"
import * as Result from "effect/Result"
import * as Stream from "effect/Stream"
import * as AcpSchema from "../../src/acp/AcpSchema.ts"
import type * as AcpCodec from "../../src/acp/AcpCodec.ts"
import * as AgentProfile from "../../src/AgentProfile.ts"
import type * as Session from "../../src/Session.ts"
import * as Sidecar from "../../src/Sidecar.ts"
import type * as ScriptedAgent from "../../src/testing/ScriptedAgent.ts"
import * as TestSidecar from "../../src/testing/TestSidecar.ts"
import { soFar, textOf } from "../support/events.ts"
import { decode } from "./codec.ts"
import { answersTo } from "./connection.ts"
import * as Input from "./Input.ts"
import { sessionId } from "./mutate.ts"
import { checkEvents, countAnswers, ends, failure } from "./session.ts"

const ids = ["agent-session-1", "agent-session-2", "agent-session-3"] as const
/** After `initialize` and three times `session/new`. */
const firstPrompt = 5
const lastText = "~all written"

/** Each line speaks of another session than the one before. The ids have one length, so that no limit is met otherwise. */
const spread = (input: Input.Input): Input.Input => ({
  ...input,
  lines: input.lines.map((line, index) => {
    const text = Buffer.from(line.bytes)
      .toString("latin1")
      .replaceAll(sessionId, ids[index % ids.length]!)
    return { ...line, bytes: new Uint8Array(Buffer.from(text, "latin1")) }
  })
})

/** The lines of one session, as far as they are marked. */
const part = (input: Input.Input, own: number): Input.Input => ({
  ...input,
  lines: input.lines.filter((_, index) => index % ids.length === own)
})

/** How many updates there are for a session. */
const updatesFor = (outcomes: ReadonlyArray<AcpCodec.Outcome>, id: string): number =>
  outcomes.filter((outcome) => {
    if (outcome._tag !== "Notification" || outcome.method !== "session/update") return false
    const read = AcpSchema.sessionNotification(outcome.params)
    return Result.isSuccess(read) && read.success.sessionId === id
  }).length

const check = Effect.fnUntraced(function* (whole: Input.Input) {
  const input = spread(whole)
  const written = yield* Deferred.make<void>()
  let begun = 0
  const prompt = (_turn: ScriptedAgent.PromptTurn, agent: ScriptedAgent.ScriptedAgent) =>
    Effect.gen(function* () {
      if (yield* Deferred.isDone(written)) return "end_turn"
      if (++begun < ids.length) {
        yield* Deferred.await(written)
        return "end_turn"
      }
      for (const chunk of Input.chunks(input)) {
        yield* agent.write(chunk)
        if (chunk.length % 5 === 0) yield* Effect.yieldNow
      }
      for (const id of ids) {
        yield* agent.update(id, { sessionUpdate: "agent_message_chunk", content: { type: "text", text: lastText } })
      }
      yield* Deferred.succeed(written, undefined)
      return "end_turn"
    })
  const body = Effect.gen(function* () {
    const sidecar = yield* Sidecar.Sidecar
    const test = yield* TestSidecar.TestSidecar
    const vm = yield* sidecar.openVm({ root: "/work" })
    const sessions: Array<Session.Session> = []
    for (const id of ids) {
      const session = yield* vm.openSession({ agent: { ...TestSidecar.profile, share: AgentProfile.sharing({}) } })
      assert.equal(session.agentSessionId, id)
      sessions.push(session)
    }
    const agent = yield* Queue.take(test.agents)
    const turns: Array<Session.Turn> = []
    for (const session of sessions) turns.push(yield* session.submit("go"))

    const outcomes = decode([Input.bytes(input)], input.maxLineBytes)
    for (const [own, turn] of turns.entries()) {
      const exit = yield* Effect.exit(turn.await)
      const end = Exit.isSuccess(exit)
        ? `Completed ${(exit.value as { readonly stopReason?: string }).stopReason}`
        : failure(exit)
      const right = ends(outcomes, { promptId: firstPrompt + own, sessionId: ids[own]!, isAlone: false })
      assert.ok(right.includes(end), `turn ${own + 1} ended with ${end}, and ${right.join(" or ")} was right`)
    }
    for (const [own, session] of sessions.entries()) {
      yield* Stream.runDrain(Stream.takeUntil(session.updates, (event) => textOf(event) === lastText))
      const next = yield* session.prompt("again")
      assert.ok(next._tag === "Completed" && next.stopReason === "end_turn", `the next turn of ${own + 1} runs`)
    }
    yield* Effect.repeat(Effect.yieldNow, { times: 50 })
    for (const [own, session] of sessions.entries()) {
      const all = yield* soFar(session)
      checkEvents(all, part(input, own), turns[own]!.id)
      const updates = all.filter((event) => event._tag === "Update").length
      // Those of a turn that was over its limits are not kept.
      const most = updatesFor(outcomes, ids[own]!) + 1
      assert.ok(updates <= most, `${updates} updates reached session ${own + 1}, and ${most} were for it`)
      const info = yield* session.describe
      assert.deepEqual([info.state, info.turns.length, info.pendingPermissions], ["open", 0, 0], "nothing is left over")
    }
    const answers = countAnswers(yield* Queue.clear(agent.received))
    assert.deepEqual(
      [...answers].toSorted(),
      [...answersTo(outcomes)].toSorted(),
      "each request of the agent gets one answer"
    )
    const [host, ...others] = (yield* sidecar.describe).hosts
    assert.deepEqual([others.length, host!.leases, host!.kept.routes, host!.kept.left], [0, 3, 3, 0], "nothing is kept")
    assert.equal(test.alive(), 1, "the agent goes on")
  })
  const layer = TestSidecar.layer({
    script: { prompt, ignoreCancel: true },
    limits: { maxLineBytes: input.maxLineBytes }
  })
  yield* Effect.provide(Effect.scoped(body), layer)
}, Effect.orDie)

export const sessions = {
  about: "three sessions of one agent that writes garbage for any of them during their turns",
  check
}
