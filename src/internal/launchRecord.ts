/**
 * @internal What is written down of a launch, and what a look at the processes says about it.
 */
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type { ProcessId, ProcessInfo, Self } from "../ProcessTable.ts"

/** Signals go to groups by number, and those below 2 mean others than one group. */
const Pid = Schema.Int.check(Schema.isGreaterThan(1))

const Process = { pid: Pid, startTime: Schema.String }

/** No command line, no variable and no path is in it. */
const LaunchRecord = Schema.Struct({
  version: Schema.Literal(1),
  id: Schema.String,
  agent: Schema.String,
  at: Schema.Finite,
  machine: Schema.String,
  boot: Schema.String,
  space: Schema.String,
  owner: Schema.Struct(Process),
  /** The first process of the agent, which gave its group the number. `null`: it was being started. */
  process: Schema.NullOr(Schema.Struct({ ...Process, startTime: Schema.NullOr(Schema.String), group: Pid }))
})

export type LaunchRecord = typeof LaunchRecord.Type

const decodeUnknown = Schema.decodeUnknownResult(LaunchRecord)

export const encode = (record: LaunchRecord): string => `${JSON.stringify(record)}\n`

export const decode = (text: string): Option.Option<LaunchRecord> => {
  try {
    return Result.getSuccess(decodeUnknown(JSON.parse(text)))
  } catch {
    return Option.none()
  }
}

/** One look at the processes. `carriers`: by launch, those that have it in their environment; `null` when unknown. */
export interface Snapshot {
  readonly self: Self
  readonly processes: ReadonlyMap<number, ProcessInfo>
  /** Without zombies. */
  readonly groups: ReadonlyMap<number, ReadonlyArray<ProcessInfo>>
  readonly carriers: ReadonlyMap<string, ReadonlyArray<number>> | null
}

export const snapshot = (
  self: Self,
  all: ReadonlyArray<ProcessInfo>,
  carriers: Snapshot["carriers"] = null
): Snapshot => ({
  self,
  processes: new Map(all.map((one) => [one.pid, one])),
  groups: Map.groupBy(
    all.filter(({ isZombie }) => !isZombie),
    ({ group }) => group
  ),
  carriers
})

/** A group that belongs to a launch, and a process that shows it. */
export interface Target {
  readonly group: number
  readonly witness: ProcessId
  readonly members: ReadonlyArray<ProcessInfo>
}

/**
 * `Owned`: whoever started it lives. `Elsewhere`: it can't be seen from here. `Gone`: nothing is left, and `isForeign`
 * when its number is another program's now. `Left`: these groups are. `Unclear`: something may be, and nothing shows
 * that it is what was launched.
 */
export type Verdict =
  | { readonly _tag: "Owned" | "Elsewhere" }
  | { readonly _tag: "Gone"; readonly isForeign: boolean }
  | { readonly _tag: "Left"; readonly targets: ReadonlyArray<Target> }
  | { readonly _tag: "Unclear"; readonly why: string }

export const keyOf = ({ pid, startTime }: ProcessId): string => `${pid} ${startTime}`

const isOwned = ({ owner }: LaunchRecord, { processes }: Snapshot): boolean => {
  const found = processes.get(owner.pid)
  return found !== undefined && !found.isZombie && found.startTime === owner.startTime
}

/** Whether its processes would be among these. A boot has an id of its own; the name of a machine may change meanwhile. */
const whereabouts = (record: LaunchRecord, { self }: Snapshot): "here" | "elsewhere" | "ended" => {
  const isSameMachine = record.machine === self.machine
  if (record.boot !== self.boot) return isSameMachine && record.boot !== "" && self.boot !== "" ? "ended" : "elsewhere"
  return record.space === self.space && (isSameMachine || self.boot !== "") ? "here" : "elsewhere"
}

/** Whether more than numbers has to be asked for to judge it. */
export const needsCarriers = (record: LaunchRecord, seen: Snapshot): boolean =>
  whereabouts(record, seen) === "here" && !isOwned(record, seen)

/**
 * What a look says of a launch. `known` are processes that an earlier look of the same reaper saw in a group of it: a
 * group keeps its number as long as anything is in it, so one of them is proof when its leader is gone.
 */
export const judge = (record: LaunchRecord, seen: Snapshot, known: ReadonlySet<string> = new Set()): Verdict => {
  const where = whereabouts(record, seen)
  if (where === "elsewhere") return { _tag: "Elsewhere" }
  if (where === "ended") return { _tag: "Gone", isForeign: false }
  return isOwned(record, seen) ? { _tag: "Owned" } : judgeEnded(record, seen, "everywhere", known)
}

/**
 * As {@link judge}, when it is known that whoever started it wants it gone. With `reach` "group" what it started in
 * groups of their own is left alone.
 */
export const judgeEnded = (
  record: LaunchRecord,
  seen: Snapshot,
  reach: "group" | "everywhere",
  known: ReadonlySet<string> = new Set()
): Verdict => {
  const { carriers, groups, processes, self } = seen
  const own = record.process
  const carrying = (carriers?.get(record.id) ?? []).flatMap((pid) => processes.get(pid) ?? [])
  const targets = new Map<number, Target>()
  const aim = (group: number, witness: ProcessId) => {
    const members = groups.get(group) ?? []
    if (members.length > 0 && !targets.has(group)) targets.set(group, { group, witness, members })
  }

  const leader = own === null ? undefined : processes.get(own.pid)
  const isLeader = leader !== undefined && leader.startTime === own?.startTime
  if (own !== null && isLeader) aim(own.group, leader)
  for (const one of carrying) if (reach === "everywhere" || one.group === own?.group) aim(one.group, one)
  for (const [group, members] of groups) {
    if (reach === "group" && group !== own?.group) continue
    const witness = known.size === 0 ? undefined : members.find((member) => known.has(keyOf(member)))
    if (witness !== undefined) aim(group, witness)
  }
  const isSelf = ({ group, members }: Target) => group === self.group || members.some(({ pid }) => pid === self.pid)
  const found = Array.from(targets.values())
  if (found.some(isSelf)) return { _tag: "Unclear", why: "this process is one of those that it started" }
  if (found.length > 0) return { _tag: "Left", targets: found }

  // A number is given to another program only when the whole group of that number is gone.
  const isForeign = leader !== undefined && !isLeader
  const rest = own === null || isForeign ? [] : (groups.get(own.group) ?? [])
  if (rest.length === 0) return { _tag: "Gone", isForeign }
  return { _tag: "Unclear", why: `process group ${own?.group} is in use, and nothing shows that it is this agent's` }
}
