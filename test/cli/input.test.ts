import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Result from "effect/Result"
import { choose } from "../../src/cli/ask.ts"
import { parseTime, parseVariables, splitCommand } from "../../src/cli/input.ts"

describe("parseTime", () => {
  it("takes a number with a unit", () => {
    const millis = (text: string) => Duration.toMillis(Result.getOrThrow(parseTime(text)))
    assert.deepStrictEqual(["500ms", "8s", "5m", "1.5h", " 2 s "].map(millis), [500, 8000, 300_000, 5_400_000, 2000])
    assert.deepStrictEqual(["1d", "5 minutes", "1 second"].map(millis), [86_400_000, 300_000, 1000])
  })

  it("refuses all else", () => {
    for (const text of ["", "8", "s", "-1s", "0s", "1 fortnight", "8s8s", "Infinity s", "0x10s"]) {
      assert.isTrue(Result.isFailure(parseTime(text)), text)
    }
  })
})

describe("splitCommand", () => {
  const split = (line: string) => Result.getOrThrow(splitCommand(line))

  it("splits at blanks outside quotes", () => {
    assert.deepStrictEqual(split("node agent.mjs"), ["node", "agent.mjs"])
    assert.deepStrictEqual(split("  node \t agent.mjs\n"), ["node", "agent.mjs"])
    assert.deepStrictEqual(split(`'/my agents/a' --name "two words" ''`), ["/my agents/a", "--name", "two words", ""])
    assert.deepStrictEqual(split(`a=b"c d"'e f'g`), ["a=bc de fg"])
  })

  it("has a backslash outside quotes and within double quotes", () => {
    assert.deepStrictEqual(split(String.raw`a\ b \"c\" '\n' "\"\\\n"`), [
      "a b",
      '"c"',
      String.raw`\n`,
      String.raw`"\\n`
    ])
  })

  it("has none of a shell's powers", () => {
    assert.deepStrictEqual(split("echo $HOME *.ts | cat; ~ `id` #x"), [
      "echo",
      "$HOME",
      "*.ts",
      "|",
      "cat;",
      "~",
      "`id`",
      "#x"
    ])
  })

  it("refuses what can't be run", () => {
    for (const line of ["", "  ", "''", '"" x', "a 'b", 'a "b', "a\0b"]) {
      assert.isTrue(Result.isFailure(splitCommand(line)), JSON.stringify(line))
    }
  })
})

describe("parseVariables", () => {
  it("takes pairs, the last one of a name counts", () => {
    assert.deepStrictEqual(Result.getOrThrow(parseVariables(["A=1", "B=x=y", "C=", "A=2"])), {
      A: "2",
      B: "x=y",
      C: ""
    })
  })

  it("refuses other things without repeating a value", () => {
    for (const pair of ["=hunter2", "no name=hunter2", "1A=hunter2"]) {
      const { failure } = parseVariables([pair]) as Result.Failure<never, string>
      assert.notInclude(failure, "hunter2")
    }
    // A forgotten name: the whole of it may be the secret.
    const { failure } = parseVariables(["hunter2"]) as Result.Failure<never, string>
    assert.notInclude(failure, "hunter2")
  })
})

describe("choose", () => {
  const options = [
    { optionId: "once", name: "Allow", kind: "allow_once" as const },
    { optionId: "always", name: "Always allow", kind: "allow_always" as const },
    { optionId: "no", name: "Reject", kind: "reject_once" as const }
  ]

  it("takes a number, yes, no, or the beginning of one name", () => {
    assert.deepStrictEqual(choose("2", options), { optionId: "always" })
    assert.deepStrictEqual(choose(" Rej ", options), { optionId: "no" })
    assert.strictEqual(choose("Y", options), "allow")
    assert.strictEqual(choose("n", options), "reject")
  })

  it("rejects on Enter and asks again for anything else", () => {
    assert.strictEqual(choose("", options), "reject")
    for (const answer of ["4", "0", "al", "what?"]) assert.isUndefined(choose(answer, options), answer)
  })
})
