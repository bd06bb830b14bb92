/**
 * The metrics of one agent process and of the traffic with it.
 *
 * @internal
 */
import type * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import type * as Metric from "effect/Metric"
import type * as AcpConnection from "../acp/AcpConnection.ts"
import type * as AcpError from "../acp/AcpError.ts"
import type * as SessionRouter from "../SessionRouter.ts"
import * as SidecarMetrics from "../SidecarMetrics.ts"

/** How often traffic is counted while it goes on, in milliseconds. */
const interval = 1000

export interface HostMetrics {
  /** From now on its traffic is counted. */
  readonly watch: (stats: Readonly<AcpConnection.Stats>, router: Readonly<SessionRouter.RouterStats>) => void
  /** Some of it was read: counted when a second has passed since the last time. */
  readonly traffic: (now: number) => void
  /** Counts what has not been counted yet. */
  readonly count: () => void
  /** It is being stopped since it did not end a turn. */
  readonly retired: (now: number) => void
  /** The agent was told to end: what it takes from here on tells which stage it was. */
  readonly ending: (now: number) => void
  /** All of it is gone. */
  readonly gone: (options: {
    readonly now: number
    readonly end: AcpError.ConnectionEnd | undefined
    readonly isStarted: boolean
  }) => void
}

/** Counts the start of an agent. */
export const make = (
  metrics: Context.Context<never>,
  options: { readonly agent: string; readonly pid: number | undefined; readonly killGrace: Duration.Duration }
): HostMetrics => {
  const { agent, pid } = options
  let endingAt: number | undefined
  let isRetired = false
  let countedAt = 0
  let counters: ReadonlyArray<Tally> = []
  SidecarMetrics.hosts.starts({ agent }).updateUnsafe(1, metrics)
  SidecarMetrics.hosts.live({ agent }).modifyUnsafe(1, metrics)

  const reason = (end: AcpError.ConnectionEnd | undefined, isStarted: boolean): string => {
    if (isRetired) return "retired"
    if (end?._tag === "ProcessExited") return end.code === 0 ? "exited" : "crashed"
    if (end?._tag === "TransportClosed") return "disconnected"
    return isStarted ? "closed" : "start_failed"
  }
  const stage = (end: AcpError.ConnectionEnd | undefined, now: number): string => {
    if (end?._tag === "ProcessExited") return "none"
    if (pid === undefined) return "eof"
    return now - (endingAt ?? now) >= Duration.toMillis(options.killGrace) ? "kill" : "term"
  }
  return {
    watch: (stats, router) => {
      counters = tallies(stats, router)
    },
    traffic: (now) => {
      if (now - countedAt < interval) return
      countedAt = now
      for (const tally of counters) count(tally, metrics)
    },
    count: () => {
      for (const tally of counters) count(tally, metrics)
    },
    retired: (now) => {
      isRetired = true
      endingAt ??= now
    },
    ending: (now) => void (endingAt ??= now),
    gone: ({ end, isStarted, now }) => {
      for (const tally of counters) count(tally, metrics)
      SidecarMetrics.hosts.live({ agent }).modifyUnsafe(-1, metrics)
      SidecarMetrics.hosts
        .exits({ agent, reason: reason(end, isStarted), stage: stage(end, now) })
        .updateUnsafe(1, metrics)
    }
  }
}

/** A plain integer of the hot path, and how much of it the metrics know. */
interface Tally {
  readonly metric: Metric.Counter<number>
  readonly read: () => number
  known: number
}

const count = (tally: Tally, metrics: Context.Context<never>): void => {
  const now = tally.read()
  if (now === tally.known) return
  tally.metric.updateUnsafe(now - tally.known, metrics)
  tally.known = now
}

const tallies = (
  stats: Readonly<AcpConnection.Stats>,
  router: Readonly<SessionRouter.RouterStats>
): ReadonlyArray<Tally> => {
  const { buffered, dropped, frames, io, late } = SidecarMetrics.wire
  const tally = (metric: Metric.Counter<number>, read: () => number): Tally => ({ metric, read, known: 0 })
  const incoming = (kind: string, read: () => number) => tally(frames({ direction: "in", kind }), read)
  const outgoing = (kind: string, read: () => number) => tally(frames({ direction: "out", kind }), read)
  const broken = () => stats.malformed + stats.tooLarge
  return [
    incoming("request", () => stats.requestsIn),
    incoming("response", () => stats.responsesIn),
    incoming("notification", () => stats.framesIn - stats.requestsIn - stats.responsesIn - stats.noise - broken()),
    incoming("noise", () => stats.noise),
    incoming("malformed", broken),
    outgoing("request", () => stats.requestsOut),
    outgoing("response", () => stats.responsesOut),
    outgoing("notification", () => stats.notificationsOut),
    tally(io({ direction: "in" }), () => stats.bytesIn),
    tally(io({ direction: "out" }), () => stats.bytesOut),
    tally(dropped({ reason: "no_session" }), () => router.dropped),
    tally(dropped({ reason: "overload" }), () => stats.overload),
    tally(dropped({ reason: "too_large" }), () => stats.tooLarge),
    tally(late({ reason: "no_request" }), () => stats.late),
    tally(late({ reason: "session_closed" }), () => router.late),
    tally(buffered({ reason: "early" }), () => router.buffered)
  ]
}
