import { assert, describe, it } from "@effect/vitest"
import * as Report from "./report.ts"

const result = (agent: string, step: string, rest: Partial<Report.Result> = {}): Report.Result => ({
  agent,
  step,
  status: "ok",
  cell: "",
  detail: "",
  tookMillis: 0,
  ...rest
})

describe("the report", () => {
  it("has a row for each step and a column for each agent, as Markdown that is aligned", () =>
    assert.strictEqual(
      Report.table([
        result("pi", "start", { cell: "1.50 s" }),
        result("pi", "tool", { cell: "never asks", status: "cannot" }),
        result("gemini", "start", { status: "failed", detail: "it is gone" }),
        result("gemini", "close", { cell: "a|b" })
      ]),
      [
        "| step  | pi         | gemini     |",
        "|-------|------------|------------|",
        "| start | 1.50 s     | **failed** |",
        "| tool  | never asks |            |",
        "| close |            | a\\|b       |"
      ].join("\n")
    ))

  it("tells each step in a line", () => {
    const told = { cell: "0.02 s, cancelled", detail: "the model went on", tookMillis: 12_345 }
    assert.match(
      Report.line(result("pi", "cancel", told)),
      /^pi +cancel +ok +12\.3 s  0\.02 s, cancelled; the model went on$/
    )
    assert.match(
      Report.line(result("pi", "kill", { status: "failed", detail: "it lives" })),
      /FAILED +0\.00 s  it lives$/
    )
  })

  it("says in its last line whether every contract held, and before it what did not", () => {
    assert.deepStrictEqual(Report.verdict([result("pi", "start"), result("qwen", "start")]), [
      "2 steps with 2 agents: every contract held."
    ])
    assert.deepStrictEqual(
      Report.verdict([result("pi", "start"), result("pi", "kill", { status: "failed", detail: "it lives" })]),
      ["pi, kill: it lives", "2 steps with 1 agent: 1 FAILED."]
    )
  })
})
