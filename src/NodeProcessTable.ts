/**
 * The table of processes on Node: `/proc` on Linux, `ps` elsewhere.
 *
 * @since 0.1.0
 */
import { Buffer } from "node:buffer"
import { execFile } from "node:child_process"
import { closeSync, openSync, readdirSync, readFileSync, readlinkSync, readSync } from "node:fs"
import { hostname } from "node:os"
import * as process from "node:process"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { ProcessTable, ProcessTableError, type ProcessInfo, type Self, type Signalled } from "./ProcessTable.ts"

/** A line of the table, with the resident memory in bytes where that came with it. */
interface Row extends ProcessInfo {
  readonly bytes?: number
}

/** Where the table comes from. */
interface Source {
  readonly boot: string
  readonly space: string
  readonly all: Effect.Effect<ReadonlyArray<Row>, ProcessTableError>
  /** Looks for one process and uses what was found, with as little time between as there can be. */
  readonly find: <A>(pid: number, use: (row: Row | undefined) => A) => Effect.Effect<A, ProcessTableError>
  readonly bytes: (row: Row) => Effect.Effect<number, ProcessTableError>
  readonly carriers: ProcessTable["Service"]["carriers"]
}

const codeOf = (error: unknown): unknown => (error as { readonly code?: unknown } | null)?.code

const failure = (operation: string, error: unknown): ProcessTableError =>
  new ProcessTableError({ operation, detail: error instanceof Error ? error.message : String(error) })

/** A process may end while it is looked at, and others' may not be looked into. */
const isAway = (error: unknown): boolean =>
  ["ENOENT", "ESRCH", "EACCES", "EPERM", "EINVAL"].includes(String(codeOf(error)))

const ifThere = <A>(read: () => A): A | undefined => {
  try {
    return read()
  } catch (error) {
    if (isAway(error)) return undefined
    throw error
  }
}

const isNumber = (text: string): boolean => /^\d+$/.test(text)

/** How many processes are looked at before others get their turn. */
const atOnce = 128

const eachProcess = Effect.fnUntraced(function* (look: (pid: string) => void) {
  const attempt = <A>(read: () => A) => Effect.try({ try: read, catch: (error) => failure("/proc", error) })
  const pids = (yield* attempt(() => readdirSync("/proc"))).filter(isNumber)
  for (let from = 0; from < pids.length; from += atOnce) {
    if (from > 0) yield* Effect.yieldNow
    yield* attempt(() => pids.slice(from, from + atOnce).forEach(look))
  }
})

/** The name of the program is in brackets and may have any character in it, so the fields count from the last one. */
const parseStat = (text: string, boot: string): Row | undefined => {
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ")
  const [state = "", , group] = fields
  const startTime = fields[19]
  if (group === undefined || startTime === undefined) return undefined
  return {
    pid: Number.parseInt(text, 10),
    group: Number(group),
    startTime: `${boot}/${startTime}`,
    // A process whose first thread has ended lives on in its others.
    isZombie: /[ZXx]/.test(state) && Number(fields[17]) <= 1
  }
}

const longestEnvironment = 1024 * 1024

/** The value of a variable in an environment as the kernel shows it, without reading more than there may be. */
const readVariable = (pid: string, name: string, buffer: Buffer): string | undefined => {
  const file = openSync(`/proc/${pid}/environ`, "r")
  try {
    let length = 0
    for (;;) {
      const read = readSync(file, buffer, length, buffer.length - length, null)
      length += read
      if (read === 0 || length === buffer.length) break
    }
    const prefix = `${name}=`
    const whole = buffer.subarray(0, length)
    let at = whole.indexOf(prefix)
    while (at > 0 && whole[at - 1] !== 0) at = whole.indexOf(prefix, at + 1)
    if (at === -1) return undefined
    const end = whole.indexOf(0, at)
    return whole.toString("utf8", at + prefix.length, end === -1 ? length : end)
  } finally {
    closeSync(file)
  }
}

const proc: Effect.Effect<Source, ProcessTableError> = Effect.try({
  try: (): Source => {
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim()
    const stat = (pid: string | number) => ifThere(() => parseStat(readFileSync(`/proc/${pid}/stat`, "latin1"), boot))
    return {
      boot,
      space: ifThere(() => readlinkSync("/proc/self/ns/pid")) ?? "",
      all: Effect.gen(function* () {
        const rows: Array<Row> = []
        yield* eachProcess((pid) => {
          const row = stat(pid)
          if (row !== undefined) rows.push(row)
        })
        return rows
      }),
      find: (pid, use) => Effect.try({ try: () => use(stat(pid)), catch: (error) => failure("/proc", error) }),
      bytes: ({ pid }) =>
        Effect.try({
          try: () => {
            const status = ifThere(() => readFileSync(`/proc/${pid}/status`, "latin1")) ?? ""
            return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1] ?? 0) * 1024
          },
          catch: (error) => failure("/proc", error)
        }),
      carriers: Effect.fnUntraced(function* (variable) {
        const found = new Map<string, Array<number>>()
        const buffer = Buffer.allocUnsafe(longestEnvironment)
        yield* eachProcess((pid) => {
          const value = ifThere(() => readVariable(pid, variable, buffer))
          if (value === undefined || stat(pid)?.isZombie !== false) return
          const pids = found.get(value)
          if (pids === undefined) found.set(value, [Number(pid)])
          else pids.push(Number(pid))
        })
        return found
      })
    }
  },
  catch: (error) => failure("/proc", error)
})

