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

/** Two lines, no wider than `columns`, drawn on one scale. */
export const draw = (verdict: Verdict, columns: number): ReadonlyArray<string> => {
  const { a, aMillis, aloneMillis, b, bMillis, ratio } = verdict
  const facts = [
    `${seconds(aMillis)} s`,
    `${seconds(bMillis)} s   alone ${seconds(aloneMillis)} s, ratio ${ratio.toFixed(1)}`
  ]
  const left = 3
  const gap = 2
  const width = Math.max(10, columns - left - gap - Math.max(...facts.map((fact) => fact.length)))
  const start = Math.min(a.from, b.from)
  const scale = width / Math.max(1, Math.max(a.to, b.to) - start)
  return [a, b].map((span, index) => {
    const from = Math.min(width - 1, Math.round((span.from - start) * scale))
    const length = Math.min(width - from, Math.max(1, Math.round((span.to - span.from) * scale)))
    const bar = (" ".repeat(from) + "█".repeat(length)).padEnd(width + gap)
    return `${"AB"[index]}  ${bar}${facts[index]}`
  })
}
