// Stands in for Intl.Segmenter in the packed command. Effect's help makes one while it loads, which takes Node 15 ms.
const Real = globalThis["Intl"]["Segmenter"]

/** Splits text into graphemes. ASCII needs no tables for that. */
export class Segmenter {
  readonly #options: readonly [Intl.LocalesArgument, Intl.SegmenterOptions]
  #real: Intl.Segmenter | undefined

  constructor(...options: readonly [Intl.LocalesArgument, Intl.SegmenterOptions]) {
    this.#options = options
  }

  segment(text: string): Iterable<{ readonly segment: string }> {
    if (/^[ -~]*$/.test(text)) return Array.from(text, (segment) => ({ segment }))
    this.#real ??= new Real(...this.#options)
    return this.#real.segment(text)
  }
}
