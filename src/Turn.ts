/**
 * One prompt and its answer: a supervised fiber with exactly one outcome. This is the machine inside of a session; an app
 * gets its handle, `Session.Turn`, from `Session.submit`.
 *
 * @since 0.1.0
 */

import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Semaphore from "effect/Semaphore"
import type * as AcpConnection from "./acp/AcpConnection.ts"
import * as AcpError from "./acp/AcpError.ts"
import * as AcpProtocol from "./acp/AcpProtocol.ts"
import type { Acp } from "./acp/AcpSchema.ts"
import type * as Address from "./Address.ts"
import * as Admission from "./Admission.ts"
import type * as AgentHost from "./AgentHost.ts"
import * as AgentSession from "./AgentSession.ts"
import * as Permission from "./Permission.ts"
import * as SidecarError from "./SidecarError.ts"
import type * as SidecarEvent from "./SidecarEvent.ts"
import * as SidecarLimits from "./SidecarLimits.ts"
import * as TurnOutcome from "./TurnOutcome.ts"

/**
 * Why a turn has to end although the agent did not end it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Breach =
  | { readonly _tag: "Idle"; readonly afterMillis: number }
  | { readonly _tag: "Wall"; readonly afterMillis: number }
  | {
      readonly _tag: "Output"
      readonly limit: "maxTurnOutputBytes" | "maxLineBytes"
      readonly max: number
      readonly used: number
    }

type Answer = Exit.Exit<unknown, AcpError.RequestFailure>

/** How the agent was brought to end a turn, and what it said. */
interface Stopped {
  readonly agentReported: string | null
  readonly escalation: TurnOutcome.Escalation
}

/**
 * Where a turn stands. It only moves forward.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Phase = "queued" | "running" | "cancelling" | "ended"

/**
 * The inside of a turn. Apps hold a `Session.Turn` instead.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface TurnState {
  readonly id: Address.TurnId
  readonly address: Address.Address
  readonly lane: Admission.Lane
  /** Empty once the turn has ended, so that a turn that is remembered costs little. */
  prompt: ReadonlyArray<Acp.ContentBlock>
  /** The session's event from which on this turn's may come. */
  readonly from: number
  readonly idleTimeout: Duration.Duration
  readonly wallTimeout: Duration.Duration
  /** `true` once the prompt was handed to the connection, `false` when the turn ended before. */
  readonly dispatched: Deferred.Deferred<boolean>
  readonly ended: Deferred.Deferred<TurnOutcome.TurnOutcome>
  phase: Phase
  /** Who wanted it to end; the first one counts. */
  cancelledBy: TurnOutcome.CancelledBy | undefined
  /** It waited too long to be admitted. */
  expired: boolean
  outputBytes: number
  /** Clock time of its first update in milliseconds. */
  firstUpdateAt: number | undefined
  /** The bound that it broke. */
  broke: Breach | undefined
  /** @internal The agent's answer: from here on it is too late to cancel. */
  answer: Answer | undefined
  /** @internal Kept here since an interrupted fiber loses what it returns on its way out of the permits. */
  stopped: Stopped | undefined
  outcome: TurnOutcome.TurnOutcome | undefined
  /** @internal */
  fiber: Fiber.Fiber<void> | undefined
}

/**
 * What a turn needs of its session.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface TurnContext {
  readonly host: AgentHost.AgentHost
  readonly agentSessionId: string
  readonly limits: SidecarLimits.SidecarLimits
  readonly permissions: Permission.Permissions
  readonly sessionPermits: Semaphore.Semaphore
  readonly vmGate: Admission.Gate
  readonly sidecarGate: Admission.Gate
  readonly record: (event: SidecarEvent.SessionEventInput) => void
  /** It is admitted and its prompt leaves: from now on updates belong to this turn. Runs before its bytes do. */
  readonly onDispatch: (turn: TurnState) => void
  /** The trace context that goes out with its prompt, if it is traced. */
  readonly traceparent: (turn: TurnState) => string | undefined
  /** The turn runs and has to end although its agent did not end it. */
  readonly onStop: (turn: TurnState) => void
  /** The response is here: from the next frame on, updates come after this turn. Runs in the reader. */
  readonly onResponse: (turn: TurnState) => void
  /** The turn is over. Of its permits only the session's is not back yet, so that no other turn starts before this. */
  readonly onEnd: (turn: TurnState, outcome: TurnOutcome.TurnOutcome) => void
  /** Who ends turns that nobody cancelled: the session's close or the sidecar's dispose. */
  readonly closedBy: () => TurnOutcome.CancelledBy
  /** Why the agent's connection ended, if it has. */
  readonly agentEnd: () => AcpError.ConnectionEnd | undefined
  /** The agent does not end the turn: stop it, or cut the session off. The session is unusable afterwards. */
  readonly giveUp: Effect.Effect<"retired" | "quarantined">
  /** The agent closed its session to end the turn. The session is unusable afterwards. */
  readonly agentClosed: Effect.Effect<void>
}

