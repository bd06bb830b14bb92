// A machine in memory: a folder, processes, and a spawner of such. Every operation lets others run first, as real ones do.
import * as FileSystem from "effect/FileSystem"
import * as PlatformError from "effect/PlatformError"
import { AgentLauncher, AgentProfile, LaunchRecords, ProcessTable } from "acp-sidecar"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import * as ChildProcessSpawner from "effect/process/ChildProcessSpawner"
import * as Sink from "effect/Sink"
import * as Stream from "effect/Stream"

export const folder = "/state/launches"

export const self: ProcessTable.Self = {
  pid: 100,
  group: 100,
  startTime: "s100",
  user: 1000,
  machine: "here",
  boot: "boot-1",
  space: "space-1"
}

interface File {
  readonly text: string
  readonly mode: number
  readonly type?: "File" | "Directory" | "FIFO"
  readonly mtime?: number
}

type Operation = "makeDirectory" | "stat" | "access" | "readDirectory" | "read" | "write" | "rename" | "remove"

export interface Machine {
  readonly files: Map<string, File>
  readonly processes: Map<number, ProcessTable.TestProcess>
  readonly signals: Array<{ readonly group: number; readonly signal: "TERM" | "KILL" }>
  /** What was logged, as `LEVEL text`. */
  readonly logs: Array<string>
  /** What was asked of the folder and of the table. */
  readonly done: Array<string>
  /** Lets an operation fail. */
  fail: (operation: Operation, path: string) => PlatformError.SystemErrorTag | undefined
  /** What becomes of the folder when it is looked at. */
  info: { readonly type: "Directory" | "File"; readonly mode: number; readonly uid: number }
  /** Runs after the folder was listed. */
  afterList: () => void
  /** What a new process has beside its number. */
  next: Partial<ProcessTable.TestProcess>
  /** Whether the spawner's own end of a process does nothing. */
  spawnerFails: boolean
  readsEnvironments: boolean
}

/** A process, the leader of its group unless told otherwise. */
export const process = (pid: number, more: Partial<ProcessTable.TestProcess> = {}): ProcessTable.TestProcess => ({
  pid,
  group: pid,
  startTime: `s${pid}`,
  isZombie: false,
  ...more
})

export const make = (): Machine => ({
  files: new Map(),
  processes: new Map([[self.pid, process(self.pid)]]),
  signals: [],
  logs: [],
  done: [],
  fail: () => undefined,
  info: { type: "Directory", mode: 0o40700, uid: 1000 },
  afterList: () => {},
  next: {},
  spawnerFails: false,
  readsEnvironments: true
})

export const add = (machine: Machine, ...all: ReadonlyArray<ProcessTable.TestProcess>): void => {
  for (const one of all) machine.processes.set(one.pid, one)
}

let ids = 0

/** Writes the record of a launch, of a dead owner and with process 200, unless told otherwise; gives its id. */
export const record = (machine: Machine, more: object = {}): string => {
  const id = `0f000000-0000-4000-8000-${String(++ids).padStart(12, "0")}`
  const { boot, machine: name, space } = self
  const text = JSON.stringify({
    version: 1,
    id,
    agent: "pi",
    at: 0,
    machine: name,
    boot,
    space,
    owner: { pid: 50, startTime: "s50" },
    process: { pid: 200, startTime: "s200", group: 200 },
    ...more
  })
  machine.files.set(`${folder}/${id}.json`, { text, mode: 0o600 })
  return id
}

/** The names in the folder, without the folder. */
export const names = ({ files }: Machine): ReadonlyArray<string> =>
  Array.from(files.keys(), (path) => path.slice(folder.length + 1)).sort()

const layerFiles = (machine: Machine): Layer.Layer<FileSystem.FileSystem> => {
  const { done, files } = machine
  const operation = <A>(
    name: Operation,
    path: string,
    work: (
      missing: () => Effect.Effect<never, PlatformError.PlatformError>
    ) => Effect.Effect<A, PlatformError.PlatformError>
  ) => {
    const error = (tag: PlatformError.SystemErrorTag) =>
      Effect.fail(PlatformError.systemError({ _tag: tag, module: "FileSystem", method: name, pathOrDescriptor: path }))
    return Effect.andThen(
      Effect.yieldNow,
      Effect.suspend(() => {
        done.push(`${name} ${path}`)
        const tag = machine.fail(name, path)
        return tag === undefined ? work(() => error("NotFound")) : error(tag)
      })
    )
  }
  return FileSystem.layerNoop({
    makeDirectory: (path) => operation("makeDirectory", path, () => Effect.void),
    access: (path) => operation("access", path, () => Effect.void),
    readDirectory: (path) =>
      operation("readDirectory", path, () =>
        Effect.sync(() => {
          const found = [...names(machine)]
          machine.afterList()
          return found
        })
      ),
    stat: (path) =>
      operation("stat", path, (missing) => {
        const file = files.get(path)
        if (path.endsWith(".json") && file === undefined) return missing()
        const info = {
          ...machine.info,
          uid: Option.some(machine.info.uid),
          ...(file === undefined ? {} : { type: file.type ?? "File", mode: file.mode }),
          size: BigInt(file?.text.length ?? 0),
          mtime: Option.some(new Date(file?.mtime ?? 0))
        }
        return Effect.succeed(info as unknown as FileSystem.File.Info)
      }),
    readFileString: (path) =>
      operation("read", path, (missing) => {
        const file = files.get(path)
        return file === undefined ? missing() : Effect.succeed(file.text)
      }),
    writeFileString: (path, text, options) =>
      operation("write", path, () => Effect.sync(() => void files.set(path, { text, mode: options?.mode ?? 0o644 }))),
    rename: (from, to) =>
      operation("rename", from, (missing) => {
        const file = files.get(from)
        if (file === undefined) return missing()
        files.delete(from)
        files.set(to, file)
        return Effect.void
      }),
    remove: (path) => operation("remove", path, () => Effect.sync(() => void files.delete(path)))
  })
}

