// Gives one command to the sidecar. What waits stays: its fiber is the caller, and later commands overlap with it.
import { type Permission, type Session, SidecarError, type SidecarEvent, type TurnOutcome } from "../../src/index.ts"
import { type Machine, Simulation } from "../../src/testing/index.ts"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import type { Command, Garbage, PolicyName, PromptOptions } from "./commands.ts"
import * as World from "./world.ts"

/** A permission policy; handlers take their time, fail, or don't let themselves be interrupted. */
const policyOf = (name: PolicyName): Permission.Policy => {
  switch (name) {
    case "handler":
      return () => Effect.delay(Effect.succeed("allow" as const), 20)
    case "handlerFails":
      return () => Effect.andThen(Effect.sleep(10), Effect.die(new Error("a bug in a handler")))
    case "handlerStays":
      return () => Effect.uninterruptible(Effect.delay(Effect.succeed("allow" as const), 450))
    case "handlerBad":
      return () => Effect.succeed({ optionId: "nonsense" })
    default:
      return name
  }
}

const nameOf = (error: Session.SubmitError | SidecarError.Disposed): string =>
  error._tag === "LimitExceeded"
    ? `LimitExceeded ${error.limit}`
    : error._tag === "SessionUnusable"
      ? `SessionUnusable ${error.reason}`
      : error._tag

const open = (world: World.World, command: Extract<Command, { readonly _tag: "Open" }>) => {
  const { agent, hold, policy } = command
  const vm = world.vms[command.vm % world.vms.length]!
  const opening = (scope: Scope.Scope) =>
    World.openSession(world, vm, agent, policyOf(policy), scope).pipe(
      Effect.tap(() => Effect.sync(() => world.count(`opened: ${agent.start}`))),
      Effect.tapError((error) =>
        Effect.sync(() => {
          const why = error._tag === "AgentStartFailed" ? `${error.phase}, ${error.reason._tag}` : nameOf(error)
          world.count(`open refused: ${why}`)
        })
      ),
      (effect) => World.within(world, "an opening", World.limits.startTimeout, effect)
    )
  if (hold === undefined) return Effect.ignore(opening(world.callers))
  return Effect.scope.pipe(
    Effect.flatMap(opening),
    Effect.flatMap((view) =>
      Effect.ensuring(
        Effect.sleep(hold),
        Effect.sync(() => (view.over = true))
      )
    ),
    Effect.scoped,
    Effect.ignore
  )
}

/** A refusal says what is true: the limit that it names is used up. */
const refused = (world: World.World, error: Session.SubmitError): void => {
  world.count(`refused: ${nameOf(error)}`)
  if (error._tag === "LimitExceeded")
    World.ensure(error.used >= error.max, "A4: a refusal for a limit that is not used up")
  World.ensure(error._tag !== "InvalidInput", "A4: a good prompt was called invalid")
}

const accepted = (view: World.SessionView, turn: Session.Turn, key: string | undefined): void => {
  view.handles.push(turn)
  if (key === undefined) return
  const known = view.keys.get(key)
  World.ensure(known === undefined || known === turn.id, "one idempotency key, two turns")
  view.keys.set(key, turn.id)
}

const prompt = (world: World.World, view: World.SessionView, options: PromptOptions): Effect.Effect<unknown, unknown> =>
  Effect.suspend(() => {
    const { behaviour, deadline, how, key, lane, onBusy } = options
    const text = [`m${++world.marks}`, behaviour, ...(deadline === undefined ? [] : [deadline])].join(":")
    const submitOptions: Session.SubmitOptions = {
      ...(lane === undefined ? {} : { lane }),
      ...(onBusy === undefined ? {} : { onBusy }),
      ...(key === undefined ? {} : { idempotencyKey: key }),
      ...(deadline === "idle" ? { idleTimeout: World.deadlines.idle } : {}),
      ...(deadline === "wall" ? { wallTimeout: World.deadlines.wall } : {})
    }
    world.count(`prompt: ${behaviour}`)
    world.count(`caller: ${how}`)
    const { session } = view
    const settled = (exit: Exit.Exit<TurnOutcome.TurnOutcome, Session.SubmitError | SidecarError.TurnFailed>) =>
      Effect.sync(() => {
        const error = Exit.findErrorOption(exit)
        if (error._tag === "Some" && error.value._tag !== "TurnFailed") refused(world, error.value)
      })
    const disturbs = how.startsWith("cancel") || onBusy === "replace"
    const wrapped = (effect: Effect.Effect<unknown, unknown>) =>
      disturbs ? World.disturbing(world, [view], effect) : effect
    if (how === "prompt") return wrapped(Effect.ignore(Effect.onExit(session.prompt(text, submitOptions), settled)))
    const submit = session.submit(text, submitOptions)
    const go = (turn: Session.Turn): Effect.Effect<unknown, unknown> => {
      accepted(view, turn, key)
      switch (how) {
        case "await":
          return turn.await
        case "outcome":
          return turn.outcome
        case "read":
          return Effect.map(Stream.runCollect(turn.updates), (events) => readTurn(turn, events))
        case "text":
          return Stream.runDrain(turn.text)
        case "dispatched":
          return turn.dispatched
        case "cancelSoon":
        case "cancelNow":
          return Effect.andThen(
            tasks(options.rounds ?? 0),
            World.within(world, "a cancel", World.limits.cancelGrace, turn.cancel)
          )
        default:
          return Effect.void
      }
    }
    const given = Effect.matchEffect(submit, {
      onSuccess: (turn) => Effect.catchIf(go(turn), SidecarErrorIs, () => Effect.void),
      onFailure: (error) => Effect.sync(() => refused(world, error))
    })
    return wrapped(given)
  })

