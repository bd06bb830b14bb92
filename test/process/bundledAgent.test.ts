// The agent that ships with the package, with many sessions in one process.
import { rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { AgentProfile } from "acp-sidecar"
import type { Session } from "acp-sidecar"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Agents from "../../src/cli/agents.ts"
import * as ScriptedModel from "../../src/cli/ScriptedModel.ts"
import { layer, openVm, texts } from "../support/faultyAgent.ts"
import { newMark, untilGone, untilRunning } from "../support/processes.ts"

/** Sessions of one process, and the requests that come in at the model. */
const open = Effect.fnUntraced(function* (count: number) {
  const model = yield* ScriptedModel.make()
  const env = { OPENAI_BASE_URL: model.baseUrl, OPENAI_API_KEY: "none", OPENAI_MODEL: "scripted" }
  const agent: AgentProfile.AgentProfile = {
    ...Agents.bundled,
    env,
    share: AgentProfile.sharing({ maxSessions: count })
  }
  const vm = yield* openVm()
  const sessions = yield* Effect.all(
    Array.from({ length: count }, () => vm.openSession({ agent, permission: "allow" })),
    { concurrency: "unbounded" }
  )
  assert.strictEqual(new Set(sessions.map(({ pid }) => pid)).size, 1)
  assert.strictEqual(new Set(sessions.map(({ agentSessionId }) => agentSessionId)).size, count)
  const requested = Effect.repeat(Queue.take(model.events), { until: ({ type }) => type === "request" })
  return { sessions, requested }
})

const answer = (session: Session.Session, prompt: string) =>
  Effect.gen(function* () {
    const turn = yield* session.submit(prompt)
    yield* turn.await
    return (yield* texts(turn)).join("")
  })

describe("the bundled agent", () => {
  it.live("keeps the conversations of fifty sessions in one process apart", () =>
    Effect.gen(function* () {
      const { sessions } = yield* open(50)
      for (const round of ["first", "second"]) {
        const answers = yield* Effect.all(
          sessions.map((session, index) => answer(session, `[[say:${round} ${index}]]`)),
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(
          answers,
          sessions.map((_, index) => `${round} ${index}`)
        )
      }
    }).pipe(Effect.scoped, Effect.provide(layer()))
  )

  it.live("ends the turn of a session that is cancelled or closed, and no other's (B17)", () =>
    Effect.gen(function* () {
      const { requested, sessions } = yield* open(4)
      const turns = yield* Effect.forEach(sessions, (session) => session.submit("[[hang]]"))
      yield* Effect.repeat(requested, { times: 3 })
      const cancelled = yield* turns[1]!.cancel
      assert.isTrue(cancelled._tag === "Cancelled" && cancelled.escalation === "none")
      assert.strictEqual(yield* answer(sessions[1]!, "[[say:still here]]"), "still here")
      yield* sessions[2]!.close
      for (const index of [0, 3]) {
        const { turns: running } = yield* sessions[index]!.describe
        assert.deepStrictEqual(
          running.map(({ phase }) => phase),
          ["running"]
        )
        const end = yield* turns[index]!.cancel
        assert.isTrue(end._tag === "Cancelled" && end.escalation === "none")
        assert.strictEqual(yield* answer(sessions[index]!, `[[say:and ${index}]]`), `and ${index}`)
      }
    }).pipe(Effect.scoped, Effect.provide(layer()))
  )

  it.live("kills the command of the cancelled session alone", () =>
    Effect.gen(function* () {
      const { sessions } = yield* open(2)
      const marks = [newMark(), newMark()]
      const go = join(tmpdir(), marks[1]!)
      yield* Effect.addFinalizer(() => Effect.sync(() => rmSync(go, { force: true })))
      const commands = ["sleep 60", `until [ -e ${go} ]; do sleep 0.05; done; echo done`]
      const [one, other] = yield* Effect.forEach(commands, (command, index) =>
        sessions[index]!.submit(`[[tool:${command}; : ${marks[index]}]]`)
      )
      for (const mark of marks) yield* untilRunning(mark, 1)
      yield* one!.cancel
      yield* untilGone(marks[0]!)
      yield* Effect.sync(() => writeFileSync(go, ""))
      yield* other!.await
      assert.include((yield* texts(other!)).join(""), "tool result: done")
    }).pipe(Effect.scoped, Effect.provide(layer()))
  )
})
