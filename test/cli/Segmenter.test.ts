import { assert, describe, it } from "@effect/vitest"
import { Segmenter } from "../../src/cli/Segmenter.ts"

const options = { granularity: "grapheme" } as const

describe("Segmenter", () => {
  it.each(["", "run --agent NAME", "naïve …", "👩‍👩‍👧 e\u0301", "a\r\nb"])("splits %j as Intl.Segmenter does", (text) => {
    const split = (segmenter: { segment(text: string): Iterable<{ readonly segment: string }> }) =>
      Array.from(segmenter.segment(text), ({ segment }) => segment)
    assert.deepStrictEqual(split(new Segmenter(undefined, options)), split(new Intl.Segmenter(undefined, options)))
  })
})
