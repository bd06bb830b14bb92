import { assert, describe, it } from "@effect/vitest"
import type { SidecarEvent } from "acp-sidecar"
import { count, type Kinds, violations } from "./contracts.ts"

/** Events with numbers, of turns `t1`, `t2`, … and questions `p1`, …: `+` accepted, `>` started, `!` ended, `.` updated, `#` all over. */
const events = (text: string): ReadonlyArray<SidecarEvent.SessionEvent> =>
  text.split(" ").map((word, index) => {
    const [what, id] = [word[0]!, word.slice(1)]
    const tag = {
      "+": "TurnQueued",
      ">": "TurnStarted",
      "!": "TurnEnded",
      ".": "Update",
      "?": "PermissionAsked",
      "=": "PermissionAnswered",
      "#": "SessionEnded"
    }[what]
    const update = { sessionUpdate: "plan", entries: [] }
    return { _tag: tag, number: index + 1, at: 0, turnId: id, permissionId: id, afterTurn: null, update } as never
  })

describe("the contracts of a session's events", () => {
  it.each([
    ["+t1 >t1 .t1 ?p1 =p1 !t1 +t2 >t2 !t2", []],
    ["+t1 +t2 !t2 >t1 !t1", []],
    ["+t1 >t1", ["t1 never ended"]],
    ["+t1 >t1 !t1 !t1", ["t1 ended twice"]],
    ["+t1 >t1 !t1 .t1", ["t1 got an update while it was not running"]],
    ["+t1 .t1 >t1 !t1", ["t1 got an update while it was not running"]],
    ["+t1 >t1 +t2 >t2 !t1 !t2", ["t2 started while t1 was running"]],
    [">t1 !t1", ["t1 started and was never accepted", "t1 ended and was never accepted"]],
    ["?p1", ["p1 was never answered"]],
    ["+t1 >t1 !t1 #", []],
    [
      "+t1 >t1 # !t1 #",
      ["TurnEnded came after the end of the session", "SessionEnded came after the end of the session"]
    ],
    ["?p1 =p1 =p1", ["p1 was answered and was not open"]]
  ])("%s", (text, expected) => assert.deepStrictEqual(violations(events(text)), expected))

  it("more than one turn may run at once where that was asked for", () =>
    assert.deepStrictEqual(violations(events("+t1 >t1 +t2 >t2 !t1 !t2"), 2), []))

  it("a gap in the numbers is told, and one that a reader was told of too", () => {
    const [one, two] = events("+t1 !t1")
    assert.deepStrictEqual(violations([one!, { ...two!, number: 3 } as never]), ["event 3 came after event 1"])
    assert.deepStrictEqual(violations([{ _tag: "Lagged", from: 1, to: 2 }, two!]), [
      "a reader in no hurry missed the events 1 to 2",
      "t1 ended and was never accepted"
    ])
  })

  it("updates after a turn, outside of any, and of unknown kinds are counted by kind", () => {
    const kinds: Kinds = { afterTurn: {}, outside: {}, unrecognized: {} }
    const [update] = events(".t1") as ReadonlyArray<SidecarEvent.Update>
    count(kinds, update!)
    count(kinds, { ...update!, turnId: null })
    count(kinds, { ...update!, turnId: null, afterTurn: update!.turnId })
    count(kinds, { ...update!, update: { sessionUpdate: "unrecognized", kind: "new", raw: {} } })
    assert.deepStrictEqual(kinds, { afterTurn: { plan: 1 }, outside: { plan: 1 }, unrecognized: { new: 1 } })
  })
})
