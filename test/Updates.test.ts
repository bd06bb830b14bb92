import { assert, it } from "@effect/vitest"
import { Address, type Session, type SidecarEvent } from "acp-sidecar"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import * as Attribution from "../src/internal/attribution.ts"
import { beside, chunk, idle, is, provided, soFar, textOf, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"

const texts = (events: ReadonlyArray<SidecarEvent.SessionEvent>) => events.map(textOf).filter((text) => text !== "")
const keptTexts = (session: Session.Session) => Effect.map(soFar(session), texts)

/** An agent that does something around its answer to `session/new`. */
const opening = (around: (agent: ScriptedAgent.ScriptedAgent, answer: Effect.Effect<void>) => Effect.Effect<void>) => ({
  newSession: (agent: ScriptedAgent.ScriptedAgent) =>
    // The request id is the second that the host sends.
    Effect.andThen(around(agent, agent.send({ id: 2, result: { sessionId: "s" } })), Effect.never)
})

everywhere("around session/new", (layer) => {
  it.effect("B48: an update, the response and an update in one piece: none is lost and the order is kept", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* until(session, "Update", 2)
      assert.deepStrictEqual(yield* keptTexts(session), ["before", "after"])
      const events = yield* soFar(session)
      assert.isTrue(events.filter(is("Update")).every((event) => event.turnId === null && event.afterTurn === null))
    }).pipe(
      provided(
        layer({
          script: opening((agent, answer) =>
            agent.together(
              Effect.andThen(
                agent.update("s", chunk("before")),
                Effect.andThen(answer, agent.update("s", chunk("after")))
              )
            )
          )
        })
      )
    )
  )

  it.effect("B48: the session's options are those of whatever the agent said last, on both sides of the response", () =>
    Effect.gen(function* () {
      const option = (id: string) => ({ id, name: id, type: "boolean", currentValue: true }) as const
      const told = (id: string) => ({ sessionUpdate: "config_option_update", configOptions: [option(id)] })
      const options = (order: ReadonlyArray<"early" | "answer" | "late">) =>
        Effect.gen(function* () {
          const { session } = yield* TestSidecar.open()
          yield* until(session, "Update", order.filter((piece) => piece !== "answer").length)
          return (yield* session.configOptions).map(({ id }) => id)
        }).pipe(
          provided(
            layer({
              script: {
                newSession: (agent) => {
                  const update = (id: "early" | "late") =>
                    order.includes(id) ? agent.update("s", told(id)) : Effect.void
                  const configOptions = order.includes("answer") ? [option("answer")] : undefined
                  // The request id is the second that the host sends.
                  const answer = agent.send({ id: 2, result: { sessionId: "s", configOptions } })
                  return Effect.andThen(
                    agent.together(Effect.all([update("early"), answer, update("late")])),
                    Effect.never
                  )
                }
              }
            })
          )
        )
      assert.deepStrictEqual(yield* options([]), [])
      assert.deepStrictEqual(yield* options(["early"]), ["early"])
      assert.deepStrictEqual(yield* options(["answer"]), ["answer"])
      assert.deepStrictEqual(yield* options(["early", "answer"]), ["answer"])
      assert.deepStrictEqual(yield* options(["early", "answer", "late"]), ["late"])
    })
  )

  it.effect("B48: updates long before the response are kept within bounds, the newest of them", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      assert.deepStrictEqual(yield* keptTexts(session), ["4", "5", "6"])
      assert.deepInclude((yield* session.describe).unrouted, { buffered: 6, dropped: 3, sample: "s" })
    }).pipe(
      provided(
        layer({
          limits: { earlyUpdatesPerSession: 3 },
          script: opening((agent, answer) =>
            Effect.andThen(
              Effect.forEach([1, 2, 3, 4, 5, 6], (i) => agent.update("s", chunk(`${i}`)), { discard: true }),
              Effect.andThen(Effect.yieldNow, answer)
            )
          )
        })
      )
    )
  )

  it.effect("B48: updates that came too long before the response are gone", () =>
    Effect.gen(function* () {
      const opened = yield* beside(TestSidecar.open())
      yield* idle
      yield* TestClock.adjust("6 seconds")
      const { session } = yield* Fiber.join(opened)
      assert.deepStrictEqual(yield* keptTexts(session), [])
      assert.strictEqual((yield* session.describe).unrouted.dropped, 1)
    }).pipe(
      provided(
        layer({
          limits: { earlyUpdateTimeout: "5 seconds" },
          script: opening((agent, answer) =>
            Effect.andThen(agent.update("s", chunk("old")), Effect.andThen(Effect.sleep("5 seconds"), answer))
          )
        })
      )
    )
  )
})

