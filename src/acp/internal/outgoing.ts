/**
 * What a connection sends, in the order of the calls, when its peer may not be reading.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import * as Latch from "effect/Latch"
import type * as AcpError from "../AcpError.ts"
import type * as AcpTransport from "../AcpTransport.ts"

/** The counter that a frame belongs to. */
export type Sent = "requestsOut" | "responsesOut" | "notificationsOut"

export interface Outgoing {
  /** Hands a frame to the transport, at once; `false` when there is no room for it. */
  readonly put: (frame: Uint8Array, sent: Sent) => boolean
  /**
   * Tries to queue something, again and again while there is no room because the peer does not read. Nobody overtakes
   * one who waits, not even with something smaller. Each try is one step, so that an interrupt finds it either queued or
   * not, never in between.
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
  // Who waits for room, in the order of their calls; only the first may try.
  const senders = new Set<Latch.Latch>()
  const first = (): Latch.Latch | undefined => senders.values().next().value
  let waking = false
  const wake = (): void => {
    // A sender runs within `openUnsafe` and may call this again: the loop that is on its way goes on with the next one.
    if (waking) return
    waking = true
    for (let sender = first(); sender !== undefined;) {
      sender.openUnsafe()
      const next = first()
      sender = next === sender ? undefined : next
    }
    waking = false
  }
  transport.onRoom?.(wake)

  /** Waits until it is worth a try. It holds nothing meanwhile but its place. */
  const room = (sender: Latch.Latch): Effect.Effect<unknown> =>
    transport.onRoom === undefined ? Effect.timeoutOption(sender.await, "10 millis") : sender.await

  const queue = (
    attempt: () => boolean,
    waiting: (wait: Effect.Effect<unknown>) => Effect.Effect<unknown>
  ): Effect.Effect<void, AcpError.ConnectionEnd> => {
    const over = options.end()
    if (over !== undefined) return Effect.fail(over)
    if (senders.size === 0 && attempt()) return Effect.void
    const sender = Latch.makeUnsafe()
    senders.add(sender)
    const again: Effect.Effect<void, AcpError.ConnectionEnd> = Effect.suspend(() => {
      const end = options.end()
      if (end !== undefined) return Effect.fail(end)
      sender.closeUnsafe()
      return first() === sender && attempt() ? Effect.void : Effect.andThen(waiting(room(sender)), again)
    })
    return Effect.ensuring(
      again,
      Effect.sync(() => {
        senders.delete(sender)
        // What the next one has may be smaller, and fit.
        wake()
      })
    )
  }

  return {
    put: (frame, sent) => {
      if (!transport.send(frame)) return false
      // Its newline doesn't count, as in what comes in.
      options.onPut(frame.length - 1, sent)
      return true
    },
    queue: (attempt) => Effect.uninterruptibleMask((restore) => queue(attempt, restore)),
    queueInterruptibly: (attempt) => Effect.uninterruptible(Effect.suspend(() => queue(attempt, Effect.interruptible))),
    wake
  }
}
