// What sidecars have, as text and as JSON. Pure.
import type * as Sidecar from "../Sidecar.ts"
import * as Chart from "./chart.ts"
import { oneLine } from "./failure.ts"
import * as HostsTable from "./hostsTable.ts"

/** A sidecar that was looked at: what it has, or why that is not known. */
export interface Seen {
  readonly socket: string | null
  readonly url: string | null
  readonly found:
    | { readonly _tag: "Info"; readonly version: string; readonly info: Sidecar.SidecarInfo }
    | { readonly _tag: "Unreachable"; readonly problem: string }
}

/** A heading and a line each, indented; of the columns `right` the cells are aligned to the right. */
const table = (
  heading: ReadonlyArray<string>,
  rows: ReadonlyArray<ReadonlyArray<string | number>>,
  right: ReadonlyArray<number> = []
): ReadonlyArray<string> => {
  if (rows.length === 0) return []
  const cells = [heading, ...rows.map((row) => row.map((cell) => oneLine(`${cell}`, 60)))]
  const widths = heading.map((_, index) => Math.max(...cells.map((row) => row[index]!.length)))
  return cells.map((row) =>
    `  ${row
      .map((cell, index) => (right.includes(index) ? cell.padStart(widths[index]!) : cell.padEnd(widths[index]!)))
      .join("  ")}`.trimEnd()
  )
}

const seconds = (millis: number): string => (millis === 0 ? "-" : `${Chart.seconds(millis)} s`)

const sessions = ({ vms }: Sidecar.SidecarInfo): ReadonlyArray<string> =>
  table(
    ["vm", "session", "agent", "state", "turn", "phase", "lane", "questions", "idle", "folder"],
    vms.flatMap((vm) => {
      const opening = Array.from({ length: vm.opening }, () => "starting")
      const open = vm.sessions.flatMap((session) => {
        const turns = session.turns.length === 0 ? [{ turnId: "-", phase: "-", lane: "-" }] : session.turns
        return turns.map(({ lane, phase, turnId }) => [
          vm.vmId,
          session.sessionId,
          session.agent,
          session.state,
          turnId,
          phase,
          lane,
          session.pendingPermissions,
          seconds(session.idleMillis),
          session.cwd
        ])
      })
      const rows = [...open, ...opening.map((state) => [vm.vmId, "-", "-", state, "-", "-", "-", 0, "-", vm.root])]
      return rows.length === 0 ? [[vm.vmId, "-", "-", "-", "-", "-", "-", 0, "-", vm.root]] : rows
    }),
    [7, 8]
  )

const hosts = (info: Sidecar.SidecarInfo): ReadonlyArray<string> =>
  table(
    ["host", "agent", "pid", "state", "sessions", "uptime", "memory", "restarts"],
    info.hosts.map((host) => [
      host.hostId,
      host.agent,
      host.pid ?? "?",
      host.state,
      host.sessions.length,
      seconds(host.uptimeMillis),
      HostsTable.mebibytes(host.memoryBytes),
      host.restarts
    ]),
    [2, 4, 5, 6, 7]
  )

/** How much of everything there is. */
export interface Count {
  readonly vms: number
  readonly sessions: number
  readonly turns: number
  readonly hosts: number
}

export const count = ({ hosts, vms }: Sidecar.SidecarInfo): Count => {
  const all = vms.flatMap((vm) => vm.sessions)
  const turns = all.reduce((sum, session) => sum + session.turns.length, 0)
  return { vms: vms.length, sessions: all.length, turns, hosts: hosts.length }
}

export const counted = ({ hosts, sessions, turns, vms }: Count): string =>
  [
    HostsTable.plural(vms, "VM"),
    HostsTable.plural(sessions, "session"),
    HostsTable.plural(turns, "turn"),
    HostsTable.plural(hosts, "agent process", "agent processes")
  ].join(", ")

const one = ({ found, socket, url }: Seen): ReadonlyArray<string> => {
  const where = oneLine(socket ?? url ?? "", 300)
  if (found._tag === "Unreachable") return [`${where}: dead`, `  ${oneLine(found.problem)}`]
  const { info, version } = found
  return [
    `${oneLine(info.sidecarId, 100)}: ${info.state}, ${counted(count(info))} (version ${oneLine(version, 40)}, ${where})`,
    ...sessions(info),
    ...hosts(info),
    ...info.heldBack.map(
      (held) =>
        `  held back: ${oneLine(held.agent, 60)}, tried again in ${Chart.seconds(held.retryInMillis)} s: ${oneLine(held.reason, 200)}`
    )
  ]
}

/** A block each, with an empty line between them. */
export const lines = (all: ReadonlyArray<Seen>): ReadonlyArray<string> =>
  all.flatMap((seen, index) => (index === 0 ? one(seen) : ["", ...one(seen)]))

/** The fields of `--json`. */
export const json = ({ found, socket, url }: Seen) => {
  const info = found._tag === "Info" ? found.info : undefined
  return {
    socket,
    url,
    state: info?.state ?? "unreachable",
    problem: found._tag === "Unreachable" ? found.problem : null,
    sidecarId: info?.sidecarId ?? null,
    version: found._tag === "Info" ? found.version : null,
    activePrompts: info?.activePrompts ?? 0,
    vms: info?.vms ?? [],
    hosts: info?.hosts ?? [],
    heldBack: info?.heldBack ?? []
  }
}
