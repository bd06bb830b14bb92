// One turn of one agent, streamed, to its exit code.
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Terminal from "effect/Terminal"
import type { AgentProfile } from "../AgentProfile.ts"
import type * as Permission from "../Permission.ts"
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

/** One line of `--json`. */
const jsonEvent = (event: SidecarEvent.SessionEvent): unknown =>
  event._tag === "TurnEnded" ? { ...event, outcome: encodeOutcome(event.outcome) } : event

const show = (turn: Session.Turn, isJson: boolean): Effect.Effect<void> => {
  if (isJson) return Stream.runForEach(turn.updates, (event) => Output.json(jsonEvent(event)))
  const transcript = Transcript.make(Output)
  const print = (pieces: ReadonlyArray<Transcript.Piece>) =>
    Effect.forEach(pieces, ({ sink, text }) => Output.write(sink, text), { discard: true })
  return Stream.runForEach(turn.updates, (event) => print(transcript.event(event))).pipe(
    Effect.ensuring(Effect.suspend(() => print(transcript.end())))
  )
}

const setMode = Effect.fnUntraced(function* (session: Session.Session, mode: string) {
  const modes = session.modes?.availableModes ?? []
  if (modes.some(({ id }) => id === mode)) return yield* Effect.mapError(session.setMode(mode), fromError)
  const offered = modes.map(({ id }) => oneLine(id, 80)).join(", ")
  return yield* badInput(
    `--mode "${oneLine(mode, 80)}" is not offered by the agent; ${offered === "" ? "it has no modes" : `its modes are ${offered}`}.`
  )
})

export const oneTurn = Effect.fnUntraced(function* (
  options: Options
): Effect.fn.Return<void, CommandFailure, Sidecar.Sidecar | Scope.Scope | Terminal.Terminal> {
  const sidecar = yield* Sidecar.Sidecar
  const permission: Permission.Policy = options.permission === "ask" ? yield* Ask.make : options.permission
  const { authenticate } = options
  const session = yield* sidecar.openVm({ root: options.cwd, env: options.env }).pipe(
    Effect.flatMap((vm) => vm.openSession({ agent: options.agent, permission, authenticate })),
    Effect.mapError(fromError)
  )
  if (options.mode !== undefined) yield* setMode(session, options.mode)
  yield* Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const { idleTimeout, timeout } = options
      const turn = yield* session
        .submit(options.prompt, { idleTimeout, wallTimeout: timeout })
        .pipe(Effect.mapError(fromError))
      const showing = yield* Effect.forkChild(show(turn, options.isJson), { startImmediately: true })
      const exit = yield* Effect.exit(restore(turn.outcome))
      const outcome = Exit.isSuccess(exit) ? exit.value : yield* turn.cancel
      yield* Fiber.await(showing)
      const { code, message } = conclude(outcome)
      const end = { code, message: Exit.isSuccess(exit) ? message : conclude(outcome).message }
      if (options.isJson) {
        yield* Output.json({ _tag: "Outcome", exitCode: code, message, outcome: encodeOutcome(outcome) })
      }
      if (code !== exitCode.done) return yield* new CommandFailure(end)
      if (message !== "") yield* Output.note(message)
    })
  )
}, Effect.scoped)

export const main = (options: Options) => withSidecar(oneTurn(options))
