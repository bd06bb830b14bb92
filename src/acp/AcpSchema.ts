/**
 * The payloads that a host acts on. The types are the ACP SDK's; the schemas check what we rely on and nothing else, so
 * that fields we do not know survive untouched in the value that was checked.
 *
 * @since 0.1.0
 */
import type * as Acp from "@agentclientprotocol/sdk"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

/**
 * The ACP SDK's protocol types (version 1).
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type * as Acp from "@agentclientprotocol/sdk"

const Text = Schema.Struct({ sessionId: Schema.String })

const Id = Schema.String.check(Schema.isMinLength(1), Schema.isMaxLength(1024))

const text = Schema.optional(Schema.NullOr(Schema.String))

/**
 * A checked reader of payloads: gives the very object that came in, typed, or one sentence about what is wrong with it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Reader<A> {
  (raw: unknown): Result.Result<A, string>
}

const is = (schema: Schema.Codec<unknown, unknown>): ((raw: unknown) => boolean) => Schema.is(schema)

const isObject = (raw: unknown): raw is Readonly<Record<string, unknown>> =>
  typeof raw === "object" && raw !== null && !Array.isArray(raw)

/** A `check` written by hand, which must agree with the schema, is for what comes by the ten thousand a second. */
const reader = <A>(schema: Schema.Codec<unknown, unknown>, check = is(schema)): Reader<A> => {
  const explain = Schema.decodeUnknownResult(schema)
  return (raw) => {
    if (check(raw)) return Result.succeed(raw as A)
    return Result.mapError(explain(raw), (error) =>
      String(error.message).replaceAll(/\s+/g, " ").slice(0, 300)
    ) as Result.Result<A, string>
  }
}

/**
 * `initialize`: the version must be a number; capabilities, authentication methods and agent info are optional.
 *
 * @stability unstable
 * @category readers
 * @since 0.1.0
 */
export const initializeResponse: Reader<Acp.InitializeResponse> = reader(
  Schema.Struct({
    protocolVersion: Schema.Finite,
    agentCapabilities: Schema.optional(Schema.NullOr(Schema.Record(Schema.String, Schema.Unknown))),
    authMethods: Schema.optional(Schema.NullOr(Schema.Array(Schema.Struct({ id: Schema.String })))),
    agentInfo: Schema.optional(Schema.NullOr(Schema.Record(Schema.String, Schema.Unknown)))
  })
)

/**
 * `session/new`: the session id must be a non-empty string of at most 1,024 characters.
 *
 * @stability unstable
 * @category readers
 * @since 0.1.0
 */
export const newSessionResponse: Reader<Acp.NewSessionResponse> = reader(Schema.Struct({ sessionId: Id }))

const reopened = reader<Acp.LoadSessionResponse | null | undefined>(
  Schema.UndefinedOr(
    Schema.NullOr(
      Schema.Struct({
        modes: Schema.optional(Schema.NullOr(Schema.Record(Schema.String, Schema.Unknown))),
        configOptions: Schema.optional(Schema.NullOr(Schema.Array(Schema.Unknown)))
      })
    )
  )
)

/**
 * `session/load` and `session/resume`: nothing (`null` reads as `{}`), or modes and options. An agent that has neither
 * answers either way.
 *
 * @stability unstable
 * @category readers
 * @since 0.1.0
 */
export const reopenedResponse: Reader<Acp.LoadSessionResponse> = (raw) =>
  Result.map(reopened(raw), (response) => response ?? {})

/**
 * `session/list`: sessions with non-empty ids of at most 1,024 characters, and the cursor of the next page if there is
 * one.
 *
 * @stability unstable
 * @category readers
 * @since 0.1.0
 */
export const listSessionsResponse: Reader<Acp.ListSessionsResponse> = reader(
  Schema.Struct({ sessions: Schema.Array(Schema.Struct({ sessionId: Id })), nextCursor: text })
)

/**
 * `session/prompt`: the stop reason must be a string; unknown reasons survive.
 *
 * @stability unstable
 * @category readers
 * @since 0.1.0
 */
export const promptResponse: Reader<Acp.PromptResponse> = reader(Schema.Struct({ stopReason: Schema.String }))

