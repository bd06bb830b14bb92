// What a sidecar tells of its agent processes. See also test/process/hostInfo.test.ts.
import { assert, it } from "@effect/vitest"
import { type AgentHosts, AgentProfile, ProcessTable, Sidecar } from "acp-sidecar"
import { ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import { TestClock } from "effect/testing"
import { beside, chunk, idle, provided } from "./support/events.ts"
import { everywhere, placed } from "./support/places.ts"
import { manual } from "./support/turns.ts"

const shared: AgentProfile.AgentProfile = { ...TestSidecar.profile, share: AgentProfile.sharing() }
const openVm = Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work" }))
const hosts: Effect.Effect<ReadonlyArray<AgentHosts.HostInfo>, never, Sidecar.Sidecar> = Effect.flatMap(
  Sidecar.Sidecar,
  (sidecar) => Effect.map(sidecar.describe, (info) => info.hosts)
)

const self: ProcessTable.Self = {
  pid: 2,
  startTime: "0",
  group: 2,
  user: null,
  machine: "here",
  boot: "today",
  space: ""
}
const one = (pid: number, group: number, memory: number, isZombie = false): [number, ProcessTable.TestProcess] => [
  pid,
  { pid, group, startTime: "1", isZombie, memory }
]

/** A table that notes which groups it was asked for. */
const tableOf = (processes: ReadonlyArray<[number, ProcessTable.TestProcess]>, scans: Array<ReadonlyArray<number>>) =>
  Layer.effect(
    ProcessTable.ProcessTable,
    Effect.map(ProcessTable.ProcessTable, (table) =>
      ProcessTable.ProcessTable.of({
        ...table,
        memory: (groups) =>
          Effect.suspend(() => {
            scans.push(Array.from(groups))
            return table.memory(groups)
          })
      })
    )
  ).pipe(Layer.provide(ProcessTable.layerTest({ self, processes: new Map(processes) })))

/** A sidecar whose agents say that they are these processes, the first one 100. */
const layerPids = (pids: ReadonlyArray<number | undefined>) => {
  let started = 0
  return Sidecar.layerTest(() =>
    Effect.map(ScriptedAgent.make(), (agent) => ({ ...agent.transport, pid: pids[started++] }))
  )
}

everywhere("the memory of a host", (_layer, place) => {
  const at = placed(place)
  const scans: Array<ReadonlyArray<number>> = []
  const table = tableOf(
    [one(100, 100, 30), one(101, 100, 12), one(102, 100, 500, true), one(200, 200, 7), one(300, 300, 9000)],
    scans
  )

  it.effect("is that of its whole process group, read for all hosts at once, and when somebody asks", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* vm.openSession({ agent: shared })
      yield* vm.openSession({ agent: shared })
      yield* vm.openSession({ agent: TestSidecar.profile })
      yield* vm.openSession({ agent: TestSidecar.profile })
      yield* vm.openSession({ agent: TestSidecar.profile })
      assert.deepStrictEqual(scans, [])
      assert.deepStrictEqual(
        (yield* hosts).map(({ memoryBytes, pid }) => [pid, memoryBytes]),
        // The third has no process, and of the fourth's nothing is left.
        [
          [100, 42],
          [200, 7],
          [null, null],
          [400, null]
        ]
      )
      assert.deepStrictEqual(scans, [[100, 200, 400]])
    }).pipe(provided(layerPids([100, 200, undefined, 400]).pipe(Layer.provide(table), at)))
  )

  it.effect("is not looked for while there is no process", () =>
    Effect.gen(function* () {
      scans.length = 0
      assert.deepStrictEqual(yield* hosts, [])
      yield* (yield* openVm).openSession({ agent: shared })
      assert.strictEqual((yield* hosts)[0]!.memoryBytes, null)
      assert.deepStrictEqual(scans, [])
    }).pipe(provided(layerPids([]).pipe(Layer.provide(table), at)))
  )

  it.effect("is unknown without a table, or with one that can't be read, and all else is told", () =>
    Effect.gen(function* () {
      const broken = Layer.succeed(
        ProcessTable.ProcessTable,
        ProcessTable.ProcessTable.of({
          ...(yield* Effect.provide(ProcessTable.ProcessTable, table)),
          memory: () => Effect.fail(new ProcessTable.ProcessTableError({ operation: "/proc", detail: "hidden" }))
        })
      )
      for (const layer of [layerPids([100]), layerPids([100]).pipe(Layer.provide(broken))]) {
        yield* Effect.gen(function* () {
          yield* (yield* openVm).openSession({ agent: shared })
          const [host] = yield* hosts
          assert.deepStrictEqual([host!.pid, host!.leases, host!.memoryBytes], [100, 1, null])
        }).pipe(provided(at(layer)))
      }
    })
  )
})

