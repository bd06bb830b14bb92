// The readers of AcpSchema: none throws, what they accept comes back untouched, and those written by hand agree with a
// schema that says the same.
import assert from "node:assert/strict"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as AcpSchema from "../../src/acp/AcpSchema.ts"
import type * as Input from "./Input.ts"
import { within } from "./same.ts"

const isRecord = (value: unknown): boolean => typeof value === "object" && value !== null && !Array.isArray(value)
const AnyObject = Schema.Unknown.check(Schema.makeFilter((value) => isRecord(value)))

const Content = Schema.Union([
  Schema.Struct({ type: Schema.Literal("text"), text: Schema.String }),
  Schema.Struct({ type: Schema.Literal("resource"), resource: AnyObject }),
  Schema.Struct({
    type: Schema.String.check(Schema.makeFilter((type) => type !== "text" && type !== "resource"))
  })
])
const isChunk = Schema.is(
  Schema.Struct({
    sessionUpdate: Schema.Literals(["user_message_chunk", "agent_message_chunk", "agent_thought_chunk"]),
    content: Content
  })
)
const isNotification = Schema.is(Schema.Struct({ sessionId: Schema.String }))

const { sessionNotification, sessionUpdate, ...others } = {
  initializeResponse: AcpSchema.initializeResponse,
  newSessionResponse: AcpSchema.newSessionResponse,
  listSessionsResponse: AcpSchema.listSessionsResponse,
  promptResponse: AcpSchema.promptResponse,
  permissionRequest: AcpSchema.permissionRequest,
  configOptionResponse: AcpSchema.configOptionResponse,
  sessionNotification: AcpSchema.sessionNotification,
  sessionUpdate: AcpSchema.sessionUpdate
}
const readers: ReadonlyArray<readonly [string, AcpSchema.Reader<unknown>]> = Object.entries({
  ...others,
  sessionNotification
})

const checkUpdate = (value: unknown): void => {
  const kind = (value as { readonly sessionUpdate?: unknown } | null)?.sessionUpdate
  const read = sessionUpdate(value)
  if (typeof kind === "string" && kind.endsWith("_chunk") && kind !== "compaction_summary_chunk") {
    assert.equal(read === value, isChunk(value), "chunks are checked as the schema says")
  }
  if (read === value) return
  assert.ok(
    read.sessionUpdate === "unrecognized" && (read as AcpSchema.Unrecognized).raw === value,
    "an update survives"
  )
  assert.equal((read as AcpSchema.Unrecognized).kind, typeof kind === "string" ? kind : "")
}

const checkValue = (value: unknown): void => {
  for (const [name, reader] of readers) {
    const read = reader(value)
    if (read._tag === "Success") {
      assert.equal(read.success, value, `${name} gives the very value that came in`)
    } else {
      assert.ok(read.failure.length > 0 && read.failure.length <= 300, `${name} says what is wrong`)
      assert.ok(!read.failure.includes("\n"), `${name} says it on one line`)
    }
    if (name === "sessionNotification") {
      assert.equal(read._tag === "Success", isNotification(value), "notifications are checked as the schema says")
    }
  }
  checkUpdate(value)
}

const parse = (bytes: Uint8Array): unknown => {
  try {
    return JSON.parse(new TextDecoder().decode(bytes))
  } catch {
    return undefined
  }
}

export const schema = {
  about: "the readers of AcpSchema with whatever is JSON, against schemas",
  check: (input: Input.Input): Effect.Effect<void> =>
    Effect.sync(() => {
      for (const { bytes } of input.lines) for (const value of within(parse(bytes), 60)) checkValue(value)
    })
}
