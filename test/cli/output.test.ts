import { assert, describe, it } from "@effect/vitest"
import { TurnId } from "../../src/Address.ts"
import { jsonEvent } from "../../src/cli/turn.ts"
import * as TurnOutcome from "../../src/TurnOutcome.ts"

describe("a line of --json", () => {
  const base = { number: 1, at: 0, turnId: TurnId.make("turn-1") }
  const nested = JSON.parse(`${"[".repeat(100_000)}${"]".repeat(100_000)}`)

  it("is an event as it is", () => {
    const event = { _tag: "TurnEnded", ...base, outcome: TurnOutcome.completed("end_turn", { n: [1] }) } as const
    assert.deepStrictEqual(JSON.parse(jsonEvent(event)), event)
    assert.isTrue(jsonEvent(event).endsWith("}\n"))
  })

  it("is cut where an agent nests deeper than the stack", () => {
    const update = { sessionUpdate: "notice", title: "kept", nested } as never
    const line = jsonEvent({ _tag: "Update", ...base, afterTurn: null, update })
    assert.include(line, '"title":"kept"')
    assert.include(line, "<too deep>")
    const ended = jsonEvent({ _tag: "TurnEnded", ...base, outcome: TurnOutcome.completed("end_turn", { nested }) })
    assert.include(ended, '"stopReason":"end_turn"')
    assert.include(ended, "<too deep>")
  })
})
