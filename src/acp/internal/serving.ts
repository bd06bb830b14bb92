/**
 * The peer's requests that are being handled: supervised fibers, at most so many at once and of so many bytes, each with
 * exactly one answer.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as AcpCodec from "../AcpCodec.ts"
import * as AcpError from "../AcpError.ts"
import * as Errors from "./errors.ts"
import type * as Outgoing from "./outgoing.ts"

interface Served {
  readonly id: AcpCodec.Id
  fiber: Fiber.Fiber<unknown, unknown> | undefined
}

export interface Serving {
  readonly size: () => number
  /** Handles a request; `false` when it was refused because too many are being handled. */
  readonly serve: (frame: AcpCodec.Request) => boolean
  /** Refuses a request without handling it. A peer that floods us and doesn't read loses what is over the bound. */
  readonly refuse: (id: AcpCodec.Id, code: number, message: string) => void
  /** Interrupts what the peer's `$/cancel_request` names. */
  readonly cancel: (params: unknown) => void
  readonly interruptAll: () => void
}

/** Refusals that are longer, since they repeat a long id, are not kept for a peer that doesn't read. */
const mostOwedBytes = 64 * 1024

export const make = (options: {
  readonly outgoing: Outgoing.Outgoing
  readonly fork: (effect: Effect.Effect<unknown, unknown>) => Fiber.Fiber<unknown, unknown>
  readonly max: number
  readonly maxBytes: number
  readonly handle: (method: string, params: unknown) => Effect.Effect<unknown, unknown>
  readonly isOpen: () => boolean
}): Serving => {
  const { fork, handle, isOpen, max, maxBytes, outgoing } = options
  const served = new Set<Served>()
  let bytes = 0
  let owed = 0

  /** Queues an answer. An interrupt can't make the peer lose it; only the end of the connection can. */
  const reply = (frame: Uint8Array): Effect.Effect<void> =>
    Effect.ignore(outgoing.queue(() => outgoing.put(frame, "responsesOut")))

  const refuse = (id: AcpCodec.Id, code: number, message: string): void => {
    const frame = AcpCodec.encodeError(id, { code, message })
    // A peer may well send an id of megabytes, which its answer then has as well.
    if (outgoing.put(frame, "responsesOut") || owed >= max || frame.length > mostOwedBytes) return
    owed++
    fork(
      Effect.uninterruptible(
        Effect.ensuring(
          reply(frame),
          Effect.sync(() => owed--)
        )
      )
    )
  }

  return {
    size: () => served.size,
    serve: (frame) => {
      const isFull = served.size >= max
      if (isFull || (served.size > 0 && bytes + frame.bytes > maxBytes)) {
        const what = isFull ? `${max} requests` : `${maxBytes} bytes of requests`
        refuse(frame.id, AcpError.code.internalError, `More than ${what} are being handled; try again later`)
        return false
      }
      const entry: Served = { id: frame.id, fiber: undefined }
      served.add(entry)
      bytes += frame.bytes
      entry.fiber = fork(
        // The mask comes first: every request gets exactly one answer, a cancelled one too.
        Effect.uninterruptibleMask((restore) =>
          Effect.exit(restore(Effect.suspend(() => handle(frame.method, frame.params)))).pipe(
            Effect.flatMap((exit) => reply(Errors.encodeAnswer(frame.id, exit))),
            Effect.ensuring(
              Effect.sync(() => {
                served.delete(entry)
                bytes -= frame.bytes
              })
            )
          )
        )
      )
      // The handler itself may have closed the connection before its fiber was known.
      if (!isOpen()) entry.fiber.interruptUnsafe()
      return true
    },
    refuse,
    cancel: (params) => {
      const id = (params as { readonly requestId?: unknown } | null | undefined)?.requestId
      if (typeof id !== "string" && typeof id !== "number") return
      for (const entry of Array.from(served)) if (entry.id === id) entry.fiber?.interruptUnsafe()
    },
    interruptAll: () => {
      for (const { fiber } of Array.from(served)) fiber?.interruptUnsafe()
    }
  }
}
