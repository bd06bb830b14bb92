/**
 * One conversation with one agent: a scope with a route, a mailbox, questions and turns.
 *
 * @since 0.1.0
 */
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type * as Stream from "effect/Stream"
import type { Acp } from "./acp/AcpSchema.ts"
import type * as Address from "./Address.ts"
import type * as Admission from "./Admission.ts"
import type * as AgentProfile from "./AgentProfile.ts"
import type * as Permission from "./Permission.ts"
import type * as SessionRouter from "./SessionRouter.ts"
import type * as SidecarError from "./SidecarError.ts"
import type * as SidecarEvent from "./SidecarEvent.ts"
import type * as TurnState from "./Turn.ts"
import type * as TurnOutcome from "./TurnOutcome.ts"

/**
 * What a prompt is: text, or content blocks of ACP.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Prompt = string | ReadonlyArray<Acp.ContentBlock>

/**
 * How a prompt is to be run. `lane` is `interactive` by default and `onBusy` is `queue`. With an `idempotencyKey` that
 * was used before in this session (the last 256 are remembered) the earlier turn is given and nothing is sent; it is
 * one turn for all who have it, so interrupting one who awaits it cancels it for the others too. The deadlines replace
 * those of the limits for this turn.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface SubmitOptions {
  readonly lane?: Admission.Lane | undefined
  readonly onBusy?: Admission.OnBusy | undefined
  readonly idempotencyKey?: string | undefined
  readonly idleTimeout?: Duration.Input | undefined
  readonly wallTimeout?: Duration.Input | undefined
}

/**
 * Why a prompt was not accepted. Nothing was sent, and no turn exists.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type SubmitError =
  | SidecarError.LimitExceeded
  | SidecarError.SessionBusy
  | SidecarError.InvalidInput
  | SidecarError.SessionUnusable

/**
 * An accepted prompt. The session owns it: it goes on whether or not somebody awaits it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Turn {
  readonly id: Address.TurnId
  readonly address: Address.Address
  /** Resolves with `true` once the prompt is on its way to the agent, with `false` if the turn ended before. */
  readonly dispatched: Effect.Effect<boolean>
  /** This turn's events, from its acceptance to its end, for any number of readers; a late reader gets them too. */
  readonly updates: Stream.Stream<SidecarEvent.SessionEvent>
  /** What the agent says in this turn, piece by piece: its message texts alone. What a slow reader misses is left out. */
  readonly text: Stream.Stream<string>
  /** The end of the turn. Interrupting this cancels the turn. */
  readonly await: Effect.Effect<TurnOutcome.Completed | TurnOutcome.Cancelled, SidecarError.TurnFailed>
  /** The end of the turn as a value. Interrupting this leaves the turn alone. */
  readonly outcome: Effect.Effect<TurnOutcome.TurnOutcome>
  /** Cancels the turn and gives its end, within the grace period. Of a turn that has ended it just gives the end. */
  readonly cancel: Effect.Effect<TurnOutcome.TurnOutcome>
}

/**
 * What a session's `cancel` did: the end of the turn, or nothing, and then no byte was sent.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type CancelResult =
  | { readonly _tag: "Settled"; readonly turnId: Address.TurnId; readonly outcome: TurnOutcome.TurnOutcome }
  | { readonly _tag: "NoActiveTurn" }

/**
 * A snapshot of a session.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface SessionInfo {
  readonly sessionId: Address.SessionId
  readonly agentSessionId: string
  /** The name of the agent's profile. */
  readonly agent: string
  /** That of the process that it is on now, or was on last. */
  readonly pid: number | null
  /** The agent process that it is on now, or was on last. */
  readonly hostId: Address.HostId
  /** How many agent processes it has had, see `Options.restart`. */
  readonly generation: number
  readonly cwd: string
  /** `resuming`: its agent has ended, and it is being brought back on another process. */
  readonly state: "open" | "resuming" | "ended"
  /** Turns that have not ended, the oldest first. */
  readonly turns: ReadonlyArray<{
    readonly turnId: Address.TurnId
    readonly phase: TurnState.Phase
    readonly lane: Admission.Lane
  }>
  readonly pendingPermissions: number
  /** For how long nobody has used it: no turn, no question, no call. 0 while one of these is under way. */
  readonly idleMillis: number
  /** Events that the session has had, which is also the number of the last one. */
  readonly events: number
  /** What its agent wrote to stdout that is no frame. */
  readonly noise: number
  /** Frames of its agent that could not be read: broken ones and too long ones. */
  readonly malformed: number
  /** Answers that no request waited for, and updates of sessions that were closed. */
  readonly late: number
  /** Frames of its agent process that belonged to no open session. There is no sample where others share the process. */
  readonly unrouted: Readonly<SessionRouter.RouterStats>
}

