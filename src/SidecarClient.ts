/**
 * A sidecar in another process, with the very interface of one that is embedded.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import * as RpcClient from "effect/rpc/RpcClient"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import type * as Socket from "effect/socket/Socket"
import * as Stream from "effect/Stream"
import * as Address from "./Address.ts"
import * as Remote from "./internal/remote.ts"
import * as RemoteVm from "./internal/remoteVm.ts"
import * as RpcClientWire from "./internal/rpcClientWire.ts"
import * as RpcWire from "./internal/rpcWire.ts"
import * as Tie from "./internal/tie.ts"
import * as Time from "./internal/time.ts"
import type * as Session from "./Session.ts"
import * as Sidecar from "./Sidecar.ts"
import * as SidecarError from "./SidecarError.ts"
import type * as SidecarEvent from "./SidecarEvent.ts"
import * as SidecarLimits from "./SidecarLimits.ts"
import * as SidecarRpc from "./SidecarRpc.ts"
import * as Vm from "./Vm.ts"

/**
 * How an app connects. `client` is its name, for people. `token` is that of the server's token file. The role is `app`
 * unless given: it reaches what it has opened; an `operator` reaches all that the sidecar has. `onDisconnect` says what
 * becomes of its work when the connection ends: `interrupt`, the default, or `detach`; with the {@link Connection} `key` of
 * then as `resume` it comes back to it. `handshakeTimeout` is 10 seconds unless given.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly client: string
  readonly token?: Redacted.Redacted<string> | undefined
  readonly role?: "app" | "operator" | undefined
  readonly onDisconnect?: "interrupt" | "detach" | undefined
  readonly resume?: string | undefined
  readonly handshakeTimeout?: Duration.Input | undefined
}

/**
 * Why there is no connection. Nothing of it is left.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type ConnectError = SidecarRpc.SidecarUnreachable | SidecarRpc.HandshakeRefused

/**
 * A connection to a sidecar. The `sidecar` is that of the other process: its limits are those in force there, its errors
 * cross unchanged. When the connection ends without having been closed here, `lost` resolves with how it did, and all that
 * was open has its end, at once: calls fail with `Disposed` and turns with `SidecarLost`, streams end, and the sidecar reads
 * `disposed`. Nothing is sent again.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Connection {
  readonly sidecar: Sidecar.Sidecar["Service"]
  /** The version of the program on the other side. */
  readonly version: string
  /** Names this client, to come back as it. It is a secret. */
  readonly key: string
  readonly lost: Effect.Effect<SidecarError.SidecarLost>
  /** A Vm of this client by its id, such as one that was opened before it came back. */
  readonly vm: (id: Address.VmId) => Effect.Effect<Vm.Vm, SidecarError.NotFound>
  /** A session that this client may reach, by its id; for any other the same answer, whoever owns it. */
  readonly session: (id: Address.SessionId) => Effect.Effect<Session.Session, SidecarError.NotFound>
  /** The sessions that this client may reach. */
  readonly sessions: Effect.Effect<ReadonlyArray<Address.Address>>
}

const encodeHello = Schema.encodeSync(Schema.toCodecJson(SidecarRpc.Hello))
const decodeAnswer = Schema.decodeUnknownOption(Schema.fromJsonString(Schema.toCodecJson(SidecarRpc.Answer)))

const unreachable = (detail: string) => Effect.fail(new SidecarRpc.SidecarUnreachable({ detail }))

