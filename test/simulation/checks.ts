// What must hold: at any moment, when nothing can run unless time moves on, and after the end.
import type { Sidecar, TurnOutcome } from "../../src/index.ts"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type { Model } from "./machine.ts"
import {
  closeBound,
  deadlines,
  ensure,
  limits,
  observe,
  reserved,
  type SessionView,
  type VmView,
  type World
} from "./world.ts"

const sidecarMax = limits.maxPromptsPerSidecar

type VmInfo = Sidecar.SidecarInfo["vms"][number]

/** The Vms that are listed, with what the test knows of each. */
const listed = (world: World, info: Sidecar.SidecarInfo): ReadonlyArray<readonly [VmInfo, VmView]> =>
  info.vms.flatMap((vm) => {
    const view = world.vms.find((candidate) => candidate.vm.id === vm.vmId)
    return view === undefined ? [] : [[vm, view] as const]
  })

interface Running {
  readonly all: number
  readonly background: number
}

/** Turns that run, by lane. */
const runningOf = (vms: Sidecar.SidecarInfo["vms"]): Running => {
  let all = 0
  let background = 0
  for (const { sessions } of vms) {
    for (const { turns } of sessions) {
      for (const { lane, phase } of turns) {
        if (phase === "queued") continue
        all++
        if (lane === "background") background++
      }
    }
  }
  return { all, background }
}

/** At any moment. */
export const always = (world: World, model: Model): void => {
  observe(world)
  const info = Effect.runSync(world.sidecar.describe)
  const within = (what: string, used: number, running: Running, max: number, kept: number): void => {
    ensure(used <= max, `A2: ${used} of ${max} permits of the ${what} are used`)
    ensure(running.background <= max - kept, `A3: background turns have a reserved permit of the ${what}`)
  }
  within("sidecar", info.activePrompts, runningOf(info.vms), sidecarMax, reserved)
  for (const [vm, { max, reserved: kept }] of listed(world, info)) {
    within("Vm", vm.activePrompts, runningOf([vm]), max, kept)
  }
  ensure(info.vms.length <= limits.maxVms && info.activeVmCount <= limits.maxVms, "more Vms than allowed")
  for (const vm of info.vms) {
    ensure(vm.sessions.length + vm.opening <= limits.maxSessionsPerVm, "more sessions than allowed")
    for (const session of vm.sessions) {
      const queued = session.turns.length - 1
      ensure(
        queued <= limits.maxQueuedPromptsPerSession || model.asked.has("replaced"),
        "more prompts wait than allowed"
      )
      ensure(
        session.pendingPermissions <= limits.maxPendingPermissionsPerSession,
        "more questions are open than allowed"
      )
    }
  }
  for (const view of world.sessions) {
    for (const { outcome } of view.turns.values()) {
      if (outcome?._tag === "Cancelled")
        ensure(isAsked(world, model, outcome.by), `cancelled by ${outcome.by}, which nobody asked for`)
    }
  }
}

const isAsked = (world: World, model: Model, by: TurnOutcome.CancelledBy): boolean =>
  model.asked.has(by) || (world.closingSince !== undefined && by === "dispose")

/** When nothing can run unless time moves on. */
export const settled = (world: World): void => {
  const now = world.clock.currentTimeMillisUnsafe()
  for (const { until, what } of world.calls) {
    ensure(now < until, `T2: ${what} takes too long: ${now - until} ms over`)
  }
  const info = Effect.runSync(world.sidecar.describe)
  const sidecar = { used: info.activePrompts, ...runningOf(info.vms) }
  ensure(
    sidecar.used === sidecar.all,
    `A2: ${sidecar.used} permits of the sidecar are used and ${sidecar.all} turns run`
  )
  for (const [vm, view] of listed(world, info)) waiting(vm, view, sidecar)
  for (const view of world.sessions) {
    deadlinesOf(view, now)
    wire(view)
  }
  fairness(world, info)
}

interface Use extends Running {
  readonly used: number
}