/**
 * A turn that has not begun.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (
  options: Pick<TurnState, "id" | "address" | "lane" | "prompt" | "from" | "idleTimeout" | "wallTimeout">
): TurnState => ({
  ...options,
  dispatched: Deferred.makeUnsafe(),
  ended: Deferred.makeUnsafe(),
  phase: "queued",
  cancelledBy: undefined,
  expired: false,
  outputBytes: 0,
  firstUpdateAt: undefined,
  broke: undefined,
  answer: undefined,
  stopped: undefined,
  outcome: undefined,
  fiber: undefined
})

/**
 * Runs a turn to its one outcome. Interrupting it cancels it: the agent is asked to end the turn and has the grace
 * period for it, during which the permits are kept; then it is made to. The effect ends when the outcome is known and
 * everything is given back.
 *
 * @stability unstable
 * @category running
 * @since 0.1.0
 */
export const run = (context: TurnContext, turn: TurnState): Effect.Effect<void> =>
  // The mask comes first: an interrupt from here on can't skip the outcome.
  Effect.uninterruptibleMask((restore) => {
    const end = (exit: Exit.Exit<void, AcpError.ConnectionEnd>) => Effect.sync(() => finish(context, turn, exit))
    const { sessionId, vmId } = turn.address
    const admitted = Effect.suspend(() => running(context, turn)).pipe(
      Admission.withPermit(context.sidecarGate, vmId!, turn.lane),
      Admission.withPermit(context.vmGate, sessionId!, turn.lane)
    )
    const work = context.sessionPermits.withPermit(
      Effect.uninterruptibleMask((again) => Effect.flatMap(Effect.exit(again(admitted)), end))
    )
    return Effect.exit(restore(work)).pipe(
      Effect.flatMap(end),
      Effect.andThen(
        Effect.sync(() => {
          Deferred.doneUnsafe(turn.dispatched, Exit.succeed(false))
          Deferred.doneUnsafe(turn.ended, Exit.succeed(turn.outcome!))
        })
      )
    )
  })

/** Gives the turn its one outcome; nothing happens the second time. */
const finish = (context: TurnContext, turn: TurnState, exit: Exit.Exit<void, AcpError.ConnectionEnd>): void => {
  if (turn.outcome !== undefined) return
  try {
    turn.outcome = decide(context, turn, exit)
  } catch (defect) {
    const { address } = turn
    turn.outcome = TurnOutcome.failed(
      new SidecarError.TurnFailed({ address, phase: "running", reason: internal(Cause.die(defect)) })
    )
  }
  turn.prompt = []
  const end = context.agentEnd()
  const crashed = end !== undefined && end._tag !== "HostClosed"
  Permission.cancel(context.permissions, crashed ? "crash" : "turn_end", turn.id)
  context.onEnd(turn, turn.outcome)
  // Last: to its readers it means that there are no more events to wait for.
  turn.phase = "ended"
}

/** From admission to the end, with all permits held. */
const running = (context: TurnContext, turn: TurnState): Effect.Effect<void, AcpError.ConnectionEnd> =>
  Effect.uninterruptibleMask((restore) => {
    if (turn.expired) return Effect.interrupt
    const end = context.agentEnd()
    if (end !== undefined) return Effect.fail(end)
    const { agentSessionId, host } = context
    const hooks: AcpConnection.RequestHooks = {
      onSettled: (exit) => {
        context.onResponse(turn)
        turn.answer = exit
      }
    }
    turn.phase = "running"
    context.onDispatch(turn)
    context.record({ _tag: "TurnStarted", turnId: turn.id })
    const prompt = host.protocol.prompt(agentSessionId, turn.prompt, context.traceparent(turn))
    return host.connection.start(AcpProtocol.method.sessionPrompt, prompt, hooks).pipe(
      Effect.flatMap((pending) => {
        Deferred.doneUnsafe(turn.dispatched, Exit.succeed(true))
        return Effect.exit(restore(pending.response)).pipe(
          Effect.andThen(Effect.suspend(() => (isOver(turn) ? Effect.void : stop(context, turn, pending)))),
          Effect.ensuring(pending.abandon)
        )
      }),
      // Also when it never left: then nothing will answer.
      Effect.ensuring(Effect.sync(() => context.onResponse(turn)))
    )
  })