const layerTable = (machine: Machine): Layer.Layer<ProcessTable.ProcessTable> =>
  Layer.effect(
    ProcessTable.ProcessTable,
    Effect.map(ProcessTable.ProcessTable, (table) => ({
      ...table,
      all: Effect.suspend(() => {
        machine.done.push("all")
        return Effect.andThen(Effect.yieldNow, table.all)
      }),
      carriers: (variable: string) =>
        Effect.suspend(() => {
          machine.done.push("carriers")
          return machine.readsEnvironments ? table.carriers(variable) : Effect.succeed(null)
        })
    }))
  ).pipe(Layer.provide(ProcessTable.layerTest({ self, processes: machine.processes, signals: machine.signals })))

/** Processes of the machine, which the spawner ends with their scope. */
export const layerSpawner = (machine: Machine): Layer.Layer<ChildProcessSpawner.ChildProcessSpawner> => {
  let pid = 1000
  return Layer.succeed(
    ChildProcessSpawner.ChildProcessSpawner,
    ChildProcessSpawner.make((command) =>
      Effect.gen(function* () {
        if (command._tag !== "StandardCommand") return yield* Effect.die("no such command")
        const exit = Deferred.makeUnsafe<number>()
        const number = ++pid
        const end = Effect.sync(() => {
          for (const { group, pid } of machine.processes.values()) {
            if (group === number && !machine.spawnerFails) machine.processes.delete(pid)
          }
          Deferred.doneUnsafe(exit, Effect.succeed(0))
        })
        const spawning = Effect.andThen(
          Effect.yieldNow,
          Effect.sync(() => {
            machine.done.push(`spawn ${number}`)
            const env = command.options.env as Record<string, string>
            add(machine, process(number, { env, ...machine.next }))
          })
        )
        yield* Effect.acquireRelease(spawning, () => Effect.andThen(Effect.yieldNow, end))
        return ChildProcessSpawner.makeHandle({
          pid: ChildProcessSpawner.ProcessId(number),
          exitCode: Effect.map(Deferred.await(exit), (code) => ChildProcessSpawner.ExitCode(code)),
          isRunning: Effect.sync(() => machine.processes.has(number)),
          kill: () => end,
          stdin: Sink.drain,
          stdout: Stream.never,
          stderr: Stream.never,
          all: Stream.never,
          getInputFd: () => Sink.drain,
          getOutputFd: () => Stream.never,
          unref: Effect.succeed(Effect.void)
        })
      })
    )
  )
}

const layerLogs = (machine: Machine) =>
  Logger.layer([
    Logger.make<unknown, void>(({ logLevel, message }) => {
      machine.logs.push(`${logLevel} ${String(Array.isArray(message) ? message[0] : message)}`)
    })
  ])

/** The records of an app on this machine. Each use is another app. */
export const layer = (machine: Machine, options: LaunchRecords.Options = {}) =>
  Layer.fresh(LaunchRecords.layer({ folder, ...options })).pipe(
    Layer.provide([layerFiles(machine), layerTable(machine)]),
    Layer.provideMerge(layerLogs(machine))
  )

/** As {@link layer}, with the launcher that uses them. */
export const layerLauncher = (machine: Machine, options: LaunchRecords.Options = {}) =>
  Layer.fresh(AgentLauncher.layerChildProcess).pipe(
    Layer.provide(layerSpawner(machine)),
    Layer.provideMerge(layer(machine, options))
  )

export const launch: AgentLauncher.Launch = {
  profile: AgentProfile.make({ name: "pi", command: ["pi-acp", "--secret"] }),
  cwd: "/work",
  env: { PATH: "/bin" },
  stderrTailBytes: 100,
  killGrace: Duration.seconds(2),
  redact: (text) => text
}
