// A whole session whose agent writes fuzzed bytes during a turn: the turn ends as its agent said, and the next one runs.
import assert from "node:assert/strict"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import * as Stream from "effect/Stream"
import * as AcpSchema from "../../src/acp/AcpSchema.ts"
import type * as AcpCodec from "../../src/acp/AcpCodec.ts"
import * as SidecarEvent from "../../src/SidecarEvent.ts"
import type * as ScriptedAgent from "../../src/testing/ScriptedAgent.ts"
import * as TestSidecar from "../../src/testing/TestSidecar.ts"
import { soFar, textOf } from "../support/events.ts"
import { decode } from "./codec.ts"
import { answersTo, isCall, numberOf } from "./connection.ts"
import * as Input from "./Input.ts"
import { sessionId } from "./mutate.ts"

const isEvent = Schema.is(SidecarEvent.SessionEvent)
const lastText = "~all written"

/** A turn: the number of its request, its session, and whether no other session shares the agent. */
interface Asked {
  readonly promptId: number
  readonly sessionId: string
  readonly isAlone: boolean
}

/** `initialize` and `session/new` were the first two. */
const onlyPrompt: Asked = { promptId: 3, sessionId, isAlone: true }

const endOf = (outcome: AcpCodec.Outcome, { isAlone, promptId, sessionId }: Asked): string | undefined => {
  if (outcome._tag !== "Response" && outcome._tag !== "Malformed" && outcome._tag !== "TooLarge") return undefined
  if (numberOf(outcome.id) === promptId && (outcome._tag === "Response" || !isCall(outcome))) {
    if (outcome._tag !== "Response") return "InvalidResponse"
    if (outcome.error !== undefined) return "RequestError"
    const read = AcpSchema.promptResponse(outcome.result)
    return read._tag === "Success" ? `Completed ${read.success.stopReason}` : "InvalidResponse"
  }
  if (outcome._tag !== "TooLarge" || (outcome.method === undefined && outcome.id !== undefined)) return undefined
  return (outcome.sessionId === undefined && isAlone) || outcome.sessionId === sessionId ? "OutputExceeded" : undefined
}

/** The ends that are right for a turn during which all of this came. A breach may meet the answer that was on its way. */
export const ends = (outcomes: ReadonlyArray<AcpCodec.Outcome>, asked: Asked): ReadonlyArray<string> => {
  const found: Array<string> = []
  for (const outcome of outcomes) {
    const end = endOf(outcome, asked)
    if (end === undefined) continue
    found.push(end)
    if (end !== "OutputExceeded") return found
  }
  return [...found, "Completed end_turn"]
}

export const countAnswers = (frames: ReadonlyArray<AcpCodec.Frame>): Map<string, number> => {
  const answers = new Map<string, number>()
  for (const frame of frames) {
    if (frame._tag === "Response")
      answers.set(JSON.stringify(frame.id), (answers.get(JSON.stringify(frame.id)) ?? 0) + 1)
  }
  return answers
}

export const checkEvents = (
  all: ReadonlyArray<SidecarEvent.SessionEvent>,
  input: Input.Input,
  turnId: string
): void => {
  let number = 0
  const texts: Array<string> = []
  const questions = new Map<string, number>()
  const ended = new Map<string, number>()
  for (const event of all) {
    assert.ok(isEvent(event), `an event is what its schema says: ${event._tag}`)
    assert.ok("number" in event && event.number === ++number, "events are numbered without gaps")
    if (event._tag === "TurnEnded") ended.set(event.turnId, (ended.get(event.turnId) ?? 0) + 1)
    if (event._tag === "PermissionAsked") questions.set(event.permissionId, 0)
    if (event._tag === "PermissionAnswered") questions.set(event.permissionId, questions.get(event.permissionId)! + 1)
    const text = textOf(event)
    if (event._tag !== "Update" || !text.startsWith("~mark ")) continue
    texts.push(text)
    assert.equal(event.turnId ?? event.afterTurn, turnId, "what came in a turn belongs to it")
  }
  assert.deepEqual(texts, Input.marks(input, "update").map(Input.markText), "marked updates, in order")
  assert.deepEqual([...ended.values()], [1, 1], "each turn ends once")
  for (const [id, answers] of questions) assert.equal(answers, 1, `the question ${id} is answered once`)
}

const check = Effect.fnUntraced(function* (input: Input.Input) {
  const written = yield* Deferred.make<void>()
  const prompt = (turn: ScriptedAgent.PromptTurn, agent: ScriptedAgent.ScriptedAgent) =>
    Effect.gen(function* () {
      if (yield* Deferred.isDone(written)) return "end_turn"
      for (const chunk of Input.chunks(input)) {
        yield* agent.write(chunk)
        if (chunk.length % 5 === 0) yield* Effect.yieldNow
      }
      yield* turn.say(lastText)
      yield* Deferred.succeed(written, undefined)
      return "end_turn"
    })
  const body = Effect.gen(function* () {
    const { agent, session } = yield* TestSidecar.open()
    const turn = yield* session.submit("go")
    const exit = yield* Effect.exit(turn.await)
    const end = Exit.isSuccess(exit)
      ? `Completed ${(exit.value as { readonly stopReason?: string }).stopReason}`
      : failure(exit)
    const outcomes = decode([Input.bytes(input)], input.maxLineBytes)
    const wanted = ends(outcomes, onlyPrompt)
    assert.ok(wanted.includes(end), `the turn ended with ${end}, and ${wanted.join(" or ")} was right`)

    yield* Stream.runDrain(Stream.takeUntil(session.updates, (event) => textOf(event) === lastText))
    const next = yield* session.prompt("again")
    assert.ok(next._tag === "Completed" && next.stopReason === "end_turn", "the next turn runs")
    yield* Effect.repeat(Effect.yieldNow, { times: 50 })
    checkEvents(yield* soFar(session), input, turn.id)
    const answers = countAnswers(yield* Queue.clear(agent.received))
    assert.deepEqual(
      [...answers].toSorted(),
      [...answersTo(outcomes)].toSorted(),
      "each request of the agent gets one answer"
    )
    const info = yield* session.describe
    assert.deepEqual([info.state, info.turns.length, info.pendingPermissions], ["open", 0, 0], "nothing is left over")
  })
  const layer = TestSidecar.layer({
    script: { prompt, ignoreCancel: true },
    limits: { maxLineBytes: input.maxLineBytes }
  })
  yield* Effect.provide(Effect.scoped(body), layer)
}, Effect.orDie)

export const failure = (exit: Exit.Failure<unknown, { readonly reason: { readonly _tag: string } }>): string => {
  const [reason] = exit.cause.reasons
  return reason?._tag === "Fail" ? reason.error.reason._tag : String(reason?._tag)
}

export const session = {
  about: "a whole session whose agent writes garbage during a turn",
  check
}
