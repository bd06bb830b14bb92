/**
 * What a sidecar process and its clients say to each other: newline-delimited JSON, first a handshake of one line each
 * way, then the calls of {@link SidecarRpc} in the messages of `effect/rpc`. An app uses `SidecarClient` or `SidecarPool`;
 * this is for those who write a client of their own.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import * as Rpc from "effect/rpc/Rpc"
import * as RpcGroup from "effect/rpc/RpcGroup"
import type { Acp } from "./acp/AcpSchema.ts"
import * as Address from "./Address.ts"
import type * as AgentProfile from "./AgentProfile.ts"
import { opaque } from "./internal/opaque.ts"
import type * as Permission from "./Permission.ts"
import * as Probe from "./Probe.ts"
import type * as Session from "./Session.ts"
import type * as Sidecar from "./Sidecar.ts"
import * as SidecarError from "./SidecarError.ts"
import * as SidecarEvent from "./SidecarEvent.ts"
import * as SidecarLimits from "./SidecarLimits.ts"
import * as TurnOutcome from "./TurnOutcome.ts"
import type * as Vm from "./Vm.ts"

/**
 * The version of this contract. A server takes clients of its own version and no others.
 *
 * @stability unstable
 * @category handshake
 * @since 0.1.0
 */
export const protocolVersion = 1

/**
 * The longest first line of either side, in bytes.
 *
 * @stability unstable
 * @category handshake
 * @since 0.1.0
 */
export const maxHandshakeBytes = 65_536

/**
 * The first line of a client. `client` is the name of the app, for people. An `app` reaches what it has opened itself, an
 * `operator` all that the sidecar has. When its connection ends, its turns are interrupted and its Vms closed, or, with
 * `detach`, go on for `detachTimeout`; with the key of its welcome as `resume` it comes back.
 *
 * @stability unstable
 * @category handshake
 * @since 0.1.0
 */
export const Hello = Schema.Struct({
  acpSidecar: Schema.Int,
  client: Schema.String.check(Schema.isMaxLength(256)),
  token: Schema.optionalKey(Schema.String),
  role: Schema.optionalKey(Schema.Literals(["app", "operator"])),
  onDisconnect: Schema.optionalKey(Schema.Literals(["interrupt", "detach"])),
  resume: Schema.optionalKey(Schema.String)
})
/** @since 0.1.0 */
export type Hello = typeof Hello.Type

/**
 * Why a server refused a client: another `version`, no or the wrong `token`, a first line that is no hello (`malformed`) or
 * none in time (`timeout`), a `role` that it does not give, a `resume` key of no client that it has, no room (`full`), or its
 * own end (`disposed`).
 *
 * @stability unstable
 * @category handshake
 * @since 0.1.0
 */
export const RefusalReason = Schema.Literals([
  "version",
  "token",
  "malformed",
  "timeout",
  "role",
  "resume",
  "full",
  "disposed"
])
/** @since 0.1.0 */
export type RefusalReason = typeof RefusalReason.Type

/**
 * The server did not take this client, and has closed the connection.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class HandshakeRefused extends Schema.TaggedError<HandshakeRefused>()("HandshakeRefused", {
  reason: RefusalReason,
  detail: Schema.String
}) {
  override get message(): string {
    return `The sidecar refused the connection: ${this.detail}.`
  }
}

/**
 * There is no sidecar to be reached: nobody answered, or not as a sidecar does.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class SidecarUnreachable extends Schema.TaggedError<SidecarUnreachable>()("SidecarUnreachable", {
  detail: Schema.String
}) {
  override get message(): string {
    return `The sidecar can't be reached: ${this.detail.replace(/[.\s]+$/, "")}; check that it runs and where it listens.`
  }
}

/**
 * The first line of a server: who it is, the limits in force there, and the key to come back with.
 *
 * @stability unstable
 * @category handshake
 * @since 0.1.0
 */
