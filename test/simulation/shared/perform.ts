// Gives one command to the sidecar. What waits stays: its fiber is the caller, and later commands overlap with it.
import type { Probe, SidecarError, Vm } from "../../../src/index.ts"
import type { Machine } from "../../../src/testing/index.ts"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import { tasks } from "../perform.ts"
import { ensure } from "../world.ts"
import { ghost, type Process, say } from "./agents.ts"
import type { Command } from "./commands.ts"
import * as World from "./world.ts"

const open = (world: World.World, options: Extract<Command, { readonly _tag: "Open" }>) => {
  const opening = (scope: Scope.Scope) =>
    World.openSession(world, options, scope, (view, error) => refused(world, view, error)).pipe(
      Effect.tap((view) => Effect.sync(() => world.count(`opened: ${view.group}, ${view.answer}`))),
      (effect) => World.within(world, "an opening", World.limits.startTimeout, true, effect)
    )
  const { hold } = options
  if (hold === undefined) return Effect.ignore(opening(world.callers))
  return Effect.scope.pipe(
    Effect.flatMap(opening),
    Effect.flatMap((view) =>
      Effect.ensuring(
        Effect.sleep(hold),
        Effect.sync(() => (view.isOver = true))
      )
    ),
    Effect.scoped,
    Effect.ignore
  )
}

const probe = (world: World.World, options: Extract<Command, { readonly _tag: "Probe" }>) =>
  World.probe(world, options, (view, error) => refused(world, view, error, options.timeout)).pipe(
    Effect.tap(() => Effect.sync(() => world.count(`probed: ${options.want}`))),
    (effect) => World.within(world, "a probe", options.timeout, false, effect),
    Effect.ignore
  )

/** What may have kept an opening from its session: what its agent did to it, or what befell processes of its identity. */
const refused = (
  world: World.World,
  view: World.SessionView,
  error: Vm.OpenSessionError | Probe.ProbeError,
  timeout = Number.POSITIVE_INFINITY
): void => {
  const why = "reason" in error ? error.reason._tag : error._tag
  if (view.isProbe) world.count(`probe refused: ${why}`)
  if (error._tag === "ProbeTimedOut" && timeout < World.limits.startTimeout) return
  else world.count(`open refused: ${why}`)
  ensure(isExplained(world, view, error), `A5: an opening failed for no reason of its own: ${why}`)
}

const isExplained = (
  world: World.World,
  view: World.SessionView,
  error: Vm.OpenSessionError | Probe.ProbeError
): boolean => {
  const { from } = view
  // Of probes that are one, the first is what the agent sees.
  const { answer } = world.sessions[view.cwd - 1]!
  if (error._tag === "LimitExceeded") return error.used >= error.max
  if (error._tag === "InvalidInput") return false
  if (error._tag === "Disposed") return view.isOver || view.vm.isOver
  /** While it was under way, one of its identity was like this. */
  const some = (is: (process: Process) => boolean): boolean =>
    world.processes.some(
      (process) =>
        process.identity === view.identity && (process.isLive || process.goneAt! >= view.beganAt) && is(process)
    )
  const doesNotEnd = ({ endingAt, plan }: Process) => endingAt !== undefined && plan.end !== "good"
  const isStuck = world.processes.some(
    (process) => (process.isLive || process.goneAt! >= view.beganAt) && doesNotEnd(process)
  )
  const reason: SidecarError.StartReason["_tag"] = error._tag === "ProbeTimedOut" ? "StartTimedOut" : error.reason._tag
  switch (reason) {
    case "SpawnError":
      return some(({ plan }) => plan.start === "failSpawn")
    case "NotAnAcpAgent":
      return some(({ plan }) => plan.start === "noiseInit")
    case "VersionMismatch":
      return some(({ plan }) => plan.start === "oldVersion")
    case "ProcessExited":
      return some(({ hasCrashed }) => hasCrashed)
    case "TransportClosed":
      return false
    case "HostClosed":
      return some(({ endingAt }) => endingAt !== undefined)
    case "StartTimedOut":
      // A probe that has its findings keeps its place until its session is closed.
      if (error._tag === "ProbeTimedOut" && error.phase === "room") {
        return isStuck || world.processes.some(({ plan }) => plan.close !== "good")
      }
      return answer === "hang" || answer === "late" || some(({ plan }) => plan.start === "hangInit") || isStuck
    case "HostStillEnding":
      return isStuck
    case "StartHeldBack":
      // It remembers those before.
      return world.processes.some(
        ({ hasCrashed, identity, plan }) => identity === view.identity && (hasCrashed || plan.start !== "good")
      )
    case "InvalidResponse":
      return answer === "bad" || answer === "long" || answer === "open" || answer === "closed"
    case "OneSessionOnly":
      return answer === "refuse"
    case "RequestError":
      return answer === "refuse" || some(({ plan }) => plan.start === "failInit")
    case "UnusableSessionId":
      return from !== undefined
    default:
      return false
  }
}

