/**
 * The agent processes of a sidecar: which session gets which of them, for how long each lives, and never two of one
 * identity. An app sees them in `Sidecar.describe`; what may share a process is said by `AgentProfile.share`.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as RcMap from "effect/RcMap"
import * as Scope from "effect/Scope"
import * as Address from "./Address.ts"
import * as AgentHost from "./AgentHost.ts"
import * as AgentLauncher from "./AgentLauncher.ts"
import * as AgentProfile from "./AgentProfile.ts"
import * as Closing from "./internal/closing.ts"
import * as HostBreaker from "./internal/hostBreaker.ts"
import * as HostTable from "./internal/hostTable.ts"
import * as Observers from "./internal/observers.ts"
import * as LaunchIdentity from "./LaunchIdentity.ts"
import * as LimitUsage from "./LimitUsage.ts"
import * as ProcessTable from "./ProcessTable.ts"
import * as SidecarError from "./SidecarError.ts"
import type * as SidecarEvent from "./SidecarEvent.ts"
import type * as SidecarLimits from "./SidecarLimits.ts"

/**
 * What a session asks of the hosts. `env` are the overlays, in order, `sessionEnv` the names of variables that name one
 * session and so neither tell launches apart nor reach a shared process, and `share: false` wants a process of its own
 * whatever the profile says. `startTimeout` is how long a new process may take to start, should it be longer than that of
 * the limits.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Request {
  /** That of the session; without one it is a probe's, for which a full host has room as well. */
  readonly address: Address.Address
  readonly profile: AgentProfile.AgentProfile
  readonly root: string
  readonly cwd: string
  readonly env: ReadonlyArray<Readonly<Record<string, string>> | undefined>
  readonly sessionEnv?: ReadonlyArray<string> | undefined
  readonly share?: boolean | undefined
  readonly startTimeout: Duration.Duration
  /** Those of the session's Vm: for a process that no other Vm shares. */
  readonly limits: SidecarLimits.SidecarLimits
}

/**
 * A claim on a host. The scope that it was acquired in gives it back; giving it back twice does nothing.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Lease {
  readonly hostId: Address.HostId
  readonly host: AgentHost.AgentHost
  /** Nobody else has a lease on this host, nor waits for one. */
  readonly isSole: () => boolean
  /** A session has opened on it, so that earlier failures of processes of its identity count no more. */
  readonly opened: () => void
  /** Waits for the end of the process, for at most `hostExitTimeout`. */
  readonly gone: Effect.Effect<void, SidecarError.HostStillEnding>
  /** Gives the process up: nobody gets it any more, and it is being stopped. Does not wait for its end. */
  readonly retire: (reason: string) => Effect.Effect<void>
}

/**
 * A snapshot of a host: a plain value. `identity` is a short hash (see `LaunchIdentity`); the process of one session alone,
 * which nobody else looks for, has `null`. `uptimeMillis` counts from the moment that the process was asked for. `restarts`,
 * told of shared ones alone, is how many processes of this identity had ended by themselves before this one was started.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface HostInfo {
  readonly hostId: Address.HostId
  readonly identity: string | null
  readonly agent: string
  readonly pid: number | null
  readonly state: "starting" | "ready" | "ending"
  /** Whether other sessions may join. */
  readonly shared: boolean
  readonly sessions: ReadonlyArray<Address.SessionId>
  readonly leases: number
  readonly uptimeMillis: number
  /**
   * The resident memory of its whole process group in bytes, as it is when somebody asks. `null` where the sidecar was
   * made without a `ProcessTable`, where that can't be read, and for an agent without a process.
   */
  readonly memoryBytes: number | null
  readonly restarts: number
  /** What it wrote to stdout that is no frame. */
  readonly noise: number
  /** Frames that could not be read: broken ones and too long ones. */
  readonly malformed: number
  /** Answers that no request waited for, and updates of sessions that were closed. */
  readonly late: number
  /**
   * What is kept for its sessions now: open routes, updates for ids that are not known yet with their bytes, closed ids,
   * and sessions that are being ended behind openers that went away.
   */
  readonly kept: {
    readonly routes: number
    readonly earlyUpdates: number
    readonly earlyBytes: number
    readonly tombstones: number
    readonly left: number
  }
}

