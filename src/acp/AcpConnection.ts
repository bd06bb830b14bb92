/**
 * A JSON-RPC peer over a transport, made for hosting agents: strict wire order, typed failures, nothing unbounded.
 *
 * @since 0.1.0
 */
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberSet from "effect/FiberSet"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as AcpCodec from "./AcpCodec.ts"
import * as AcpError from "./AcpError.ts"
import * as AcpProtocol from "./AcpProtocol.ts"
import type * as AcpTransport from "./AcpTransport.ts"
import * as Calling from "./internal/calling.ts"
import * as Counters from "./internal/counters.ts"
import * as Errors from "./internal/errors.ts"
import * as Outgoing from "./internal/outgoing.ts"
import * as Pieces from "./internal/pieces.ts"
import * as Serving from "./internal/serving.ts"

/**
 * An answer to a peer's request that is an error. Anything else that an inbound handler fails with, or dies of, is
 * answered `-32603` without its text, so that nothing of ours leaks.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Refusal {
  readonly _tag: "Refusal"
  readonly code: number
  readonly message: string
  readonly data?: unknown
}

/**
 * Makes a {@link Refusal}.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const refusal = (code: number, message: string, data?: unknown): Refusal => ({
  _tag: "Refusal",
  code,
  message,
  ...(data === undefined ? {} : { data })
})

/**
 * The answer to a method that nobody handles: `-32601`, with the method's name (its first 256 characters) as the ACP SDK
 * words it.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const methodNotFound = (method: string): Refusal =>
  refusal(AcpError.code.methodNotFound, `"Method not found": ${method.slice(0, 256)}`, { method: method.slice(0, 256) })

/**
 * A frame that was not delivered, for counting and for telling the session it belongs to. `Late` is a response that no
 * pending request waits for; `Overload` is a request that was refused because `maxInbound` or `maxInboundBytes` were
 * being handled.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Problem =
  | AcpCodec.Noise
  | AcpCodec.Malformed
  | AcpCodec.TooLarge
  | { readonly _tag: "Late"; readonly id: string | number | null; readonly bytes: number }
  | { readonly _tag: "Overload"; readonly method: string; readonly bytes: number }

/**
 * What the owner of a connection does with what comes in. The synchronous callbacks run inside the reader, in exactly
 * the order of the wire; they must be quick and must not throw. One that throws costs its own frame and nothing else: it
 * is counted in `stats.defects`, and the first of a connection is logged. Nothing is called once the connection has
 * ended, nor before {@link make} has returned.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Handlers {
  /** A notification, with its size on the wire. Unknown ones are simply not acted on. */
  readonly onNotification: (method: string, params: unknown, bytes: number) => void
  /**
   * A request, run as a supervised fiber. It is interrupted when the peer cancels it or the connection ends. However it
   * ends, the peer gets one answer, unless the connection has ended.
   */
  readonly onRequest: (method: string, params: unknown) => Effect.Effect<unknown, unknown>
  readonly onProblem?: ((problem: Problem) => void) | undefined
  /** After about 16 KiB of what was read, or all of it behind an answer: a good moment to wake readers, once for many frames. */
  readonly onChunkEnd?: (() => void) | undefined
}

/**
 * Bounds of a connection.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  /** Longest line that is accepted, in bytes. 16 MiB by default. */
  readonly maxLineBytes?: number | undefined
  /** Requests of the peer handled at once; more are answered `-32603`. 256 by default. */
  readonly maxInbound?: number | undefined
  /** Bytes of these, unless it is one alone; more are answered so too. 64 MiB by default. */
  readonly maxInboundBytes?: number | undefined
  /** Removes secrets from text of the peer before it gets into an error or a sample. */
  readonly redact?: ((text: string) => string) | undefined
}

/**
 * A request that is on its way. `response` may be awaited any number of times. `cancel` sends `$/cancel_request` and
 * keeps waiting for the answer; `abandon` forgets the request, so that a later answer counts as late.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Pending {
  readonly id: number
  readonly method: string
  readonly response: Effect.Effect<unknown, AcpError.RequestFailure>
  readonly cancel: Effect.Effect<void>
  readonly abandon: Effect.Effect<void>
}

/**
 * Counters of a connection, for diagnosis. Bytes are those of the lines, without their newlines; what of `framesIn` is
 * neither a request nor a response, nor counted as noise or broken, is a notification.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Stats {
  framesIn: number
  requestsIn: number
  responsesIn: number
  bytesIn: number
  framesOut: number
  requestsOut: number
  responsesOut: number
  notificationsOut: number
  bytesOut: number
  noise: number
  malformed: number
  tooLarge: number
  late: number
  overload: number
  /** Clock time of the last frame in milliseconds, `null` before the first. */
  lastFrameAt: number | null
  /** Callbacks and hooks that threw. */
  defects: number
  /** Our requests that wait for an answer. */
  readonly pending: number
  /** Requests of the peer that are being handled. */
  readonly inbound: number
  /** The last piece of noise, shortened. */
  readonly noiseSample: string
}

