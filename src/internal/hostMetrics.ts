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
  let traffic: Traffic | undefined
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
  const count = (): void => {
    if (traffic !== undefined) countTraffic(traffic, metrics)
  }
  return {
    watch: (stats, router) => {
      traffic = { stats, router, known: [] }
    },
    traffic: (now) => {
      if (now - countedAt < interval) return
      countedAt = now
      count()
    },
    count,
    retired: (now) => {
      isRetired = true
      endingAt ??= now
    },
    ending: (now) => void (endingAt ??= now),
    gone: ({ end, isStarted, now }) => {
      count()
      SidecarMetrics.hosts.live({ agent }).modifyUnsafe(-1, metrics)
      SidecarMetrics.hosts
        .exits({ agent, reason: reason(end, isStarted), stage: stage(end, now) })
        .updateUnsafe(1, metrics)
    }
  }
}

interface Traffic {
  readonly stats: Readonly<AcpConnection.Stats>
  readonly router: Readonly<SessionRouter.RouterStats>
  /** What the metrics know of each of {@link tallies}. */
  readonly known: Array<number>
}

/** A plain integer of the hot path. */
interface Tally {
  readonly metric: Metric.Counter<number>
  readonly read: (traffic: Traffic) => number
}

const countTraffic = (traffic: Traffic, metrics: Context.Context<never>): void => {
  for (const [index, { metric, read }] of tallies.entries()) {
    const now = read(traffic)
    const known = traffic.known[index] ?? 0
    if (now !== known) metric.updateUnsafe(now - known, metrics)
    traffic.known[index] = now
  }
}

const { buffered, dropped, frames, io, late } = SidecarMetrics.wire
const tally = (metric: Metric.Counter<number>, read: Tally["read"]): Tally => ({ metric, read })
const incoming = (kind: string, read: Tally["read"]) => tally(frames({ direction: "in", kind }), read)
const outgoing = (kind: string, read: Tally["read"]) => tally(frames({ direction: "out", kind }), read)
const broken: Tally["read"] = ({ stats }) => stats.malformed + stats.tooLarge
const notifications: Tally["read"] = ({ stats }) =>
  stats.framesIn - stats.requestsIn - stats.responsesIn - stats.noise - stats.malformed - stats.tooLarge

/** The same for all processes, since a thousand of them may be idle. */
const tallies: ReadonlyArray<Tally> = [
  incoming("request", ({ stats }) => stats.requestsIn),
  incoming("response", ({ stats }) => stats.responsesIn),
  incoming("notification", notifications),
  incoming("noise", ({ stats }) => stats.noise),
  incoming("malformed", broken),
  outgoing("request", ({ stats }) => stats.requestsOut),
  outgoing("response", ({ stats }) => stats.responsesOut),
  outgoing("notification", ({ stats }) => stats.notificationsOut),
  tally(io({ direction: "in" }), ({ stats }) => stats.bytesIn),
  tally(io({ direction: "out" }), ({ stats }) => stats.bytesOut),
  tally(dropped({ reason: "no_session" }), ({ router }) => router.dropped),
  tally(dropped({ reason: "overload" }), ({ stats }) => stats.overload),
  tally(dropped({ reason: "too_large" }), ({ stats }) => stats.tooLarge),
  tally(late({ reason: "no_request" }), ({ stats }) => stats.late),
  tally(late({ reason: "session_closed" }), ({ router }) => router.late),
  tally(late({ reason: "quarantined" }), ({ router }) => router.quarantined),
  tally(buffered({ reason: "early" }), ({ router }) => router.buffered)
]
