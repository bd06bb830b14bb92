// What must hold: at any moment, when nothing can run unless time moves on, and after the end.
import type { AgentHosts, Sidecar } from "../../../src/index.ts"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Metric from "effect/Metric"
import { ensure } from "../world.ts"
import { immediate } from "./agents.ts"
import type { Model } from "./machine.ts"
import { closeBound, killBound, limits, observe, rooms, type SessionView, type World } from "./world.ts"

/** At any moment. */
export const always = (world: World, model: Model): void => {
  observe(world)
  const info = Effect.runSync(world.sidecar.describe)
  const live = world.processes.filter(({ isLive }) => isLive).length
  ensure(info.hosts.length <= limits.maxHosts && live <= limits.maxHosts, "more processes than allowed")
  for (const host of info.hosts) onHost(host)
  const probes = world.sessions.filter(({ goneAt, isProbe }) => isProbe && goneAt === undefined)
  const ofProbes = info.hosts.reduce((sum, { leases, sessions }) => sum + leases - sessions.length, 0)
  ensure(ofProbes <= probes.length, `${ofProbes} leases of ${probes.length} probes`)
  for (const vm of info.vms) {
    ensure(vm.sessions.length + vm.opening <= limits.maxSessionsPerVm, "more sessions than allowed")
  }
  for (const view of world.sessions) {
    for (const { outcome } of view.turns.values()) {
      if (outcome?._tag !== "Cancelled") continue
      const isAsked = model.asked.has(outcome.by) || (world.closingSince !== undefined && outcome.by === "dispose")
      ensure(isAsked, `cancelled by ${outcome.by}, which nobody asked for`)
    }
  }
  for (const { hostId, leases } of info.hosts) if (leases > 0) world.idle.delete(hostId)
}

const onHost = ({ agent, kept, leases, sessions, shared }: AgentHosts.HostInfo): void => {
  ensure(leases >= sessions.length, `${leases} leases on a process for ${sessions.length} sessions`)
  ensure(
    sessions.length <= rooms[agent as keyof typeof rooms],
    `${sessions.length} sessions on a process of "${agent}"`
  )
  ensure(shared || leases <= 1, "H1: sessions share a process that is not to be shared")
  ensure(kept.earlyUpdates <= limits.earlyUpdatesPerAgent, "W3: more updates wait than allowed")
  ensure(kept.earlyBytes <= limits.earlyUpdateBytes, "W3: more bytes wait than allowed")
  ensure(kept.tombstones <= limits.maxTombstones, "W3: more closed ids are remembered than allowed")
  ensure(kept.left <= 64, "more sessions are ended behind their openers than allowed")
}

/** When nothing can run unless time moves on. */
export const settled = (world: World): void => {
  const now = world.clock.currentTimeMillisUnsafe()
  const isStuck = world.processes.some(
    ({ endingAt, isLive, plan }) => isLive && plan.end !== "good" && endingAt !== undefined
  )
  const wasStuck = world.processes.some(({ endingAt, plan }) => plan.end !== "good" && endingAt !== undefined)
  for (const { until, waitsForEnd, what } of world.calls) {
    const bound = until + (waitsForEnd && (isStuck || wasStuck) ? killBound : 0)
    ensure(now < bound, `T2: ${what} takes too long: ${now - bound} ms over`)
  }
  const info = Effect.runSync(world.sidecar.describe)
  hosts(world, info, now)
  probes(world, info)
  for (const view of world.sessions) if (view.session !== undefined && !view.hasEnded) open(view)
  for (const view of world.sessions) {
    view.hasLate = false
    ensure(
      view.state !== "opening" ||
        view.isProbe ||
        !view.isAnswered ||
        view.process!.endingAt !== undefined ||
        // Its caller is going away, and waits for that.
        view.process!.closedIds.has(view.agentSessionId!) ||
        view.isOver,
      "A5: an agent has answered, and its session is not open"
    )
  }
}

const hosts = (world: World, info: Sidecar.SidecarInfo, now: number): void => {
  const byId = new Map(info.hosts.map((host) => [host.hostId as string, host]))
  const listed = new Map(
    info.vms.flatMap((vm) => vm.sessions.map((session) => [session.sessionId as string, session] as const))
  )
  const opening = info.vms.reduce((sum, vm) => sum + vm.opening, 0)
  let unknown = 0
  for (const { hostId, leases, sessions, state } of info.hosts) {
    for (const id of sessions) {
      const session = listed.get(id)
      if (session === undefined) unknown++
      else ensure(session.hostId === hostId, "a session holds a lease on another process than its own")
    }
    ensure(leases > 0 || state !== "starting", "a process starts that nobody waits for")
    if (leases > 0 || state !== "ready") {
      world.idle.delete(hostId)
      continue
    }
    const since = world.idle.get(hostId) ?? now
    world.idle.set(hostId, since)
    ensure(now - since < limits.hostIdleTime, "a process lives on that nobody has used for its idle time")
  }
  ensure(unknown <= opening, `${unknown} leases for ${opening} openings: a lease of nobody`)
  for (const session of listed.values()) {
    const holds = byId.get(session.hostId)?.sessions.includes(session.sessionId) === true
    ensure(holds || session.state === "ended", "a session is open and has no lease on its process")
  }
  for (const host of info.hosts) {
    const routes = Array.from(listed.values()).filter(
      (session) => session.hostId === host.hostId && session.state === "open"
    ).length
    ensure(host.kept.routes <= host.leases, `W3: ${host.kept.routes} routes on a process with ${host.leases} leases`)
    ensure(host.kept.routes >= routes || host.state === "ending", "W3: an open session has no route")
  }
  const live = world.processes.filter(({ isLive }) => isLive).length
  ensure(live <= info.hosts.length, `${live} processes live and ${info.hosts.length} are listed`)
}

