/**
 * The turns of a session: what accepts them, holds them and gives them to callers.
 *
 * @internal
 */
import type * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Semaphore from "effect/Semaphore"
import * as Address from "../Address.ts"
import * as Admission from "../Admission.ts"
import * as LimitUsage from "../LimitUsage.ts"
import * as Mailbox from "../Mailbox.ts"
import type { CancelResult, Prompt, Session, SubmitError, SubmitOptions, Turn as Handle } from "../Session.ts"
import * as SidecarError from "../SidecarError.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import * as Turn from "../Turn.ts"
import type * as TurnOutcome from "../TurnOutcome.ts"
import * as Attribution from "./attribution.ts"
import * as Deadline from "./deadline.ts"
import * as OpenTools from "./openTools.ts"
import * as PromptInput from "./promptInput.ts"
import * as Refusals from "./refusals.ts"
import * as Time from "./time.ts"
import type * as TurnTelemetry from "./turnTelemetry.ts"

/** What the turns get from their session. */
export interface TurnsContext extends Pick<
  Turn.TurnContext,
  "limits" | "permissions" | "vmGate" | "sidecarGate" | "record" | "closedBy"
> {
  /** The agent as it is now. A turn has the one that there was when it was accepted, and no other. */
  readonly agent: () => TurnAgent
  readonly address: Address.Address
  readonly mailbox: Mailbox.Mailbox<SidecarEvent.SessionEvent>
  readonly attribution: Attribution.Attribution
  readonly tools: OpenTools.OpenTools
  readonly queued: LimitUsage.LimitUsage
  readonly running: LimitUsage.LimitUsage
  /** The unfinished ones, the oldest first. */
  readonly turns: Map<Address.TurnId, Turn.TurnState>
  /** Starts a fiber at once; the session's end interrupts it and waits for it. */
  readonly fork: (name: string, effect: Effect.Effect<void>) => Fiber.Fiber<void>
  readonly emit: SidecarEvent.Emit
  readonly metrics: Context.Context<never>
  readonly telemetry: TurnTelemetry.TurnTelemetry
  readonly nextTurnId: () => Address.TurnId
  readonly unusable: () => SidecarError.SessionUnusable | undefined
  /** For how long the session's agent has done nothing, in milliseconds. */
  readonly idleFor: () => number
}

/** What a turn knows of its agent; another object for each agent process. */
export type TurnAgent = Pick<Turn.TurnContext, "host" | "agentSessionId" | "agentEnd" | "giveUp" | "agentClosed">

interface Accepted {
  readonly turn: Turn.TurnState
  readonly handle: Handle
}

const rememberedKeys = 256