const greet = Effect.fnUntraced(function* (wire: RpcWire.Wire, options: Options) {
  const timeout = Option.getOrElse(Time.parse(options.handshakeTimeout ?? "10 seconds"), () => Duration.seconds(10))
  const hello = encodeHello({
    acpSidecar: SidecarRpc.protocolVersion,
    client: options.client.slice(0, 256),
    ...(options.token === undefined ? {} : { token: Redacted.value(options.token) }),
    ...Remote.compact({ role: options.role, onDisconnect: options.onDisconnect, resume: options.resume })
  })
  const exchange = Effect.andThen(
    // One that was refused before it said anything may still read why.
    RpcWire.write(wire, `${JSON.stringify(hello)}\n`),
    RpcWire.firstLine(wire, SidecarRpc.maxHandshakeBytes)
  ).pipe(
    Effect.catchTags({
      SocketError: (error) => unreachable(RpcClientWire.reasonOf(error)),
      BrokenWire: ({ detail }) => unreachable(`what answers is no sidecar: ${detail}`)
    }),
    Effect.timeoutOrElse({
      duration: timeout,
      orElse: () => unreachable(`it did not answer within ${Duration.toMillis(timeout)} ms`)
    })
  )
  const { line, rest } = yield* exchange
  const answer = decodeAnswer(line)
  if (Option.isNone(answer)) return yield* unreachable("what answers is no sidecar")
  if (answer.value._tag === "HandshakeRefused") return yield* Effect.fail(answer.value)
  const limits = yield* SidecarLimits.make(answer.value.limits, SidecarLimits.defaults).pipe(
    Effect.catch(() => unreachable("its limits make no sense"))
  )
  return { welcome: answer.value, limits, rest }
})

