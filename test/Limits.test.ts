import { assert, it } from "@effect/vitest"
import type { Session } from "acp-sidecar"
import { Sidecar } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import { TestClock } from "effect/testing"
import { everywhere } from "./support/places.ts"
import { assertEnded, events, hanging, manual, rest } from "./support/turns.ts"

const text = (session: Session.Session) =>
  Effect.map(events(session), (all) =>
    all.flatMap((event) => {
      if (event._tag !== "Update") return []
      const { content } = event.update as { readonly content?: { readonly text: string } }
      return [`${event.turnId ?? `after ${event.afterTurn}`}: ${content?.text}`]
    })
  )

const running = (session: Session.Session) =>
  Effect.map(session.describe, (info) => info.turns.filter((turn) => turn.phase === "running").length)

everywhere("prompts that run at once", (layer) => {
  for (const [limit, setting] of [
    ["maxPromptsPerSession", "ACP_SIDECAR_MAX_PROMPTS_PER_SESSION"],
    ["maxPromptsPerVm", "ACP_SIDECAR_MAX_PROMPTS_PER_VM"],
    ["maxPromptsPerSidecar", "ACP_SIDECAR_MAX_PROMPTS_PER_SIDECAR"]
  ] as const) {
    const scope = (
      { maxPromptsPerSession: "session", maxPromptsPerVm: "vm", maxPromptsPerSidecar: "sidecar" } as const
    )[limit]

    it.effect(`${limit} of 0 refuses every prompt, whatever its policy and lane, and names itself`, () =>
      Effect.gen(function* () {
        const { agent, session } = yield* TestSidecar.open()
        for (const onBusy of ["queue", "reject", "replace"] as const) {
          for (const lane of ["interactive", "background"] as const) {
            const refused = yield* Effect.flip(session.submit("hello", { onBusy, lane }))
            assert.deepInclude(refused, { _tag: "LimitExceeded", scope, limit, max: 0, used: 0, setting })
            assert.deepStrictEqual(refused.address, session.address)
          }
        }
        assert.notInclude(agent.methods(), "session/prompt")
        yield* assertEnded(session)
      }).pipe(Effect.provide(layer({ script: hanging, limits: { [limit]: 0 } })))
    )

    it.effect(`${limit} of 2 lets two run, keeps the third waiting, and lets it in after one`, () =>
      Effect.gen(function* () {
        const one = yield* TestSidecar.open()
        const many = [one]
        while (limit !== "maxPromptsPerSession" && many.length < 3) many.push(yield* TestSidecar.open({ vm: one.vm }))
        const turns: Array<Session.Turn> = []
        for (let i = 0; i < 3; i++) turns.push(yield* many[i % many.length]!.session.submit(`${i}`))
        yield* rest
        const count = Effect.map(
          Effect.forEach(many, ({ session }) => running(session)),
          (all) => all.reduce((sum, n) => sum + n, 0)
        )
        assert.strictEqual(yield* count, 2)
        assert.strictEqual((yield* (yield* Sidecar.Sidecar).describe).activePrompts, 2)
        const end = (i: number) =>
          Effect.flatMap(Queue.take(many[i % many.length]!.agent.prompts), (held) => held.end())
        yield* end(0)
        assert.isTrue(yield* turns[2]!.dispatched)
        yield* rest
        assert.strictEqual(yield* count, 2)
        yield* end(1)
        yield* end(2)
        for (const turn of turns) assert.strictEqual((yield* turn.await)._tag, "Completed")
        yield* assertEnded(...many.map(({ session }) => session))
      }).pipe(Effect.provide(layer({ script: manual, limits: { [limit]: 2 } })))
    )
  }

  it.effect("a Vm may have limits of its own, the lower one wins", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* sidecar.openVm({ root: "/work", limits: { maxPromptsPerVm: 1, maxQueuedPromptsPerSession: 0 } })
      const [a, b] = [yield* TestSidecar.open({ vm }), yield* TestSidecar.open({ vm })]
      yield* a.session.submit("a")
      yield* b.session.submit("b")
      yield* rest
      assert.deepStrictEqual([yield* running(a.session), yield* running(b.session)], [1, 0])
      assert.deepInclude(yield* Effect.flip(a.session.submit("more")), { limit: "maxQueuedPromptsPerSession", max: 0 })
      const other = yield* TestSidecar.open()
      yield* other.session.submit("c")
      assert.strictEqual(yield* running(other.session), 1)
      yield* vm.close
      yield* other.session.close
      yield* assertEnded(a.session, b.session, other.session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )
})

everywhere("the size of a prompt", (layer) => {
  const hello = JSON.stringify([{ type: "text", text: "hello" }]).length

  it.effect("is counted in bytes of UTF-8: at the limit it goes, one past it is refused, and nothing is sent", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
      for (const prompt of ["hello!", "hällo"]) {
        const refused = yield* Effect.flip(session.submit(prompt))
        assert.deepInclude(refused, {
          _tag: "LimitExceeded",
          scope: "turn",
          limit: "maxPromptBytes",
          max: hello,
          used: hello + 1,
          setting: "ACP_SIDECAR_MAX_PROMPT_BYTES"
        })
      }
      assert.strictEqual((yield* session.prompt("hallo"))._tag, "Completed")
      assert.strictEqual(agent.methods().filter((method) => method === "session/prompt").length, 2)
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ limits: { maxPromptBytes: hello } })))
  )

  it.effect("is counted in blocks too", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const blocks = (count: number) => Array.from({ length: count }, () => ({ type: "text", text: "x" }) as const)
      assert.strictEqual((yield* session.prompt(blocks(3)))._tag, "Completed")
      const refused = yield* Effect.flip(session.submit(blocks(4)))
      assert.include(refused.message, "has 4 where maxPromptBlocks allows 3; send a smaller one, or raise")
      assert.deepInclude(refused, {
        _tag: "LimitExceeded",
        scope: "turn",
        limit: "maxPromptBlocks",
        max: 3,
        used: 4,
        setting: "ACP_SIDECAR_MAX_PROMPT_BLOCKS"
      })
      assert.strictEqual((yield* session.prompt(blocks(3)))._tag, "Completed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ limits: { maxPromptBlocks: 3 } })))
  )

  it.effect("and a prompt that is no prompt is refused with what is wrong", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const circle: Record<string, unknown> = { type: "text", text: "x" }
      circle.self = circle
      for (const [prompt, problem] of [
        [[], "at least one"],
        [[{ text: "no type" }], "block 0"],
        [[{ type: "text", text: "x" }, null], "block 1"],
        [[{ type: "image", data: "", mimeType: "image/png" }], '"image"'],
        [[circle], "JSON"],
        [[{ type: "text", text: "x", more: 1n }], "JSON"]
      ] as ReadonlyArray<readonly [unknown, string]>) {
        const refused = yield* Effect.flip(session.submit(prompt as Session.Prompt))
        assert.deepInclude(refused, { _tag: "InvalidInput", input: "prompt" })
        assert.include(refused.message, problem)
      }
      assert.notInclude(agent.methods(), "session/prompt")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer()))
  )
})

