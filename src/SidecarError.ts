/**
 * What a sidecar refuses and what can fail in it. An error that an operation fails with carries the address of the thing
 * it is about; a `reason` inside of it does not. Each says in one sentence what happened.
 *
 * @since 0.1.0
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import * as AcpError from "./acp/AcpError.ts"
import * as Address from "./Address.ts"
import * as SidecarLimits from "./SidecarLimits.ts"

/**
 * A limit is used up. `scope` says whose limit it is, `setting` which environment variable raises it (in code it is the
 * field `limit` of `SidecarLimits`), or which field of the agent's profile, where that has the limit. Nothing was started
 * and nothing is lost: try again later (of a limit on a prompt's size: send a smaller one), or raise the limit.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class LimitExceeded extends Schema.TaggedError<LimitExceeded>()("LimitExceeded", {
  address: Address.Address,
  scope: Schema.Literals(["pool", "sidecar", "client", "host", "vm", "session", "turn"]),
  limit: Schema.String,
  max: Schema.Finite,
  used: Schema.Finite,
  setting: Schema.String
}) {
  override get message(): string {
    const { address, limit, max, scope, setting, used } = this
    const where = Address.format(address)
    if (scope === "turn")
      return `${where}: the prompt has ${used} where ${limit} allows ${max}; send a smaller one, or raise ${setting}.`
    const wait = max === 0 ? "" : "wait for one to end, or "
    return `${where} is at its limit: ${limit} of the ${scope} is ${max} and ${used} are used; ${wait}raise ${setting}.`
  }
}

/**
 * The session already runs a prompt and this one was to be refused in that case (`onBusy: "reject"`).
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class SessionBusy extends Schema.TaggedError<SessionBusy>()("SessionBusy", {
  address: Address.Address,
  turnId: Address.TurnId
}) {
  override get message(): string {
    return (
      `${Address.format(this.address)} is busy with ${this.turnId}; wait for it, cancel it, or submit with ` +
      `onBusy "queue" or "replace".`
    )
  }
}

/**
 * The prompt or an option can't be used as given. Nothing was sent.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class InvalidInput extends Schema.TaggedError<InvalidInput>()("InvalidInput", {
  address: Address.Address,
  input: Schema.String,
  problem: Schema.String
}) {
  override get message(): string {
    return `${Address.format(this.address)}: the ${this.input} can't be used: ${this.problem}.`
  }
}

/**
 * Why a session takes no more prompts: it was `closed`, its Vm was (`vm_closed`), its sidecar was `disposed`, it was not
 * used for too long (`idle`), its agent ended (`agent_exited`), or did not end a cancelled turn and was stopped (`retired`),
 * or, on a shared agent, this session was cut off alone (`quarantined`), or the process of the sidecar is gone or can't be
 * reached any more (`sidecar_lost`).
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const EndReason = Schema.Literals([
  "closed",
  "vm_closed",
  "disposed",
  "idle",
  "agent_exited",
  "retired",
  "quarantined",
  "sidecar_lost"
])
/** @since 0.1.0 */
export type EndReason = typeof EndReason.Type

