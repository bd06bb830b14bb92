import { assert, describe, it } from "@effect/vitest"
import type { AgentHosts } from "acp-sidecar"
import * as Children from "../../src/cli/children.ts"
import * as HostsTable from "../../src/cli/hostsTable.ts"

const host = (changes: Partial<Record<keyof AgentHosts.HostInfo, unknown>> = {}): AgentHosts.HostInfo =>
  ({
    hostId: "host-1",
    identity: "3f9c1a2b4d5e",
    agent: "bundled",
    pid: 4242,
    state: "ready",
    shared: true,
    sessions: Array.from({ length: 10 }, (_, index) => `session-${index}`),
    leases: 10,
    uptimeMillis: 5432,
    memoryBytes: 61 * 1024 * 1024 + 12,
    restarts: 0,
    noise: 3,
    malformed: 0,
    late: 0,
    ...changes
  }) as AgentHosts.HostInfo

describe("lines", () => {
  it("align what they have of each host, and fit a terminal", () => {
    const lines = HostsTable.lines([
      host(),
      host({ hostId: "host-12", pid: null, sessions: [], leases: 0, memoryBytes: null, noise: 1200, restarts: 2 })
    ])
    assert.deepStrictEqual(lines, [
      "host     identity       pid  sessions  leases  uptime  memory  noise  late  restarts",
      "host-1   3f9c1a2b4d5e  4242        10      10  5.43 s  61 MiB      3     0         0",
      "host-12  3f9c1a2b4d5e     ?         0       0  5.43 s       ?   1200     0         2"
    ])
  })
})

describe("confirmed", () => {
  it("says what the table of processes has", () => {
    const cases: ReadonlyArray<readonly [ReadonlyArray<Children.Child> | null, string]> = [
      [[{ pid: 4242, members: 1 }], "process table: 1 agent process (pid 4242), 10 sessions"],
      [[{ pid: 7, members: 4 }], "process table: 1 agent process (pid 7 with 3 more in its group), 10 sessions"],
      [
        [
          { pid: 7, members: 1 },
          { pid: 8, members: 1 }
        ],
        "process table: 2 agent processes (pids 7, 8), 10 sessions"
      ],
      [[], "process table: 0 agent processes, 10 sessions"],
      [null, "process table: it can't be read here"]
    ]
    for (const [children, line] of cases) assert.strictEqual(HostsTable.confirmed(children, 10), line)
  })
})

describe("children", () => {
  const row = (pid: number, parent: number, group: number, state = "S"): Children.Row => ({ pid, parent, group, state })

  it("are the live leaders of groups that this process has started, each with its group", () => {
    const rows = [
      row(1, 0, 1),
      row(10, 1, 10),
      // An agent with a child and a grandchild, one of which has ended.
      row(20, 10, 20),
      row(21, 20, 20),
      row(22, 21, 20, "Z"),
      // An agent that has ended, something that runs in our own group, and what an agent runs in another group.
      row(30, 10, 30, "Z+"),
      row(40, 10, 10),
      row(50, 20, 50),
      // Another's.
      row(60, 1, 60)
    ]
    assert.deepStrictEqual(Children.among(rows, 10), [{ pid: 20, members: 2 }])
  })

  it("are unknown where the table does not even have this process", () => {
    assert.isNull(Children.among([], 10))
    assert.isNull(Children.among([row(1, 0, 1)], 10))
  })

  it("names the parents of processes once each, and none when one of them is gone", () => {
    const rows = [row(20, 10, 20), row(21, 10, 21), row(22, 11, 22)]
    assert.deepStrictEqual(Children.parentsAmong(rows, [20, 21, 22]), [10, 11])
    assert.isNull(Children.parentsAmong(rows, [20, 99]))
    assert.isNull(Children.parentsAmong(rows, [20, null]))
  })

  it("can be listed here", () => {
    assert.isNotNull(Children.list())
    assert.deepStrictEqual(Children.parentsOf([process.pid]), [process.ppid])
    assert.isTrue(Children.isRunning(process.pid))
  })
})
