/**
 * Where clients of a sidecar connect, on Node: the streams of this process, a Unix domain socket, a WebSocket on
 * loopback. Each connection becomes a `Socket` of Effect.
 *
 * @since 0.1.0
 */
import { Buffer } from "node:buffer"
import { lstatSync, renameSync, unlinkSync } from "node:fs"
import type { IncomingMessage } from "node:http"
import * as Net from "node:net"
import { basename, dirname, isAbsolute } from "node:path"
import * as process from "node:process"
import { Duplex } from "node:stream"
import * as NodeSocket from "@effect/platform-node/NodeSocket"
import * as Effect from "effect/Effect"
import * as FiberSet from "effect/FiberSet"
import * as FileSystem from "effect/FileSystem"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Socket from "effect/socket/Socket"
import { exclusively } from "./internal/claim.ts"
import type * as ProcessTable from "./ProcessTable.ts"

/**
 * A live process listens on this socket already. Connect to it, or choose another path.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class SocketInUse extends Schema.TaggedError<SocketInUse>()("SocketInUse", { path: Schema.String }) {
  override get message(): string {
    return `A live process listens on "${this.path}" already; connect to it, or choose another path.`
  }
}

/**
 * The operating system allows no socket with a path of so many bytes. Choose a shorter one.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class SocketPathTooLong extends Schema.TaggedError<SocketPathTooLong>()("SocketPathTooLong", {
  path: Schema.String,
  bytes: Schema.Finite,
  max: Schema.Finite
}) {
  override get message(): string {
    return (
      `The socket path "${this.path}" takes ${this.bytes} bytes where the system allows ${this.max}; choose a shorter ` +
      "folder or name."
    )
  }
}

/**
 * A WebSocket is offered on loopback alone, and this host is not loopback. Use 127.0.0.1, ::1 or localhost.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class NotLoopback extends Schema.TaggedError<NotLoopback>()("NotLoopback", { host: Schema.String }) {
  override get message(): string {
    return `"${this.host}" is not loopback; listen on 127.0.0.1, ::1 or localhost.`
  }
}

/**
 * Nobody can connect there, for the reason in `problem`: a folder that can't be made or written, a port in use, a file in
 * the place of the socket.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class ListenFailed extends Schema.TaggedError<ListenFailed>()("ListenFailed", {
  at: Schema.String,
  problem: Schema.String
}) {
  override get message(): string {
    return `Clients can't connect to ${this.at}: ${this.problem}.`
  }
}

/**
 * Where a listener listens.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Place =
  | { readonly _tag: "Stdio" }
  | { readonly _tag: "UnixSocket"; readonly path: string }
  | { readonly _tag: "WebSocket"; readonly url: string; readonly host: string; readonly port: number }

/**
 * Something that clients connect to, for as long as the scope is open in which it was made.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Listener {
  readonly place: Place
  /**
   * Gives each connection to the handler, side by side. A connection is closed when its handler ends, and its handler is
   * interrupted when this is. It ends with the one connection of {@link stdio}, and otherwise never by itself.
   */
  readonly run: <R>(handler: (socket: Socket.Socket) => Effect.Effect<void, never, R>) => Effect.Effect<void, never, R>
}

/** A connection that waits for its handler. */
interface Accepted {
  readonly socket: Effect.Effect<Socket.Socket>
  readonly raw: Duplex
}

/** What a WebSocket message may have; a client that sends more is disconnected. */
const maxPayload = 16 * 1024 * 1024
/** How many connections there may be by default. Those beyond are closed as soon as they are made. */
const maxConnectionsByDefault = 1024
/** What the other side has to take what was last written, before the connection is cut. */
const closeTime = "500 millis"
/** What a client may take for its HTTP request, in milliseconds. */
const upgradeTime = 5000

const codeOf = (error: unknown): string =>
  (error as { readonly code?: string } | null)?.code ?? (error instanceof Error ? error.message : String(error))

