import { assert, it } from "@effect/vitest"
import { Journal, Sidecar, SidecarMetrics } from "acp-sidecar"
import { AcpConnection } from "acp-sidecar/acp"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Metric from "effect/Metric"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import * as Tracer from "effect/Tracer"
import { beside, chunk, idle } from "./support/events.ts"
import { everywhere } from "./support/places.ts"
import { attributes, named, observed, parentName, series, type Told, value } from "./support/telemetry.ts"
import { hanging, manual, stuck } from "./support/turns.ts"

const tool = (status: string, more: object = {}) => ({
  sessionUpdate: status === "pending" ? "tool_call" : "tool_call_update",
  toolCallId: "call-1",
  title: "Read the diary",
  status,
  ...more
})

/** A turn with an update, two tool calls and a question. */
const busy: ScriptedAgent.Script = {
  prompt: (turn) =>
    Effect.gen(function* () {
      yield* turn.update(chunk("well"))
      yield* turn.update(tool("pending", { kind: "read" }))
      yield* turn.ask(undefined, "call-1")
      yield* turn.update(tool("completed"))
      yield* turn.update({ ...tool("pending", { name: "run_it", kind: "execute" }), toolCallId: "call-2" })
      yield* turn.update({ ...tool("failed"), toolCallId: "call-2" })
      return "end_turn"
    })
}

const metaOf = (agent: ScriptedAgent.ScriptedAgent) =>
  Effect.map(Queue.takeAll(agent.received), (frames) =>
    frames.flatMap((frame) =>
      frame._tag === "Request" && frame.method === "session/prompt"
        ? [(frame.params as { readonly _meta?: unknown })._meta]
        : []
    )
  )

const errorOf = (span: Tracer.NativeSpan): string | undefined => {
  if (span.status._tag !== "Ended" || span.status.exit._tag !== "Failure") return undefined
  const [reason] = span.status.exit.cause.reasons
  return reason?._tag === "Fail" ? (reason.error as Error).message : reason?._tag
}

const turnSpan = "invoke_agent scripted"

