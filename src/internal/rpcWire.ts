/**
 * Bytes of a connection between a client and a sidecar process: the first line, and the messages after it.
 *
 * @internal
 */
import * as Data from "effect/Data"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as RpcSerialization from "effect/rpc/RpcSerialization"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type * as Socket from "effect/socket/Socket"
import type * as SidecarLimits from "../SidecarLimits.ts"
import * as Json from "./json.ts"

/** The other side does not speak this protocol; nothing more is read from it. */
export class BrokenWire extends Data.TaggedError("BrokenWire")<{ readonly detail: string }> {}

export interface Wire {
  readonly reader: Socket.Reader
  readonly writer: Socket.Writer
  /** One at a time: each that waits for room in the socket listens to it. */
  readonly writes: Semaphore.Semaphore
}

/** The two halves of a connection, until the current scope closes. */
export const open = (socket: Socket.Socket): Effect.Effect<Wire, Socket.SocketError, Scope.Scope> =>
  Effect.gen(function* () {
    return { writer: yield* socket.writer, reader: yield* socket.reader, writes: Semaphore.makeUnsafe(1) }
  })

/** Waits for room in the socket. What becomes of the connection is for its reader to see. */
export const write = ({ writer, writes }: Wire, data: Uint8Array | string): Effect.Effect<void> =>
  Effect.ignore(writes.withPermit(writer.write(data)))

const encoder = new TextEncoder()
const toBytes = (chunk: Uint8Array | string): Uint8Array => (typeof chunk === "string" ? encoder.encode(chunk) : chunk)

/** The first line, which may have at most `max` bytes, and what came behind it. */
export const firstLine = Effect.fnUntraced(function* (
  { reader }: Wire,
  max: number
): Effect.fn.Return<
  { readonly line: string; readonly rest: ReadonlyArray<Uint8Array | string> },
  BrokenWire | Socket.SocketError
> {
  const decoder = new TextDecoder()
  let line = ""
  let bytes = 0
  while (true) {
    const chunks = yield* reader.pull
    for (const [index, chunk] of chunks.entries()) {
      const data = toBytes(chunk)
      const end = data.indexOf(10)
      bytes += end === -1 ? data.length : end
      if (bytes > max) return yield* new BrokenWire({ detail: `the first line has more than ${max} bytes` })
      line += decoder.decode(end === -1 ? data : data.subarray(0, end), { stream: end === -1 })
      if (end === -1) continue
      const behind = data.subarray(end + 1)
      return { line, rest: [...(behind.length > 0 ? [behind] : []), ...chunks.slice(index + 1)] }
    }
  }
})

/** Joins pieces with what came before them and is not larger, so that there are few, whatever size they come in. */
const keep = (pieces: Array<Uint8Array>, piece: Uint8Array): void => {
  let last = piece
  while (pieces.length > 0 && pieces.at(-1)!.length <= last.length) {
    const before = pieces.pop()!
    const joined = new Uint8Array(before.length + last.length)
    joined.set(before)
    joined.set(last, before.length)
    last = joined
  }
  pieces.push(last)
}

/**
 * Messages as lines, however deep an agent has nested what is in them, and in time that only grows with their length: what
 * came of an unfinished line is kept in the pieces that it came in, and looked at once.
 */
export const makeParser = (max: number): RpcSerialization.Parser => {
  const lines = RpcSerialization.makeNdjson({ maxBufferSize: max }).makeUnsafe()
  const decoder = new TextDecoder()
  const pieces: Array<Uint8Array> = []
  let bytes = 0
  return {
    decode: (chunk) => {
      const data = toBytes(chunk)
      const end = data.lastIndexOf(10) + 1
      let text = ""
      if (end > 0) {
        for (const piece of pieces) text += decoder.decode(piece, { stream: true })
        text += decoder.decode(data.subarray(0, end))
        pieces.length = 0
        bytes = 0
      }
      if (end < data.length) {
        keep(pieces, data.subarray(end))
        bytes += data.length - end
      }
      if (bytes > max) throw new RpcSerialization.MaxBufferSizeExceeded({ maxBufferSize: max })
      return text === "" ? [] : lines.decode(text)
    },
    encode: (message) => `${Json.stringify(message)}\n`
  }
}

/** What one message may have, in bytes. JSON may write one byte as several. */
export const maxMessage = {
  ofClient: (limits: Pick<SidecarLimits.SidecarLimits, "maxPromptBytes">) => 2 * limits.maxPromptBytes + 1024 * 1024,
  ofServer: (limits: Pick<SidecarLimits.SidecarLimits, "maxLineBytes" | "mailboxBytes">) =>
    2 * (limits.maxLineBytes + limits.mailboxBytes) + 1024 * 1024
}

/** Reads messages until the connection ends, which is an error as well. */
export const readAll = (
  { reader }: Wire,
  parser: RpcSerialization.Parser,
  rest: ReadonlyArray<Uint8Array | string>,
  onMessage: (message: unknown) => Effect.Effect<void, BrokenWire>
): Effect.Effect<never, BrokenWire | Socket.SocketError> => {
  const take = (chunks: ReadonlyArray<Uint8Array | string>) =>
    Effect.forEach(
      chunks,
      (chunk) =>
        Effect.flatMap(
          Effect.try({
            try: () => parser.decode(chunk),
            catch: (cause) => new BrokenWire({ detail: detailOf(cause) })
          }),
          (messages) => Effect.forEach(messages, onMessage, { discard: true })
        ),
      { discard: true }
    )
  return Effect.andThen(take(rest), Effect.forever(Effect.flatMap(reader.pull, take)))
}

const detailOf = (cause: unknown): string => {
  const tag = (cause as { readonly _tag?: unknown } | null)?._tag
  return tag === "MaxBufferSizeExceeded" ? "a message is too long" : "a line is not JSON"
}

/**
 * Resolves with a word on it when the other side was not heard of in three looks in a row, within the time. Looks are
 * counted and not the clock, which jumps while the machine sleeps. At each one `beat` says that this side is there.
 */
export const silence = (
  time: Duration.Duration,
  heard: () => number,
  beat: Effect.Effect<void>
): Effect.Effect<string> => {
  if (!Duration.isFinite(time)) return Effect.never
  let before = 0
  let missed = 0
  let beating: Fiber.Fiber<void> | undefined
  const look = Effect.gen(function* () {
    missed = heard() === before ? missed + 1 : 0
    before = heard()
    if (missed >= 3) return true
    // Beside the looks, which go on where it can't be sent.
    if (beating?.pollUnsafe() !== undefined || beating === undefined) {
      beating = yield* Effect.forkChild(beat, { startImmediately: true })
    }
    return false
  })
  return Effect.repeat(Effect.delay(look, Duration.times(time, 1 / 3)), { until: (isOver) => isOver }).pipe(
    Effect.as(`it said nothing for ${Duration.toMillis(time)} ms`)
  )
}

export const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value)

export const isId = (value: unknown): value is string | number =>
  typeof value === "number" || (typeof value === "string" && value.length <= 128)
