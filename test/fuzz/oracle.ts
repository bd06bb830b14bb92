// A slow and simple reading of the wire, written from its rules and not from the decoder: one JSON.parse a line.
import assert from "node:assert/strict"
import type * as AcpCodec from "../../src/acp/AcpCodec.ts"
import { isShallow, same } from "./same.ts"

/** What a line must become: one outcome of a kind, nothing, or something that only the decoder's own rules decide. */
export type Expected = AcpCodec.Outcome["_tag"] | "nothing" | "mixed"

export interface ExpectedLine {
  readonly bytes: number
  readonly expected: Expected
  readonly message: Readonly<Record<string, unknown>> | undefined
}

const has = (message: object, key: string): boolean => Object.hasOwn(message, key)
const isNothing = (value: unknown): boolean => value === undefined || value === null

const isId = (id: unknown): boolean =>
  id === null || typeof id === "string" || (typeof id === "number" && Math.abs(id) <= Number.MAX_SAFE_INTEGER)

const isError = (error: unknown): boolean => {
  if (typeof error !== "object" || error === null) return false
  const { code, message } = error as { readonly code?: unknown; readonly message?: unknown }
  return Number.isInteger(code) && (message === undefined || typeof message === "string")
}

const kindOf = (message: Readonly<Record<string, unknown>>): Expected => {
  if (message.jsonrpc !== "2.0") return "Noise"
  const { error, id, method, params, result } = message
  if (has(message, "method")) {
    const isCall = typeof method === "string" && isNothing(result) && isNothing(error)
    if (!isCall || !(isNothing(params) || typeof params === "object")) return "Malformed"
    return !has(message, "id") ? "Notification" : isId(id) ? "Request" : "Malformed"
  }
  if (!has(message, "id") || !isId(id)) return "Malformed"
  if (isNothing(error)) return has(message, "result") ? "Response" : "Malformed"
  return isNothing(result) && isError(error) ? "Response" : "Malformed"
}

/** A regular expression for it would take the square of a long row of blanks. */
const withoutTail = (text: string): string => {
  let end = text.length
  while ("\ufeff \t\r".includes(text[end - 1] ?? "x")) end--
  return text.slice(0, end)
}

const expectLine = (line: Buffer, maxLineBytes: number): ExpectedLine => {
  const expect = (expected: Expected, message?: Readonly<Record<string, unknown>>): ExpectedLine => ({
    bytes: line.length,
    expected,
    message
  })
  if (line.length > maxLineBytes) return expect("TooLarge")
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(line).replace(/^[\ufeff \t\r]+/, "")
  if (text === "") return expect("nothing")
  let value: unknown
  try {
    value = JSON.parse(withoutTail(text))
  } catch {
    return expect(text.includes('"jsonrpc"') ? "mixed" : "Noise")
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) return expect("Noise")
  if (!isShallow(value, 2 ** 17)) return expect(text.includes('"jsonrpc"') ? "Malformed" : "Noise")
  return expect(kindOf(value as Record<string, unknown>), value as Record<string, unknown>)
}

/** What each line of the input must become. */
export const read = (bytes: Uint8Array, maxLineBytes: number): ReadonlyArray<ExpectedLine> => {
  const whole = Buffer.from(bytes)
  const lines: Array<ExpectedLine> = []
  for (let from = 0; from < whole.length;) {
    const found = whole.indexOf(0x0a, from)
    const to = found < 0 ? whole.length : found
    lines.push(expectLine(whole.subarray(from, to), maxLineBytes))
    from = to + 1
  }
  return lines
}

/** Members that are `null` count as absent, except for a result and an id. */
const said = (value: unknown): unknown => value ?? undefined

/** Holds outcomes against what is expected, line by line. */
export const check = (outcomes: ReadonlyArray<AcpCodec.Outcome>, lines: ReadonlyArray<ExpectedLine>): void => {
  let at = 0
  for (const line of lines) {
    if (line.expected === "nothing") continue
    let bytes = 0
    for (let first = true; first || (line.expected === "mixed" && bytes < line.bytes); first = false) {
      const outcome = outcomes[at++]
      assert.ok(outcome !== undefined, `a line of ${line.bytes} bytes (${line.expected}) has no outcome`)
      bytes += outcome.bytes
      if (line.expected !== "mixed") assert.equal(outcome._tag, line.expected)
      const { message } = line
      if (message === undefined) continue
      if (outcome._tag === "Request" || outcome._tag === "Notification") {
        assert.equal(outcome.method, message.method)
        assert.ok(same(outcome.params, said(message.params)), "params as they were sent")
      }
      if (outcome._tag === "Request" || outcome._tag === "Response") assert.equal(outcome.id, message.id)
      if (outcome._tag !== "Response") continue
      if (outcome.error === undefined) assert.ok(same(outcome.result, message.result), "the result as it was sent")
      else assert.equal(outcome.error.code, (message.error as { readonly code: number }).code)
    }
    assert.equal(bytes, line.bytes, "the outcomes of a line account for each of its bytes")
  }
  assert.equal(outcomes.length, at, "no outcome comes from nothing")
}
