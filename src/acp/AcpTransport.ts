/**
 * Bytes to and from an ACP peer: a child process, or another fiber in memory.
 *
 * @since 0.1.0
 */

import type * as Arr from "effect/Array"
import type * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as ChildProcess from "effect/process/ChildProcess"
import { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { errnoOf, signalOf, thrownErrno } from "../internal/processErrors.ts"
import * as AcpError from "./AcpError.ts"
import * as StderrTail from "./StderrTail.ts"

/**
 * How a transport ended, before the connection adds what it knows (the time since the last frame).
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type TransportEnd = AcpError.ProcessExited | AcpError.TransportClosed

/**
 * A byte pipe to a peer. `incoming` gives the peer's bytes in order and ends when there are no more; it may be run
 * once. `send` takes whole frames into a bounded queue, in call order. `ended` resolves once, after `incoming` has given
 * all there was.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface AcpTransport {
  readonly incoming: Stream.Stream<Uint8Array>
  /** Queues a frame, at once; `false` when there is no room (the peer does not read) or the pipe is closed. */
  readonly send: (frame: Uint8Array) => boolean
  /**
   * Sets what is called whenever frames have left the queue, so that whoever found no room may try again. A transport
   * without it is asked again every 10 ms.
   */
  readonly onRoom?: ((wake: () => void) => void) | undefined
  readonly ended: Effect.Effect<TransportEnd>
  /** The process id, when the peer is a process. */
  readonly pid: number | undefined
  /** The last part of the peer's stderr, redacted. */
  readonly stderrTail: () => string
  /**
   * Ends the peer's input after what is queued, and nothing else: a way to see whether it ends by itself. A transport
   * without it can only be closed.
   */
  readonly endInput?: Effect.Effect<void> | undefined
  /** Ends the peer: end of input, then TERM and after `killGrace` KILL to its whole process group. Resolves when it is gone. */
  readonly close: Effect.Effect<void>
}

/**
 * The transport as a service, for programs that use the wire alone and have one peer.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class Transport extends Context.Service<Transport, AcpTransport>()("acp-sidecar/acp/Transport") {}

/**
 * What to start, and the bounds on it. `args` are passed as they are: nothing is split and no shell is involved. The
 * child gets exactly `env`, nothing of ours is added.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface ProcessOptions {
  readonly command: string
  readonly args: ReadonlyArray<string>
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  /** Frames that may wait for the child to read them. 1,024 by default. */
  readonly outgoingCapacity?: number | undefined
  /** Bytes of these, unless it is one frame alone; what is being written counts no more. 64 MiB by default. */
  readonly outgoingBytes?: number | undefined
  /** How much of stderr is kept. 16 KiB by default. */
  readonly stderrTailBytes?: number | undefined
  /** Time between TERM and KILL. 2 s by default. */
  readonly killGrace?: Duration.Input | undefined
  /**
   * After the exit, how long the end of output is awaited while none comes, because a grandchild may hold the pipe open;
   * ten times as long when it keeps writing. After the end of output, how long the exit is awaited. 500 ms by default.
   */
  readonly drainGrace?: Duration.Input | undefined
  /** Removes secrets from a piece of text before it is kept. */
  readonly redact?: ((text: string) => string) | undefined
}

type Exited = Pick<AcpError.ProcessExited, "code" | "signal">

