import { assert, describe, it } from "@effect/vitest"
import * as Result from "effect/Result"
import * as AcpProtocol from "../../src/acp/AcpProtocol.ts"
import * as AcpSchema from "../../src/acp/AcpSchema.ts"

const text = { type: "text", text: "hi" }

/** One valid update of each kind of ACP version 1. */
const valid: ReadonlyArray<{ readonly sessionUpdate: string; readonly [field: string]: unknown }> = [
  { sessionUpdate: "user_message_chunk", content: text },
  { sessionUpdate: "agent_message_chunk", content: text },
  { sessionUpdate: "agent_thought_chunk", content: text },
  { sessionUpdate: "tool_call", toolCallId: "t", title: "Read" },
  { sessionUpdate: "tool_call_update", toolCallId: "t" },
  { sessionUpdate: "tool_call_update", toolCallId: "t", title: null, kind: null, status: "failed", content: [] },
  { sessionUpdate: "agent_message_chunk", content: { type: "resource_link", uri: "file:///a", name: "a" } },
  { sessionUpdate: "agent_message_chunk", content: { type: "brand_new" } },
  { sessionUpdate: "plan", entries: [{ content: "Read", priority: "high", status: "pending" }] },
  { sessionUpdate: "available_commands_update", availableCommands: [{ name: "web", description: "" }] },
  { sessionUpdate: "current_mode_update", currentModeId: "ask" },
  { sessionUpdate: "config_option_update", configOptions: [] },
  { sessionUpdate: "session_info_update", title: "A title" },
  { sessionUpdate: "usage_update", used: 1, size: 2 }
]

const unrecognized = (kind: string, raw: unknown) => ({ sessionUpdate: "unrecognized", kind, raw })

describe("session updates", () => {
  for (const update of valid) {
    it(`${update.sessionUpdate} comes back as the very object that came in, with its extra fields`, () => {
      assert.strictEqual(AcpSchema.sessionUpdate(update) as unknown, update)
      const extended = { ...update, _meta: { kept: [1] }, shade: "blue" }
      assert.strictEqual(AcpSchema.sessionUpdate(extended) as unknown, extended)
    })
  }

  it("B64: a kind that is new is unrecognized, with its raw object kept", () => {
    const raw = { sessionUpdate: "brand_new_thing", shine: { level: 7 } }
    const read = AcpSchema.sessionUpdate(raw) as AcpSchema.Unrecognized
    assert.deepStrictEqual(read, unrecognized("brand_new_thing", raw) as AcpSchema.Unrecognized)
    assert.strictEqual(read.raw, raw)
  })

  it("B64: a known kind with fields that can't be used is unrecognized and says which kind it was", () => {
    const broken: ReadonlyArray<{ readonly sessionUpdate: string; readonly [field: string]: unknown }> = [
      { sessionUpdate: "usage_update", used: null, size: 100 },
      { sessionUpdate: "usage_update", used: 1 },
      { sessionUpdate: "agent_message_chunk" },
      { sessionUpdate: "agent_message_chunk", content: { text: "no type" } },
      { sessionUpdate: "agent_message_chunk", content: { type: "text" } },
      { sessionUpdate: "agent_thought_chunk", content: { type: "text", text: null } },
      { sessionUpdate: "agent_message_chunk", content: { type: "resource" } },
      { sessionUpdate: "tool_call", toolCallId: "t" },
      { sessionUpdate: "tool_call_update", toolCallId: "t", title: 3 },
      { sessionUpdate: "tool_call_update", toolCallId: "t", status: {} },
      { sessionUpdate: "tool_call_update", toolCallId: "t", content: {} },
      { sessionUpdate: "tool_call_update", toolCallId: 3 },
      { sessionUpdate: "plan", entries: {} },
      { sessionUpdate: "plan", entries: [{ status: "pending" }] },
      { sessionUpdate: "available_commands_update", availableCommands: [{}] },
      { sessionUpdate: "current_mode_update", currentModeId: null },
      { sessionUpdate: "config_option_update" }
    ]
    for (const raw of broken) {
      const read: unknown = AcpSchema.sessionUpdate(raw)
      assert.deepStrictEqual(read, unrecognized(raw.sessionUpdate, raw))
    }
  })

  it("anything else is unrecognized without a kind and never throws", () => {
    for (const raw of [undefined, null, 3, "plan", [], {}, { sessionUpdate: 5 }, { sessionUpdate: null }]) {
      const read: unknown = AcpSchema.sessionUpdate(raw)
      assert.deepStrictEqual(read, unrecognized("", raw))
    }
    for (const kind of ["constructor", "__proto__", "toString"]) {
      const read = AcpSchema.sessionUpdate({ sessionUpdate: kind }) as AcpSchema.Unrecognized
      assert.strictEqual(read.kind, kind)
    }
  })

  it("an update that claims to be unrecognized is wrapped like any unknown one", () => {
    const raw = { sessionUpdate: "unrecognized", kind: "fake", raw: 1 }
    const read: unknown = AcpSchema.sessionUpdate(raw)
    assert.deepStrictEqual(read, unrecognized("unrecognized", raw))
  })
})

const accepts = <A>(reader: AcpSchema.Reader<A>, raw: unknown) => {
  const read = reader(raw)
  assert(Result.isSuccess(read))
  assert.strictEqual(read.success as unknown, raw)
}
const refuses = <A>(reader: AcpSchema.Reader<A>, ...raws: ReadonlyArray<unknown>) => {
  for (const raw of raws) {
    const read = reader(raw)
    assert(Result.isFailure(read))
    assert.isAtMost(read.failure.length, 300)
    assert.notInclude(read.failure, "hunter2")
  }
}