/**
 * A live connection.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface AcpConnection {
  /** Sends a request and awaits its result. Interruption sends `$/cancel_request` and forgets the request. */
  readonly request: <Method extends string>(
    method: Method,
    params: AcpProtocol.Params<Method>,
    hooks?: RequestHooks
  ) => Effect.Effect<unknown, AcpError.RequestFailure>
  /**
   * Registers and queues a request as one step; the caller must `abandon` it, see {@link Pending}. Only waiting for room
   * can be interrupted, and then nothing was sent and no hook is called. The same holds when it fails.
   */
  readonly start: <Method extends string>(
    method: Method,
    params: AcpProtocol.Params<Method>,
    hooks?: RequestHooks
  ) => Effect.Effect<Pending, AcpError.ConnectionEnd>
  readonly notify: <Method extends string>(
    method: Method,
    params: AcpProtocol.Params<Method>
  ) => Effect.Effect<void, AcpError.ConnectionEnd>
  /** Resolves with the reason once the connection has ended and all frames were delivered. */
  readonly ended: Effect.Effect<AcpError.ConnectionEnd>
  readonly isOpen: () => boolean
  /** Why it ended, once it has. */
  readonly endReason: () => AcpError.ConnectionEnd | undefined
  /** Ends the connection from this side: pending requests fail with `HostClosed`, the transport is closed. */
  readonly close: (reason: string) => Effect.Effect<void>
  readonly stats: Readonly<Stats>
  readonly pid: number | undefined
  readonly stderrTail: () => string
}

