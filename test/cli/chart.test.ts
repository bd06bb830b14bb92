import { assert, describe, it } from "@effect/vitest"
import * as Chart from "../../src/cli/chart.ts"

const measured = (b: Chart.Span, a: Chart.Span = { from: 400, to: 5440 }) => Chart.judge({ a, b, aloneMillis: 50 })

describe("judge", () => {
  it("is CONCURRENT when B ends long before A", () => {
    const verdict = measured({ from: 1400, to: 1455 })
    assert.strictEqual(verdict.verdict, "CONCURRENT")
    assert.strictEqual(verdict.aMillis, 5040)
    assert.strictEqual(verdict.bMillis, 55)
    assert.closeTo(verdict.ratio, 1.1, 1e-9)
  })

  it("is SERIALIZED when B ends after A", () => {
    assert.strictEqual(measured({ from: 1400, to: 5500 }).verdict, "SERIALIZED")
    assert.strictEqual(measured({ from: 1400, to: 5440 }).verdict, "SERIALIZED")
  })

  it("is SERIALIZED when B ends before A but takes half of the rest of A's time", () => {
    assert.strictEqual(measured({ from: 1440, to: 3440 }).verdict, "SERIALIZED")
    assert.strictEqual(measured({ from: 1440, to: 3439 }).verdict, "CONCURRENT")
  })

  it("gives a finite ratio when B alone took no time", () => {
    const { ratio } = Chart.judge({ a: { from: 0, to: 10 }, b: { from: 2, to: 4 }, aloneMillis: 0 })
    assert.strictEqual(ratio, 2)
  })
})

describe("draw", () => {
  it("draws both turns on one scale", () => {
    assert.deepStrictEqual(Chart.draw(measured({ from: 1400, to: 1455 }), 80), [
      `A  ${"█".repeat(43)}  5.04 s`,
      `B  ${" ".repeat(9)}█${" ".repeat(33)}  0.06 s   alone 0.05 s, ratio 1.1`
    ])
  })

  it("fits any width of a terminal", () => {
    for (const columns of [50, 60, 80, 132, 400]) {
      for (const b of [
        { from: 1400, to: 1401 },
        { from: 1400, to: 9000 },
        { from: 5439, to: 5440 }
      ]) {
        const lines = Chart.draw(measured(b), columns)
        assert.isTrue(
          lines.every((line) => line.length <= columns && line.includes("█")),
          lines.join("\n")
        )
      }
    }
  })

  it("still draws something where there is no room", () => {
    assert.match(Chart.draw(measured({ from: 1400, to: 1455 }), 20)[1]!, /^B +█/)
  })
})
