/**
 * How an app on Node gets at a sidecar: as a child process, or through a socket, where it starts one when there is none.
 *
 * @since 0.1.0
 */
import { Buffer } from "node:buffer"
import type { ChildProcess as NodeChild } from "node:child_process"
import * as Diagnostics from "node:diagnostics_channel"
import * as Net from "node:net"
import * as process from "node:process"
import { clearTimeout, setTimeout } from "node:timers"
import { fileURLToPath } from "node:url"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as NodeSocket from "@effect/platform-node/NodeSocket"
import * as Clock from "effect/Clock"
import * as Config from "effect/Config"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FileSystem from "effect/FileSystem"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Path from "effect/Path"
import * as ChildProcess from "effect/process/ChildProcess"
import { ChildProcessSpawner, makeHandle, make as makeSpawner } from "effect/process/ChildProcessSpawner"
import type * as Redacted from "effect/Redacted"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as Socket from "effect/socket/Socket"
import * as Stream from "effect/Stream"
import * as StderrTail from "./acp/StderrTail.ts"
import * as Holds from "./internal/holds.ts"
import { errnoOf, signalOf } from "./internal/processErrors.ts"
import { redactor } from "./internal/redact.ts"
import { stateFolder } from "./internal/stateFolder.ts"
import * as SidecarClient from "./SidecarClient.ts"
import * as SidecarError from "./SidecarError.ts"
import type * as SidecarLimits from "./SidecarLimits.ts"
import { type Connected, SidecarConnector } from "./SidecarPool.ts"
import * as SidecarProcess from "./SidecarProcess.ts"
import * as SidecarProgram from "./SidecarProgram.ts"
import * as SidecarRpc from "./SidecarRpc.ts"

/**
 * What is started, and how long it may take. All of it may be left out.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options extends SidecarProgram.Options {
  /** The name of the app, for people. `app` by default. */
  readonly client?: string | undefined
  /** From the start of the program to its answer. 10 s by default. */
  readonly startTimeout?: Duration.Input | undefined
  /** How long a sidecar may take to dispose itself once its app has gone. 8 s by default. */
  readonly exitGrace?: Duration.Input | undefined
  /** Time between TERM and KILL. 2 s by default. */
  readonly killGrace?: Duration.Input | undefined
  /** How much of its stderr is kept. 16 KiB by default. */
  readonly stderrTailBytes?: number | undefined
}

/**
 * As {@link Options}, for a sidecar that apps share. `path` is its socket, or `folder` has one for each sidecar, named
 * after its id. By default the folder is `$ACP_SIDECAR_STATE`, `$XDG_STATE_HOME/acp-sidecar` or
 * `~/.local/state/acp-sidecar`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface SocketOptions extends Options {
  readonly path?: string | undefined
  readonly folder?: string | undefined
  readonly onDisconnect?: SidecarClient.Options["onDisconnect"]
}

/** The program beside this file: in the built package, and in the sources. */
const installation: SidecarProgram.Installation = {
  runtime: process.execPath,
  own: ["./bin.mjs", "./bin.ts"].map((name) => fileURLToPath(new URL(name, import.meta.url)))
}

/** Answers come after this at the latest, also of a program that ends at once. */
const startTimeoutOf = (options: Options): Duration.Duration =>
  Duration.fromInputUnsafe(options.startTimeout ?? Duration.seconds(10))
const tailBytesOf = (options: Options): number => options.stderrTailBytes ?? 16 * 1024

/** A program that was lost may take this long to say why. */
const lastWordsTime = Duration.seconds(1)
/** The longest time of Node's timers, in milliseconds. */
const maxTimer = 2 ** 31 - 1
const pollInterval = Duration.millis(50)
/** How long the app waits for another one's sidecar after its own has refused to run beside that. */
const winnerTime = Duration.seconds(3)

/**
 * Starts processes whose `unref` lets go of their pipes too, which keep Node alive as well. The spawner does not give them
 * out, but Node tells whoever asks of each process that it makes.
 */
