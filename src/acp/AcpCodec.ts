/**
 * The wire format of ACP over a byte stream: JSON-RPC 2.0, one UTF-8 message a line. Bytes in any chunking become
 * outcomes, frames become bytes. Pure and incremental: no clock, no I/O, no fiber, and nothing that is read can make it
 * throw, because a stdout that agents share with loggers and child processes holds anything.
 *
 * @stability unstable
 * @since 0.1.0
 */
import { closeOf, isTooDeep, maxDepth, nextObject, openBrace, openBracket, skipBlank } from "./internal/walk.ts"

/**
 * The id of a request. Strings, `null` and numbers up to 2^53 - 1 in size are accepted; a larger number could not be
 * sent back unchanged, so a frame that carries one is `Malformed`. `12` and `"12"` are kept apart here.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Id = string | number | null

/**
 * A call that the peer wants answered under `id`. `params` is an object, an array, or `undefined` when it was absent or
 * `null`; what is inside is not checked. `bytes` is the length of its line in bytes without the newline.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Request {
  readonly _tag: "Request"
  readonly id: Id
  readonly method: string
  readonly params: unknown
  readonly bytes: number
}

/**
 * A call that wants no answer: a frame with a method and no `id` member. `params` and `bytes` are those of `Request`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Notification {
  readonly _tag: "Notification"
  readonly method: string
  readonly params: unknown
  readonly bytes: number
}

/**
 * The answer to the request `id`. It failed when `error` is defined, and `result` is then `undefined`; otherwise
 * `result` is any JSON value, `null` included. Peers that always write both members are understood: a `null` error
 * beside a result, or a `null` result beside an error, counts as absent.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Response {
  readonly _tag: "Response"
  readonly id: Id
  readonly result: unknown
  readonly error: ResponseError | undefined
  readonly bytes: number
}

/**
 * Why a request failed, as its peer says. `code` is an integer. `message` is empty when the peer sent a code without
 * one, since a terse failure is better news than a request that never settles. `data` is there only when it was sent.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface ResponseError {
  readonly code: number
  readonly message: string
  readonly data?: unknown
}

interface Attribution {
  readonly id: Id | undefined
  readonly method: string | undefined
  readonly sessionId: string | undefined
}

/**
 * Output that is not JSON-RPC and deserves no answer: log text, ANSI codes, JSON scalars, arrays, and objects whose
 * `jsonrpc` is not `"2.0"`. `text` is a sample of at most 256 characters, `bytes` the real length. Blank lines are
 * nothing at all.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Noise {
  readonly _tag: "Noise"
  readonly text: string
  readonly bytes: number
}

/**
 * A line that claims to be JSON-RPC but breaks its rules, for `reason`. `id`, `method` and `sessionId` (of `params`)
 * are whatever could be read of them, so that a caller can fail one request or one session and keep the connection.
 * `text` is a sample of at most 256 characters, `bytes` the real length.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Malformed extends Attribution {
  readonly _tag: "Malformed"
  readonly reason: string
  readonly text: string
  readonly bytes: number
}

/**
 * A line longer than `limit` bytes, reported once, when its newline or the end of the stream arrives. Its text is gone;
 * `bytes` is its whole length without the newline. `id`, `method` and `sessionId` (of `params`) are there when they
 * could be read in the first 4096 bytes.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface TooLarge extends Attribution {
  readonly _tag: "TooLarge"
  readonly limit: number
  readonly bytes: number
}

/**
 * A well-formed message of the peer.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Frame = Request | Notification | Response

/**
 * What a piece of the stream turned out to be. Outcomes come in wire order. A line yields one, or several when noise
 * shares it with frames, and their `bytes` then add up to the line; a blank line yields none.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Outcome = Frame | Noise | Malformed | TooLarge

/**
 * One direction of one connection. `push` takes bytes cut anywhere and returns what they completed; the chunk may be
 * reused afterwards. `end` says that the stream is over: an unterminated last line is read as if it had its newline,
 * and the decoder is as new. `buffered` is how many bytes of an unfinished line are held, never more than
 * `maxLineBytes` (or 4096, if that is more). The outcomes do not depend on the chunking, and no bytes make it throw.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Decoder {
  readonly push: (chunk: Uint8Array) => ReadonlyArray<Outcome>
  readonly end: () => ReadonlyArray<Outcome>
  readonly buffered: number
}

/**
 * What can be sent: a request (`id` and `method`), a notification (`method` alone) or a response (`id` and `result` or
 * `error`). A decoded `Frame` is one too, and is sent as it was read. Members that are `undefined` are left out, and
 * others than these are ignored.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Envelope {
  readonly id?: Id | undefined
  readonly method?: string | undefined
  readonly params?: unknown
  readonly result?: unknown
  readonly error?: ResponseError | undefined
}

/**
 * How many bytes a line may have unless a decoder is told otherwise: 16 MiB (16,777,216).
 *
 * @stability unstable
 * @category constants
 * @since 0.1.0
 */
