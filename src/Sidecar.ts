/**
 * The core: Vms, their sessions and agents, under one scope.
 *
 * @since 0.1.0
 */

import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as AcpError from "./acp/AcpError.ts"
import type * as AcpTransport from "./acp/AcpTransport.ts"
import * as Address from "./Address.ts"
import * as Admission from "./Admission.ts"
import * as AgentHosts from "./AgentHosts.ts"
import * as AgentLauncher from "./AgentLauncher.ts"
import * as Closing from "./internal/closing.ts"
import * as Observers from "./internal/observers.ts"
import * as Refusals from "./internal/refusals.ts"
import * as Tie from "./internal/tie.ts"
import { uuid } from "./internal/uuid.ts"
import * as Journal from "./Journal.ts"
import * as LimitUsage from "./LimitUsage.ts"
import * as Mailbox from "./Mailbox.ts"
import * as Probe from "./Probe.ts"
import * as SidecarError from "./SidecarError.ts"
import type * as SidecarEvent from "./SidecarEvent.ts"
import * as SidecarLimits from "./SidecarLimits.ts"
import * as Vm from "./Vm.ts"

/**
 * Why a Vm could not be opened.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type OpenVmError =
  | SidecarError.LimitExceeded
  | SidecarError.InvalidInput
  | SidecarError.Disposed
  | SidecarLimits.InvalidLimit

/**
 * Where a sidecar stands. It only moves forward.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type State = "ready" | "disposing" | "disposed"

/**
 * A snapshot of a sidecar: a plain value.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface SidecarInfo {
  readonly sidecarId: Address.SidecarId
  readonly state: State
  readonly activeVmCount: number
  /** Prompts that hold one of the sidecar's permits. */
  readonly activePrompts: number
  /** The limits in force, as {@link SidecarLimits.make} takes them: times in milliseconds or `"off"`. */
  readonly limits: SidecarLimits.Plain
  readonly vms: ReadonlyArray<Vm.VmInfo>
  /** The agent processes, also those that are starting, idle or ending. */
  readonly hosts: ReadonlyArray<AgentHosts.HostInfo>
  /** Launch identities of which no process is started for now, as they failed again and again. */
  readonly heldBack: ReadonlyArray<AgentHosts.HeldBack>
}

/**
 * Hosts agent sessions. All that it starts belongs to its scope: when the layer's scope closes, or `dispose` is called,
 * turns are cancelled, questions answered, agents ended with their whole process groups, in this order, and all of it is
 * bounded in time by the cancel grace and the kill grace.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class Sidecar extends Context.Service<
  Sidecar,
  {
    readonly id: Address.SidecarId
    readonly address: Address.Address
    readonly limits: SidecarLimits.SidecarLimits
    /** Opens a Vm, which ends with the current scope, with the sidecar, or with its own `close`, whichever is first. */
    readonly openVm: (options: Vm.Options) => Effect.Effect<Vm.Vm, OpenVmError, Scope.Scope>
    /** The sidecar, its Vms, their sessions and those' turns as they are now. */
    readonly describe: Effect.Effect<SidecarInfo>
    /**
     * What happens from now on, numbered without gaps, until the sidecar is disposed. A reader that is more than 1,024
     * events behind misses the oldest of them, which the numbers show; nobody else does.
     */
    readonly events: Stream.Stream<SidecarEvent.SidecarEvent>
    /**
     * Ends everything. It may be called any number of times; when a caller is interrupted it goes on, the state stays
     * `disposing`, and a later call waits for the rest.
     */
    readonly dispose: Effect.Effect<void>
  }
>()("acp-sidecar/Sidecar") {}