/**
 * Starts a child process in a process group of its own and speaks to it over stdin and stdout. Its stderr is always
 * drained. The exit and the end of stdout are joined: what was written before is delivered first, then `ended` resolves
 * once, with the exit code or signal, or with `TransportClosed` when one end of the pipe was closed and the process
 * lives on. Closing the scope ends the whole group (TERM, then KILL) and waits until it is gone.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const makeChildProcess = Effect.fnUntraced(function* (
  options: ProcessOptions
): Effect.fn.Return<AcpTransport, AcpError.SpawnError, ChildProcessSpawner | Scope.Scope> {
  const spawner = yield* ChildProcessSpawner
  const scope = yield* Effect.scope
  const killGrace = options.killGrace ?? Duration.seconds(2)
  const drainGrace = options.drainGrace ?? Duration.millis(500)
  const stderr = StderrTail.make(options.stderrTailBytes ?? 16 * 1024, options.redact)
  const spawnError = (code: string, subject: AcpError.SpawnError["subject"]) =>
    new AcpError.SpawnError({ code, command: options.command, cwd: options.cwd, subject })
  const handle = yield* spawner
    .spawn(
      ChildProcess.make(options.command, options.args, {
        // The spawner looks at the folder before it starts anything, but only whether it exists. Looking at what is in it
        // tells a file, and a folder that may not be entered, as well.
        cwd: options.cwd === "" ? "" : `${options.cwd}/.`,
        env: options.env,
        stdin: { stream: "pipe", endOnDone: true },
        forceKillAfter: killGrace
      })
    )
    .pipe(
      Effect.mapError((error) => {
        const isFolder = error.reason._tag !== "BadArgument" && error.reason.module === "FileSystem"
        return spawnError(errnoOf(error), isFolder ? "folder" : "command")
      }),
      Effect.catchDefect((defect) => {
        const code = thrownErrno(defect)
        return code === undefined ? Effect.die(defect) : Effect.fail(spawnError(code, "command"))
      })
    )
  const outbox = yield* makeOutbox(options.outgoingCapacity, options.outgoingBytes)
  const ended = Deferred.makeUnsafe<TransportEnd>()
  const exited = Deferred.makeUnsafe<Exited>()
  const outputDone = Deferred.makeUnsafe<void>()
  const draining = yield* handle.stderr.pipe(
    Stream.runForEach((chunk) => Effect.sync(() => stderr.push(chunk))),
    Effect.ignore,
    Effect.forkScoped({ startImmediately: true })
  )
  let chunks = 0
  // Between the pipe and whoever takes from it, so that a pipe which a grandchild holds open can be left. It holds
  // nothing: the next is read when the one before was taken.
  const output = yield* Queue.bounded<Arr.NonEmptyReadonlyArray<Uint8Array>, Cause.Done>(0)
  const reading = yield* handle.stdout.pipe(
    Stream.runForEachArray((read) => {
      chunks += read.length
      return Queue.offer(output, read)
    }),
    Effect.ignore,
    Effect.ensuring(Effect.sync(() => Queue.endUnsafe(output))),
    Effect.forkScoped({ startImmediately: true })
  )

  const evidence = () => ({ stderrTail: stderr.text(), sinceLastFrameMillis: null })
  const settle = (end: () => TransportEnd) =>
    // What the process said last is often the only hint, so stderr gets a moment to arrive too.
    Fiber.await(draining).pipe(
      Effect.timeoutOption(drainGrace),
      Effect.andThen(
        Effect.sync(() => {
          Queue.endUnsafe(outbox.queue)
          Queue.endUnsafe(output)
          Deferred.doneUnsafe(ended, Effect.succeed(end()))
        })
      )
    )
  const drained = (round: number): Effect.Effect<void> =>
    Effect.suspend(() => {
      const seen = chunks
      return Deferred.await(outputDone).pipe(
        Effect.timeoutOption(drainGrace),
        // After a busy moment the timer may be served before the pipe is looked at.
        Effect.tap((done) => (Option.isSome(done) ? Effect.void : Effect.sleep("1 millis"))),
        Effect.flatMap((done) =>
          Option.isSome(done) || chunks === seen || round === 10 ? Effect.void : drained(round + 1)
        )
      )
    })
  const afterExit = (how: Exited) =>
    Effect.andThen(
      drained(1),
      settle(() => new AcpError.ProcessExited({ ...how, ...evidence() }))
    )
  const afterHalf = (side: "stdin" | "stdout", detail: string) =>
    Deferred.await(exited).pipe(
      Effect.timeoutOption(drainGrace),
      Effect.flatMap(
        Option.match({
          onSome: afterExit,
          onNone: () => settle(() => new AcpError.TransportClosed({ side, detail, ...evidence() }))
        })
      )
    )
  let ending = false
  /** Whatever is seen first of the end brings it about. */
  const ifFirst = (work: Effect.Effect<void>): Effect.Effect<void> =>
    Effect.suspend(() => {
      if (ending) return Effect.void
      ending = true
      return work
    })

  yield* handle.exitCode.pipe(
    Effect.map((code): Exited => ({ code: Number(code), signal: null })),
    Effect.catch((error) => Effect.succeed<Exited>({ code: null, signal: signalOf(error) ?? "an unknown signal" })),
    Effect.tap((how) => Deferred.succeed(exited, how)),
    Effect.flatMap((how) => ifFirst(afterExit(how))),
    Effect.forkScoped({ startImmediately: true })
  )
  yield* outbox.frames.pipe(
    Stream.run(handle.stdin),
    Effect.catch((error) => ifFirst(afterHalf("stdin", errnoOf(error)))),
    Effect.forkScoped({ startImmediately: true })
  )
  const incoming = Stream.fromPull(Effect.succeed(Queue.take(output))).pipe(
    Stream.ensuring(
      Effect.suspend(() => {
        Deferred.doneUnsafe(outputDone, Effect.void)
        return Effect.forkIn(ifFirst(afterHalf("stdout", "end of output")), scope, { startImmediately: true })
      }).pipe(Effect.andThen(Fiber.interrupt(reading)))
    )
  )
  const endInput = Effect.sync(() => void Queue.endUnsafe(outbox.queue))
  const close = endInput.pipe(
    Effect.andThen(Effect.ignore(handle.kill({ forceKillAfter: killGrace }))),
    Effect.andThen(Deferred.await(exited)),
    Effect.asVoid
  )
  return {
    incoming,
    send: (frame) => {
      const taken = outbox.send(frame)
      // The writer wakes inside this call; through the scheduler a turn would wait one more round of the event loop.
      if (taken) Queue.flushUnsafe(outbox.queue)
      return taken
    },
    onRoom: outbox.onRoom,
    ended: Deferred.await(ended),
    pid: Number(handle.pid),
    stderrTail: () => stderr.text(),
    endInput,
    close
  }
})

