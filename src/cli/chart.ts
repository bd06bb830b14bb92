// The two turns of the demo as a picture, and what they prove. Pure.

/** A turn's beginning and end, in milliseconds since the beginning of the demo. */
export interface Span {
  readonly from: number
  readonly to: number
}

export interface Measured {
  readonly a: Span
  readonly b: Span
  /** How long a turn like B takes when nothing else runs. */
  readonly aloneMillis: number
}

export interface Verdict extends Measured {
  readonly verdict: "CONCURRENT" | "SERIALIZED"
  readonly aMillis: number
  readonly bMillis: number
  readonly ratio: number
}

/** B ran beside A when it ended before A did, and took less than half of the time that A still had to go. */
export const judge = (measured: Measured): Verdict => {
  const { a, aloneMillis, b } = measured
  const bMillis = b.to - b.from
  const isConcurrent = b.to < a.to && bMillis < (a.to - b.from) / 2
  return {
    ...measured,
    verdict: isConcurrent ? "CONCURRENT" : "SERIALIZED",
    aMillis: a.to - a.from,
    bMillis,
    ratio: bMillis / Math.max(aloneMillis, 1)
  }
}

export const seconds = (millis: number): string => (millis / 1000).toFixed(2)

/** A span with a name in front and a fact behind it. */
export interface Bar {
  readonly label: string
  readonly span: Span
  readonly fact: string
}

/** A line each, drawn on one scale. They are no wider than `columns`, as far as there is room for a picture at all. */
export const bars = (all: ReadonlyArray<Bar>, columns: number): ReadonlyArray<string> => {
  const gap = 2
  const left = Math.max(...all.map(({ label }) => label.length)) + gap
  const width = Math.max(10, columns - left - gap - Math.max(...all.map(({ fact }) => fact.length)))
  const start = Math.min(...all.map(({ span }) => span.from))
  const scale = width / Math.max(1, Math.max(...all.map(({ span }) => span.to)) - start)
  return all.map(({ fact, label, span }) => {
    const from = Math.min(width - 1, Math.round((span.from - start) * scale))
    const length = Math.min(width - from, Math.max(1, Math.round((span.to - span.from) * scale)))
    return label.padEnd(left) + (" ".repeat(from) + "█".repeat(length)).padEnd(width + gap) + fact
  })
}

/** Two lines, no wider than `columns`, drawn on one scale. */
export const draw = (verdict: Verdict, columns: number): ReadonlyArray<string> => {
  const { a, aMillis, aloneMillis, b, bMillis, ratio } = verdict
  const compared = `alone ${seconds(aloneMillis)} s, ratio ${ratio.toFixed(1)}`
  return bars(
    [
      { label: "A", span: a, fact: `${seconds(aMillis)} s` },
      { label: "B", span: b, fact: `${seconds(bMillis)} s   ${compared}` }
    ],
    columns
  )
}
