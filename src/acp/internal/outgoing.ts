/**
 * What a connection sends, in the order of the calls, when its peer may not be reading.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import type * as AcpError from "../AcpError.ts"
import type * as AcpTransport from "../AcpTransport.ts"

/** The counter that a frame belongs to. */
export type Sent = "requestsOut" | "responsesOut" | "notificationsOut"

export interface Outgoing {
  /** Hands a frame to the transport, at once; `false` when there is no room for it. */
  readonly put: (frame: Uint8Array, sent: Sent) => boolean
  /**
   * Tries to queue something, again and again while there is no room because the peer does not read. Each try is one
   * step, so that an interrupt finds it either queued or not, never in between.
   */
  readonly queue: (attempt: () => boolean) => Effect.Effect<void, AcpError.ConnectionEnd>
  /** As `queue`; within an uninterruptible region it is the waiting for room that can be interrupted. */
  readonly queueInterruptibly: (attempt: () => boolean) => Effect.Effect<void, AcpError.ConnectionEnd>
  /** Lets all who wait try again, or see that the connection has ended. */
  readonly wake: () => void
}

export const make = (
  transport: AcpTransport.AcpTransport,
  options: {
    readonly end: () => AcpError.ConnectionEnd | undefined
    readonly onPut: (bytes: number, sent: Sent) => void
  }
): Outgoing => {
  // Who waits for room, in the order of their calls.
  const senders = new Set<() => void>()
  let rooms = 0
  const wake = (): void => {
    rooms++
    if (senders.size === 0) return
    const woken = Array.from(senders)
    senders.clear()
    for (const resume of woken) resume()
  }
  transport.onRoom?.(wake)

  /** Waits until there was room since `seen`, or the connection has ended. It holds nothing meanwhile. */
  const room = (seen: number): Effect.Effect<void> =>
    transport.onRoom === undefined
      ? Effect.sleep("10 millis")
      : Effect.callback<void>((resume) => {
          if (rooms !== seen) return resume(Effect.void)
          const sender = () => resume(Effect.void)
          senders.add(sender)
          return Effect.sync(() => senders.delete(sender))
        })
  const roomOrInterrupt = (seen: number) => Effect.interruptible(room(seen))

  const queue = (
    attempt: () => boolean,
    wait: (seen: number) => Effect.Effect<void>,
    waited: boolean
  ): Effect.Effect<void, AcpError.ConnectionEnd> =>
    Effect.suspend(() => {
      const end = options.end()
      if (end !== undefined) return Effect.fail(end)
      if ((waited || senders.size === 0) && attempt()) return Effect.void
      return Effect.andThen(wait(rooms), queue(attempt, wait, true))
    })

  return {
    put: (frame, sent) => {
      if (!transport.send(frame)) return false
      // Its newline doesn't count, as in what comes in.
      options.onPut(frame.length - 1, sent)
      return true
    },
    queue: (attempt) => queue(attempt, room, false),
    queueInterruptibly: (attempt) => queue(attempt, roomOrInterrupt, false),
    wake
  }
}
