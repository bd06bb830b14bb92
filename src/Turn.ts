/**
 * One prompt and its answer: a supervised fiber with exactly one outcome.
 *
 * @since 0.1.0
 */
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

/** What a running turn waits for. */
type Signal = Exit.Exit<unknown, AcpError.RequestFailure> | Breach

/** How the running part of a turn ended, while it still holds its permits. */
type Ending =
  | { readonly _tag: "Response"; readonly exit: Exit.Exit<unknown, AcpError.RequestFailure> }
  | { readonly _tag: "Cancelled"; readonly agentReported: string | null; readonly escalation: TurnOutcome.Escalation }
  | { readonly _tag: "Breached"; readonly breach: Breach; readonly escalation: TurnOutcome.Escalation }

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
  readonly prompt: ReadonlyArray<Acp.ContentBlock>
  /** The session's event from which on this turn's may come. */
  readonly from: number
  readonly idleTimeout: Duration.Duration
  readonly wallTimeout: Duration.Duration
  /** `true` once the prompt was handed to the connection, `false` when the turn ended before. */
  readonly dispatched: Deferred.Deferred<boolean>
  readonly ended: Deferred.Deferred<TurnOutcome.TurnOutcome>
  /** @internal */
  readonly signal: Deferred.Deferred<Signal>
  phase: Phase
  /** Who wanted it to end; the first one counts. */
  cancelledBy: TurnOutcome.CancelledBy | undefined
  /** It waited too long to be admitted. */
  expired: boolean
  outputBytes: number
  /** @internal What follows a breach is not delivered. */
  breached: boolean
  /**
   * @internal How the running part ended. It is kept here since an interrupted fiber loses what it returns on its way
   * out of the permits.
   */
  ending: Ending | undefined
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
  /** The prompt leaves: from now on updates belong to this turn. Runs before its bytes do. */
  readonly onDispatch: (turn: TurnState) => void
  /** The response is here: from the next frame on, updates come after this turn. Runs in the reader. */
  readonly onResponse: (turn: TurnState) => void
  /** The turn is over and has given everything back. */
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
  signal: Deferred.makeUnsafe(),
  phase: "queued",
  cancelledBy: undefined,
  expired: false,
  outputBytes: 0,
  breached: false,
  ending: undefined,
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
    const admitted = Effect.suspend(() => running(context, turn))
    const work = context.sessionPermits.withPermit(
      Admission.withPermit(
        context.vmGate,
        turn.address.sessionId!,
        turn.lane
      )(Admission.withPermit(context.sidecarGate, turn.address.vmId!, turn.lane)(admitted))
    )
    return Effect.flatMap(Effect.exit(restore(work)), (exit) =>
      Effect.sync(() => {
        const outcome = decide(context, turn, exit)
        turn.phase = "ended"
        Permission.cancel(context.permissions, "turn_end", turn.id)
        context.onEnd(turn, outcome)
        Deferred.doneUnsafe(turn.dispatched, Exit.succeed(false))
        Deferred.doneUnsafe(turn.ended, Exit.succeed(outcome))
      })
    )
  })

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
        Deferred.doneUnsafe(turn.signal, Exit.succeed<Signal>(exit))
      }
    }
    turn.phase = "running"
    context.onDispatch(turn)
    context.record({ _tag: "TurnStarted", turnId: turn.id })
    const prompt = host.protocol.prompt(agentSessionId, turn.prompt)
    return host.connection.start(AcpProtocol.method.sessionPrompt, prompt, hooks).pipe(
      Effect.onExit((exit) =>
        // It never left: nothing is to be cancelled, and nothing will answer.
        Exit.isSuccess(exit) ? Effect.void : Effect.sync(() => context.onResponse(turn))
      ),
      Effect.flatMap((pending) => {
        Deferred.doneUnsafe(turn.dispatched, Exit.succeed(true))
        return Effect.exit(restore(Deferred.await(turn.signal))).pipe(
          Effect.flatMap((exit) => conclude(context, turn, pending, exit)),
          Effect.flatMap((ending) =>
            Effect.sync(() => {
              turn.ending = ending
            })
          ),
          Effect.ensuring(
            Effect.andThen(
              pending.abandon,
              Effect.sync(() => context.onResponse(turn))
            )
          )
        )
      })
    )
  })

const conclude = (
  context: TurnContext,
  turn: TurnState,
  pending: AcpConnection.Pending,
  exit: Exit.Exit<Signal>
): Effect.Effect<Ending> => {
  if (Exit.isFailure(exit)) {
    return Effect.map(stop(context, turn, pending), ([reported, escalation]): Ending => ({
      _tag: "Cancelled",
      agentReported: reported,
      escalation
    }))
  }
  const signal = exit.value
  if (Exit.isExit(signal)) return Effect.succeed<Ending>({ _tag: "Response", exit: signal })
  turn.breached = true
  return Effect.map(stop(context, turn, pending), ([, escalation]): Ending => ({
    _tag: "Breached",
    breach: signal,
    escalation
  }))
}