/** The agent ended the turn before anybody else wanted it to. */
const isOver = (turn: TurnState): boolean =>
  turn.answer !== undefined && turn.cancelledBy === undefined && turn.broke === undefined

const reported = (exit: Answer): string | null => {
  if (Exit.isSuccess(exit)) {
    const stopReason = (exit.value as { readonly stopReason?: unknown } | null | undefined)?.stopReason
    return typeof stopReason === "string" ? stopReason : "an invalid answer"
  }
  const failure = Exit.findErrorOption(exit)
  return Option.isSome(failure) && failure.value._tag === "RequestError" ? `error ${failure.value.code}` : null
}

/**
 * Makes the agent end the turn, within the grace period: its questions are answered, it is asked, asked again at an
 * eighth of it, asked harder at half of it, told to close the session at three quarters, and given up at its end.
 */
const stop = (context: TurnContext, turn: TurnState, pending: AcpConnection.Pending): Effect.Effect<void> =>
  Effect.map(escalate(context, turn, pending), (escalation) => {
    turn.stopped = { agentReported: turn.answer === undefined ? null : reported(turn.answer), escalation }
  })

const escalate = Effect.fnUntraced(function* (
  context: TurnContext,
  turn: TurnState,
  pending: AcpConnection.Pending
): Effect.fn.Return<TurnOutcome.Escalation> {
  // It answered just now: to cancel an idle session would harm its next turn.
  if (turn.answer !== undefined) return "none"
  const { agentSessionId, host, limits } = context
  turn.phase = "cancelling"
  context.onStop(turn)
  Permission.cancel(context.permissions, "cancel", turn.id)
  const grace = Duration.toMillis(limits.cancelGrace)
  /** Does something about it; `true` when the turn is over in time. */
  const within = (share: number, action: Effect.Effect<unknown, unknown>): Effect.Effect<boolean> => {
    // An action that is still on its way when the turn is over is taken back: it would hit an idle session.
    const over = Effect.raceFirst(Effect.exit(pending.response), Effect.andThen(Effect.ignore(action), Effect.never))
    // The turn's fiber is past interruption here; what it waits for must not be.
    return Effect.map(Effect.timeoutOption(Effect.interruptible(over), Duration.millis(grace * share)), Option.isSome)
  }

  const cancel = host.protocol.cancel(agentSessionId)
  const ask = host.connection.notify(cancel.method, cancel.params)
  if (yield* within(1 / 8, ask)) return "none"
  // Some agents forget a cancel that comes before they have begun with the prompt.
  if (yield* within(3 / 8, ask)) return "none"
  const canClose = host.protocol.canClose(host.initialize.agentCapabilities)
  if (yield* within(canClose ? 1 / 4 : 1 / 2, pending.cancel)) return "cancel_request"
  if (canClose) {
    if (yield* within(1 / 4, AgentSession.requestClose(host, agentSessionId))) {
      yield* context.agentClosed
      return "session_close"
    }
  }
  return yield* context.giveUp
})