const SidecarErrorIs = (error: unknown): error is SidecarError.TurnFailed => error instanceof SidecarError.TurnFailed

/** A reader of one turn has all of it, from its acceptance to its end, or is told what it missed. */
const readTurn = (turn: Session.Turn, events: ReadonlyArray<SidecarEvent.SessionEvent>): void => {
  const tags = events.map((event) => event._tag)
  const lagged = tags.includes("Lagged")
  World.ensure(lagged || tags.at(-1) === "TurnEnded", "a turn's reader ended before the turn")
  World.ensure(lagged || tags[0] === "TurnQueued", "a turn's reader missed its acceptance")
  let last = 0
  for (const event of events) {
    if (event._tag === "Lagged") continue
    World.ensure(event.number > last, "a turn's reader saw events out of order")
    last = event.number
    World.ensure("turnId" in event && event.turnId === turn.id, "a turn's reader saw another turn's event")
  }
}

const readSession = (
  world: World.World,
  view: World.SessionView,
  { count, of, pause }: Extract<Command, { readonly _tag: "Read" }>
): Effect.Effect<void> => {
  const events: Stream.Stream<SidecarEvent.SessionEvent | SidecarEvent.SidecarEvent> =
    of === "session" ? view.session.updates : world.sidecar.events
  let next: number | undefined = of === "session" ? 1 : undefined
  return events.pipe(
    Stream.take(count),
    Stream.runForEach((event) =>
      Effect.suspend(() => {
        if ("_tag" in event && event._tag === "Lagged") {
          World.ensure(event.from === next && event.to > event.from, "a reader's lag is not where it was")
          next = event.to
          world.count("a reader lagged")
        } else {
          World.ensure(next === undefined || event.number === next, "a reader missed an event and was not told")
          next = event.number + 1
        }
        return pause === 0 ? Effect.void : Effect.sleep(pause)
      })
    )
  )
}

const cancel = (world: World.World, view: World.SessionView, which: "oldest" | "newest" | "ended") =>
  Effect.suspend((): Effect.Effect<unknown> => {
    const { handles, session } = view
    const turn = which === "newest" ? handles.at(-1) : which === "ended" ? handles[0] : undefined
    if (turn !== undefined) return turn.cancel
    return Effect.map(session.cancel(), (result) => world.count(`cancel: ${result._tag}`))
  })

const answer = (
  world: World.World,
  view: World.SessionView,
  how: Extract<Command, { readonly _tag: "Answer" }>["how"]
) =>
  Effect.gen(function* () {
    const { session } = view
    const [question] = yield* session.pendingPermissions
    if (question === undefined) return
    const { permissionId } = question
    const decide = (decision: Permission.Decision) =>
      Effect.match(session.answer(permissionId, decision), {
        onSuccess: () => "accepted",
        onFailure: (error) => error._tag
      })
    const first = yield* decide(
      how === "notOffered" ? { optionId: "nonsense" } : how === "twice" ? { optionId: "allow" } : how
    )
    world.count(`answer ${how}: ${first}`)
    if (how === "notOffered") World.ensure(first !== "accepted", "P2: an option that was not offered was accepted")
    if (how !== "twice") return
    const second = yield* decide("reject")
    world.count(`answer again: ${second}`)
    World.ensure(second === "PermissionNotPending", "P1: a question was answered twice")
  })

const line = (frame: object): string => `${JSON.stringify({ jsonrpc: "2.0", ...frame })}\n`