everywhere("updates and turns", (layer, place) => {
  const manual = layer({ script: { prompt: "manual" } })

  it.effect("B53, B54: the session's stream is independent of turns, and each update says where it belongs", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const id = session.agentSessionId
      yield* agent.update(id, chunk("before any turn"))
      yield* until(session, "Update")
      const first = yield* session.submit("one")
      const one = yield* Queue.take(agent.prompts)
      yield* one.update({ ...chunk("in one"), messageId: "m1" })
      yield* one.end()
      yield* first.await
      yield* agent.update(id, chunk("after one"))
      yield* until(session, "Update", 3)
      const second = yield* session.submit("two")
      const two = yield* Queue.take(agent.prompts)
      yield* agent.update(id, { ...chunk("late tail of one"), messageId: "m1" })
      yield* two.say("in two")
      yield* two.end()
      yield* second.await
      const seen = (yield* soFar(session))
        .filter(is("Update"))
        .map((event) => [textOf(event), event.turnId, event.afterTurn])
      assert.deepStrictEqual(seen, [
        ["before any turn", null, null],
        ["in one", first.id, null],
        ["after one", null, first.id],
        ["late tail of one", null, first.id],
        ["in two", second.id, null]
      ])
      assert.deepStrictEqual(texts(yield* Stream.runCollect(second.updates)), ["in two"])
    }).pipe(provided(manual))
  )

  it.effect("B54: a message that begins after its turn stays with it, also while the next one runs", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const first = yield* session.submit("one")
      yield* (yield* Queue.take(agent.prompts)).end()
      yield* first.await
      const late = (text: string) => agent.update(session.agentSessionId, { ...chunk(text), messageId: "m1" })
      yield* late("begins after one")
      yield* until(session, "Update")
      const second = yield* session.submit("two")
      const two = yield* Queue.take(agent.prompts)
      yield* late("goes on in two")
      yield* two.end()
      yield* second.await
      const seen = (yield* soFar(session))
        .filter(is("Update"))
        .map((event) => [textOf(event), event.turnId, event.afterTurn])
      assert.deepStrictEqual(seen, [
        ["begins after one", null, first.id],
        ["goes on in two", null, first.id]
      ])
    }).pipe(provided(manual))
  )

  it.effect("B56: a tool call in progress is visible while its turn runs, without any time passing", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* prompt.say("I run it")
      yield* prompt.update({ sessionUpdate: "tool_call", toolCallId: "t", title: "run", status: "pending" })
      yield* prompt.update({ sessionUpdate: "tool_call_update", toolCallId: "t", status: "in_progress" })
      const { update } = yield* until(session, "Update", 3)
      assert.deepInclude(update, { sessionUpdate: "tool_call_update", status: "in_progress" })
      assert.strictEqual((yield* session.describe).turns[0]?.phase, "running")
      assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      // Which is what makes this possible.
      yield* beside(Effect.andThen(prompt.cancelled, prompt.end("cancelled")))
      assert.strictEqual((yield* turn.cancel)._tag, "Cancelled")
    }).pipe(provided(manual))
  )

  it.effect("B64: an unknown kind, or a known one that can't be read, is passed on as it came and breaks nothing", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      const odd = [
        { sessionUpdate: "hologram", depth: 3 },
        { sessionUpdate: "usage_update", used: null, size: 100 },
        { sessionUpdate: "agent_message_chunk", content: null },
        { noKind: true }
      ]
      for (const update of odd) yield* prompt.update(update)
      yield* agent.send({ method: "session/update", params: { sessionId: session.agentSessionId } })
      yield* prompt.end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      const updates = (yield* Stream.runCollect(turn.updates)).filter(is("Update")).map((event) => event.update)
      assert.deepStrictEqual<unknown>(updates, [
        { sessionUpdate: "unrecognized", kind: "hologram", raw: odd[0] },
        { sessionUpdate: "unrecognized", kind: "usage_update", raw: odd[1] },
        { sessionUpdate: "unrecognized", kind: "agent_message_chunk", raw: odd[2] },
        { sessionUpdate: "unrecognized", kind: "", raw: odd[3] },
        // JSON knows no key without a value.
        { sessionUpdate: "unrecognized", kind: "", ...(place === "embedded" ? { raw: undefined } : {}) }
      ])
    }).pipe(provided(manual))
  )

  it.effect("W4: extra fields of a known kind survive", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const update = { ...chunk("hi"), _meta: { a: [1] }, extra: { deep: true } }
      yield* agent.update(session.agentSessionId, update)
      assert.deepStrictEqual((yield* until(session, "Update")).update as unknown, update)
    }).pipe(provided(manual))
  )

  it("memory: which turn a tool call came in is remembered for a bounded number of ids of a bounded length", () => {
    const self = Attribution.make()
    const turnId = Address.TurnId.make("turn-1")
    const call = (toolCallId: string) => ({ sessionUpdate: "tool_call" as const, toolCallId, title: "t" })
    Attribution.begin(self, turnId)
    assert.deepStrictEqual(Attribution.owner(self, call("x".repeat(10_000))), { turnId, afterTurn: null })
    assert.strictEqual(self.origin.size, 0)
    for (let i = 0; i < 5000; i++) Attribution.owner(self, call(`call-${i}`))
    assert.strictEqual(self.origin.size, 1024)
    Attribution.end(self, turnId)
    assert.deepStrictEqual(Attribution.owner(self, call("call-4999")), { turnId: null, afterTurn: turnId })
  })
})

