// The sidecar under test, and what is seen of it: each event of each session and each frame that an agent got is looked at
// once, as soon as the test looks, whatever its readers do.
import {
  type Permission,
  type Session,
  Sidecar,
  type SidecarEvent,
  type TurnOutcome,
  type Vm
} from "../../src/index.ts"
import { type AcpCodec } from "../../src/acp/index.ts"
import { Simulation, TestSidecar, type VirtualClock } from "../../src/testing/index.ts"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { type AgentSpec, type AgentView, expectedOf, grace, scriptOf } from "./agents.ts"

export const limits = {
  maxVms: 3,
  maxSessionsPerVm: 3,
  maxPromptsPerSidecar: 2,
  maxQueuedPromptsPerSession: 2,
  maxPendingPermissionsPerSession: 2,
  maxTurnOutputBytes: 6000,
  maxLineBytes: 4096,
  maxNoiseBeforeInitialize: 5,
  earlyUpdatesPerSession: 4,
  cancelGrace: grace,
  closeTimeout: 100,
  callTimeout: 250,
  startTimeout: 1000,
  admissionTimeout: 700,
  permissionTimeout: 300
} as const
/** Of the sidecar's permits, what the background lane can't have. */
export const reserved = 1
/** By Vm: the first has one permit, and the second keeps so few events that whoever does not read at once misses some. */
const vmLimits = [
  { maxPromptsPerVm: 1, reservedInteractivePerVm: 0 },
  { maxPromptsPerVm: 2, reservedInteractivePerVm: 1, mailboxCapacity: 6 },
  { maxPromptsPerVm: 2, reservedInteractivePerVm: 0 }
] as const
export const deadlines = { idle: 120, wall: 250 } as const
/** A close cancels the turns and then tells the agent. */
export const closeBound = grace + limits.closeTimeout

export interface TurnView {
  readonly id: string
  readonly queuedAt: number
  startedAt: number | undefined
  outcome: TurnOutcome.TurnOutcome | undefined
  /** Somebody did something that may change its end. */
  disturbed: boolean
}

export interface SessionView {
  readonly session: Session.Session
  readonly vm: VmView
  readonly agent: AgentView
  readonly turns: Map<string, TurnView>
  /** Its started turns in order: the nth belongs to the nth prompt that its agent got. */
  readonly started: Array<TurnView>
  readonly questions: Map<string, { readonly askedAt: number; answeredBy: string | undefined }>
  readonly handles: Array<Session.Turn>
  /** Where messages were that began after their turn, by mark. */
  readonly places: Map<string, string | null>
  /** The turn that each idempotency key stands for, where that is known. */
  readonly keys: Map<string, string>
  /** The next event to look at. */
  next: number
  /** Some events were gone before the test looked. */
  lagged: boolean
  ended: boolean
  /** Whether something was done to it after which its turns may end in any way. */
  over: boolean
  /** Its agent lost its voice, or answers what it was not asked, so that a turn ends before what it says in it. */
  confused: boolean
  /** Commands at work that may change how its turns end. */
  disturbances: number
}

export interface VmView {
  readonly vm: Vm.Vm
  /** Its permits, and how many of them the background lane can't have. */
  readonly max: number
  readonly reserved: number
  /** Whether it was asked to close, so that its sessions may end in any way. */
  over: boolean
  readonly sessions: Array<SessionView>
}

/** A call that must return within a time. */
interface Call {
  readonly what: string
  readonly until: number
}

export interface World {
  readonly sidecar: Sidecar.Sidecar["Service"]
  readonly test: TestSidecar.TestSidecar["Service"]
  readonly clock: VirtualClock.VirtualClock
  readonly trace: Array<string>
  /** The scope of callers, which closes after the sidecar's. */
  readonly callers: Scope.Scope
  readonly agents: Map<string, AgentView>
  readonly vms: Array<VmView>
  readonly sessions: Array<SessionView>
  readonly calls: Set<Call>
  readonly count: (what: string) => void
  marks: number
  closingSince: number | undefined
  readonly closedAt: () => number | undefined
  /** What the last look at the waiting sessions saw, see the check of fairness. */
  readonly waits: Map<
    SessionView,
    { readonly turns: string; readonly lane: string; readonly started: Map<SessionView, number> }
  >
}

export const ensure: (condition: boolean, message: string) => asserts condition = (condition, message) => {
  if (!condition) throw new Error(message)
}