/**
 * Synchronous hooks of a request. `onResponse` runs in the reader when the result is decoded, before the next frame is
 * looked at: what it registers is there for that frame. It is not called for errors; `onSettled` is called for both, after
 * it. When a hook throws, the request dies of what it threw. Neither is called after `abandon`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface RequestHooks {
  readonly onResponse?: ((result: unknown) => void) | undefined
  readonly onSettled?: ((exit: Exit.Exit<unknown, AcpError.RequestFailure>) => void) | undefined
}

/**
 * Runs a JSON-RPC peer on a transport until the scope closes. One fiber reads; notifications and responses are handled
 * in the order of the wire, and a response's hook runs before the next frame is read. The peer's requests run as
 * supervised fibers, at most `maxInbound` at once. Noise is counted and never answered. Responses are matched by id,
 * numbers and their decimal strings alike. When the transport ends, every pending request fails with the same reason,
 * and then the handlers that still run are interrupted.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = Effect.fnUntraced(function* (
  transport: AcpTransport.AcpTransport,
  handlers: Handlers,
  options?: Options
): Effect.fn.Return<AcpConnection, never, Scope.Scope> {
  const clock = yield* Clock.Clock
  const redact = options?.redact
  const clean = redact ?? ((text: string) => text)
  const decoder = AcpCodec.makeDecoder({ maxLineBytes: options?.maxLineBytes })
  const ended = Deferred.makeUnsafe<AcpError.ConnectionEnd>()
  const fork = yield* FiberSet.runtime(yield* FiberSet.make())()
  const stats = Counters.make({
    pending: () => calling.size(),
    inbound: () => serving.size(),
    // Cleaned when somebody looks at it, since noise may come by the million.
    noiseSample: () => clean(noiseText)
  })
  let end: AcpError.ConnectionEnd | undefined
  let answered = false
  let noiseText = ""

  /** A callback threw. Failing the whole connection for it would punish all of its sessions. */
  const defect = (error: unknown): void => {
    if (stats.defects++ > 0 || end !== undefined) return
    fork(Effect.logError("A callback of an ACP connection threw", clean(Cause.pretty(Cause.die(error)))))
  }

  const finish = (reason: AcpError.ConnectionEnd): void => {
    if (end !== undefined) return
    end = reason
    calling.settleAll(Exit.fail(reason))
    serving.interruptAll()
    outgoing.wake()
    Deferred.doneUnsafe(ended, Exit.succeed(reason))
  }

  const outgoing = Outgoing.make(transport, { end: () => end, onPut: Counters.sent(stats) })
  const calling = Calling.make(outgoing, defect)
  const serving = Serving.make({
    outgoing,
    fork,
    max: options?.maxInbound ?? 256,
    maxBytes: options?.maxInboundBytes ?? 64 * 1024 * 1024,
    handle: (method, params) => handlers.onRequest(method, params),
    isOpen: () => end === undefined
  })

  const problem = (what: Problem): void => handlers.onProblem?.(what)

  const serve = (frame: AcpCodec.Request): void => {
    if (serving.serve(frame)) return
    stats.overload++
    problem({ _tag: "Overload", method: frame.method, bytes: frame.bytes })
  }

  /** A line that is broken or too long. It costs the one request that it answers, or that it is; no other. */
  const broken = (frame: AcpCodec.Malformed | AcpCodec.TooLarge, detail: string): void => {
    const isCall = frame.method !== undefined || (frame._tag === "Malformed" && frame.reason.startsWith("method "))
    if (isCall) {
      if (frame.id !== undefined && frame.id !== null) {
        serving.refuse(frame.id, AcpError.code.invalidRequest, `Invalid request: ${detail}`)
      }
    } else {
      const call = calling.find(frame.id)
      if (call !== undefined) {
        answered = true
        calling.settle(call, Exit.fail(new AcpError.InvalidResponse({ method: call.method, detail })))
      }
    }
    problem(frame)
  }

  const handle = (frame: AcpCodec.Outcome): void => {
    switch (frame._tag) {
      case "Notification": {
        if (frame.method === AcpProtocol.method.cancelRequest) return serving.cancel(frame.params)
        return handlers.onNotification(frame.method, frame.params, frame.bytes)
      }
      case "Response": {
        stats.responsesIn++
        const call = calling.find(frame.id)
        if (call === undefined) {
          stats.late++
          return problem({ _tag: "Late", id: frame.id, bytes: frame.bytes })
        }
        answered = true
        return calling.settle(
          call,
          frame.error === undefined
            ? Exit.succeed(frame.result)
            : Exit.fail(Errors.received(call.method, frame.error, frame.bytes, redact))
        )
      }
      case "Request": {
        stats.requestsIn++
        return serve(frame)
      }
      case "Noise": {
        stats.noise++
        noiseText = frame.text
        return problem(frame)
      }
      case "Malformed": {
        stats.malformed++
        return broken(frame, frame.reason)
      }
      case "TooLarge": {
        stats.tooLarge++
        return broken(frame, `a line of ${frame.bytes} bytes is over the limit of ${frame.limit} bytes`)
      }
    }
  }

  const take = (outcomes: ReadonlyArray<AcpCodec.Outcome>): void => {
    if (outcomes.length === 0) return
    // Once for a piece of what was read, and before any of it is handled, so that a handler finds it.
    stats.lastFrameAt = clock.currentTimeMillisUnsafe()
    for (let i = 0; i < outcomes.length && end === undefined; i++) {
      const outcome = outcomes[i]!
      stats.framesIn++
      stats.bytesIn += outcome.bytes
      try {
        handle(outcome)
      } catch (error) {
        defect(error)
      }
    }
  }

  /** After the end the peer's output is still drained, so that it can't block, but dropped. */
  const taking = (work: () => void): void => {
    if (end !== undefined) return
    const before = stats.framesIn
    work()
    if (stats.framesIn === before || end !== undefined) return
    try {
      handlers.onChunkEnd?.()
    } catch (error) {
      defect(error)
    }
  }

  /**
   * What was read at once; others run between its pieces, so that a peer that floods doesn't hold them up. What comes
   * behind an answer is taken with it, before whoever awaited that goes on.
   */
  const takeAll = (pieces: ReadonlyArray<Uint8Array>, from = 0): Effect.Effect<void> =>
    Effect.suspend(() => {
      let next = from
      let bytes = 0
      answered = false
      taking(() => {
        while (next < pieces.length && (answered || bytes < Pieces.size)) {
          const piece = pieces[next++]!
          bytes += piece.length
          take(decoder.push(piece))
        }
      })
      return next < pieces.length && end === undefined
        ? Effect.andThen(Effect.yieldNow, takeAll(pieces, next))
        : Effect.void
    })

  const withSilence = (reason: AcpTransport.TransportEnd): AcpTransport.TransportEnd => {
    if (stats.lastFrameAt === null) return reason
    const sinceLastFrameMillis = Math.max(0, clock.currentTimeMillisUnsafe() - stats.lastFrameAt)
    return reason._tag === "ProcessExited"
      ? new AcpError.ProcessExited({ ...reason, sinceLastFrameMillis })
      : new AcpError.TransportClosed({ ...reason, sinceLastFrameMillis })
  }

  const read = Stream.runForEachArray(transport.incoming, (chunks) => takeAll(Pieces.cut(chunks))).pipe(
    Effect.andThen(Effect.sync(() => taking(() => take(decoder.end())))),
    Effect.andThen(transport.ended),
    Effect.flatMap((reason) => Effect.sync(() => finish(withSilence(reason)))),
    // A transport can't fail, but it may have a bug; nobody must wait for a reader that is gone.
    Effect.onError((cause) =>
      Effect.sync(() => {
        if (Cause.hasInterruptsOnly(cause)) return
        defect(Cause.squash(cause))
        finish(new AcpError.HostClosed({ reason: "reading from it failed" }))
      })
    )
  )

  const closed = (reason: string) => Effect.sync(() => finish(new AcpError.HostClosed({ reason })))
  yield* Effect.addFinalizer(() => closed("its scope was closed"))
  // Not at once: the handlers may speak of the connection, which the caller does not have yet.
  yield* Effect.forkScoped(read)

  return {
    request: calling.request,
    start: calling.start,
    notify: calling.notify,
    ended: Deferred.await(ended),
    isOpen: () => end === undefined,
    endReason: () => end,
    close: (reason) => Effect.andThen(closed(reason), transport.close),
    stats,
    pid: transport.pid,
    stderrTail: transport.stderrTail
  }
})
