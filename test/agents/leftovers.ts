// What an agent has running: its processes, also those that left its process group, and the ports that they listen on.
import { execFile } from "node:child_process"
import { existsSync } from "node:fs"
import { readdir, readFile, readlink } from "node:fs/promises"
import { promisify } from "node:util"
import * as Effect from "effect/Effect"

/** A live process; zombies are not alive. */
export interface Process {
  readonly pid: number
  readonly parent: number
  readonly group: number
  readonly args: string
}

/** What tells the processes of an agent: the process groups of its sessions, and its home folder, which nobody else has. */
export interface Owner {
  readonly groups: ReadonlySet<number>
  readonly home: string
}

/** A line of `/proc/PID/stat`. The name in it may have blanks and brackets. */
export const parseStat = (
  text: string
): { readonly state: string; readonly parent: number; readonly group: number } | undefined => {
  const [, state, parent, group] = /^\d+ \(.*\) (\S) (-?\d+) (-?\d+) /s.exec(text) ?? []
  return state === undefined ? undefined : { state, parent: Number(parent), group: Number(group) }
}

/** The local ports of listening sockets in `/proc/net/tcp`, by inode. */
export const parseListening = (text: string): ReadonlyMap<string, number> =>
  new Map(
    text.split("\n").flatMap((line): ReadonlyArray<[string, number]> => {
      const [, local = "", , state, , , , , , inode] = line.trim().split(/\s+/)
      return state === "0A" && inode !== undefined ? [[inode, Number.parseInt(local.split(":")[1]!, 16)]] : []
    })
  )

// A process may end while it is looked at.
const text = (path: string) => readFile(path, "utf8").catch(() => "")

const fromProc = async ({ groups, home }: Owner): Promise<ReadonlyArray<Process>> => {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name)).map(Number)
  const found = await Promise.all(
    pids.map(async (pid): Promise<ReadonlyArray<Process>> => {
      const stat = parseStat(await text(`/proc/${pid}/stat`))
      if (stat === undefined || stat.state === "Z" || stat.state === "X" || pid === process.pid) return []
      const args = (await text(`/proc/${pid}/cmdline`)).replaceAll("\0", " ").trim()
      const isOurs = groups.has(stat.group) || (await text(`/proc/${pid}/environ`)).includes(`HOME=${home}\0`)
      return isOurs ? [{ pid, parent: stat.parent, group: stat.group, args }] : []
    })
  )
  return found.flat()
}

const fromPs = async ({ groups }: Owner): Promise<ReadonlyArray<Process>> => {
  const { stdout } = await promisify(execFile)("ps", ["-Aww", "-o", "pid=,ppid=,pgid=,stat=,args="], {
    maxBuffer: 1 << 26
  })
  return stdout.split("\n").flatMap((line) => {
    const [, pid, parent, group, stat = "Z", args = ""] = /^\s*(\d+)\s+(\d+)\s+(\d+)\s+(\S+)\s+(.*)$/.exec(line) ?? []
    if (stat.startsWith("Z") || !groups.has(Number(group))) return []
    return [{ pid: Number(pid), parent: Number(parent), group: Number(group), args }]
  })
}

/** The live processes of an agent. Where there is no `/proc`, those of its process groups alone. */
export const processes = (owner: Owner): Effect.Effect<ReadonlyArray<Process>> =>
  Effect.promise(() => (existsSync("/proc/self/environ") ? fromProc(owner) : fromPs(owner)))

/** The memory of processes in MiB, what they share counted once; `null` where it can't be told. */
export const memory = (all: ReadonlyArray<Process>): Effect.Effect<number | null> =>
  Effect.promise(async () => {
    const sizes = await Promise.all(
      all.map(async ({ pid }) => Number(/^Pss:\s+(\d+) kB/m.exec(await text(`/proc/${pid}/smaps_rollup`))?.[1] ?? 0))
    )
    const total = sizes.reduce((sum, size) => sum + size, 0)
    return total === 0 ? null : Math.round(total / 1024)
  })

const socketsOf = async (pid: number): Promise<ReadonlyArray<string>> => {
  const names = await readdir(`/proc/${pid}/fd`).catch(() => [])
  const links = await Promise.all(names.map((name) => readlink(`/proc/${pid}/fd/${name}`).catch(() => "")))
  return links.flatMap((link) => /^socket:\[(\d+)\]$/.exec(link)?.[1] ?? [])
}

const listening = async (): Promise<ReadonlyMap<string, number>> =>
  parseListening(`${await text("/proc/net/tcp")}\n${await text("/proc/net/tcp6")}`)

/** The TCP ports that processes listen on; none where there is no `/proc`. */
export const ports = (all: ReadonlyArray<Process>): Effect.Effect<ReadonlyArray<number>> =>
  Effect.promise(async () => {
    const open = await listening()
    const sockets = await Promise.all(all.map(({ pid }) => socketsOf(pid)))
    return Array.from(new Set(sockets.flat().flatMap((inode) => open.get(inode) ?? [])))
  })

/** Those of the ports that somebody still listens on. */
export const stillOpen = (wanted: ReadonlySet<number>): Effect.Effect<ReadonlyArray<number>> =>
  Effect.promise(async () => Array.from(new Set((await listening()).values())).filter((port) => wanted.has(port)))