export const defaultMaxLineBytes = 16 * 1024 * 1024

const newline = 0x0a
const headBytes = 4096
const sampleChars = 256
// Four bytes a character is the most there is, so that a cut character never shows in the sample.
const sampleBytes = sampleChars * 4
const windowBytes = 1024 * 1024
const keptBytes = 64 * 1024
// A string can't be longer than about 2^29 units in V8, and a decoder must not throw.
const longestLimit = 2 ** 28
// Each failed parse of a part of a line costs another walk over it and an exception.
const mostFailures = 8
const marker = '"jsonrpc"'
const markerAtStart = '{"jsonrpc"'

// A byte order mark may stand at the start of any line, so it is skipped with the blanks and not by the decoder, which
// would only see the one that happens to begin its input.
const utf8 = new TextDecoder("utf-8", { ignoreBOM: true })
const encoder = new TextEncoder()

const parse = (text: string): unknown => {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const isId = (u: unknown): u is Id =>
  typeof u === "string" ||
  u === null ||
  (typeof u === "number" && u >= Number.MIN_SAFE_INTEGER && u <= Number.MAX_SAFE_INTEGER)

// Decoding afresh, rather than slicing a text at hand, keeps a sample from holding a whole chunk in memory.
const sample = (part: Uint8Array): string => {
  const from = skipBlank(part, 0)
  const text = utf8.decode(part.subarray(from, from + sampleBytes))
  // Neither half a surrogate pair nor the carriage return of a CRLF.
  return text.slice(0, sampleChars).replace(/[\ud800-\udbff\r]$/, "")
}

type Message = { readonly [K in "jsonrpc" | "id" | "method" | "params" | "result" | "error"]?: unknown }

const ofMessage = (message: Message): Attribution => {
  const sessionId = (message.params as { readonly sessionId?: unknown } | null | undefined)?.sessionId
  return {
    id: isId(message.id) ? message.id : undefined,
    method: typeof message.method === "string" ? message.method : undefined,
    sessionId: typeof sessionId === "string" ? sessionId : undefined
  }
}

const unattributed: Attribution = { id: undefined, method: undefined, sessionId: undefined }
const envelopeKeys = new Set(["jsonrpc", "id", "method", "params", "result", "error", "_meta"])

// Reads `id`, `method` and `params.sessionId` of a message that can't be parsed, by walking the tokens of its head: a
// plain search would take an id out of the payload and fail the wrong request.
const attribute = (part: Uint8Array): Attribution => {
  const text = utf8.decode(part.subarray(0, headBytes))
  const from = part[skipBlank(part, 0)] === openBrace ? text.indexOf("{") : text.indexOf(markerAtStart)
  if (from < 0) return unattributed
  const tokens = /"(?:[^"\\]|\\.)*"|[{}[\],:"]|[^\s{}[\],:"]+/gs
  tokens.lastIndex = from
  const top: Record<string, unknown> = {}
  const params: Record<string, unknown> = {}
  let depth = 0
  let inParams = false
  let key: string | undefined
  for (let match = tokens.exec(text); match !== null; match = tokens.exec(text)) {
    const token = match[0]
    if (token === '"') break
    if ("{[]},".includes(token)) {
      if (token === "{" || token === "[") depth++
      else if (token !== "," && --depth === 0) break
      if (depth === 1) inParams = false
      else if (depth === 2 && key === "params") inParams = true
      key = undefined
    } else if (token !== ":" && (depth === 1 || (depth === 2 && inParams))) {
      const target = depth === 1 ? top : params
      if (key === undefined) {
        key = String(parse(token))
        target[key] = undefined
      } else {
        // A number that touches the end of the head may have been cut.
        target[key] = tokens.lastIndex < text.length || token.endsWith('"') ? parse(token) : undefined
      }
    }
  }
  // A large log object may well have an `id` of its own.
  const foreign = top.jsonrpc !== "2.0" && !Object.keys(top).every((name) => envelopeKeys.has(name))
  return foreign ? unattributed : ofMessage({ ...top, params })
}

