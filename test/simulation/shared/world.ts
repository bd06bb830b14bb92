// A sidecar whose sessions share processes, and what is seen of it. What is known for sure is checked as it is seen.
import {
  AgentProfile,
  type Probe,
  type Session,
  Sidecar,
  type SidecarEvent,
  SidecarLimits,
  type TurnOutcome,
  type Vm
} from "../../../src/index.ts"
import { AcpError } from "../../../src/acp/index.ts"
import type * as AgentLauncher from "../../../src/AgentLauncher.ts"
import { ScriptedAgent, Simulation, type VirtualClock } from "../../../src/testing/index.ts"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as WebCrypto from "effect/crypto/WebCrypto"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { ensure } from "../world.ts"
import {
  type Behaviour,
  type Conversation,
  expected,
  grace,
  type Process,
  type ProcessPlan,
  readPrompt,
  scriptOf,
  startTimeout
} from "./agents.ts"
import type { Command, Group, OpenOptions } from "./commands.ts"

export const limits = {
  maxSessionsPerVm: 6,
  maxHosts: 4,
  maxLineBytes: 4096,
  maxNoiseBeforeInitialize: 5,
  earlyUpdatesPerSession: 4,
  earlyUpdatesPerAgent: 8,
  earlyUpdateBytes: 2000,
  earlyUpdateTimeout: 300,
  maxTombstones: 4,
  tombstoneTimeout: 2000,
  maxIdleOutputBytes: 4000,
  maxBrokenFrames: 2,
  cancelGrace: grace,
  closeTimeout: 100,
  startTimeout,
  hostIdleTime: 300,
  hostExitTimeout: 600,
  killGrace: 100,
  permissionTimeout: 300
} as const
/** A close cancels the turns and then tells the agent. */
export const closeBound = grace + limits.closeTimeout
/** What may be added for a process that does not end. */
export const killBound = limits.killGrace + 5000

/** Sessions of one process, at most. */
export const rooms: Readonly<Record<Group, number>> = { vm: 2, all: 3, own: 1 }

const profileOf = (group: Group): AgentProfile.AgentProfile =>
  AgentProfile.make({
    name: group,
    command: ["scripted-agent"],
    share:
      group === "own"
        ? false
        : group === "vm"
          ? { scope: "vm", maxSessions: rooms.vm, whenFull: "another" }
          : { scope: "sidecar", maxSessions: rooms.all, whenFull: "refuse" }
  })
const profiles: Readonly<Record<Group, AgentProfile.AgentProfile>> = {
  vm: profileOf("vm"),
  all: profileOf("all"),
  own: profileOf("own")
}

export interface TurnView {
  readonly id: string
  startedAt: number | undefined
  outcome: TurnOutcome.TurnOutcome | undefined
  /** Somebody did something that may change its end. */
  isDisturbed: boolean
}

/** An opening and the session that came of it. */
export interface SessionView extends Conversation {
  readonly vm: VmView
  readonly group: Group
  /** Those with whom it may share: of the same launch identity. */
  readonly identity: string
  readonly options: OpenOptions
  /** It is not to be kept: only asked what its agent offers. */
  readonly isProbe: boolean
  /** The number in its folder's name. */
  cwd: number
  /** When it began, and since when it holds nothing. */
  readonly beganAt: number
  goneAt: number | undefined
  state: "opening" | "open" | "failed"
  session: Session.Session | undefined
  readonly from: SessionView | undefined
  /** It was asked to end, so it may in any way. */
  isOver: boolean
  /** Its agent was made to flood it, or not to end a turn of it: it may be cut off, or its process be stopped. */
  isHarmful: boolean
  hasEnded: boolean
  endReason: string | undefined
  readonly turns: Map<string, TurnView>
  readonly handles: Map<string, Session.Turn>
  /** By mark. */
  readonly behaviours: Map<string, Behaviour>
  readonly turnOf: Map<string, string>
  readonly saidIn: Map<string, string>
  /** The place of the last text that came, and how many came. */
  last: number
  heard: number
  /** Texts of it may still be on their way, although it has ended. */
  hasLate: boolean
  /** Something that was said in it was too long, or came before it was known and found no room. */
  hasLost: boolean
  /** Callers who await turns of it, and whose going away would cancel these. */
  awaited: number
  /** Commands at work that may change how its turns end. */
  disturbances: number
  next: number
}

