import { assert, describe, it } from "@effect/vitest"
import * as Crowd from "../../src/cli/crowd.ts"

const turn = (index: number, to = 500 + index, heard?: string): Crowd.Turn => {
  const word = `answer-${`${index}`.padStart(2, "0")}`
  return { span: { from: 100 + index, to }, word, heard: heard ?? `Here it is: ${word}` }
}
const turns = (count: number): ReadonlyArray<Crowd.Turn> => [
  turn(1, 5000),
  ...Array.from({ length: count - 1 }, (_, index) => turn(index + 2))
]
const seen = (changes: Partial<Crowd.Seen> = {}): Crowd.Seen => ({
  ids: Array.from({ length: 10 }, (_, index) => `id-${index}`),
  hosts: 1,
  processes: 1,
  turns: turns(10),
  atOnce: 10,
  ...changes
})
const judge = (changes?: Partial<Crowd.Seen>) => Crowd.judge(seen(changes))

describe("judge", () => {
  it("finds nothing wrong with ten conversations at once in one process", () => {
    assert.deepStrictEqual(judge(), { isShared: true, isConcurrent: true, problems: [] })
    assert.deepStrictEqual(judge({ processes: null }), { isShared: true, isConcurrent: true, problems: [] })
  })

  it("is not SHARED with more than one process, whoever counts them, or with none", () => {
    for (const [hosts, processes, sentence] of [
      [3, 3, "There were 3 agent processes for 10 sessions, not one."],
      [2, null, "There were 2 agent processes for 10 sessions, not one."],
      [1, 2, "The sidecar has 1 agent process and the process table 2, for 10 sessions that are to share one."],
      [1, 0, "The sidecar has 1 agent process and the process table 0, for 10 sessions that are to share one."]
    ] as const) {
      const verdict = judge({ hosts, processes })
      assert.deepStrictEqual(verdict, { isShared: false, isConcurrent: true, problems: [sentence] })
    }
  })

  it("finds sessions that got the same id", () => {
    const ids = ["a", "b", "a", "c", "b", "a", "d", "e", "f", "g"]
    assert.deepStrictEqual(judge({ ids }).problems, [
      "Sessions 1, 3 and 6 got the same id from the agent.",
      "Sessions 2 and 5 got the same id from the agent."
    ])
  })

  it("finds a session that did not get its own answer, and one that got another's", () => {
    const mixed = turns(10).map((one, index) =>
      index === 2 ? turn(3, 503, "nothing of the kind") : index === 4 ? turn(5, 505, "answer-05 answer-01") : one
    )
    assert.deepStrictEqual(judge({ turns: mixed }).problems, [
      "Session 3 did not get the word that it asked for.",
      "Session 5 got the answer of session 1."
    ])
  })

  it("names at most eight sessions in a sentence", () => {
    const loud = turns(50).map((one, index) =>
      index === 0
        ? {
            ...one,
            heard: turns(50)
              .map(({ word }) => word)
              .join()
          }
        : one
    )
    const ids = loud.map((_, index) => `${index}`)
    assert.deepStrictEqual(judge({ turns: loud, ids, atOnce: 50 }).problems, [
      "Session 1 got the answer of sessions 2, 3, 4, 5, 6, 7, 8, 9 and 41 more."
    ])
  })

  it("is SERIALIZED when the model did not have all prompts at once, or when one waited for the slow turn", () => {
    const few = judge({ atOnce: 4 })
    assert.isFalse(few.isConcurrent)
    assert.deepStrictEqual(few.problems, ["The model had 4 of the 10 prompts at once, not all."])
    const waiting = judge({ turns: turns(10).map((one, index) => (index === 6 ? turn(7, 5000) : one)) })
    assert.isFalse(waiting.isConcurrent)
    assert.deepStrictEqual(waiting.problems, ["Session 7 waited for the slow turn of session 1."])
  })
})

describe("draw", () => {
  it("draws a bar a session on one scale", () => {
    assert.deepStrictEqual(Crowd.draw([turn(1, 1101), turn(2, 602)], 40), [
      `1  ${"█".repeat(29)}  1.00 s`,
      `2  ${"█".repeat(15)}${" ".repeat(14)}  0.50 s`
    ])
  })

  it("draws twelve at most, and says how long the others took", () => {
    assert.lengthOf(Crowd.draw(turns(12), 80), 12)
    const lines = Crowd.draw(turns(50), 80)
    assert.lengthOf(lines, 12)
    assert.match(lines[0]!, /^ 1 {2}█/)
    assert.strictEqual(lines.at(-1), " …  and 39 more, the longest 0.40 s")
    assert.isTrue(lines.every((line) => line.length <= 80))
  })
})
