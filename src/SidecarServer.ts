/**
 * Serves a sidecar to clients in other processes. It takes connections as sockets, whatever they are made of: a child's
 * standard streams, a Unix domain socket, a WebSocket.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberMap from "effect/FiberMap"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as RpcServer from "effect/rpc/RpcServer"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import type * as Socket from "effect/socket/Socket"
import * as Stream from "effect/Stream"
import * as RpcClients from "./internal/rpcClients.ts"
import * as RpcHandlers from "./internal/rpcHandlers.ts"
import * as RpcServerWire from "./internal/rpcServerWire.ts"
import * as RpcWire from "./internal/rpcWire.ts"
import { version } from "./internal/version.ts"
import * as Sidecar from "./Sidecar.ts"
import * as SidecarLimits from "./SidecarLimits.ts"
import * as SidecarRpc from "./SidecarRpc.ts"

/**
 * Who may connect. Without a `token` the transport itself has to say so: a file that only its owner may open, or the
 * streams of a child. `operators`, on by default: clients may ask for the role that reaches what all clients have.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly token?: Redacted.Redacted<string> | undefined
  readonly operators?: boolean | undefined
}

/**
 * The server of a sidecar. Everything that a client has belongs to its connection: when that ends, its calls are
 * interrupted, its turns cancelled and its Vms closed, unless it asked for `detach`; then they go on for `detachTimeout`.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class SidecarServer extends Context.Service<
  SidecarServer,
  {
    /**
     * Serves one connection from its handshake to its end, and resolves when nothing of it is left. It never fails: what
     * is wrong with a client is told to that client. Interrupting it closes the connection.
     */
    readonly serve: (socket: Socket.Socket) => Effect.Effect<void>
    /** Clients that are connected, or went away and may come back. */
    readonly clients: () => number
    /** Clients that have come since it started. */
    readonly welcomed: () => number
    /** Resolves when there is no client. */
    readonly unused: Effect.Effect<void>
    /** Resolves when the sidecar has been disposed, whoever asked for it. */
    readonly disposed: Effect.Effect<void>
  }
>()("acp-sidecar/SidecarServer") {}

const encodeAnswer = Schema.encodeSync(Schema.toCodecJson(SidecarRpc.Answer))
const decodeHello = Schema.decodeUnknownOption(Schema.fromJsonString(SidecarRpc.Hello))
const decodeVersion = Schema.decodeUnknownOption(Schema.fromJsonString(Schema.Struct({ acpSidecar: Schema.Int })))

const refusal = (reason: SidecarRpc.RefusalReason, detail: string) =>
  Effect.fail(new SidecarRpc.HandshakeRefused({ reason, detail }))