export interface VmView {
  readonly vm: Vm.Vm
  readonly index: number
  isOver: boolean
}

interface Call {
  readonly what: string
  readonly until: number
  /** A process that does not end may hold it up. */
  readonly waitsForEnd: boolean
}

export interface World {
  readonly sidecar: Sidecar.Sidecar["Service"]
  readonly clock: VirtualClock.VirtualClock
  readonly trace: Array<string>
  /** The scope of callers, which closes after the sidecar's. */
  readonly callers: Scope.Scope
  readonly registry: Map<string, unknown>
  readonly processes: Array<Process>
  readonly vms: Array<VmView>
  readonly sessions: Array<SessionView>
  readonly calls: Set<Call>
  readonly count: (what: string) => void
  /** Of the sidecar, in order; only when they are watched. */
  readonly events: Array<SidecarEvent.SidecarEvent> | undefined
  /** Since when a host has had nobody, as far as was seen. */
  readonly idle: Map<string, number>
  /** Since when probes have leases and no callers, as far as was seen. */
  probesLeftAt: number | undefined
  /** Counts what happens, to tell before from after. */
  moment: number
  marks: number
  /** Callers that are going away just now. */
  leaving: number
  /** Processes may end now. */
  lets: boolean
  /** What was found where it can't be thrown. */
  violation: string | undefined
  closingSince: number | undefined
  readonly closedAt: () => number | undefined
}

const violate = (world: World, condition: boolean, message: string): void => {
  if (!condition) world.violation ??= message
}

/** The same bytes each time, so that names are the same in a replay. */
const crypto = {
  getRandomValues: <A extends ArrayBufferView>(array: A): A => {
    new Uint8Array(array.buffer, array.byteOffset, array.byteLength).fill(7)
    return array
  },
  randomUUID: () => "00000000-0000-4000-8000-000000000007"
}

/** A sidecar with two Vms, in the current scope. With `open`, so many sessions are open in one process of the first. */
export const make = (
  count: World["count"],
  options: { readonly open: number; readonly watch: boolean }
): Effect.Effect<World, unknown, Scope.Scope> =>
  Effect.gen(function* () {
    const { clock, scheduler, trace } = yield* Simulation.here
    const callers = yield* Scope.make()
    let closedAt: number | undefined
    let commanded = 0
    yield* Effect.addFinalizer(() =>
      Effect.suspend(() => {
        closedAt = clock.currentTimeMillisUnsafe()
        scheduler.choicePoints?.splice(commanded)
        violate(world, !world.processes.some(({ isLive }) => isLive), "the end is told and a process is left")
        // Whoever watches has to be told of the end.
        return Effect.andThen(options.watch ? Simulation.settle : Effect.void, Scope.close(callers, Exit.void))
      })
    )
    const registry = new Map<string, never>()
    const world: World = {
      sidecar: undefined as never,
      clock,
      trace,
      callers,
      registry,
      processes: [],
      vms: [],
      sessions: [],
      calls: new Set(),
      count,
      events: options.watch ? [] : undefined,
      idle: new Map(),
      probesLeftAt: undefined,
      moment: 0,
      marks: 0,
      leaving: 0,
      lets: false,
      violation: undefined,
      closingSince: undefined,
      closedAt: () => closedAt
    }
    const context = yield* Layer.build(
      Layer.provide(
        Sidecar.layerTest((launch) => launchProcess(world, launch)),
        SidecarLimits.layer(limits)
      )
    ).pipe(
      Effect.provideService(Metric.MetricRegistry, registry),
      Effect.provideService(WebCrypto.WebCrypto, crypto as never)
    )
    Object.assign(world, { sidecar: Context.get(context, Sidecar.Sidecar) })
    const { events } = world
    if (events !== undefined) {
      yield* world.sidecar.events.pipe(
        Stream.runForEach((event) => Effect.sync(() => events.push(event))),
        Effect.forkIn(callers, { startImmediately: true })
      )
    }
    for (const index of [0, 1]) {
      const vm = yield* Scope.provide(world.sidecar.openVm({ root: `/work/vm${index}` }), callers)
      world.vms.push({ vm, index, isOver: false })
    }
    const process: ProcessPlan = { start: "good", end: "good", canClose: true, close: "good" }
    for (let index = 0; index < options.open; index++) {
      yield* openSession(world, { vm: 0, group: "vm", process, answer: "good" }, callers)
    }
    yield* Simulation.settle
    // Where to try each single choice: in what the commands do. `Dispose` is one of them, so the end needs no more.
    scheduler.choicePoints?.splice(0)
    yield* Effect.addFinalizer(() =>
      Effect.suspend(() => {
        commanded = scheduler.choicePoints?.length ?? 0
        observe(world)
        for (const view of world.sessions) view.isOver = true
        for (const vm of world.vms) vm.isOver = true
        world.lets = true
        for (const { mayEnd } of world.processes) Deferred.doneUnsafe(mayEnd, Exit.void)
        return Effect.andThen(
          Simulation.settle,
          Effect.sync(() => {
            world.closingSince = clock.currentTimeMillisUnsafe()
          })
        )
      })
    )
    return world
  })