everywhere("the spans of a turn", (_layer, place) => {
  it.effect("tell of the turn, its tool calls and its questions, under what the caller is in", () =>
    observed({ place, script: busy }, (told) =>
      Effect.gen(function* () {
        const { agent, session, vm } = yield* TestSidecar.open()
        yield* Effect.withSpan(session.prompt("Hello"), "the caller's")
        const span = named(told, turnSpan)
        assert.strictEqual(span.kind, "client")
        const caller = named(told, "the caller's")
        assert.deepInclude(Option.getOrThrow(span.parent), { traceId: caller.traceId, spanId: caller.spanId })
        assert.strictEqual(span.traceId, caller.traceId)
        assert.deepStrictEqual(attributes(span), {
          "gen_ai.operation.name": "invoke_agent",
          "gen_ai.provider.name": "scripted",
          "gen_ai.agent.name": "scripted",
          "gen_ai.agent.version": "1",
          "gen_ai.conversation.id": session.agentSessionId,
          "acp_sidecar.turn.id": "turn-1",
          "acp_sidecar.lane": "interactive",
          "acp_sidecar.vm.id": vm.id,
          "acp_sidecar.turn.outcome": "completed",
          "gen_ai.response.finish_reasons": ["end_turn"]
        })
        const read = named(told, "execute_tool read")
        assert.strictEqual(parentName(read), turnSpan)
        assert.deepStrictEqual(attributes(read), {
          "gen_ai.operation.name": "execute_tool",
          "gen_ai.tool.name": "read",
          "gen_ai.tool.call.id": "call-1",
          "gen_ai.tool.type": "extension",
          "acp_sidecar.observed": true
        })
        const failed = named(told, "execute_tool run_it")
        assert.strictEqual(attributes(failed)["error.type"], "tool_error")
        assert.strictEqual(errorOf(failed), "the tool call failed: tool_error")
        const question = named(told, "acp_sidecar.permission")
        assert.strictEqual(parentName(question), turnSpan)
        assert.deepStrictEqual(attributes(question), {
          "gen_ai.tool.call.id": "call-1",
          "acp_sidecar.permission.answered_by": "policy",
          "acp_sidecar.permission.option_kind": "reject_once"
        })
        // It did not have to wait.
        assert.strictEqual(told.spans.filter(({ name }) => name === "acp_sidecar.admission").length, 0)
        for (const one of told.spans) assert.strictEqual(one.status._tag, "Ended", one.name)
        assert.deepStrictEqual(yield* metaOf(agent), [{ traceparent: `00-${span.traceId}-${span.spanId}-01` }])
      }).pipe(Effect.scoped)
    )
  )

  it.effect("name the model, the agent's version and the tokens where the agent tells of them", () =>
    observed(
      {
        place,
        script: {
          ...manual,
          initialize: () =>
            Effect.succeed({ protocolVersion: 1, agentCapabilities: {}, agentInfo: { name: "a", version: "1.2.3" } }),
          newSession: () =>
            Effect.succeed({
              sessionId: "s",
              configOptions: [
                { id: "m", name: "Model", category: "model", type: "select", currentValue: "big-1", options: [] }
              ]
            })
        }
      },
      (told) =>
        Effect.gen(function* () {
          const { agent, session } = yield* TestSidecar.open()
          const turn = yield* session.submit("Hello")
          const { requestId } = yield* Queue.take(agent.prompts)
          const usage = { inputTokens: 3, outputTokens: 5, cachedReadTokens: 7, thoughtTokens: 11, totalTokens: 26 }
          yield* agent.send({ id: requestId, result: { stopReason: "because I say so", usage } })
          yield* turn.await
          const all = attributes(named(told, turnSpan))
          assert.deepInclude(all, {
            "gen_ai.agent.version": "1.2.3",
            "gen_ai.request.model": "big-1",
            "gen_ai.usage.input_tokens": 3,
            "gen_ai.usage.output_tokens": 5,
            "gen_ai.usage.cache_read.input_tokens": 7,
            "gen_ai.usage.reasoning.output_tokens": 11
          })
          assert.notProperty(all, "gen_ai.usage.cache_write.input_tokens")
          assert.deepStrictEqual(all["gen_ai.response.finish_reasons"], ["_OTHER"])
          assert.strictEqual(value(told, "acp_sidecar.turn.tokens", { type: "cache_read" }), 7)
          assert.strictEqual(value(told, "gen_ai.invoke_agent.duration", { "gen_ai.request.model": "big-1" }), 1)
        }).pipe(Effect.scoped)
    )
  )

  it.effect("of one that is cancelled have no error, and say who cancelled it and what it took", () =>
    observed({ place, script: stuck }, (told) =>
      Effect.gen(function* () {
        const { session } = yield* TestSidecar.open()
        const turn = yield* session.submit("Hello")
        yield* turn.dispatched
        const end = yield* beside(turn.cancel)
        yield* TestClock.adjust("1 minute")
        yield* Fiber.join(end)
        const span = named(told, turnSpan)
        assert.deepInclude(attributes(span), {
          "acp_sidecar.turn.outcome": "cancelled",
          "acp_sidecar.cancel.by": "caller",
          "acp_sidecar.escalation": "retired"
        })
        assert.notProperty(attributes(span), "error.type")
        assert.strictEqual(errorOf(span), "Interrupt")
        assert.strictEqual(value(told, "acp_sidecar.turn.cancel_duration", { escalation: "retired" }), 1)
        yield* idle
        assert.strictEqual(value(told, "acp_sidecar.host.exits", { reason: "retired", stage: "eof" }), 1)
      }).pipe(Effect.scoped)
    )
  )

  it.effect("of one that fails say which failure it was, in no words of the agent's", () =>
    observed(
      {
        place,
        script: { prompt: () => Effect.fail(AcpConnection.refusal(-32000, "the diary says no", { why: "diary" })) }
      },
      (told) =>
        Effect.gen(function* () {
          const { session } = yield* TestSidecar.open()
          yield* Effect.flip(session.prompt("Hello, diary"))
          const span = named(told, turnSpan)
          assert.deepInclude(attributes(span), { "error.type": "RequestError", "acp_sidecar.turn.outcome": "failed" })
          assert.strictEqual(errorOf(span), "the turn failed: RequestError")
          const { status } = span
          assert.isTrue(status._tag === "Ended" && status.exit._tag === "Failure")
          const [reason] = (status as { exit: { cause: { reasons: ReadonlyArray<{ error: Error }> } } }).exit.cause
            .reasons
          assert.notInclude(`${reason!.error.stack}`, "diary")
          assert.strictEqual(value(told, "gen_ai.invoke_agent.duration", { "error.type": "RequestError" }), 1)
          assert.strictEqual(value(told, "acp_sidecar.turn.duration", { outcome: "failed" }), 1)
        }).pipe(Effect.scoped)
    )
  )

  it.effect("of one that has to wait tell what for, and how the wait ended", () =>
    observed({ place, script: hanging, limits: { admissionTimeout: "1 minute", maxPromptsPerVm: 1 } }, (told) =>
      Effect.gen(function* () {
        const { session, vm } = yield* TestSidecar.open()
        const other = yield* TestSidecar.open({ vm })
        const first = yield* session.submit("one")
        yield* session.submit("two")
        const third = yield* other.session.submit("three")
        yield* first.cancel
        // Sessions take turns.
        yield* third.dispatched
        yield* TestClock.adjust("2 minutes")
        const waits = told.spans.filter(({ name }) => name === "acp_sidecar.admission")
        assert.deepStrictEqual(waits.map(attributes), [
          {
            "acp_sidecar.scope": "session",
            "acp_sidecar.limit": "maxPromptsPerSession",
            "error.type": "TurnTimedOut"
          },
          { "acp_sidecar.scope": "vm", "acp_sidecar.limit": "maxPromptsPerVm" }
        ])
        assert.deepStrictEqual(waits.map(errorOf), ["the turn failed: TurnTimedOut", undefined])
      }).pipe(Effect.scoped)
    )
  )

  it.effect("are not there without a tracer, and nothing goes out to the agent", () =>
    observed({ place, isTraced: false, script: busy }, (told) =>
      Effect.gen(function* () {
        const { agent, session } = yield* TestSidecar.open()
        yield* Effect.withSpan(session.prompt("Hello"), "the caller's")
        assert.deepStrictEqual(yield* metaOf(agent), [undefined])
        assert.strictEqual(told.spans.length, 0)
      }).pipe(Effect.scoped)
    )
  )

  it.effect("that are not sampled, or not wanted, don't go out to the agent", () =>
    observed({ place }, (told) =>
      Effect.gen(function* () {
        const { agent, session } = yield* TestSidecar.open()
        const external = Tracer.externalSpan({ spanId: "b".repeat(16), traceId: "a".repeat(32), sampled: false })
        yield* Effect.withParentSpan(session.prompt("Hello"), external)
        const span = named(told, turnSpan)
        assert.isFalse(span.sampled)
        assert.strictEqual(parentName(span), "b".repeat(16))
        yield* Effect.withTracerEnabled(session.prompt("Hello again"), false)
        assert.strictEqual(told.spans.length, 1)
        assert.deepStrictEqual(yield* metaOf(agent), [undefined, undefined])
      }).pipe(Effect.scoped)
    )
  )

  it.effect("that the app's tracer breaks on cost no update", () =>
    observed({ place, script: busy }, () =>
      Effect.gen(function* () {
        const { session } = yield* TestSidecar.open({ permission: "allow" })
        const tracer = Tracer.make({
          span: (given) => {
            if (given.name.startsWith("execute_tool")) throw new Error("out of order")
            return new Tracer.NativeSpan(given)
          }
        })
        const turn = yield* Effect.provideService(session.submit("Hello"), Tracer.Tracer, tracer)
        assert.strictEqual((yield* turn.await)._tag, "Completed")
        const updates = (yield* Stream.runCollect(turn.updates)).filter(({ _tag }) => _tag === "Update")
        assert.strictEqual(updates.length, 5)
      }).pipe(Effect.scoped)
    )
  )
})

