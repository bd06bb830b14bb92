/**
 * Records on disk of the agents that run, so that what a killed app leaves running is ended at the next start.
 *
 * @since 0.1.0
 */
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Config from "effect/Config"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as PlatformError from "effect/PlatformError"
import * as Random from "effect/Random"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import * as LaunchRecord from "./internal/launchRecord.ts"
import { stateFolder } from "./internal/stateFolder.ts"
import * as ProcessTable from "./ProcessTable.ts"
import * as SidecarError from "./SidecarError.ts"

/**
 * The variable that each process of a recorded launch has in its environment. Its value is the launch's id.
 *
 * @stability unstable
 * @category constants
 * @since 0.1.0
 */
export const variable = "ACP_SIDECAR_LAUNCH"

/**
 * What a reaper found: each of `records` is counted once more. `live`: the app that started it lives, so it was left
 * alone. `reaped`: something was left, and was ended. `gone`: nothing was left. `foreign`: nothing was left, and its
 * number is another program's now, which was not touched. `kept`: it can't be told, or not be ended, or belongs to
 * another machine or container, and is looked at again at the next start. `broken` files are no records and not counted
 * there; those that can be read were moved aside, to the file `broken`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Report {
  readonly records: number
  readonly live: number
  readonly reaped: number
  readonly gone: number
  readonly foreign: number
  readonly kept: number
  readonly broken: number
}

/**
 * A launch that is being recorded. `env` goes to the process, which is told with `started` as soon as it has a number.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Launch {
  readonly id: string
  readonly env: Readonly<Record<string, string>>
  readonly started: (pid: number) => Effect.Effect<void, SidecarError.LaunchNotRecorded>
}

/**
 * Why a folder of records can't be used.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type ReapError = SidecarError.LaunchNotRecorded | ProcessTable.ProcessTableError

/**
 * Keeps a record of each agent for as long as anything of its process group lives. `AgentLauncher.layerChildProcess`
 * uses it where it is provided.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class LaunchRecords extends Context.Service<
  LaunchRecords,
  {
    readonly folder: string
    /**
     * Records that an agent is about to be started, into the current scope. The caller makes the process, tells its
     * number with `started`, and ends it in the same scope. After that the record is removed, once the process group is
     * seen to be gone: what is still there is killed; if it can't be, the record stays for the next reaper, and a warning
     * is logged. It waits for the reaper of the start, for a bounded time.
     */
    readonly open: (agent: string) => Effect.Effect<Launch, SidecarError.LaunchNotRecorded, Scope.Scope>
    /** What the reaper of the start did, when it is done. */
    readonly report: Effect.Effect<Report, ReapError>
    /** Looks for what dead apps left, and ends it, once more. Any number of reapers, also in other apps, do no harm. */
    readonly reap: Effect.Effect<Report, ReapError>
  }
>()("acp-sidecar/LaunchRecords") {}

/**
 * Where records are kept, and how patient a reaper is.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  /** An absolute path. `$XDG_STATE_HOME/acp-sidecar/launches` or `~/.local/state/acp-sidecar/launches` by default. */
  readonly folder?: string | undefined
  /** The time that what was left has between TERM and KILL. 2 s by default. */
  readonly killGrace?: Duration.Input | undefined
  /** How long a launch waits for the reaper of the start. 5 s by default. */
  readonly launchWait?: Duration.Input | undefined
}

/** A reaper reads no more files than these, and no more of each; the others have their turn at the next start. */
const maxRecords = 4096
const maxRecordBytes = 4096
/** How many files are worked on at once. */
const atOnce = 32
/** How long KILL may take to have its effect, on a machine that is busy too. */
const killWait = Duration.seconds(5)
/** What is recorded elsewhere, and what was being written when its app died, is given up after this. */
const forgetElsewhere = Duration.days(30)
const forgetUnfinished = Duration.minutes(10)

const recordFile = /^([0-9a-f-]{36})\.json$/
const unfinishedFile = /^[0-9a-f-]{36}\.tmp$/

/** A look at a launch, and what was done about it before. */
interface Pending {
  readonly record: LaunchRecord.LaunchRecord
  readonly known: Set<string>
  readonly asked: Set<number>
  denied: boolean
}

type Outcome = Exclude<keyof Report, "records" | "broken">

const codeOf = ({ reason }: PlatformError.PlatformError): string => {
  const code = ((reason as { readonly cause?: unknown }).cause as { readonly code?: unknown } | undefined)?.code
  return typeof code === "string" ? code : reason._tag
}

const isMissing = (error: PlatformError.PlatformError): boolean => error.reason._tag === "NotFound"