// ---- Processes -------------------------------------------------------------------------------------------------------

const launchProcess = (world: World, launch: AgentLauncher.Launch) =>
  Effect.gen(function* () {
    const identity = identityOf(launch.env["GROUP"] as Group, launch.cwd, launch.env["OPENING"])
    const wanting = world.sessions.filter((view) => view.identity === identity && isAsking(view))
    const [first] = wanting
    const plan: ProcessPlan = wanting.at(-1)?.options.process ?? {
      start: "good",
      end: "good",
      canClose: true,
      close: "good"
    }
    violate(world, first !== undefined, "a process was started that nobody wants")
    const process: Process = {
      number: world.processes.length + 1,
      identity,
      plan,
      isLive: true,
      agent: undefined,
      endingAt: undefined,
      goneAt: undefined,
      hasCrashed: false,
      mayEnd: Deferred.makeUnsafe(),
      ids: new Map(),
      closedIds: new Set(),
      given: 0,
      ghosts: 0,
      asks: 0,
      earlyAsks: new Map()
    }
    if (world.lets) Deferred.doneUnsafe(process.mayEnd, Exit.void)
    world.count(`start: ${plan.start}`)
    world.trace.push(`process ${process.number} of ${identity} starts`)
    mayStart(world, process)
    yield* Effect.acquireRelease(
      Effect.sync(() => world.processes.push(process)),
      () =>
        Effect.sync(() => {
          process.isLive = false
          process.goneAt = ++world.moment
          world.trace.push(`process ${process.number} is gone`)
        })
    )
    if (plan.start === "slowSpawn") yield* Effect.sleep(30)
    if (plan.start === "failSpawn") {
      return yield* new AcpError.SpawnError({
        code: "ENOENT",
        command: "scripted-agent",
        cwd: launch.cwd,
        subject: "command"
      })
    }
    const agent = yield* ScriptedAgent.make(
      scriptOf(
        {
          conversationOf: (cwd) => world.sessions[Number(/o(\d+)$/.exec(cwd)![1]) - 1]!,
          crash: (dying) => crash(world, dying),
          ending: (ended) => {
            ended.endingAt ??= ++world.moment
          },
          openIds: (of) =>
            world.sessions
              .filter((view) => view.process === of && view.state === "open" && !view.isOver && !view.hasEnded)
              .map((view) => view.agentSessionId!),
          isWanted: (of, id) =>
            world.sessions.some(
              (view) => view.identity === of.identity && view.state === "opening" && view.from?.agentSessionId === id
            ),
          closing: (of, id) => {
            const view = of.ids.get(id) as SessionView | undefined
            world.trace.push(`process ${of.number} is told to close ${id}`)
            of.closedIds.add(id)
            if (view === undefined) return
            violate(
              world,
              view.isOver || view.state !== "open" || view.hasEnded || view.isHarmful,
              "A5: a session was closed at its agent that nobody wanted to end"
            )
          }
        },
        process
      )
    )
    process.agent = agent
    return agent.transport
  })

/** It has not ended, or it is a probe that does so behind its caller. */
const isAsking = (view: SessionView): boolean => view.state === "opening" || (view.isProbe && view.goneAt === undefined)

