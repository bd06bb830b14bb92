/**
 * One workspace: a folder, an environment, limits, and the sessions in it.
 *
 * @since 0.1.0
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import * as Address from "./Address.ts"
import * as Admission from "./Admission.ts"
import * as AgentHost from "./AgentHost.ts"
import type * as AgentHosts from "./AgentHosts.ts"
import * as AgentLauncher from "./AgentLauncher.ts"
import * as Closing from "./internal/closing.ts"
import { isAbsolute } from "./internal/command.ts"
import * as IdleSessions from "./internal/idleSessions.ts"
import * as SessionCore from "./internal/sessionCore.ts"
import * as Observers from "./internal/observers.ts"
import * as Refusals from "./internal/refusals.ts"
import * as Tie from "./internal/tie.ts"
import * as Time from "./internal/time.ts"
import type * as Journal from "./Journal.ts"
import * as LaunchIdentity from "./LaunchIdentity.ts"
import * as LimitUsage from "./LimitUsage.ts"
import * as Probe from "./Probe.ts"
import type * as Session from "./Session.ts"
import * as SidecarError from "./SidecarError.ts"
import type * as SidecarEvent from "./SidecarEvent.ts"
import * as SidecarLimits from "./SidecarLimits.ts"

/**
 * What a Vm is opened with. `root` is the absolute path of its folder, `env` are variables for all its agents, and
 * `limits` replace the sidecar's for this Vm and its sessions (those of the sidecar as a whole stay as they are).
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly root: string
  readonly env?: Readonly<Record<string, string>> | undefined
  readonly limits?: SidecarLimits.Overrides | undefined
}

/**
 * What a session is opened with; `cwd` is the Vm's root unless given.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type SessionOptions = Omit<Session.Options, "cwd"> & { readonly cwd?: string | undefined }

/**
 * Why a session could not be opened. Nothing of it is left.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type OpenSessionError =
  | SidecarError.AgentStartFailed
  | SidecarError.LimitExceeded
  | SidecarError.InvalidInput
  | SidecarError.Disposed

/**
 * A snapshot of a Vm.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface VmInfo {
  readonly vmId: Address.VmId
  readonly root: string
  /** Sessions whose agent is still starting. */
  readonly opening: number
  /** Prompts that hold one of the Vm's permits. */
  readonly activePrompts: number
  readonly sessions: ReadonlyArray<Session.SessionInfo>
}

/**
 * An open Vm.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Vm {
  readonly id: Address.VmId
  readonly address: Address.Address
  readonly root: string
  /** Opens a session, which ends with the current scope, with the Vm, or with its own `close`, whichever is first. */
  readonly openSession: (options: SessionOptions) => Effect.Effect<Session.Session, OpenSessionError, Scope.Scope>
  /** An open session of this Vm by id; for any other id the same answer, whoever owns it. */
  readonly session: (id: Address.SessionId) => Effect.Effect<Session.Session, SidecarError.NotFound>
  /**
   * What an agent offers and how it is, without a session of the app. Those who ask the same at the same time share one
   * start and one answer, each with a time of its own; what was found is remembered for `probeTtl`. It never signs in.
   */
  readonly probe: (options: Probe.Options) => Effect.Effect<Probe.Findings, Probe.ProbeError>
  readonly describe: Effect.Effect<VmInfo>
  /**
   * Closes all sessions, at once and side by side; resolves when their processes are gone. One that sessions could share
   * lives on for its idle time (`hostIdleTime`, or that of the profile).
   */
  readonly close: Effect.Effect<void>
}

/**
 * What a Vm gets from its sidecar.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface VmContext {
  readonly address: Address.Address
  readonly limits: SidecarLimits.SidecarLimits
  readonly sidecarGate: Admission.Gate
  readonly hosts: AgentHosts.AgentHosts
  readonly probes: Probe.Room
  readonly journal: Journal.Journal["Service"] | undefined
  readonly emit: SidecarEvent.Emit
  readonly nextSessionId: () => Address.SessionId
  readonly nextTurnId: () => Address.TurnId
  /** The sidecar is being disposed. */
  readonly isDisposing: () => boolean
  /** Owns what may outlive a session: handlers of the app that take their time to end. */
  readonly supervisor: Scope.Scope
  /** Closes the Vm; runs outside of it. */
  readonly close: Effect.Effect<void>
}

/**
 * The problem with a folder, if there is one: ACP wants absolute paths.
 *
 * @stability unstable
 * @category validation
 * @since 0.1.0
 */