/**
 * The id of a sidecar that is made. It is `acp-sidecar-` and a new UUID unless this says otherwise.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export const Id: Context.Reference<Address.SidecarId | undefined> = Context.Reference<Address.SidecarId | undefined>(
  "acp-sidecar/Sidecar/Id",
  { defaultValue: () => undefined }
)

const make = Effect.gen(function* () {
  const limits = yield* SidecarLimits.SidecarLimits
  const metrics = yield* Observers.current
  // These and nothing else: the scope, above all, is to be that of whoever opens a Vm.
  const services = Context.pick(
    AgentLauncher.AgentLauncher,
    AgentLauncher.HostEnvironment
  )(yield* Effect.context<AgentLauncher.AgentLauncher>()).pipe(Context.merge(metrics))
  const journal = Option.getOrUndefined(yield* Effect.serviceOption(Journal.Journal))
  const clock = yield* Clock.Clock
  const owner = yield* Effect.scope
  const id = (yield* Id) ?? Address.SidecarId.make(`acp-sidecar-${yield* uuid}`)
  const address: Address.Address = { sidecarId: id }

  const log = Mailbox.make<SidecarEvent.SidecarEvent>({ capacity: 1024, maxBytes: Number.POSITIVE_INFINITY })
  // A reader of all events would wake for each turn, so warnings go their own way.
  const warnings = yield* Queue.sliding<SidecarEvent.SidecarEvent>(64)
  const emit: SidecarEvent.Emit = (event) => {
    const whole = { ...event, number: log.next, at: clock.currentTimeMillisUnsafe() }
    Mailbox.append(log, whole, 0)
    Mailbox.flush(log)
    if (event.kind === "limit_warning") Queue.offerUnsafe(warnings, whole)
  }
  const events = Stream.suspend(() =>
    Mailbox.stream(log, {
      from: log.next,
      select: (entries) => ({ emit: entries, isLast: false }),
      onLag: () => Effect.succeed([])
    })
  )
  yield* Stream.fromQueue(warnings).pipe(
    Stream.runForEach((event) => Effect.logWarning(`${Address.format(event.address)}: ${event.detail}`)),
    Effect.forkScoped({ startImmediately: true })
  )

  let state: State = "ready"
  let vmCount = 0
  let sessionCount = 0
  let turnCount = 0
  const vms = new Map<Address.VmId, Vm.Vm>()
  const usage = LimitUsage.make({ address, scope: "sidecar", limit: "maxVms", max: limits.maxVms, emit })
  const probes = Probe.makeRoom(
    LimitUsage.make({ address, scope: "sidecar", limit: "maxProbes", max: limits.maxProbes, emit })
  )
  const sidecarGate = Admission.make({
    address,
    scope: "sidecar",
    limit: "maxPromptsPerSidecar",
    max: limits.maxPromptsPerSidecar,
    reserved: SidecarLimits.reserved(limits.maxPromptsPerSidecar, limits.reservedInteractivePerSidecar),
    emit
  })

  // Closed last. What could not be killed was waited for when it was ended, and is not waited for again.
  const processes = yield* Scope.fork(owner, "parallel")
  // Before the root, so that it is closed after it: an app's handler that takes its time keeps no agent running.
  const supervisor = yield* Scope.fork(owner, "parallel")
  const root = yield* Scope.fork(owner)
  const close = yield* Closing.make(root, owner)
  for (const one of [usage, sidecarGate.usage, probes.usage])
    yield* Scope.provide(LimitUsage.measure(one, metrics), root)
  yield* Scope.addFinalizer(
    root,
    Effect.sync(() => {
      state = "disposed"
      emit({ kind: "disposed", address, detail: "all is given back" })
      Mailbox.close(log)
    })
  )
  // After its sessions have ended, but before it counts as disposed.
  const hostsScope = yield* Scope.fork(root)
  const hosts = yield* AgentHosts.make({ address, limits, emit, processes }).pipe(
    Scope.provide(hostsScope),
    Effect.provideContext(services)
  )
  const vmsScope = yield* Scope.fork(root, "parallel")
  const disposing = Effect.sync(() => {
    if (state !== "ready") return
    state = "disposing"
    emit({ kind: "disposing", address, detail: "no more work is taken" })
  })
  yield* Scope.addFinalizer(root, disposing)

  const openVm = (options: Vm.Options): Effect.Effect<Vm.Vm, OpenVmError, Scope.Scope> =>
    Effect.uninterruptible(
      Effect.gen(function* () {
        const caller = yield* Effect.scope
        if (state !== "ready") return yield* new SidecarError.Disposed({ address })
        yield* Vm.checkFolder(address, "root", options.root)
        const vmLimits = options.limits === undefined ? limits : yield* SidecarLimits.make(options.limits, limits)
        // Looked at and taken in one step, so that two openings never share the last place.
        if (LimitUsage.isFull(usage)) return yield* LimitUsage.refusal(usage)
        LimitUsage.take(usage)

        const vmId = Address.VmId.make(`vm-${++vmCount}`)
        const vmAddress: Address.Address = { ...address, vmId }
        const scope = yield* Scope.fork(vmsScope)
        const closeVm = yield* Closing.make(scope, vmsScope)
        const tie = yield* Tie.make(scope, closeVm)
        yield* Scope.addFinalizer(
          scope,
          Effect.sync(() => {
            LimitUsage.release(usage)
            if (vms.delete(vmId)) emit({ kind: "vm_closed", address: vmAddress, detail: "its sessions are gone" })
          })
        )
        const vm = yield* Vm.make(
          {
            address: vmAddress,
            limits: vmLimits,
            sidecarGate,
            hosts,
            probes,
            journal,
            emit,
            nextSessionId: () => Address.SessionId.make(`session-${++sessionCount}`),
            nextTurnId: () => Address.TurnId.make(`turn-${++turnCount}`),
            isDisposing: () => state !== "ready",
            supervisor,
            close: closeVm
          },
          options,
          scope
        )
        // It may have been disposed meanwhile; then what lists the Vm would never be told of its end.
        if (scope.state._tag === "Closed") {
          yield* closeVm
          return yield* new SidecarError.Disposed({ address })
        }
        vms.set(vmId, vm)
        yield* tie(caller)
        emit({ kind: "vm_opened", address: vmAddress, detail: `its folder is ${options.root}` })
        return vm
      }).pipe(Effect.tapError((error) => Effect.sync(() => Refusals.count(error, metrics))))
    ).pipe(Effect.provideContext(services))

  return Sidecar.of({
    id,
    address,
    limits,
    openVm,
    describe: Effect.suspend(() =>
      Effect.map(
        Effect.all([Effect.forEach(Array.from(vms.values()), (vm) => vm.describe), hosts.describe, hosts.heldBack]),
        ([infos, hostInfos, heldBack]): SidecarInfo => ({
          sidecarId: id,
          state,
          activeVmCount: usage.used,
          activePrompts: sidecarGate.usage.used,
          limits: SidecarLimits.plain(limits),
          vms: infos,
          hosts: hostInfos,
          heldBack
        })
      )
    ),
    events,
    dispose: Effect.andThen(disposing, close)
  })
})

/**
 * A sidecar whose agents are started by whatever {@link AgentLauncher.AgentLauncher} is provided. It is a constant, so a
 * program that provides it twice has one sidecar, as with any layer of Effect, whatever else each place provides to it.
 * `Layer.fresh` makes a second one.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerLauncher: Layer.Layer<Sidecar, never, AgentLauncher.AgentLauncher> = Layer.effect(Sidecar, make)

/**
 * A sidecar whose agents are child processes. Provide a platform, such as `NodeServices.layer`. It is a constant: see
 * {@link layerLauncher} for what this means to a program that wants two.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer: Layer.Layer<Sidecar, never, ChildProcessSpawner> = Layer.provide(
  layerLauncher,
  AgentLauncher.layerChildProcess
)

/**
 * A sidecar whose agents are what a function returns: in-memory agents for tests. Each call gives another sidecar. See
 * `TestSidecar` for a ready one.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerTest = (
  launch: (launch: AgentLauncher.Launch) => Effect.Effect<AcpTransport.AcpTransport, AcpError.SpawnError, Scope.Scope>
): Layer.Layer<Sidecar> => Layer.provide(Layer.effect(Sidecar, make), AgentLauncher.layer(launch))