const decide = (
  context: TurnContext,
  turn: TurnState,
  exit: Exit.Exit<void, AcpError.ConnectionEnd>
): TurnOutcome.TurnOutcome => {
  const phase = Deferred.isDoneUnsafe(turn.dispatched) ? "running" : "queued"
  const failed = (reason: SidecarError.TurnReason) =>
    TurnOutcome.failed(new SidecarError.TurnFailed({ address: turn.address, phase, reason }))
  const { answer, broke, cancelledBy, stopped } = turn
  if (stopped === undefined && isOver(turn)) return answered(context, answer!, failed)
  if (broke !== undefined) return failed(breachError(broke, stopped?.escalation ?? "none"))
  if (stopped !== undefined) {
    return TurnOutcome.cancelled(cancelledBy ?? context.closedBy(), stopped.agentReported, stopped.escalation)
  }
  // The agent never had the prompt.
  if (turn.expired) {
    const afterMillis = Duration.toMillis(context.limits.admissionTimeout)
    return failed(new SidecarError.TurnTimedOut({ deadline: "admission", afterMillis, escalation: "none" }))
  }
  if (Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause)) {
    const failure = Cause.findErrorOption(exit.cause)
    return failed(Option.getOrElse(failure, () => internal(exit.cause)))
  }
  // A turn that was waiting when the agent died was not cancelled by anyone.
  const end = cancelledBy === undefined ? context.agentEnd() : undefined
  return end === undefined ? TurnOutcome.cancelled(cancelledBy ?? context.closedBy()) : failed(end)
}

const answered = (
  context: TurnContext,
  answer: Answer,
  failed: (reason: SidecarError.TurnReason) => TurnOutcome.TurnOutcome
): TurnOutcome.TurnOutcome => {
  if (Exit.isFailure(answer)) {
    return failed(Option.getOrElse(Cause.findErrorOption(answer.cause), () => internal(answer.cause)))
  }
  const response = context.host.protocol.turnEnd(answer.value)
  return Result.isSuccess(response)
    ? TurnOutcome.completed(response.success.stopReason, response.success)
    : failed(
        new AcpError.InvalidResponse({
          method: AcpProtocol.method.sessionPrompt,
          detail: context.host.redact(response.failure)
        })
      )
}

/** A defect of ours must not leave a turn without an end. */
const internal = (cause: Cause.Cause<unknown>): AcpError.HostClosed =>
  new AcpError.HostClosed({ reason: `an internal error: ${Cause.pretty(cause).slice(0, 1000)}` })

const breachError = (breach: Breach, escalation: TurnOutcome.Escalation): SidecarError.TurnReason => {
  switch (breach._tag) {
    case "Idle":
      return new SidecarError.TurnTimedOut({ deadline: "idle", afterMillis: breach.afterMillis, escalation })
    case "Wall":
      return new SidecarError.TurnTimedOut({ deadline: "wall", afterMillis: breach.afterMillis, escalation })
    case "Output": {
      const { limit, max, used } = breach
      return new SidecarError.OutputExceeded({ limit, max, used, setting: SidecarLimits.setting(limit) })
    }
  }
}

/**
 * Ends a running turn for a breach. Nothing happens when it is ending already.
 *
 * @stability unstable
 * @category ending
 * @since 0.1.0
 */
export const breach = (turn: TurnState, why: Breach): void => {
  if (turn.phase !== "running" || !isWanted(turn)) return
  turn.broke = why
  turn.fiber?.interruptUnsafe()
}

/** Nobody has ended it, or wants to, and the agent has not. */
const isWanted = (turn: TurnState): boolean =>
  turn.outcome === undefined &&
  turn.answer === undefined &&
  turn.cancelledBy === undefined &&
  turn.broke === undefined &&
  !turn.expired

/**
 * Asks a turn to end, without waiting. The first one to ask is the one that the outcome names; later calls change
 * nothing.
 *
 * @stability unstable
 * @category ending
 * @since 0.1.0
 */
export const cancelUnsafe = (turn: TurnState | undefined, by: TurnOutcome.CancelledBy): void => {
  if (turn === undefined || !isWanted(turn)) return
  turn.cancelledBy = by
  turn.fiber?.interruptUnsafe()
}

/**
 * Ends a turn that was not admitted in time. Nothing happens once it runs.
 *
 * @stability unstable
 * @category ending
 * @since 0.1.0
 */
export const expire = (turn: TurnState): void => {
  if (turn.phase !== "queued" || !isWanted(turn)) return
  turn.expired = true
  turn.fiber?.interruptUnsafe()
}

/**
 * Counts what a turn's agent sent and ends the turn when that is too much. `false` from then on: it is not delivered.
 *
 * @stability unstable
 * @category limits
 * @since 0.1.0
 */
export const countOutput = (turn: TurnState, bytes: number, max: number): boolean => {
  turn.outputBytes += bytes
  if (turn.outputBytes <= max) return true
  breach(turn, { _tag: "Output", limit: "maxTurnOutputBytes", max, used: turn.outputBytes })
  return false
}