/** Of the sessions with turns but none that runs, one turn each waits for a permit: how many of each lane, as far as known. */
const heads = (vm: VmInfo) => {
  const found = { interactive: 0, background: 0, either: 0 }
  for (const { turns } of vm.sessions) {
    if (turns.length === 0 || turns.some(({ phase }) => phase !== "queued")) continue
    const lanes = new Set(turns.map(({ lane }) => lane))
    found[lanes.size === 1 ? turns[0]!.lane : "either"]++
  }
  return found
}

/**
 * No turn waits beside a free permit. A turn takes the Vm's permit first, so those that wait for the sidecar's hold one:
 * it must be possible to share them out so that each has a reason to wait.
 */
const waiting = (vm: VmInfo, { max, reserved: kept }: VmView, sidecar: Use): void => {
  const running = runningOf([vm])
  const { background, either, interactive } = heads(vm)
  const atSidecar = vm.activePrompts - running.all
  ensure(
    atSidecar >= 0 && atSidecar <= background + either + interactive,
    `A2: ${vm.activePrompts} permits of a Vm are used and ${running.all} turns run`
  )
  const isFull = vm.activePrompts >= max
  const sidecarIsFull = sidecar.used >= sidecarMax
  const sidecarHasNone = sidecarIsFull || sidecar.background >= sidecarMax - reserved
  for (let extra = 0; extra <= either; extra++) {
    const inLane = { interactive: interactive + extra, background: background + either - extra }
    for (let i = 0; i <= Math.min(inLane.interactive, atSidecar); i++) {
      const b = atSidecar - i
      if (b > inLane.background || running.background + b > max - kept) continue
      const hasNone = isFull || running.background + b >= max - kept
      const fits =
        (i === inLane.interactive || isFull) &&
        (b === inLane.background || hasNone) &&
        (i === 0 || sidecarIsFull) &&
        (b === 0 || sidecarHasNone)
      if (fits) return
    }
  }
  throw new Error("A3: a turn waits beside a free permit")
}

const deadlinesOf = (view: SessionView, now: number): void => {
  for (const turn of view.turns.values()) {
    if (turn.outcome !== undefined || view.lagged) continue
    if (turn.startedAt === undefined) {
      ensure(now - turn.queuedAt < limits.admissionTimeout, "a turn waits for longer than it may")
      continue
    }
    const prompt = view.agent.prompts[view.started.indexOf(turn)]
    if (prompt?.deadline === "wall") {
      ensure(now - turn.startedAt < deadlines.wall + limits.cancelGrace, "a turn runs past its deadline and its grace")
    }
  }
  if (view.lagged) return
  for (const question of view.questions.values()) {
    ensure(
      question.answeredBy !== undefined || now - question.askedAt < limits.permissionTimeout,
      "P1: a question is open for longer than it may"
    )
  }
}

/**
 * What the agent got: after each prompt at most two cancels, only for a turn that somebody wanted to end, and never before
 * its prompt; and an answer to each of its questions that is not open.
 */
const wire = (view: SessionView): void => {
  const { agent, started } = view
  let prompts = 0
  let cancels = 0
  for (const method of agent.wire) {
    if (method === "session/prompt") {
      prompts++
      cancels = 0
    } else if (method === "session/cancel") {
      cancels++
      ensure(prompts > 0 && cancels <= 2, "T2: a cancel for no turn was sent")
      const outcome = started[prompts - 1]?.outcome
      const wanted =
        outcome === undefined || outcome._tag === "Cancelled" || (outcome._tag === "Failed" && isBreach(outcome))
      ensure(wanted || view.lagged, "T2: a cancel was sent for a turn that nobody cancelled")
    }
  }
  if (agent.paused || agent.agent!.isGone()) return
  const last = started.at(-1)
  ensure(view.lagged || prompts === started.length, "a turn started and its prompt was not sent")
  if (!view.lagged && last?.outcome?._tag === "Cancelled" && last.outcome.escalation !== "none") {
    ensure(cancels > 0, "T2: a turn was cancelled and its agent was not told")
  }
  const { pendingPermissions } = Effect.runSync(view.session.describe)
  const asked = agent.agent!.questions().length + agent.others
  ensure(
    view.confused || agent.answers.size + pendingPermissions === asked,
    `P1: of ${asked} requests of the agent ${agent.answers.size} have an answer and ${pendingPermissions} are open`
  )
}

