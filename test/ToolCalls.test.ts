import { assert, it } from "@effect/vitest"
import { TestSidecar, type ScriptedAgent } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import { idle, provided, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"
import { manual } from "./support/turns.ts"

const call = (toolCallId: string, status: "in_progress" | "completed") => ({
  sessionUpdate: "tool_call" as const,
  toolCallId,
  title: toolCallId,
  status
})

/** A turn with a tool call that has ended, one that a later update ends, and two that go on. */
const busy = (prompt: ScriptedAgent.PromptTurn) =>
  Effect.gen(function* () {
    yield* prompt.update(call("done", "completed"))
    for (const id of ["ends", "runs", "waits"]) yield* prompt.update(call(id, "in_progress"))
    yield* prompt.update({ sessionUpdate: "tool_call_update", toolCallId: "ends", status: "failed" })
    yield* idle
  })

everywhere("tool calls that a turn leaves open", (layer) => {
  it.effect("read cancelled when the agent dies (B14), and when the turn is cancelled", () =>
    Effect.gen(function* () {
      for (const how of ["crash", "cancel"] as const) {
        const { agent, session } = yield* TestSidecar.open()
        const turn = yield* session.submit("go")
        yield* busy(yield* Queue.take(agent.prompts))
        if (how === "crash") yield* agent.crash()
        else {
          yield* Effect.forkChild(turn.cancel, { startImmediately: true })
          yield* Queue.take(agent.cancels)
          yield* agent.send({ id: 3, result: { stopReason: "cancelled" } })
        }
        const end = yield* until(session, "TurnEnded")
        assert.deepStrictEqual(end.cancelledToolCalls, ["runs", "waits"], how)
      }
    }).pipe(provided(layer({ script: manual })))
  )

  it.effect("are left alone in a turn that the agent has completed", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* busy(prompt)
      yield* prompt.end()
      assert.isUndefined((yield* until(session, "TurnEnded")).cancelledToolCalls)
    }).pipe(provided(layer({ script: manual })))
  )
})
