// The agent processes of a sidecar as the operating system lists them, whatever the sidecar says.
import { spawnSync } from "node:child_process"
import { readdirSync, readFileSync } from "node:fs"

/** A live child of a sidecar that leads a process group of its own, and how many processes are in that. */
export interface Child {
  readonly pid: number
  readonly members: number
}

export interface Row {
  readonly pid: number
  readonly parent: number
  readonly group: number
  readonly state: string
}

/** `PID (NAME) STATE PPID PGRP …`, where a name may hold anything. */
const ofStat = (stat: string): Row => {
  const [state = "", parent, group] = stat.slice(stat.lastIndexOf(")") + 2).split(" ")
  return { pid: Number.parseInt(stat, 10), parent: Number(parent), group: Number(group), state }
}

const fromProc = (): ReadonlyArray<Row> =>
  readdirSync("/proc").flatMap((entry) => {
    if (!/^\d+$/.test(entry)) return []
    try {
      return [ofStat(readFileSync(`/proc/${entry}/stat`, "latin1"))]
    } catch {
      // It has ended meanwhile.
      return []
    }
  })

const fromPs = (): ReadonlyArray<Row> =>
  (spawnSync("ps", ["-A", "-o", "pid=,ppid=,pgid=,stat="], { encoding: "utf8", timeout: 5000 }).stdout ?? "")
    .split("\n")
    .flatMap((line) => {
      const [, pid, parent, group, state = ""] = /^\s*(\d+)\s+(\d+)\s+(\d+)\s+(\S+)/.exec(line) ?? []
      return pid === undefined ? [] : [{ pid: Number(pid), parent: Number(parent), group: Number(group), state }]
    })

const isAlive = ({ state }: Row): boolean => !/^[ZX]/.test(state)

/** Of a whole table, the children of a process; `null` when it is not even in there itself. */
export const among = (rows: ReadonlyArray<Row>, self: number): ReadonlyArray<Child> | null => {
  if (!rows.some(({ pid }) => pid === self)) return null
  const alive = rows.filter(isAlive)
  return alive
    .filter(({ group, parent, pid }) => parent === self && group === pid)
    .map(({ group, pid }) => ({ pid, members: alive.filter((row) => row.group === group).length }))
}

const table = (): ReadonlyArray<Row> => {
  try {
    return process.platform === "linux" ? fromProc() : fromPs()
  } catch {
    return []
  }
}

/** Of the process that a sidecar runs in, by default this one; `null` where the table can't be read. */
export const list = (sidecar = process.pid): ReadonlyArray<Child> | null => among(table(), sidecar)

/** The parents of these, each once; `null` when one of them is not in the table. */
export const parentsAmong = (
  rows: ReadonlyArray<Row>,
  pids: ReadonlyArray<number | null | undefined>
): ReadonlyArray<number> | null => {
  const parents = pids.map((pid) => rows.find((row) => row.pid === pid)?.parent)
  return parents.includes(undefined) ? null : [...new Set(parents as ReadonlyArray<number>)]
}

/** The processes that have started these; `null` where that can't be told. */
export const parentsOf = (pids: ReadonlyArray<number | null | undefined>): ReadonlyArray<number> | null =>
  parentsAmong(table(), pids)

/** Whether there is such a process. */
export const isRunning = (pid: number): boolean => table().some((row) => row.pid === pid && isAlive(row))