export const make = Effect.fnUntraced(function* (
  context: TurnsContext
): Effect.fn.Return<Pick<Session, "submit" | "prompt" | "cancel">> {
  const { address, attribution, fork, limits, mailbox, metrics, queued, record, running, telemetry, tools, turns } =
    context
  const keys = new Map<string, Accepted>()
  const common: Omit<Turn.TurnContext, keyof TurnAgent> = {
    ...context,
    sessionPermits: yield* Semaphore.make(limits.maxPromptsPerSession),
    onDispatch: (turn) => {
      Attribution.begin(attribution, turn.id)
      telemetry.started(turn)
      watch(turn, "wall", Deadline.wall(turn))
      watch(turn, "idle", Deadline.idle(turn, context.idleFor))
    },
    traceparent: telemetry.traceparent,
    onStop: telemetry.stopping,
    onResponse: (turn) => Attribution.end(attribution, turn.id),
    onEnd: (turn, outcome) => {
      turns.delete(turn.id)
      LimitUsage.release(turns.size < limits.maxPromptsPerSession ? running : queued)
      const open = OpenTools.end(tools, turn.id)
      const isCut = open.length > 0 && outcome._tag !== "Completed"
      record({ _tag: "TurnEnded", turnId: turn.id, outcome, ...(isCut ? { cancelledToolCalls: open } : {}) })
      context.emit({ kind: "turn_ended", address: turn.address, detail: outcome._tag })
      telemetry.ended(turn, outcome)
    }
  }

  let bound: { readonly agent: TurnAgent; readonly turnContext: Turn.TurnContext } | undefined
  const turnContext = (): Turn.TurnContext => {
    const agent = context.agent()
    if (bound?.agent !== agent) bound = { agent, turnContext: { ...common, ...agent } }
    return bound.turnContext
  }

  const cancel = (turn: Turn.TurnState, by: TurnOutcome.CancelledBy): Effect.Effect<TurnOutcome.TurnOutcome> =>
    Effect.suspend(() => {
      Turn.cancelUnsafe(turn, by)
      return Deferred.await(turn.ended)
    })
  /** Cancels when it is interrupted; nothing may come between the mask whose `restore` this is and this. */
  const awaited = (turn: Turn.TurnState, restore: <A>(effect: Effect.Effect<A>) => Effect.Effect<A>) =>
    restore(Deferred.await(turn.ended)).pipe(
      Effect.onInterrupt(() => cancel(turn, "interruption")),
      Effect.flatMap(settled)
    )
  const handleOf = (turn: Turn.TurnState): Handle => {
    const outcome = Deferred.await(turn.ended)
    return {
      id: turn.id,
      address: turn.address,
      dispatched: Deferred.await(turn.dispatched),
      updates: Mailbox.stream(mailbox, {
        from: turn.from,
        select: (events) => selectTurn(events, turn.id),
        isOver: () => turn.phase === "ended",
        onLag
      }),
      text: Mailbox.stream(mailbox, {
        from: turn.from,
        select: (events) => {
          const { emit, isLast } = selectTurn(events, turn.id)
          return { emit: emit.flatMap(textOf), isLast }
        },
        isOver: () => turn.phase === "ended",
        onLag: () => Effect.succeed([])
      }),
      outcome,
      await: Effect.uninterruptibleMask((restore) => awaited(turn, restore)),
      cancel: cancel(turn, "caller")
    }
  }

  /** One step: nothing can come between the decision, the acceptance and the start. */
  const accept = (
    prompt: Prompt,
    submitOptions: SubmitOptions = {},
    caller: Fiber.Fiber<unknown, unknown>
  ): Result.Result<Accepted, SubmitError> => {
    const { idempotencyKey: key, lane = "interactive", onBusy = "queue" } = submitOptions
    const earlier = key === undefined ? undefined : keys.get(key)
    if (earlier !== undefined) return Result.succeed(earlier)
    const unusable = context.unusable()
    if (unusable !== undefined) return Result.fail(unusable)
    const blocks = PromptInput.blocks(prompt)
    const json = PromptInput.json(address, limits, context.agent().host.initialize.agentCapabilities, blocks)
    if (Result.isFailure(json)) return Result.fail(json.failure)
    const idleTimeout = Time.parse(submitOptions.idleTimeout ?? limits.turnIdleTimeout)
    const wallTimeout = Time.parse(submitOptions.wallTimeout ?? limits.turnTimeout)
    const problem =
      PromptInput.noChoice(address, "lane", lane, ["interactive", "background"]) ??
      PromptInput.noChoice(address, "onBusy", onBusy, ["queue", "reject", "replace"]) ??
      PromptInput.noTime(address, "idleTimeout", idleTimeout) ??
      PromptInput.noTime(address, "wallTimeout", wallTimeout) ??
      Admission.refusal(context.vmGate, lane, address) ??
      Admission.refusal(context.sidecarGate, lane, address)
    if (problem !== undefined) return Result.fail(problem)
    const before = Array.from(turns.values())
    const decision = Admission.decide(onBusy, before.length, limits)
    if (decision === "busy") return Result.fail(new SidecarError.SessionBusy({ address, turnId: before[0]!.id }))
    if (decision === "full")
      return Result.fail(LimitUsage.refusal(limits.maxPromptsPerSession === 0 ? running : queued))

    const id = context.nextTurnId()
    const turn = Turn.make({
      id,
      address: Address.withTurn(address, id),
      lane,
      prompt: blocks,
      from: mailbox.next,
      idleTimeout: Option.getOrThrow(idleTimeout),
      wallTimeout: Option.getOrThrow(wallTimeout)
    })
    // First: should the app's tracer break, nothing has been accepted.
    telemetry.accepted(turn, caller)
    const accepted: Accepted = { turn, handle: handleOf(turn) }
    turns.set(id, turn)
    LimitUsage.take(turns.size > limits.maxPromptsPerSession ? queued : running)
    if (key !== undefined) {
      keys.set(key, accepted)
      if (keys.size > rememberedKeys) keys.delete(keys.keys().next().value!)
    }
    record({ _tag: "TurnQueued", turnId: id })
    if (decision === "replace") for (const one of before) Turn.cancelUnsafe(one, "replaced")
    turn.fiber = fork(id, Turn.run(turnContext(), turn))
    // Something may have wanted its end before it had a fiber.
    if (turn.cancelledBy !== undefined || turn.broke !== undefined) turn.fiber.interruptUnsafe()
    if (turn.phase === "queued") {
      // It was looked at as it is now; what its caller does to it while it waits changes nothing.
      turn.prompt = JSON.parse(json.success)
      telemetry.waits(turn, waitsFor())
      watch(turn, "admission", Deadline.admission(turn, limits.admissionTimeout))
    }
    return Result.succeed(accepted)
  }
  const submit = (prompt: Prompt, submitOptions?: SubmitOptions): Effect.Effect<Accepted, SubmitError> =>
    Effect.withFiber((caller) => {
      const result = accept(prompt, submitOptions, caller)
      if (Result.isFailure(result)) Refusals.count(result.failure, metrics)
      return Effect.fromResult(result)
    })
  /** Where a new turn that could not start stands in line first. */
  const waitsFor = (): "session" | "vm" | "sidecar" => {
    if (turns.size > limits.maxPromptsPerSession) return "session"
    return Admission.isWaiting(context.vmGate, address.sessionId!) ? "vm" : "sidecar"
  }

  /** Deadlines cost a fiber each, so only turns that have one, or that must wait, get it. */
  const watch = (turn: Turn.TurnState, name: string, clock: Effect.Effect<void> | undefined): void => {
    if (clock !== undefined) fork(`${turn.id}/${name}`, clock)
  }

  return {
    submit: (prompt, submitOptions) => Effect.map(submit(prompt, submitOptions), ({ handle }) => handle),
    prompt: (prompt, submitOptions) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.flatMap(submit(prompt, submitOptions), ({ turn }) => awaited(turn, restore))
      ),
    cancel: (turnId) =>
      Effect.suspend((): Effect.Effect<CancelResult> => {
        const turn = turnId === undefined ? turns.values().next().value : turns.get(turnId)
        if (turn === undefined) return Effect.succeed({ _tag: "NoActiveTurn" })
        return Effect.map(cancel(turn, "caller"), (outcome) => ({ _tag: "Settled", turnId: turn.id, outcome }))
      })
  }
})

