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
import type * as Fiber from "effect/Fiber"
import * as FiberMap from "effect/FiberMap"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as AcpCodec from "./AcpCodec.ts"
import * as AcpError from "./AcpError.ts"
import * as AcpProtocol from "./AcpProtocol.ts"
import type * as AcpTransport from "./AcpTransport.ts"

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
 * The answer to a method that nobody handles: `-32601`, with the method's name as the ACP SDK words it.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const methodNotFound = (method: string): Refusal =>
  refusal(AcpError.code.methodNotFound, `"Method not found": ${method}`, { method })

/**
 * A frame that was not delivered, for counting and for telling the session it belongs to. `Late` is a response that no
 * pending request waits for; `Overload` is a request that was refused because `maxInbound` were being handled.
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
 * the order of the wire; they must be quick and must not throw.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Handlers {
  /** A notification, with its size on the wire. Unknown ones are simply not acted on. */
  readonly onNotification: (method: string, params: unknown, bytes: number) => void
  /** A request, run as a supervised fiber. It is interrupted when the peer cancels it or the connection ends. */
  readonly onRequest: (method: string, params: unknown) => Effect.Effect<unknown, unknown>
  readonly onProblem?: ((problem: Problem) => void) | undefined
  /** After each chunk of bytes: a good moment to wake readers, once for many frames. */
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
 * Counters of a connection, for diagnosis.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Stats {
  framesIn: number
  framesOut: number
  bytesIn: number
  noise: number
  malformed: number
  tooLarge: number
  late: number
  overload: number
  /** Clock time of the last frame in milliseconds, `null` before the first. */
  lastFrameAt: number | null
  /** The last piece of noise, shortened. */
  noiseSample: string
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
  readonly request: (
    method: string,
    params: unknown,
    hooks?: RequestHooks
  ) => Effect.Effect<unknown, AcpError.RequestFailure>
  /**
   * Registers and queues a request as one step; the caller must `abandon` it, see {@link Pending}. Only waiting for room
   * can be interrupted, and then nothing was sent.
   */
  readonly start: (
    method: string,
    params: unknown,
    hooks?: RequestHooks
  ) => Effect.Effect<Pending, AcpError.ConnectionEnd>
  readonly notify: (method: string, params: unknown) => Effect.Effect<void, AcpError.ConnectionEnd>
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
 * it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface RequestHooks {
  readonly onResponse?: ((result: unknown) => void) | undefined
  readonly onSettled?: ((exit: Exit.Exit<unknown, AcpError.RequestFailure>) => void) | undefined
}

interface Entry {
  readonly method: string
  readonly hooks: RequestHooks | undefined
  readonly result: Deferred.Deferred<unknown, AcpError.RequestFailure>
}

/**
 * Runs a JSON-RPC peer on a transport until the scope closes. One fiber reads; notifications and responses are handled
 * in the order of the wire, and a response's hook runs before the next frame is read. The peer's requests run as
 * supervised fibers, at most `maxInbound` at once. Noise is counted and never answered. Responses are matched by id,
 * numbers and their decimal strings alike. When the transport ends, every pending request fails with the same reason.
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
  const maxInbound = options?.maxInbound ?? 256
  const redact = options?.redact ?? ((text: string) => text)
  const decoder = AcpCodec.makeDecoder({ maxLineBytes: options?.maxLineBytes })
  const pending = new Map<number, Entry>()
  const ended = Deferred.makeUnsafe<AcpError.ConnectionEnd>()
  const inbound = yield* FiberMap.make<string>()
  const runInbound = yield* FiberMap.runtime(inbound)()
  const stats: Stats = {
    framesIn: 0,
    framesOut: 0,
    bytesIn: 0,
    noise: 0,
    malformed: 0,
    tooLarge: 0,
    late: 0,
    overload: 0,
    lastFrameAt: null,
    noiseSample: ""
  }
  let end: AcpError.ConnectionEnd | undefined
  let lastId = 0
  let inboundCount = 0

  const finish = (reason: AcpError.ConnectionEnd): void => {
    if (end !== undefined) return
    end = reason
    const waiting = Array.from(pending.values())
    pending.clear()
    for (const entry of waiting) {
      const exit = Exit.fail(reason)
      entry.hooks?.onSettled?.(exit)
      Deferred.doneUnsafe(entry.result, exit)
    }
    Deferred.doneUnsafe(ended, Exit.succeed(reason))
  }

  /**
   * Queues a frame. While the peer does not read, there may be no room; then it is tried again. Each try is one step, so
   * that an interrupt finds the frame either queued or not, never in between.
   */
  const send = (frame: Uint8Array): Effect.Effect<void, AcpError.ConnectionEnd> =>
    Effect.suspend(() => {
      if (end !== undefined) return Effect.fail(end)
      if (!transport.send(frame)) return Effect.andThen(roomPoll, send(frame))
      stats.framesOut++
      return Effect.void
    })

  const settle = (id: number, entry: Entry, exit: Exit.Exit<unknown, AcpError.RequestFailure>): void => {
    pending.delete(id)
    if (exit._tag === "Success") entry.hooks?.onResponse?.(exit.value)
    entry.hooks?.onSettled?.(exit)
    Deferred.doneUnsafe(entry.result, exit)
  }

  /** Our ids are numbers; some peers send them back as strings. */
  const ownId = (id: string | number | null | undefined): number | undefined =>
    typeof id === "number" ? id : typeof id === "string" && /^\d{1,15}$/.test(id) ? Number(id) : undefined

  const problem = (what: Problem): void => handlers.onProblem?.(what)

  /** Fails the one request that a broken or oversized line answers, if it says which. */
  const failById = (id: string | number | null | undefined, method: string | undefined, detail: string): void => {
    const own = method === undefined ? ownId(id) : undefined
    const entry = own === undefined ? undefined : pending.get(own)
    if (own === undefined || entry === undefined) return
    settle(own, entry, Exit.fail(new AcpError.InvalidResponse({ method: entry.method, detail })))
  }

  const answer = (id: string | number | null, exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> => {
    if (Exit.isSuccess(exit)) return Effect.ignore(send(AcpCodec.encodeResult(id, exit.value ?? null)))
    const failure = Cause.findErrorOption(exit.cause)
    const error =
      failure._tag === "Some" && isRefusal(failure.value)
        ? failure.value
        : Cause.hasInterruptsOnly(exit.cause)
          ? refusal(AcpError.code.requestCancelled, "Request cancelled")
          : refusal(AcpError.code.internalError, "Internal error")
    return Effect.ignore(send(AcpCodec.encodeError(id, error)))
  }

  const serve = (frame: AcpCodec.Request): void => {
    if (inboundCount >= maxInbound) {
      stats.overload++
      problem({ _tag: "Overload", method: frame.method, bytes: frame.bytes })
      // Without room in the outgoing queue the peer floods us and doesn't read; it loses this answer.
      transport.send(
        AcpCodec.encodeError(
          frame.id,
          refusal(AcpError.code.internalError, `More than ${maxInbound} requests are being handled; try again later`)
        )
      )
      return
    }
    inboundCount++
    runInbound(
      `${typeof frame.id}:${frame.id}:${++lastInbound}`,
      // The mask comes first: every request gets exactly one answer, a cancelled one too.
      Effect.uninterruptibleMask((restore) =>
        Effect.exit(restore(Effect.suspend(() => handlers.onRequest(frame.method, frame.params)))).pipe(
          Effect.flatMap((exit) => answer(frame.id, exit)),
          Effect.ensuring(
            Effect.sync(() => {
              inboundCount--
            })
          )
        )
      )
    )
  }
  let lastInbound = 0

  const cancelInbound = (params: unknown): void => {
    const id = (params as { readonly requestId?: unknown } | null | undefined)?.requestId
    if ((typeof id !== "string" && typeof id !== "number") || inbound.state._tag === "Closed") return
    const prefix = `${typeof id}:${id}:`
    for (const [key, fiber] of inbound.state.backing) {
      if (key.startsWith(prefix)) (fiber as Fiber.Fiber<unknown, unknown>).interruptUnsafe()
    }
  }

  const handle = (frame: AcpCodec.Outcome): void => {
    switch (frame._tag) {
      case "Notification": {
        if (frame.method === AcpProtocol.method.cancelRequest) return cancelInbound(frame.params)
        return handlers.onNotification(frame.method, frame.params, frame.bytes)
      }
      case "Response": {
        const id = ownId(frame.id)
        const entry = id === undefined ? undefined : pending.get(id)
        if (id === undefined || entry === undefined) {
          stats.late++
          return problem({ _tag: "Late", id: frame.id, bytes: frame.bytes })
        }
        return settle(
          id,
          entry,
          frame.error === undefined
            ? Exit.succeed(frame.result)
            : Exit.fail(
                new AcpError.RequestError({
                  method: entry.method,
                  code: frame.error.code,
                  detail: redact(frame.error.message),
                  data: redactData(frame.error.data, redact)
                })
              )
        )
      }
      case "Request":
        return serve(frame)
      case "Noise": {
        stats.noise++
        stats.noiseSample = redact(frame.text)
        return problem(frame)
      }
      case "Malformed": {
        stats.malformed++
        failById(frame.id, frame.method, redact(frame.reason))
        if (frame.method !== undefined && frame.id !== undefined && frame.id !== null) {
          transport.send(
            AcpCodec.encodeError(frame.id, refusal(AcpError.code.invalidRequest, `Invalid request: ${frame.reason}`))
          )
        }
        return problem(frame)
      }
      case "TooLarge": {
        stats.tooLarge++
        failById(frame.id, frame.method, `a line of ${frame.bytes} bytes is over the limit of ${frame.limit} bytes`)
        if (frame.method !== undefined && frame.id !== undefined && frame.id !== null) {
          transport.send(
            AcpCodec.encodeError(frame.id, refusal(AcpError.code.invalidRequest, `Line over ${frame.limit} bytes`))
          )
        }
        return problem(frame)
      }
    }
  }

  const take = (outcomes: ReadonlyArray<AcpCodec.Outcome>): void => {
    for (let i = 0; i < outcomes.length; i++) {
      const outcome = outcomes[i]!
      stats.framesIn++
      stats.bytesIn += outcome.bytes
      handle(outcome)
    }
    if (outcomes.length > 0) {
      stats.lastFrameAt = clock.currentTimeMillisUnsafe()
      handlers.onChunkEnd?.()
    }
  }

  const read = Stream.runForEachArray(transport.incoming, (chunks) =>
    Effect.sync(() => {
      for (const chunk of chunks) take(decoder.push(chunk))
    })
  ).pipe(
    Effect.andThen(Effect.sync(() => take(decoder.end()))),
    Effect.andThen(transport.ended),
    Effect.flatMap((reason) => Effect.sync(() => finish(withSilence(reason))))
  )
  const withSilence = (reason: AcpTransport.TransportEnd): AcpTransport.TransportEnd => {
    if (stats.lastFrameAt === null) return reason
    const sinceLastFrameMillis = Math.max(0, clock.currentTimeMillisUnsafe() - stats.lastFrameAt)
    return reason._tag === "ProcessExited"
      ? new AcpError.ProcessExited({ ...reason, sinceLastFrameMillis })
      : new AcpError.TransportClosed({ ...reason, sinceLastFrameMillis })
  }

  const closed = (reason: string) => Effect.sync(() => finish(new AcpError.HostClosed({ reason })))
  yield* Effect.addFinalizer(() => closed("its scope was closed"))
  yield* Effect.forkScoped(read, { startImmediately: true })

  const start: AcpConnection["start"] = (method, params, hooks) =>
    Effect.uninterruptible(
      Effect.suspend(() => {
        if (end !== undefined) return Effect.fail(end)
        const id = ++lastId
        const entry: Entry = { method, hooks, result: Deferred.makeUnsafe() }
        // Registered before its bytes can leave, so that no answer can come too early.
        pending.set(id, entry)
        const abandon = Effect.sync(() => {
          if (pending.get(id) === entry) pending.delete(id)
        })
        return send(AcpCodec.encodeRequest(id, method, params)).pipe(
          Effect.onExit((exit) => (Exit.isSuccess(exit) ? Effect.void : abandon)),
          Effect.as<Pending>({
            id,
            method,
            response: Deferred.await(entry.result),
            cancel: Effect.suspend(() =>
              pending.get(id) === entry
                ? Effect.ignore(notify(AcpProtocol.method.cancelRequest, { requestId: id }))
                : Effect.void
            ),
            abandon
          })
        )
      })
    )

  const notify: AcpConnection["notify"] = (method, params) => send(AcpCodec.encodeNotification(method, params))

  return {
    request: (method, params, hooks) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.flatMap(start(method, params, hooks), (request) =>
          restore(request.response).pipe(
            // The peer may not be reading; the notification then finds no room and is dropped.
            Effect.onInterrupt(() =>
              Effect.sync(() => {
                if (pending.has(request.id) && end === undefined) {
                  transport.send(
                    AcpCodec.encodeNotification(AcpProtocol.method.cancelRequest, { requestId: request.id })
                  )
                }
              })
            ),
            Effect.ensuring(request.abandon)
          )
        )
      ),
    start,
    notify,
    ended: Deferred.await(ended),
    isOpen: () => end === undefined,
    endReason: () => end,
    close: (reason) => Effect.andThen(closed(reason), transport.close),
    stats,
    pid: transport.pid,
    stderrTail: transport.stderrTail
  }
})

/** Waiting for room holds nothing, so it can always be interrupted. */
const roomPoll = Effect.interruptible(Effect.sleep("10 millis"))

const isRefusal = (u: unknown): u is Refusal => typeof u === "object" && u !== null && (u as Refusal)._tag === "Refusal"

/** Only what is JSON can have come over the wire, so a round trip through text loses nothing. */
const redactData = (data: unknown, redact: (text: string) => string): unknown => {
  if (data === undefined) return undefined
  const text = JSON.stringify(data)
  const clean = redact(text)
  if (clean === text) return data
  try {
    return JSON.parse(clean)
  } catch {
    return clean
  }
}