const isBreach = ({ error: { reason } }: TurnOutcome.Failed): boolean =>
  reason._tag === "OutputExceeded" || (reason._tag === "TurnTimedOut" && reason.deadline !== "admission")

/**
 * Sessions of a Vm take turns: while one waits, no other starts two turns, unless those are interactive and what waits is
 * not.
 */
const fairness = (world: World, info: Sidecar.SidecarInfo): void => {
  const now = new Map(
    info.vms.flatMap((vm) => vm.sessions.map((session) => [session.sessionId as string, session] as const))
  )
  for (const view of world.sessions) {
    const turns = now.get(view.session.id)?.turns ?? []
    const waits =
      turns.length > 0 &&
      turns.every(({ phase }) => phase === "queued") &&
      !view.vm.sessions.some(({ lagged }) => lagged)
    const before = world.waits.get(view)
    const names = turns.map(({ turnId }) => turnId).join(" ")
    if (!waits || before === undefined || !names.startsWith(before.turns)) {
      world.waits.delete(view)
      if (!waits) continue
      const lane = turns.every((turn) => turn.lane === "interactive") ? "interactive" : "background"
      world.waits.set(view, {
        turns: names,
        lane,
        started: new Map(view.vm.sessions.map((other) => [other, other.started.length]))
      })
      continue
    }
    if (before.lane !== "interactive") continue
    world.count("a session waited from one look to the next")
    for (const other of view.vm.sessions) {
      const more = other.started.length - (before.started.get(other) ?? 0)
      ensure(more <= 1, `A3: a session of a Vm started ${more} turns while another waited`)
    }
  }
}

/** After the end. */
export const closed = (world: World): void => {
  const took = world.closedAt()! - world.closingSince!
  // A handler that can't be interrupted holds up the layer's end, and nothing else.
  ensure(took <= Math.max(closeBound, 450), `the end took ${took} ms`)
  ensure(world.test.alive() === 0, `${world.test.alive()} agents are left`)
  ensure(world.calls.size === 0, "a call is left")
  ensure(world.clock.sleepers === 0, `${world.clock.sleepers} timers are left`)
  const info = Effect.runSync(world.sidecar.describe)
  ensure(info.state === "disposed" && info.vms.length === 0 && info.activeVmCount === 0, "Vms are left")
  ensure(info.activePrompts === 0, "A2: permits of the sidecar are left")
  for (const { vm } of world.vms) {
    const left = Effect.runSync(vm.describe)
    ensure(left.sessions.length === 0 && left.opening === 0, "sessions are left in a Vm")
    ensure(left.activePrompts === 0, "A2: permits of a Vm are left")
  }
  for (const view of world.sessions) {
    ensure(view.ended || view.lagged, "a session has no end")
    const left = Effect.runSync(view.session.describe)
    ensure(
      left.state === "ended" && left.turns.length === 0 && left.pendingPermissions === 0,
      "a session holds something"
    )
    for (const turn of view.turns.values()) ensure(turn.outcome !== undefined || view.lagged, "T1: a turn has no end")
    for (const question of view.questions.values()) {
      ensure(question.answeredBy !== undefined || view.lagged, "P1: a question has no answer")
    }
    for (const handle of view.handles) {
      const outcome = Effect.runSyncExit(handle.outcome)
      ensure(Exit.isSuccess(outcome), "T1: an accepted turn's outcome does not resolve")
      const turn = view.turns.get(handle.id)
      ensure(turn !== undefined || view.lagged, "A4: an accepted turn has no events")
      ensure(turn?.outcome === undefined || turn.outcome === outcome.value, "T1: the outcome is not that of the event")
    }
  }
}
