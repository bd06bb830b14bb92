// AcpConnection over a transport in memory, against a model of it that reads the same outcomes one by one.
import assert from "node:assert/strict"
import * as Effect from "effect/Effect"
import type * as Exit from "effect/Exit"
import * as AcpConnection from "../../src/acp/AcpConnection.ts"
import * as AcpProtocol from "../../src/acp/AcpProtocol.ts"
import type * as AcpCodec from "../../src/acp/AcpCodec.ts"
import * as RawPeer from "../support/rawPeer.ts"
import { decode } from "./codec.ts"
import * as Input from "./Input.ts"
import { same } from "./same.ts"

/** Our requests have the ids 1 to 8. The fifth is given up before anything comes. */
const requests = 8
const abandoned = 5

/** How a request of ours ended. */
export interface Settled {
  readonly id: number
  readonly how: "result" | "RequestError" | "InvalidResponse"
  readonly value: unknown
}

const key = (id: unknown): string => JSON.stringify(id) ?? "undefined"

/** The number that an id stands for: numbers, and their decimal strings. */
export const numberOf = (id: AcpCodec.Id | undefined): number | undefined =>
  typeof id === "number" ? id : typeof id === "string" && String(Number(id)) === id ? Number(id) : undefined

/** Whether a line that is broken or too long was a call of the peer, rather than an answer. */
export const isCall = (outcome: AcpCodec.Malformed | AcpCodec.TooLarge): boolean =>
  outcome.method !== undefined || (outcome._tag === "Malformed" && outcome.reason.startsWith("method "))

/** How many answers each id of the peer's requests gets. Noise, notifications and answers get none. */
export const answersTo = (outcomes: ReadonlyArray<AcpCodec.Outcome>): Map<string, number> => {
  const answers = new Map<string, number>()
  for (const outcome of outcomes) {
    const isBrokenCall = (outcome._tag === "Malformed" || outcome._tag === "TooLarge") && isCall(outcome)
    const isAnswered = outcome._tag === "Request" || (isBrokenCall && outcome.id !== undefined && outcome.id !== null)
    if (isAnswered) answers.set(key(outcome.id), (answers.get(key(outcome.id)) ?? 0) + 1)
  }
  return answers
}

const settles = (outcome: AcpCodec.Outcome, pending: Set<number>): Settled | undefined => {
  if (outcome._tag !== "Response" && outcome._tag !== "Malformed" && outcome._tag !== "TooLarge") return undefined
  const id = numberOf(outcome.id)
  if (id === undefined || !pending.has(id)) return undefined
  if (outcome._tag !== "Response") return isCall(outcome) ? undefined : { id, how: "InvalidResponse", value: undefined }
  return outcome.error === undefined
    ? { id, how: "result", value: outcome.result }
    : { id, how: "RequestError", value: outcome.error.code }
}

const expected = (outcomes: ReadonlyArray<AcpCodec.Outcome>) => {
  const pending = new Set(Array.from({ length: requests }, (_, index) => index + 1))
  pending.delete(abandoned)
  const settled: Array<Settled> = []
  for (const outcome of outcomes) {
    const end = settles(outcome, pending)
    if (end === undefined) continue
    pending.delete(end.id)
    settled.push(end)
  }
  return { settled, pending }
}

const settledBy = (id: number, exit: Exit.Exit<unknown, unknown>): Settled => {
  if (exit._tag === "Success") return { id, how: "result", value: exit.value }
  const [reason] = exit.cause.reasons
  assert.ok(reason?._tag === "Fail", "a request fails typed")
  const error = reason.error as { readonly _tag: Settled["how"]; readonly code?: unknown }
  return { id, how: error._tag, value: error._tag === "RequestError" ? error.code : undefined }
}

const count = (outcomes: ReadonlyArray<AcpCodec.Outcome>, tag: AcpCodec.Outcome["_tag"]): number =>
  outcomes.filter((outcome) => outcome._tag === tag).length

