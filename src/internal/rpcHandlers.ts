/**
 * What a sidecar process does for one client.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Tracer from "effect/Tracer"
import type * as Address from "../Address.ts"
import type * as AgentProfile from "../AgentProfile.ts"
import type * as Permission from "../Permission.ts"
import type * as Probe from "../Probe.ts"
import type * as Session from "../Session.ts"
import type * as Sidecar from "../Sidecar.ts"
import * as SidecarError from "../SidecarError.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import type * as SidecarRpc from "../SidecarRpc.ts"
import type * as Vm from "../Vm.ts"
import * as RpcClients from "./rpcClients.ts"

export interface HandlersContext {
  readonly sidecar: Sidecar.Sidecar["Service"]
  readonly clients: RpcClients.Clients
  readonly client: RpcClients.Client
  /** Its connection has ended. */
  readonly isOver: () => boolean
  /** Ends what this client has. */
  readonly leave: Effect.Effect<void>
}

/** Events in one message. */
const pieceSize = 128

/** No message of a stream has too many events, so that control answers get in between. */
const inPieces = <A, E, R>(stream: Stream.Stream<A, E, R>): Stream.Stream<A, E, R> =>
  Stream.chunks(stream).pipe(
    Stream.flatMap((all) =>
      all.length <= pieceSize
        ? Stream.fromArray(all)
        : Stream.fromArrays(
            ...Array.from({ length: Math.ceil(all.length / pieceSize) }, (_, index) =>
              all.slice(index * pieceSize, (index + 1) * pieceSize)
            )
          )
    )
  )