everywhere("updates that belong to no open session", (layer) => {
  const manual = layer({ script: { prompt: "manual" } })

  it.effect("B55: ghosts are counted, with a sample, and told to no session", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      for (let i = 0; i < 40; i++) yield* agent.update(`ghost-${i}`, chunk("boo"))
      yield* agent.send({ method: "session/update", params: { update: chunk("no id") } })
      yield* agent.update(session.agentSessionId, chunk("real"))
      yield* until(session, "Update")
      assert.deepStrictEqual(yield* keptTexts(session), ["real"])
      assert.deepStrictEqual((yield* session.describe).unrouted, {
        late: 0,
        quarantined: 0,
        buffered: 40,
        dropped: 1,
        waited: 0,
        sample: ""
      })
    }).pipe(provided(manual))
  )

  it.effect("B51: what comes while the session closes reaches nobody after its end", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* session.close
      const events = yield* Stream.runCollect(session.updates)
      assert.strictEqual(events.at(-1)?._tag, "SessionEnded")
      assert.deepStrictEqual(texts(events), [])
    }).pipe(
      provided(
        layer({
          script: {
            capabilities: { sessionCapabilities: { close: {} } },
            closeSession: (agent, id) => Effect.as(agent.update(id, chunk("too late")), {})
          }
        })
      )
    )
  )
})