/** H4: what a probe has is given back when its last caller has gone. */
const probes = (world: World, info: Sidecar.SidecarInfo): void => {
  const all = world.sessions.filter(({ goneAt, isProbe }) => isProbe && goneAt === undefined)
  const leases = info.hosts.reduce((sum, host) => sum + host.leases - host.sessions.length, 0)
  if (leases > 0) {
    const now = world.clock.currentTimeMillisUnsafe()
    const isAsked = all.some(({ state }) => state === "opening")
    world.probesLeftAt = isAsked ? undefined : (world.probesLeftAt ?? now)
    const isStuck = world.processes.some(
      ({ endingAt, isLive, plan }) => isLive && plan.end !== "good" && endingAt !== undefined
    )
    const bound = limits.closeTimeout + (isStuck ? killBound : 0)
    ensure(
      world.probesLeftAt === undefined || now - world.probesLeftAt <= bound,
      "H4: a probe has a lease that nobody waits for"
    )
    return
  }
  world.probesLeftAt = undefined
  for (const view of all) if (view.state !== "opening") view.goneAt = ++world.moment
}

/** Of a session that is open. */
const open = (view: SessionView): void => {
  const process = view.process!
  // H3: told once, which its events show; here, that it was told at all.
  ensure(process.agent?.isGone() === false, "H3: a process is gone and its session was not told")
  // An agent that has closed one, and was not heard yet, may give its id to another.
  const isItsOwn = process.ids.get(view.agentSessionId!) === view || process.closedIds.has(view.agentSessionId!)
  ensure(isItsOwn, "H3: a session is on a process that does not have it")
  if (view.isOver || view.isHarmful || process.endingAt !== undefined) return
  if (
    !view.hasLost &&
    view.saidEarly <= limits.earlyUpdatesPerSession &&
    process.ghosts === 0 &&
    view.from === undefined
  ) {
    ensure(view.heard === view.said, `W3: of ${view.said} updates of a session ${view.heard} have come`)
  }
  for (const [mark, id] of view.turnOf) {
    const turn = view.turns.get(id)
    const where = view.saidIn.get(mark)
    ensure(where === undefined || where === id, "T3: an update is in another turn than its own")
    ensure(
      turn?.startedAt === undefined || turn.outcome !== undefined || !immediate.has(view.behaviours.get(mark)!),
      "A5: a turn goes on whose agent has ended it"
    )
  }
  for (const asked of process.earlyAsks.values()) {
    ensure(asked.of !== view || asked.answers === 1, "W3: a question that came early has no answer")
  }
}

/** After the end. */
export const closed = (world: World): void => {
  const took = world.closedAt()! - world.closingSince!
  ensure(took <= closeBound + killBound, `the end took ${took} ms`)
  const live = world.processes.filter(({ isLive }) => isLive)
  ensure(live.length === 0, `${live.length} processes are left`)
  ensure(world.calls.size === 0, "a call is left")
  ensure(world.clock.sleepers === 0, `${world.clock.sleepers} timers are left`)
  const info = Effect.runSync(world.sidecar.describe)
  ensure(info.state === "disposed" && info.vms.length === 0 && info.activeVmCount === 0, "Vms are left")
  ensure(info.hosts.length === 0, "hosts are left")
  ensure(info.activePrompts === 0, "A2: permits of the sidecar are left")
  for (const { vm } of world.vms) {
    const left = Effect.runSync(vm.describe)
    ensure(left.sessions.length === 0 && left.opening === 0, "sessions are left in a Vm")
    ensure(left.activePrompts === 0, "A2: permits of a Vm are left")
  }
  gauges(world)
  for (const view of world.sessions) {
    ensure(view.state !== "opening", "an opening has no end")
    if (view.session === undefined) continue
    ensure(view.hasEnded, "a session has no end")
    for (const turn of view.turns.values()) ensure(turn.outcome !== undefined, "T1: a turn has no end")
    for (const handle of view.handles.values()) {
      const outcome = Effect.runSyncExit(handle.outcome)
      ensure(Exit.isSuccess(outcome), "T1: an accepted turn's outcome does not resolve")
      const turn = view.turns.get(handle.id)
      ensure(turn?.outcome === outcome.value, "T1: the outcome is not that of the event")
    }
  }
  if (world.events !== undefined) told(world, world.events)
}

const gauges = ({ registry }: World): void => {
  const all = Effect.runSync(Effect.provideService(Metric.snapshot, Metric.MetricRegistry, registry as never))
  for (const metric of all) {
    if (metric.type !== "Gauge") continue
    ensure(Number(metric.state.value) === 0, `the gauge ${metric.id} is at ${metric.state.value}`)
  }
}

/** H3: of each session and each process the end is told once. */
const told = (world: World, events: NonNullable<World["events"]>): void => {
  const times = new Map<string, number>()
  for (const { address, kind } of events) {
    const name = `${kind} ${address.hostId ?? address.sessionId ?? address.vmId ?? ""}`
    times.set(name, (times.get(name) ?? 0) + 1)
  }
  for (const view of world.sessions) {
    if (view.session === undefined) continue
    const count = times.get(`session_ended ${view.session.id}`)
    ensure(count === 1, `H3: the end of a session was told ${count ?? 0} times`)
  }
  for (const [name, count] of times) {
    const [kind, id] = name.split(" ")
    if (kind !== "host_started" && kind !== "host_exited") continue
    ensure(count === 1, `H3: ${kind} was told ${count} times`)
    ensure(times.get(`host_started ${id}`) === times.get(`host_exited ${id}`), "H3: the end of a process was not told")
  }
}