/**
 * The session takes no prompts: for good, for one of the reasons of {@link EndReason}, and then a new one is to be opened;
 * or as its agent has ended and it is being brought back on another process (`resuming`), and then it is worth waiting for.
 * Nothing was sent.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class SessionUnusable extends Schema.TaggedError<SessionUnusable>()("SessionUnusable", {
  address: Address.Address,
  reason: Schema.Union([EndReason, Schema.Literal("resuming")]),
  detail: Schema.String
}) {
  override get message(): string {
    if (this.reason === "resuming") {
      const why = this.detail.replace(/[.\s]+$/, "")
      return (
        `${Address.format(this.address)} takes no prompts for now, as it is being resumed (${why}); wait for its ` +
        "SessionResumed event, or try again later."
      )
    }
    return `${Address.format(this.address)} takes no more prompts (${this.detail}); open a new session.`
  }
}

/**
 * The Vm was closed, or the sidecar is being or has been disposed.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class Disposed extends Schema.TaggedError<Disposed>()("Disposed", {
  address: Address.Address,
  detail: Schema.optionalKey(Schema.String)
}) {
  override get message(): string {
    const why = this.detail === undefined ? "" : ` (${this.detail.replace(/[.\s]+$/, "")})`
    return `${Address.format(this.address)} is closed${why}; open a new one.`
  }
}

/**
 * The process of the sidecar is gone, or can't be reached any more. All that it had is gone for this app: nothing of it is
 * sent again by itself. `detail` says how it ended, as far as that is known.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class SidecarLost extends Schema.TaggedError<SidecarLost>()("SidecarLost", {
  address: Address.Address,
  detail: Schema.String
}) {
  override get message(): string {
    return `${Address.format(this.address)} was lost (${this.detail.replace(/[.\s]+$/, "")}); connect to a new one.`
  }
}

/**
 * There is no such thing here, or it belongs to somebody else: both get the same answer.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class NotFound extends Schema.TaggedError<NotFound>()("NotFound", {
  address: Address.Address
}) {
  override get message(): string {
    return `${Address.format(this.address)} does not exist, or is not yours.`
  }
}

/**
 * The whole start of an agent took longer than its one budget. `blockedBy` are the addresses of sessions of the same
 * agent process whose turns ran or whose questions were open meanwhile, none by default: some agents do one thing at a
 * time.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class StartTimedOut extends Schema.TaggedError<StartTimedOut>()("StartTimedOut", {
  budgetMillis: Schema.Finite,
  stderrTail: Schema.String,
  noiseSample: Schema.String,
  blockedBy: Schema.Array(Schema.String).pipe(Schema.withConstructorDefault(Effect.succeed([])))
}) {
  override get message(): string {
    if (this.blockedBy.length > 0) {
      const rest = this.blockedBy.length - shownBlockers
      const which = this.blockedBy.slice(0, shownBlockers).join(", ") + (rest > 0 ? ` and ${rest} more` : "")
      return (
        `no answer within ${this.budgetMillis} ms, and the agent has not answered other questions first: its process is ` +
        `busy with ${which}; answer or cancel those, or give this session a process of its own (share: false)`
      )
    }
    const hint = this.stderrTail.trim() || this.noiseSample.trim()
    return (
      `no answer within ${this.budgetMillis} ms${hint === "" ? "" : `; it last wrote: ${hint.slice(-400)}`}; ` +
      "raise ACP_SIDECAR_START_TIMEOUT if the agent is only slow, and check that the command speaks ACP"
    )
  }
}

/** Addresses that a message names. */
const shownBlockers = 3

