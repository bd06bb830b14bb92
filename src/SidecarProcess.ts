/**
 * A sidecar as a child process: its stdin and stdout as a socket, and its life.
 *
 * @since 0.1.0
 */
import type { NonEmptyReadonlyArray } from "effect/Array"
import type * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as ChildProcess from "effect/process/ChildProcess"
import { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import * as Socket from "effect/socket/Socket"
import * as Stream from "effect/Stream"
import * as StderrTail from "./acp/StderrTail.ts"
import * as Holds from "./internal/holds.ts"
import { errnoOf, signalOf, thrownErrno } from "./internal/processErrors.ts"
import * as SidecarProgram from "./SidecarProgram.ts"

/**
 * What to start. `args` follow the program's own; `env` goes over the variables of this process, and `undefined` takes one
 * away.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly program: SidecarProgram.Program
  readonly args: ReadonlyArray<string>
  readonly env: Readonly<Record<string, string | undefined>>
  /** How much of stderr is kept. 16 KiB by default. */
  readonly stderrTailBytes?: number | undefined
  /** Removes secrets from what the program wrote to stderr. */
  readonly redact?: ((text: string) => string) | undefined
  /** After the end of its input, how long a sidecar that has answered may take to dispose itself. 8 s by default. */
  readonly exitGrace?: Duration.Input | undefined
  /** Time between TERM and KILL. 2 s by default. */
  readonly killGrace?: Duration.Input | undefined
}

/**
 * How a process ended: with a code, or by a signal.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Ended {
  readonly code: number | null
  readonly signal: string | null
}

/**
 * A process that was started. Its socket can be opened once. When that fails as the process has ended, the close reason
 * says how, with the last part of its stderr.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface SidecarProcess {
  readonly pid: number
  readonly socket: Socket.Socket
  /** Resolves when the process has ended and what it wrote last has been read. */
  readonly ended: Effect.Effect<Ended>
  /** The last part of its stderr, redacted. */
  readonly stderrTail: () => string
  /** To be called when it has answered as a sidecar: it then gets time to dispose itself, and what it leaves is ended. */
  readonly answered: () => void
  /**
   * Keeps the program that started it alive until the scope closes. A process that was never held keeps it alive too; one
   * that was, and isn't any more, does not.
   */
  readonly hold: Effect.Effect<void, never, Scope.Scope>
}

/** A program that has not become a sidecar has nothing to dispose. */
const shortGrace = Duration.millis(500)
/** How long the last output is awaited after the exit, and the exit after the end of output. */
const drainGrace = Duration.millis(500)
/** How long KILL may take to have its effect, on a machine that is busy too. */
const killWait = Duration.seconds(5)
/** How long the command that ends what a lost sidecar left may take. */
const reapTimeout = Duration.seconds(10)

/**
 * How a process ended, as a part of a sentence: `it ended with code 1`.
 *
 * @stability unstable
 * @category conversions
 * @since 0.1.0
 */
export const describe = ({ code, signal }: Ended): string =>
  signal === null ? `it ended with code ${code ?? "unknown"}` : `it was ended by ${signal}`

const socketError = (code: number, closeReason: string): Socket.SocketError =>
  new Socket.SocketError({ reason: new Socket.SocketCloseError({ code, closeReason }) })

const notWritten = (detail: string): Socket.SocketError =>
  new Socket.SocketError({ reason: new Socket.SocketWriteError({ cause: new Error(detail) }) })