const make = Effect.fnUntraced(function* (
  options: Options
): Effect.fn.Return<SidecarServer["Service"], never, Sidecar.Sidecar | Scope.Scope> {
  const sidecar = yield* Sidecar.Sidecar
  const { limits } = sidecar
  const owner = yield* Scope.fork(yield* Effect.scope, "parallel")
  const clients = RpcClients.make()
  let welcomed = 0
  const absent = yield* Scope.provide(FiberMap.make<string>(), owner)
  const disposed = Deferred.makeUnsafe<void>()
  const unused = yield* Latch.make(true)
  yield* Stream.runDrain(sidecar.events).pipe(
    Effect.ensuring(Effect.sync(() => Deferred.doneUnsafe(disposed, Exit.void))),
    Effect.forkIn(owner, { startImmediately: true })
  )

  /** Closes what a client has; nobody reaches it from here on. */
  const leave = (client: RpcClients.Client): Effect.Effect<void> =>
    Effect.uninterruptible(
      Effect.suspend(() => {
        client.isLeaving = true
        return Effect.andThen(
          Scope.close(client.scope, Exit.void),
          Effect.sync(() => client.vms.clear())
        )
      })
    )
  const remove = (client: RpcClients.Client): Effect.Effect<void> =>
    Effect.andThen(
      leave(client),
      Effect.sync(() => {
        if (clients.all.get(client.key) !== client) return
        clients.all.delete(client.key)
        if (clients.all.size === 0) unused.openUnsafe()
      })
    )
  /** Nobody came back in time. */
  const expire = (client: RpcClients.Client): Effect.Effect<void> =>
    Effect.andThen(
      Effect.sleep(limits.detachTimeout),
      Effect.suspend(() => (client.connections === 0 ? remove(client) : Effect.void))
    )
  const disconnected = (client: RpcClients.Client): Effect.Effect<void> =>
    Effect.suspend(() => {
      client.connections--
      if (client.connections > 0 || client.isLeaving) return client.isLeaving ? remove(client) : Effect.void
      if (client.onDisconnect === "interrupt" || client.vms.size === 0) return remove(client)
      return Effect.asVoid(FiberMap.run(absent, client.key, expire(client), { startImmediately: true }))
    })

  const full = Effect.suspend(() => {
    const setting = SidecarLimits.setting("maxClients")
    return refusal("full", `it has ${limits.maxClients} clients; close one, or raise ${setting} there`)
  })
  const enter = Effect.fnUntraced(function* (hello: SidecarRpc.Hello) {
    const { onDisconnect = "interrupt", resume, role = "app" } = hello
    if (role === "operator" && options.operators === false) {
      return yield* refusal("role", "it has no operators; connect as an app")
    }
    if (resume !== undefined) {
      const known = clients.all.get(resume)
      if (known === undefined || known.isLeaving) {
        return yield* refusal("resume", "it has no client with this key any more; connect without one")
      }
      let connections = 0
      for (const one of clients.all.values()) connections += one.connections
      if (connections >= limits.maxClients) return yield* full
      known.connections++
      yield* FiberMap.remove(absent, known.key)
      return known
    }
    if (clients.all.size >= limits.maxClients) return yield* full
    const client: RpcClients.Client = {
      key: globalThis.crypto.randomUUID(),
      name: hello.client,
      role,
      onDisconnect,
      scope: yield* Scope.fork(owner, "parallel"),
      vms: new Map(),
      sessions: new Map(),
      openings: new Map(),
      connections: 1,
      pruneAt: 128,
      isLeaving: false
    }
    clients.all.set(client.key, client)
    welcomed++
    unused.closeUnsafe()
    return client
  })

  const greet = Effect.fnUntraced(function* (wire: RpcWire.Wire) {
    const { line, rest } = yield* RpcWire.firstLine(wire, SidecarRpc.maxHandshakeBytes).pipe(
      Effect.catchTag("BrokenWire", ({ detail }) => refusal("malformed", detail)),
      Effect.timeoutOrElse({
        duration: limits.handshakeTimeout,
        orElse: () => refusal("timeout", "it was not told in time who connects")
      })
    )
    const found = decodeVersion(line)
    if (Option.isNone(found)) return yield* refusal("malformed", "the first line is no hello")
    const wanted = found.value.acpSidecar
    if (wanted !== SidecarRpc.protocolVersion) {
      const detail = `it speaks version ${SidecarRpc.protocolVersion} and not ${wanted}; install the same version on both sides`
      return yield* refusal("version", detail)
    }
    const hello = decodeHello(line)
    if (Option.isNone(hello) || rest.length > 0) return yield* refusal("malformed", "the first line is no hello")
    if (options.token !== undefined && !isSame(hello.value.token ?? "", Redacted.value(options.token))) {
      return yield* refusal("token", "the token is not the right one; give the one of its token file")
    }
    if (Deferred.isDoneUnsafe(disposed)) return yield* refusal("disposed", "it has ended")
    return hello.value
  })

  const connected = Effect.fnUntraced(function* (wire: RpcWire.Wire, client: RpcClients.Client) {
    const welcome = encodeAnswer({
      _tag: "Welcome",
      acpSidecar: SidecarRpc.protocolVersion,
      sidecarId: sidecar.id,
      version,
      key: client.key,
      limits: SidecarLimits.plain(limits)
    })
    const { protocol, read } = yield* RpcServerWire.make(wire, { address: sidecar.address, limits })
    let isOver = false
    const handlers = yield* SidecarRpc.SidecarRpc.toHandlers(
      Effect.succeed(
        RpcHandlers.make({ sidecar, clients, client, isOver: () => isOver, leave: leave(client) }) as never
      )
    )
    yield* RpcServer.make(SidecarRpc.SidecarRpc, { disableTracing: true, disableFatalDefects: true }).pipe(
      Effect.provideService(RpcServer.Protocol, protocol),
      Effect.provideContext(handlers),
      Effect.forkScoped({ startImmediately: true })
    )
    // Before what runs for it is interrupted.
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        isOver = true
      })
    )
    yield* wire.writer.write(`${JSON.stringify(welcome)}\n`)
    const detail = yield* read
    yield* Effect.logDebug(`the connection of ${client.name} has ended: ${detail}`)
  })

  const serve = (socket: Socket.Socket): Effect.Effect<void> =>
    Effect.gen(function* () {
      const wire = yield* RpcWire.open(socket)
      yield* Effect.gen(function* () {
        const hello = yield* greet(wire)
        const client = yield* Effect.acquireRelease(enter(hello), disconnected)
        yield* Effect.scoped(connected(wire, client))
      }).pipe(
        Effect.catchTag("HandshakeRefused", (refused) =>
          // It may not read.
          wire.writer.write(`${JSON.stringify(encodeAnswer(refused))}\n`).pipe(Effect.timeoutOption("1 second"))
        )
      )
    }).pipe(
      Effect.scoped,
      // The connection itself, which its client sees as well.
      Effect.catchTag("SocketError", (error) => Effect.logDebug(`a connection has ended: ${error.message}`))
    )

  return SidecarServer.of({
    serve,
    clients: () => clients.all.size,
    welcomed: () => welcomed,
    unused: unused.await,
    disposed: Deferred.await(disposed)
  })
})

/** Takes the same time wherever they differ. */
const isSame = (given: string, expected: string): boolean => {
  const encoder = new TextEncoder()
  const [one, other] = [encoder.encode(given), encoder.encode(expected)]
  let difference = one.length ^ other.length
  for (let index = 0; index < other.length; index++) difference |= (one[index] ?? 0) ^ other[index]!
  return difference === 0
}

/**
 * The server of the sidecar that is provided.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer = (options: Options = {}): Layer.Layer<SidecarServer, never, Sidecar.Sidecar> =>
  Layer.effect(SidecarServer, make(options))