/**
 * A launch identity of which no process is started for now, since `failures` of them in a row did not start, or ended
 * soon after (see `maxHostFailures`); `reason` is that of the last one. It is tried again in `retryInMillis`, by whoever
 * comes first; `isOnTrial` says that this is going on.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface HeldBack {
  readonly identity: string
  readonly agent: string
  readonly failures: number
  readonly retryInMillis: number
  readonly isOnTrial: boolean
  readonly reason: string
}

/**
 * The hosts of a sidecar.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface AgentHosts {
  /**
   * Takes a lease on the host of a request, into the current scope, and starts the process when there is none. The lease
   * is counted before anything else happens. While a process of the same identity is still ending its end is awaited,
   * for at most `hostExitTimeout`. An identity whose processes fail again and again is refused with `StartHeldBack`.
   */
  readonly acquire: (
    request: Request,
    progress: AgentHost.Start
  ) => Effect.Effect<Lease, SidecarError.StartReason | SidecarError.LimitExceeded, Scope.Scope>
  /** The identity of the process that a request would get. */
  readonly identity: (request: Request) => Effect.Effect<LaunchIdentity.LaunchIdentity>
  readonly describe: Effect.Effect<ReadonlyArray<HostInfo>>
  readonly heldBack: Effect.Effect<ReadonlyArray<HeldBack>>
}

/**
 * What the hosts get from their sidecar.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly address: Address.Address
  readonly limits: SidecarLimits.SidecarLimits
  readonly emit: SidecarEvent.Emit
  /** Owns the processes until each of them is really gone. It outlives the scope of the hosts. */
  readonly processes: Scope.Scope
}

type Environment = Readonly<Record<string, string | undefined>>

/** The place of a process in the map is free again: look once more. */
const vacant = Symbol("vacant")