/** Handlers of every kind: at once, later, failing, dying. */
const serve = (method: string, params: unknown): Effect.Effect<unknown, unknown> => {
  switch (method.length % 4) {
    case 0:
      return Effect.succeed(null)
    case 1:
      return Effect.andThen(Effect.yieldNow, Effect.succeed({ got: typeof params }))
    case 2:
      return Effect.fail(AcpConnection.methodNotFound(method))
    default:
      return Effect.die(new Error("a handler with a bug"))
  }
}

const check = Effect.fnUntraced(
  function* (input: Input.Input) {
    const outcomes = decode([Input.bytes(input)], input.maxLineBytes)
    const peer = yield* RawPeer.make()
    const lines: Array<Uint8Array> = []
    const notifications: Array<unknown> = []
    const settled: Array<Settled> = []
    const transport = {
      ...peer.transport,
      send: (line: Uint8Array) => {
        lines.push(line)
        return peer.transport.send(line)
      }
    }
    const connection = yield* AcpConnection.make(
      transport,
      { onNotification: (method, params) => notifications.push({ method, params }), onRequest: serve },
      { maxLineBytes: input.maxLineBytes, maxInbound: 10_000 }
    )
    let open = true
    for (let id = 1; id <= requests; id++) {
      const request = yield* connection.start(
        `~ours-${id}`,
        { id },
        {
          onSettled: (exit) => {
            if (open) settled.push(settledBy(id, exit))
          }
        }
      )
      assert.equal(request.id, id)
      if (id === abandoned) yield* request.abandon
    }
    for (const chunk of Input.chunks(input)) {
      peer.feedBytes(chunk)
      if (chunk.length % 5 === 0) yield* Effect.yieldNow
    }
    yield* RawPeer.settle

    const model = expected(outcomes)
    assert.ok(same(settled, model.settled), `each request is settled by its own answer: ${JSON.stringify(settled)}`)
    const wanted = outcomes.flatMap((outcome) =>
      outcome._tag === "Notification" && outcome.method !== AcpProtocol.method.cancelRequest
        ? [{ method: outcome.method, params: outcome.params }]
        : []
    )
    assert.ok(same(notifications, wanted), "notifications arrive once, in order")
    const { stats } = connection
    const told = { ...stats, pending: stats.pending, inbound: stats.inbound }
    assert.deepEqual(
      [
        told.framesIn,
        told.noise,
        told.malformed,
        told.tooLarge,
        told.pending,
        told.inbound,
        told.defects,
        told.overload
      ],
      [
        outcomes.length,
        count(outcomes, "Noise"),
        count(outcomes, "Malformed"),
        count(outcomes, "TooLarge"),
        model.pending.size,
        0,
        0,
        0
      ],
      "the counters add up to what came"
    )
    const size = outcomes.reduce((sum, outcome) => sum + outcome.bytes, 0)
    assert.equal(stats.bytesIn, size, "the counted bytes are those that came")
    const answered = model.settled.filter(({ how }) => how !== "InvalidResponse").length
    assert.equal(stats.late, count(outcomes, "Response") - answered, "late answers are counted")

    const answers = new Map<string, number>()
    for (const line of lines) {
      assert.equal(line.indexOf(0x0a), line.length - 1, "what is sent is one line")
      const [frame, ...more] = decode([line.slice()], undefined)
      assert.ok(frame !== undefined && more.length === 0, "what is sent is one frame")
      if (frame._tag === "Response") answers.set(key(frame.id), (answers.get(key(frame.id)) ?? 0) + 1)
      else
        assert.ok(frame._tag === "Request" && frame.method.startsWith("~ours-"), `nothing else is sent: ${frame._tag}`)
    }
    assert.deepEqual(
      [...answers].toSorted(),
      [...answersTo(outcomes)].toSorted(),
      "each request gets one answer, and nothing else"
    )
    assert.equal(stats.framesOut, lines.length)

    open = false
    peer.end()
    const end = yield* connection.ended
    assert.equal(end._tag, "ProcessExited")
    assert.equal(stats.pending, 0, "nothing waits for a peer that has gone")
  },
  Effect.scoped,
  Effect.orDie
)

export const connection = {
  about: "AcpConnection with requests of its own and of the peer's, against a model",
  check
}