/** H2: never two for one identity, but where those that there are are full; and never beside one that is ending. */
const mayStart = (world: World, process: Process): void => {
  const all = world.processes.filter(({ isLive }) => isLive)
  violate(world, all.length < limits.maxHosts, "more processes than allowed")
  const same = all.filter(({ identity }) => identity === process.identity)
  if (same.length === 0) return
  violate(world, !process.identity.startsWith("all"), "H2: two processes of one identity, which allows no other")
  // Those who may have asked for it, and how many may have been there since the first of these asked.
  const asking = world.sessions.filter(
    (view) =>
      view.identity === process.identity && isAsking(view) && (view.process === undefined || !view.process.isLive)
  )
  const since = Math.min(...asking.map((view) => view.beganAt))
  const claims = world.sessions.filter(
    (view) => !view.isProbe && view.identity === process.identity && (view.goneAt === undefined || view.goneAt >= since)
  )
  violate(
    world,
    same.length * rooms.vm < claims.length,
    `H2: a process was started although the others have room: ${same.length} for ${claims.length}`
  )
  for (const other of same) {
    violate(
      world,
      // A death that was not heard of yet makes no room: the dead one is full, and another is allowed.
      other.endingAt === undefined || other.endingAt > since || other.hasCrashed,
      "H2: a process was started beside one that is ending"
    )
  }
}

export const crash = (world: World, process: Process): Effect.Effect<void> =>
  Effect.suspend(() => {
    observe(world)
    process.hasCrashed = true
    process.endingAt ??= ++world.moment
    return process.agent!.crash({ signal: "SIGKILL" })
  })

// ---- Sessions --------------------------------------------------------------------------------------------------------

const identityOf = (group: Group, root: string, opening: string | undefined): string =>
  group === "own" ? `own ${opening}` : group === "vm" ? `vm ${root}` : "all"

/** An opening that begins now, and is known from then on. */
const begin = (world: World, options: OpenOptions, isProbe: boolean): SessionView => {
  observe(world)
  world.idle.clear()
  const vm = world.vms[options.vm % world.vms.length]!
  const { group } = options
  const number = world.sessions.length + 1
  const identity = identityOf(group, vm.vm.root, `${number}`)
  const from = options.from === undefined ? undefined : former(world, identity, options.from.session)
  const view: SessionView = {
    number,
    vm,
    group,
    identity,
    options,
    isProbe,
    cwd: number,
    answer: options.answer,
    beganAt: ++world.moment,
    goneAt: undefined,
    state: "opening",
    session: undefined,
    from,
    process: undefined,
    agentSessionId: undefined,
    isAnswered: false,
    said: 0,
    saidEarly: 0,
    isOver: vm.isOver,
    isHarmful: false,
    hasEnded: false,
    endReason: undefined,
    turns: new Map(),
    handles: new Map(),
    behaviours: new Map(),
    turnOf: new Map(),
    saidIn: new Map(),
    last: 0,
    heard: 0,
    hasLate: false,
    hasLost: false,
    awaited: 0,
    disturbances: 0,
    next: 1
  }
  world.sessions.push(view)
  return view
}

/** Opens a session, in the given scope. */
export const openSession = (
  world: World,
  options: OpenOptions,
  scope: Scope.Scope,
  refused: (view: SessionView, error: Vm.OpenSessionError) => void = () => {}
): Effect.Effect<SessionView, Vm.OpenSessionError> =>
  Effect.uninterruptibleMask((restore) => {
    const view = begin(world, options, false)
    const { from, group, number, vm } = view
    const opening = vm.vm.openSession({
      agent: profiles[group],
      cwd: `${vm.vm.root}/o${number}`,
      env: { GROUP: group, OPENING: `${number}` },
      sessionEnv: ["OPENING"],
      permission: "allow",
      ...(from === undefined || options.from === undefined
        ? {}
        : { from: { agentSessionId: from.agentSessionId!, method: options.from.method } })
    })
    return Effect.matchCauseEffect(Effect.provideService(restore(opening), Scope.Scope, scope), {
      onSuccess: (session) =>
        Effect.sync(() => {
          opened(world, view, session)
          return view
        }),
      onFailure: (cause) =>
        Effect.suspend(() => {
          // Its caller may have gone in the moment that it was opened.
          const session = listed(world, view)
          if (session === undefined) failed(world, view)
          else opened(world, view, session)
          const error = Cause.findErrorOption(cause)
          if (error._tag === "Some") refused(view, error.value)
          return Effect.failCause(cause)
        })
    })
  })

