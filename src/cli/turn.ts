// One turn of a session, shown as it goes, to its exit code.
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as FiberMap from "effect/FiberMap"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Terminal from "effect/Terminal"
import type * as Session from "../Session.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import * as TurnOutcome from "../TurnOutcome.ts"
import * as Ask from "./ask.ts"
import { codeOf, CommandFailure, type ExitCode, exitCode, fromError, oneLine, sentence } from "./failure.ts"
import * as Output from "./output.ts"
import * as Transcript from "./transcript.ts"

export interface Options {
  readonly prompt: string
  /** Whether the person at the terminal is asked what the agent asks. */
  readonly isAsking: boolean
  readonly timeout: Duration.Duration | undefined
  readonly idleTimeout: Duration.Duration | undefined
  readonly isJson: boolean
}

/** How the turn ended, for the exit code and for the user. */
export const conclude = (outcome: TurnOutcome.TurnOutcome): { readonly code: ExitCode; readonly message: string } => {
  switch (outcome._tag) {
    case "Completed":
      return outcome.stopReason === "cancelled"
        ? { code: exitCode.cancelled, message: "The agent cancelled the turn." }
        : {
            code: exitCode.done,
            message: outcome.stopReason === "end_turn" ? "" : `The agent stopped: ${oneLine(outcome.stopReason, 80)}.`
          }
    case "Cancelled":
      return {
        code: exitCode.cancelled,
        message:
          outcome.escalation === "retired"
            ? "The turn was cancelled; the agent did not end it and was stopped."
            : "The turn was cancelled."
      }
    case "Failed":
      return { code: codeOf(outcome.error), message: sentence(outcome.error) }
  }
}

const encodeOutcome = Schema.encodeUnknownSync(Schema.toCodecJson(TurnOutcome.TurnOutcome))

export const jsonEvent = (event: SidecarEvent.SessionEvent): string =>
  Output.jsonLine(event, (whole) =>
    whole._tag === "TurnEnded" ? { ...whole, outcome: encodeOutcome(whole.outcome) } : whole
  )

/** The last line of `--json`; the outcome is `null` when there was no turn. */
const jsonOutcome = (exitCode: ExitCode, message: string, outcome: TurnOutcome.TurnOutcome | null) =>
  Output.write(
    "out",
    Output.jsonLine(outcome, (end) => ({
      _tag: "Outcome",
      exitCode,
      message,
      outcome: end === null ? null : encodeOutcome(end)
    }))
  )

/** Shows a turn's events, and puts its questions to the user when that is wanted. Ends with the turn. */
const show = Effect.fnUntraced(function* (session: Session.Session, turn: Session.Turn, options: Options) {
  const transcript = Transcript.make(Output)
  const print = (pieces: ReadonlyArray<Transcript.Piece>) =>
    Effect.forEach(Transcript.joined(pieces), ({ sink, text }) => Output.write(sink, text), { discard: true })
  const pieces = (event: SidecarEvent.SessionEvent): ReadonlyArray<Transcript.Piece> =>
    options.isJson ? [{ sink: "out", text: jsonEvent(event) }] : transcript.event(event)
  const ask = options.isAsking ? yield* Ask.make : undefined
  const asking = yield* FiberMap.make<string, void>()
  const question = (event: SidecarEvent.SessionEvent) => {
    if (ask === undefined) return Effect.void
    if (event._tag === "PermissionAnswered") return FiberMap.remove(asking, event.permissionId)
    if (event._tag !== "PermissionAsked") return Effect.void
    // A policy may have answered it already.
    const answer = Effect.flatMap(session.pendingPermissions, (pending) =>
      pending.some(({ permissionId }) => permissionId === event.permissionId)
        ? Effect.flatMap(ask(event), (decision) => Effect.ignore(session.answer(event.permissionId, decision)))
        : Effect.void
    )
    return FiberMap.run(asking, event.permissionId, Effect.interruptible(answer))
  }
  // All that is there at once, since a write for each event is slower than a fast agent.
  yield* Stream.runForEachArray(turn.updates, (events) =>
    Effect.gen(function* () {
      let unshown: Array<Transcript.Piece> = []
      for (const event of events) {
        unshown.push(...pieces(event))
        if (event._tag !== "PermissionAsked" && event._tag !== "PermissionAnswered") continue
        // After what came before it has been shown.
        yield* print(unshown)
        unshown = []
        yield* question(event)
      }
      yield* print(unshown)
    })
  )
  yield* print(transcript.end())
}, Effect.scoped)

/** How long a reader that reads nothing holds up the end, once somebody wants it. */
const patience = Duration.seconds(2)

/** Opens a session, or finds it, and prompts it. Interrupting this cancels the turn and waits for its end. */
export const run = Effect.fnUntraced(function* <E extends { readonly _tag: string; readonly message: string }, R>(
  opened: Effect.Effect<Session.Session, E, R>,
  options: Options
): Effect.fn.Return<void, CommandFailure, R | Scope.Scope | Terminal.Terminal> {
  const told = <A, E extends { readonly _tag: string; readonly message: string }, R>(effect: Effect.Effect<A, E, R>) =>
    effect.pipe(
      Effect.mapError((error) => (error instanceof CommandFailure ? error : fromError(error))),
      Effect.tapError(({ code, message }) => (options.isJson ? jsonOutcome(code, message, null) : Effect.void))
    )
  const session = yield* told(opened)
  yield* Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const { idleTimeout, timeout } = options
      const turn = yield* told(session.submit(options.prompt, { idleTimeout, wallTimeout: timeout }))
      const showing = yield* Effect.forkChild(show(session, turn, options), { startImmediately: true })
      const exit = yield* Effect.exit(restore(turn.outcome))
      const outcome = Exit.isSuccess(exit) ? exit.value : yield* turn.cancel
      const { code, message } = conclude(outcome)
      const ending = Effect.gen(function* () {
        yield* Fiber.await(showing)
        if (options.isJson) yield* jsonOutcome(code, message, outcome)
        // An interrupt takes the place of what this fails with, so the message can't wait.
        if (Exit.isFailure(exit) && message !== "" && Output.isRead()) yield* Output.note(message)
      })
      const telling = yield* Effect.forkChild(ending, { startImmediately: true })
      const shown = yield* Effect.exit(restore(Fiber.await(telling)))
      if (Exit.isFailure(shown)) yield* Effect.timeoutOption(Fiber.await(telling), patience)
      if (code !== exitCode.done) return yield* new CommandFailure({ code, message })
      if (message !== "") yield* Output.note(message)
    })
  )
}, Effect.scoped)
