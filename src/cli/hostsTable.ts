// The agent processes of a sidecar as a table. Pure.
import type { HostInfo } from "../AgentHosts.ts"
import * as Chart from "./chart.ts"
import type { Child } from "./children.ts"
import { oneLine } from "./failure.ts"

export const mebibytes = (bytes: number | null): string =>
  bytes === null ? "?" : `${Math.round(bytes / 1024 / 1024)} MiB`

const columns: ReadonlyArray<readonly [heading: string, cell: (host: HostInfo) => string | number]> = [
  ["host", ({ hostId }) => hostId],
  ["identity", ({ identity }) => identity ?? "-"],
  ["pid", ({ pid }) => pid ?? "?"],
  ["sessions", ({ sessions }) => sessions.length],
  ["leases", ({ leases }) => leases],
  ["uptime", ({ uptimeMillis }) => `${Chart.seconds(uptimeMillis)} s`],
  ["memory", ({ memoryBytes }) => mebibytes(memoryBytes)],
  ["noise", ({ noise }) => noise],
  ["late", ({ late }) => late],
  ["restarts", ({ restarts }) => restarts]
]

/** A heading and one line a host; what counts something is aligned to the right. */
export const lines = (hosts: ReadonlyArray<HostInfo>): ReadonlyArray<string> => {
  const rows = [
    columns.map(([heading]) => heading),
    ...hosts.map((host) => columns.map(([, cell]) => oneLine(`${cell(host)}`, 40)))
  ]
  const widths = columns.map((_, index) => Math.max(...rows.map((row) => row[index]!.length)))
  return rows.map((row) =>
    row.map((cell, index) => (index < 2 ? cell.padEnd(widths[index]!) : cell.padStart(widths[index]!))).join("  ")
  )
}

export const plural = (count: number, one: string, many = `${one}s`): string => `${count} ${count === 1 ? one : many}`

/** What the operating system says about it. */
export const confirmed = (children: ReadonlyArray<Child> | null, sessions: number): string => {
  if (children === null) return "process table: it can't be read here"
  const pids = children.map(({ members, pid }) => (members > 1 ? `${pid} with ${members - 1} more in its group` : pid))
  const which = pids.length === 0 ? "" : ` (${pids.length === 1 ? "pid" : "pids"} ${pids.join(", ")})`
  const processes = plural(children.length, "agent process", "agent processes")
  return `process table: ${processes}${which}, ${plural(sessions, "session")}`
}