/**
 * Runs the command `reap` of a program, which ends what killed sidecars have left running, and waits for it, for at most
 * 10 s. It can't be interrupted; what goes wrong is logged.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const reap = Effect.fnUntraced(function* (
  program: SidecarProgram.Program,
  env: Options["env"]
): Effect.fn.Return<void, never, ChildProcessSpawner> {
  const spawner = yield* ChildProcessSpawner
  const command = ChildProcess.make(program.command, [...program.args, "reap"], {
    env,
    extendEnv: true,
    stdin: "ignore",
    stdout: "ignore",
    stderr: "ignore",
    forceKillAfter: "1 second"
  })
  const problem = yield* spawner.exitCode(command).pipe(
    Effect.map((code) => (Number(code) === 0 ? undefined : `it ended with code ${code}`)),
    Effect.catch((error) => Effect.succeed(errnoOf(error))),
    Effect.catchDefect((defect) => Effect.succeed(thrownErrno(defect) ?? String(defect))),
    Effect.timeoutOrElse({ duration: reapTimeout, orElse: () => Effect.succeed("it took too long") })
  )
  if (problem === undefined) return
  yield* Effect.logWarning(
    `What a lost sidecar has left may still run: "${program.path} reap" has failed (${problem}); run it again.`
  )
}, Effect.uninterruptible)

/**
 * Starts the program in a process group of its own. Its stderr is always drained. Closing the scope ends its input, which
 * a sidecar takes as the order to dispose itself; then come TERM and KILL to the group, each when the time before has
 * passed, and it resolves when the process is gone. One that has answered and was then lost (it ended by a signal or with
 * another code than 0) may leave agents behind, so that the program's command `reap` is run once, for at most 10 s.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const start = Effect.fnUntraced(function* (
  options: Options
): Effect.fn.Return<SidecarProcess, SidecarProgram.ProgramFailed, ChildProcessSpawner | Scope.Scope> {
  const { program } = options
  const spawner = yield* ChildProcessSpawner
  const exitGrace = Duration.fromInputUnsafe(options.exitGrace ?? Duration.seconds(8))
  const killGrace = Duration.fromInputUnsafe(options.killGrace ?? Duration.seconds(2))
  const stderr = StderrTail.make(options.stderrTailBytes ?? 16 * 1024, options.redact)
  let hasAnswered = false
  let how: Ended | undefined
  const reapOnce = yield* Effect.cached(Effect.provideService(reap(program, options.env), ChildProcessSpawner, spawner))
  const clearUp = Effect.suspend(() =>
    hasAnswered && how !== undefined && how.code !== 0 ? Effect.uninterruptible(reapOnce) : Effect.void
  )
  // Registered first, so it runs when the process is gone.
  yield* Effect.addFinalizer(() => clearUp)

  const failed = (code: string) =>
    new SidecarProgram.ProgramFailed({
      program: program.path,
      problem: `it can't be run (${code})`,
      code: null,
      signal: null,
      stderrTail: ""
    })
  const handle = yield* spawner
    .spawn(
      ChildProcess.make(program.command, [...program.args, ...options.args], {
        env: options.env,
        extendEnv: true,
        stdin: { stream: "pipe", endOnDone: true },
        forceKillAfter: killGrace
      })
    )
    .pipe(
      Effect.mapError((error) => failed(errnoOf(error))),
      Effect.catchDefect((defect) => {
        const code = thrownErrno(defect)
        return code === undefined ? Effect.die(defect) : Effect.fail(failed(code))
      })
    )

  const exited = Deferred.makeUnsafe<Ended>()
  const ended = Deferred.makeUnsafe<Ended>()
  // They hold nothing: a piece goes from one side to the other when it is asked for.
  const input = yield* Queue.bounded<NonEmptyReadonlyArray<Uint8Array>, Cause.Done>(0)
  const output = yield* Queue.bounded<NonEmptyReadonlyArray<Uint8Array>, Socket.SocketError>(0)
  const immediately = { startImmediately: true } as const

  const draining = yield* handle.stderr.pipe(
    Stream.runForEach((chunk) => Effect.sync(() => stderr.push(chunk))),
    Effect.ignore,
    Effect.forkScoped(immediately)
  )
  let pieces = 0
  let isOffering = false
  const reading = yield* handle.stdout.pipe(
    Stream.runForEachArray((read) => {
      pieces++
      isOffering = true
      // When nobody reads any more, what comes is let go: a process that can't write can't end.
      return Effect.map(Queue.offer(output, read), () => {
        isOffering = false
      })
    }),
    Effect.ignore,
    Effect.forkScoped(immediately)
  )
  /** Waits for the end of output, unless somebody else holds the pipe open; not for a reader, who has all the time. */
  const drained = (rounds: number): Effect.Effect<void> =>
    Effect.suspend(() => {
      const seen = pieces
      return Effect.flatMap(Effect.timeoutOption(Fiber.await(reading), drainGrace), (end) => {
        if (Option.isSome(end)) return Effect.void
        if (isOffering) return drained(rounds)
        return pieces === seen || rounds === 0 ? Effect.void : drained(rounds - 1)
      })
    })
  yield* Stream.fromQueue(input).pipe(
    Stream.flattenArray,
    Stream.run(handle.stdin),
    Effect.ignore,
    Effect.ensuring(Queue.shutdown(input)),
    Effect.forkScoped(immediately)
  )
  yield* handle.exitCode.pipe(
    Effect.map((code): Ended => ({ code: Number(code), signal: null })),
    Effect.catch((error) => Effect.succeed<Ended>({ code: null, signal: signalOf(error) ?? "an unknown signal" })),
    Effect.flatMap((end) =>
      Effect.sync(() => {
        how = end
        Queue.shutdownUnsafe(input)
        Deferred.doneUnsafe(exited, Exit.succeed(end))
      })
    ),
    Effect.andThen(drained(10)),
    Effect.andThen(Effect.timeoutOption(Fiber.await(draining), drainGrace)),
    Effect.andThen(Effect.suspend(() => Deferred.succeed(ended, how!))),
    Effect.forkScoped(immediately)
  )
  yield* Effect.forkScoped(Effect.andThen(Deferred.await(exited), clearUp), immediately)
  const closeOutput = (error: Socket.SocketError) => Effect.andThen(Queue.fail(output, error), Queue.shutdown(output))
  const lastWords = () => {
    const tail = stderr.text().trim()
    return tail === "" ? "" : `; it said last: ${tail.slice(-500)}`
  }
  yield* Fiber.await(reading).pipe(
    Effect.andThen(Effect.timeoutOption(Deferred.await(ended), Duration.times(drainGrace, 2))),
    Effect.raceFirst(Effect.map(Deferred.await(ended), Option.some)),
    Effect.flatMap((end) => {
      const detail = Option.match(end, { onNone: () => "it closed its output", onSome: describe })
      const isClean = Option.isSome(end) && end.value.code === 0
      return Queue.fail(output, socketError(isClean ? 1000 : 1006, `the sidecar process: ${detail}${lastWords()}`))
    }),
    Effect.forkScoped(immediately)
  )

  let reref: Effect.Effect<unknown> = Effect.void
  const letGo = Effect.suspend(() =>
    // One that has ended keeps nobody, and its group is still to be ended with it.
    how !== undefined
      ? Effect.void
      : handle.unref.pipe(
          Effect.map((again) => {
            reref = Effect.ignore(again)
          }),
          Effect.ignore
        )
  )
  const holds = Holds.make({ keep: Effect.suspend(() => reref), letGo })

  // Registered last, so that the fibers above still serve the pipes meanwhile.
  yield* Effect.addFinalizer(() =>
    Effect.gen(function* () {
      yield* holds.keep
      Queue.endUnsafe(input)
      yield* closeOutput(socketError(1006, "it was closed"))
      const left = yield* Effect.timeoutOption(Deferred.await(exited), hasAnswered ? exitGrace : shortGrace)
      if (Option.isNone(left)) {
        yield* handle
          .kill({ forceKillAfter: killGrace })
          .pipe(Effect.ignore, Effect.timeoutOption(Duration.sum(killGrace, killWait)))
      }
      // The exit may be told a little after the end of the group, and its last output after that.
      const end = yield* Effect.timeoutOption(Deferred.await(ended), Duration.times(drainGrace, 2))
      if (Option.isSome(end)) return
      if (how !== undefined) return Deferred.doneUnsafe(ended, Exit.succeed(how))
      yield* Effect.logWarning(`The sidecar process ${handle.pid} can't be ended; look for it.`)
      // It is not waited for any longer.
      yield* letGo
    })
  )

  const bytes = new TextEncoder()
  const encode = (chunk: Uint8Array | string) => (typeof chunk === "string" ? bytes.encode(chunk) : chunk)
  const send = (chunks: NonEmptyReadonlyArray<Uint8Array>) =>
    Effect.flatMap(Queue.offer(input, chunks), (taken) =>
      taken ? Effect.void : Effect.fail(notWritten(how === undefined ? "its input is closed" : describe(how)))
    )
  const endInput = Effect.sync(() => void Queue.endUnsafe(input))
  const socket = Socket.make({
    reader: Effect.gen(function* () {
      yield* Effect.addFinalizer(() => closeOutput(socketError(1006, "it was closed")))
      return { pull: Queue.take(output), upgrade: Socket.SocketUpgradeError.unsupported }
    }),
    writer: Effect.acquireRelease(
      Effect.succeed<Socket.Writer>({
        write: (chunk) => (Socket.isCloseEvent(chunk) ? endInput : send([encode(chunk)])),
        writeAll: (chunks) => send([encode(chunks[0]), ...chunks.slice(1).map(encode)])
      }),
      () => endInput
    )
  })
  return {
    pid: Number(handle.pid),
    socket,
    ended: Deferred.await(ended),
    stderrTail: () => stderr.text(),
    answered: () => {
      hasAnswered = true
    },
    hold: holds.hold
  }
}, Effect.uninterruptible)