/**
 * The agent answered `initialize` with a protocol version that this library does not speak.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class VersionMismatch extends Schema.TaggedError<VersionMismatch>()("VersionMismatch", {
  offered: Schema.Finite,
  got: Schema.Finite
}) {
  override get message(): string {
    return `version ${this.offered} of ACP was offered and the agent wants ${this.got}; install a version of the agent that speaks ${this.offered}`
  }
}

/**
 * The agent wants its user to sign in first. `methods` are the ways it offers. Sign in with the agent's own command, or
 * name one of the methods in `authenticate` when opening the session.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class AuthRequired extends Schema.TaggedError<AuthRequired>()("AuthRequired", {
  methods: Schema.Array(Schema.Struct({ id: Schema.String, name: Schema.String })),
  detail: Schema.String
}) {
  override get message(): string {
    const ways = this.methods.map((method) => method.id).join(", ") || "none offered"
    return (
      `the agent wants its user to sign in (methods: ${ways}); sign in with the agent's own command, or open the ` +
      "session with one of these as authenticate"
    )
  }
}

/**
 * An agent's launch could not be recorded, see `LaunchRecords`; `problem` says why. It was not started, or was ended at
 * once. Make the folder one that its user alone may write to, give another one, or go without records.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class LaunchNotRecorded extends Schema.TaggedError<LaunchNotRecorded>()("LaunchNotRecorded", {
  folder: Schema.String,
  problem: Schema.String
}) {
  override get message(): string {
    return (
      `launches can't be recorded in "${this.folder}" (${this.problem}); give a folder of yours that others can't write ` +
      "to, or go without records (LaunchRecords.layer({ folder }) in an app, ACP_SIDECAR_STATE=FOLDER or off for the command)"
    )
  }
}

/**
 * What was started writes lines that are no ACP frames and never answered `initialize`.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class NotAnAcpAgent extends Schema.TaggedError<NotAnAcpAgent>()("NotAnAcpAgent", {
  noiseLines: Schema.Finite,
  sample: Schema.String
}) {
  override get message(): string {
    return (
      `it wrote ${this.noiseLines} lines that are not ACP (such as ${JSON.stringify(this.sample.slice(0, 120))}); ` +
      "check that the command starts the agent in ACP mode, or, if it is only talkative, raise " +
      SidecarLimits.setting("maxNoiseBeforeInitialize")
    )
  }
}

/**
 * The agent does not offer what was asked of it. Nothing was sent. `instead` says what else there is.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class NotSupported extends Schema.TaggedError<NotSupported>()("NotSupported", {
  method: Schema.String,
  instead: Schema.String
}) {
  override get message(): string {
    return `the agent does not offer ${this.method}; ${this.instead}`
  }
}

/**
 * The agent refused one more session beside the `others` that its process has, with an error of its own. Those go on.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class OneSessionOnly extends Schema.TaggedError<OneSessionOnly>()("OneSessionOnly", {
  code: Schema.Finite,
  detail: Schema.String,
  others: Schema.Finite
}) {
  override get message(): string {
    const others = this.others === 1 ? "the one" : `the ${this.others}`
    return (
      `the agent refused a session beside ${others} that its process has, with error ${this.code}: ${this.detail}; it ` +
      "seems to carry only one session per process: share: false in its profile gives each its own"
    )
  }
}

/**
 * The agent's session can't be opened under this id: it is no id, or somebody has it open. Nothing was sent.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class UnusableSessionId extends Schema.TaggedError<UnusableSessionId>()("UnusableSessionId", {
  problem: Schema.String
}) {
  override get message(): string {
    return `the session id can't be used: ${this.problem}`
  }
}

/**
 * The agent process that has to be gone first has not ended in time. There are never two of one identity. Its place stays
 * taken until it is gone, also when it could not be killed.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class HostStillEnding extends Schema.TaggedError<HostStillEnding>()("HostStillEnding", {
  hostId: Address.HostId,
  pid: Schema.NullOr(Schema.Finite),
  afterMillis: Schema.Finite
}) {
  override get message(): string {
    const which = this.pid === null ? this.hostId : `${this.hostId} (process ${this.pid})`
    return (
      `the agent's process before, ${which}, has not ended within ${this.afterMillis} ms; try again later, look at why ` +
      `it does not end, or raise ${SidecarLimits.setting("hostExitTimeout")}`
    )
  }
}

/**
 * Agent processes of this launch identity failed `failures` times in a row: they did not start, or ended by themselves soon
 * after. So none is started for a while, which grows with each failure. Nothing was started; `reason` is the message of
 * the last failure.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class StartHeldBack extends Schema.TaggedError<StartHeldBack>()("StartHeldBack", {
  failures: Schema.Int,
  retryInMillis: Schema.Finite,
  reason: Schema.String
}) {
  override get message(): string {
    const times = this.failures === 1 ? "" : `${this.failures} times in a row, `
    return (
      `it did not start, or ended soon after, ${times}the last time since: ${this.reason.replace(/[.\s]+$/, "")}; ` +
      `correct that, and try again in ${this.retryInMillis} ms`
    )
  }
}

const StartReason = Schema.Union([
  AcpError.SpawnError,
  LaunchNotRecorded,
  AcpError.ProcessExited,
  AcpError.TransportClosed,
  AcpError.HostClosed,
  AcpError.RequestError,
  AcpError.InvalidResponse,
  StartTimedOut,
  VersionMismatch,
  AuthRequired,
  NotAnAcpAgent,
  NotSupported,
  OneSessionOnly,
  UnusableSessionId,
  HostStillEnding,
  StartHeldBack
])

/**
 * An agent could not be brought to a usable session. `phase` says how far it came; `reason` says why, with evidence.
 * Whatever had been started is gone.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class AgentStartFailed extends Schema.TaggedError<AgentStartFailed>()("AgentStartFailed", {
  address: Address.Address,
  agent: Schema.String,
  phase: Schema.Literals(["spawn", "initialize", "authenticate", "session/new", "session/load", "session/resume"]),
  reason: StartReason
}) {
  override get message(): string {
    return (
      `The agent "${this.agent}" could not be started for ${Address.format(this.address)}, in phase ${this.phase}: ` +
      this.reason.message
    )
  }
}

/**
 * Why an agent's start failed.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type StartReason = typeof StartReason.Type

/**
 * A turn met its deadline: `idle` when nothing came from the agent for too long, `wall` when the turn as a whole took
 * too long, `admission` when it was never admitted.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class TurnTimedOut extends Schema.TaggedError<TurnTimedOut>()("TurnTimedOut", {
  deadline: Schema.Literals(["idle", "wall", "admission"]),
  afterMillis: Schema.Finite,
  /** How the agent was brought to end the turn; see `Cancelled`. */
  escalation: Schema.Literals(["none", "cancel_request", "session_close", "retired", "quarantined"])
}) {
  override get message(): string {
    const setting = { idle: "TURN_IDLE_TIMEOUT", wall: "TURN_TIMEOUT", admission: "ADMISSION_TIMEOUT" }[this.deadline]
    const what = {
      idle: `the agent sent nothing for ${this.afterMillis} ms`,
      wall: `the turn took ${this.afterMillis} ms`,
      admission: `the prompt waited ${this.afterMillis} ms to be admitted`
    }[this.deadline]
    return `${what}; raise ACP_SIDECAR_${setting} if that is too strict`
  }
}

