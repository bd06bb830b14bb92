import { assert, describe, it } from "@effect/vitest"
import { TurnId } from "../../src/Address.ts"
import * as Transcript from "../../src/cli/transcript.ts"
import type * as SidecarEvent from "../../src/SidecarEvent.ts"

const base = { number: 1, at: 0, turnId: TurnId.make("turn-1") }
const update = (sessionUpdate: string, fields: object): SidecarEvent.SessionEvent => ({
  _tag: "Update",
  ...base,
  afterTurn: null,
  update: { sessionUpdate, ...fields } as never
})
const says = (text: string) => update("agent_message_chunk", { content: { type: "text", text } })
const thinks = (text: string) => update("agent_thought_chunk", { content: { type: "text", text } })
const tool = (fields: object) => update("tool_call_update", { toolCallId: "t1", ...fields })

const render = (events: ReadonlyArray<SidecarEvent.SessionEvent>, on: "pipe" | "terminal" | "colors" = "pipe") => {
  const transcript = Transcript.make({ isTerminal: () => on !== "pipe", canColor: () => on === "colors" })
  const pieces = [...events.flatMap(transcript.event), ...transcript.end()]
  const text = (sink: string) =>
    pieces
      .filter((piece) => piece.sink === sink)
      .map((piece) => piece.text)
      .join("")
  return { out: text("out"), err: text("err"), all: pieces.map((piece) => piece.text).join("") }
}

describe("Transcript", () => {
  it("keeps the answer on stdout and all else on stderr", () => {
    const { err, out } = render([
      thinks("hm"),
      says("Let me "),
      says("see."),
      update("tool_call", { toolCallId: "t1", title: "ls", kind: "execute", status: "pending" }),
      tool({ status: "completed" }),
      says("Done.")
    ])
    assert.strictEqual(out, "Let me see.\nDone.\n")
    assert.strictEqual(err, "hm\ntool (execute): ls: pending\ntool (execute): ls: completed\n")
  })

  it("shows a tool call only when it changes, and why it failed", () => {
    const { err } = render([
      update("tool_call", { toolCallId: "t1", title: "ls", status: "in_progress" }),
      tool({ status: "in_progress" }),
      tool({ content: [] }),
      tool({ status: "failed", content: [{ type: "content", content: { type: "text", text: "no\nsuch file" } }] })
    ])
    assert.strictEqual(err, "tool: ls: in_progress\ntool: ls: failed (no such file)\n")
  })

  it("shows the plan only when it changes", () => {
    const plan = (status: string) => update("plan", { entries: [{ content: "Read", priority: "high", status }] })
    const { err } = render([plan("pending"), plan("pending"), plan("completed")])
    assert.strictEqual(err, "plan:\n  [ ] Read\nplan:\n  [x] Read\n")
  })

  it("shows who answered a question", () => {
    const options = [{ optionId: "a", name: "Allow", kind: "allow_once" as const }]
    const asked = (permissionId: string): SidecarEvent.SessionEvent => ({
      _tag: "PermissionAsked",
      ...base,
      permissionId,
      toolCall: { toolCallId: "t1", title: "rm" },
      options
    })
    const answered = (
      permissionId: string,
      optionId: string | null,
      answeredBy: SidecarEvent.AnsweredBy
    ): SidecarEvent.SessionEvent => ({ _tag: "PermissionAnswered", ...base, permissionId, optionId, answeredBy })
    const { err } = render([
      asked("p1"),
      answered("p1", "a", "user"),
      asked("p2"),
      answered("p2", "a", "policy"),
      asked("p3"),
      answered("p3", null, "cancel")
    ])
    assert.strictEqual(
      err,
      "permission: rm: Allow\npermission: rm: Allow (by policy)\npermission: rm: cancelled (by cancel)\n"
    )
  })

  it("does not let an agent move the cursor of a terminal", () => {
    const evil = "a\u001b[2Jb\u0007\r\tc\nd"
    const title = update("tool_call", { toolCallId: "t1", title: evil, status: "pending" })
    assert.strictEqual(render([says(evil), title], "terminal").all, "a[2Jb\tc\nd\ntool: a [2Jb c d: pending\n")
    assert.strictEqual(render([says(evil)]).out, `${evil}\n`)
  })

  it("dims thoughts where colours are welcome, and only there", () => {
    assert.strictEqual(render([thinks("a"), thinks("b"), says("c")], "colors").all, "\u001b[2mab\u001b[0m\nc\n")
    assert.strictEqual(render([thinks("a"), says("c")], "terminal").all, "a\nc\n")
  })

  it("says so of an update that can't be shown, and shows those after it", () => {
    const { err, out } = render([
      says("a"),
      update("tool_call_update", { toolCallId: "t1", title: 5 }),
      update("agent_message_chunk", { content: { type: "resource", resource: { text: 5 } } }),
      says("b"),
      update("plan", { entries: [{ content: "c", status: "constructor" }] })
    ])
    assert.strictEqual(out, "a\nb\n")
    assert.strictEqual(err, `${"an event could not be shown (Update)\n".repeat(2)}plan:\n  [?] c\n`)
  })

  it("joins pieces that go to the same place", () => {
    const piece = (sink: "out" | "err", text: string) => ({ sink, text })
    const pieces = [piece("out", "a"), piece("out", "b"), piece("err", "c"), piece("out", "d")]
    assert.deepStrictEqual(Transcript.joined(pieces), [piece("out", "ab"), piece("err", "c"), piece("out", "d")])
  })

  it("takes updates that nobody knows", () => {
    assert.strictEqual(render([update("brand_new_thing", {}), update("agent_message_chunk", {})]).all, "")
  })
})