/** A sidecar with two Vms, in the current scope. With `open`, so many sessions are open in the first. */
export const make = (count: World["count"], open: number): Effect.Effect<World, unknown, Scope.Scope> =>
  Effect.gen(function* () {
    const { clock, scheduler, trace } = yield* Simulation.here
    const callers = yield* Scope.make()
    let closedAt: number | undefined
    let commanded = 0
    yield* Effect.addFinalizer(() =>
      Effect.suspend(() => {
        closedAt = clock.currentTimeMillisUnsafe()
        scheduler.choicePoints?.splice(commanded)
        return Scope.close(callers, Exit.void)
      })
    )
    const agents = new Map<string, AgentView>()
    const layer = TestSidecar.layer({ script: (launch) => scriptOf(agents.get(launch.env.AGENT_NUMBER!)!), limits })
    const context = yield* Layer.build(layer)
    const world: World = {
      sidecar: Context.get(context, Sidecar.Sidecar),
      test: Context.get(context, TestSidecar.TestSidecar),
      clock,
      trace,
      callers,
      agents,
      vms: [],
      sessions: [],
      calls: new Set(),
      count,
      marks: 0,
      closingSince: undefined,
      closedAt: () => closedAt,
      waits: new Map()
    }
    const first = yield* openVm(world)
    yield* openVm(world)
    const specs = [
      [{ start: "good", canClose: true, close: "good" }, "ask"],
      [{ start: "good", canClose: false, close: "good" }, "reject"]
    ] as const
    for (const [spec, policy] of specs.slice(0, open)) yield* openSession(world, first, spec, policy)
    yield* Simulation.settle
    // Where to try each single choice: in what the commands do. `Dispose` is one of them, so the end needs no more.
    scheduler.choicePoints?.splice(0)
    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        observe(world)
        world.closingSince = clock.currentTimeMillisUnsafe()
        commanded = scheduler.choicePoints?.length ?? 0
        for (const view of world.sessions) view.over = true
      })
    )
    return world
  })

export const openVm = (world: World) =>
  Effect.suspend(() => {
    const limits = vmLimits[world.vms.length % vmLimits.length]!
    return world.sidecar.openVm({ root: "/work", limits }).pipe(
      Scope.provide(world.callers),
      Effect.map((vm) => {
        const view: VmView = {
          vm,
          max: limits.maxPromptsPerVm,
          reserved: limits.reservedInteractivePerVm,
          over: false,
          sessions: []
        }
        world.vms.push(view)
        return view
      })
    )
  })

/** An agent that is to be launched, and the variable by which its launch is known. */
const agentOf = (world: World, spec: AgentSpec): { readonly view: AgentView; readonly env: Record<string, string> } => {
  const number = `${world.agents.size + 1}`
  const view: AgentView = {
    spec,
    agent: undefined,
    prompts: [],
    others: 0,
    answers: new Map(),
    wire: [],
    paused: false
  }
  world.agents.set(number, view)
  return { view, env: { AGENT_NUMBER: number } }
}

/** Opens a session with such an agent, in the scope of callers unless another is given. */
export const openSession = (
  world: World,
  vm: VmView,
  spec: AgentSpec,
  permission: Permission.Policy,
  scope = world.callers
) =>
  Effect.suspend(() => {
    const { env, view: agent } = agentOf(world, spec)
    const authenticate = spec.start === "signIn" ? "key" : undefined
    return vm.vm.openSession({ agent: TestSidecar.profile, env, permission, authenticate }).pipe(
      Effect.map((session) => opened(world, vm, agent, session)),
      Scope.provide(scope)
    )
  })

const opened = (world: World, vm: VmView, agent: AgentView, session: Session.Session): SessionView => {
  const view: SessionView = {
    session,
    vm,
    agent,
    turns: new Map(),
    started: [],
    questions: new Map(),
    handles: [],
    places: new Map(),
    keys: new Map(),
    next: 1,
    lagged: false,
    ended: false,
    over: vm.over,
    confused: false,
    disturbances: 0
  }
  world.sessions.push(view)
  vm.sessions.push(view)
  return view
}

/** An open session, or with an index past the others an ended one. */
export const pick = (world: World, index: number): SessionView | undefined => {
  const open = world.sessions.filter((view) => !view.ended)
  const among = open.length === 0 ? world.sessions : open
  return among[index % among.length]
}

