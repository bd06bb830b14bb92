/**
 * How a turn ends: one of three, exactly once.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import { opaque } from "./internal/opaque.ts"
import * as SidecarError from "./SidecarError.ts"

/**
 * The agent ended the turn by itself. `stopReason` is its word for why (`end_turn`, `max_tokens`, `refusal`, …),
 * `response` its whole answer as it came.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const Completed = Schema.TaggedStruct("Completed", {
  stopReason: Schema.String,
  response: opaque()
})
/** @since 0.1.0 */
export type Completed = typeof Completed.Type

/**
 * Who wanted a turn to end: `caller` through `cancel`, `interruption` of the fiber that awaited it, a later prompt that
 * `replaced` it, the `close` of its session, the `vm_close` of its Vm, or the `dispose` of the sidecar.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const CancelledBy = Schema.Literals(["caller", "interruption", "replaced", "close", "vm_close", "dispose"])
/** @since 0.1.0 */
export type CancelledBy = typeof CancelledBy.Type

/**
 * How far it had to go until a turn was over: `none` when the agent ended it on `session/cancel` (or never had it),
 * `cancel_request` when it took `$/cancel_request`, `session_close` when it took `session/close`, `retired` when the
 * agent's process was stopped, `quarantined` when the session was cut off alone instead, since others share the process.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const Escalation = Schema.Literals(["none", "cancel_request", "session_close", "retired", "quarantined"])
/** @since 0.1.0 */
export type Escalation = typeof Escalation.Type

/**
 * The turn was cancelled. `agentReported` is how the agent itself ended it: a stop reason (usually `cancelled`, some
 * say `end_turn`), `error <code>` when it answered with an error, or `null` when it never answered or never had the
 * prompt.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const Cancelled = Schema.TaggedStruct("Cancelled", {
  by: CancelledBy,
  agentReported: Schema.NullOr(Schema.String),
  escalation: Escalation
})
/** @since 0.1.0 */
export type Cancelled = typeof Cancelled.Type

/**
 * The turn failed, see `TurnFailed` for the closed set of reasons.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const Failed = Schema.TaggedStruct("Failed", { error: SidecarError.TurnFailed })
/** @since 0.1.0 */
export type Failed = typeof Failed.Type

/**
 * How a turn ended.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const TurnOutcome = Schema.Union([Completed, Cancelled, Failed])
/** @since 0.1.0 */
export type TurnOutcome = typeof TurnOutcome.Type

/**
 * A {@link Completed} outcome.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const completed = (stopReason: string, response: unknown): Completed => ({
  _tag: "Completed",
  stopReason,
  response
})

/**
 * A {@link Cancelled} outcome.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const cancelled = (
  by: CancelledBy,
  agentReported: string | null = null,
  escalation: Escalation = "none"
): Cancelled => ({ _tag: "Cancelled", by, agentReported, escalation })

/**
 * A {@link Failed} outcome.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const failed = (error: SidecarError.TurnFailed): Failed => ({ _tag: "Failed", error })