/**
 * The agent sent more than one turn, or one line, may have. Only this turn ends.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class OutputExceeded extends Schema.TaggedError<OutputExceeded>()("OutputExceeded", {
  limit: Schema.Literals(["maxTurnOutputBytes", "maxLineBytes"]),
  max: Schema.Finite,
  used: Schema.Finite,
  setting: Schema.String
}) {
  override get message(): string {
    return `the agent sent ${this.used} bytes where ${this.limit} allows ${this.max}; raise ${this.setting} if that is too strict`
  }
}

const TurnReason = Schema.Union([
  AcpError.ProcessExited,
  AcpError.TransportClosed,
  AcpError.HostClosed,
  AcpError.RequestError,
  AcpError.InvalidResponse,
  TurnTimedOut,
  OutputExceeded,
  SidecarLost
])

/**
 * A turn ended without completing and without being cancelled. `reason` is one of a closed set, with evidence; the
 * prompt is never sent again by itself.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class TurnFailed extends Schema.TaggedError<TurnFailed>()("TurnFailed", {
  address: Address.Address,
  /** `queued`: never sent to the agent. `running`: the agent had it. */
  phase: Schema.Literals(["queued", "running"]),
  reason: TurnReason
}) {
  override get message(): string {
    return `${Address.format(this.address)} failed while ${this.phase}: ${this.reason.message}`
  }
}

/**
 * Why a turn failed.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type TurnReason = typeof TurnReason.Type

/**
 * The agent did not answer a call in time. It was told that the call is off.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class CallTimedOut extends Schema.TaggedError<CallTimedOut>()("CallTimedOut", {
  afterMillis: Schema.Finite
}) {
  override get message(): string {
    return `the agent did not answer within ${this.afterMillis} ms; raise ACP_SIDECAR_CALL_TIMEOUT if it is only slow.`
  }
}

/**
 * A call to the agent outside a turn (setting a mode or an option) failed.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class AgentCallFailed extends Schema.TaggedError<AgentCallFailed>()("AgentCallFailed", {
  address: Address.Address,
  method: Schema.String,
  reason: Schema.Union([...AcpError.RequestFailure.members, CallTimedOut, SidecarLost])
}) {
  override get message(): string {
    return `${Address.format(this.address)}: ${this.method} failed: ${this.reason.message}`
  }
}

/**
 * The question was answered before, or never asked. `answeredBy` says who was first, when that is still known.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class PermissionNotPending extends Schema.TaggedError<PermissionNotPending>()("PermissionNotPending", {
  address: Address.Address,
  permissionId: Schema.String,
  answeredBy: Schema.NullOr(Schema.String)
}) {
  override get message(): string {
    return this.answeredBy === null
      ? `${Address.format(this.address)}: there is no open question ${this.permissionId}.`
      : `${Address.format(this.address)}: question ${this.permissionId} was already answered by ${this.answeredBy}.`
  }
}

/**
 * The chosen option was not among those that the agent offered; the question stays open.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class InvalidPermissionOption extends Schema.TaggedError<InvalidPermissionOption>()("InvalidPermissionOption", {
  address: Address.Address,
  permissionId: Schema.String,
  given: Schema.String,
  valid: Schema.Array(Schema.String)
}) {
  override get message(): string {
    return (
      `${Address.format(this.address)}: "${this.given}" is not an option of question ${this.permissionId}; choose ` +
      `one of ${this.valid.map((id) => `"${id}"`).join(", ")}.`
    )
  }
}