export const Welcome = Schema.TaggedStruct("Welcome", {
  acpSidecar: Schema.Int,
  sidecarId: Address.SidecarId,
  version: Schema.String,
  key: Schema.String,
  limits: opaque<SidecarLimits.Plain>()
})
/** @since 0.1.0 */
export type Welcome = typeof Welcome.Type

/**
 * The answer to a hello.
 *
 * @stability unstable
 * @category handshake
 * @since 0.1.0
 */
export const Answer = Schema.Union([Welcome, HandshakeRefused])

/** Looked at by the core, which says in an error of its own what is wrong with it. */
const given = Schema.optionalKey(opaque<unknown>())
/** One without a value, as `process.env` gives it, has none at the agent's either; in JSON that is null. */
const Variables = Schema.Record(Schema.String, Schema.UndefinedOr(Schema.String))
const Names = Schema.Array(Schema.String)

/** A profile with its times as they were given. */
const Profile = Schema.Struct({
  name: Schema.String,
  command: Schema.Array(Schema.String).check(Schema.isMinLength(1)),
  env: Variables,
  passEnv: Names,
  sessionEnv: Names,
  homeEnv: Names,
  share: Schema.Union([
    Schema.Literal(false),
    Schema.Struct({
      scope: Schema.String,
      maxSessions: opaque<number | null>(),
      whenFull: opaque<AgentProfile.Sharing["whenFull"]>(),
      idleTime: opaque<AgentProfile.Sharing["idleTime"]>()
    })
  ]),
  shares: Schema.String,
  whileBusy: opaque<AgentProfile.WhileBusy>(),
  needsAuthentication: Schema.Boolean,
  provider: Schema.String,
  install: Schema.String,
  signIn: Schema.String,
  quirks: Names
})

const OpenVm = Schema.Struct({
  /** Names this opening, so that it can be abandoned before its answer has come. */
  key: Schema.String,
  root: Schema.String,
  env: Schema.optionalKey(Variables),
  limits: Schema.optionalKey(opaque<SidecarLimits.Overrides>())
})

const OpenSession = Schema.Struct({
  key: Schema.String,
  vmId: Address.VmId,
  agent: Profile,
  cwd: Schema.optionalKey(Schema.String),
  mcpServers: Schema.optionalKey(opaque<ReadonlyArray<Acp.McpServer>>()),
  from: Schema.optionalKey(
    Schema.Struct({
      agentSessionId: Schema.String,
      method: Schema.Literals(["load", "resume"]),
      replay: Schema.optionalKey(Schema.Literals(["keep", "drop"]))
    })
  ),
  restart: Schema.optionalKey(Schema.Literals(["none", "resume"])),
  env: Schema.optionalKey(Variables),
  sessionEnv: Schema.optionalKey(Names),
  share: Schema.optionalKey(Schema.Boolean),
  /** With `client` the questions are those of `Session.Questions`. */
  permission: Schema.optionalKey(Schema.Literals(["allow", "reject", "ask", "client"])),
  authenticate: Schema.optionalKey(Schema.String),
  startTimeout: given
})