/** Asks what an agent offers. Those of one folder that do so together are one. */
export const probe = (
  world: World,
  options: Extract<Command, { readonly _tag: "Probe" }>,
  refused: (view: SessionView, error: Probe.ProbeError) => void
): Effect.Effect<Probe.Findings, Probe.ProbeError> =>
  Effect.uninterruptibleMask((restore) => {
    const view = begin(world, options, true)
    const { group, number, vm } = view
    const other = world.sessions.find(
      ({ isProbe, state, ...rest }) => isProbe && state === "opening" && rest.vm === vm && rest.group === group
    )
    if (group !== "own" && other !== undefined) view.cwd = other.cwd
    const cwd = `${vm.vm.root}/o${view.cwd}`
    const asking = vm.vm.probe({
      agent: profiles[group],
      cwd,
      env: { GROUP: group, OPENING: `${number}` },
      sessionEnv: ["OPENING"],
      want: options.want === "nothing" ? [] : [options.want],
      commandsTimeout: 50,
      timeout: options.timeout,
      refresh: true
    })
    return Effect.onExit(restore(asking), (exit) =>
      Effect.sync(() => {
        view.state = "failed"
        world.trace.push(`o${number}, a probe, has its end`)
        const error = Exit.findErrorOption(exit)
        if (error._tag === "Some") refused(view, error.value)
      })
    )
  })

/** One that its agent may go on with. */
const former = (world: World, identity: string, index: number): SessionView | undefined => {
  const all = world.sessions.filter(
    (view) =>
      view.identity === identity &&
      view.hasEnded &&
      view.agentSessionId !== undefined &&
      // Not if an agent took the id for another by now.
      world.processes.every((process) => {
        const owner =
          process.isLive && process.identity === identity ? process.ids.get(view.agentSessionId!) : undefined
        return owner === undefined || owner === view
      })
  )
  return all[index % all.length]
}

const listed = (world: World, view: SessionView): Session.Session | undefined => {
  const { sessions } = Effect.runSync(view.vm.vm.describe)
  const info = sessions.find(({ cwd }) => cwd === `${view.vm.vm.root}/o${view.number}`)
  if (info === undefined) return undefined
  world.count("opened although its caller had gone")
  return Effect.runSync(view.vm.vm.session(info.sessionId))
}

const opened = (world: World, view: SessionView, session: Session.Session): void => {
  view.state = "open"
  view.session = session
  world.moment++
  world.trace.push(`o${view.number} is open on ${session.hostId}`)
  violate(world, session.agentSessionId === view.agentSessionId, "W3: a session has another's id")
}

const failed = (world: World, view: SessionView): void => {
  view.state = "failed"
  view.goneAt = ++world.moment
  world.trace.push(`o${view.number} failed`)
}

/** An open session, or with an index past the others an ended one. */
export const pick = (world: World, index: number): SessionView | undefined => {
  const all = world.sessions.filter((view) => view.session !== undefined)
  const open = all.filter((view) => !view.hasEnded)
  const among = open.length === 0 ? all : open
  return among[index % among.length]
}