/**
 * Connects to the sidecar at the other end of a socket, until the current scope closes. That ends the connection and not
 * the sidecar.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const connect = (
  socket: Socket.Socket,
  options: Options
): Effect.Effect<Connection, ConnectError, Scope.Scope> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      // Its own, so that nothing is left where there is no connection.
      const scope = yield* Scope.fork(yield* Effect.scope)
      return yield* restore(Scope.provide(open(socket, options), scope)).pipe(
        Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
      )
    })
  )

const open = Effect.fnUntraced(function* (
  socket: Socket.Socket,
  options: Options
): Effect.fn.Return<Connection, ConnectError, Scope.Scope> {
  const opened = yield* RpcWire.open(socket).pipe(
    Effect.catchTag("SocketError", (error) => unreachable(RpcClientWire.reasonOf(error)))
  )
  const { limits, rest, welcome } = yield* greet(opened, options)
  const address: Address.Address = { sidecarId: welcome.sidecarId }
  const scope = yield* Effect.scope
  // Closed after the connection has ended, which is what ends all that runs in it.
  const work = yield* Scope.fork(scope, "parallel")
  const loss = Deferred.makeUnsafe<SidecarError.SidecarLost>()
  let lost: SidecarError.SidecarLost | undefined
  let isDisposed = false
  const onEnd = (detail: string, byItself: boolean): void => {
    lost = new SidecarError.SidecarLost({ address, detail: isDisposed ? "it was disposed" : detail })
    if (byItself && !isDisposed) Deferred.doneUnsafe(loss, Exit.succeed(lost))
  }
  const wire = yield* RpcClientWire.make(opened, { limits, rest, onEnd })
  const rpc = yield* RpcClient.make(SidecarRpc.SidecarRpc, { disableTracing: true }).pipe(
    Effect.provideService(RpcClient.Protocol, wire.protocol)
  )
  yield* Effect.forkScoped(wire.read, { startImmediately: true })
  const remote = Remote.make({ address, limits, rpc, wire, scope: work, lost: () => lost })
  return {
    sidecar: makeSidecar(remote, () => {
      isDisposed = true
    }),
    version: welcome.version,
    key: welcome.key,
    lost: Deferred.await(loss),
    vm: (vmId) =>
      remote
        .control((call) => call["Vm.Describe"]({ vmId }))
        .pipe(
          Effect.map(({ root }) => RemoteVm.make(remote, { ...address, vmId }, { root, limits, onClose: Effect.void })),
          Effect.mapError(() => new SidecarError.NotFound({ address: { ...address, vmId } }))
        ),
    session: (id) => RemoteVm.attach(remote, limits, id),
    sessions: remote.control((call) => call["Session.List"]()).pipe(Effect.catch(() => Effect.succeed([])))
  }
})

const makeSidecar = (remote: Remote.Remote, onDispose: () => void): Sidecar.Sidecar["Service"] => {
  const { address, limits } = remote
  let isDisposed = false
  let isOver = false
  let last: Sidecar.SidecarInfo = {
    sidecarId: address.sidecarId,
    state: "ready",
    activeVmCount: 0,
    activePrompts: 0,
    limits: SidecarLimits.plain(limits),
    vms: [],
    hosts: [],
    heldBack: []
  }
  const disposed = (detail: string | undefined) =>
    Effect.fail(new SidecarError.Disposed({ address, ...(detail === undefined ? {} : { detail }) }))

  const openVm: Sidecar.Sidecar["Service"]["openVm"] = (options) =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const caller = yield* Effect.scope
        if (isDisposed) return yield* disposed(undefined)
        yield* Vm.checkFolder(address, "root", options.root)
        const vmLimits = options.limits === undefined ? limits : yield* SidecarLimits.make(options.limits, limits)
        const opened = yield* Remote.named(
          remote,
          (key) =>
            remote.work((rpc) =>
              rpc["Vm.Open"](
                Remote.compact({
                  key,
                  root: options.root,
                  env: options.env,
                  limits: options.limits === undefined ? undefined : given(options.limits, vmLimits)
                }) as never
              )
            ),
          restore
        ).pipe(Effect.catchTag("SidecarLost", ({ detail }) => disposed(detail)))
        const open = yield* Scope.make()
        const tie = yield* Tie.make(
          open,
          Effect.suspend(() => vm.close)
        )
        const vm: Vm.Vm = RemoteVm.make(remote, opened.address, {
          root: options.root,
          limits: vmLimits,
          onClose: Scope.close(open, Exit.void)
        })
        yield* tie(caller)
        return vm
      })
    )

  return Sidecar.Sidecar.of({
    id: address.sidecarId,
    address,
    limits,
    openVm,
    describe: remote
      .control((rpc) => rpc["Describe"]())
      .pipe(
        Effect.map((info): Sidecar.SidecarInfo => (isDisposed ? { ...info, state: "disposing" } : info)),
        Effect.catch(() => Effect.succeed(last)),
        Effect.map((info): Sidecar.SidecarInfo =>
          isOver || remote.lost() !== undefined
            ? { ...info, state: "disposed", activeVmCount: 0, activePrompts: 0, vms: [], hosts: [], heldBack: [] }
            : info
        ),
        Effect.tap((info) => Effect.sync(() => void (last = info)))
      ),
    events: Stream.suspend(() => {
      let number = 0
      return remote
        .stream((rpc, gate) => rpc["Events"](undefined, gate))
        .pipe(
          Stream.mapArray((events) => {
            number = events.at(-1)!.number
            return events
          }),
          Stream.catch(({ message }) =>
            Stream.fromEffect(
              Effect.map(Clock.currentTimeMillis, (at): SidecarEvent.SidecarEvent => ({
                number: number + 1,
                at,
                kind: "disposed",
                address,
                detail: message
              }))
            )
          )
        )
    }),
    dispose: Effect.suspend(() => {
      isDisposed = true
      onDispose()
      return Effect.andThen(
        Effect.ignore(remote.control((rpc) => rpc["Dispose"]())),
        Effect.sync(() => {
          isOver = true
        })
      )
    })
  })
}

/** Only what was given, as JSON. */
const given = (overrides: SidecarLimits.Overrides, limits: SidecarLimits.SidecarLimits): SidecarLimits.Overrides => {
  const plain = SidecarLimits.plain(limits)
  return Object.fromEntries(
    Object.entries(overrides)
      .filter(([, value]) => value !== undefined)
      .map(([name]) => [name, plain[name as keyof typeof plain]])
  )
}