/**
 * What is said once of a session that a client has, in the answer to its opening. The profile has no environment for whom
 * it does not belong to.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface SessionOpened {
  readonly address: Address.Address
  readonly agentSessionId: string
  readonly profile: AgentProfile.AgentProfile
  readonly pid: number | null
  readonly hostId: Address.HostId
  readonly initialize: Acp.InitializeResponse
  readonly modes: Acp.SessionModeState | null
  readonly info: Session.SessionInfo
}

/**
 * What the app of a session with the policy `client` is asked: one of the agent's questions, or that one of them is over.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Asked =
  | { readonly _tag: "Ask"; readonly key: string; readonly question: Permission.Question }
  | { readonly _tag: "Withdraw"; readonly key: string }

const Decision = Schema.Union([
  Schema.Literals(["allow", "reject", "cancel"]),
  Schema.Struct({ optionId: Schema.String })
])

const { LimitExceeded, NotFound, Disposed, InvalidInput } = SidecarError
/** What each call may fail with: that this client has too many calls under way. */
const busy = [LimitExceeded] as const
const ofSession = { sessionId: Address.SessionId }
const ofTurn = { ...ofSession, turnId: Address.TurnId }
const withSession = Schema.Union([...busy, NotFound])
const Call = Schema.Union([...busy, NotFound, SidecarError.AgentCallFailed])
const Submit = {
  ...ofSession,
  prompt: opaque<Session.Prompt>(),
  options: Schema.optionalKey(opaque<Session.SubmitOptions>()),
  /** The span that the turn belongs to; `false` where its caller wants none. */
  trace: Schema.optionalKey(
    Schema.Union([
      Schema.Literal(false),
      Schema.Struct({ traceId: Schema.String, spanId: Schema.String, sampled: Schema.Boolean })
    ])
  )
}
const SubmitError = Schema.Union([
  ...busy,
  NotFound,
  SidecarError.SessionBusy,
  InvalidInput,
  SidecarError.SessionUnusable
])

/** Of a defect in the sidecar its message crosses, and not what caused it. */
const call = ((tag: string, options: object) =>
  Rpc.make(tag, { ...options, defect: Schema.Defect({ excludeCause: true }) })) as typeof Rpc.make

/**
 * The calls. All typed errors of the library cross them unchanged, each may fail with `LimitExceeded` of the scope
 * `client`, and what belongs to another client gets the same `NotFound` as what does not exist. Interrupting a call
 * interrupts it in the sidecar: an opening leaves nothing, `Session.Prompt` cancels its turn.
 *
 * @stability unstable
 * @category contract
 * @since 0.1.0
 */
