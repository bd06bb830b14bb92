// Finds the processes of a test by a mark in their arguments, and waits for them to go.
import { execFile } from "node:child_process"
import { existsSync } from "node:fs"
import { readdir, readFile } from "node:fs/promises"
import { promisify } from "node:util"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"

/** A live process; zombies are not alive. */
export interface Process {
  readonly pid: number
  readonly args: string
}

let marks = 0

/** A word that no other process has in its arguments. */
export const newMark = (): string => `mark-${process.pid}-${Date.now().toString(36)}-${++marks}`

const fromProc = async (): Promise<ReadonlyArray<Process>> => {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name))
  const all = await Promise.all(
    pids.map(async (pid) => {
      // A process may end meanwhile, and the arguments of a zombie are empty.
      const args = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")
      return { pid: Number(pid), args: args.replaceAll("\0", " ").trim() }
    })
  )
  return all.filter(({ args }) => args !== "")
}

const fromPs = async (): Promise<ReadonlyArray<Process>> => {
  const { stdout } = await promisify(execFile)("ps", ["-Aww", "-o", "pid=,stat=,args="], { maxBuffer: 1 << 26 })
  return stdout.split("\n").flatMap((line) => {
    const [, pid, stat = "", args = ""] = /^\s*(\d+)\s+(\S+)\s+(.*)$/.exec(line) ?? []
    return pid === undefined || stat.startsWith("Z") ? [] : [{ pid: Number(pid), args }]
  })
}

/** The live processes that have the mark in their arguments. */
export const running = (mark: string): Effect.Effect<ReadonlyArray<Process>> =>
  Effect.promise(existsSync("/proc/self/cmdline") ? fromProc : fromPs).pipe(
    Effect.map((all) => all.filter(({ args, pid }) => args.includes(mark) && pid !== process.pid))
  )

/** Looks every 20 ms until there are as many marked processes as wanted; dies after 15 s. */
export const untilRunning = (mark: string, count: number): Effect.Effect<ReadonlyArray<Process>> =>
  running(mark).pipe(
    Effect.filterOrFail(
      (found) => found.length === count,
      (found) => new Error(`expected ${count} processes with ${mark}, found ${JSON.stringify(found)}`)
    ),
    Effect.retry({ schedule: Schedule.spaced("20 millis"), times: 750 }),
    Effect.orDie
  )

/** As {@link untilRunning}, for none. */
export const untilGone = (mark: string): Effect.Effect<void> => Effect.asVoid(untilRunning(mark, 0))

/** A mark whose processes are killed at the end of the test, should it fail. */
export const scopedMark: Effect.Effect<string, never, Scope.Scope> = Effect.acquireRelease(
  Effect.sync(newMark),
  (mark) =>
    Effect.flatMap(running(mark), (left) =>
      Effect.sync(() => {
        for (const { pid } of left) {
          try {
            process.kill(pid, "SIGKILL")
          } catch {
            // It has ended meanwhile.
          }
        }
      })
    )
)
