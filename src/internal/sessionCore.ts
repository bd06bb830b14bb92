/**
 * The making of a session.
 *
 * @internal
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FiberMap from "effect/FiberMap"
import * as Scope from "effect/Scope"
import * as AcpError from "../acp/AcpError.ts"
import * as AcpSchema from "../acp/AcpSchema.ts"
import * as Address from "../Address.ts"
import * as Admission from "../Admission.ts"
import type * as AgentHost from "../AgentHost.ts"
import type * as AgentHosts from "../AgentHosts.ts"
import type * as AgentSession from "../AgentSession.ts"
import type * as Journal from "../Journal.ts"
import * as LimitUsage from "../LimitUsage.ts"
import * as Mailbox from "../Mailbox.ts"
import * as Permission from "../Permission.ts"
import type { Options, Session } from "../Session.ts"
import * as SessionRouter from "../SessionRouter.ts"
import * as SidecarMetrics from "../SidecarMetrics.ts"
import * as SidecarError from "../SidecarError.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import type * as SidecarLimits from "../SidecarLimits.ts"
import * as Turn from "../Turn.ts"
import * as Attribution from "./attribution.ts"
import * as Flood from "./flood.ts"
import * as Observers from "./observers.ts"
import * as OpenTools from "./openTools.ts"
import * as Redact from "./redact.ts"
import * as SessionCalls from "./sessionCalls.ts"
import * as SessionLog from "./sessionLog.ts"
import * as SessionRoute from "./sessionRoute.ts"
import * as SessionSeat from "./sessionSeat.ts"
import * as SessionTurns from "./sessionTurns.ts"
import * as TurnTelemetry from "./turnTelemetry.ts"

/** What a session gets from its Vm. */
export interface SessionContext {
  readonly address: Address.Address
  readonly limits: SidecarLimits.SidecarLimits
  readonly vmGate: Admission.Gate
  readonly sidecarGate: Admission.Gate
  readonly hosts: AgentHosts.AgentHosts
  /** The Vm's folder. */
  readonly root: string
  /** For how long the opening may take. */
  readonly startTimeout: Duration.Duration
  readonly journal: Journal.Journal["Service"] | undefined
  readonly env: Readonly<Record<string, string>>
  readonly emit: SidecarEvent.Emit
  readonly nextTurnId: () => Address.TurnId
  /** What closes the session: its own `close`, or the end of its Vm or of the whole sidecar. */
  readonly closedBy: () => keyof typeof closings
  /** Owns what may outlive the session: handlers of the app that take their time to end. */
  readonly supervisor: Scope.Scope
  /** Closes the session; runs outside of it. */
  readonly close: Effect.Effect<void>
}

/** The limits of a session whose use is counted. */
type Limit = "maxQueuedPromptsPerSession" | "maxPromptsPerSession" | "maxPendingPermissionsPerSession"

/** What a close of each kind says of the session that it ends. */
const closings = {
  close: { reason: "closed", detail: "it was closed" },
  idle: { reason: "idle", detail: "it was not used for too long" },
  vm_close: { reason: "vm_closed", detail: "its Vm was closed" },
  dispose: { reason: "disposed", detail: "its sidecar was disposed" }
} as const

const unableToResume = "It can't be resumed: the agent offers neither session/resume nor session/load."

