import { assert, describe, it } from "@effect/vitest"
import type { Session, SidecarEvent } from "acp-sidecar"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import { is } from "../support/events.ts"
import { faulty, layer, open, texts, untilText } from "../support/faultyAgent.ts"
import { newMark, running, untilGone } from "../support/processes.ts"

/** Waits for an event of a kind, or the end of the session. */
const first = <T extends SidecarEvent.SessionEvent["_tag"]>(session: Session.Session, tag: T) =>
  session.updates.pipe(
    Stream.filter(is(tag)),
    Stream.runHead,
    Effect.flatMap((found) =>
      found._tag === "Some" ? Effect.succeed(found.value) : Effect.die(new Error(`the session ended without ${tag}`))
    )
  )

describe("a session with restart: resume", { concurrent: true }, () => {
  it.live.each([
    ["session/resume", ["resume"], "resume"],
    ["session/load, whose replay is not told", ["load=5"], "load"]
  ] as const)("B81, B21: goes on after its process was killed mid-turn, by %s", ([, switches, method]) =>
    Effect.gen(function* () {
      const mark = newMark()
      const session = yield* open(faulty(`mark=${mark}`, ...switches), { restart: "resume" })
      const turn = yield* session.submit("{hang}")
      yield* untilText(turn, "chunk 0")
      process.kill(session.pid!, "SIGKILL")
      const outcome = yield* turn.outcome
      assert.strictEqual(outcome._tag === "Failed" ? outcome.error.reason._tag : outcome._tag, "ProcessExited")
      const resumed = yield* first(session, "SessionResumed")
      assert.deepInclude(resumed, { method, generation: 2 })
      const info = yield* session.describe
      assert.deepInclude(info, { state: "open", pid: resumed.pid, turns: [] })
      assert.notStrictEqual(info.pid, session.pid)
      const next = yield* session.submit("{text=after}")
      assert.strictEqual((yield* next.await)._tag, "Completed")
      assert.deepStrictEqual(yield* texts(next), ["after", "chunk 0"])
      const all = yield* Stream.runCollect(Stream.take(session.updates, (yield* session.describe).events))
      assert.isFalse(all.some((event) => JSON.stringify(event).includes("replay ")))
      assert.strictEqual((yield* running(mark)).length, 1)
      yield* session.close
      yield* untilGone(mark)
    }).pipe(Effect.scoped, Effect.provide(layer()))
  )

  it.live("ends as ever where its agent can do neither", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty(), { restart: "resume" })
      process.kill(session.pid!, "SIGKILL")
      const ended = yield* first(session, "SessionEnded")
      assert.strictEqual(ended.reason, "agent_exited")
      assert.include(ended.detail, "SIGKILL")
      assert.include(ended.detail, "neither session/resume nor session/load")
    }).pipe(Effect.scoped, Effect.provide(layer()))
  )
})
