import { type ChildProcess, execFile, spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync } from "node:fs"
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import { basename, join } from "node:path"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert, describe, it } from "@effect/vitest"
import { AgentProfile, LaunchRecords, Sidecar, SidecarLimits } from "acp-sidecar"
import * as NodeProcessTable from "acp-sidecar/NodeProcessTable"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import { faulty, jsonOf, layer, open, openVm, wrapped } from "../support/faultyAgent.ts"
import { running, scopedMark, untilGone, untilRunning } from "../support/processes.ts"

const isLinux = existsSync("/proc/self/stat")
const program = fileURLToPath(new URL("../fixtures/program.ts", import.meta.url))

const newFolder: Effect.Effect<string, never, Scope.Scope> = Effect.acquireRelease(
  Effect.promise(() => mkdtemp(join(tmpdir(), "acp-sidecar-records-"))),
  (folder) => Effect.promise(() => rm(folder, { recursive: true, force: true }))
).pipe(Effect.map((folder) => join(folder, "launches")))

const namesIn = (folder: string): Effect.Effect<ReadonlyArray<string>> =>
  Effect.promise(() => readdir(folder).catch(() => []))

interface Record {
  readonly id: string
  readonly agent: string
  readonly process: { readonly pid: number; readonly startTime: string | null; readonly group: number } | null
}

const recordsIn = (folder: string): Effect.Effect<ReadonlyArray<Record>> =>
  Effect.flatMap(namesIn(folder), (names) =>
    Effect.promise(async () => {
      const records = names.filter((name) => name.endsWith(".json"))
      const texts = await Promise.all(records.map((name) => readFile(join(folder, name), "utf8").catch(() => "")))
      return texts.flatMap((text) => (text === "" ? [] : [JSON.parse(text) as Record]))
    })
  )

/** Looks every 20 ms; dies after 30 s. */
const until = <A>(look: Effect.Effect<A>, isWanted: (found: A) => boolean): Effect.Effect<A> =>
  look.pipe(
    Effect.filterOrFail(isWanted, (found) => new Error(`still ${JSON.stringify(found)}`)),
    Effect.retry({ schedule: Schedule.spaced("20 millis"), times: 1500 }),
    Effect.orDie
  )

const untilRecorded = (folder: string, count: number) =>
  until(recordsIn(folder), (records) => records.filter(({ process }) => process !== null).length === count)

/** A sidecar in a process of its own. */
const start = (folder: string, agent: AgentProfile.AgentProfile): Effect.Effect<ChildProcess, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() =>
      spawn(process.execPath, [program, ...agent.command], {
        stdio: ["ignore", "pipe", "inherit"],
        env: { ...process.env, RECORDS: folder }
      })
    ),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  )

const kill = (child: ChildProcess) =>
  Effect.promise(async () => {
    const exit = once(child, "exit")
    child.kill("SIGKILL")
    await exit
  })

const records = (folder: string, options: Omit<LaunchRecords.Options, "folder"> = {}) =>
  LaunchRecords.layer({ folder, killGrace: "300 millis", ...options }).pipe(
    Layer.provideMerge(NodeProcessTable.layer),
    Layer.provide(NodeServices.layer)
  )

/** What a start finds and does. */
const reap = (folder: string) =>
  Effect.flatMap(LaunchRecords.LaunchRecords, ({ report }) => report).pipe(Effect.provide(Layer.fresh(records(folder))))

/** The core with records, as an app builds it. */
const core = (folder: string) =>
  Sidecar.layer.pipe(
    Layer.provideMerge(records(folder)),
    Layer.provide(NodeServices.layer),
    Layer.provide(SidecarLimits.layer({ killGrace: "300 millis" }))
  )

const nothing = { records: 0, live: 0, reaped: 0, gone: 0, foreign: 0, kept: 0, broken: 0 }