const noise = (part: Uint8Array): Noise => ({ _tag: "Noise", text: sample(part), bytes: part.length })

const malformed = (part: Uint8Array, reason: string, found: Attribution): Malformed => ({
  _tag: "Malformed",
  reason,
  text: sample(part),
  ...found,
  bytes: part.length
})

const unreadable = (part: Uint8Array): Malformed =>
  malformed(part, isTooDeep(part) ? `nested more than ${maxDepth} levels deep` : "not valid JSON", attribute(part))

const callProblem = (message: Message): string => {
  if (typeof message.method !== "string") return "method is not a string"
  if (message.id !== undefined && !isId(message.id)) return "id is not a string, a safe number or null"
  if (message.params !== undefined && typeof message.params !== "object") return "params is not an object or an array"
  return "both a method and a result or an error"
}

const readError = (error: unknown): ResponseError | undefined => {
  if (typeof error !== "object" || error === null) return undefined
  const { code, data, message } = error as { readonly [K in keyof ResponseError]?: unknown }
  if (!Number.isInteger(code) || (message !== undefined && typeof message !== "string")) return undefined
  const read = { code: code as number, message: message ?? "" }
  return data === undefined ? read : { ...read, data }
}

const readMessage = (message: Message, source: Uint8Array, start: number, end: number): Outcome => {
  const bytes = end - start
  if (message.jsonrpc !== "2.0") return noise(source.subarray(start, end))
  const id = message.id
  const method = message.method
  const result = message.result
  const error = message.error ?? undefined
  if (method !== undefined) {
    const params = message.params ?? undefined
    const called = (result === undefined || result === null) && error === undefined
    if (called && typeof method === "string" && (params === undefined || typeof params === "object")) {
      if (id === undefined) return { _tag: "Notification", method, params, bytes }
      if (isId(id)) return { _tag: "Request", id, method, params, bytes }
    }
    return malformed(source.subarray(start, end), callProblem(message), ofMessage(message))
  }
  let reason: string
  if (!isId(id)) {
    reason = id === undefined ? "neither a method nor an id" : "id is not a string, a safe number or null"
  } else if (error === undefined) {
    if (result !== undefined) return { _tag: "Response", id, result, error: undefined, bytes }
    reason = "neither a method, a result nor an error"
  } else if (result !== undefined && result !== null) {
    reason = "both a result and an error"
  } else {
    const read = readError(error)
    if (read !== undefined) return { _tag: "Response", id, result: undefined, error: read, bytes }
    reason = "error is not an object with an integer code and a string message"
  }
  return malformed(source.subarray(start, end), reason, ofMessage(message))
}