export const make = ({ clients, client, isOver, leave, sidecar }: HandlersContext) => {
  const { id: sidecarId } = sidecar
  // Two connections of one client may give the same name.
  const connection = ++clients.connections
  const named = (key: string) => `${connection}/${key}`
  const session = (sessionId: Address.SessionId) => RpcClients.findSession(clients, client, sidecarId, sessionId)
  const vm = (vmId: Address.VmId) => RpcClients.findVm(clients, client, sidecarId, vmId)
  const turn = ({ sessionId, turnId }: { readonly sessionId: Address.SessionId; readonly turnId: Address.TurnId }) =>
    Effect.flatMap(session(sessionId), (owned) => RpcClients.findTurn(owned, turnId))
  const withSession = <A, E>(
    payload: { readonly sessionId: Address.SessionId },
    use: (session: Session.Session) => Effect.Effect<A, E>
  ) => Effect.flatMap(session(payload.sessionId), (owned) => use(owned.session))
  const isAlone = () => {
    for (const other of clients.all.values()) if (other !== client && RpcClients.hasWork(other)) return false
    return true
  }
  const seesAll = () => client.role === "operator" || clients.all.size === 1

  const submit = (payload: Submitted): Effect.Effect<Session.Turn, SidecarError.NotFound | Session.SubmitError> =>
    Effect.flatMap(session(payload.sessionId), (owned) => {
      const submitting = Effect.tap(owned.session.submit(payload.prompt, payload.options), (accepted) =>
        RpcClients.keepTurn(owned, accepted)
      )
      if (payload.trace === false) return Effect.withTracerEnabled(submitting, false)
      return payload.trace === undefined
        ? submitting
        : Effect.provideService(submitting, Tracer.ParentSpan, Tracer.externalSpan(payload.trace))
    })
  /** A client that went away may want its turns to go on. */
  const mayGoOn = () => isOver() && client.onDisconnect === "detach"
  /** As if whoever awaits it had been interrupted. */
  const interrupt = (one: Session.Turn) =>
    Effect.flatMap(Effect.forkChild(one.await, { startImmediately: true }), Fiber.interrupt)

  /**
   * In a scope of its own, so that one that is given up leaves nothing, wherever it is given up. Once it is registered no
   * interruption comes before `RpcClients.open` knows how to close it.
   */
  const scoped = <A, E>(
    effect: Effect.Effect<A, E, Scope.Scope>,
    register: (opened: A, scope: Scope.Closeable) => Effect.Effect<void>
  ): Effect.Effect<A, E> =>
    Effect.uninterruptible(
      Effect.gen(function* () {
        const scope = yield* Scope.fork(client.scope)
        const opened = yield* Effect.interruptible(Scope.provide(effect, scope)).pipe(
          Effect.onError((cause) => Scope.close(scope, Exit.failCause(cause)))
        )
        yield* register(opened, scope)
        return opened
      })
    )
  const openVm = (options: Vm.Options) =>
    Effect.suspend(() => {
      if (client.isLeaving) return disposed(sidecar.address)
      return scoped(sidecar.openVm(options), (vm, scope) =>
        Effect.sync(() =>
          RpcClients.keepVm(clients, client, { vm, close: Effect.andThen(vm.close, Scope.close(scope, Exit.void)) })
        )
      )
    })
  const openSession = ({ permission, vmId, ...options }: Omit<Opened, "key">) =>
    Effect.suspend(() => {
      const owner = client.vms.get(vmId)
      if (owner === undefined) return disposed({ sidecarId, vmId })
      const questions = permission === "client" ? RpcClients.makeQuestions() : undefined
      const policy = permission === "client" ? questions!.policy : permission
      return scoped(owner.vm.openSession({ ...options, permission: policy }), (session, scope) =>
        RpcClients.keepSession(client, {
          session,
          vm: owner.vm,
          questions,
          turns: new Map(),
          close: Effect.andThen(session.close, Scope.close(scope, Exit.void))
        })
      )
    })

  return {
    Describe: () => Effect.map(sidecar.describe, (info) => (seesAll() ? info : view(info, client))),
    Events: () => (client.role === "operator" ? sidecar.events : own(sidecar.events, clients, client)),
    Dispose: () =>
      Effect.suspend(() => {
        if (client.role === "operator" || isAlone()) return Effect.andThen(sidecar.dispose, leave)
        return leave
      }),
    Abandon: ({ key }: { readonly key: string }) => RpcClients.abandon(client, named(key)),

    "Vm.Open": ({ key, ...options }: Vm.Options & { readonly key: string }) =>
      RpcClients.open(client, named(key), openVm(options), ({ id }) => RpcClients.closeVm(client, id)).pipe(
        Effect.map(({ address }) => ({ address }))
      ),
    "Vm.Close": ({ vmId }: OfVm) =>
      Effect.andThen(
        vm(vmId),
        Effect.forEach(Array.from(clients.reach(client)), (one) => RpcClients.closeVm(one, vmId), { discard: true })
      ),
    "Vm.Describe": ({ vmId }: OfVm) => Effect.flatMap(vm(vmId), (found) => found.describe),
    "Vm.Probe": ({ vmId, ...options }: OfVm & Probe.Options) =>
      Effect.suspend(() => {
        const found = client.vms.get(vmId)
        return found === undefined ? disposed({ sidecarId, vmId }) : found.vm.probe(options)
      }),

    "Session.Open": ({ key, ...payload }: Opened) =>
      RpcClients.open(client, named(key), openSession(payload), ({ id }) => RpcClients.closeSession(client, id)).pipe(
        Effect.flatMap((opened) => describeOpened(opened, true))
      ),
    "Session.Attach": ({ sessionId }: OfSession) =>
      Effect.flatMap(session(sessionId), (owned) => describeOpened(owned.session, client.sessions.has(sessionId))),
    "Session.List": () =>
      Effect.sync(() =>
        Array.from(clients.reach(client)).flatMap((one) =>
          Array.from(one.sessions.values()).map((owned) => owned.session.address)
        )
      ),
    "Session.Close": (payload: OfSession) => Effect.flatMap(session(payload.sessionId), ({ close }) => close),
    "Session.Describe": (payload: OfSession) => withSession(payload, (found) => found.describe),
    "Session.Prompt": (payload: Submitted) =>
      Stream.unwrap(
        Effect.uninterruptible(
          Effect.gen(function* () {
            const accepted = yield* submit(payload)
            yield* Effect.addFinalizer(() => (mayGoOn() ? Effect.void : interrupt(accepted)))
            return inPieces(accepted.updates)
          })
        )
      ),
    "Session.Run": ({ key, ...payload }: Submitted & { readonly key: string }) =>
      RpcClients.open(
        client,
        named(key),
        Effect.uninterruptible(
          Effect.flatMap(submit(payload), (accepted) =>
            Effect.onInterrupt(Effect.interruptible(accepted.outcome), () =>
              mayGoOn() ? Effect.void : interrupt(accepted)
            )
          )
        )
      ),
    "Session.Submit": (payload: Submitted) => Effect.map(submit(payload), ({ id }) => id),
    "Session.Cancel": (payload: OfSession & Cancelled) =>
      Effect.flatMap(session(payload.sessionId), (owned) => {
        const one = payload.turnId === undefined ? undefined : owned.turns.get(payload.turnId)
        return payload.by === "interruption" && one !== undefined
          ? Effect.andThen(
              interrupt(one),
              Effect.map(one.outcome, (outcome): Session.CancelResult => ({ _tag: "Settled", turnId: one.id, outcome }))
            )
          : owned.session.cancel(payload.turnId)
      }),
    "Session.Updates": ({ from, sessionId }: OfSession & { readonly from?: number | undefined }) =>
      Stream.unwrap(
        Effect.map(session(sessionId), (owned) =>
          inPieces(from === undefined ? owned.session.updates : owned.session.updatesFrom(from))
        )
      ),
    "Session.PendingPermissions": (payload: OfSession) => withSession(payload, (found) => found.pendingPermissions),
    "Session.Answer": (
      payload: OfSession & { readonly permissionId: string; readonly decision: Permission.Decision }
    ) => withSession(payload, (found) => found.answer(payload.permissionId, payload.decision)),
    "Session.Questions": ({ sessionId }: OfSession) =>
      Stream.unwrap(
        Effect.flatMap(session(sessionId), ({ questions }) =>
          questions === undefined ? Effect.succeed(Stream.empty) : Effect.map(questions.listen, Stream.fromQueue)
        )
      ),
    "Session.Decide": (payload: OfSession & { readonly key: string; readonly decision: Permission.Decision | null }) =>
      Effect.map(session(payload.sessionId), ({ questions }) => void questions?.decide(payload.key, payload.decision)),
    "Session.SetMode": (payload: OfSession & { readonly modeId: string }) =>
      withSession(payload, (found) => found.setMode(payload.modeId)),
    "Session.SetConfigOption": (payload: OfSession & { readonly configId: string; readonly value: string | boolean }) =>
      withSession(payload, (found) => found.setConfigOption(payload.configId, payload.value)),
    "Session.ConfigOptions": (payload: OfSession) => withSession(payload, (found) => found.configOptions),

    "Turn.Outcome": (payload: OfTurn) => Effect.flatMap(turn(payload), ({ outcome }) => outcome),
    "Turn.Dispatched": (payload: OfTurn) => Effect.flatMap(turn(payload), ({ dispatched }) => dispatched),
    "Turn.Updates": (payload: OfTurn) => Stream.unwrap(Effect.map(turn(payload), ({ updates }) => inPieces(updates)))
  }
}