const reported = (exit: Exit.Exit<unknown, AcpError.RequestFailure>): string | null => {
  if (Exit.isSuccess(exit)) {
    const stopReason = (exit.value as { readonly stopReason?: unknown } | null | undefined)?.stopReason
    return typeof stopReason === "string" ? stopReason : "an invalid answer"
  }
  const failure = Exit.findErrorOption(exit)
  return Option.isSome(failure) && failure.value._tag === "RequestError" ? `error ${failure.value.code}` : null
}

/**
 * Makes the agent end the turn, within the grace period: its questions are answered, it is asked, then asked harder at
 * half of it, told to close the session at three quarters, and given up at the end of it.
 */
const stop = Effect.fnUntraced(function* (
  context: TurnContext,
  turn: TurnState,
  pending: AcpConnection.Pending
): Effect.fn.Return<readonly [string | null, TurnOutcome.Escalation]> {
  const { agentSessionId, host, limits } = context
  turn.phase = "cancelling"
  Permission.cancel(context.permissions, "cancel", turn.id)
  const grace = Duration.toMillis(limits.cancelGrace)
  const settled = Effect.exit(pending.response)
  const within = <A>(millis: number, effect: Effect.Effect<A>) =>
    // The turn's fiber is past interruption here; what it waits for must not be.
    Effect.timeoutOption(Effect.interruptible(effect), Duration.millis(millis))

  const cancel = host.protocol.cancel(agentSessionId)
  const asked = yield* within(
    grace / 2,
    Effect.andThen(Effect.ignore(host.connection.notify(cancel.method, cancel.params)), settled)
  )
  if (Option.isSome(asked)) return [reported(asked.value), "none"]

  const canClose = host.protocol.canClose(host.initialize.agentCapabilities)
  const again = yield* within(canClose ? grace / 4 : grace / 2, Effect.andThen(pending.cancel, settled))
  if (Option.isSome(again)) return [reported(again.value), "cancel_request"]

  if (canClose) {
    const close = host.connection.request(AcpProtocol.method.sessionClose, { sessionId: agentSessionId })
    const closed = yield* within(grace / 4, Effect.andThen(Effect.ignore(close), settled))
    if (Option.isSome(closed)) {
      yield* context.agentClosed
      return [reported(closed.value), "session_close"]
    }
  }
  return [null, yield* context.giveUp]
})

const decide = (
  context: TurnContext,
  turn: TurnState,
  exit: Exit.Exit<void, AcpError.ConnectionEnd>
): TurnOutcome.TurnOutcome => {
  const failed = (reason: SidecarError.TurnReason) =>
    TurnOutcome.failed(
      new SidecarError.TurnFailed({
        address: turn.address,
        phase: turn.phase === "queued" ? "queued" : "running",
        reason
      })
    )
  const { ending } = turn
  if (ending === undefined) {
    const failure = Exit.findErrorOption(exit)
    if (Option.isSome(failure)) return failed(failure.value)
    if (!turn.expired) {
      // A turn that was waiting when the agent died was not cancelled by anyone.
      const end = turn.cancelledBy === undefined ? context.agentEnd() : undefined
      return end === undefined ? TurnOutcome.cancelled(turn.cancelledBy ?? context.closedBy()) : failed(end)
    }
    const afterMillis = Duration.toMillis(context.limits.admissionTimeout)
    return failed(new SidecarError.TurnTimedOut({ deadline: "admission", afterMillis, escalation: "none" }))
  }
  switch (ending._tag) {
    case "Cancelled":
      return TurnOutcome.cancelled(turn.cancelledBy ?? context.closedBy(), ending.agentReported, ending.escalation)
    case "Breached":
      return failed(breachError(ending.breach, ending.escalation))
    case "Response": {
      if (Exit.isFailure(ending.exit)) {
        return failed(
          Option.getOrElse(
            Exit.findErrorOption(ending.exit),
            () => new AcpError.HostClosed({ reason: "it was closed" })
          )
        )
      }
      const response = context.host.protocol.turnEnd(ending.exit.value)
      return Result.isSuccess(response)
        ? TurnOutcome.completed(response.success.stopReason, response.success)
        : failed(new AcpError.InvalidResponse({ method: AcpProtocol.method.sessionPrompt, detail: response.failure }))
    }
  }
}

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
  if (turn.phase !== "running" || turn.breached) return
  turn.breached = true
  Deferred.doneUnsafe(turn.signal, Exit.succeed<Signal>(why))
}

/**
 * Asks a turn to end, without waiting. The first one to ask is the one that the outcome names; later calls change
 * nothing.
 *
 * @stability unstable
 * @category ending
 * @since 0.1.0
 */
export const cancelUnsafe = (turn: TurnState | undefined, by: TurnOutcome.CancelledBy): void => {
  if (turn === undefined || turn.phase === "ended") return
  turn.cancelledBy ??= by
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
  if (turn.phase !== "queued") return
  turn.expired = true
  turn.fiber?.interruptUnsafe()
}

/**
 * Counts what a turn's agent sent and ends the turn when that is too much. `false` when it is not to be delivered.
 *
 * @stability unstable
 * @category limits
 * @since 0.1.0
 */
export const countOutput = (turn: TurnState, bytes: number, max: number): boolean => {
  if (turn.breached) return false
  turn.outputBytes += bytes
  if (turn.outputBytes <= max) return true
  breach(turn, { _tag: "Output", limit: "maxTurnOutputBytes", max, used: turn.outputBytes })
  return false
}