const gauges = (told: Told) =>
  series(told).filter(({ id, type }) => type === "Gauge" && !id.startsWith("acp_sidecar.limit.max"))

everywhere("metrics", (_layer, place) => {
  it.effect("have all names, none of an id, and every gauge is where it was in the end", () =>
    observed({ place, script: busy, limits: { maxQueuedPromptsPerSession: 0 } }, (told) =>
      Effect.gen(function* () {
        const ids = yield* Effect.gen(function* () {
          const { agent, session, vm } = yield* TestSidecar.open({ permission: "ask" })
          const turn = yield* session.submit("Hello")
          yield* Effect.flip(session.submit("no room"))
          yield* idle
          assert.strictEqual(value(told, "acp_sidecar.permissions.pending", { agent: "scripted" }), 1)
          assert.strictEqual(value(told, "acp_sidecar.turns.active", { lane: "interactive", state: "running" }), 1)
          assert.strictEqual(value(told, "acp_sidecar.sessions.open"), 1)
          assert.strictEqual(value(told, "acp_sidecar.hosts.live"), 1)
          assert.strictEqual(value(told, "acp_sidecar.limit.used", { limit: "maxPromptsPerSession" }), 1)
          assert.strictEqual(value(told, "acp_sidecar.limit.max", { limit: "maxPromptsPerSession" }), 1)
          yield* session.answer("permission-1", "allow")
          yield* turn.await
          yield* agent.write("noise\n")
          yield* agent.update("ghost", chunk("who"))
          yield* agent.update("ghost", chunk("am I"))
          yield* agent.send({ id: 999, result: null })
          yield* agent.write('{"jsonrpc":"2.0","id":7,"method":3}\n')
          yield* idle
          return [session.id, session.agentSessionId, turn.id, vm.id, "call-1", "permission-1"]
        }).pipe(Effect.scoped)

        for (const { attributes: own, id, state } of gauges(told)) {
          assert.strictEqual(state["value"], 0, `${id} ${JSON.stringify(own)}`)
        }
        const frames = (direction: string, kind: string) => value(told, "acp_sidecar.wire.frames", { direction, kind })
        assert.deepStrictEqual(
          ["request", "response", "notification", "noise", "malformed"].map((kind) => frames("in", kind)),
          [1, 4, 7, 1, 1]
        )
        assert.deepStrictEqual(
          ["request", "response", "notification"].map((kind) => frames("out", kind)),
          [3, 2, 0]
        )
        assert.isAbove(value(told, "acp_sidecar.wire.io", { direction: "in" }), 0)
        assert.isAbove(value(told, "acp_sidecar.wire.io", { direction: "out" }), 0)
        assert.strictEqual(value(told, "acp_sidecar.wire.buffered"), 2)
        assert.strictEqual(value(told, "acp_sidecar.wire.late"), 1)
        assert.strictEqual(value(told, "acp_sidecar.host.starts"), 1)
        assert.strictEqual(value(told, "acp_sidecar.host.exits", { reason: "closed", stage: "eof" }), 1)
        const refused = { scope: "session", limit: "maxQueuedPromptsPerSession" }
        assert.strictEqual(value(told, "acp_sidecar.admission.refusals", refused), 1)
        assert.strictEqual(value(told, "acp_sidecar.permission.wait_duration", { answered_by: "user" }), 1)
        assert.strictEqual(value(told, "acp_sidecar.turn.time_to_first_update"), 1)
        const tools = series(told).find(({ id }) => id === "gen_ai.invoke_agent.tool_calls")!
        assert.deepInclude(tools.state, { count: 1, sum: 2 })
        const failed = { "gen_ai.tool.name": "run_it", "gen_ai.tool.type": "extension", "error.type": "tool_error" }
        assert.strictEqual(value(told, "gen_ai.execute_tool.duration", failed), 1)
        for (const one of series(told)) {
          for (const own of Object.values(one.attributes)) assert.notInclude(ids, own, one.id)
        }
      })
    )
  )

  for (const [what, end] of [
    ["a crash", (opened: TestSidecar.Opened) => opened.agent.crash({ code: 3 })],
    ["a close of the Vm", (opened: TestSidecar.Opened) => opened.vm.close],
    ["a dispose", () => Sidecar.Sidecar.use((sidecar) => sidecar.dispose)]
  ] as const) {
    it.effect(`are back at their baseline after ${what} with turns and a question`, () =>
      observed({ place, script: { prompt: (turn) => Effect.as(turn.ask(), "end_turn"), ignoreCancel: true } }, (told) =>
        Effect.gen(function* () {
          const opened = yield* TestSidecar.open({ permission: "ask" })
          yield* opened.session.submit("one")
          yield* opened.session.submit("two", { lane: "background" })
          yield* idle
          assert.strictEqual(value(told, "acp_sidecar.turns.queued", { lane: "background" }), 1)
          assert.strictEqual(value(told, "acp_sidecar.permissions.pending"), 1)
          const ending = yield* beside(end(opened))
          yield* TestClock.adjust("1 minute")
          yield* Fiber.join(ending)
          yield* idle
          for (const { attributes: own, id, state } of gauges(told)) {
            // Only the Vm is still there.
            if (what === "a crash" && own["limit"] === "maxVms") continue
            assert.strictEqual(state["value"], 0, `${id} ${JSON.stringify(own)}`)
          }
          if (what === "a crash") {
            assert.strictEqual(value(told, "acp_sidecar.host.exits", { reason: "crashed", stage: "none" }), 1)
          }
          assert.strictEqual(value(told, "acp_sidecar.turn.duration"), 2)
          for (const span of told.spans) assert.strictEqual(span.status._tag, "Ended", span.name)
        }).pipe(Effect.scoped)
      )
    )
  }

  it.effect("have the place of a turn of a session that closes until that turn is over", () =>
    observed({ place, script: stuck }, (told) =>
      Effect.gen(function* () {
        const { session } = yield* TestSidecar.open()
        yield* session.submit("Hello")
        const closing = yield* beside(session.close)
        yield* idle
        const places = () => value(told, "acp_sidecar.limit.used", { limit: "maxPromptsPerSession" })
        assert.strictEqual(places(), 1)
        yield* TestClock.adjust("10 seconds")
        yield* Fiber.join(closing)
        assert.strictEqual(places(), 0)
      }).pipe(Effect.scoped)
    )
  )

  it.effect("of an agent that invents names without end stay few", () =>
    observed(
      {
        place,
        isTraced: false,
        script: {
          prompt: (turn) =>
            Effect.as(
              Effect.forEach(Array.from({ length: 1020 }), (_, number) =>
                turn
                  .update({ ...tool("pending", { name: `tool-${number}` }), toolCallId: `call-${number}` })
                  .pipe(Effect.andThen(turn.update({ ...tool("completed"), toolCallId: `call-${number}` })))
              ),
              "end_turn"
            )
        }
      },
      (told) =>
        Effect.gen(function* () {
          const { session } = yield* TestSidecar.open()
          yield* session.prompt("Hello")
          const all = series(told).filter(({ id }) => id === "gen_ai.execute_tool.duration")
          assert.isAtMost(all.length, 1001)
          assert.strictEqual(value(told, "gen_ai.execute_tool.duration"), 1020)
          assert.isAbove(value(told, "gen_ai.execute_tool.duration", { "otel.metric.overflow": "true" }), 0)
        }).pipe(Effect.scoped)
    )
  )

  it.effect("go where the sidecar was made, without what whoever opens a Vm or a session adds to their own", () =>
    observed({ place }, (told) =>
      Effect.gen(function* () {
        const own = new Map()
        const { session } = yield* TestSidecar.open().pipe(
          Effect.provideService(Metric.MetricRegistry, own),
          Effect.provideService(Metric.CurrentMetricAttributes, { request: "17" })
        )
        yield* session.prompt("Hello")
        yield* idle
        assert.strictEqual(value(told, "acp_sidecar.turn.duration"), 1)
        assert.strictEqual(value(told, "acp_sidecar.sessions.open"), 1)
        assert.strictEqual(own.size, 0)
        for (const one of series(told)) assert.notProperty(one.attributes, "request", one.id)
      }).pipe(Effect.scoped)
    )
  )

  it.effect("count a tool call once, also one that is not followed", () =>
    Effect.suspend(() => {
      const turns = [Array.from({ length: 1026 }, (_, number) => `call-${number}`), ["call", "x".repeat(257)]]
      const prompt = (turn: ScriptedAgent.PromptTurn) =>
        Effect.as(
          Effect.forEach(turns.shift()!, (toolCallId) =>
            Effect.forEach([tool("pending"), tool("in_progress"), tool("completed")], (update) =>
              turn.update({ ...update, toolCallId })
            )
          ),
          "end_turn"
        )
      return observed({ place, script: { prompt } }, (told) =>
        Effect.gen(function* () {
          const { session } = yield* TestSidecar.open()
          yield* session.prompt("So many that the last of them are not followed")
          yield* session.prompt("With an id that is none")
          const tools = series(told).find(({ id }) => id === "gen_ai.invoke_agent.tool_calls")!
          assert.deepInclude(tools.state, { count: 2, sum: 1028 })
          assert.strictEqual(value(told, "gen_ai.execute_tool.duration"), 1025)
        }).pipe(Effect.scoped)
      )
    })
  )

  it.effect("say of an agent that speaks another version that it failed to start", () =>
    observed({ place, script: { initialize: () => Effect.succeed({ protocolVersion: 99 }) } }, (told) =>
      Effect.gen(function* () {
        yield* Effect.flip(TestSidecar.open())
        assert.strictEqual(value(told, "acp_sidecar.host.exits", { reason: "start_failed" }), 1)
      }).pipe(Effect.scoped)
    )
  )

  it.effect("of a journal say how long it took", () =>
    observed({ place }, (told) =>
      Effect.gen(function* () {
        const { session } = yield* TestSidecar.open()
        yield* session.prompt("Hello")
        yield* idle
        assert.isAbove(value(told, "acp_sidecar.journal.append_duration"), 0)
      }).pipe(Effect.scoped)
    ).pipe(Effect.provide(Journal.layerMemory()))
  )
})

it("metrics have the names in Prometheus that OpenTelemetry gives them", () => {
  assert.strictEqual(SidecarMetrics.prometheusName("acp_sidecar.turn.duration"), "acp_sidecar_turn_duration_seconds")
  assert.strictEqual(SidecarMetrics.prometheusName("acp_sidecar.turn.tokens"), "acp_sidecar_turn_tokens_total")
  assert.strictEqual(SidecarMetrics.prometheusName("acp_sidecar.wire.io"), "acp_sidecar_wire_io_bytes_total")
  assert.strictEqual(SidecarMetrics.prometheusName("acp_sidecar.turns.active"), "acp_sidecar_turns_active")
  assert.strictEqual(SidecarMetrics.prometheusName("my.own"), "my.own")
})
