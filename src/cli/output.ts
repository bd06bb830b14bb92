// Writing to the terminal, or to whatever takes its place.
import * as Effect from "effect/Effect"

export type Sink = "out" | "err"

const stream = (sink: Sink) => (sink === "out" ? process.stdout : process.stderr)

/** Writes and waits until there is room for more. A reader that went away is no failure here, see {@link onReaderGone}. */
export const write = (sink: Sink, text: string): Effect.Effect<void> =>
  Effect.callback<void>((resume) => {
    stream(sink).write(text, (error) => {
      // Now, since the command may have ended before the stream tells it to all.
      if (error != null && sink === "out") lose(error)
      resume(Effect.void)
    })
  })

export const line = (sink: Sink, text: string): Effect.Effect<void> => write(sink, `${text}\n`)

/** Something to tell the user beside the result. */
export const note = (text: string): Effect.Effect<void> => line("err", `acp-sidecar: ${text}`)

export const json = (value: unknown): Effect.Effect<void> => line("out", JSON.stringify(value))

/** A value as one line of JSON. What an agent sent may be nested deeper than the stack allows; that is cut. */
export const jsonLine = <A>(value: A, encode: (value: A) => unknown): string => {
  try {
    return `${JSON.stringify(encode(value))}\n`
  } catch {
    return `${JSON.stringify(encode(shallow(value, 256) as A))}\n`
  }
}

const shallow = (value: unknown, depth: number): unknown => {
  if (typeof value !== "object" || value === null) return value
  if (depth === 0) return "<too deep>"
  if (Array.isArray(value)) return value.map((item) => shallow(item, depth - 1))
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, shallow(inner, depth - 1)]))
}

export const isTerminal = (sink: Sink): boolean => stream(sink).isTTY === true

let isGone = false
let isCutShort = false

/** Whether somebody still reads stdout; the stream itself forgets. */
export const isRead = (): boolean => !isGone

/** Whether some of what somebody wanted to read could not be written. */
export const isLost = (): boolean => isCutShort

const lose = ({ code }: NodeJS.ErrnoException): void => {
  if (!isGone && code !== "EPIPE") {
    isCutShort = true
    process.stderr.write(`acp-sidecar: the output could not be written (${code})\n`)
  }
  isGone = true
}

/**
 * Runs when nobody reads stdout any more, or it can't be written, as on a full disk, which is told. A write to stderr
 * that nobody reads is no problem.
 */
export const onReaderGone = (run: () => void): void => {
  process.stdout.on("error", (error: NodeJS.ErrnoException) => {
    lose(error)
    run()
  })
  process.stderr.on("error", () => {})
}

/** Whether colours are welcome there. See https://no-color.org. */
export const canColor = (sink: Sink): boolean =>
  isTerminal(sink) && !process.env["NO_COLOR"] && process.env["TERM"] !== "dumb"

/** The width to draw in. */
export const columns = (): number => {
  const width = Number(process.stdout.columns ?? process.env["COLUMNS"])
  return Number.isInteger(width) && width >= 20 ? width : 80
}

export type Style = "dim" | "bold" | "green" | "red" | "yellow"

const codes: Readonly<Record<Style, number>> = { dim: 2, bold: 1, green: 32, red: 31, yellow: 33 }

export const style = (text: string, name: Style, isColored: boolean): string =>
  isColored ? `\u001b[${codes[name]}m${text}\u001b[0m` : text