const output = (command: string, args: ReadonlyArray<string>): Effect.Effect<string, ProcessTableError> =>
  Effect.callback((resume) => {
    const child = execFile(
      command,
      [...args],
      {
        // Its times are then the same words for everybody who asks.
        env: { PATH: process.env["PATH"] ?? "/usr/bin:/bin:/usr/sbin:/sbin", LC_ALL: "C", TZ: "UTC" },
        maxBuffer: 64 * 1024 * 1024,
        timeout: 10_000
      },
      (error, stdout) => resume(error === null ? Effect.succeed(stdout) : Effect.fail(failure(command, error)))
    )
    return Effect.sync(() => void child.kill("SIGKILL"))
  })

const parsePs = (text: string): ReadonlyArray<Row> =>
  text.split("\n").flatMap((line) => {
    const [, pid, group, state = "", kib, startTime = ""] =
      /^\s*(\d+)\s+(\d+)\s+(\S+)\s+(\d+)\s+(\S.*?)\s*$/.exec(line) ?? []
    if (pid === undefined) return []
    const isZombie = state.startsWith("Z")
    return [{ pid: Number(pid), group: Number(group), startTime, isZombie, bytes: Number(kib) * 1024 }]
  })

const ps: Effect.Effect<Source, ProcessTableError> = Effect.gen(function* () {
  const all = Effect.map(output("ps", ["-A", "-o", "pid=,pgid=,stat=,rss=,lstart="]), parsePs)
  // Without it the times, which are absolute, have to do.
  const boot = yield* Effect.orElseSucceed(output("sysctl", ["-n", "kern.bootsessionuuid"]), () => "")
  return {
    boot: boot.trim(),
    space: "",
    all,
    find: (pid, use) => Effect.map(all, (rows) => use(rows.find((row) => row.pid === pid))),
    bytes: ({ bytes = 0 }) => Effect.succeed(bytes),
    carriers: () => Effect.succeed(null)
  }
})

/** `ESRCH` is the only proof that a group is empty; one of zombies alone is there, or may not be signalled. */
const isEmpty = (group: number): boolean => {
  try {
    process.kill(-group, 0)
    return false
  } catch (error) {
    return codeOf(error) === "ESRCH"
  }
}

const send = (group: number, signal: "TERM" | "KILL"): Signalled => {
  try {
    process.kill(-group, `SIG${signal}`)
    return "sent"
  } catch (error) {
    return codeOf(error) === "ESRCH" ? "gone" : "denied"
  }
}

const make = Effect.fnUntraced(function* (
  source: Source
): Effect.fn.Return<ProcessTable["Service"], ProcessTableError> {
  const { all, boot, bytes, carriers, find, space } = source
  const own = yield* find(process.pid, (row) => row)
  if (own === undefined) return yield* failure("this process", "it is not in the table")
  const self: Self = {
    pid: own.pid,
    group: own.group,
    startTime: own.startTime,
    user: process.getuid?.() ?? null,
    machine: hostname(),
    boot,
    space
  }
  return ProcessTable.of({
    self,
    all,
    startTime: (pid) => find(pid, (row) => (row === undefined || row.isZombie ? null : row.startTime)),
    members: (group) =>
      Effect.suspend(() =>
        group < 2 || isEmpty(group)
          ? Effect.succeed([])
          : Effect.map(all, (rows) => rows.filter((row) => row.group === group && !row.isZombie).map(({ pid }) => pid))
      ),
    memory: Effect.fnUntraced(function* (groups) {
      const wanted = new Set(groups)
      const sums = new Map<number, number>()
      if (wanted.size === 0) return sums
      for (const row of yield* all) {
        if (row.isZombie || row.group < 2 || !wanted.has(row.group)) continue
        sums.set(row.group, (sums.get(row.group) ?? 0) + (yield* bytes(row)))
      }
      return sums
    }),
    carriers,
    signal: (group, signal, witness) =>
      group < 2
        ? Effect.succeed("gone")
        : find(witness.pid, (row) =>
            row?.startTime === witness.startTime && row.group === group ? send(group, signal) : "gone"
          )
  })
})

/**
 * The processes of this machine that this process may see. On Linux it reads `/proc`, where a start time is the kernel's
 * (a hundredth of a second, with the id of the boot); elsewhere it asks `ps`, which knows seconds. It fails where neither
 * is there, such as on Windows.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer: Layer.Layer<ProcessTable, ProcessTableError> = Layer.effect(
  ProcessTable,
  Effect.suspend(() => Effect.flatMap(process.platform === "linux" ? proc : ps, make))
)

/**
 * As {@link layer}, but from `ps` on Linux too: for systems where `/proc` is hidden. Processes then can't be found by
 * their environment.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerPs: Layer.Layer<ProcessTable, ProcessTableError> = Layer.effect(
  ProcessTable,
  Effect.flatMap(ps, make)
)