/**
 * `session/update`: only the session id is checked here, see {@link sessionUpdate} for what it carries.
 *
 * @stability unstable
 * @category readers
 * @since 0.1.0
 */
export const sessionNotification: Reader<{ readonly sessionId: string; readonly update: unknown }> = reader(
  Text,
  (raw) => isObject(raw) && typeof raw.sessionId === "string"
)

/**
 * `session/request_permission`: a session id, a tool call with an id, and options with ids, names and kinds.
 *
 * @stability unstable
 * @category readers
 * @since 0.1.0
 */
export const permissionRequest: Reader<Acp.RequestPermissionRequest> = reader(
  Schema.Struct({
    sessionId: Schema.String,
    toolCall: Schema.Struct({ toolCallId: Schema.String, title: text, kind: text }),
    options: Schema.Array(Schema.Struct({ optionId: Schema.String, name: Schema.String, kind: Schema.String }))
  })
)

/**
 * `session/set_config_option`: the answer carries the full list of options.
 *
 * @stability unstable
 * @category readers
 * @since 0.1.0
 */
export const configOptionResponse: Reader<Acp.SetSessionConfigOptionResponse> = reader(
  Schema.Struct({
    configOptions: Schema.Array(Schema.Unknown)
  })
)

/**
 * An update of a kind that we do not know, or of a known kind with fields we can't use. It is passed on as it came and
 * never breaks a turn.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Unrecognized {
  readonly sessionUpdate: "unrecognized"
  /** The kind as the agent wrote it, "" when it wrote none. */
  readonly kind: string
  readonly raw: unknown
}

/**
 * What an agent says while it works: one of ACP's updates, or {@link Unrecognized}.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type SessionUpdate = Acp.SessionUpdate | Unrecognized

/** Chunks are most of what agents send, and a schema costs more than reading their line, so they are checked by hand. */
const hasContent = (raw: unknown): boolean => isObject(raw) && isContent(raw.content)

const isContent = (content: unknown): boolean =>
  isObject(content) &&
  (content.type === "text"
    ? typeof content.text === "string"
    : typeof content.type === "string" && (content.type !== "resource" || isObject(content.resource)))

const tool = { kind: text, status: text, content: Schema.optional(Schema.NullOr(Schema.Array(Schema.Unknown))) }

/** What consumers of each kind rely on. A kind that is not here is unknown. */
const known: ReadonlyMap<unknown, (raw: unknown) => boolean> = new Map(
  Object.entries({
    user_message_chunk: hasContent,
    agent_message_chunk: hasContent,
    agent_thought_chunk: hasContent,
    tool_call: is(Schema.Struct({ ...tool, toolCallId: Schema.String, title: Schema.String })),
    tool_call_update: is(Schema.Struct({ ...tool, toolCallId: Schema.String, title: text })),
    plan: is(
      Schema.Struct({ entries: Schema.Array(Schema.Struct({ content: Schema.String, status: Schema.String })) })
    ),
    available_commands_update: is(
      Schema.Struct({ availableCommands: Schema.Array(Schema.Struct({ name: Schema.String })) })
    ),
    current_mode_update: is(Schema.Struct({ currentModeId: Schema.String })),
    config_option_update: is(Schema.Struct({ configOptions: Schema.Array(Schema.Unknown) })),
    session_info_update: isObject,
    usage_update: is(Schema.Struct({ used: Schema.Finite, size: Schema.Finite })),
    notice: isObject,
    compaction_update: isObject,
    compaction_summary_chunk: isObject
  })
)

/**
 * Reads the `update` of a `session/update`. It never fails: what can't be used comes back as {@link Unrecognized}.
 *
 * @stability unstable
 * @category readers
 * @since 0.1.0
 */
export const sessionUpdate = (raw: unknown): SessionUpdate => {
  const kind =
    typeof raw === "object" && raw !== null ? (raw as { readonly sessionUpdate?: unknown }).sessionUpdate : undefined
  if (known.get(kind)?.(raw) === true) return raw as Acp.SessionUpdate
  return { sessionUpdate: "unrecognized", kind: typeof kind === "string" ? kind : "", raw }
}