type OfVm = { readonly vmId: Address.VmId }
type OfSession = { readonly sessionId: Address.SessionId }
type OfTurn = OfSession & { readonly turnId: Address.TurnId }
type Cancelled = {
  readonly turnId?: Address.TurnId | undefined
  readonly by?: "caller" | "interruption" | undefined
}
type Submitted = OfSession & {
  readonly prompt: Session.Prompt
  readonly options?: Session.SubmitOptions | undefined
  readonly trace?: false | { readonly traceId: string; readonly spanId: string; readonly sampled: boolean } | undefined
}
type Opened = OfVm & { readonly key: string } & Omit<Vm.SessionOptions, "permission" | "agent"> & {
    readonly agent: AgentProfile.AgentProfile
    readonly permission?: "allow" | "reject" | "ask" | "client" | undefined
  }

const disposed = (address: Address.Address) => Effect.fail(new SidecarError.Disposed({ address }))

const describeOpened = (session: Session.Session, isOwn: boolean): Effect.Effect<SidecarRpc.SessionOpened> =>
  Effect.map(session.describe, (info) => ({
    address: session.address,
    agentSessionId: session.agentSessionId,
    profile: isOwn ? session.profile : { ...session.profile, env: {} },
    pid: session.pid ?? null,
    hostId: session.hostId,
    initialize: session.initialize,
    modes: session.modes,
    info
  }))

/** A sidecar as a client sees it that shares it with others. */
const view = (info: Sidecar.SidecarInfo, client: RpcClients.Client): Sidecar.SidecarInfo => {
  const vms = info.vms.filter((vm) => client.vms.has(vm.vmId))
  const own = new Set(vms.flatMap((vm) => vm.sessions.map((session) => session.sessionId)))
  return {
    ...info,
    activeVmCount: vms.length,
    activePrompts: vms.reduce((sum, vm) => sum + vm.activePrompts, 0),
    vms,
    hosts: info.hosts.flatMap((host) => {
      const sessions = host.sessions.filter((id) => own.has(id))
      return sessions.length === 0 ? [] : [{ ...host, sessions, leases: sessions.length }]
    }),
    heldBack: []
  }
}

const ofSidecar: ReadonlySet<SidecarEvent.SidecarEvent["kind"]> = new Set(["limit_warning", "disposing", "disposed"])

/** The events that concern a client; their numbers have gaps only where it was too slow. */
const own = (
  events: Stream.Stream<SidecarEvent.SidecarEvent>,
  clients: RpcClients.Clients,
  client: RpcClients.Client
): Stream.Stream<SidecarEvent.SidecarEvent> => {
  const isOwn = ({ address: { vmId }, kind }: SidecarEvent.SidecarEvent): boolean => {
    const owner = vmId === undefined ? undefined : clients.owners.get(vmId)
    if (owner !== undefined) return owner === client.key
    // What belongs to no client, such as an agent's process.
    return clients.all.size === 1 || (vmId === undefined && ofSidecar.has(kind))
  }
  return Stream.suspend(() => {
    let skipped = 0
    return Stream.filterMap(events, (event) =>
      isOwn(event) ? Result.succeed({ ...event, number: event.number - skipped }) : Result.fail(skipped++)
    )
  })
}
