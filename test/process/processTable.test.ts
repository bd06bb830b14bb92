import { type ChildProcess, spawn } from "node:child_process"
import { existsSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { ProcessTable } from "acp-sidecar"
import * as NodeProcessTable from "acp-sidecar/NodeProcessTable"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { newMark, untilGone, untilRunning } from "../support/processes.ts"

const isLinux = existsSync("/proc/self/stat")

/** A group of three processes, which ends with the scope. */
const shell = (mark: string, script = "sleep 60 & sleep 60 & wait"): Effect.Effect<ChildProcess, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() =>
      spawn("/bin/sh", ["-c", `${script}; :`, mark], {
        detached: true,
        stdio: "ignore",
        env: { PATH: process.env["PATH"], ACP_TEST_MARK: mark }
      })
    ),
    (child) =>
      Effect.sync(() => {
        try {
          process.kill(-child.pid!, "SIGKILL")
        } catch {
          // It is gone already.
        }
      })
  )

describe.each([
  ["the table of this platform", NodeProcessTable.layer, isLinux],
  ["the table from ps", NodeProcessTable.layerPs, false]
] as const)("%s", (_, layer, readsEnvironments) => {
  it.live("knows itself, and tells the same about it twice", () =>
    Effect.gen(function* () {
      const { all, self, startTime } = yield* ProcessTable.ProcessTable
      assert.strictEqual(self.pid, process.pid)
      assert.notStrictEqual(self.startTime, "")
      assert.strictEqual(yield* startTime(process.pid), self.startTime)
      assert.deepInclude(
        (yield* all).find(({ pid }) => pid === process.pid),
        {
          group: self.group,
          startTime: self.startTime,
          isZombie: false
        }
      )
    }).pipe(Effect.provide(layer))
  )

  it.live("shows a group with its members and their memory, and signals it through a witness alone", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const table = yield* ProcessTable.ProcessTable
      const { pid = 0 } = yield* shell(mark)
      const members = yield* Effect.repeat(table.members(pid), { until: (found) => found.length === 3 })
      assert.include(members, pid)
      const memory = yield* table.memory([pid, 1, 2 ** 30])
      assert.deepStrictEqual(Array.from(memory.keys()), [pid])
      assert.isAbove(memory.get(pid)!, 100_000)
      const startTime = yield* table.startTime(pid)
      assert.isString(startTime)
      const witness = { pid, startTime: startTime! }
      assert.strictEqual(yield* table.signal(pid, "KILL", { pid, startTime: `${startTime}0` }), "gone")
      assert.strictEqual(yield* table.signal(pid, "KILL", { ...table.self }), "gone")
      for (const group of [1, 0, -1, pid + 1]) assert.strictEqual(yield* table.signal(group, "KILL", witness), "gone")
      assert.strictEqual((yield* table.members(pid)).length, 3)
      assert.strictEqual(yield* table.signal(pid, "TERM", witness), "sent")
      yield* untilGone(mark)
      yield* Effect.repeat(table.members(pid), { until: (found) => found.length === 0 })
      assert.isNull(yield* table.startTime(pid))
      assert.strictEqual(yield* table.signal(pid, "KILL", witness), "gone")
      assert.deepStrictEqual(yield* table.memory([pid]), new Map())
    }).pipe(Effect.provide(layer))
  )

  it.live(`finds processes by a variable of their environment: ${readsEnvironments}`, () =>
    Effect.gen(function* () {
      const mark = newMark()
      const { carriers, members } = yield* ProcessTable.ProcessTable
      const { pid = 0 } = yield* shell(mark)
      yield* untilRunning(mark, 1)
      yield* Effect.repeat(members(pid), { until: (found) => found.length === 3 })
      const found = yield* carriers("ACP_TEST_MARK")
      if (!readsEnvironments) return assert.isNull(found)
      assert.sameMembers([...(found?.get(mark) ?? [])], [...(yield* members(pid))])
      assert.isUndefined((yield* carriers("TEST_MARK"))?.get(mark))
    }).pipe(Effect.provide(layer))
  )

  it.live("does not count a zombie as alive, and takes it for a witness", () =>
    Effect.gen(function* () {
      const { all, members, signal, startTime } = yield* ProcessTable.ProcessTable
      // The shell becomes a program that never looks after the child that it then has.
      const parent = yield* shell(newMark(), "sleep 0.05 & exec sleep 60")
      const zombie = yield* Effect.repeat(
        Effect.map(all, (rows) => rows.find((row) => row.group === parent.pid && row.isZombie)),
        { until: (row) => row !== undefined }
      )
      assert.deepStrictEqual(yield* members(parent.pid!), [parent.pid!])
      assert.isNull(yield* startTime(zombie!.pid))
      assert.strictEqual(yield* signal(parent.pid!, "TERM", zombie!), "sent")
      yield* Effect.repeat(members(parent.pid!), { until: (found) => found.length === 0 })
    }).pipe(Effect.provide(layer))
  )
})
