import { assert, describe, it } from "@effect/vitest"
import { AgentLauncher, LaunchRecords, type ProcessTable } from "acp-sidecar"
import * as Clock from "effect/Clock"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { TestClock } from "effect/testing"
import * as Machine from "./support/machine.ts"
import * as Strikes from "./support/strikes.ts"

const nothing: LaunchRecords.Report = { records: 0, live: 0, reaped: 0, gone: 0, foreign: 0, kept: 0, broken: 0 }

/** Lets everybody run who can at this time. */
const settle = Effect.replicateEffect(Effect.yieldNow, 1000, { discard: true })

/** Lets time pass in small steps for as long as it takes. */
const inTime = <A, E, R>(work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.gen(function* () {
    const fiber = yield* Effect.forkChild(work, { startImmediately: true })
    for (;;) {
      yield* settle
      if (fiber.pollUnsafe() !== undefined) return yield* Fiber.join(fiber)
      yield* TestClock.adjust("100 millis")
    }
  })

/** What the start of an app finds and does. */
const reap = (machine: Machine.Machine, options: LaunchRecords.Options = {}) =>
  inTime(
    Effect.flatMap(LaunchRecords.LaunchRecords, ({ report }) => report).pipe(
      Effect.provide(Machine.layer(machine, options))
    )
  )

interface Case {
  readonly record?: object
  readonly processes?: ReadonlyArray<ProcessTable.TestProcess>
  readonly readsEnvironments?: boolean
  readonly report: Partial<LaunchRecords.Report>
  readonly signals?: ReadonlyArray<string>
  /** The processes that are left beside this one. */
  readonly left?: ReadonlyArray<number>
}

const { process } = Machine
const stubborn = (signal: "TERM" | "KILL") => (signal === "TERM" ? "stays" : "dies")
const never = () => "stays" as const
const carrying = (id = "THE ID") => ({ env: { ACP_SIDECAR_LAUNCH: id } })
const isKept = { kept: 1 }

const cases: Readonly<Record<string, Case>> = {
  "an app that lives keeps its agent": {
    processes: [process(50), process(200)],
    report: { live: 1 },
    left: [50, 200]
  },
  "an app whose number another program has is dead": {
    processes: [process(50, { startTime: "later" }), process(200)],
    report: { reaped: 1 },
    signals: ["TERM 200"],
    left: [50]
  },
  "an app that is a zombie is dead": {
    processes: [process(50, { isZombie: true }), process(200)],
    report: { reaped: 1 },
    signals: ["TERM 200"],
    left: [50]
  },
  "nothing is left": { report: { gone: 1 } },
  "all of the group is ended": {
    processes: [process(200), process(201, { group: 200 })],
    report: { reaped: 1 },
    signals: ["TERM 200"]
  },
  "what ignores TERM is killed": {
    processes: [process(200, { on: stubborn })],
    report: { reaped: 1 },
    signals: ["TERM 200", "KILL 200"]
  },
  "B04: another program that has the number is never signalled": {
    processes: [process(200, { startTime: "later" }), process(201, { group: 200 })],
    report: { foreign: 1 },
    left: [200, 201]
  },
  "B04: nor one in a group of that number that nothing is known of": {
    processes: [process(201, { group: 200 })],
    report: isKept,
    left: [201]
  },
  "B04: nor one that has the number when the start time is not known": {
    record: { process: { pid: 200, startTime: null, group: 200 } },
    processes: [process(200)],
    report: { foreign: 1 },
    left: [200]
  },
  "a leader that is a zombie still shows whose group it is": {
    processes: [process(200, { isZombie: true }), process(201, { group: 200 })],
    report: { reaped: 1 },
    signals: ["TERM 200"],
    left: [200]
  },
  "a zombie alone is nothing": {
    processes: [process(200, { isZombie: true })],
    report: { gone: 1 },
    left: [200]
  },
  "what outlived its leader is known by its environment": {
    processes: [process(201, { group: 200, ...carrying() }), process(202, { group: 200 })],
    report: { reaped: 1 },
    signals: ["TERM 200"]
  },
  "the environment of another launch shows nothing": {
    processes: [process(201, { group: 200, ...carrying("another") })],
    report: isKept,
    left: [201]
  },
  "without environments what outlived its leader can't be known": {
    processes: [process(201, { group: 200, ...carrying() })],
    readsEnvironments: false,
    report: isKept,
    left: [201]
  },
  "but what was seen beside its leader is, when that one goes first": {
    processes: [process(200), process(201, { group: 200, on: stubborn })],
    readsEnvironments: false,
    report: { reaped: 1 },
    signals: ["TERM 200", "KILL 200"]
  },
  "what left the group is known by its environment": {
    processes: [process(300, carrying()), process(301, { group: 300, on: stubborn }), process(302)],
    report: { reaped: 1 },
    signals: ["TERM 300", "KILL 300"],
    left: [302]
  },
  "an agent whose number was never known is found by its environment": {
    record: { process: null },
    processes: [process(200, carrying())],
    report: { reaped: 1 },
    signals: ["TERM 200"]
  },
  "an agent that was never started": {
    record: { process: null },
    processes: [process(200)],
    report: { gone: 1 },
    left: [200]
  },
  "this process does not end itself": {
    processes: [process(100, { group: 200 }), process(200)],
    report: isKept,
    left: [200]
  },
  "nor its own group": {
    processes: [process(101, { group: 100, ...carrying() })],
    report: isKept,
    left: [101]
  },
  "what can't be ended is given up": {
    processes: [process(200, { on: never })],
    report: isKept,
    signals: ["TERM 200", "KILL 200"],
    left: [200]
  },
  "what it is not allowed to end is given up": {
    processes: [process(200, { on: () => "refuses" })],
    report: isKept,
    left: [200]
  },
  "an earlier boot is over": {
    record: { boot: "boot-0" },
    processes: [process(200)],
    report: { gone: 1 },
    left: [200]
  },
  "a machine may change its name": {
    record: { machine: "there" },
    processes: [process(200)],
    report: { reaped: 1 },
    signals: ["TERM 200"]
  },
  "another machine is left alone": {
    record: { machine: "there", boot: "boot-0" },
    processes: [process(200)],
    report: isKept,
    left: [200]
  },
  "another container is left alone": {
    record: { space: "space-2" },
    processes: [process(200)],
    report: isKept,
    left: [200]
  },
  "one from a table that knows no boots is left alone": {
    record: { boot: "" },
    processes: [process(200)],
    report: isKept,
    left: [200]
  }
}

describe("the reaper", () => {
  it.effect.each(Object.entries(cases))("decides: %s", ([, given]) =>
    Effect.gen(function* () {
      const machine = Machine.make()
      machine.readsEnvironments = given.readsEnvironments ?? true
      const id = Machine.record(machine, given.record)
      for (const one of given.processes ?? []) {
        const isMine = one.env?.["ACP_SIDECAR_LAUNCH"] === "THE ID"
        Machine.add(machine, isMine ? { ...one, ...carrying(id) } : one)
      }
      assert.deepStrictEqual(yield* reap(machine), { ...nothing, records: 1, ...given.report })
      const isLeft = given.report.kept === 1 || given.report.live === 1
      assert.deepStrictEqual(Machine.names(machine), isLeft ? [`${id}.json`] : [])
      const signals = machine.signals.map(({ group, signal }) => `${signal} ${group}`)
      // KILL is repeated as long as there is time.
      assert.deepStrictEqual(
        signals.filter((one, index) => one !== signals[index - 1]),
        [...(given.signals ?? [])]
      )
      const others = Array.from(machine.processes.keys()).filter((pid) => pid !== Machine.self.pid)
      assert.deepStrictEqual(others, [...(given.left ?? [])])
    })
  )

  it.effect("gives TERM its time, and keeps the record until the group is gone", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      const id = Machine.record(machine)
      Machine.add(machine, process(200, { on: stubborn }))
      const scope = yield* Scope.make()
      yield* Layer.buildWithScope(Machine.layer(machine, { killGrace: "10 seconds" }), scope)
      yield* settle
      yield* TestClock.adjust("9 seconds")
      yield* settle
      assert.deepStrictEqual(machine.signals, [{ group: 200, signal: "TERM" }])
      assert.deepStrictEqual(Machine.names(machine), [`${id}.json`])
      yield* TestClock.adjust("2 seconds")
      yield* settle
      assert.strictEqual(machine.signals[1]?.signal, "KILL")
      assert.deepStrictEqual(Machine.names(machine), [])
      assert.deepStrictEqual(machine.logs, [
        "Info Ended what 1 agent(s) of apps that were killed had left running: pi."
      ])
      yield* Scope.close(scope, Exit.void)
    })
  )

  it.effect("says what it could not end, and comes back to it", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      const id = Machine.record(machine)
      Machine.add(machine, process(200, { on: never }))
      assert.deepInclude(yield* reap(machine), { kept: 1 })
      assert.match(machine.logs.join(), /^Warn .*agent pi \(process 200\): it did not end\.$/)
      assert.deepStrictEqual(Machine.names(machine), [`${id}.json`])
      Machine.add(machine, process(200))
      assert.deepInclude(yield* reap(machine), { reaped: 1 })
    })
  )

  it.effect("forgets another machine's records after 30 days", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      Machine.record(machine, { machine: "there", boot: "boot-0" })
      yield* TestClock.adjust("29 days")
      assert.deepInclude(yield* reap(machine), { kept: 1 })
      yield* TestClock.adjust("2 days")
      assert.deepInclude(yield* reap(machine), { gone: 1 })
      assert.deepStrictEqual(Machine.names(machine), [])
    })
  )

  it.effect("looks at the processes after the records, so that an app which starts meanwhile is alive", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      machine.afterList = () => Machine.add(machine, process(50), process(200))
      Machine.record(machine)
      assert.deepInclude(yield* reap(machine), { live: 1 })
      assert.isBelow(
        machine.done.findIndex((one) => one.startsWith("read /")),
        machine.done.indexOf("all")
      )
    })
  )

  it.effect("B03: 500 old records among 3 live ones cost three looks at the processes", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      for (let index = 0; index < 500; index++) Machine.record(machine)
      const live = [1, 2, 3].map(() => Machine.record(machine, { owner: { pid: 60, startTime: "s60" } }))
      Machine.add(machine, process(60), process(200, { startTime: "later" }))
      assert.deepStrictEqual(yield* reap(machine), { ...nothing, records: 503, foreign: 500, live: 3 })
      assert.sameMembers(
        [...Machine.names(machine)],
        live.map((id) => `${id}.json`)
      )
      assert.isAtMost(machine.done.filter((one) => one === "all" || one === "carriers").length, 3)
    })
  )

  it.effect("reads no environment for the records of apps that live", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      Machine.record(machine, { owner: { pid: 60, startTime: "s60" } })
      Machine.add(machine, process(60), process(200))
      yield* reap(machine)
      assert.notInclude(machine.done, "carriers")
    })
  )

  it.effect("looks at 4,096 records at a time", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      for (let index = 0; index < 4100; index++) Machine.record(machine)
      assert.deepInclude(yield* reap(machine), { records: 4096, gone: 4096 })
      assert.match(machine.logs.join(), /4100 launch records .* 4096 of them/)
      assert.deepInclude(yield* reap(machine), { records: 4, gone: 4 })
    })
  )

  it.effect("counts broken files, moves aside those it can, and goes on", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      const path = (index: number) => `${Machine.folder}/0b000000-0000-4000-8000-00000000000${index}.json`
      const text = (more: object) => {
        const id = Machine.record(machine, more)
        const file = machine.files.get(`${Machine.folder}/${id}.json`)!
        machine.files.delete(`${Machine.folder}/${id}.json`)
        return file.text.replace(id, "0b000000-0000-4000-8000-000000000003")
      }
      const texts = [
        "",
        '{"version":1,"id":"0b0000',
        JSON.stringify({ version: 2 }),
        text({ process: { pid: 1, startTime: "s1", group: 1 } }),
        text({}),
        `${text({})}${" ".repeat(4096)}`
      ]
      texts.forEach((text, index) => machine.files.set(path(index), { text, mode: 0o600 }))
      machine.files.set(path(6), { text: "", mode: 0o700, type: "Directory" })
      machine.files.set(path(7), { text: "", mode: 0o600, type: "FIFO" })
      machine.files.set(path(8), { text: "", mode: 0o600 })
      machine.fail = (operation, at) => (operation === "read" && at === path(8) ? "PermissionDenied" : undefined)
      machine.files.set(`${Machine.folder}/notes.txt`, { text: "", mode: 0o600 })
      Machine.record(machine)
      Machine.add(machine, process(1), process(200))
      assert.deepStrictEqual(yield* reap(machine), { ...nothing, records: 1, reaped: 1, broken: 9 })
      assert.deepStrictEqual(machine.signals, [{ group: 200, signal: "TERM" }])
      const stay = [6, 7, 8].map((index) => path(index).slice(Machine.folder.length + 1))
      assert.sameMembers([...Machine.names(machine)], [...stay, "broken", "notes.txt"])
      assert.notInclude(machine.done, `read ${path(5)}`)
      assert.notInclude(machine.done, `read ${path(7)}`)
      assert.match(machine.logs.join(), /Warn 9 file\(s\) in "\/state\/launches" are no launch records/)
    })
  )

  it.effect("takes away what was being written when its app died, ten minutes later", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      const path = `${Machine.folder}/0b000000-0000-4000-8000-000000000000.tmp`
      machine.files.set(path, { text: "{", mode: 0o600, mtime: 0 })
      yield* TestClock.adjust("10 minutes")
      assert.deepStrictEqual(yield* reap(machine), nothing)
      assert.strictEqual(machine.files.size, 1)
      yield* TestClock.adjust("1 second")
      assert.deepStrictEqual(yield* reap(machine), nothing)
      assert.strictEqual(machine.files.size, 0)
    })
  )

  it.effect("goes on when a record can't be removed", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      const id = Machine.record(machine)
      Machine.record(machine, { process: { pid: 300, startTime: "s300", group: 300 } })
      Machine.add(machine, process(300, { on: stubborn }))
      machine.fail = (operation, path) => (operation === "remove" && path.includes(id) ? "PermissionDenied" : undefined)
      assert.deepStrictEqual(yield* reap(machine), { ...nothing, records: 2, reaped: 1, kept: 1 })
      assert.match(machine.logs.join(), /the record can't be removed: PermissionDenied/)
    })
  )

  it.effect("is not held up by a record that another reaper takes away", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      Machine.record(machine)
      machine.afterList = () => machine.files.clear()
      assert.deepStrictEqual(yield* reap(machine), nothing)
    })
  )

  it.effect("B03: two at once do the same work, and nothing breaks", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      for (const pid of [200, 300]) {
        Machine.record(machine, { process: { pid, startTime: `s${pid}`, group: pid } })
        Machine.add(machine, process(pid, { on: stubborn }))
      }
      const reports = yield* Effect.all([reap(machine), reap(machine)], { concurrency: "unbounded" })
      for (const report of reports) assert.deepInclude(report, { records: 2, reaped: 2, kept: 0, broken: 0 })
      assert.strictEqual(machine.files.size, 0)
      assert.deepStrictEqual(
        machine.logs.filter((one) => one.startsWith("Warn")),
        []
      )
    })
  )

  it.effect("that can't read the processes says so, and holds up no launch", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      Machine.record(machine)
      machine.fail = (operation) => (operation === "readDirectory" ? "PermissionDenied" : undefined)
      const error = yield* Effect.flip(reap(machine))
      assert.strictEqual(error._tag, "LaunchNotRecorded")
      assert.match(machine.logs.join(), /^Warn What killed apps left running was not looked for: launches can't be/)
    })
  )
})

