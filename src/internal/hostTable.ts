/**
 * Which agent processes there are, who has a place on them, and where the next session goes: decided purely.
 *
 * @internal
 */
import * as Deferred from "effect/Deferred"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Address from "../Address.ts"
import type * as AgentHost from "../AgentHost.ts"
import type { HostInfo, Request } from "../AgentHosts.ts"
import type * as AgentProfile from "../AgentProfile.ts"
import * as LaunchIdentity from "../LaunchIdentity.ts"
import * as SidecarError from "../SidecarError.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import * as HostBreaker from "./hostBreaker.ts"

/** What a request comes to. */
export interface Plan {
  readonly sidecarId: Address.SidecarId
  readonly request: Request
  readonly sharing: false | AgentProfile.Sharing
  readonly maxSessions: number
  readonly idleTime: Duration.Duration
  readonly startTimeout: Duration.Duration
  readonly limits: SidecarLimits.SidecarLimits
  readonly identity: () => LaunchIdentity.LaunchIdentity
  readonly env: Readonly<Record<string, string>>
  readonly cwd: string
}

/** A process and its place, from before its start until it is gone. */
export interface Entry {
  readonly hostId: Address.HostId
  readonly address: Address.Address
  /** Under which it is found; `undefined` for the process of one session alone. */
  readonly key: string | undefined
  /** The short one, for people. */
  readonly identity: string | null
  readonly agent: string
  readonly limits: SidecarLimits.SidecarLimits
  readonly idleTime: Duration.Duration
  readonly startTimeout: Duration.Duration
  readonly createdAt: number
  readonly restarts: number
  readonly progress: AgentHost.Start
  /** Those of the sessions that wait for its start. */
  readonly followers: Set<AgentHost.Start>
  readonly sessions: Set<Address.SessionId>
  /** Resolves when the process is gone. */
  readonly gone: Deferred.Deferred<void>
  /** What it is started with, until it has been. */
  launch: Omit<AgentHost.Options, "emit"> | undefined
  phase: HostInfo["state"]
  /** Its start has begun, which happens once. */
  began: boolean
  /** A session has opened on it. */
  hasOpened: boolean
  leases: number
  idleSince: number
  host: AgentHost.AgentHost | undefined
  /** Ends the process. */
  close: Effect.Effect<void>
}

export interface HostTable {
  readonly entries: Map<string, Entry>
  readonly byKey: Map<string, Set<Entry>>
  readonly breaker: HostBreaker.Breaker
  count: number
}

export type Choice =
  | { readonly _tag: "Join"; readonly entry: Entry }
  /** A process of the same identity is still ending. */
  | { readonly _tag: "Wait"; readonly entry: Entry }
  /** There is no room for another process, but this one serves nobody. */
  | { readonly _tag: "Reclaim"; readonly entry: Entry }
  | { readonly _tag: "Refused"; readonly error: SidecarError.LimitExceeded | SidecarError.StartHeldBack }

export const make = (): HostTable => ({
  entries: new Map(),
  byKey: new Map(),
  breaker: HostBreaker.make(),
  count: 0
})

/** Where a session goes among the processes of its identity. */
export const choose = (self: HostTable, plan: Plan, now: number): Choice | { readonly _tag: "Start" } => {
  if (plan.sharing === false) return { _tag: "Start" }
  const { key } = plan.identity()
  const all = Array.from(self.byKey.get(key) ?? [])
  const live = all.filter((entry) => !isEnding(entry))
  // Probes hold leases too, and neither take a place from sessions nor need one.
  const isProbe = plan.request.address.sessionId === undefined
  const free = live.find(({ sessions }) => isProbe || sessions.size < plan.maxSessions)
  if (free !== undefined) return { _tag: "Join", entry: free }
  if (!isProbe && (plan.maxSessions < 1 || (live.length > 0 && plan.sharing.whenFull === "refuse"))) {
    return { _tag: "Refused", error: full(plan, live[0]) }
  }
  const heldBack = HostBreaker.refusal(self.breaker, key, now)
  if (heldBack !== undefined) return { _tag: "Refused", error: heldBack }
  const ending = all.find(isEnding)
  return ending === undefined ? { _tag: "Start" } : { _tag: "Wait", entry: ending }
}

/** The end of a process is known to its turns, and their callers, before it is evicted. */
const isEnding = ({ host, phase }: Entry): boolean => phase === "ending" || host?.connection.isOpen() === false

const hasOwnMax = ({ sharing }: Plan): boolean => sharing !== false && sharing.maxSessions !== null

const full = (plan: Plan, entry: Entry | undefined): SidecarError.LimitExceeded =>
  new SidecarError.LimitExceeded({
    address: entry?.address ?? plan.request.address,
    scope: "host",
    limit: "maxSessionsPerHost",
    max: plan.maxSessions,
    used: entry?.sessions.size ?? 0,
    // That of the profile wins over the limit, so raising the limit would change nothing.
    setting: hasOwnMax(plan) ? "share.maxSessions of its profile" : SidecarLimits.setting("maxSessionsPerHost")
  })