const letGo = (spawner: ChildProcessSpawner["Service"]): ChildProcessSpawner["Service"] =>
  makeSpawner((command) =>
    Effect.suspend(() => {
      const made: Array<NodeChild> = []
      const see = (message: unknown) => void made.push((message as { readonly process: NodeChild }).process)
      Diagnostics.subscribe("child_process", see)
      return spawner.spawn(command).pipe(
        Effect.ensuring(Effect.sync(() => Diagnostics.unsubscribe("child_process", see))),
        Effect.map((handle) => {
          const child = made.find(({ pid }) => pid === Number(handle.pid))
          const pipes = (child?.stdio ?? []) as ReadonlyArray<{ ref?: () => void; unref?: () => void } | null>
          return makeHandle({
            ...handle,
            unref: Effect.map(handle.unref, (reref) => {
              for (const pipe of pipes) pipe?.unref?.()
              return Effect.tap(reref, () => Effect.sync(() => pipes.forEach((pipe) => pipe?.ref?.())))
            })
          })
        })
      )
    })
  )

/** Its timers keep nobody alive, such as those of the heartbeat. */
const quiet = (clock: Clock.Clock): Clock.Clock =>
  Object.assign(Object.create(clock) as Clock.Clock, {
    sleep: (duration: Duration.Duration) => {
      const millis = Duration.toMillis(duration)
      if (!(millis > 0) || millis > maxTimer) return clock.sleep(duration)
      return Effect.callback<void>((resume) => {
        const timer = setTimeout(() => resume(Effect.void), millis).unref()
        return Effect.sync(() => clearTimeout(timer))
      })
    }
  })

/** What both ways of starting a program need, checked when the layer is built. */
const prepare = Effect.fnUntraced(function* (options: Options) {
  const limits = yield* SidecarProgram.limitVariables(options.limits ?? {})
  const env = { ...options.env, ...limits }
  const context = yield* Effect.context<ChildProcessSpawner | FileSystem.FileSystem | Path.Path>()
  return { env, context, redact: redactor(given({ ...process.env, ...env })) }
})

type Prepared = Effect.Success<ReturnType<typeof prepare>>

const given = (variables: Readonly<Record<string, string | undefined>>): Record<string, string> =>
  Object.fromEntries(Object.entries(variables).filter((entry): entry is [string, string] => entry[1] !== undefined))

const clientOptions = (options: Options): SidecarClient.Options => ({
  client: options.client ?? "app",
  handshakeTimeout: startTimeoutOf(options)
})

/**
 * The same connection, which ends with the current scope and not with that of its client: a program that gave no good
 * answer is asked how it is before its input ends.
 */
const kept = Effect.fnUntraced(function* (socket: Socket.Socket): Effect.fn.Return<Socket.Socket, never, Scope.Scope> {
  const writer = yield* socket.writer
  const reader = yield* Effect.exit(socket.reader)
  return Socket.make({ reader, writer: Effect.succeed(writer) })
})

const connectChild = Effect.fnUntraced(function* (options: Options, { env, redact }: Prepared, id: string) {
  const program = yield* SidecarProgram.find(options, installation)
  const spawner = letGo(yield* ChildProcessSpawner)
  const child = yield* SidecarProcess.start({
    ...options,
    program,
    env,
    redact,
    args: ["serve", "--stdio", "--id", id, ...(options.args ?? [])]
  }).pipe(Effect.provideService(ChildProcessSpawner, spawner))
  const clock = quiet(yield* Clock.Clock)
  const connection = yield* SidecarClient.connect(yield* kept(child.socket), clientOptions(options)).pipe(
    // The child itself keeps this process alive, as long as it is held.
    Effect.provideService(Clock.Clock, clock),
    Effect.catchTag("SidecarUnreachable", ({ detail }) =>
      Effect.flatMap(Effect.timeoutOption(child.ended, lastWordsTime), (ended) =>
        Effect.fail(
          new SidecarProgram.ProgramFailed({
            program: program.path,
            problem: Option.match(ended, { onNone: () => detail, onSome: SidecarProcess.describe }),
            code: Option.getOrNull(Option.map(ended, ({ code }) => code)),
            signal: Option.getOrNull(Option.map(ended, ({ signal }) => signal)),
            stderrTail: child.stderrTail()
          })
        )
      )
    )
  )
  child.answered()
  const lost = Effect.flatMap(connection.lost, (lost) =>
    Effect.map(Effect.timeoutOption(child.ended, lastWordsTime), (ended) => {
      if (Option.isNone(ended)) return lost
      const said = child.stderrTail().trim().slice(-500)
      const detail = `${SidecarProcess.describe(ended.value)}${said === "" ? "" : `; it said last: ${said}`}`
      return new SidecarError.SidecarLost({ address: lost.address, detail })
    })
  )
  return { sidecar: connection.sidecar, lost, hold: child.hold } satisfies Connected
})