describe("a launch", () => {
  const running = (machine: Machine.Machine) => Array.from(machine.processes.keys()).filter((pid) => pid > 1000)
  const only = (machine: Machine.Machine) => {
    const [name] = Machine.names(machine)
    return JSON.parse(machine.files.get(`${Machine.folder}/${name}`)!.text)
  }
  const assertNothing = (machine: Machine.Machine) => {
    assert.deepStrictEqual(Machine.names(machine), [])
    assert.deepStrictEqual(running(machine), [])
    assert.deepStrictEqual(machine.logs, [])
  }
  const launched = Effect.flatMap(AgentLauncher.AgentLauncher, ({ launch }) => launch(Machine.launch))

  it.effect("is recorded before it begins, then with its process, and no more once that is gone", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      yield* Effect.gen(function* () {
        const { pid } = yield* launched
        const record = only(machine)
        assert.deepStrictEqual(record, {
          version: 1,
          id: record.id,
          agent: "pi",
          at: 0,
          machine: "here",
          boot: "boot-1",
          space: "space-1",
          owner: { pid: 100, startTime: "s100" },
          process: { pid, startTime: `s${pid}`, group: pid }
        })
        assert.deepStrictEqual(machine.processes.get(pid!)?.env, { PATH: "/bin", ACP_SIDECAR_LAUNCH: record.id })
        assert.strictEqual(machine.files.get(`${Machine.folder}/${record.id}.json`)?.mode, 0o600)
        const done = machine.done.filter((one) => /^(write|rename|spawn)/.test(one)).map((one) => one.split(" ")[0])
        assert.deepStrictEqual(done, ["write", "rename", "spawn", "write", "rename"])
      }).pipe(Effect.scoped, Effect.provide(Machine.layerLauncher(machine)))
      assertNothing(machine)
    })
  )

  it.effect("kills what is left of its group, and nothing beside it", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      yield* Effect.gen(function* () {
        const { pid = 0 } = yield* launched
        const { env } = machine.processes.get(pid)!
        machine.spawnerFails = true
        Machine.add(machine, process(300, { group: pid, env }), process(301, { env }))
        machine.processes.delete(pid)
      }).pipe(Effect.scoped, Effect.provide(Machine.layerLauncher(machine)), inTime)
      assert.deepStrictEqual(
        machine.signals.map(({ signal }) => signal),
        ["KILL"]
      )
      machine.processes.delete(301)
      assertNothing(machine)
    })
  )

  it.effect("B04: signals nobody when another program has its number at its end", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      yield* Effect.gen(function* () {
        const { pid = 0 } = yield* launched
        machine.spawnerFails = true
        Machine.add(machine, process(pid, { startTime: "later" }), process(300, { group: pid }))
      }).pipe(Effect.scoped, Effect.provide(Machine.layerLauncher(machine)))
      assert.deepStrictEqual(machine.signals, [])
      assert.deepStrictEqual(Machine.names(machine), [])
    })
  )

  it.effect("whose group can't be killed stays recorded, for the next start", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      machine.next = { on: never }
      machine.spawnerFails = true
      const scope = yield* Scope.make()
      const context = yield* Layer.buildWithScope(Machine.layerLauncher(machine), scope)
      yield* Scope.provide(launched, scope).pipe(Effect.provideContext(context))
      yield* inTime(Scope.close(scope, Exit.void))
      const { process: recorded } = only(machine)
      assert.match(machine.logs.join(), /^Warn Agent pi \(process group \d+\) stays recorded in .*: it did not end\.$/)
      // Its app is dead by then.
      machine.processes.set(100, process(100, { startTime: "next" }))
      Machine.add(machine, process(recorded.pid))
      assert.deepInclude(yield* reap(machine), { records: 1, reaped: 1 })
      assert.deepStrictEqual(Machine.names(machine), [])
    })
  )

  it.effect.each([
    ["can't be recorded is not started", 1],
    ["can't be recorded once it runs is ended", 2]
  ] as const)("that %s", ([, writes]) =>
    Effect.gen(function* () {
      const machine = Machine.make()
      let count = 0
      machine.fail = (operation) => (operation === "write" && ++count === writes ? "WriteZero" : undefined)
      yield* Effect.gen(function* () {
        const error = yield* Effect.flip(launched)
        assert.strictEqual(error._tag, "LaunchNotRecorded")
        assert.strictEqual(
          error.message,
          "launches can't be recorded in \"/state/launches\" (WriteZero); give a folder of yours that others can't " +
            "write to, or go without records (LaunchRecords.layer({ folder }) in an app, ACP_SIDECAR_STATE=FOLDER or off " +
            "for the command)"
        )
        // Before the caller's scope ends.
        assert.deepStrictEqual(running(machine), [])
      }).pipe(Effect.scoped, Effect.provide(Machine.layerLauncher(machine)))
      assert.strictEqual(machine.done.filter((one) => one.startsWith("spawn")).length, writes - 1)
      assertNothing(machine)
    })
  )

  it.effect("makes its folder again when somebody has cleared it away", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      let isThere = true
      machine.fail = (operation) => {
        if (operation === "makeDirectory") isThere = true
        return operation === "write" && !isThere ? "NotFound" : undefined
      }
      yield* Effect.gen(function* () {
        yield* LaunchRecords.LaunchRecords
        isThere = false
        yield* launched
        assert.strictEqual(Machine.names(machine).length, 1)
      }).pipe(Effect.scoped, Effect.provide(Machine.layerLauncher(machine)))
      assertNothing(machine)
    })
  )

  it.effect("whose record can't be removed is logged", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      machine.fail = (operation) => (operation === "remove" ? "PermissionDenied" : undefined)
      yield* launched.pipe(Effect.scoped, Effect.provide(Machine.layerLauncher(machine)))
      assert.match(machine.logs.join(), /^Warn The record of agent pi stays: launches can't be recorded/)
      assert.deepStrictEqual(running(machine), [])
    })
  )

  it.effect("waits for the reaper of the start, and no longer than it may", () =>
    Effect.gen(function* () {
      for (const [launchWait, waits] of [
        ["10 seconds", 7000],
        [undefined, 5000],
        ["1 second", 1000]
      ] as const) {
        const machine = Machine.make()
        Machine.record(machine)
        Machine.add(machine, process(200, { on: never }))
        const begun = yield* Clock.currentTimeMillis
        const waited = yield* Effect.andThen(launched, Clock.currentTimeMillis).pipe(
          Effect.scoped,
          Effect.provide(Machine.layerLauncher(machine, { launchWait })),
          inTime
        )
        assert.isAtLeast(waited - begun, waits)
        assert.isAtMost(waited - begun, waits + 200)
      }
    })
  )

  it("leaves nothing and nobody, whoever goes away, at whatever operation", () => {
    const runs = Strikes.assertSafe<Machine.Machine, unknown, AgentLauncher.LaunchError>({
      make: Effect.sync(() => {
        const machine = Machine.make()
        Machine.record(machine)
        Machine.add(machine, process(200))
        return machine
      }),
      body: (machine) =>
        Effect.gen(function* () {
          yield* Effect.scoped(launched)
          yield* launched
        }).pipe(Effect.provide(Machine.layerLauncher(machine))),
      check: (machine) => {
        assert.deepStrictEqual(running(machine), [])
        // What was left before is ended or still recorded.
        const records = Machine.names(machine)
        assert.strictEqual(records.length, machine.processes.has(200) ? 1 : Math.min(records.length, 1))
        for (const name of records) assert.match(name, /^0f0.*json$/)
      },
      seeds: 2
    })
    assert.isAbove(runs, 40)
  })
})

