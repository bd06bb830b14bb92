// One turn of one agent, streamed, to its exit code.
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as FiberMap from "effect/FiberMap"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Terminal from "effect/Terminal"
import type { AgentProfile } from "../AgentProfile.ts"
import type * as Session from "../Session.ts"
import * as Sidecar from "../Sidecar.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import * as TurnOutcome from "../TurnOutcome.ts"
import * as Ask from "./ask.ts"
import { badInput, codeOf, CommandFailure, type ExitCode, exitCode, fromError, oneLine, sentence } from "./failure.ts"
import * as Output from "./output.ts"
import { withSidecar } from "./sidecar.ts"
import * as Transcript from "./transcript.ts"

export interface Options {
  readonly agent: AgentProfile
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  readonly permission: "ask" | "allow" | "reject"
  readonly timeout: Duration.Duration | undefined
  readonly idleTimeout: Duration.Duration | undefined
  readonly mode: string | undefined
  readonly authenticate: string | undefined
  readonly prompt: string
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
  const ask = options.permission === "ask" ? yield* Ask.make : undefined
  const asking = yield* FiberMap.make<string, void>()
  const question = (event: SidecarEvent.SessionEvent) => {
    if (ask === undefined) return Effect.void
    if (event._tag === "PermissionAnswered") return FiberMap.remove(asking, event.permissionId)
    if (event._tag !== "PermissionAsked") return Effect.void
    const answer = Effect.flatMap(ask(event), (decision) => Effect.ignore(session.answer(event.permissionId, decision)))
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

const setMode = Effect.fnUntraced(function* (session: Session.Session, mode: string) {
  const modes = session.modes?.availableModes ?? []
  if (modes.some(({ id }) => id === mode)) return yield* Effect.mapError(session.setMode(mode), fromError)
  const offered = modes.map(({ id }) => oneLine(id, 80)).join(", ")
  return yield* badInput(
    `--mode "${oneLine(mode, 80)}" is not offered by the agent; ${offered === "" ? "it has no modes" : `its modes are ${offered}`}.`
  )
})

const open = Effect.fnUntraced(function* (options: Options) {
  const sidecar = yield* Sidecar.Sidecar
  const { agent, authenticate, mode, permission } = options
  const vm = yield* sidecar.openVm({ root: options.cwd, env: options.env })
  const session = yield* vm.openSession({ agent, permission, authenticate })
  if (mode !== undefined) yield* setMode(session, mode)
  return session
})

/** How long a reader that reads nothing holds up the end, once somebody wants it. */
const patience = Duration.seconds(2)

const oneTurn = Effect.fnUntraced(function* (
  options: Options
): Effect.fn.Return<void, CommandFailure, Sidecar.Sidecar | Scope.Scope | Terminal.Terminal> {
  const told = <A, E extends { readonly _tag: string; readonly message: string }, R>(effect: Effect.Effect<A, E, R>) =>
    effect.pipe(
      Effect.mapError((error) => (error instanceof CommandFailure ? error : fromError(error))),
      Effect.tapError(({ code, message }) => (options.isJson ? jsonOutcome(code, message, null) : Effect.void))
    )
  const session = yield* told(open(options))
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

export const main = (options: Options) => withSidecar(oneTurn(options))