const garbage = (view: World.SessionView, what: Garbage): Effect.Effect<void> => {
  const agent = view.agent.agent!
  const { agentSessionId: sessionId } = view.session
  const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text: "stray" } }
  const toolCall = { toolCallId: "stray", title: "run it" }
  const options = [{ optionId: "allow", name: "Allow", kind: "allow_once" }]
  const lastId = view.agent.prompts.at(-1)?.id ?? 1
  const method = "session/request_permission"
  const request = (name: string, params: object): Effect.Effect<void> =>
    Effect.uninterruptible(
      Effect.suspend(() => agent.send({ id: `other-${++view.agent.others}`, method: name, params }))
    )
  switch (what) {
    case "noise":
      return agent.write("[info] \u001b[32mstarted\u001b[0m\n\n")
    case "json":
      return agent.write(`{"level":"info"}\n"text"\nnull\n`)
    case "malformed":
      return agent.write(`{"jsonrpc":"2.0","id":\n`)
    case "brokenUpdate":
      return agent.write(line({ method: "session/update", params: { sessionId, update: 3 } }))
    case "unknownSession":
      return agent.update("somebody else's", update)
    case "strayUpdate":
      return agent.update(sessionId, update)
    case "strayAsk":
      return request(method, { sessionId, toolCall, options })
    case "unknownAsk":
      return request(method, { sessionId: "somebody else's", toolCall, options })
    case "brokenAsk":
      return request(method, { sessionId, toolCall: 3 })
    case "cancelRequest":
      return agent.send({ method: "$/cancel_request", params: { requestId: "ask-1" } })
    case "unknownMethod":
      return request("fs/read_text_file", {})
    case "unknownAnswer":
      return agent.send({ id: 77_777, result: { stopReason: "refusal" } })
    case "lastAnswerAgain":
      return agent.send({ id: lastId, result: { stopReason: "refusal" } })
    case "nextAnswer":
      return agent.send({ id: Number(lastId) + 1, result: { stopReason: "refusal" } })
    case "tooLarge":
      return agent.update(sessionId, {
        ...update,
        content: { type: "text", text: "x".repeat(World.limits.maxLineBytes) }
      })
    case "tooLargeAnswer":
      return agent.send({ id: lastId, result: { stopReason: "x".repeat(World.limits.maxLineBytes) } })
  }
}
/** Those that can change how a turn ends. */
const harmful: ReadonlySet<Garbage> = new Set([
  "cancelRequest",
  "strayAsk",
  "lastAnswerAgain",
  "nextAnswer",
  "tooLarge",
  "tooLargeAnswer"
])

const crash = (view: World.SessionView, how: "plain" | "halfLine" | "output"): Effect.Effect<void> => {
  const agent = view.agent.agent!
  switch (how) {
    case "plain":
      return agent.crash({ signal: "SIGKILL" })
    case "halfLine":
      return Effect.andThen(agent.write(`{"jsonrpc":"2.0","method":"session/upd`), agent.crash())
    case "output":
      return agent.closeOutput
  }
}

const ending = (views: ReadonlyArray<World.SessionView>): void => {
  for (const view of views) view.over = true
}

const endingVms = (vms: ReadonlyArray<World.VmView>): void => {
  for (const vm of vms) {
    vm.over = true
    ending(vm.sessions)
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

/** Waits for so many rounds of the scheduler, in one operation, so that few choices are spent on it. */
export const tasks = (count: number): Effect.Effect<void> =>
  count === 0
    ? Effect.void
    : Effect.flatMap(Simulation.here, ({ scheduler }) =>
        Effect.callback((resume) => {
          const next = (left: number): void =>
            left === 0 ? resume(Effect.void) : scheduler.schedule(() => next(left - 1))
          next(count)
        })
      )

const act = (world: World.World, command: Command, callers: Machine.Callers): Effect.Effect<unknown, unknown> =>
  Effect.suspend(() => {
    world.count(`command: ${command._tag}`)
    switch (command._tag) {
      case "OpenVm":
        return Effect.matchEffect(World.openVm(world), {
          onSuccess: () => Effect.void,
          onFailure: (error) => Effect.sync(() => world.count(`openVm refused: ${error._tag}`))
        })
      case "Open":
        return open(world, command)
      case "CloseVm": {
        const vm = world.vms[command.vm % world.vms.length]!
        endingVms([vm])
        return World.within(world, "a close of a Vm", World.closeBound, vm.vm.close)
      }
      case "Dispose":
        endingVms(world.vms)
        return World.within(world, "a dispose", World.closeBound, world.sidecar.dispose)
      case "Leave":
        return World.disturbing(world, world.sessions.slice(), callers.leave(command.caller))
      case "Advance":
        return TestClock.adjust(command.millis)
    }
    const view = World.pick(world, command.session)
    if (view === undefined) return Effect.void
    switch (command._tag) {
      case "Prompt":
        return prompt(world, view, command.prompt)
      case "Cancel":
        return World.disturbing(
          world,
          [view],
          World.within(world, "a cancel", World.limits.cancelGrace, cancel(world, view, command.which))
        )
      case "Answer":
        return answer(world, view, command.how)
      case "SetMode":
        return World.within(world, "setMode", World.limits.callTimeout, Effect.exit(view.session.setMode("ask"))).pipe(
          Effect.map((exit) => {
            const error = Exit.findErrorOption(exit)
            world.count(`setMode: ${error._tag === "Some" ? error.value.reason._tag : exit._tag}`)
          })
        )
      case "Close":
        ending([view])
        return World.within(world, "a close", World.closeBound, view.session.close)
      case "Crash":
        ending([view])
        view.confused = true
        return crash(view, command.how)
      case "Pause":
        ending([view])
        view.agent.paused = true
        return view.agent.agent!.pause
      case "Resume":
        return view.agent.agent!.resume
      case "Garbage": {
        world.count(`garbage: ${command.what}`)
        if (harmful.has(command.what)) {
          ending([view])
          view.confused = true
        }
        return garbage(view, command.what)
      }
      case "Read":
        return readSession(world, view, command)
    }
  })