everywhere("readers", (layer, place) => {
  const manual = layer({ script: { prompt: "manual" } })

  it.effect("several readers see the same, a late one from the start, one from a number on, all until the end", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const early = yield* beside(Stream.runCollect(session.updates))
      yield* agent.update(session.agentSessionId, chunk("a"))
      yield* agent.update(session.agentSessionId, chunk("b"))
      yield* until(session, "Update", 2)
      const late = yield* beside(Stream.runCollect(session.updates))
      const fromTwo = yield* beside(Stream.runCollect(session.updatesFrom(2)))
      yield* idle
      yield* session.close
      const all = yield* Fiber.join(early)
      assert.deepStrictEqual(
        all.map((event) => event._tag),
        ["Update", "Update", "SessionEnded"]
      )
      assert.deepStrictEqual(yield* Fiber.join(late), all)
      assert.deepStrictEqual(yield* Fiber.join(fromTwo), all.slice(1))
      assert.deepStrictEqual(yield* Stream.runCollect(session.updates), all)
      assert.deepStrictEqual(yield* Stream.runCollect(session.updatesFrom(-5)), all)
      assert.deepStrictEqual(yield* Stream.runCollect(session.updatesFrom(Number.NaN)), all)
      for (const past of [99, Infinity]) assert.deepStrictEqual(yield* Stream.runCollect(session.updatesFrom(past)), [])
    }).pipe(provided(manual))
  )

  it.effect("events of a session are numbered from 1 without gaps, and SessionEnded is the last", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "allow" })
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* prompt.say("a")
      yield* prompt.ask()
      yield* prompt.end()
      yield* turn.await
      yield* session.close
      const events = yield* Stream.runCollect(session.updates)
      assert.deepStrictEqual(
        events.map((event) => ("number" in event ? event.number : 0)),
        events.map((_, i) => i + 1)
      )
      assert.deepStrictEqual(
        events.map((event) => event._tag),
        ["TurnQueued", "TurnStarted", "Update", "PermissionAsked", "PermissionAnswered", "TurnEnded", "SessionEnded"]
      )
    }).pipe(provided(manual))
  )

  it.effect("C04: 20,000 updates in one turn all arrive in order for a reader that keeps up", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      const reading = yield* beside(Stream.runCollect(turn.updates))
      const prompt = yield* Queue.take(agent.prompts)
      yield* agent.together(
        Effect.forEach(
          Array.from({ length: 20_000 }, (_, i) => i),
          (i) => prompt.say(`${i}`),
          { discard: true }
        )
      )
      yield* prompt.end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      assert.deepStrictEqual(
        texts(yield* Fiber.join(reading)),
        Array.from({ length: 20_000 }, (_, i) => `${i}`)
      )
    }).pipe(provided(manual))
  )

  it.effect("B63, W7: a flood with a stalled reader costs that reader alone, and memory keeps its bounds", () =>
    Effect.gen(function* () {
      const { agent, session, vm } = yield* TestSidecar.open()
      const [begun, gate] = [yield* Deferred.make<void>(), yield* Deferred.make<void>()]
      const slow: Array<SidecarEvent.SessionEvent> = []
      const last = 501
      const toLast = Stream.takeUntil(session.updates, (event) => "number" in event && event.number === last)
      const reading = yield* beside(
        Stream.runForEach(toLast, (event) =>
          Effect.andThen(
            Effect.suspend(() => (slow.push(event), Deferred.succeed(begun, undefined))),
            Deferred.await(gate)
          )
        )
      )
      yield* agent.update(session.agentSessionId, chunk("first"))
      yield* Deferred.await(begun)
      const text = "x".repeat(1000)
      for (let i = 1; i < last; i++) yield* agent.update(session.agentSessionId, chunk(text))
      yield* Stream.runDrain(Stream.take(session.updatesFrom(last), 1))
      assert.strictEqual(slow.length, 1)

      const other = yield* TestSidecar.open({ vm })
      const turn = yield* other.session.submit("go")
      const prompt = yield* Queue.take(other.agent.prompts)
      yield* prompt.say("fine")
      yield* prompt.end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      assert.deepStrictEqual(yield* keptTexts(other.session), ["fine"])
      assert.strictEqual(yield* Clock.currentTimeMillis, 0)

      const kept = (yield* soFar(session)).filter(is("Update"))
      assert.isAtMost(JSON.stringify(kept).length, 40_000)
      assert.isAbove(kept.length, 10)
      yield* Deferred.succeed(gate, undefined)
      yield* Fiber.join(reading)
      // What was on its way to it already is not lost.
      const before = slow.findIndex(is("Lagged"))
      if (place === "remote") assert.isBelow(JSON.stringify(slow.slice(0, before)).length, 40_000)
      else {
        assert.strictEqual(before, 1)
        assert.strictEqual(slow.at(-1), kept.at(-1))
      }
      assert.deepStrictEqual(slow[before], { _tag: "Lagged", from: before + 1, to: kept[0]!.number })
      assert.deepStrictEqual(slow.slice(before + 1), kept)
    }).pipe(provided(layer({ script: { prompt: "manual" }, limits: { mailboxBytes: 40_000 } })))
  )

  it.effect("B63: the same when it is the number of events that is bounded", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      for (let i = 1; i <= 50; i++) yield* agent.update(session.agentSessionId, chunk(`${i}`))
      yield* idle
      const events = yield* soFar(session)
      assert.deepStrictEqual(events[0], { _tag: "Lagged", from: 1, to: 41 })
      assert.deepStrictEqual(
        texts(events),
        Array.from({ length: 10 }, (_, i) => `${i + 41}`)
      )
    }).pipe(provided(layer({ script: { prompt: "manual" }, limits: { mailboxCapacity: 10 } })))
  )

  it.effect("a late reader of a turn whose events are gone is told so, and ends", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      yield* turn.await
      for (let i = 1; i <= 50; i++) yield* agent.update(session.agentSessionId, chunk(`${i}`))
      yield* idle
      assert.deepStrictEqual(
        (yield* Stream.runCollect(turn.updates)).map((event) => event._tag),
        ["Lagged"]
      )
    }).pipe(provided(layer({ limits: { mailboxCapacity: 10 } })))
  )

  it.effect("a turn's reader that stalls loses only what is gone, and still ends with its turn", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      for (let i = 1; i <= 50; i++) yield* prompt.say(`${i}`)
      yield* prompt.end()
      yield* turn.await
      const events = yield* Stream.runCollect(turn.updates)
      assert.strictEqual(events[0]?._tag, "Lagged")
      assert.strictEqual(events.at(-1)?._tag, "TurnEnded")
      assert.strictEqual(events.length, 11)
    }).pipe(provided(layer({ script: { prompt: "manual" }, limits: { mailboxCapacity: 10 } })))
  )

  it.effect("addresses are one line", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      assert.match(Address.format(turn.address), /^acp-sidecar-[0-9a-f-]{36}\/vm-1\/session-1\/turn-1$/)
    }).pipe(provided(layer()))
  )

  it.effect("a turn's text is what its agent says, and nothing else", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      const reading = yield* beside(Stream.runCollect(turn.text))
      yield* prompt.say("one ")
      yield* prompt.update({ sessionUpdate: "agent_thought_chunk", content: { type: "text", text: "hm" } })
      yield* prompt.update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text: 5 } })
      yield* prompt.update({
        sessionUpdate: "agent_message_chunk",
        content: { type: "image", data: "", mimeType: "x" }
      })
      yield* prompt.update({ sessionUpdate: "usage_update", used: 1, size: 2 })
      yield* prompt.say("two")
      yield* prompt.end()
      yield* prompt.say("late")
      assert.deepStrictEqual(yield* Fiber.join(reading), ["one ", "two"])
      assert.deepStrictEqual(yield* Stream.runCollect(turn.text), ["one ", "two"])
    }).pipe(provided(manual))
  )

  it.effect("a turn's text leaves out what a slow reader missed", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      for (let i = 1; i <= 9; i++) yield* prompt.say(`${i}`)
      yield* prompt.end()
      yield* turn.await
      assert.deepStrictEqual(yield* Stream.runCollect(turn.text), ["7", "8", "9"])
    }).pipe(provided(layer({ script: { prompt: "manual" }, limits: { mailboxCapacity: 4 } })))
  )
})