// A line that is not one JSON object: noise, a broken message, or messages and noise glued together. It is walked
// object by object, and what is inside an object stays inside: a message quoted in a log record or in a tool's raw
// output must not be taken for one of the peer's own.
const readMixedLine = (text: string, line: Uint8Array, out: Array<Outcome>): void => {
  let cursor = 0
  let lead = skipBlank(line, 0)
  if (lead === line.length) return
  const plain =
    !text.includes(marker) ||
    (line[lead] === openBracket && (isTooDeep(line) || parse(text.slice(text.indexOf("[")).trimEnd()) !== undefined))
  let failures = plain ? mostFailures : 0
  let scan = 0
  while (scan < line.length && failures < mostFailures) {
    const leads = scan <= lead && line[lead] === openBrace
    const open = leads ? lead : nextObject(line, scan)
    if (open < 0) break
    const close = closeOf(line, open)
    const raw = line.subarray(open, close < 0 ? line.length : close)
    const part = utf8.decode(raw)
    const value = close < 0 ? undefined : ((isTooDeep(raw) ? undefined : parse(part)) as Message | undefined)
    if (value === undefined) failures++
    const broken = value === undefined && (leads ? part.includes(marker) : part.startsWith(markerAtStart))
    if (broken || value?.jsonrpc === "2.0") {
      const from = lead < open ? open : cursor
      if (cursor < from) out.push(noise(line.subarray(cursor, from)))
      cursor = scan = lead = close < 0 ? line.length : skipBlank(line, close)
      if (value !== undefined) out.push(readMessage(value, line, from, cursor))
      else out.push(unreadable(line.subarray(from, cursor)))
    } else {
      scan = close < 0 ? open + 1 : close
    }
  }
  if (cursor < line.length) out.push(noise(line.subarray(cursor)))
}

const readLine = (text: string, source: Uint8Array, start: number, end: number, out: Array<Outcome>): void => {
  // A failed parse costs far more than this look at the first character.
  const value = text.charCodeAt(0) === openBrace && !isTooDeep(source, start, end) ? parse(text) : undefined
  if (value === undefined) readMixedLine(text, source.subarray(start, end), out)
  else out.push(readMessage(value as Message, source, start, end))
}