/**
 * Each sidecar is a child of this process, which runs the command `serve --stdio` of the program, see `SidecarProgram`. It
 * ends with the scope of its connection, and when this process dies: it disposes itself then. A start fails with
 * `ProgramNotFound`, `ProgramFailed` or `HandshakeRefused` and leaves nothing behind. Limits that make no sense are
 * refused when the layer is built.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerChildProcess = (options: Options = {}): Layer.Layer<SidecarConnector, SidecarLimits.InvalidLimit> =>
  Layer.effect(
    SidecarConnector,
    Effect.map(prepare(options), (prepared) =>
      SidecarConnector.of({
        connect: ({ sidecarId }) => Effect.provide(connectChild(options, prepared, sidecarId), prepared.context)
      })
    )
  ).pipe(Layer.provide(NodeServices.layer))

/**
 * A connection to the Unix domain socket of a sidecar that runs, for `SidecarClient.connect`. It is made when the socket's
 * reader is opened, which fails when nobody listens.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const socket = (path: string, openTimeout: Duration.Input = "10 seconds"): Effect.Effect<Socket.Socket> =>
  NodeSocket.makeNet({ path, openTimeout })

/**
 * A connection to the WebSocket of a sidecar that runs, such as `ws://127.0.0.1:4500`, for `SidecarClient.connect`. It is
 * made with the WebSocket of Node when the socket's reader is opened, which fails when nobody listens. What the sidecar
 * sends faster than it is read is held in memory.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const webSocket = (url: string, openTimeout: Duration.Input = "10 seconds"): Effect.Effect<Socket.Socket> =>
  Effect.provide(Socket.makeWebSocket(url, { openTimeout }), NodeSocket.layerWebSocketConstructor)

/**
 * A sidecar that listens on a WebSocket, whatever it is called. Its disposal by a client ends it for all of them.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerWebSocket = (
  url: string,
  options: {
    readonly client?: string
    readonly token?: Redacted.Redacted<string>
    readonly timeout?: Duration.Input
  } = {}
): Layer.Layer<SidecarConnector> =>
  Layer.succeed(
    SidecarConnector,
    SidecarConnector.of({
      connect: () =>
        Effect.flatMap(webSocket(url, options.timeout), (socket) =>
          SidecarClient.connect(socket, {
            client: options.client ?? "app",
            token: options.token,
            handshakeTimeout: options.timeout
          })
        )
    })
  )

/** The connection to a socket, and what it keeps alive. */
const dial = (path: string) => {
  let raw: Net.Socket | undefined
  const open = Effect.acquireRelease(
    Effect.sync(() => {
      raw = Net.createConnection({ path })
      // Told to whoever waits for it; nobody does any more when it was interrupted.
      return raw.on("error", () => {})
    }),
    (raw) => Effect.sync(() => (raw.connecting ? raw.destroy() : raw.destroySoon()))
  ).pipe(
    Effect.flatMap((raw) =>
      Effect.callback<Net.Socket, Socket.SocketError>((resume) => {
        const fail = (cause: unknown) =>
          resume(
            Effect.fail(new Socket.SocketError({ reason: new Socket.SocketOpenError({ kind: "Unknown", cause }) }))
          )
        if (raw.errored !== null) return fail(raw.errored)
        if (!raw.connecting) return resume(Effect.succeed(raw))
        raw.once("error", fail)
        raw.once("connect", () => {
          raw.off("error", fail)
          resume(Effect.succeed(raw))
        })
      })
    )
  )
  const { hold } = Holds.make({
    keep: Effect.sync(() => void raw?.ref()),
    letGo: Effect.sync(() => void raw?.unref())
  })
  return { open, hold }
}

const unreachable = (detail: string): SidecarRpc.SidecarUnreachable => new SidecarRpc.SidecarUnreachable({ detail })