describe("the folder", () => {
  const built = (machine: Machine.Machine, options: LaunchRecords.Options = {}) =>
    Effect.map(LaunchRecords.LaunchRecords, ({ folder }) => folder).pipe(
      Effect.provide(Machine.layer(machine, options))
    )

  it.effect.each<[string, (machine: Machine.Machine) => void, string]>([
    ["others may write to", (machine) => (machine.info = { ...machine.info, mode: 0o40720 }), "others may write to it"],
    [
      "belongs to somebody else",
      (machine) => (machine.info = { ...machine.info, uid: 0 }),
      "it belongs to another user"
    ],
    ["is a file", (machine) => (machine.info = { ...machine.info, type: "File" }), "it is no folder"],
    [
      "can't be made",
      (machine) => (machine.fail = (operation) => (operation === "makeDirectory" ? "PermissionDenied" : undefined)),
      "PermissionDenied"
    ],
    [
      "can't be written to",
      (machine) => (machine.fail = (operation) => (operation === "access" ? "PermissionDenied" : undefined)),
      "PermissionDenied"
    ]
  ])("that %s is refused", ([, prepare, problem]) =>
    Effect.gen(function* () {
      const machine = Machine.make()
      prepare(machine)
      const error = yield* Effect.flip(built(machine))
      assert.strictEqual(error.folder, Machine.folder)
      assert.strictEqual(error.problem, problem)
    })
  )

  it.effect("that is found from where the app runs is refused", () =>
    Effect.gen(function* () {
      const machine = Machine.make()
      const error = yield* Effect.flip(built(machine, { folder: "state/launches" }))
      assert.strictEqual(error.folder, "state/launches")
      assert.strictEqual(error.problem, "it is not an absolute path")
    })
  )

  it.effect("is that of the user's state unless another is given", () =>
    Effect.gen(function* () {
      const withEnv = (env: Record<string, string>) =>
        built(Machine.make(), { folder: undefined }).pipe(
          Effect.provide(ConfigProvider.layer(ConfigProvider.fromEnv({ env })))
        )
      const own = "/home/ada/.local/state/acp-sidecar/launches"
      assert.strictEqual(yield* withEnv({ HOME: "/home/ada" }), own)
      assert.strictEqual(yield* withEnv({ HOME: "/home/ada", XDG_STATE_HOME: "state" }), own)
      assert.strictEqual(yield* withEnv({ HOME: "/x", XDG_STATE_HOME: "/state" }), "/state/acp-sidecar/launches")
      assert.strictEqual((yield* Effect.flip(withEnv({}))).problem, "HOME is not set")
    })
  )
})