const settled = (
  outcome: TurnOutcome.TurnOutcome
): Effect.Effect<TurnOutcome.Completed | TurnOutcome.Cancelled, SidecarError.TurnFailed> =>
  outcome._tag === "Failed" ? Effect.fail(outcome.error) : Effect.succeed(outcome)

const selectTurn = (
  events: ReadonlyArray<SidecarEvent.SessionEvent>,
  turnId: Address.TurnId
): Mailbox.Slice<SidecarEvent.SessionEvent> => {
  const emit: Array<SidecarEvent.SessionEvent> = []
  for (let i = 0; i < events.length; i++) {
    const event = events[i] as Extract<SidecarEvent.SessionEvent, { readonly turnId: unknown }>
    if (event.turnId !== turnId) continue
    emit.push(event)
    if (event._tag === "TurnEnded") return { emit, isLast: true }
  }
  return { emit, isLast: false }
}

export const textOf = (event: SidecarEvent.SessionEvent): ReadonlyArray<string> =>
  event._tag === "Update" &&
  event.update.sessionUpdate === "agent_message_chunk" &&
  event.update.content.type === "text" &&
  typeof event.update.content.text === "string"
    ? [event.update.content.text]
    : []

/** What a reader that is too slow gets in place of what is gone. */
export const onLag = (from: number, to: number): Effect.Effect<ReadonlyArray<SidecarEvent.SessionEvent>> =>
  Effect.succeed([{ _tag: "Lagged", from, to }])
