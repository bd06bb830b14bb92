/**
 * What happens in a session and in a sidecar, as numbered values. `number` counts from 1 within its session or sidecar,
 * without gaps; `at` is the clock's time in milliseconds since 1970.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import type { Acp, SessionUpdate } from "./acp/AcpSchema.ts"
import * as Address from "./Address.ts"
import { opaque } from "./internal/opaque.ts"
import * as SidecarError from "./SidecarError.ts"
import * as TurnOutcome from "./TurnOutcome.ts"

/** `number` counts from 1 within its session or sidecar, without gaps; `at` is the clock's time in milliseconds. */
const numbered = { number: Schema.Int, at: Schema.Finite }

/**
 * The agent said something. `turnId` is the turn that it belongs to; `null` outside any turn. `afterTurn` is set when it
 * came after the response that ended that turn: then it belongs to that turn's history and never to the next turn. `replay`
 * is set on what the agent told of a session's history while it was loaded or resumed: until its answer, and not longer.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const Update = Schema.TaggedStruct("Update", {
  ...numbered,
  turnId: Schema.NullOr(Address.TurnId),
  afterTurn: Schema.NullOr(Address.TurnId),
  replay: Schema.optionalKey(Schema.Literal(true)),
  update: opaque<SessionUpdate>()
})
/** @since 0.1.0 */
export type Update = typeof Update.Type

/**
 * The agent said something that is no update of the session: an extension of its own, such as a change of its sign-in. One
 * that names no session is told to all sessions of its process that it may concern, see `SessionRouter.notify`.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const Notification = Schema.TaggedStruct("Notification", {
  ...numbered,
  method: Schema.String,
  params: opaque()
})
/** @since 0.1.0 */
export type Notification = typeof Notification.Type

/**
 * A turn was accepted. It may still wait to be admitted.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const TurnQueued = Schema.TaggedStruct("TurnQueued", { ...numbered, turnId: Address.TurnId })
/** @since 0.1.0 */
export type TurnQueued = typeof TurnQueued.Type

/**
 * A turn was admitted and its prompt is on its way to the agent.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const TurnStarted = Schema.TaggedStruct("TurnStarted", { ...numbered, turnId: Address.TurnId })
/** @since 0.1.0 */
export type TurnStarted = typeof TurnStarted.Type

/**
 * A turn ended. There is exactly one of these for each turn, and it is the turn's last event. `cancelledToolCalls` are the
 * ids of the tool calls that the agent began in a turn that did not complete, and never ended: they read cancelled.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const TurnEnded = Schema.TaggedStruct("TurnEnded", {
  ...numbered,
  turnId: Address.TurnId,
  outcome: TurnOutcome.TurnOutcome,
  cancelledToolCalls: Schema.optionalKey(Schema.Array(Schema.String))
})
/** @since 0.1.0 */
export type TurnEnded = typeof TurnEnded.Type

/**
 * The agent asks the user. With the policy "ask" the app answers through `Session.answer`.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const PermissionAsked = Schema.TaggedStruct("PermissionAsked", {
  ...numbered,
  turnId: Schema.NullOr(Address.TurnId),
  permissionId: Schema.String,
  toolCall: opaque<Acp.ToolCallUpdate>(),
  options: opaque<ReadonlyArray<Acp.PermissionOption>>()
})
/** @since 0.1.0 */
export type PermissionAsked = typeof PermissionAsked.Type

/**
 * Who answered a question of the agent: the `user`, the `policy`, a `handler`, the `deadline`, the turn's `cancel`, the
 * turn's `turn_end`, the session's `close`, the agent's `crash`, the `limit` of open questions, or the agent itself, which
 * took it back (`withdrawn`).
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const AnsweredBy = Schema.Literals([
  "user",
  "policy",
  "handler",
  "deadline",
  "cancel",
  "turn_end",
  "close",
  "crash",
  "limit",
  "withdrawn"
])
/** @since 0.1.0 */
export type AnsweredBy = typeof AnsweredBy.Type