describe("payloads", () => {
  it("an answer to initialize needs a version; what else it has survives", () => {
    accepts(AcpSchema.initializeResponse, { protocolVersion: 1 })
    accepts(AcpSchema.initializeResponse, { protocolVersion: 99, agentCapabilities: null, authMethods: null, odd: {} })
    accepts(AcpSchema.initializeResponse, { protocolVersion: 1, authMethods: [{ id: "login", extra: 1 }] })
    refuses(AcpSchema.initializeResponse, undefined, null, {}, { protocolVersion: "hunter2" }, { authMethods: [] })
    refuses(AcpSchema.initializeResponse, { protocolVersion: 1, authMethods: [{ name: "hunter2" }] })
  })

  it("a session id is a string of 1 to 1,024 characters", () => {
    accepts(AcpSchema.newSessionResponse, { sessionId: "s", modes: { odd: true } })
    accepts(AcpSchema.newSessionResponse, { sessionId: "x".repeat(1024) })
    refuses(AcpSchema.newSessionResponse, {}, "hunter2", { sessionId: "" }, { sessionId: 3 })
    refuses(AcpSchema.newSessionResponse, { sessionId: `hunter2${"x".repeat(1024)}` })
  })

  it("an answer to session/load or resume is nothing, or modes and options, and what else it has survives", () => {
    const read = (raw: unknown) => Result.getOrThrow(AcpSchema.reopenedResponse(raw)) as unknown
    for (const raw of [null, undefined]) assert.deepStrictEqual(read(raw), {})
    accepts(AcpSchema.reopenedResponse, {})
    accepts(AcpSchema.reopenedResponse, { modes: null, configOptions: null, odd: 1 })
    accepts(AcpSchema.reopenedResponse, { modes: { odd: true }, configOptions: [{ id: "a" }], _meta: {} })
    refuses(AcpSchema.reopenedResponse, "hunter2", 3, [], { modes: "hunter2" }, { configOptions: { a: "hunter2" } })
  })

  it("a list of sessions needs their ids, and its cursor is a string or nothing", () => {
    accepts(AcpSchema.listSessionsResponse, { sessions: [] })
    accepts(AcpSchema.listSessionsResponse, { sessions: [{ sessionId: "s", odd: 1 }], nextCursor: null })
    accepts(AcpSchema.listSessionsResponse, { sessions: [{ sessionId: "s", cwd: "/" }], nextCursor: "2", odd: {} })
    refuses(AcpSchema.listSessionsResponse, null, [], {}, { sessions: [{}] }, { sessions: [{ sessionId: "" }] })
    refuses(AcpSchema.listSessionsResponse, { sessions: [], nextCursor: 3 })
    refuses(AcpSchema.listSessionsResponse, { sessions: [{ sessionId: `hunter2${"x".repeat(1024)}` }] })
  })

  it("what an agent can do with the sessions that it has had is what it says", () => {
    const { canList, canLoad, canResume } = AcpProtocol.v1
    for (const can of [canList, canLoad, canResume]) {
      for (const none of [undefined, null, {}, { sessionCapabilities: {} }]) assert.isFalse(can(none))
    }
    assert.isTrue(canLoad({ loadSession: true }))
    assert.isFalse(canLoad({ loadSession: false }))
    assert.isTrue(canResume({ sessionCapabilities: { resume: {} } }))
    assert.isFalse(canResume({ sessionCapabilities: { resume: null, list: {} } }))
    assert.isTrue(canList({ sessionCapabilities: { list: {} } }))
  })

  it("a stop reason that is new survives; none at all is refused", () => {
    accepts(AcpSchema.promptResponse, { stopReason: "coffee_break", usage: {} })
    refuses(AcpSchema.promptResponse, null, [], {}, { stopReason: null })
    assert(Result.isSuccess(AcpProtocol.v1.turnEnd({ stopReason: "end_turn" })))
  })

  it("an update's envelope needs its session alone", () => {
    accepts(AcpSchema.sessionNotification, { sessionId: "s" })
    accepts(AcpSchema.sessionNotification, { sessionId: "s", update: 3, more: [1] })
    refuses(AcpSchema.sessionNotification, undefined, [], {}, { sessionId: null, update: {} })
  })

  it("a permission needs its session, tool call and options", () => {
    const option = { optionId: "a", name: "Allow", kind: "allow_once", colour: "green" }
    accepts(AcpSchema.permissionRequest, { sessionId: "s", toolCall: { toolCallId: "t", x: 1 }, options: [option] })
    accepts(AcpSchema.permissionRequest, { sessionId: "s", toolCall: { toolCallId: "t" }, options: [] })
    refuses(
      AcpSchema.permissionRequest,
      undefined,
      { sessionId: "s", options: [option] },
      { sessionId: "s", toolCall: { toolCallId: "t" } },
      { sessionId: "s", toolCall: { toolCallId: "t" }, options: [{ optionId: "hunter2" }] }
    )
  })

  it("the answer to a config option carries the list of options", () => {
    accepts(AcpSchema.configOptionResponse, { configOptions: [{ id: "model" }] })
    refuses(AcpSchema.configOptionResponse, {}, { configOptions: {} })
  })

  it("whether an agent can close sessions is read from any shape of capabilities", () => {
    assert.isTrue(AcpProtocol.v1.canClose({ sessionCapabilities: { close: {} } }))
    for (const none of [undefined, null, {}, { sessionCapabilities: {} }, { sessionCapabilities: { close: null } }]) {
      assert.isFalse(AcpProtocol.v1.canClose(none))
    }
  })
})