const closed = (raw: Duplex): Effect.Effect<void> =>
  Effect.callback((resume) => {
    if (raw.closed) return resume(Effect.void)
    const done = () => resume(Effect.void)
    raw.once("close", done)
    return Effect.sync(() => raw.off("close", done))
  })

/** Of one that was closed before its handler came to it nothing would ever be heard. */
const open = (raw: Duplex): Effect.Effect<Duplex, Socket.SocketError> =>
  Effect.suspend(() =>
    raw.destroyed
      ? Effect.fail(new Socket.SocketError({ reason: new Socket.SocketCloseError({ code: 1006 }) }))
      : Effect.succeed(raw)
  )

/** Lets what was written reach the other side, which may no longer read. */
const close = (raw: Duplex): Effect.Effect<void> =>
  Effect.suspend(() => {
    if (raw.closed) return Effect.void
    // Also when the client has said that it is done, or an input that nobody reads would keep it open.
    raw.end(() => raw.destroy())
    return closed(raw).pipe(Effect.timeoutOption(closeTime), Effect.andThen(Effect.sync(() => void raw.destroy())))
  })

const serve =
  <R>(handler: (socket: Socket.Socket) => Effect.Effect<void, never, R>) =>
  ({ raw, socket }: Accepted): Effect.Effect<void, never, R> =>
    Effect.flatMap(socket, handler).pipe(
      Effect.tapCause((cause) => Effect.logError("The handler of a connection failed", cause)),
      Effect.ensuring(close(raw))
    )

/** A server, its connections, and the end of both: what is still open then is cut. */
const make = Effect.fnUntraced(function* <S extends Net.Server>(
  create: (accept: (accepted: Accepted) => void) => S,
  maxConnections: number
) {
  const accepted = yield* Queue.unbounded<Accepted>()
  const problems = yield* Queue.sliding<string>(8)
  const raws = new Set<Net.Socket>()
  const server = yield* Effect.acquireRelease(
    Effect.sync(() => {
      const server = create((one) => Queue.offerUnsafe(accepted, one))
      server.maxConnections = maxConnections
      server.on("connection", (raw: Net.Socket) => {
        raws.add(raw)
        raw.on("error", () => {})
        raw.once("close", () => raws.delete(raw))
      })
      // Such as no file left to accept one more; it goes on with the next.
      server.on("error", (error) => Queue.offerUnsafe(problems, codeOf(error)))
      return server
    }),
    (server) =>
      Effect.callback<void>((resume) => {
        server.close(() => resume(Effect.void))
        for (const raw of raws) raw.destroy()
      })
  )
  const warn = Effect.forever(
    Effect.flatMap(Queue.take(problems), (problem) => Effect.logWarning(`A client could not connect: ${problem}.`))
  )
  const run: Listener["run"] = (handler) =>
    Effect.scoped(
      Effect.gen(function* () {
        const connections = yield* FiberSet.make<void>()
        yield* Effect.forkScoped(warn, { startImmediately: true })
        const start = Effect.flatMap(Queue.take(accepted), (one) => FiberSet.run(connections, serve(handler)(one)))
        return yield* Effect.forever(start)
      })
    )
  return { server, run }
})

const listen = (server: Net.Server, at: string, start: () => void): Effect.Effect<void, ListenFailed> =>
  Effect.callback((resume) => {
    const fail = (error: unknown) => {
      server.off("listening", done)
      resume(Effect.fail(new ListenFailed({ at, problem: codeOf(error) })))
    }
    const done = () => {
      server.off("error", fail)
      resume(Effect.void)
    }
    server.once("error", fail)
    server.once("listening", done)
    try {
      start()
    } catch (error) {
      server.off("error", fail)
      fail(error)
    }
  })