/**
 * A question was answered: with one of the offered options, or (`optionId` null) as cancelled.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const PermissionAnswered = Schema.TaggedStruct("PermissionAnswered", {
  ...numbered,
  turnId: Schema.NullOr(Address.TurnId),
  permissionId: Schema.String,
  optionId: Schema.NullOr(Schema.String),
  answeredBy: AnsweredBy
})
/** @since 0.1.0 */
export type PermissionAnswered = typeof PermissionAnswered.Type

/**
 * The lag policy, in one event: nobody waits for a slow reader, it skips instead. The events `from` up to, not including,
 * `to` are gone for this reader, which goes on with `to`; the session, its agent and all other readers noticed nothing.
 * It happens when a reader is more than `mailboxCapacity` events or `mailboxBytes` bytes behind. It has no number of its
 * own.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const Lagged = Schema.TaggedStruct("Lagged", { from: Schema.Int, to: Schema.Int })
/** @since 0.1.0 */
export type Lagged = typeof Lagged.Type

/**
 * The session takes no more prompts, and why, see `SidecarError.EndReason`. The last event of a session.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const SessionEnded = Schema.TaggedStruct("SessionEnded", {
  ...numbered,
  reason: SidecarError.EndReason,
  detail: Schema.String
})
/** @since 0.1.0 */
export type SessionEnded = typeof SessionEnded.Type

/**
 * The session's agent process ended by itself, and the session is being brought back on another one, since its `restart` is
 * "resume". The turns that this cost have ended before this event, and so have the questions: nothing of that process comes
 * after it. `generation` counts the processes that the session has had; `detail` says how it ended.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const AgentExited = Schema.TaggedStruct("AgentExited", {
  ...numbered,
  generation: Schema.Int,
  pid: Schema.NullOr(Schema.Finite),
  detail: Schema.String
})
/** @since 0.1.0 */
export type AgentExited = typeof AgentExited.Type

/**
 * The session goes on, on the process `generation`, with what its agent has kept of it: by `method` "resume", or "load",
 * whose history is not told again. Whatever ran when the process before ended was not sent again.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const SessionResumed = Schema.TaggedStruct("SessionResumed", {
  ...numbered,
  generation: Schema.Int,
  pid: Schema.NullOr(Schema.Finite),
  hostId: Address.HostId,
  method: Schema.Literals(["resume", "load"])
})
/** @since 0.1.0 */
export type SessionResumed = typeof SessionResumed.Type

/**
 * What the readers of a session see.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export const SessionEvent = Schema.Union([
  Update,
  Notification,
  TurnQueued,
  TurnStarted,
  TurnEnded,
  PermissionAsked,
  PermissionAnswered,
  AgentExited,
  SessionResumed,
  Lagged,
  SessionEnded
])
/** @since 0.1.0 */
export type SessionEvent = typeof SessionEvent.Type

/** A session event as it is made, before it has a number and a time. */
type Unnumbered<E> = E extends { readonly number: number } ? Omit<E, "number" | "at"> : never

/**
 * A session event before it has its number and time.
 *
 * @stability unstable
 * @category session events
 * @since 0.1.0
 */
export type SessionEventInput = Unnumbered<SessionEvent>

/**
 * What the readers of a sidecar see: `kind` says what happened, `address` to what, `detail` a sentence for people. When
 * `kind` is `limit_warning`, `limit`, `used` and `max` say which limit is at 80 % or more; it is said once, and again only
 * after the use fell under 50 %.
 *
 * @stability unstable
 * @category sidecar events
 * @since 0.1.0
 */
export const SidecarEvent = Schema.Struct({
  ...numbered,
  kind: Schema.Literals([
    "vm_opened",
    "vm_closed",
    "host_started",
    "host_exited",
    "host_held_back",
    "session_opened",
    "session_ended",
    "turn_ended",
    "limit_warning",
    "disposing",
    "disposed"
  ]),
  address: Address.Address,
  detail: Schema.String,
  limit: Schema.optionalKey(Schema.String),
  used: Schema.optionalKey(Schema.Finite),
  max: Schema.optionalKey(Schema.Finite)
})
/** @since 0.1.0 */
export type SidecarEvent = typeof SidecarEvent.Type

/**
 * Takes a sidecar event before it has its number and time; never waits.
 *
 * @stability unstable
 * @category sidecar events
 * @since 0.1.0
 */
export interface Emit {
  (event: Omit<SidecarEvent, "number" | "at">): void
}