const inBatches = <A, B, E, R>(items: ReadonlyArray<A>, work: (item: A) => Effect.Effect<B, E, R>) =>
  Effect.map(
    Effect.forEach(Arr.chunksOf(items, atOnce), (batch) => Effect.forEach(batch, work, { concurrency: "unbounded" })),
    Arr.flatten
  )

const isAbsolute = (path: string): boolean => path.startsWith("/")

const defaultFolder: Effect.Effect<string, SidecarError.LaunchNotRecorded> = Effect.gen(function* () {
  const read = (name: string) => Effect.map(Config.option(Config.String(name)), Option.getOrUndefined)
  const folder = stateFolder(isAbsolute, yield* read("XDG_STATE_HOME"), yield* read("HOME"))
  if (folder !== undefined) return `${folder}/launches`
  return yield* unusable("~/.local/state/acp-sidecar/launches", "HOME is not set")
}).pipe(Effect.catchTag("ConfigError", (error) => unusable("~/.local/state/acp-sidecar/launches", error.message)))

const unusable = (folder: string, problem: string): SidecarError.LaunchNotRecorded =>
  new SidecarError.LaunchNotRecorded({ folder, problem })

const make = Effect.fnUntraced(function* (
  options: Options
): Effect.fn.Return<
  LaunchRecords["Service"],
  SidecarError.LaunchNotRecorded,
  FileSystem.FileSystem | ProcessTable.ProcessTable | Scope.Scope
> {
  const fs = yield* FileSystem.FileSystem
  const table = yield* ProcessTable.ProcessTable
  const clock = yield* Clock.Clock
  const folder = options.folder ?? (yield* defaultFolder)
  const killGrace = Duration.toMillis(options.killGrace ?? Duration.seconds(2))
  const launchWait = options.launchWait ?? Duration.seconds(5)
  const { self } = table
  const orUnusable = <A, R>(work: Effect.Effect<A, PlatformError.PlatformError, R>) =>
    Effect.mapError(work, (error) => unusable(folder, codeOf(error)))
  const pathOf = (id: string) => `${folder}/${id}.json`
  const now = () => clock.currentTimeMillisUnsafe()

  if (!isAbsolute(folder)) return yield* unusable(folder, "it is not an absolute path")
  const makeFolder = fs.makeDirectory(folder, { recursive: true, mode: 0o700 })
  yield* orUnusable(makeFolder)
  const info = yield* orUnusable(fs.stat(folder))
  // Whoever can write here can name processes that are then killed in this user's name.
  if (info.type !== "Directory") return yield* unusable(folder, "it is no folder")
  if (Option.isSome(info.uid) && self.user !== null && info.uid.value !== self.user)
    return yield* unusable(folder, "it belongs to another user")
  if ((info.mode & 0o022) !== 0) return yield* unusable(folder, "others may write to it")
  yield* orUnusable(fs.access(folder, { writable: true }))

  const write = (record: LaunchRecord.LaunchRecord) => {
    const unfinished = `${folder}/${record.id}.tmp`
    const text = fs.writeFileString(unfinished, LaunchRecord.encode(record), { mode: 0o600 })
    // Somebody may have cleared the folder away.
    return Effect.catchIf(text, isMissing, () => Effect.andThen(makeFolder, text)).pipe(
      Effect.andThen(fs.rename(unfinished, pathOf(record.id))),
      Effect.tapError(() => Effect.ignore(fs.remove(unfinished, { force: true }))),
      orUnusable,
      Effect.uninterruptible
    )
  }
  const remove = (id: string) => orUnusable(fs.remove(pathOf(id), { force: true }))

  /** The record in a file; `missing` when another reaper was faster. */
  const read = Effect.fnUntraced(
    function* (name: string) {
      const path = `${folder}/${name}`
      const { size, type } = yield* fs.stat(path)
      // What is no file may never end, so it is not opened.
      if (type !== "File") return "broken"
      const record = Number(size) > maxRecordBytes ? Option.none() : LaunchRecord.decode(yield* fs.readFileString(path))
      if (Option.isSome(record) && `${record.value.id}.json` === name) return record.value
      // One file for all of them: enough to look at, and it never grows in number.
      yield* fs.rename(path, `${folder}/broken`)
      return "broken"
    },
    Effect.catch((error) => Effect.succeed(isMissing(error) ? ("missing" as const) : ("broken" as const)))
  )

  const forgetStale = (name: string) =>
    Effect.gen(function* () {
      const { mtime } = yield* fs.stat(`${folder}/${name}`)
      const age = now() - Option.getOrElse(mtime, () => new Date(0)).getTime()
      if (age > Duration.toMillis(forgetUnfinished)) yield* fs.remove(`${folder}/${name}`, { force: true })
    }).pipe(
      // It is tried again at the next start.
      Effect.ignore({ log: "Debug" })
    )

  const readAll = Effect.gen(function* () {
    const names = yield* orUnusable(fs.readDirectory(folder))
    yield* inBatches(
      names.filter((name) => unfinishedFile.test(name)),
      forgetStale
    )
    const all = names.filter((name) => recordFile.test(name))
    if (all.length > maxRecords) {
      yield* Effect.logWarning(
        `There are ${all.length} launch records in "${folder}"; ${maxRecords} of them are looked at, the others at the next start.`
      )
    }
    // Anywhere, so that those which stay don't keep the others from ever being looked at.
    const from = yield* Random.nextIntBetween(0, Math.max(0, all.length - maxRecords))
    const found = yield* inBatches(all.slice(from, from + maxRecords), read)
    return {
      records: found.filter((one) => typeof one === "object"),
      broken: found.filter((one) => one === "broken").length
    }
  })

  /** `reach` "group" is for launches of this app, which has ended them. */
  const look = Effect.fnUntraced(function* (pending: ReadonlyArray<Pending>, reach: "group" | "everywhere") {
    const seen = LaunchRecord.snapshot(self, yield* table.all)
    if (reach === "everywhere" && !pending.some(({ record }) => LaunchRecord.needsCarriers(record, seen))) return seen
    // They are found among the processes of the second look, where those are that started meanwhile.
    const carriers = yield* table.carriers(variable)
    return carriers === null || carriers.size === 0 ? seen : LaunchRecord.snapshot(self, yield* table.all, carriers)
  })

  const signal = Effect.fnUntraced(function* (
    one: Pending,
    targets: ReadonlyArray<LaunchRecord.Target>,
    isPatient: boolean
  ) {
    for (const { group, members, witness } of targets) {
      for (const member of members) one.known.add(LaunchRecord.keyOf(member))
      if (isPatient && one.asked.has(group)) continue
      one.asked.add(group)
      if ((yield* table.signal(group, isPatient ? "TERM" : "KILL", witness)) === "denied") one.denied = true
    }
  })

  /** Brings launches to their end, and says what came of each. TERM at once, KILL after the grace. */
  const settle = Effect.fnUntraced(function* (
    records: ReadonlyArray<LaunchRecord.LaunchRecord>,
    grace: number,
    reach: "group" | "everywhere",
    done: (record: LaunchRecord.LaunchRecord, outcome: Outcome, why: string) => void
  ) {
    const begun = now()
    const drop = ({ outcome, record }: { readonly record: LaunchRecord.LaunchRecord; readonly outcome: Outcome }) =>
      Effect.match(remove(record.id), {
        onFailure: ({ problem }) => done(record, "kept", `the record can't be removed: ${problem}`),
        onSuccess: () => done(record, outcome, "")
      })
    const bound = grace + Duration.toMillis(killWait)
    let pending = records.map((record): Pending => ({ record, known: new Set(), asked: new Set(), denied: false }))
    for (let pause = 20; pending.length > 0; pause = Math.min(2 * pause, 100)) {
      const seen = yield* look(pending, reach)
      const elapsed = now() - begun
      const gone: Array<Parameters<typeof drop>[0]> = []
      const next: Array<Pending> = []
      for (const one of pending) {
        const { asked, known, record } = one
        const verdict =
          reach === "group"
            ? LaunchRecord.judgeEnded(record, seen, reach, known)
            : LaunchRecord.judge(record, seen, known)
        if (verdict._tag === "Gone") {
          gone.push({ record, outcome: asked.size > 0 ? "reaped" : verdict.isForeign ? "foreign" : "gone" })
        } else if (verdict._tag === "Owned") {
          done(record, "live", "")
        } else if (verdict._tag === "Elsewhere") {
          if (now() - record.at > Duration.toMillis(forgetElsewhere)) gone.push({ record, outcome: "gone" })
          else done(record, "kept", "")
        } else if (verdict._tag === "Unclear" && (asked.size === 0 || elapsed >= bound)) {
          done(record, "kept", verdict.why)
        } else if (one.denied) {
          done(record, "kept", "the system does not let this process end it")
        } else if (elapsed >= bound) {
          done(record, "kept", "it did not end")
        } else {
          if (verdict._tag === "Left") yield* signal(one, verdict.targets, elapsed < grace)
          next.push(one)
        }
      }
      yield* inBatches(gone, drop)
      pending = next
      if (pending.length > 0) yield* Effect.sleep(pause)
    }
  })

  const reaping = yield* Semaphore.make(1)
  const reap = Effect.gen(function* () {
    // Before the look at the processes: seen the other way round, an app that starts meanwhile would count as dead.
    const { broken, records } = yield* readAll
    const report = { records: records.length, live: 0, reaped: 0, gone: 0, foreign: 0, kept: 0, broken }
    const agents = new Set<string>()
    const problems: Array<string> = []
    yield* settle(records, killGrace, "everywhere", ({ agent, process }, outcome, why) => {
      report[outcome]++
      if (outcome === "reaped") agents.add(agent)
      if (why !== "") problems.push(`agent ${agent} (process ${process?.pid ?? "unknown"}): ${why}`)
    })
    if (report.reaped > 0) {
      yield* Effect.logInfo(
        `Ended what ${report.reaped} agent(s) of apps that were killed had left running: ${Array.from(agents).join(", ")}.`
      )
    }
    if (problems.length > 0) {
      yield* Effect.logWarning(
        `${problems.length} launch record(s) stay in "${folder}", since what they stand for may still run: ` +
          `${problems.slice(0, 3).join("; ")}${problems.length > 3 ? "; …" : ""}.`
      )
    }
    if (broken > 0) {
      yield* Effect.logWarning(
        `${broken} file(s) in "${folder}" are no launch records, so what they stood for is not ended; look for agents that still run.`
      )
    }
    return report as Report
  }).pipe(reaping.withPermit)

  const first = Deferred.makeUnsafe<Report, ReapError>()
  yield* reap.pipe(
    Effect.tapCause((cause) => {
      const error = Cause.squash(cause)
      const why = error instanceof Error ? error.message : String(error)
      return Cause.hasInterruptsOnly(cause)
        ? Effect.void
        : Effect.logWarning(`What killed apps left running was not looked for: ${why}`)
    }),
    (work) => Deferred.into(work, first),
    Effect.forkScoped({ startImmediately: true })
  )

  /** Removes the record of a launch that was ended, if that is so. */
  const close = Effect.fnUntraced(function* (record: LaunchRecord.LaunchRecord) {
    const { agent, process } = record
    if (process !== null && (yield* table.members(process.group)).length > 0) {
      let problem = ""
      yield* settle([record], 0, "group", (_, __, why) => (problem = why))
      if (problem === "") return
      yield* Effect.logWarning(
        `Agent ${agent} (process group ${process.group}) stays recorded in "${folder}", for the next start: ${problem}.`
      )
      return
    }
    yield* remove(record.id)
  })

  const open: LaunchRecords["Service"]["open"] = (agent) =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        yield* restore(Effect.timeoutOption(Effect.exit(Deferred.await(first)), launchWait))
        const { boot, machine, pid, space, startTime } = self
        let record: LaunchRecord.LaunchRecord = {
          version: 1,
          id: globalThis.crypto.randomUUID(),
          agent: agent.slice(0, 200),
          at: now(),
          machine,
          boot,
          space,
          owner: { pid, startTime },
          process: null
        }
        yield* write(record)
        yield* Effect.addFinalizer(() =>
          Effect.suspend(() => close(record)).pipe(
            Effect.catch((error) => Effect.logWarning(`The record of agent ${agent} stays: ${error.message}`))
          )
        )
        return {
          id: record.id,
          env: { [variable]: record.id },
          started: (number) =>
            Effect.gen(function* () {
              const since = yield* Effect.mapError(table.startTime(number), ({ message }) => unusable(folder, message))
              record = { ...record, process: { pid: number, startTime: since, group: number } }
              yield* write(record)
            }).pipe(Effect.uninterruptible)
        }
      })
    )

  return LaunchRecords.of({ folder, open, report: Deferred.await(first), reap })
})

/**
 * Records in a folder, which only its user may enter: a small file for each agent that runs, with its process id, start
 * time and group, those of this app, and the agent's name; no command line and no variable. When the layer is built a
 * reaper looks, on the side, for agents whose app is dead, and ends them: TERM, then KILL to their process groups, and on
 * Linux to whatever else carries the launch in its environment. A process whose start time differs is never signalled.
 * It fails with `LaunchNotRecorded` when the folder can't be made, or others may write to it. Provide it to
 * `Sidecar.layer`, with a platform:
 *
 * ```ts
 * import * as NodeServices from "@effect/platform-node/NodeServices"
 * import { LaunchRecords, Sidecar } from "acp-sidecar"
 * import * as NodeProcessTable from "acp-sidecar/NodeProcessTable"
 * import { Layer } from "effect"
 *
 * const layer = Sidecar.layer.pipe(
 *   Layer.provide(LaunchRecords.layer()),
 *   Layer.provide([NodeServices.layer, NodeProcessTable.layer])
 * )
 * ```
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer = (
  options: Options = {}
): Layer.Layer<LaunchRecords, SidecarError.LaunchNotRecorded, FileSystem.FileSystem | ProcessTable.ProcessTable> =>
  Layer.effect(LaunchRecords, make(options))