describe("launch records", { concurrent: true, timeout: 120_000 }, () => {
  const stubborn = ["ignore-eof", "ignore-term"]

  it.live.each<[string, number, ReadonlyArray<string>]>([
    ["after the spawn", 1, ["deaf"]],
    ["during initialize", 1, ["hang-at=initialize"]],
    ["during session/new", 1, ["hang-at=session/new"]],
    ["in the middle of turns", 2, []]
  ])("B03: a sidecar killed %s leaves its stubborn agents to the next start, which ends them", ([, count, switches]) =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const folder = yield* newFolder
      const child = yield* start(folder, faulty(...stubborn, `mark=${mark}`, ...switches))
      if (count === 2) yield* Effect.promise(() => once(child.stdout!, "data"))
      yield* untilRecorded(folder, count)
      // The program has the mark in its arguments too.
      yield* untilRunning(mark, count + 1)
      yield* kill(child)
      assert.strictEqual((yield* running(mark)).length, count)
      assert.deepStrictEqual(yield* reap(folder), { ...nothing, records: count, reaped: count })
      assert.deepStrictEqual(yield* running(mark), [])
      assert.deepStrictEqual(yield* namesIn(folder), [])
      assert.deepStrictEqual(yield* reap(folder), nothing)
    })
  )

  const leavings: Array<[string, AgentProfile.AgentProfile, (mark: string) => ReadonlyArray<string>, number]> = [
    ["a shell around a stubborn agent", wrapped(), (mark) => [...stubborn, `mark=${mark}`], 2],
    ["a grandchild that holds stdout open", faulty(), (mark) => [...stubborn, `child=${mark}:stdout+ignore-term`], 2]
  ]
  if (isLinux) {
    leavings.push(
      // Here the leader of the group goes by itself, and what it leaves is known by its environment alone.
      ["a grandchild whose agent is gone", wrapped(), (mark) => [`child=${mark}:stdout+ignore-term`], 1],
      ["a grandchild in a group of its own", faulty(), (mark) => [`child=${mark}:setsid+ignore-term`], 1],
      ["such a one of a stubborn agent", faulty(), (mark) => [...stubborn, `child=${mark}:setsid`], 2]
    )
  }
  it.live.each(leavings)(
    "B03: a sidecar killed in the middle of turns leaves nothing for good: %s",
    ([, base, switches, left]) =>
      Effect.gen(function* () {
        const mark = yield* scopedMark
        const folder = yield* newFolder
        const [command, ...args] = base.command
        const agent = { ...base, command: [command, ...args, ...switches(mark).map((text) => `--${text}`)] as const }
        const child = yield* start(folder, agent)
        yield* Effect.promise(() => once(child.stdout!, "data"))
        yield* kill(child)
        yield* untilRunning(mark, 2 * left)
        assert.deepStrictEqual(yield* reap(folder), { ...nothing, records: 2, reaped: 2 })
        assert.deepStrictEqual(yield* running(mark), [])
        assert.deepStrictEqual(yield* namesIn(folder), [])
      })
  )

  it.live.skipIf(!isLinux)("B03: an agent whose sidecar died before it knew its number is found all the same", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const folder = yield* newFolder
      const child = yield* start(folder, faulty(...stubborn, `mark=${mark}`))
      yield* Effect.promise(() => once(child.stdout!, "data"))
      yield* kill(child)
      const [one, two] = yield* recordsIn(folder)
      const path = join(folder, `${one!.id}.json`)
      yield* Effect.promise(() => writeFile(path, JSON.stringify({ ...one, process: null })))
      assert.isNotNull(two!.process)
      assert.deepStrictEqual(yield* reap(folder), { ...nothing, records: 2, reaped: 2 })
      assert.deepStrictEqual(yield* running(mark), [])
    })
  )

  it.live("B04: a record whose number belongs to another program now leads to no signal", () =>
    Effect.gen(function* () {
      const [mark, other] = [yield* scopedMark, yield* scopedMark]
      const folder = yield* newFolder
      const child = yield* start(folder, faulty(`mark=${mark}`))
      yield* Effect.promise(() => once(child.stdout!, "data"))
      yield* kill(child)
      yield* untilGone(mark)
      const stranger = yield* Effect.acquireRelease(
        Effect.sync(() =>
          spawn("/bin/sh", ["-c", "while :; do sleep 0.05; echo tick; done", other], { detached: true, stdio: "pipe" })
        ),
        (shell) => Effect.sync(() => shell.kill("SIGKILL"))
      )
      for (const record of yield* recordsIn(folder)) {
        const moved = { ...record.process!, pid: stranger.pid, group: stranger.pid }
        yield* Effect.promise(() =>
          writeFile(join(folder, `${record.id}.json`), JSON.stringify({ ...record, process: moved }))
        )
      }
      assert.deepStrictEqual(yield* reap(folder), { ...nothing, records: 2, foreign: 2 })
      for (let tick = 0; tick < 3; tick++) yield* Effect.promise(() => once(stranger.stdout, "data"))
      assert.isNull(stranger.signalCode)
      assert.deepStrictEqual(yield* namesIn(folder), [])
    })
  )

  it.live("B03: 500 old records and 3 live ones: the old go, what the live stand for is not touched", () =>
    Effect.gen(function* () {
      const [mark, dead] = [yield* scopedMark, yield* scopedMark]
      const folder = yield* newFolder
      const child = yield* start(folder, faulty(...stubborn, `mark=${dead}`, "hang-at=initialize"))
      const [old] = yield* untilRecorded(folder, 1)
      yield* kill(child)
      yield* Effect.gen(function* () {
        const sessions = yield* Effect.replicateEffect(open(faulty(`mark=${mark}`)), 3)
        const owned = yield* recordsIn(folder)
        // They are of a sidecar that is dead, and of processes that are.
        for (let index = 0; index < 500; index++) {
          const id = `00000000-0000-4000-8000-${String(index).padStart(12, "0")}`
          const gone = { pid: old!.process!.pid, startTime: `${index}`, group: old!.process!.group }
          yield* Effect.promise(() =>
            writeFile(join(folder, `${id}.json`), JSON.stringify({ ...old, id, process: gone }))
          )
        }
        const { reap } = yield* LaunchRecords.LaunchRecords
        const report = yield* reap
        assert.deepInclude(report, { records: 503, live: 3, kept: 0 })
        assert.strictEqual(report.gone + report.foreign, 500)
        assert.deepStrictEqual(yield* recordsIn(folder), owned)
        for (const session of sessions) assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
      }).pipe(Effect.scoped, Effect.provide(core(folder)))
      assert.deepStrictEqual(yield* namesIn(folder), [])
      yield* untilGone(mark)
    })
  )

  it.live("B03: two sidecars that start at once don't get into each other's way", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const folder = yield* newFolder
      const child = yield* start(folder, faulty(...stubborn, `mark=${mark}`))
      yield* Effect.promise(() => once(child.stdout!, "data"))
      yield* kill(child)
      const next = yield* scopedMark
      const programs = yield* Effect.replicateEffect(start(folder, faulty(`mark=${next}`)), 2)
      yield* Effect.forEach(programs, (one) => Effect.promise(() => once(one.stdout!, "data")), {
        concurrency: "unbounded"
      })
      // They start no agent before they have looked.
      assert.deepStrictEqual(yield* running(mark), [])
      assert.strictEqual((yield* untilRecorded(folder, 4)).length, 4)
      for (const one of programs) {
        const exit = Effect.promise(() => once(one, "exit"))
        one.kill("SIGTERM")
        yield* exit
      }
      assert.deepStrictEqual(yield* running(next), [])
      assert.deepStrictEqual(yield* namesIn(folder), [])
    })
  )

  it.live("H5: an agent that is killed leaves neither grandchildren nor a record", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const folder = yield* newFolder
      yield* Effect.gen(function* () {
        const session = yield* open(faulty(`child=${mark}:stdout+ignore-term`, ...stubborn))
        yield* untilRunning(mark, 2)
        assert.strictEqual((yield* recordsIn(folder))[0]?.process?.pid, session.pid)
        process.kill(session.pid!, "SIGKILL")
        assert.include(["SessionUnusable", "TurnFailed"], (yield* Effect.flip(session.prompt("hello")))._tag)
        yield* session.close
        assert.deepStrictEqual(yield* running(mark), [])
        assert.deepStrictEqual(yield* namesIn(folder), [])
      }).pipe(Effect.scoped, Effect.provide(core(folder)))
    })
  )

  it.live("H6: the record of an agent that ignores TERM is there for as long as its group is", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const folder = yield* newFolder
      yield* Effect.gen(function* () {
        const session = yield* open(wrapped(...stubborn, `child=${mark}:ignore-term`))
        yield* untilRunning(mark, 3)
        const closing = yield* Effect.forkChild(session.close, { startImmediately: true })
        let seen = 0
        for (;;) {
          const isRecorded = (yield* namesIn(folder)).length > 0
          const alive = (yield* running(mark)).length
          if (!isRecorded) {
            assert.strictEqual(alive, 0)
            break
          }
          seen++
        }
        assert.isAbove(seen, 1)
        yield* Fiber.join(closing)
      }).pipe(Effect.scoped, Effect.provide(core(folder)))
    })
  )

  it.live("a record has no command line and no variable in it, and is its user's alone", () =>
    Effect.gen(function* () {
      const folder = yield* newFolder
      yield* Effect.gen(function* () {
        const vm = yield* openVm({ env: { MY_TOKEN: "very-secret-word" } })
        const session = yield* vm.openSession({ agent: faulty("mark=secret-switch", "env") })
        const [record] = yield* recordsIn(folder)
        const path = join(folder, `${record!.id}.json`)
        const text = yield* Effect.promise(() => readFile(path, "utf8"))
        assert.notMatch(text, /very-secret-word|MY_TOKEN|secret-switch|faulty-agent/)
        assert.strictEqual((yield* Effect.promise(() => stat(path))).mode & 0o777, 0o600)
        assert.strictEqual((yield* Effect.promise(() => stat(folder))).mode & 0o777, 0o700)
        assert.deepInclude(yield* jsonOf(yield* session.submit("hello")), { ACP_SIDECAR_LAUNCH: record!.id })
      }).pipe(Effect.scoped, Effect.provide(core(folder)))
    })
  )

  it.live("B02, B08: an agent that can't be started, never answers or is given up on leaves no record", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const folder = yield* newFolder
      yield* Effect.gen(function* () {
        const vm = yield* openVm({ limits: { startTimeout: "500 millis" } })
        const missing = AgentProfile.make({ command: [join(folder, "no-such-agent")] })
        assert.strictEqual((yield* Effect.flip(vm.openSession({ agent: missing })))._tag, "AgentStartFailed")
        assert.deepStrictEqual(yield* namesIn(folder), [])
        const mute = wrapped("mute", ...stubborn, `mark=${mark}`)
        assert.strictEqual((yield* Effect.flip(vm.openSession({ agent: mute })))._tag, "AgentStartFailed")
        assert.deepStrictEqual(yield* namesIn(folder), [])
        const opening = yield* Effect.forkChild(vm.openSession({ agent: mute, startTimeout: "1 minute" }))
        yield* untilRecorded(folder, 1)
        yield* Fiber.interrupt(opening)
        assert.deepStrictEqual(yield* namesIn(folder), [])
        assert.deepStrictEqual(yield* running(mark), [])
      }).pipe(Effect.scoped, Effect.provide(core(folder)))
    })
  )

  it.live("what is no record in the folder does no harm and is never waited for", () =>
    Effect.gen(function* () {
      const folder = yield* newFolder
      const path = (index: number) => join(folder, `0b000000-0000-4000-8000-00000000000${index}.json`)
      yield* Effect.promise(async () => {
        await mkdir(folder, { recursive: true, mode: 0o700 })
        await writeFile(path(0), '{"version":1,"id"')
        await writeFile(path(1), Buffer.alloc(8 * 1024 * 1024))
        await mkdir(path(2))
        await promisify(execFile)("mkfifo", [path(3)])
        await symlink("/dev/zero", path(4))
        await symlink("/nowhere", path(5))
      })
      assert.deepStrictEqual(yield* reap(folder), { ...nothing, broken: 5 })
      const names = [2, 3, 4, 5].map((index) => basename(path(index)))
      assert.sameMembers([...(yield* namesIn(folder))], ["broken", ...names])
    })
  )

  it.live("without records the agent has no such variable", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty("env"))
      assert.notProperty(yield* jsonOf(yield* session.submit("hello")), "ACP_SIDECAR_LAUNCH")
    }).pipe(Effect.provide(layer()))
  )
})
