// Ends an agent step by step, to see what it takes: the end of its input, TERM, KILL.
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import { spawnSync } from "node:child_process"
import { readdirSync, readFileSync } from "node:fs"
import type { AcpTransport, TransportEnd } from "../acp/AcpTransport.ts"

/** What ended the process; "itself" when it had ended before anybody asked. */
export type By = "itself" | "end of input" | "TERM" | "KILL"

export interface End {
  readonly by: By
  /** From the last request to end to the end, in milliseconds. */
  readonly millis: number
  readonly code: number | null
  readonly signal: string | null
  /** The names of the processes of its group that were still there shortly after. */
  readonly left: ReadonlyArray<string>
}

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM"
  }
}

const signalGroup = (pid: number, signal: "SIGTERM" | "SIGKILL") =>
  Effect.sync(() => {
    try {
      process.kill(-pid, signal)
    } catch {
      // It is gone already.
    }
  })

/** `PID (NAME) STATE PPID PGRP …`, where a name may hold anything. */
const ofStat = (stat: string): { readonly name: string; readonly state: string; readonly group: number } => {
  const end = stat.lastIndexOf(")")
  const [state = "", , group = ""] = stat.slice(end + 2).split(" ")
  return { name: stat.slice(stat.indexOf("(") + 1, end), state, group: Number(group) }
}

/** The program of a process. Its arguments may hold secrets, and Node calls itself "MainThread". */
const programOf = (pid: string, name: string): string =>
  readFileSync(`/proc/${pid}/cmdline`, "utf8")
    .split(/[\0\s]/, 1)[0]!
    .split("/")
    .at(-1) || name

const fromProc = (group: number): ReadonlyArray<string> =>
  readdirSync("/proc").flatMap((entry) => {
    if (!/^\d+$/.test(entry)) return []
    try {
      const found = ofStat(readFileSync(`/proc/${entry}/stat`, "utf8"))
      return found.group === group && !/[ZX]/.test(found.state) ? [programOf(entry, found.name)] : []
    } catch {
      return []
    }
  })

const fromPs = (group: number): ReadonlyArray<string> =>
  (spawnSync("ps", ["-A", "-o", "pgid=,stat=,comm="], { encoding: "utf8", timeout: 5000 }).stdout ?? "")
    .split("\n")
    .flatMap((line) => {
      const [, id, state = "", name = ""] = /^\s*(\d+)\s+(\S+)\s+(.*)$/.exec(line) ?? []
      return Number(id) === group && !state.startsWith("Z") ? [name] : []
    })

/** The live processes of a group, by name; zombies are not alive. */
export const members = (group: number): ReadonlyArray<string> =>
  process.platform === "linux" ? fromProc(group) : fromPs(group)

/** Whether it came to be within the time. */
const within = (time: Duration.Duration, done: () => boolean): Effect.Effect<boolean> =>
  Effect.sync(done).pipe(
    Effect.repeat({ schedule: Schedule.spaced("10 millis"), until: (isDone) => isDone }),
    Effect.timeoutOption(time),
    Effect.map((isDone) => Option.isSome(isDone) || done())
  )

/** A child may need a moment to see that its parent is gone. */
const settleTime = Duration.millis(300)

const steps = [
  ["TERM", "SIGTERM"],
  ["KILL", "SIGKILL"]
] as const

/** Ends the process; each step may take `grace`. What its group leaves is for the scope of the transport to end. */
export const end = Effect.fnUntraced(function* (
  transport: AcpTransport,
  grace: Duration.Duration
): Effect.fn.Return<End | null> {
  const { pid } = transport
  if (pid === undefined) return null
  let by: By = "itself"
  let asked = performance.now()
  const isGone = () => !isAlive(pid)
  if (!isGone()) {
    by = "end of input"
    yield* transport.endInput ?? Effect.void
    let isDone = yield* within(grace, isGone)
    for (const [name, signal] of steps) {
      if (isDone) break
      by = name
      asked = performance.now()
      yield* signalGroup(pid, signal)
      isDone = yield* within(grace, isGone)
    }
  }
  const millis = by === "itself" ? 0 : performance.now() - asked
  yield* within(settleTime, () => members(pid).length === 0)
  // Not for long: whoever closed its output and stayed is told as that, and a grandchild may hold the output open.
  const how: TransportEnd | undefined = Option.getOrUndefined(
    yield* Effect.timeoutOption(transport.ended, Duration.sum(grace, settleTime))
  )
  const exit = how?._tag === "ProcessExited" ? how : { code: null, signal: null }
  return { by, millis, code: exit.code, signal: exit.signal, left: members(pid) }
})