/**
 * Makes a decoder. A line of exactly `maxLineBytes` bytes (default 16 MiB, at most 256 MiB) is read and one of a byte
 * more is dropped while it arrives and reported as `TooLarge`; the newline does not count, a carriage return before it
 * does. Invalid UTF-8 is read as U+FFFD, a byte order mark at the start of a line is skipped, and CRLF is accepted. A
 * frame that is nested more than 131,072 levels deep is `Malformed`, since reading it could take seconds. Time is linear
 * in the bytes, whatever the chunking.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const makeDecoder = (options?: { readonly maxLineBytes?: number | undefined }): Decoder => {
  const wanted = options?.maxLineBytes ?? defaultMaxLineBytes
  const limit = wanted >= 0 ? Math.floor(Math.min(wanted, longestLimit)) : defaultMaxLineBytes
  // The unfinished line: its length so far, and the bytes held of it, which are all of them up to the limit and the
  // head alone from there on. It is copied into one growing buffer, so that neither many tiny chunks nor the large ones
  // they were cut from are kept.
  let line = 0
  let held = 0
  let buffer = new Uint8Array(0)

  const hold = (part: Uint8Array): void => {
    if (held + part.length > buffer.length) {
      const most = Math.max(limit, headBytes)
      const grown = new Uint8Array(Math.min(most, Math.max(4 * buffer.length, held + part.length, 1024)))
      grown.set(buffer.subarray(0, held))
      buffer = grown
    }
    buffer.set(part, held)
    held += part.length
  }

  const append = (part: Uint8Array): void => {
    line += part.length
    if (line <= limit) return hold(part)
    const keep = Math.min(headBytes, line)
    if (held > keep) {
      buffer = buffer.slice(0, keep)
      held = keep
    } else if (held < keep) {
      hold(part.subarray(0, keep - held))
    }
  }

  const tooLarge = (head: Uint8Array, bytes: number): TooLarge => ({
    _tag: "TooLarge",
    limit,
    ...attribute(head),
    bytes
  })

  const finish = (out: Array<Outcome>): void => {
    if (line > limit) out.push(tooLarge(buffer.subarray(0, held), line))
    else readLine(utf8.decode(buffer.subarray(0, held)), buffer, 0, held, out)
    line = 0
    held = 0
    if (buffer.length > keptBytes) buffer = new Uint8Array(0)
  }

  // `end` is just behind a newline.
  const readLines = (source: Uint8Array, start: number, end: number, out: Array<Outcome>): void => {
    const text = utf8.decode(start === 0 && end === source.length ? source : source.subarray(start, end))
    // No character took two bytes: positions are the same in the text and in the bytes.
    const aligned = text.length === end - start
    let at = 0
    let from = start
    while (from < end) {
      const next = text.indexOf("\n", at)
      const to = aligned ? start + next : source.indexOf(newline, from)
      if (to - from > limit) out.push(tooLarge(source.subarray(from, to), to - from))
      else if (to > from) readLine(text.slice(at, next), source, from, to, out)
      at = next + 1
      from = to + 1
    }
  }

  const pushWindow = (chunk: Uint8Array, out: Array<Outcome>): void => {
    const first = chunk.indexOf(newline)
    if (first < 0) return append(chunk)
    let start = 0
    if (line > 0) {
      append(chunk.subarray(0, first))
      finish(out)
      start = first + 1
    }
    const end = chunk.lastIndexOf(newline) + 1
    if (start < end) readLines(chunk, start, end, out)
    if (end < chunk.length) append(chunk.subarray(end))
  }

  return {
    push(chunk) {
      const out: Array<Outcome> = []
      if (chunk.length <= windowBytes) pushWindow(chunk, out)
      else for (let at = 0; at < chunk.length; at += windowBytes) pushWindow(chunk.subarray(at, at + windowBytes), out)
      return out
    },
    end() {
      const out: Array<Outcome> = []
      if (line > 0) finish(out)
      return out
    },
    get buffered() {
      return held
    }
  }
}

/**
 * The bytes of one line: the frame as JSON with `jsonrpc` `"2.0"`, and a newline. Without a method it is a response,
 * whose `result` becomes `null` when it has neither that nor an error, because an answer must have one of them. Throws
 * what `JSON.stringify` throws, for cycles and bigints.
 *
 * @stability unstable
 * @category encoding
 * @since 0.1.0
 */
export const encode = (frame: Envelope): Uint8Array => {
  const { error, id, method, params } = frame
  const message =
    method !== undefined
      ? { jsonrpc: "2.0", id, method, params }
      : error !== undefined
        ? { jsonrpc: "2.0", id, error }
        : { jsonrpc: "2.0", id, result: frame.result === undefined ? null : frame.result }
  return encoder.encode(JSON.stringify(message) + "\n")
}

/**
 * The bytes of a request. `params` is left out when it is `undefined`.
 *
 * @stability unstable
 * @category encoding
 * @since 0.1.0
 */
export const encodeRequest = (id: Id, method: string, params?: unknown): Uint8Array => encode({ id, method, params })

/**
 * The bytes of a notification. `params` is left out when it is `undefined`.
 *
 * @stability unstable
 * @category encoding
 * @since 0.1.0
 */
export const encodeNotification = (method: string, params?: unknown): Uint8Array => encode({ method, params })

/**
 * The bytes of a successful response. An `undefined` result is sent as `null`.
 *
 * @stability unstable
 * @category encoding
 * @since 0.1.0
 */
export const encodeResult = (id: Id, result: unknown): Uint8Array => encode({ id, result })

/**
 * The bytes of a failed response. Use the id `null` when the request's own could not be read.
 *
 * @stability unstable
 * @category encoding
 * @since 0.1.0
 */
export const encodeError = (id: Id, error: ResponseError): Uint8Array => encode({ id, error })