/** Whether somebody listens on a socket. Whoever is too busy to answer lives. */
const isAnswered = (path: string): Effect.Effect<boolean, ListenFailed> =>
  Effect.callback<boolean, ListenFailed>((resume) => {
    const probe = Net.connect(path)
    probe.once("connect", () => resume(Effect.succeed(true)))
    probe.on("error", (error) => {
      const code = codeOf(error)
      if (code === "ECONNREFUSED" || code === "ENOENT") resume(Effect.succeed(false))
      else if (code === "EAGAIN") resume(Effect.succeed(true))
      else
        resume(Effect.fail(new ListenFailed({ at: path, problem: `a socket is there, and can't be asked: ${code}` })))
    })
    return Effect.sync(() => probe.destroy())
  }).pipe(Effect.timeoutOrElse({ duration: "2 seconds", orElse: () => Effect.succeed(true) }))

/** Which file a path is, so that another one in its place is not taken for it. */
const identity = (path: string): string | undefined => {
  const stat = lstatSync(path, { bigint: true, throwIfNoEntry: false })
  return stat === undefined ? undefined : `${stat.dev}/${stat.ino}`
}

/**
 * A Unix domain socket that this user alone may connect to: its file has mode 0600 from its first moment, and folders of
 * its path that are missing are made with 0700. The file that a dead process left is taken over; a live one is refused
 * with `SocketInUse`, and of several starters at once one wins. `path` is absolute, of at most 107 bytes on Linux and 103
 * elsewhere, less when the name has under 8. At most `maxConnections` (1,024 by default) are served at once, and those
 * beyond closed at once. When the scope closes, connections end within half a second, and the file is removed if it is
 * still this one.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const unixSocket = Effect.fnUntraced(function* (options: {
  readonly path: string
  readonly maxConnections?: number | undefined
}): Effect.fn.Return<
  Listener,
  SocketInUse | SocketPathTooLong | ListenFailed,
  Scope.Scope | FileSystem.FileSystem | ProcessTable.ProcessTable
> {
  const { maxConnections = maxConnectionsByDefault, path } = options
  const fs = yield* FileSystem.FileSystem
  const unusable = (problem: string) => new ListenFailed({ at: path, problem })
  if (process.platform === "win32") return yield* unusable("there are no Unix domain sockets here")
  if (!isAbsolute(path) || path.includes("\0") || path.endsWith("/")) {
    return yield* unusable("it is not the absolute path of a file")
  }
  const folder = dirname(path)
  const name = basename(path)
  // It is made under another name, so that it is in its place only when it answers, and closing it, where the system
  // removes the file of that name, never removes a file that somebody else has put in its place.
  const unfinished = `${folder}/.${globalThis.crypto.randomUUID().slice(0, 7)}`
  const max = process.platform === "linux" ? 107 : 103
  const bytes = Math.max(Buffer.byteLength(path), Buffer.byteLength(unfinished))
  if (bytes > max) return yield* new SocketPathTooLong({ path, bytes, max })

  const bind = Effect.gen(function* () {
    const found = lstatSync(path, { throwIfNoEntry: false })
    if (found !== undefined && !found.isSocket()) return yield* unusable("there is a file that is no socket")
    if (found !== undefined && (yield* isAnswered(path))) return yield* new SocketInUse({ path })
    return yield* Effect.uninterruptible(
      Effect.gen(function* () {
        const { run, server } = yield* make(
          (accept) =>
            Net.createServer({ pauseOnConnect: true }, (raw) =>
              accept({ raw, socket: NodeSocket.fromDuplex(open(raw)) })
            ),
          maxConnections
        )
        yield* listen(server, path, () => {
          // The file is made within this call, and gets its mode from the mask.
          const mask = process.umask(0o177)
          try {
            server.listen({ path: unfinished, exclusive: true })
          } finally {
            process.umask(mask)
          }
          if (server.listening) renameSync(unfinished, path)
        })
        const own = identity(path)
        yield* Effect.addFinalizer(() =>
          Effect.try({
            try: () => {
              if (own !== undefined && identity(path) === own) unlinkSync(path)
            },
            catch: (error) => unusable(`its file can't be removed: ${codeOf(error)}`)
          }).pipe(Effect.catch((error) => Effect.logWarning(error.message)))
        )
        return { place: { _tag: "UnixSocket", path } as const, run }
      })
    )
  })
  return yield* fs.makeDirectory(folder, { recursive: true, mode: 0o700 }).pipe(
    Effect.andThen(exclusively(folder, name, bind)),
    Effect.catchTags({
      PlatformError: (error) => unusable(error.message),
      ProcessTableError: (error) => unusable(error.message)
    }),
    Effect.timeoutOrElse({
      duration: "10 seconds",
      orElse: () => unusable("another process that wants it too has not come to an end with it")
    })
  )
})

const loopback = ["127.0.0.1", "::1", "localhost"]

/** The host of an origin or a Host header, without the brackets of an IPv6 address. */
const isLoopback = (host: string): boolean => loopback.includes(host.replace(/^\[(.*)\]$/, "$1"))