/** Frames on their way, bounded in count and in bytes, and one listener who is told that some were taken out. */
const makeOutbox = Effect.fnUntraced(function* (capacity = 1024, maxBytes = 64 * 1024 * 1024) {
  const queue = yield* Queue.bounded<Uint8Array, Cause.Done>(capacity)
  let bytes = 0
  let listener: (() => void) | undefined
  return {
    queue,
    send: (frame: Uint8Array): boolean => {
      // One alone goes in any case: nothing would ever make room for it.
      if (bytes > 0 && bytes + frame.length > maxBytes) return false
      if (!Queue.offerUnsafe(queue, frame)) return false
      bytes += frame.length
      return true
    },
    onRoom: (wake: () => void): void => {
      listener = wake
    },
    frames: Stream.mapArray(Stream.fromQueue(queue), (taken) => {
      for (const frame of taken) bytes -= frame.length
      listener?.()
      return taken
    })
  }
})

/**
 * A child process as the {@link Transport}: started with the layer, and gone with its whole process group when the layer
 * is closed. See {@link makeChildProcess}.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerChildProcess = (
  options: ProcessOptions
): Layer.Layer<Transport, AcpError.SpawnError, ChildProcessSpawner> =>
  Layer.effect(Transport, makeChildProcess(options))

/**
 * Two transports joined in memory: what one sends, the other receives. Closing either side, or the scope, ends both
 * with `TransportClosed` after what was sent has been delivered. `capacity` frames (1,024 by default) of `maxBytes`
 * (64 MiB by default, unless it is one frame alone) may wait in each direction.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const makePair = Effect.fnUntraced(function* (options?: {
  readonly capacity?: number | undefined
  readonly maxBytes?: number | undefined
}): Effect.fn.Return<readonly [AcpTransport, AcpTransport], never, Scope.Scope> {
  const ended = Deferred.makeUnsafe<TransportEnd>()
  const toLeft = yield* makeOutbox(options?.capacity, options?.maxBytes)
  const toRight = yield* makeOutbox(options?.capacity, options?.maxBytes)
  const closed = new AcpError.TransportClosed({
    side: "peer",
    detail: "the in-memory peer was closed",
    stderrTail: "",
    sinceLastFrameMillis: null
  })
  const close = Effect.sync(() => {
    Queue.endUnsafe(toLeft.queue)
    Queue.endUnsafe(toRight.queue)
    Deferred.doneUnsafe(ended, Effect.succeed(closed))
  })
  yield* Effect.addFinalizer(() => close)
  const side = (inbox: typeof toLeft, outbox: typeof toLeft): AcpTransport => ({
    incoming: inbox.frames,
    send: outbox.send,
    onRoom: outbox.onRoom,
    ended: Deferred.await(ended),
    pid: undefined,
    stderrTail: () => "",
    close
  })
  return [side(toLeft, toRight), side(toRight, toLeft)]
})

/**
 * The failure of a transport whose process is known to have ended in this way; for drivers and tests.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const exited = (how: { readonly code?: number; readonly signal?: string; readonly stderrTail?: string }) =>
  new AcpError.ProcessExited({
    code: how.signal === undefined ? (how.code ?? 0) : null,
    signal: how.signal ?? null,
    stderrTail: how.stderrTail ?? "",
    sinceLastFrameMillis: null
  })