everywhere("a host", (layer) => {
  it.effect("counts what it wrote that is of no use, for itself alone (B55, B57)", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const { agents } = yield* TestSidecar.TestSidecar
      const closing = yield* vm.openSession({ agent: shared })
      yield* vm.openSession({ agent: shared })
      yield* vm.openSession({ agent: TestSidecar.profile })
      const agent = yield* Queue.take(agents)
      yield* agent.write("a log line\nanother one\n")
      yield* agent.write('{"jsonrpc":"2.0","method":\n')
      yield* agent.send({ id: 987, result: {} })
      const { agentSessionId } = closing
      yield* closing.close
      yield* agent.update(agentSessionId, chunk("too late"))
      yield* agent.update(agentSessionId, chunk("too late"))
      yield* idle
      const told = (yield* hosts).map(({ late, malformed, noise }) => ({ late, malformed, noise }))
      assert.deepStrictEqual(told, [
        { late: 3, malformed: 1, noise: 2 },
        { late: 0, malformed: 0, noise: 0 }
      ])
    }).pipe(provided(layer()))
  )

  it.effect("tells who is on it, since when, and what for", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const first = yield* vm.openSession({ agent: shared })
      yield* TestClock.adjust("3 seconds")
      const second = yield* vm.openSession({ agent: shared })
      const own = yield* vm.openSession({ agent: shared, share: false })
      yield* TestClock.adjust("2 seconds")
      const [host, other] = yield* hosts
      assert.deepStrictEqual(
        { ...host!, identity: "" },
        {
          hostId: first.hostId,
          identity: "",
          agent: "scripted",
          pid: null,
          state: "ready",
          shared: true,
          sessions: [first.id, second.id],
          leases: 2,
          uptimeMillis: 5000,
          memoryBytes: null,
          restarts: 0,
          noise: 0,
          malformed: 0,
          late: 0,
          kept: { routes: 2, earlyUpdates: 0, earlyBytes: 0, tombstones: 0, left: 0 }
        }
      )
      assert.match(host!.identity!, /^[0-9a-f]{12}$/)
      assert.deepStrictEqual([other!.shared, other!.sessions, other!.uptimeMillis], [false, [own.id], 2000])
      yield* first.close
      assert.deepStrictEqual((yield* hosts)[0]!.sessions, [second.id])
      assert.strictEqual((yield* hosts)[0]!.leases, 1)
    }).pipe(provided(layer()))
  )

  it.effect("has the identity of its launch: the same after a crash, another where the environment differs (B16)", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const { agents } = yield* TestSidecar.TestSidecar
      yield* vm.openSession({ agent: shared })
      yield* vm.openSession({ agent: shared, env: { TOKEN: "hunter2" } })
      const [before, other] = yield* hosts
      assert.notStrictEqual(before!.identity, other!.identity)
      for (const restarts of [1, 2]) {
        yield* (yield* Queue.take(agents)).crash({ code: 1 })
        if (restarts === 1) yield* Queue.take(agents)
        yield* idle
        yield* vm.openSession({ agent: shared })
        const [after] = (yield* hosts).filter(({ hostId }) => hostId !== other!.hostId)
        assert.deepStrictEqual([after!.identity, after!.restarts], [before!.identity, restarts])
      }
      assert.strictEqual((yield* hosts).find(({ hostId }) => hostId === other!.hostId)!.restarts, 0)
    }).pipe(provided(layer({ script: manual })))
  )

  it.effect("has no restart where it ended because nobody needed it any more", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* (yield* vm.openSession({ agent: shared })).close
      yield* TestClock.adjust("1 second")
      yield* idle
      assert.deepStrictEqual(yield* hosts, [])
      yield* vm.openSession({ agent: shared })
      assert.strictEqual((yield* hosts)[0]!.restarts, 0)
    }).pipe(provided(layer()))
  )

  it.effect("is told of while it starts, with all who wait for it", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      yield* beside(vm.openSession({ agent: shared }))
      yield* beside(vm.openSession({ agent: shared }))
      yield* idle
      const [host, ...others] = yield* hosts
      assert.deepStrictEqual(others, [])
      assert.deepStrictEqual([host!.state, host!.leases, host!.sessions.length], ["starting", 2, 2])
    }).pipe(provided(layer({ script: { initialize: () => Effect.never } })))
  )
})