everywhere("what an agent may send", (layer) => {
  it.effect("C05: a turn that sends too much fails, its agent is cancelled, and the next turns are clean", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const first = yield* Queue.take(agent.prompts)
      for (let i = 0; i < 8; i++) yield* first.say(`${i} ${"x".repeat(200)}`)
      assert.strictEqual(yield* Queue.take(agent.cancels), session.agentSessionId)
      yield* first.say("stale")
      yield* first.end("cancelled")
      const failed = yield* Effect.flip(one.await)
      assert.strictEqual(failed.phase, "running")
      assert.deepInclude(failed.reason, {
        _tag: "OutputExceeded",
        limit: "maxTurnOutputBytes",
        max: 1000,
        setting: "ACP_SIDECAR_MAX_TURN_OUTPUT_BYTES"
      })
      const said = yield* text(session)
      assert.isAbove(said.length, 0)
      assert.isBelow(said.length, 4)
      assert.notInclude(said.join(), "stale")
      for (let i = 0; i < 7; i++) {
        const next = yield* session.submit(`next ${i}`)
        const held = yield* Queue.take(agent.prompts)
        yield* held.say(`clean ${i}`)
        yield* held.end()
        assert.strictEqual((yield* next.await)._tag, "Completed")
        assert.strictEqual((yield* text(session)).at(-1), `${next.id}: clean ${i}`)
      }
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual, limits: { maxTurnOutputBytes: 1000 } })))
  )

  it.effect("C05: in one piece with the answer as well: the turn has broken its limit before it ended", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const first = yield* Queue.take(agent.prompts)
      yield* agent.together(Effect.andThen(first.say("x".repeat(2000)), first.end()))
      assert.deepInclude((yield* Effect.flip(one.await)).reason, { limit: "maxTurnOutputBytes" })
      const two = yield* session.submit("two")
      yield* (yield* Queue.take(agent.prompts)).end()
      assert.strictEqual((yield* two.await)._tag, "Completed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual, limits: { maxTurnOutputBytes: 1000 } })))
  )

  it.effect("an agent that goes on after its limit is retired at the end of the grace period", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const first = yield* Queue.take(agent.prompts)
      yield* first.say("x".repeat(2000))
      yield* TestClock.adjust("10 seconds")
      assert.strictEqual((yield* Effect.flip(one.await)).reason._tag, "OutputExceeded")
      assert.strictEqual((yield* Effect.flip(session.submit("two")))._tag, "SessionUnusable")
      yield* agent.gone
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual, limits: { maxTurnOutputBytes: 1000 } })))
  )

  it.effect("each turn has the whole of it, to the byte", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const first = yield* Queue.take(agent.prompts)
      // The frame of a chunk with `n` letters has a length of `n` and something.
      yield* first.say("")
      yield* rest
      yield* first.say("x".repeat(300))
      yield* rest
      assert.strictEqual(yield* running(session), 1)
      yield* first.end()
      yield* one.await
      const two = yield* session.submit("two")
      const second = yield* Queue.take(agent.prompts)
      yield* second.say("x".repeat(300))
      yield* second.end()
      assert.strictEqual((yield* two.await)._tag, "Completed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual, limits: { maxTurnOutputBytes: 650 } })))
  )

  it.effect("a line that is too long costs the turn it came in, nothing on other sessions, and no later turn", () =>
    Effect.gen(function* () {
      const a = yield* TestSidecar.open()
      const b = yield* TestSidecar.open({ vm: a.vm })
      const one = yield* a.session.submit("one")
      const other = yield* b.session.submit("other")
      const first = yield* Queue.take(a.agent.prompts)
      yield* first.say("x".repeat(5000))
      yield* Queue.take(a.agent.cancels)
      yield* first.end("cancelled")
      const { reason } = yield* Effect.flip(one.await)
      assert.deepInclude(reason, {
        _tag: "OutputExceeded",
        limit: "maxLineBytes",
        max: 4000,
        setting: "ACP_SIDECAR_MAX_LINE_BYTES"
      })
      assert.isAbove(reason._tag === "OutputExceeded" ? reason.used : 0, 5000)
      assert.deepStrictEqual(yield* text(a.session), [])
      const two = yield* a.session.submit("two")
      const second = yield* Queue.take(a.agent.prompts)
      yield* second.say("x".repeat(3000))
      yield* second.end()
      assert.strictEqual((yield* two.await)._tag, "Completed")
      assert.strictEqual(yield* running(b.session), 1)
      yield* (yield* Queue.take(b.agent.prompts)).end()
      assert.strictEqual((yield* other.await)._tag, "Completed")
      assert.strictEqual((yield* a.session.describe).malformed, 1)
      yield* assertEnded(a.session, b.session)
    }).pipe(Effect.provide(layer({ script: manual, limits: { maxLineBytes: 4000 } })))
  )

  it.effect("an answer that is too long ends its own turn, and not the one beside it", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const [one, two] = [yield* session.submit("one"), yield* session.submit("two")]
      const [first, second] = [yield* Queue.take(agent.prompts), yield* Queue.take(agent.prompts)]
      yield* agent.send({ id: first.requestId, result: { stopReason: "end_turn", _meta: "x".repeat(5000) } })
      assert.strictEqual((yield* Effect.flip(one.await)).reason._tag, "InvalidResponse")
      yield* rest
      assert.strictEqual(yield* running(session), 1)
      yield* second.end()
      assert.strictEqual((yield* two.await)._tag, "Completed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual, limits: { maxLineBytes: 4000, maxPromptsPerSession: 2 } })))
  )

  it.effect("a line that is too long outside any turn harms nothing", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      yield* agent.update(session.agentSessionId, {
        sessionUpdate: "agent_message_chunk",
        content: { type: "text", text: "x".repeat(5000) }
      })
      yield* rest
      const turn = yield* session.submit("one")
      yield* (yield* Queue.take(agent.prompts)).end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual, limits: { maxLineBytes: 4000 } })))
  )

  it.effect("C04: a flood of 20,000 updates arrives whole and in order, and nobody else notices", () =>
    Effect.gen(function* () {
      const a = yield* TestSidecar.open()
      const b = yield* TestSidecar.open({ vm: a.vm })
      const one = yield* a.session.submit("flood")
      const first = yield* Queue.take(a.agent.prompts)
      const other = yield* Effect.forkChild(b.session.prompt("other"), { startImmediately: true })
      const held = yield* Queue.take(b.agent.prompts)
      yield* a.agent.together(
        Effect.forEach(Array.from({ length: 20_000 }), (_, i) => first.say(`${i}`), { discard: true })
      )
      yield* held.end()
      assert.strictEqual((yield* Fiber.join(other))._tag, "Completed")
      yield* first.end()
      yield* one.await
      assert.deepStrictEqual(
        yield* text(a.session),
        Array.from({ length: 20_000 }, (_, i) => `${one.id}: ${i}`)
      )
      yield* assertEnded(a.session, b.session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )
})