/**
 * Makes the hosts of a sidecar, which end with the current scope: idle processes side by side, and all of them in time.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = Effect.fnUntraced(function* (
  options: Options
): Effect.fn.Return<AgentHosts, never, AgentLauncher.AgentLauncher | Scope.Scope> {
  const { address, emit, limits, processes } = options
  const services = yield* Effect.context<AgentLauncher.AgentLauncher>()
  const clock = yield* Clock.Clock
  const salt = yield* LaunchIdentity.salt
  // Has what ends processes: closed after all of them were told to end, so that none has to wait for another.
  const ending = yield* Scope.fork(yield* Effect.scope)
  const usage = LimitUsage.make({ address, scope: "sidecar", limit: "maxHosts", max: limits.maxHosts, emit })
  yield* LimitUsage.measure(usage, Observers.pick(services))
  const processTable = Option.getOrUndefined(yield* Effect.serviceOption(ProcessTable.ProcessTable))
  const table = HostTable.make()

  /** The process is gone, or never was: its place is free. */
  const vacate = (entry: HostTable.Entry): void => {
    if (!HostTable.remove(table, entry)) return
    LimitUsage.release(usage)
    Deferred.doneUnsafe(entry.gone, Exit.void)
  }
  /** Ends the process and resolves when it is gone, or when it should be: then its place stays taken until it is. */
  const end = (entry: HostTable.Entry): Effect.Effect<void> =>
    Effect.suspend(() => {
      entry.phase = "ending"
      const budget = Duration.sum(entry.limits.killGrace, Duration.seconds(5))
      return Effect.flatMap(Effect.timeoutOption(Effect.interruptible(entry.close), budget), (closed) =>
        closed._tag === "Some"
          ? Effect.void
          : Effect.logWarning(
              `${Address.format(entry.address)} did not end in time; its place stays taken until it does`
            )
      )
    })

  /** Nobody else gets it. It may be this fiber's own, so the fiber must not wait for its end. */
  const evict = (entry: HostTable.Entry): Effect.Effect<void> =>
    Effect.suspend(() => {
      entry.phase = "ending"
      return Effect.asVoid(Effect.forkIn(RcMap.invalidate(hosts, entry.hostId), ending, { startImmediately: true }))
    })

  /** A start has failed, or a process has ended soon after it. */
  const failed = (entry: HostTable.Entry, reason: string): Effect.Effect<void> =>
    Effect.suspend(() => {
      const { key } = entry
      if (key === undefined) return Effect.void
      const heldBack = HostBreaker.failed(table.breaker, key, entry, reason, clock.currentTimeMillisUnsafe())
      return Effect.map(heldBack, (refusal) => {
        if (refusal === undefined) return
        const detail = `agent ${entry.agent} is not started for now: ${refusal.message}`
        emit({ kind: "host_held_back", address: entry.address, detail })
      })
    })
  const startFailed = (entry: HostTable.Entry, cause: Cause.Cause<SidecarError.StartReason>): Effect.Effect<void> => {
    const failure = Cause.findErrorOption(cause)
    // Given up by this side, or left by all who waited for it.
    if (failure._tag === "None" || failure.value._tag === "HostClosed") return Effect.void
    return failed(entry, failure.value.message)
  }
  const exited = (entry: HostTable.Entry, host: AgentHost.AgentHost, reason: string): Effect.Effect<void> =>
    Effect.suspend(() => {
      const { key } = entry
      if (key === undefined || entry.phase === "ending") return Effect.void
      HostBreaker.crashed(table.breaker, key, entry)
      const lived = clock.currentTimeMillisUnsafe() - host.startedAt
      const isEarly = !entry.hasOpened && lived < Duration.toMillis(entry.limits.hostStableTime)
      if (isEarly) return failed(entry, reason)
      return Effect.sync(() => HostBreaker.worked(table.breaker, key))
    })

  const start = (
    hostId: string
  ): Effect.Effect<AgentHost.AgentHost, SidecarError.StartReason | typeof vacant, Scope.Scope> =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const entry = table.entries.get(hostId)
        // An idle process may have been given up between the look at it and this.
        if (entry === undefined || entry.began) return yield* Effect.fail(vacant)
        entry.began = true
        const process = yield* Scope.fork(processes)
        entry.close = yield* Closing.make(process, processes, { mayBeLeft: true })
        yield* Scope.addFinalizer(
          process,
          Effect.sync(() => vacate(entry))
        )
        const progress = HostTable.broadcast(entry)
        const starting = AgentHost.start({ ...entry.launch!, emit }, progress).pipe(
          Effect.timeoutOrElse({
            duration: entry.startTimeout,
            orElse: () => Effect.fail(AgentHost.startTimedOut(entry.startTimeout, progress))
          }),
          Scope.provide(process),
          Effect.provideContext(services)
        )
        const host = yield* Effect.onError(restore(starting), (cause) =>
          // Nobody else joins what has failed, and whoever comes next gets a new one. Whoever waits is told when it is gone.
          startFailed(entry, cause).pipe(Effect.andThen(evict(entry)), Effect.andThen(end(entry)))
        )
        // Not before: while it starts, this fiber comes to its end first.
        yield* Effect.addFinalizer(() => end(entry))
        entry.host = host
        entry.launch = undefined
        if (entry.phase === "starting") entry.phase = "ready"
        const ended = Effect.flatMap(host.connection.ended, ({ message }) =>
          // At once, and not when its sessions have ended: what it has left behind must go, and another may start.
          exited(entry, host, message).pipe(Effect.andThen(evict(entry)), Effect.andThen(end(entry)))
        )
        yield* Effect.forkIn(ended, ending, { startImmediately: true })
        return host
      })
    )

  const hosts: RcMap.RcMap<string, AgentHost.AgentHost, SidecarError.StartReason | typeof vacant> = yield* RcMap.make({
    lookup: start,
    idleTimeToLive: (hostId: string) => table.entries.get(hostId)?.idleTime ?? Duration.zero
  }).pipe(Scope.provide(ending))
  // Before those of the map, which ends one after the other and waits for one that was idle for too long.
  yield* Effect.addFinalizer(() =>
    Effect.forEach(Array.from(table.entries.keys()), (hostId) => RcMap.invalidate(hosts, hostId), {
      concurrency: "unbounded",
      discard: true
    })
  )

  /** Nobody waits for its start any more. */
  const abandon = (entry: HostTable.Entry): Effect.Effect<void> =>
    Effect.suspend(() => {
      entry.phase = "ending"
      // Callers whose time is that of the start leave in the moment in which it would have failed.
      const took = clock.currentTimeMillisUnsafe() - entry.createdAt
      const tookTooLong = entry.began && took >= Duration.toMillis(entry.startTimeout) * 0.9
      const { message } = AgentHost.startTimedOut(entry.startTimeout, entry.progress)
      return (tookTooLong ? failed(entry, message) : Effect.void).pipe(
        Effect.andThen(RcMap.invalidate(hosts, entry.hostId)),
        Effect.andThen(Effect.sync(() => (entry.began ? undefined : vacate(entry))))
      )
    })
  const release = (entry: HostTable.Entry, request: Request, progress: AgentHost.Start): Effect.Effect<void> =>
    Effect.suspend(() => {
      HostTable.leave(entry, request.address.sessionId, progress, clock.currentTimeMillisUnsafe())
      return entry.leases === 0 && entry.phase === "starting" ? abandon(entry) : Effect.void
    })

  /** Looks and takes in one step: either a place on a host, or why there is none. */
  const choose = (plan: HostTable.Plan): HostTable.Choice => {
    const choice = HostTable.choose(table, plan, clock.currentTimeMillisUnsafe())
    if (choice._tag !== "Start") return choice
    if (LimitUsage.isFull(usage)) {
      return HostTable.reclaimable(table) ?? { _tag: "Refused", error: LimitUsage.refusal(usage, plan.request.address) }
    }
    LimitUsage.take(usage)
    return { _tag: "Join", entry: HostTable.add(table, plan, clock.currentTimeMillisUnsafe()) }
  }

  const planOf = (request: Request, hostEnvironment: Environment): HostTable.Plan => {
    const { profile, root, cwd } = request
    const sharing = request.share === false ? false : profile.share
    const env = AgentProfile.environment(profile, hostEnvironment, ...request.env)
    const wanted = {
      profile,
      vmId: request.address.vmId!,
      cwd: sharing === false ? cwd : root,
      env,
      sessionEnv: request.sessionEnv ?? []
    }
    const isOfVm = sharing === false || sharing.scope === "vm"
    const own = isOfVm ? request.limits : limits
    let identity: LaunchIdentity.LaunchIdentity | undefined
    return {
      sidecarId: address.sidecarId,
      request,
      sharing,
      maxSessions: sharing === false ? 1 : (sharing.maxSessions ?? own.maxSessionsPerHost),
      idleTime: sharing === false ? Duration.zero : Duration.fromInputUnsafe(sharing.idleTime ?? own.hostIdleTime),
      startTimeout: Duration.max(own.startTimeout, request.startTimeout),
      limits: own,
      identity: () => (identity ??= LaunchIdentity.make(wanted, salt)),
      env: sharing === false ? env : LaunchIdentity.processEnv(wanted),
      cwd: sharing === false ? cwd : root
    }
  }

  const acquire: AgentHosts["acquire"] = (request, progress) =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const session = yield* Effect.scope
        const plan = planOf(request, (yield* AgentLauncher.HostEnvironment)())
        while (true) {
          const choice = choose(plan)
          if (choice._tag === "Refused") return yield* choice.error
          if (choice._tag === "Wait") {
            yield* restore(untilGone(choice.entry, limits.hostExitTimeout))
            continue
          }
          if (choice._tag === "Reclaim") {
            yield* evict(choice.entry)
            yield* restore(untilGone(choice.entry, limits.hostExitTimeout))
            continue
          }
          const { entry } = choice
          HostTable.join(entry, request.address.sessionId, progress)
          const lease = yield* Scope.fork(session)
          // Before the map's own, so that it runs after it.
          yield* Scope.addFinalizer(lease, release(entry, request, progress))
          const exit = yield* Effect.exit(restore(RcMap.get(hosts, entry.hostId)).pipe(Scope.provide(lease)))
          if (Exit.isSuccess(exit)) return leaseOf(entry, exit.value)
          yield* Scope.close(lease, exit)
          const failure = Exit.findErrorOption(exit)
          if (failure._tag === "None" || failure.value !== vacant) {
            return yield* exit as Exit.Exit<never, SidecarError.StartReason>
          }
          yield* restore(untilGone(entry, limits.hostExitTimeout))
        }
      })
    )
  const leaseOf = (entry: HostTable.Entry, host: AgentHost.AgentHost): Lease => ({
    hostId: entry.hostId,
    host,
    isSole: () => entry.leases === 1,
    gone: untilGone(entry, limits.hostExitTimeout),
    opened: () => {
      entry.hasOpened = true
      if (entry.key !== undefined) HostBreaker.worked(table.breaker, entry.key)
    },
    retire: (reason) =>
      Effect.suspend(() => {
        entry.phase = "ending"
        return host.retire(reason)
      })
  })

  return {
    acquire,
    identity: (request) =>
      Effect.map(AgentLauncher.HostEnvironment, (environment) => planOf(request, environment()).identity()),
    describe: Effect.suspend(() => {
      const now = clock.currentTimeMillisUnsafe()
      const infos = Array.from(table.entries.values(), (entry) => HostTable.describe(entry, now))
      return processTable === undefined ? Effect.succeed(infos) : measured(infos, processTable)
    }),
    heldBack: Effect.sync(() => HostBreaker.describe(table.breaker, clock.currentTimeMillisUnsafe()))
  }
})

/** The same with the memory of their groups, each of which has the number of its first process. */
const measured = Effect.fnUntraced(function* (
  infos: ReadonlyArray<HostInfo>,
  processTable: ProcessTable.ProcessTable["Service"]
): Effect.fn.Return<ReadonlyArray<HostInfo>> {
  const groups = infos.flatMap(({ pid }) => (pid === null ? [] : [pid]))
  if (groups.length === 0) return infos
  const memory = yield* processTable.memory(groups).pipe(
    Effect.tapError((error) => Effect.logDebug(error.message)),
    Effect.orElseSucceed(() => new Map<number, number>())
  )
  return infos.map((info) => ({ ...info, memoryBytes: info.pid === null ? null : (memory.get(info.pid) ?? null) }))
})

const untilGone = (
  entry: HostTable.Entry,
  timeout: Duration.Duration
): Effect.Effect<void, SidecarError.HostStillEnding> =>
  Effect.timeoutOrElse(Deferred.await(entry.gone), {
    duration: timeout,
    orElse: () =>
      Effect.fail(
        new SidecarError.HostStillEnding({
          hostId: entry.hostId,
          pid: entry.progress.connection?.pid ?? null,
          afterMillis: Duration.toMillis(timeout)
        })
      )
  })
