/**
 * The counters of a connection.
 *
 * @internal
 */
import type { Stats } from "../AcpConnection.ts"
import type * as Outgoing from "./outgoing.ts"

export const make = (live: {
  readonly pending: () => number
  readonly inbound: () => number
  readonly noiseSample: () => string
}): Stats => ({
  framesIn: 0,
  requestsIn: 0,
  responsesIn: 0,
  bytesIn: 0,
  framesOut: 0,
  requestsOut: 0,
  responsesOut: 0,
  notificationsOut: 0,
  bytesOut: 0,
  noise: 0,
  malformed: 0,
  tooLarge: 0,
  late: 0,
  overload: 0,
  lastFrameAt: null,
  defects: 0,
  get pending() {
    return live.pending()
  },
  get inbound() {
    return live.inbound()
  },
  get noiseSample() {
    return live.noiseSample()
  }
})

/** Counts a frame that was handed to the transport. */
export const sent =
  (stats: Stats) =>
  (bytes: number, kind: Outgoing.Sent): void => {
    stats.framesOut++
    stats[kind]++
    stats.bytesOut += bytes
  }