/** Opens a session into the current scope. The caller bounds the time; `progress` says how far it came. */
export const make = Effect.fnUntraced(function* (
  context: SessionContext,
  options: Options,
  progress: AgentHost.Start
): Effect.fn.Return<Session, SidecarError.StartReason | SidecarError.LimitExceeded, Scope.Scope> {
  const { address, limits } = context
  const clock = yield* Clock.Clock
  const services = yield* Observers.current
  const mailbox = Mailbox.make<SidecarEvent.SessionEvent>({
    capacity: limits.mailboxCapacity,
    maxBytes: limits.mailboxBytes
  })
  const attribution = Attribution.make()
  const turns = new Map<Address.TurnId, Turn.TurnState>()
  let ended: SidecarError.SessionUnusable | undefined
  let closedBy: keyof typeof closings | undefined
  let lastActivityAt = 0
  let usedAt = clock.currentTimeMillisUnsafe()
  let configOptions: ReadonlyArray<AcpSchema.Acp.SessionConfigOption> = []

  const record = (event: SidecarEvent.SessionEventInput): void => {
    const whole = { ...event, number: mailbox.next, at: clock.currentTimeMillisUnsafe() } as SidecarEvent.SessionEvent
    // An agent's answers and questions can be of any size; the others are small.
    const isLarge = event._tag === "PermissionAsked" || event._tag === "TurnEnded"
    if (event._tag === "TurnStarted") Flood.turn(flood)
    if (event._tag === "TurnEnded" || event._tag === "PermissionAnswered") usedAt = clock.currentTimeMillisUnsafe()
    Mailbox.append(mailbox, whole, isLarge ? SessionLog.sizeOf(whole) : 256)
    Mailbox.flush(mailbox)
  }
  const flood = Flood.make()
  const tools = OpenTools.make()
  /** Outside of turns nobody else would stop an agent that floods this session, or that sends it what can't be read. */
  const restrain = (): void => {
    const verdict = Flood.decide(flood, limits)
    if (verdict !== undefined) cutOff(verdict)
  }
  /** Set once it is open; what comes before is looked at then. */
  let cutOff: (verdict: Flood.Verdict) => void = () => {}
  const keepsReplay =
    options.from?.replay === undefined ? options.from?.method === "load" : options.from.replay === "keep"
  /** The process that it is on, or that it is being opened on. */
  let host!: AgentHost.AgentHost
  /** Its place there, which another one may follow. */
  let seat!: SessionSeat.Seat
  let generation = 1
  /** Why the last process ended, while another is being got. */
  let resuming: AcpError.ConnectionEnd | undefined

  /** Said before the session's own watcher has seen the end: the same tick counts. */
  const unusable = (): SidecarError.SessionUnusable | undefined => {
    const end = resuming ?? seat.host.connection.endReason()
    if (ended !== undefined || end === undefined) return ended
    const reason = isResumable(end) ? "resuming" : "agent_exited"
    return new SidecarError.SessionUnusable({ address, reason, detail: end.message })
  }
  const isResumable = (end: AcpError.ConnectionEnd): boolean =>
    options.restart === "resume" &&
    limits.maxResumeAttempts > 0 &&
    end._tag !== "HostClosed" &&
    givenUp === undefined &&
    ended === undefined &&
    SessionSeat.reopening(seat.host, agentSessionId) !== undefined
  /** The session takes no more prompts. The first reason counts. */
  const endWith = (reason: SidecarError.EndReason, detail: string): void => {
    if (ended !== undefined) return
    ended = new SidecarError.SessionUnusable({ address, reason, detail })
    context.emit({ kind: "session_ended", address, detail })
  }
  /** Whoever closed it first, since a Vm may be closed while one of its sessions is closing. */
  const closing = Effect.sync(() => {
    if (ended !== undefined) return
    closedBy = context.closedBy()
    endWith(closings[closedBy].reason, closings[closedBy].detail)
  })
  /** After the last turn: the last event. */
  const finish = Effect.andThen(
    closing,
    Effect.sync(() => {
      Permission.cancel(permissions, ended!.reason === "agent_exited" ? "crash" : "close")
      record({ _tag: "SessionEnded", reason: ended!.reason as SidecarError.EndReason, detail: ended!.detail })
      Mailbox.close(mailbox)
    })
  )

  // Before all that uses them, so that they are in the metrics until that has ended.
  const usageOf = Effect.fnUntraced(function* (limit: Limit) {
    const usage = LimitUsage.make({ address, scope: "session", limit, max: limits[limit], emit: context.emit })
    yield* LimitUsage.measure(usage, services)
    return usage
  })
  const queued = yield* usageOf("maxQueuedPromptsPerSession")
  const running = yield* usageOf("maxPromptsPerSession")
  const permissions = Permission.make({
    address,
    policy: options.permission ?? "reject",
    timeout: limits.permissionTimeout,
    usage: yield* usageOf("maxPendingPermissionsPerSession"),
    record: (event) => {
      // First, since a reader may answer the question within `record`.
      telemetry.permission(event)
      record(event)
    },
    supervisor: context.supervisor,
    interruptedBy: () => (host.connection.isOpen() ? "withdrawn" : closedBy === undefined ? "crash" : "close")
  })
  const telemetry = TurnTelemetry.make({
    services,
    clock,
    address,
    profile: options.agent,
    host: () => host,
    agentSessionId: () => seat.hosted.agentSessionId,
    configOptions: () => configOptions
  })
  const routeContext: SessionRoute.RouteContext = {
    limits,
    mailbox,
    attribution,
    turns,
    permissions,
    flood,
    tools,
    telemetry,
    onActivity: (at) => void (lastActivityAt = at ?? clock.currentTimeMillisUnsafe()),
    onConfigOptions: (given) => void (configOptions = given),
    onIdleOutput: restrain
  }
  const seats = yield* Scope.fork(yield* Effect.scope)
  let epoch: SessionRoute.Epoch = { isReplay: false, keepsReplay: false, isOver: false }
  let route = SessionRoute.make(routeContext, epoch)
  const take = (
    own: Pick<SessionSeat.Options, "how" | "onSeat" | "after" | "timeout">,
    history: Pick<SessionRoute.Epoch, "isReplay" | "keepsReplay">,
    start: AgentHost.Start
  ): Effect.Effect<SessionSeat.Seat, SessionSeat.Failure> => {
    epoch.isOver = true
    const begun = { ...history, isOver: false }
    epoch = begun
    route = SessionRoute.make(routeContext, begun)
    return SessionSeat.take(
      {
        ...own,
        hosts: context.hosts,
        request: {
          address,
          profile: options.agent,
          root: context.root,
          cwd: options.cwd,
          env: [context.env, options.env],
          sessionEnv: options.sessionEnv,
          share: options.share,
          startTimeout: context.startTimeout,
          limits
        },
        onHost: (got) => {
          host = got
          return got.learn(Redact.ofMcpServers(options.mcpServers ?? []))
        },
        seats,
        now: () => clock.currentTimeMillisUnsafe(),
        cwd: options.cwd,
        mcpServers: options.mcpServers,
        authenticate: options.authenticate,
        route,
        onReplayEnd: () => void (begun.isReplay = false)
      },
      start
    )
  }
  const { from } = options
  const first = yield* take(
    {
      how: () =>
        from === undefined
          ? { _tag: "New" }
          : { _tag: from.method === "load" ? "Load" : "Resume", agentSessionId: from.agentSessionId },
      onSeat: (got) => {
        seat = got
        configOptions = got.hosted.response.configOptions ?? configOptions
      }
    },
    { isReplay: from !== undefined, keepsReplay },
    progress
  )
  const { agentSessionId } = first.hosted
  const open = SidecarMetrics.sessions.open({ agent: options.agent.name })
  yield* Effect.acquireRelease(
    Effect.sync(() => open.modifyUnsafe(1, services)),
    () => Effect.sync(() => open.modifyUnsafe(-1, services))
  )

  // From here on in the order of the end, backwards: turns, then questions, then the agent's session, then its process.
  if (context.journal !== undefined) yield* SessionLog.keep(context.journal, address, mailbox, limits, services)
  yield* Effect.addFinalizer(() => finish)
  const fork = yield* FiberMap.makeRuntime<never, string, never, void>()
  yield* Effect.addFinalizer(() => closing)
  let givenUp: AcpError.HostClosed | undefined
  /** Said before the connection has ended: a turn that waits must not start in between. */
  const retire = (reason: string, detail: string): Effect.Effect<void> => {
    givenUp ??= new AcpError.HostClosed({ reason })
    endWith("retired", detail)
    return seat.lease.retire(reason)
  }
  /** Others share the process: this session alone is cut off from it, and closes itself. */
  const quarantine = (detail: string): Effect.Effect<void> =>
    Effect.sync(() => {
      givenUp ??= new AcpError.HostClosed({ reason: "its session was cut off" })
      endWith("quarantined", detail)
      SessionRouter.quarantine(seat.host.router, agentSessionId, route, clock.currentTimeMillisUnsafe())
      fork("quarantine", context.close)
    })
  cutOff = ({ frames, limit, max, used }) => {
    cutOff = () => {}
    const detail = `outside of its turns its agent sent ${used} in ${frames} frames where ${limit} allows ${max}`
    fork(
      "flood",
      seat.lease.isSole() ? retire("it flooded its session", `${detail}, and was stopped`) : quarantine(detail)
    )
  }
  restrain()
  const agentOf = (own: SessionSeat.Seat): SessionTurns.TurnAgent => ({
    host: own.host,
    agentSessionId,
    agentEnd: () => own.host.connection.endReason() ?? givenUp,
    giveUp: Effect.suspend(() => {
      const seconds = Duration.toSeconds(limits.cancelGrace)
      const detail = `its agent did not end a cancelled turn within ${seconds} s`
      return own.lease.isSole()
        ? Effect.as(retire("it did not end a cancelled turn in time", `${detail} and was stopped`), "retired" as const)
        : Effect.as(quarantine(`${detail}; others share its process, so it was cut off alone`), "quarantined" as const)
    }),
    agentClosed: Effect.suspend(() => {
      const detail = "its agent closed it to end a cancelled turn"
      return own.lease.isSole() ? retire("its session was closed to end a cancelled turn", detail) : quarantine(detail)
    })
  })
  let agent = agentOf(seat)
  const accepting = yield* SessionTurns.make({
    ...context,
    queued,
    running,
    agent: () => agent,
    mailbox,
    metrics: services,
    telemetry,
    permissions,
    attribution,
    tools,
    turns,
    fork,
    record,
    unusable,
    idleFor: () => (permissions.open.size > 0 ? 0 : clock.currentTimeMillisUnsafe() - lastActivityAt),
    closedBy: () => {
      const by = closedBy ?? (ended === undefined ? "interruption" : context.closedBy())
      return by === "idle" ? "close" : by
    }
  })

  /** Ends all that the process had of the session, and waits until the process is gone. */
  const leave = (end: AcpError.ConnectionEnd): Effect.Effect<void> =>
    Effect.gen(function* () {
      resuming = end
      // Those that run have failed by themselves.
      const all = Array.from(turns.values())
      for (const turn of all) if (turn.phase === "queued") turn.fiber?.interruptUnsafe()
      yield* Effect.forEach(all, (turn) => Deferred.await(turn.ended), { discard: true })
      Permission.crash(permissions)
      epoch.isOver = true
      Attribution.reset(attribution)
      record({ _tag: "AgentExited", generation, pid: seat.host.pid ?? null, detail: end.message })
      yield* Effect.uninterruptible(seat.close)
    })
  const attempts = SessionSeat.attempts()
  const dropped = { isReplay: true, keepsReplay: false }
  const resume = (end: AcpError.ConnectionEnd): Effect.Effect<void, SessionSeat.Failure | AcpError.ConnectionEnd> =>
    Effect.gen(function* () {
      const { lease, since } = seat
      // Not sooner than after a second, so that no limit makes this a loop that starts processes as fast as they end.
      const stableFor = Math.max(1000, Duration.toMillis(limits.hostStableTime))
      if (clock.currentTimeMillisUnsafe() - since >= stableFor) attempts.next = undefined
      yield* leave(end)
      // A turn may have given the agent up just before.
      if (ended !== undefined) return
      const attempt = Effect.suspend(() => {
        const how = (got: AgentHost.AgentHost): AgentSession.How =>
          SessionSeat.reopening(got, agentSessionId) ?? { _tag: "Load", agentSessionId }
        const onSeat = (got: SessionSeat.Seat): void => {
          seat = got
          agent = agentOf(got)
          resuming = undefined
          const { host, hosted, lease, method } = got
          configOptions = hosted.response.configOptions ?? configOptions
          record({
            _tag: "SessionResumed",
            generation: ++generation,
            pid: host.pid ?? null,
            hostId: lease.hostId,
            method: method === "Load" ? "load" : "resume"
          })
        }
        const start: AgentHost.Start = { phase: "spawn", connection: undefined }
        return take({ how, onSeat, after: lease.gone, timeout: context.startTimeout }, dropped, start)
      })
      yield* SessionSeat.retake(attempts, limits, end, attempt)
    })
  /** An agent that ends makes a session that ends, which gives back what it holds at once; or one that is resumed. */
  const watch: Effect.Effect<void> = Effect.gen(function* () {
    while (true) {
      const end = yield* seat.host.connection.ended
      if (!isResumable(end)) {
        const isUnable = options.restart === "resume" && SessionSeat.reopening(seat.host, agentSessionId) === undefined
        endWith("agent_exited", isUnable ? `${end.message} ${unableToResume}` : end.message)
        break
      }
      const resumed = yield* Effect.result(resume(end))
      if (ended !== undefined) break
      if (resumed._tag === "Success") continue
      const { failure } = resumed
      const why = failure === end ? "its agent ended soon after it was, again and again" : failure.message
      endWith("agent_exited", `${end.message} It could not be resumed: ${why}`)
      break
    }
    yield* context.close
  })
  yield* Effect.forkScoped(watch, { startImmediately: true })

  const calls = SessionCalls.make({
    address,
    limits,
    agentSessionId,
    host: () => seat.host,
    onConfigOptions: routeContext.onConfigOptions,
    onUsed: () => void (usedAt = clock.currentTimeMillisUnsafe())
  })

  return {
    id: address.sessionId!,
    address,
    agentSessionId,
    profile: options.agent,
    pid: first.host.pid,
    hostId: first.lease.hostId,
    initialize: first.host.initialize,
    modes: first.hosted.response.modes ?? null,
    configOptions: Effect.sync(() => configOptions),
    submit: accepting.submit,
    prompt: accepting.prompt,
    cancel: accepting.cancel,
    updates: SessionLog.stream(mailbox, 1),
    updatesFrom: (number) => SessionLog.stream(mailbox, number > 1 ? number : 1),
    pendingPermissions: Effect.sync(() => Permission.pending(permissions)),
    answer: (permissionId, decision) => Permission.answer(permissions, permissionId, decision),
    setMode: calls.setMode,
    setConfigOption: calls.setConfigOption,
    describe: Effect.sync(() => ({
      sessionId: address.sessionId!,
      agentSessionId,
      agent: options.agent.name,
      pid: seat.host.pid ?? null,
      hostId: seat.lease.hostId,
      generation,
      cwd: options.cwd,
      state: ended !== undefined ? "ended" : resuming === undefined ? "open" : "resuming",
      turns: Array.from(turns.values(), ({ id, lane, phase }) => ({ turnId: id, phase, lane })),
      pendingPermissions: permissions.open.size,
      idleMillis: turns.size + permissions.open.size > 0 ? 0 : Math.max(0, clock.currentTimeMillisUnsafe() - usedAt),
      events: mailbox.next - 1,
      ...countersOf(seat)
    })),
    close: context.close
  }
})

/** What its process sent that was of no use. */
const countersOf = ({ host: { connection, router }, lease }: SessionSeat.Seat) => ({
  noise: connection.stats.noise,
  malformed: connection.stats.malformed + connection.stats.tooLarge,
  late: connection.stats.late + router.stats.late,
  // The sample is an id, which on a shared process may be that of somebody else's session.
  unrouted: { ...router.stats, sample: lease.isSole() ? router.stats.sample : "" }
})