/** Runs a call that must return within so many milliseconds of the clock. */
export const within = <A, E, R>(
  world: World,
  what: string,
  millis: number,
  call: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> =>
  Effect.acquireUseRelease(
    Effect.sync((): Call => {
      const entry = { what, until: world.clock.currentTimeMillisUnsafe() + millis }
      world.calls.add(entry)
      return entry
    }),
    () => call,
    (entry) => Effect.sync(() => world.calls.delete(entry))
  )

/** While it is at work, and for the turns that are unfinished then, anything may come of the session's turns. */
export const disturbing = <A, E, R>(
  world: World,
  views: ReadonlyArray<SessionView>,
  effect: Effect.Effect<A, E, R>
): Effect.Effect<A, E, R> => {
  const mark = (by: number) =>
    Effect.sync(() => {
      observe(world)
      for (const view of views) {
        view.disturbances += by
        for (const turn of view.turns.values()) if (turn.outcome === undefined) turn.disturbed = true
      }
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
  for (const agent of world.agents.values()) readWire(agent)
  for (const view of world.sessions) readEvents(world, view)
}

const readWire = (view: AgentView): void => {
  const { agent } = view
  if (agent === undefined) return
  while (Queue.sizeUnsafe(agent.received) > 0) {
    const taken = Queue.takeUnsafe(agent.received)
    if (taken === undefined || taken._tag === "Failure") return
    const frame: AcpCodec.Frame = taken.value
    if (frame._tag !== "Response") {
      view.wire.push(frame.method)
      continue
    }
    const id = String(frame.id)
    const answers = (view.answers.get(id) ?? 0) + 1
    ensure(answers === 1, `P1: the agent's request ${id} was answered ${answers} times`)
    view.answers.set(id, answers)
  }
}

const readEvents = (world: World, view: SessionView): void => {
  const { events } = Effect.runSync(view.session.describe)
  if (view.next > events) return
  const all = Effect.runSync(
    Stream.runCollect(
      Stream.takeUntil(view.session.updatesFrom(view.next), (event) => "number" in event && event.number === events)
    )
  )
  for (const event of all) {
    if (event._tag === "Lagged") {
      ensure(event.from === view.next && event.to > event.from, "a lag that is none")
      view.lagged = true
      view.next = event.to
      world.count("the test itself lagged")
      continue
    }
    ensure(event.number === view.next, `event ${event.number} came where ${view.next} is next`)
    view.next++
    onEvent(world, view, event)
  }
}

/** As `ensure`, for what can't be known of a session some of whose events are gone. */
const sure = (view: SessionView, condition: boolean, message: string): void => ensure(condition || view.lagged, message)

const turnOf = (view: SessionView, id: string, what: string): TurnView | undefined => {
  const turn = view.turns.get(id)
  sure(view, turn !== undefined, `T1: ${what} of a turn that was never queued`)
  ensure(turn?.outcome === undefined, `T1: ${what} of a turn that has ended`)
  return turn
}

const lineOf = (event: SidecarEvent.SessionEvent): string => {
  switch (event._tag) {
    case "Update":
      return `Update in ${event.turnId}`
    case "TurnEnded":
      return `TurnEnded ${event.turnId} ${event.outcome._tag} ${reasonOf(event.outcome)}`
    case "PermissionAnswered":
      return `PermissionAnswered ${event.permissionId} ${event.answeredBy}`
    default:
      return "turnId" in event ? `${event._tag} ${event.turnId}` : event._tag
  }
}

const onEvent = (
  world: World,
  view: SessionView,
  event: Exclude<SidecarEvent.SessionEvent, SidecarEvent.Lagged>
): void => {
  ensure(!view.ended, `an event after the session's end: ${event._tag}`)
  world.trace.push(`${view.session.id} ${lineOf(event)}`)
  switch (event._tag) {
    case "TurnQueued": {
      ensure(!view.turns.has(event.turnId), "T1: a turn was queued twice")
      view.turns.set(event.turnId, {
        id: event.turnId,
        queuedAt: event.at,
        startedAt: undefined,
        outcome: undefined,
        disturbed: view.disturbances > 0
      })
      return
    }
    case "TurnStarted": {
      const turn = turnOf(view, event.turnId, "a start")
      if (turn === undefined) return
      ensure(turn.startedAt === undefined, "T1: a turn started twice")
      for (const other of view.started) sure(view, other.outcome !== undefined, "two turns of a session run at once")
      ensure(!view.started.some(isRetiring), "a turn started with an agent that is being stopped")
      turn.startedAt = event.at
      view.started.push(turn)
      return
    }
    case "TurnEnded": {
      const turn = turnOf(view, event.turnId, "an end")
      if (turn === undefined) return
      turn.outcome = event.outcome
      onOutcome(world, view, turn, event.outcome)
      return
    }
    case "Update": {
      if (event.turnId !== null) {
        const turn = turnOf(view, event.turnId, "an update")
        sure(view, turn?.startedAt !== undefined, "T1: an update of a turn that has not started")
        ensure(event.afterTurn === null, "an update both in and after a turn")
      }
      onUpdate(world, view, event)
      return
    }
    case "PermissionAsked": {
      ensure(!view.questions.has(event.permissionId), "P1: a question was asked twice")
      view.questions.set(event.permissionId, { askedAt: event.at, answeredBy: undefined })
      if (event.turnId !== null) turnOf(view, event.turnId, "a question")
      return
    }
    case "PermissionAnswered": {
      const question = view.questions.get(event.permissionId)
      sure(view, question !== undefined, "P1: an answer to no question")
      if (question === undefined) return
      ensure(question.answeredBy === undefined, "P1: a question was answered twice")
      question.answeredBy = event.answeredBy
      world.count(`answered by ${event.answeredBy}`)
      return
    }
    case "SessionEnded": {
      for (const turn of view.turns.values()) {
        sure(view, turn.outcome !== undefined, "T1: a session ended before one of its turns")
      }
      view.ended = true
      world.count(`session ended: ${event.reason}`)
    }
  }
}

/** The agent did not end the turn, so it is being stopped. */
const isRetiring = ({ outcome }: TurnView): boolean => {
  const escalation =
    outcome?._tag === "Cancelled"
      ? outcome.escalation
      : outcome?._tag === "Failed" && outcome.error.reason._tag === "TurnTimedOut"
        ? outcome.error.reason.escalation
        : "none"
  return escalation === "retired" || escalation === "session_close"
}

/** The turn of a mark: agents get prompts in the order in which turns start. */
const ownerOf = (view: SessionView, mark: string): TurnView | undefined =>
  view.started[view.agent.prompts.findIndex((prompt) => prompt.mark === mark)]

const onUpdate = (world: World, view: SessionView, event: SidecarEvent.Update): void => {
  const { update } = event
  const text =
    update.sessionUpdate === "agent_message_chunk" && update.content.type === "text" ? update.content.text : ""
  const [, mark, part] = /^(m\d+)\.(\w+)$/.exec(text) ?? []
  if (mark === undefined) return
  ensure(
    view.agent.prompts.some((prompt) => prompt.mark === mark),
    "T3: an update of another session"
  )
  if (view.lagged) return
  const owner = ownerOf(view, mark)
  ensure(owner !== undefined, "T3: an update of a turn that has not started")
  const where = event.turnId ?? event.afterTurn
  if (part === "known" && !view.confused) {
    world.count("late update of a known message")
    ensure(
      event.turnId === null && event.afterTurn === owner.id,
      "T3: a late update of a known message is in another turn"
    )
  } else if (part === "new") {
    world.count("update of a message that began after its turn")
    const place = view.places.get(mark) ?? where
    ensure(where === place, "T3: a message went from one turn to another")
    view.places.set(mark, place)
  } else if (part === "late" || view.confused) {
    // Without a name it may be taken for a later turn's, and for no earlier one's.
    if (part === "late")
      world.count(event.turnId === null ? "late update after its turn" : "late update in a later turn")
    const at = view.started.findIndex((turn) => turn.id === where)
    ensure(at >= view.started.indexOf(owner), "T3: a late update went back in time")
    ensure(event.turnId !== owner.id || part !== "late", "T3: a late update is in its turn")
  } else {
    ensure(event.turnId === owner.id, "T3: an update is not in its turn")
  }
}

const reasonOf = (outcome: TurnOutcome.TurnOutcome): string => {
  switch (outcome._tag) {
    case "Completed":
      return outcome.stopReason
    case "Cancelled":
      return "cancelled"
    case "Failed": {
      const { reason } = outcome.error
      return reason._tag === "TurnTimedOut" ? `${reason.deadline} deadline` : reason._tag
    }
  }
}

const onOutcome = (world: World, view: SessionView, turn: TurnView, outcome: TurnOutcome.TurnOutcome): void => {
  switch (outcome._tag) {
    case "Completed":
      world.count("completed")
      sure(view, turn.startedAt !== undefined, "completed without a start")
      break
    case "Cancelled":
      world.count(`cancelled by ${outcome.by}`)
      world.count(`escalation: ${outcome.escalation}`)
      sure(
        view,
        turn.startedAt !== undefined || (outcome.agentReported === null && outcome.escalation === "none"),
        "the agent reported on a turn that it never had"
      )
      break
    case "Failed":
      world.count(`failed: ${outcome.error.phase}, ${reasonOf(outcome)}`)
      sure(
        view,
        outcome.error.phase === "queued" || turn.startedAt !== undefined,
        "a turn failed while running, and it never ran"
      )
  }
  if (turn.disturbed || view.over || view.disturbances > 0 || view.lagged || turn.startedAt === undefined) return
  const prompt = view.agent.prompts[view.started.indexOf(turn)]
  if (prompt === undefined) return
  // The agent may end after the turn's start and before the prompt has left.
  if (outcome._tag === "Failed" && outcome.error.phase === "queued") return
  const expected = expectedOf(prompt.behaviour)
  const found = reasonOf(outcome)
  const fits =
    found === expected ||
    found === `${prompt.deadline} deadline` ||
    (expected === "retired" && found === "OutputExceeded") ||
    (expected === "crashAsking" && (found === "ProcessExited" || found === "end_turn")) ||
    (expected === "answered" && found === "end_turn")
  ensure(fits, `nobody touched a turn whose agent was to bring it to "${expected}", and it ended with "${found}"`)
}
