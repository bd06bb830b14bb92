import { assert, describe, it } from "@effect/vitest"
import type { Sidecar } from "acp-sidecar"
import * as PsTable from "../../src/cli/psTable.ts"

const info = (changes: Partial<Record<keyof Sidecar.SidecarInfo, unknown>> = {}): Sidecar.SidecarInfo =>
  ({
    sidecarId: "first",
    state: "ready",
    activeVmCount: 0,
    activePrompts: 0,
    limits: {},
    vms: [],
    hosts: [],
    heldBack: [],
    ...changes
  }) as unknown as Sidecar.SidecarInfo

const session = (changes: object) => ({
  agent: "claude",
  cwd: "/work",
  state: "open",
  turns: [],
  pendingPermissions: 0,
  idleMillis: 0,
  ...changes
})

const seen = (found: PsTable.Seen["found"]): PsTable.Seen => ({ socket: "/run/first.sock", url: null, found })
const alive = (changes?: Parameters<typeof info>[0]) => seen({ _tag: "Info", version: "0.1.0", info: info(changes) })

describe("lines", () => {
  it("show a row for each turn, for a session and a Vm without any, and for a session that starts", () => {
    const vms = [
      {
        vmId: "vm-1",
        root: "/work",
        opening: 1,
        sessions: [
          session({
            sessionId: "session-1",
            pendingPermissions: 2,
            turns: [
              { turnId: "turn-9", phase: "running", lane: "interactive" },
              { turnId: "turn-10", phase: "queued", lane: "background" }
            ]
          }),
          session({ sessionId: "session-2", idleMillis: 65_000 })
        ]
      },
      { vmId: "vm-2", root: "/other", opening: 0, sessions: [] }
    ]
    assert.deepStrictEqual(PsTable.lines([alive({ vms })]), [
      "first: ready, 2 VMs, 2 sessions, 2 turns, 0 agent processes (version 0.1.0, /run/first.sock)",
      "  vm    session    agent   state     turn     phase    lane         questions     idle  folder",
      "  vm-1  session-1  claude  open      turn-9   running  interactive          2        -  /work",
      "  vm-1  session-1  claude  open      turn-10  queued   background           2        -  /work",
      "  vm-1  session-2  claude  open      -        -        -                    0  65.00 s  /work",
      "  vm-1  -          -       starting  -        -        -                    0        -  /work",
      "  vm-2  -          -       -         -        -        -                    0        -  /other"
    ])
  })

  it("show agents that are held back, and keep what others wrote on one line", () => {
    const heldBack = [{ agent: "bad\n\u001b[31magent", reason: "it\nended", retryInMillis: 1500 }]
    const lines = PsTable.lines([alive({ heldBack })])
    assert.deepStrictEqual(lines.slice(1), ["  held back: bad [31magent, tried again in 1.50 s: it ended"])
  })

  it("show a dead one as such, apart from the others", () => {
    const dead = seen({ _tag: "Unreachable", problem: "nobody listens" })
    assert.deepStrictEqual(PsTable.lines([dead, alive()]), [
      "/run/first.sock: dead",
      "  nobody listens",
      "",
      "first: ready, 0 VMs, 0 sessions, 0 turns, 0 agent processes (version 0.1.0, /run/first.sock)"
    ])
    assert.deepStrictEqual(PsTable.lines([]), [])
  })
})

describe("json", () => {
  it("has the same keys for a live sidecar and a dead one", () => {
    const dead = PsTable.json(seen({ _tag: "Unreachable", problem: "nobody listens" }))
    const live = PsTable.json(alive())
    assert.deepStrictEqual(Object.keys(dead), Object.keys(live))
    assert.deepStrictEqual([dead.state, dead.problem, dead.sidecarId], ["unreachable", "nobody listens", null])
    assert.deepStrictEqual([live.state, live.problem, live.sidecarId], ["ready", null, "first"])
  })
})