const isLoopbackOrigin = (origin: string): boolean => {
  const url = URL.parse(origin)
  return url !== null && /^https?:$/.test(url.protocol) && isLoopback(url.hostname)
}

/** The status that a request is refused with. A page of the web can't set these headers, nor its name's address. */
const refusal = (request: IncomingMessage, port: number): 403 | 404 | undefined => {
  const { host = "", origin } = request.headers
  const [, name = "", given] = /^(.*?)(?::(\d+))?$/.exec(host.toLowerCase()) ?? []
  if (!isLoopback(name) || Number(given ?? 80) !== port) return 403
  if (origin !== undefined && !isLoopbackOrigin(origin)) return 403
  return request.url === "/" ? undefined : 404
}

const reasons = { 403: "Forbidden", 404: "Not Found", 426: "Upgrade Required" } as const

const answer = (raw: Duplex, status: 403 | 404): void => {
  raw.end(`HTTP/1.1 ${status} ${reasons[status]}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n`, () =>
    raw.destroy()
  )
}

/** Waits for the other side to read, which the WebSocket itself does not. */
const drained = (raw: Duplex): Effect.Effect<void> =>
  Effect.suspend(() =>
    raw.writableNeedDrain && !raw.destroyed
      ? Effect.callback<void>((resume) => {
          const stop = () => {
            raw.off("drain", done)
            raw.off("close", done)
          }
          const done = () => {
            stop()
            resume(Effect.void)
          }
          raw.once("drain", done)
          raw.once("close", done)
          return Effect.sync(stop)
        })
      : Effect.void
  )