const prompt = (
  world: World.World,
  view: World.SessionView,
  { behaviour, how, rounds }: Extract<Command, { readonly _tag: "Prompt" }>
): Effect.Effect<unknown, unknown> =>
  Effect.suspend(() => {
    const mark = `m${++world.marks}`
    const text = `${mark}:${behaviour}`
    view.behaviours.set(mark, behaviour)
    if (behaviour === "hang") view.isHarmful = true
    world.count(`prompt: ${behaviour}`)
    if (how === "await") view.awaited++
    const given = view.session!.submit(text).pipe(
      Effect.tap((turn) => Effect.sync(() => World.accepted(view, text, turn))),
      Effect.flatMap((turn): Effect.Effect<unknown, unknown> => {
        if (how === "submit") return Effect.void
        if (how === "await") return Effect.ignore(turn.await)
        const cancel = World.within(world, "a cancel", World.limits.cancelGrace, false, turn.cancel)
        return World.disturbing(world, view, Effect.andThen(tasks(rounds ?? 0), cancel))
      }),
      Effect.catch((error) =>
        Effect.sync(() => world.count(`prompt refused: ${(error as { readonly _tag: string })._tag}`))
      )
    )
    return how === "await"
      ? Effect.ensuring(
          given,
          Effect.sync(() => void view.awaited--)
        )
      : given
  })

const update = {
  sessionUpdate: "agent_message_chunk",
  content: { type: "text", text: "x".repeat(World.limits.maxLineBytes) }
}

const flood = (world: World.World, view: World.SessionView, how: "idle" | "broken" | "some") =>
  Effect.suspend(() => {
    const process = view.process!
    if (process.ids.get(view.agentSessionId!) !== view) return Effect.void
    if (how !== "some") {
      view.isHarmful = true
      World.disturb(world, view)
    }
    const agent = process.agent!
    const count = how === "some" ? 5 : how === "idle" ? 40 : World.limits.maxBrokenFrames + 1
    const one = how === "broken" ? agent.update(view.agentSessionId!, update) : say(view, "idle")
    if (how === "broken") view.hasLost = true
    return agent.together(Effect.forEach(Array.from({ length: count }), () => one))
  })

/** One that has ended gets something; unless its agent has it open again, which would be a thing to say. */
const late = (world: World.World, index: number) =>
  Effect.suspend(() => {
    const all = world.sessions.filter(
      (view) =>
        view.hasEnded &&
        view.process!.agent?.isGone() === false &&
        view.process!.ids.get(view.agentSessionId!) === view &&
        !world.sessions.some((other) => other.from === view && other.state !== "failed" && other.goneAt === undefined)
    )
    const view = all[index % all.length]
    if (view === undefined) return Effect.void
    world.count("late update")
    view.hasLate = true
    return say(view, "late")
  })

const ending = (views: ReadonlyArray<World.SessionView>): void => {
  for (const view of views) view.isOver = true
}

const endingVms = (world: World.World, vms: ReadonlyArray<World.VmView>): void => {
  World.observe(world)
  for (const vm of vms) {
    vm.isOver = true
    ending(world.sessions.filter((view) => view.vm === vm))
  }
}

/** Gives a command to the sidecar, when its time has come. */
export const perform = (
  world: World.World,
  command: Command,
  callers: Machine.Callers
): Effect.Effect<unknown, unknown> =>
  command.after === undefined
    ? act(world, command, callers)
    : Effect.andThen(tasks(command.after), act(world, command, callers))

const act = (world: World.World, command: Command, callers: Machine.Callers): Effect.Effect<unknown, unknown> =>
  Effect.suspend(() => {
    world.count(`command: ${command._tag}`)
    switch (command._tag) {
      case "Open":
        return open(world, command)
      case "Probe":
        return probe(world, command)
      case "CloseVm": {
        const vm = world.vms[command.vm % world.vms.length]!
        endingVms(world, [vm])
        return World.within(world, "a close of a Vm", World.closeBound, true, vm.vm.close)
      }
      case "Dispose":
        endingVms(world, world.vms)
        return World.within(world, "a dispose", World.closeBound, true, world.sidecar.dispose)
      case "LetEnd":
        return Effect.sync(() => {
          for (const { endingAt, mayEnd } of world.processes) {
            if (endingAt !== undefined) Deferred.doneUnsafe(mayEnd, Exit.void)
          }
        })
      case "Leave":
        return Effect.acquireUseRelease(
          Effect.sync(() => {
            world.leaving++
            for (const view of world.sessions) if (view.awaited > 0) World.disturb(world, view)
            for (const view of world.sessions) if (view.options.hold !== undefined) view.isOver = true
          }),
          () => callers.leave(command.caller),
          () => Effect.sync(() => void world.leaving--)
        )
      case "Advance":
        return TestClock.adjust(command.millis)
      case "Late":
        return late(world, command.session)
    }
    const view = World.pick(world, command.session)
    if (view === undefined) return Effect.void
    switch (command._tag) {
      case "Prompt":
        return prompt(world, view, command)
      case "Cancel":
        return World.disturbing(
          world,
          view,
          World.within(world, "a cancel", World.limits.cancelGrace, false, view.session!.cancel())
        )
      case "Close":
        World.observe(world)
        ending([view])
        return World.within(world, "a close", World.closeBound, true, view.session!.close)
      case "Crash":
        return view.process!.agent!.isGone() ? Effect.void : World.crash(world, view.process!)
      case "Flood":
        return flood(world, view, command.how)
      case "Ghost":
        return Effect.forEach([1, 2, 3], () => ghost(view.process!))
      case "Notify":
        return view.process!.agent!.send({ method: "_test/note", params: { process: view.process!.number } })
    }
  })