/** The process that has served nobody for the longest time, or one whose end makes room in any case. */
export const reclaimable = (self: HostTable): Choice | undefined => {
  let oldest: Entry | undefined
  let ending: Entry | undefined
  for (const entry of self.entries.values()) {
    if (isEnding(entry)) ending ??= entry
    else if (entry.leases === 0 && (oldest === undefined || entry.idleSince < oldest.idleSince)) oldest = entry
  }
  if (oldest !== undefined) return { _tag: "Reclaim", entry: oldest }
  return ending === undefined ? undefined : { _tag: "Wait", entry: ending }
}

/** Takes a place for a process that is to be started. */
export const add = (self: HostTable, plan: Plan, now: number): Entry => {
  const hostId = Address.HostId.make(`host-${++self.count}`)
  const { limits, request, sharing } = plan
  const key = sharing === false ? undefined : plan.identity().key
  const address: Address.Address =
    sharing === false ? { ...request.address, hostId } : { sidecarId: plan.sidecarId, hostId }
  const entry: Entry = {
    hostId,
    address,
    key,
    identity: key === undefined ? null : LaunchIdentity.short(plan.identity()),
    agent: request.profile.name,
    launch: { address, profile: request.profile, cwd: plan.cwd, env: [], environment: plan.env, limits },
    limits,
    idleTime: plan.idleTime,
    startTimeout: plan.startTimeout,
    createdAt: now,
    restarts: key === undefined ? 0 : HostBreaker.crashes(self.breaker, key),
    progress: { phase: "spawn", connection: undefined },
    followers: new Set(),
    sessions: new Set(),
    gone: Deferred.makeUnsafe(),
    phase: "starting",
    began: false,
    hasOpened: false,
    leases: 0,
    idleSince: now,
    host: undefined,
    close: Effect.void
  }
  self.entries.set(hostId, entry)
  if (key !== undefined) {
    const same = self.byKey.get(key) ?? new Set()
    self.byKey.set(key, same.add(entry))
    HostBreaker.starting(self.breaker, key, hostId)
  }
  return entry
}

/** Frees the place of a process; `false` the second time. */
export const remove = (self: HostTable, entry: Entry): boolean => {
  if (self.entries.get(entry.hostId) !== entry) return false
  self.entries.delete(entry.hostId)
  if (entry.key !== undefined) HostBreaker.gone(self.breaker, entry.key, entry.hostId)
  const same = entry.key === undefined ? undefined : self.byKey.get(entry.key)
  same?.delete(entry)
  if (same?.size === 0) self.byKey.delete(entry.key!)
  return true
}

export const join = (entry: Entry, sessionId: Address.SessionId | undefined, progress: AgentHost.Start): void => {
  entry.leases++
  if (sessionId !== undefined) entry.sessions.add(sessionId)
  entry.followers.add(progress)
  progress.hostId = entry.hostId
  progress.phase = entry.progress.phase
  progress.connection = entry.progress.connection
}

export const leave = (
  entry: Entry,
  sessionId: Address.SessionId | undefined,
  progress: AgentHost.Start,
  now: number
): void => {
  entry.leases--
  if (sessionId !== undefined) entry.sessions.delete(sessionId)
  entry.followers.delete(progress)
  entry.idleSince = now
}

/** What the start of a process writes its progress to: all that wait for it see it. */
export const broadcast = ({ followers, progress }: Entry): AgentHost.Start => ({
  get phase() {
    return progress.phase
  },
  set phase(phase) {
    progress.phase = phase
    for (const follower of followers) follower.phase = phase
  },
  get connection() {
    return progress.connection
  },
  set connection(connection) {
    progress.connection = connection
    for (const follower of followers) follower.connection = connection
  }
})

/** Without its memory, which takes a look at the machine. */
export const describe = (entry: Entry, now: number): HostInfo => {
  const { connection } = entry.progress
  const { openings, router } = entry.host ?? {}
  return {
    hostId: entry.hostId,
    identity: entry.identity,
    agent: entry.agent,
    pid: connection?.pid ?? null,
    state: entry.phase,
    shared: entry.key !== undefined,
    sessions: Array.from(entry.sessions),
    leases: entry.leases,
    uptimeMillis: now - entry.createdAt,
    memoryBytes: null,
    restarts: entry.restarts,
    noise: connection?.stats.noise ?? 0,
    malformed: connection === undefined ? 0 : connection.stats.malformed + connection.stats.tooLarge,
    late: connection === undefined ? 0 : connection.stats.late + (router?.stats.late ?? 0),
    kept: {
      routes: router?.routes.size ?? 0,
      earlyUpdates: router?.early.count ?? 0,
      earlyBytes: router?.early.bytes ?? 0,
      tombstones: router?.tombstones.size ?? 0,
      left: openings?.left.size ?? 0
    }
  }
}