export const checkFolder = (
  address: Address.Address,
  input: "root" | "cwd",
  path: string
): Effect.Effect<void, SidecarError.InvalidInput> =>
  isAbsolute(path) && !path.includes("\0")
    ? Effect.void
    : Effect.fail(
        new SidecarError.InvalidInput({
          address,
          input,
          problem: `${JSON.stringify(path.slice(0, 200))} is not an absolute path`
        })
      )

/**
 * Makes a Vm in a scope of its own, which the caller closes through `context.close`.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = Effect.fnUntraced(function* (
  context: VmContext,
  options: Options,
  scope: Scope.Scope
): Effect.fn.Return<Vm, never, AgentLauncher.AgentLauncher> {
  const { address, limits } = context
  const services = yield* Effect.context<AgentLauncher.AgentLauncher>()
  const metrics = Observers.pick(services)
  const gate = Admission.make({
    address,
    scope: "vm",
    limit: "maxPromptsPerVm",
    max: limits.maxPromptsPerVm,
    reserved: SidecarLimits.reserved(limits.maxPromptsPerVm, limits.reservedInteractivePerVm),
    emit: context.emit
  })
  const usage = LimitUsage.make({
    address,
    scope: "vm",
    limit: "maxSessionsPerVm",
    max: limits.maxSessionsPerVm,
    emit: context.emit
  })
  for (const one of [gate.usage, usage]) yield* Scope.provide(LimitUsage.measure(one, metrics), scope)
  const sessions = new Map<Address.SessionId, Session.Session>()
  /** Those that are being closed since nobody uses them. */
  const idle = new Set<Address.SessionId>()
  // Side by side, so that one session's grace period doesn't delay another's.
  const sessionsScope = yield* Scope.fork(scope, "parallel")
  let closed = false
  yield* Scope.addFinalizer(
    scope,
    Effect.sync(() => {
      closed = true
    })
  )
  const disposed = Effect.fail(new SidecarError.Disposed({ address }))

  const openSession: Vm["openSession"] = (sessionOptions) =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const caller = yield* Effect.scope
        const cwd = sessionOptions.cwd ?? options.root
        yield* checkFolder(address, "cwd", cwd)
        const budget = Time.parse(sessionOptions.startTimeout ?? limits.startTimeout)
        if (Option.isNone(budget)) {
          const problem = `it must be a time such as "5 minutes"`
          return yield* new SidecarError.InvalidInput({ address, input: "startTimeout", problem })
        }
        const sharing = LaunchIdentity.problem({ profile: sessionOptions.agent, sessionEnv: sessionOptions.sessionEnv })
        if (sharing !== undefined) {
          const problem = `its ${sharing}`
          return yield* new SidecarError.InvalidInput({ address, input: "agent", problem })
        }
        if (closed) return yield* disposed
        // Before the first I/O; looked at and taken in one step, so that two openings never share the last place.
        while (LimitUsage.isFull(usage)) {
          const unused = yield* IdleSessions.oldest(sessions.values(), limits.reclaimIdleAfter)
          if (unused === undefined) return yield* Effect.fail(LimitUsage.refusal(usage))
          idle.add(unused.id)
          yield* restore(unused.close)
          if (closed) return yield* disposed
        }
        LimitUsage.take(usage)

        const id = context.nextSessionId()
        const session = yield* Scope.fork(sessionsScope)
        const close = yield* Closing.make(session, sessionsScope)
        const tie = yield* Tie.make(session, close)
        yield* Scope.addFinalizer(
          session,
          Effect.sync(() => {
            LimitUsage.release(usage)
            sessions.delete(id)
            idle.delete(id)
          })
        )

        const progress: AgentHost.Start = { phase: "spawn", connection: undefined }
        const sessionAddress: Address.Address = { ...address, sessionId: id }
        const tooLate = Effect.andThen(
          Effect.sleep(budget.value),
          Effect.suspend(() => {
            // Before it is interrupted, as it gives back what it took then.
            progress.isTimedOut = true
            return Effect.flatMap(blockers(sessions, progress), (blockedBy) =>
              Effect.fail(AgentHost.startTimedOut(budget.value, progress, blockedBy))
            )
          })
        )
        const opening = SessionCore.make(
          {
            address: sessionAddress,
            limits,
            vmGate: gate,
            sidecarGate: context.sidecarGate,
            hosts: context.hosts,
            root: options.root,
            startTimeout: budget.value,
            journal: context.journal,
            env: options.env ?? {},
            emit: context.emit,
            nextTurnId: context.nextTurnId,
            closedBy: () => (context.isDisposing() ? "dispose" : closed ? "vm_close" : idle.has(id) ? "idle" : "close"),
            supervisor: context.supervisor,
            close
          },
          { ...sessionOptions, cwd },
          progress
        ).pipe(
          (made) => (Duration.isFinite(budget.value) ? Effect.raceFirst(made, tooLate) : made),
          Effect.mapError((reason) =>
            reason._tag === "LimitExceeded"
              ? reason
              : new SidecarError.AgentStartFailed({
                  address: sessionAddress,
                  agent: sessionOptions.agent.name,
                  phase: progress.phase,
                  reason
                })
          ),
          Scope.provide(session),
          Effect.provideContext(services)
        )
        // A fiber of the session's scope, so that closing the Vm stops an opening too.
        const fiber = yield* Effect.forkIn(Effect.interruptible(opening), session, { startImmediately: true })
        const exit = yield* restore(Fiber.await(fiber)).pipe(Effect.onInterrupt(() => close))
        const ended = Effect.suspend(
          (): Effect.Effect<never, OpenSessionError> =>
            endedWhileOpening(sessionAddress, sessionOptions.agent.name, progress) ?? disposed
        )
        if (Exit.isFailure(exit)) {
          // Its connection may see the closing before its fiber does, and what closes it may be the end of its agent.
          const closing = session.state._tag === "Closed"
          yield* close
          return yield* closing || Exit.hasInterrupts(exit) ? ended : exit
        }
        if (session.state._tag === "Closed") {
          yield* close
          return yield* ended
        }
        sessions.set(id, exit.value)
        const closeIdle = Effect.suspend(() => {
          idle.add(id)
          return close
        })
        const idleness = IdleSessions.watch(exit.value, limits.sessionIdleTimeout, closeIdle)
        if (idleness !== undefined) yield* Effect.forkIn(idleness, session, { startImmediately: true })
        yield* tie(caller)
        context.emit({
          kind: "session_opened",
          address: sessionAddress,
          detail: `agent ${sessionOptions.agent.name} is ready`
        })
        return exit.value
      }).pipe(Effect.tapError((error) => Effect.sync(() => Refusals.count(error, metrics))))
    )

  const probe = yield* Probe.make({ ...context, room: context.probes, root: options.root, env: options.env }).pipe(
    Scope.provide(scope)
  )

  return {
    id: address.vmId!,
    address,
    root: options.root,
    openSession,
    session: (id) =>
      Effect.suspend(() => {
        const session = sessions.get(id)
        return session === undefined
          ? Effect.fail(new SidecarError.NotFound({ address: { ...address, sessionId: id } }))
          : Effect.succeed(session)
      }),
    probe: (wanted) =>
      checkFolder(address, "cwd", wanted.cwd ?? options.root).pipe(
        Effect.andThen(probe(wanted)),
        Effect.provideContext(services),
        Effect.tapError((error) => Effect.sync(() => Refusals.count(error, metrics)))
      ),
    describe: Effect.suspend(() =>
      Effect.map(
        Effect.forEach(Array.from(sessions.values()), (session) => session.describe),
        (infos): VmInfo => ({
          vmId: address.vmId!,
          root: options.root,
          opening: usage.used - infos.length,
          activePrompts: gate.usage.used,
          sessions: infos
        })
      )
    ),
    close: context.close
  }
})

/** The sessions of this Vm whose turns or questions keep the agent of one that is being opened from it, as it may seem. */
const blockers = (
  sessions: ReadonlyMap<Address.SessionId, Session.Session>,
  { hostId, phase }: AgentHost.Start
): Effect.Effect<ReadonlyArray<string>> =>
  phase === "spawn" || phase === "initialize"
    ? Effect.succeed([])
    : Effect.map(
        Effect.forEach(Array.from(sessions.values()), (session) =>
          Effect.map(session.describe, (info) => ({ info, session }))
        ),
        (all) =>
          all
            .filter(({ info }) => info.hostId === hostId)
            .filter(({ info }) => info.pendingPermissions > 0 || info.turns.some(({ phase }) => phase !== "queued"))
            .map(({ session }) => Address.format(session.address))
      )

/** The agent may die between its answer to `session/new` and the moment that its session is handed out. */
const endedWhileOpening = (address: Address.Address, agent: string, progress: AgentHost.Start) => {
  const reason = progress.connection?.endReason()
  if (reason === undefined || reason._tag === "HostClosed") return undefined
  return Effect.fail(new SidecarError.AgentStartFailed({ address, agent, phase: progress.phase, reason }))
}