/** Runs a call that must return within so many milliseconds of the clock. */
export const within = <A, E, R>(
  world: World,
  what: string,
  millis: number,
  waitsForEnd: boolean,
  call: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  Effect.acquireUseRelease(
    Effect.sync((): Call => {
      const entry = { what, until: world.clock.currentTimeMillisUnsafe() + millis, waitsForEnd }
      world.calls.add(entry)
      return entry
    }),
    () => call,
    (entry) => Effect.sync(() => world.calls.delete(entry))
  )

/** Whatever becomes of its unfinished turns from now on. */
export const disturb = (world: World, view: SessionView): void => {
  observe(world)
  for (const turn of view.turns.values()) if (turn.outcome === undefined) turn.isDisturbed = true
}

/** While it is at work, and for the turns that are unfinished then, anything may come of the session's turns. */
export const disturbing = <A, E, R>(
  world: World,
  view: SessionView,
  effect: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> => {
  const mark = (by: number) =>
    Effect.sync(() => {
      disturb(world, view)
      view.disturbances += by
    })
  return Effect.acquireUseRelease(
    mark(1),
    () => effect,
    () => mark(-1)
  )
}

// ---- Looking ---------------------------------------------------------------------------------------------------------

/** Looks at all that is new, and throws when some of it is wrong whatever else happened. */
export const observe = (world: World): void => {
  for (const view of world.sessions) if (view.session !== undefined && view.goneAt === undefined) look(world, view)
  for (const process of world.processes) readAnswers(world, process)
  if (world.violation !== undefined) throw new Error(world.violation)
}

const look = (world: World, view: SessionView): void => {
  const session = view.session!
  const { events } = Effect.runSync(session.describe)
  if (view.next <= events) {
    const isLast = (event: SidecarEvent.SessionEvent) => "number" in event && event.number === events
    const all = Effect.runSync(Stream.runCollect(Stream.takeUntil(session.updatesFrom(view.next), isLast)))
    for (const event of all) {
      ensure(event._tag !== "Lagged" && event.number === view.next, `event ${view.next} is gone`)
      view.next++
      onEvent(world, view, event)
    }
  }
  if (!view.hasEnded) return
  const isListed = Effect.runSync(view.vm.vm.describe).sessions.some(({ sessionId }) => sessionId === session.id)
  if (!isListed) view.goneAt = ++world.moment
}

const readAnswers = (world: World, process: Process): void => {
  const { agent } = process
  if (agent === undefined || process.earlyAsks.size === 0) return
  while (Queue.sizeUnsafe(agent.received) > 0) {
    const taken = Queue.takeUnsafe(agent.received)
    if (taken === undefined || taken._tag === "Failure") return
    const frame = taken.value
    if (frame._tag !== "Response") continue
    const asked = process.earlyAsks.get(String(frame.id))
    if (asked === undefined) continue
    asked.answers++
    ensure(asked.answers === 1, "P1: a question that came early was answered twice")
    world.count(`early question: ${frame.error === undefined ? "answered" : "refused"}`)
  }
}

const turnOf = (view: SessionView, id: string, what: string): TurnView => {
  const turn = view.turns.get(id)
  ensure(turn !== undefined, `T1: ${what} of a turn that was never queued`)
  ensure(turn.outcome === undefined, `T1: ${what} of a turn that has ended`)
  return turn
}

const onEvent = (
  world: World,
  view: SessionView,
  event: Exclude<SidecarEvent.SessionEvent, SidecarEvent.Lagged>
): void => {
  ensure(!view.hasEnded, `an event after the session's end: ${event._tag}`)
  world.trace.push(`o${view.number} ${lineOf(event)}`)
  switch (event._tag) {
    case "TurnQueued":
      ensure(!view.turns.has(event.turnId), "T1: a turn was queued twice")
      view.turns.set(event.turnId, {
        id: event.turnId,
        startedAt: undefined,
        outcome: undefined,
        isDisturbed: view.isOver || view.disturbances > 0 || (world.leaving > 0 && view.awaited > 0)
      })
      return
    case "TurnStarted": {
      const turn = turnOf(view, event.turnId, "a start")
      ensure(turn.startedAt === undefined, "T1: a turn started twice")
      turn.startedAt = event.at
      return
    }
    case "TurnEnded": {
      const turn = turnOf(view, event.turnId, "an end")
      turn.outcome = event.outcome
      onOutcome(world, view, turn, event.outcome)
      return
    }
    case "Update":
      return onUpdate(world, view, event)
    case "SessionEnded": {
      for (const turn of view.turns.values()) {
        ensure(turn.outcome !== undefined, "T1: a session ended before one of its turns")
      }
      view.hasEnded = true
      view.endReason = event.reason
      world.count(`session ended: ${event.reason}`)
      onEnd(world, view, event.reason)
    }
  }
}

/** A5: a session ends when somebody ends it, with its process, or when its own agent misbehaves; never for others' sake. */
const onEnd = (world: World, view: SessionView, reason: string): void => {
  const process = view.process!
  if (view.isOver) return
  if (reason === "agent_exited") {
    ensure(process.hasCrashed, "H3: a session was told that its process died, which it did not")
    return
  }
  ensure(reason === "retired" || reason === "quarantined", `a session ended that nobody ended: ${reason}`)
  ensure(view.isHarmful, `A5: a session was ${reason} that did no harm`)
  if (reason !== "retired") return
  const others = world.sessions.filter(
    (other) => other !== view && other.process === process && other.state === "open" && !other.hasEnded && !other.isOver
  )
  ensure(others.length === 0, "A5: a process was stopped that others use")
}

const lineOf = (event: SidecarEvent.SessionEvent): string => {
  switch (event._tag) {
    case "Update":
      return `Update ${textOf(event)} in ${event.turnId}`
    case "TurnEnded":
      return `TurnEnded ${event.turnId} ${event.outcome._tag} ${reasonOf(event.outcome)}`
    case "SessionEnded":
      return `SessionEnded ${event.reason}: ${event.detail}`
    default:
      return "turnId" in event ? `${event._tag} ${event.turnId}` : event._tag
  }
}

const textOf = ({ update }: SidecarEvent.Update): string =>
  update.sessionUpdate === "agent_message_chunk" && update.content.type === "text" ? update.content.text : ""

const onUpdate = (world: World, view: SessionView, event: SidecarEvent.Update): void => {
  const [, opening, process, place, what] = /^o(\d+)\.p(\d+)\.(\d+)\.(\w+)$/.exec(textOf(event)) ?? []
  ensure(what !== undefined, `T3: an update of nobody: ${textOf(event)}`)
  if (Number(opening) !== view.number) {
    const of = world.sessions[Number(opening) - 1]!
    // On its way when its session was opened again: the wire does not tell them apart.
    ensure(view.from?.agentSessionId === of.agentSessionId && of.hasLate, "T3: an update of another session")
    world.count("a late update met the session that goes on")
    return
  }
  ensure(Number(process) === view.process?.number, "T3: an update of another process")
  ensure(Number(place) > view.last, "W3: an update came twice or out of order")
  view.last = Number(place)
  view.heard++
  ensure(event.replay === true || what !== "replay", "what was replayed is not marked")
  if (!what.startsWith("m")) {
    ensure(event.turnId === null || what === "idle", `T3: what came outside of turns is in one: ${what}`)
    world.count(`heard: ${what}`)
    return
  }
  const where = event.turnId ?? event.afterTurn
  ensure(where !== null, "T3: an update of a turn is in none")
  if (event.turnId !== null) turnOf(view, event.turnId, "an update")
  const known = view.saidIn.get(what) ?? where
  ensure(known === where, "T3: the updates of one prompt are in two turns")
  view.saidIn.set(what, where)
}

export const reasonOf = (outcome: TurnOutcome.TurnOutcome): string => {
  switch (outcome._tag) {
    case "Completed":
      return outcome.stopReason
    case "Cancelled":
      return "cancelled"
    case "Failed":
      return outcome.error.reason._tag
  }
}

/** A turn that nobody disturbed ends as its agent was to bring it to, whatever the others on its process do. */
const onOutcome = (world: World, view: SessionView, turn: TurnView, outcome: TurnOutcome.TurnOutcome): void => {
  world.count(`turn: ${outcome._tag} ${reasonOf(outcome)}`)
  if (outcome._tag === "Cancelled") world.count(`escalation: ${outcome.escalation}`)
  if (turn.isDisturbed || view.disturbances > 0 || view.isOver || view.isHarmful || view.process!.hasCrashed) return
  const mark = Array.from(view.turnOf).find(([, id]) => id === turn.id)?.[0]
  if (mark === undefined) return
  const wanted = expected[view.behaviours.get(mark)!]
  const found = reasonOf(outcome)
  ensure(
    found === wanted,
    `A5: nobody touched a turn whose agent was to bring it to "${wanted}", and it ended with "${found}"`
  )
}

/** The mark of a prompt, once it is known which turn it is. */
export const accepted = (view: SessionView, text: string, turn: Session.Turn): void => {
  const { mark } = readPrompt(text)
  view.turnOf.set(mark, turn.id)
  view.handles.set(mark, turn)
}
