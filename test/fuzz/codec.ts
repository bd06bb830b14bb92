// The decoder alone: never throws, reads each line as the rules say, whatever the chunks are, and holds no more than it may.
import assert from "node:assert/strict"
import * as Effect from "effect/Effect"
import * as AcpCodec from "../../src/acp/AcpCodec.ts"
import * as Input from "./Input.ts"
import { sessionId } from "./mutate.ts"
import * as Oracle from "./oracle.ts"
import { isShallow, same } from "./same.ts"

const isFrame = (outcome: AcpCodec.Outcome): outcome is AcpCodec.Frame =>
  outcome._tag === "Request" || outcome._tag === "Notification" || outcome._tag === "Response"

/** The outcomes of chunks, each of which is wiped after it was read, as a caller with one read buffer does. */
export const decode = (
  chunks: ReadonlyArray<Uint8Array>,
  maxLineBytes: number | undefined
): ReadonlyArray<AcpCodec.Outcome> => {
  const decoder = AcpCodec.makeDecoder({ maxLineBytes })
  const most = Math.max(maxLineBytes ?? AcpCodec.defaultMaxLineBytes, 4096)
  const outcomes: Array<AcpCodec.Outcome> = []
  for (const chunk of chunks) {
    outcomes.push(...decoder.push(chunk))
    chunk.fill(0x0a)
    assert.ok(decoder.buffered <= most, `${decoder.buffered} bytes of a line are held, and ${most} may be`)
  }
  outcomes.push(...decoder.end())
  assert.equal(decoder.buffered, 0, "nothing is held after the end")
  return outcomes
}

const everyByte = (bytes: Uint8Array): ReadonlyArray<Uint8Array> => Array.from(bytes, (byte) => Uint8Array.of(byte))

const markOf = (outcome: AcpCodec.Outcome, kind: Input.Mark["kind"]): string | undefined => {
  if (kind === "request")
    return outcome._tag === "Request" && outcome.method === Input.markMethod ? String(outcome.id) : undefined
  if (outcome._tag !== "Notification") return undefined
  const params = outcome.params as {
    readonly sessionId?: unknown
    readonly update?: { readonly content?: { readonly text?: unknown } }
  }
  const text = params?.update?.content?.text
  return params?.sessionId === sessionId && typeof text === "string" && text.startsWith("~mark ") ? text : undefined
}

/** Each marked frame is there once, in order. */
const checkMarks = (outcomes: ReadonlyArray<AcpCodec.Outcome>, input: Input.Input): void => {
  const found = (kind: Input.Mark["kind"]) => outcomes.flatMap((outcome) => markOf(outcome, kind) ?? [])
  assert.deepEqual(found("update"), Input.marks(input, "update").map(Input.markText), "marked updates, in order")
  assert.deepEqual(found("request"), Input.marks(input, "request").map(Input.markId), "marked requests, in order")
}

const checkSamples = (outcomes: ReadonlyArray<AcpCodec.Outcome>): void => {
  for (const outcome of outcomes) {
    if (outcome._tag !== "Noise" && outcome._tag !== "Malformed") continue
    assert.ok(outcome.text.length <= 256, "a sample is short")
    assert.ok(outcome.text.isWellFormed(), "a sample ends in no half character")
  }
}

/** What was read can be written, on one line, and is then read as the same. */
const checkEncoding = (outcomes: ReadonlyArray<AcpCodec.Outcome>): void => {
  for (const outcome of outcomes) {
    if (!isFrame(outcome) || !isShallow(outcome, 500)) continue
    const line = AcpCodec.encode(outcome)
    assert.equal(line.indexOf(0x0a), line.length - 1, "a frame is one line")
    // JSON has neither negative zero nor numbers that are not finite.
    const sent = JSON.parse(JSON.stringify(outcome)) as { readonly error?: unknown; readonly params?: unknown }
    const [read, ...more] = decode([line], line.length)
    assert.equal(more.length, 0, "a frame is read as one frame")
    const wanted = { ...outcome, ...sent, bytes: read?.bytes }
    assert.ok(same(read, wanted), `what was written is read as it was: ${JSON.stringify(wanted)?.slice(0, 500)}`)
  }
}

const checkPrototypes = (): void => {
  const plain = {} as Record<string, unknown>
  for (const key of ["method", "sessionId", "jsonrpc", "polluted", "id"]) {
    assert.equal(plain[key], undefined, `no frame gives every object a ${key}`)
  }
}

const check = (input: Input.Input): void => {
  const { maxLineBytes } = input
  const bytes = Input.bytes(input)
  const whole = decode([bytes.slice()], maxLineBytes)
  Oracle.check(whole, Oracle.read(bytes, maxLineBytes))
  assert.ok(same(decode(Input.chunks(input), maxLineBytes), whole), "the chunks change nothing")
  if (bytes.length < 3000) assert.ok(same(decode(everyByte(bytes), maxLineBytes), whole), "single bytes change nothing")
  checkMarks(whole, input)
  checkSamples(whole)
  checkEncoding(whole)
  checkPrototypes()
}

export const codec = {
  about: "AcpCodec against a slow reading of its rules, in any chunks, and back",
  check: (input: Input.Input): Effect.Effect<void> => Effect.sync(() => check(input))
}