export class SidecarRpc extends RpcGroup.make(
  call("Describe", { success: opaque<Sidecar.SidecarInfo>(), error: LimitExceeded }),
  call("Events", { success: SidecarEvent.SidecarEvent, error: LimitExceeded, stream: true }),
  /** Ends what this client has; and the sidecar, when no other client has anything in it, or for an operator. */
  call("Dispose", { error: LimitExceeded }),
  /** Gives up an opening that this client named, whether or not it is done. */
  call("Abandon", { payload: { key: Schema.String }, error: LimitExceeded }),

  call("Vm.Open", {
    payload: OpenVm,
    success: Schema.Struct({ address: Address.Address }),
    error: Schema.Union([LimitExceeded, InvalidInput, Disposed, SidecarLimits.InvalidLimit])
  }),
  call("Vm.Close", { payload: { vmId: Address.VmId }, error: withSession }),
  call("Vm.Describe", { payload: { vmId: Address.VmId }, success: opaque<Vm.VmInfo>(), error: withSession }),
  call("Vm.Probe", {
    payload: {
      vmId: Address.VmId,
      agent: Profile,
      cwd: Schema.optionalKey(Schema.String),
      env: Schema.optionalKey(Variables),
      sessionEnv: Schema.optionalKey(Names),
      want: Schema.optionalKey(opaque<ReadonlyArray<Probe.Want>>()),
      timeout: given,
      commandsTimeout: given,
      refresh: Schema.optionalKey(Schema.Boolean)
    },
    success: opaque<Probe.Findings>(),
    error: Schema.Union([LimitExceeded, Probe.ProbeFailed, Probe.ProbeTimedOut, InvalidInput, Disposed])
  }),

  call("Session.Open", {
    payload: OpenSession,
    success: opaque<SessionOpened>(),
    error: Schema.Union([LimitExceeded, SidecarError.AgentStartFailed, InvalidInput, Disposed])
  }),
  /** A session that is open, by its id. */
  call("Session.Attach", { payload: ofSession, success: opaque<SessionOpened>(), error: withSession }),
  call("Session.List", { success: opaque<ReadonlyArray<Address.Address>>(), error: LimitExceeded }),
  call("Session.Close", { payload: ofSession, error: withSession }),
  call("Session.Describe", { payload: ofSession, success: opaque<Session.SessionInfo>(), error: withSession }),
  /** The events of one turn, from its acceptance to its end, with the outcome as the last. */
  call("Session.Prompt", {
    payload: Submit,
    success: SidecarEvent.SessionEvent,
    error: SubmitError,
    stream: true
  }),
  /** A prompt and the outcome of its turn in one call, which is named as an opening is; giving it up cancels the turn. */
  call("Session.Run", {
    payload: { ...Submit, key: Schema.String },
    success: TurnOutcome.TurnOutcome,
    error: SubmitError
  }),
  /** Accepts a prompt and does not wait for its turn. */
  call("Session.Submit", { payload: Submit, success: Address.TurnId, error: SubmitError }),
  call("Session.Cancel", {
    payload: {
      ...ofSession,
      turnId: Schema.optionalKey(Address.TurnId),
      by: Schema.optionalKey(Schema.Literals(["caller", "interruption"]))
    },
    success: Schema.Union([
      Schema.TaggedStruct("Settled", { turnId: Address.TurnId, outcome: TurnOutcome.TurnOutcome }),
      Schema.TaggedStruct("NoActiveTurn", {})
    ]),
    error: withSession
  }),
  /** All that is kept, or all from a number on, and then what comes, until the session has ended. */
  call("Session.Updates", {
    payload: { ...ofSession, from: Schema.optionalKey(Schema.Int) },
    success: SidecarEvent.SessionEvent,
    error: withSession,
    stream: true
  }),
  call("Session.PendingPermissions", {
    payload: ofSession,
    success: opaque<ReadonlyArray<Permission.Question>>(),
    error: withSession
  }),
  call("Session.Answer", {
    payload: { ...ofSession, permissionId: Schema.String, decision: Decision },
    error: Schema.Union([...busy, NotFound, SidecarError.InvalidPermissionOption, SidecarError.PermissionNotPending])
  }),
  call("Session.Questions", {
    payload: ofSession,
    success: opaque<Asked>(),
    error: withSession,
    stream: true
  }),
  /** What the app decided about a question of `Session.Questions`; `null`: it failed to. */
  call("Session.Decide", {
    payload: { ...ofSession, key: Schema.String, decision: Schema.NullOr(Decision) },
    error: withSession
  }),
  call("Session.SetMode", { payload: { ...ofSession, modeId: Schema.String }, error: Call }),
  call("Session.SetConfigOption", {
    payload: { ...ofSession, configId: Schema.String, value: Schema.Union([Schema.String, Schema.Boolean]) },
    success: opaque<ReadonlyArray<Acp.SessionConfigOption>>(),
    error: Call
  }),
  call("Session.ConfigOptions", {
    payload: ofSession,
    success: opaque<ReadonlyArray<Acp.SessionConfigOption>>(),
    error: withSession
  }),

  call("Turn.Outcome", { payload: ofTurn, success: TurnOutcome.TurnOutcome, error: withSession }),
  /** Resolves once the prompt is on its way to the agent (`true`) or its turn has ended before (`false`). */
  call("Turn.Dispatched", { payload: ofTurn, success: Schema.Boolean, error: withSession }),
  call("Turn.Updates", { payload: ofTurn, success: SidecarEvent.SessionEvent, error: withSession, stream: true })
) {}

const work: ReadonlySet<string> = new Set([
  "Events",
  "Vm.Open",
  "Vm.Probe",
  "Session.Open",
  "Session.Prompt",
  "Session.Run",
  "Session.Submit",
  "Session.Updates",
  "Session.Questions",
  "Turn.Outcome",
  "Turn.Dispatched",
  "Turn.Updates"
])

/**
 * Whether a call steers what runs (cancels, answers, closes, describes) rather than being work itself. Both have room of
 * their own, so that no number of prompts and streams keeps a cancel from getting through.
 *
 * @stability unstable
 * @category contract
 * @since 0.1.0
 */
export const isControl = (tag: string): boolean => !work.has(tag)