/**
 * A WebSocket at `/` of a port on loopback; any other `host` than 127.0.0.1, ::1 and localhost is refused with
 * `NotLoopback`. Port 0 takes a free one. A request whose `Host` is not loopback with this port, or whose `Origin` is
 * there and not loopback, gets 403, so that no page of the web reaches it; other paths get 404. It does not know who
 * connects: every user of the machine can, so ask each for a token. At most `maxConnections` (1,024 by default) are served
 * at once, and those beyond closed at once; a client has 5 s for its request, and a message at most 16 MiB.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const webSocket = Effect.fnUntraced(function* (options: {
  readonly host: string
  readonly port: number
  readonly maxConnections?: number | undefined
}): Effect.fn.Return<Listener, NotLoopback | ListenFailed, Scope.Scope> {
  const { maxConnections = maxConnectionsByDefault, port: wanted } = options
  if (!isLoopback(options.host)) return yield* new NotLoopback({ host: options.host })
  // Its name may stand for both, or for another machine where somebody has said so.
  const host = options.host === "localhost" ? "127.0.0.1" : options.host.replace(/^\[(.*)\]$/, "$1")
  const shown = host === "::1" ? "[::1]" : host
  // Loaded when they are wanted, since the other listeners start sooner without.
  const [Http, { WebSocketServer }] = yield* Effect.promise(() =>
    Promise.all([import("node:http"), import("@effect/platform-node/NodeWS")])
  )
  const upgrades = new WebSocketServer({ noServer: true, maxPayload, perMessageDeflate: false, clientTracking: false })
  let port = wanted
  return yield* Effect.uninterruptible(
    Effect.gen(function* () {
      const { run, server } = yield* make(
        (accept) =>
          Http.createServer({
            headersTimeout: upgradeTime,
            requestTimeout: upgradeTime,
            connectionsCheckingInterval: 500
          })
            .on("request", (request, response) => {
              const status = refusal(request, port) ?? 426
              response.writeHead(status, { Connection: "close", ...(status === 426 ? { Upgrade: "websocket" } : {}) })
              response.end()
            })
            .on("clientError", (_, raw) => void raw.destroy())
            .on("upgrade", (request, raw, head) => {
              const status = refusal(request, port)
              if (status !== undefined) return answer(raw, status)
              upgrades.handleUpgrade(request, raw, head, (client) => {
                // Until its handler reads, so that nothing is lost.
                client.pause()
                client.on("error", () => {})
                const end = Effect.sync(() => client.close())
                const socket = Effect.map(
                  Socket.fromWebSocket(Effect.acquireRelease(Effect.succeed(client), () => end)),
                  ({ reader, writer }) =>
                    Socket.make({
                      reader,
                      writer: Effect.map(writer, ({ write, writeAll }) => ({
                        write: (chunk) => Effect.andThen(write(chunk), drained(raw)),
                        writeAll: (chunks) => Effect.andThen(writeAll(chunks), drained(raw))
                      }))
                    })
                )
                accept({ raw, socket })
              })
            }),
        maxConnections
      )
      yield* listen(server, `ws://${shown}:${wanted}/`, () => server.listen({ host, port: wanted, exclusive: true }))
      port = (server.address() as Net.AddressInfo).port
      return { place: { _tag: "WebSocket", url: `ws://${shown}:${port}/`, host, port } as const, run }
    })
  )
})

/** One stream of two, which fails as a whole when nobody reads the output. */
const joined = (input: NodeJS.ReadStream, output: NodeJS.WriteStream): Duplex => {
  const duplex = new Duplex({
    read: () => void input.resume(),
    write: (chunk, _, done) => void output.write(chunk, done),
    writev: (chunks, done) => {
      output.cork()
      for (const { chunk } of chunks.slice(0, -1)) output.write(chunk)
      output.write(chunks.at(-1)!.chunk, done)
      output.uncork()
    },
    final: (done) => void output.end(done),
    destroy: (error, done) => {
      input.off("data", push)
      input.off("end", end)
      input.off("error", fail)
      input.pause()
      output.off("error", fail)
      output.off("close", cut)
      // An error that comes late ends nothing any more.
      output.on("error", () => {})
      done(error)
    }
  })
  const push = (chunk: Buffer) => {
    if (!duplex.push(chunk)) input.pause()
  }
  const end = () => void duplex.push(null)
  const fail = (error: Error) => void duplex.destroy(error)
  const cut = () => void duplex.destroy()
  input.on("data", push)
  input.once("end", end)
  input.on("error", fail)
  output.on("error", fail)
  output.once("close", cut)
  input.pause()
  return duplex
}

/**
 * One connection over stdin and stdout of this process, which are then its alone: log to stderr. It is over when stdin
 * ends or nobody reads stdout.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const stdio: Effect.Effect<Listener, never, Scope.Scope> = Effect.map(
  Effect.acquireRelease(
    Effect.sync(() => {
      const raw = joined(process.stdin, process.stdout)
      raw.on("error", () => {})
      return raw
    }),
    (raw) => Effect.sync(() => void raw.destroy())
  ),
  (raw) => ({
    place: { _tag: "Stdio" },
    run: (handler) => serve(handler)({ raw, socket: NodeSocket.fromDuplex(open(raw)) })
  })
)