/** Where the command keeps its launch records too. */
const folderOfSockets = Effect.gen(function* () {
  const paths = yield* Path.Path
  const read = (name: string) =>
    Effect.map(
      Effect.orElseSucceed(Config.option(Config.String(name)), () => Option.none<string>()),
      (value) => Option.getOrElse(value, () => "").trim()
    )
  const own = yield* read("ACP_SIDECAR_STATE")
  if (own !== "" && own !== "off") return paths.resolve(own)
  const folder = stateFolder(paths.isAbsolute, yield* read("XDG_STATE_HOME"), yield* read("HOME"))
  if (folder !== undefined) return paths.normalize(folder)
  return yield* unreachable("HOME is not set, so there is no folder for its socket; give a path")
})

/** Of the length that the system allows, with the byte that ends it. */
const maxPathBytes = process.platform === "linux" ? 107 : 103

/** The socket of a sidecar, in a folder that only this user may write to: who answers there gets the prompts. */
const placeOf = Effect.fnUntraced(function* (options: SocketOptions, id: string) {
  const fs = yield* FileSystem.FileSystem
  const paths = yield* Path.Path
  const name = `${id.replaceAll(/[^\w.:-]/g, encodeURIComponent)}.sock`
  const path = options.path === undefined ? paths.join(options.folder ?? (yield* folderOfSockets), name) : options.path
  if (!paths.isAbsolute(path)) return yield* unreachable(`the path of its socket, "${path}", is not absolute`)
  if (Buffer.byteLength(path) > maxPathBytes)
    return yield* unreachable(`the path of its socket, "${path}", is longer than ${maxPathBytes} bytes`)
  const folder = paths.dirname(path)
  const orFail = Effect.mapError((error: Parameters<typeof errnoOf>[0]) =>
    unreachable(`the folder of its socket, "${folder}", can't be used (${errnoOf(error)})`)
  )
  yield* orFail(fs.makeDirectory(folder, { recursive: true, mode: 0o700 }))
  const { mode, type, uid } = yield* orFail(fs.stat(folder))
  const user = process.getuid?.()
  const isForeign = Option.isSome(uid) && user !== undefined && uid.value !== user
  if (type !== "Directory" || isForeign || (mode & 0o022) !== 0)
    return yield* unreachable(`the folder of its socket, "${folder}", is not one that only its user may write to`)
  return path
})

/** The last part of what a program has written to a file. */
const tailOf = Effect.fnUntraced(
  function* (path: string, bytes: number, redact: (text: string) => string) {
    const fs = yield* FileSystem.FileSystem
    const tail = StderrTail.make(bytes, redact)
    const { size } = yield* fs.stat(path)
    const offset = Math.max(0, Number(size) - 2 * bytes)
    yield* Stream.runForEach(fs.stream(path, { offset }), (chunk) => Effect.sync(() => tail.push(chunk)))
    return tail.text()
  },
  Effect.orElseSucceed(() => "")
)

/** Nobody is there, or not for long. */
const isAbsent = (error: SidecarClient.ConnectError): boolean =>
  error._tag === "SidecarUnreachable" || error.reason === "disposed"