/**
 * An open session.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Session {
  readonly id: Address.SessionId
  readonly address: Address.Address
  /** The agent's own name for the session. */
  readonly agentSessionId: string
  readonly profile: AgentProfile.AgentProfile
  /** That of the process that it was opened on; after a restart `describe` has the one that it is on. */
  readonly pid: number | undefined
  /** The agent process that it was opened on; after a restart `describe` has the one that it is on. */
  readonly hostId: Address.HostId
  /** What the agent said in its answer to `initialize`. */
  readonly initialize: Acp.InitializeResponse
  /** The modes that the agent offered in its answer to `session/new`. */
  readonly modes: Acp.SessionModeState | null
  /** The agent's options as it last told them. */
  readonly configOptions: Effect.Effect<ReadonlyArray<Acp.SessionConfigOption>>
  /** Hands a prompt over: it is accepted, and from then on has exactly one end, or refused. Does not wait for the agent. */
  readonly submit: (prompt: Prompt, options?: SubmitOptions) => Effect.Effect<Turn, SubmitError>
  /** Submits and awaits. Interrupting it cancels the turn and waits for its end. */
  readonly prompt: (
    prompt: Prompt,
    options?: SubmitOptions
  ) => Effect.Effect<TurnOutcome.Completed | TurnOutcome.Cancelled, SubmitError | SidecarError.TurnFailed>
  /** Cancels one turn, by default the oldest unfinished one, and waits for its end. Of a turn that has ended: nothing. */
  readonly cancel: (turnId?: Address.TurnId) => Effect.Effect<CancelResult>
  /** All events that are kept and then those that come, until the session has ended. */
  readonly updates: Stream.Stream<SidecarEvent.SessionEvent>
  /** As `updates`, from this event number on. */
  readonly updatesFrom: (number: number) => Stream.Stream<SidecarEvent.SessionEvent>
  /** The agent's questions that are open now. */
  readonly pendingPermissions: Effect.Effect<ReadonlyArray<Permission.Question>>
  /** Answers an open question for the user, whatever the policy; see {@link Permission.Decision}. */
  readonly answer: (
    permissionId: string,
    decision: Permission.Decision
  ) => Effect.Effect<void, SidecarError.InvalidPermissionOption | SidecarError.PermissionNotPending>
  /** Sets the agent's mode, within `callTimeout`. Interrupting it tells the agent. */
  readonly setMode: (modeId: string) => Effect.Effect<void, SidecarError.AgentCallFailed>
  /** Sets one of the agent's options and gives all of them as they are then, within `callTimeout`. */
  readonly setConfigOption: (
    configId: string,
    value: string | boolean
  ) => Effect.Effect<ReadonlyArray<Acp.SessionConfigOption>, SidecarError.AgentCallFailed>
  /** The session as it is now; also after its end. */
  readonly describe: Effect.Effect<SessionInfo>
  /**
   * Cancels what runs, closes the session and gives back what it holds; resolves when its process is gone, unless others
   * share that: then it lives on, and after the last of them for `hostIdleTime`.
   */
  readonly close: Effect.Effect<void>
}

/**
 * A session that the agent has had before. `load` lets the agent tell its history first, `resume` goes on without it; not
 * all agents offer both, and one that does not fails the opening with `NotSupported`. `replay` says what becomes of the
 * history: kept as updates that are marked with `replay` (the default of `load`), or dropped (the default of `resume`, of
 * some agents of which it comes all the same).
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface From {
  readonly agentSessionId: string
  readonly method: "load" | "resume"
  readonly replay?: "keep" | "drop" | undefined
}

/**
 * What a session is opened with.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly agent: AgentProfile.AgentProfile
  /** Absolute path of the session's folder. */
  readonly cwd: string
  readonly mcpServers?: ReadonlyArray<Acp.McpServer> | undefined
  /** A session that the agent has had before, in place of a new one. */
  readonly from?: From | undefined
  /**
   * What becomes of the session when its agent process ends by itself. Its turns and questions fail in any case, and no
   * prompt is sent again. `none`, the default: it ends too (`agent_exited`). `resume`: it goes on with the same agent
   * session on another process, by `session/resume` or else `session/load`, without that history; within
   * `maxResumeAttempts`, each of `startTimeout`. Where that is not to be had it ends. It is never a new agent session, and
   * modes and options that were set are for the agent to remember.
   */
  readonly restart?: "none" | "resume" | undefined
  /** Variables for this session's agent, over all others. */
  readonly env?: Readonly<Record<string, string>> | undefined
  /**
   * Names of variables that name this one session. They do not keep it from sharing a process, and a shared process does
   * not get them.
   */
  readonly sessionEnv?: ReadonlyArray<string> | undefined
  /**
   * `false`: a process of its own, also where the agent's profile lets sessions share one. `true` is as if not given: only
   * a profile that says how (`AgentProfile.share`) lets sessions share.
   */
  readonly share?: boolean | undefined
  /** Who answers the agent's questions; `reject` by default. */
  readonly permission?: Permission.Policy | undefined
  /** The method to sign in with when the agent asks for it. */
  readonly authenticate?: string | undefined
  /** The budget of the whole start, in place of the limit's: a first start through npx may take minutes. */
  readonly startTimeout?: Duration.Input | undefined
}
