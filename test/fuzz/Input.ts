// What one case feeds to its target: lines of garbage, marked frames between them, and where the bytes are cut.
import { bytesOf, concat, garbage, sessionId } from "./mutate.ts"
import * as Prng from "../../src/testing/Prng.ts"

/** A line without its newline. A marked one is a valid frame of a line of its own, and has to arrive exactly once. */
export interface Line {
  readonly bytes: Uint8Array
  readonly mark?: Mark | undefined
}

/** The number counts up within an input. */
export interface Mark {
  readonly kind: "update" | "request"
  readonly number: number
}

export interface Input {
  readonly lines: ReadonlyArray<Line>
  /** Lengths of the chunks, over and over. */
  readonly sizes: ReadonlyArray<number>
  readonly maxLineBytes: number
}

export const markMethod = "~mark"
export const markId = (number: number): string => `~mark-${number}`
export const markText = (number: number): string => `~mark ${number}`

const markLine = (mark: Mark): Line => ({
  mark,
  bytes: bytesOf(
    JSON.stringify(
      mark.kind === "request"
        ? { jsonrpc: "2.0", id: markId(mark.number), method: markMethod, params: { é: mark.number } }
        : {
            jsonrpc: "2.0",
            method: "session/update",
            params: {
              sessionId,
              update: {
                sessionUpdate: "agent_message_chunk",
                content: { type: "text", text: markText(mark.number), annotations: { note: "漢😀" } }
              }
            }
          }
    )
  )
})

const limits = [250, 300, 1000, 4095, 4096, 4097, 9000, 16 * 1024 * 1024]

/** The input of one case. The same seed, target and number give the same input. */
export const make = (seed: number, target: string, number: number): Input => {
  const prng = Prng.make(`${seed}`, `${target}:${number}`)
  const maxLineBytes = prng.pick(limits)
  const lines: Array<Line> = []
  let marks = 0
  for (let length = 1 + prng.int(14); length > 0; length--) {
    if (prng.chance(0.4)) lines.push(markLine({ kind: prng.chance(0.7) ? "update" : "request", number: ++marks }))
    else lines.push({ bytes: garbage(prng, maxLineBytes) })
  }
  const size = prng.pick([
    () => 1,
    () => 1 + prng.int(9),
    () => 1 + prng.int(300),
    () => 1 + prng.int(5000),
    () => 2 ** 20 + 100
  ])
  return { lines, sizes: Array.from({ length: 1 + prng.int(6) }, size), maxLineBytes }
}

export const marks = (input: Input, kind: Mark["kind"]): ReadonlyArray<number> =>
  input.lines.flatMap(({ mark }) => (mark?.kind === kind ? [mark.number] : []))

/** All bytes of an input. */
export const bytes = (input: Input): Uint8Array =>
  concat(...input.lines.flatMap((line) => [line.bytes, Uint8Array.of(0x0a)]))

/** The bytes of an input, cut where it says. */
export const chunks = (input: Input): ReadonlyArray<Uint8Array> => {
  const whole = bytes(input)
  const cut: Array<Uint8Array> = []
  // Very many chunks show no more than many do.
  const step = Math.ceil(whole.length / 20_000)
  for (let at = 0, turn = 0; at < whole.length; turn++) {
    const size = Math.max(step, input.sizes[turn % input.sizes.length]!)
    cut.push(whole.slice(at, at + size))
    at += size
  }
  return cut
}

/** An input for people: text where it is UTF-8, else hexadecimal. */
export const show = (input: Input): string => {
  const line = ({ bytes: part, mark }: Line): string => {
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(part)
    const same = Buffer.from(bytesOf(text)).equals(part)
    const shown = same ? JSON.stringify(text) : `hex ${Buffer.from(part).toString("hex")}`
    return `  ${mark === undefined ? "      " : "mark  "}${shown.length > 2000 ? `${shown.slice(0, 2000)}… (${part.length} bytes)` : shown}`
  }
  return [
    `  lines of at most ${input.maxLineBytes} bytes, in chunks of ${input.sizes.join(", ")} bytes:`,
    ...input.lines.map(line)
  ].join("\n")
}