const connectSocket = Effect.fnUntraced(function* (options: SocketOptions, { env, redact }: Prepared, id: string) {
  const scope = yield* Effect.scope
  const fs = yield* FileSystem.FileSystem
  const path = yield* placeOf(options, id)
  const startTimeout = startTimeoutOf(options)
  /** What it has is closed when it fails, and only then. */
  const inScope = <A, E, R>(work: Effect.Effect<A, E, R>) =>
    Effect.flatMap(Scope.fork(scope), (own) =>
      Effect.onError(Scope.provide(work, own), () => Scope.close(own, Exit.void))
    )
  const clock = quiet(yield* Clock.Clock)
  const attempt = inScope(
    Effect.suspend(() => {
      const { hold, open } = dial(path)
      return Effect.flatMap(NodeSocket.fromDuplex(open, { openTimeout: startTimeout }), (socket) =>
        SidecarClient.connect(socket, { ...clientOptions(options), onDisconnect: options.onDisconnect })
      ).pipe(
        Effect.provideService(Clock.Clock, clock),
        Effect.map(({ lost, sidecar }): Connected => ({ sidecar, lost, hold }))
      )
    })
  )
  const running = yield* Effect.catchIf(Effect.asSome(attempt), isAbsent, () => Effect.succeed(Option.none()))
  if (Option.isSome(running)) return running.value

  const program = yield* SidecarProgram.find(options, installation)
  const log = `${path}.log`
  const failed = (problem: string, how?: SidecarProcess.Ended) =>
    Effect.flatMap(tailOf(log, tailBytesOf(options), redact), (stderrTail) =>
      Effect.fail(
        new SidecarProgram.ProgramFailed({
          program: program.path,
          problem,
          code: how?.code ?? null,
          signal: how?.signal ?? null,
          stderrTail
        })
      )
    )
  const orUnusable = Effect.catch((error: Parameters<typeof errnoOf>[0]) =>
    failed(`it can't be run (${errnoOf(error)})`)
  )
  // Its errors go to a file: it may outlive whoever would read them from a pipe.
  yield* orUnusable(fs.writeFileString(log, "", { mode: 0o600 }))
  const args = [program.command, ...program.args, "serve", "--socket", path, "--exit-when-unused", "--id", id]
  return yield* inScope(
    Effect.gen(function* () {
      const handle = yield* orUnusable(
        ChildProcess.make("/bin/sh", ["-c", 'exec "$@" 2>>"$0"', log, ...args, ...(options.args ?? [])], {
          env,
          extendEnv: true,
          stdin: "ignore",
          stdout: "ignore",
          stderr: "ignore",
          forceKillAfter: options.killGrace ?? Duration.seconds(2)
        })
      )
      const ended = handle.exitCode.pipe(
        Effect.map((code): SidecarProcess.Ended => ({ code: Number(code), signal: null })),
        Effect.catch((error) => Effect.succeed<SidecarProcess.Ended>({ code: null, signal: signalOf(error) }))
      )
      // One that may not listen, as another app's does by now, ends; that other one is then waited for.
      const gaveUp = Effect.flatMap(ended, (how) =>
        Effect.andThen(Effect.sleep(winnerTime), failed(SidecarProcess.describe(how), how))
      )
      const connection = yield* Effect.retry(attempt, {
        schedule: Schedule.spaced(pollInterval),
        while: isAbsent
      }).pipe(
        Effect.raceFirst(gaveUp),
        Effect.timeoutOrElse({
          duration: startTimeout,
          orElse: () => failed(`nobody answered on "${path}" within ${Duration.format(startTimeout)}`)
        })
      )
      // From now on it is everybody's, and lives until no app uses it.
      yield* Effect.ignore(handle.unref)
      return connection
    })
  )
})

/**
 * One sidecar of each name for all apps of this user: connects to its socket, and where nobody answers starts the command
 * `serve --socket PATH --exit-when-unused` of the program, in a process group of its own. It ends by itself when no app is
 * connected any more, so that `dispose` of such a sidecar only closes what this app has in it. Apps that start at the same
 * time get the same one. Its stderr goes to the file `PATH.log`, anew with each start. A start that fails or is interrupted
 * ends what it has started.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerSocket = (options: SocketOptions = {}): Layer.Layer<SidecarConnector, SidecarLimits.InvalidLimit> =>
  Layer.effect(
    SidecarConnector,
    Effect.map(prepare(options), (prepared) =>
      SidecarConnector.of({
        connect: ({ sidecarId }) =>
          Effect.gen(function* () {
            const own = yield* Scope.fork(yield* Effect.scope)
            const { sidecar, ...rest } = yield* Scope.provide(connectSocket(options, prepared, sidecarId), own)
            // Each app that it was lost to does so; the second finds nothing to do.
            const reap = Effect.flatMap(SidecarProgram.find(options, installation), (program) =>
              SidecarProcess.reap(program, prepared.env)
            )
            yield* Effect.forkScoped(
              Effect.flatMap(rest.lost, () => Effect.uninterruptible(Effect.ignore(reap))),
              { startImmediately: true }
            )
            return { ...rest, sidecar: { ...sidecar, dispose: Scope.close(own, Exit.void) } }
          }).pipe(Effect.provide(prepared.context))
      })
    )
  ).pipe(Layer.provide(NodeServices.layer))
