/**
 * The port to the operating system's table of processes: who lives, in which process group, and since when.
 *
 * @since 0.1.0
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"

/**
 * The table of processes can't be read. `operation` is what was tried and `detail` the system's own words.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class ProcessTableError extends Schema.TaggedError<ProcessTableError>()("ProcessTableError", {
  operation: Schema.String,
  detail: Schema.String
}) {
  override get message(): string {
    return (
      `The table of processes can't be read (${this.operation}: ${this.detail}); make /proc readable or install ps, ` +
      "or go without launch records."
    )
  }
}

/**
 * A process by its number and the moment that it was started, as an opaque word. The number alone names another process
 * once it has ended; both together never do.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface ProcessId {
  readonly pid: number
  readonly startTime: string
}

/**
 * A line of the table.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface ProcessInfo extends ProcessId {
  readonly group: number
  /** It has ended and waits for its parent to notice: it is not alive, and its number is not free. */
  readonly isZombie: boolean
}

/**
 * This process, and where its numbers mean something: the same `machine` (its name), the same `boot` of it (an id, or ""
 * where there is none), and the same `space` of numbers (a container has one of its own).
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Self extends ProcessId {
  readonly group: number
  /** The id of the user; `null` where there is none. */
  readonly user: number | null
  readonly machine: string
  readonly boot: string
  readonly space: string
}

/**
 * What became of a signal: `sent`; `gone` when the witness is not there any more, or not in the group; `denied` by the
 * operating system.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Signalled = "sent" | "gone" | "denied"

/**
 * The table of processes. Numbers of groups and processes below 2 are never looked up and never signalled. Drivers:
 * `NodeProcessTable.layer`, and {@link layerTest}.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class ProcessTable extends Context.Service<
  ProcessTable,
  {
    readonly self: Self
    /** All processes that this one may see, zombies included, in one look. */
    readonly all: Effect.Effect<ReadonlyArray<ProcessInfo>, ProcessTableError>
    /** Since when a process lives; `null` when it doesn't. */
    readonly startTime: (pid: number) => Effect.Effect<string | null, ProcessTableError>
    /** The live processes of a group. It costs one system call when there are none. */
    readonly members: (group: number) => Effect.Effect<ReadonlyArray<number>, ProcessTableError>
    /**
     * The resident memory (RSS) of each group in bytes, from one look at the table for all of them. What the members of
     * a group share counts once for each. A group without a live member is left out.
     */
    readonly memory: (groups: Iterable<number>) => Effect.Effect<ReadonlyMap<number, number>, ProcessTableError>
    /**
     * The live processes that were started with this variable in their environment, by its value. `null` where the
     * operating system doesn't tell, which is everywhere but on Linux.
     */
    readonly carriers: (
      variable: string
    ) => Effect.Effect<ReadonlyMap<string, ReadonlyArray<number>> | null, ProcessTableError>
    /**
     * Signals a whole process group, if the witness is in it at that moment: a process, alive or a zombie, that is known
     * to belong to whom the signal is meant for. On Linux the look and the signal are one step; elsewhere there are some
     * milliseconds between them.
     */
    readonly signal: (
      group: number,
      signal: "TERM" | "KILL",
      witness: ProcessId
    ) => Effect.Effect<Signalled, ProcessTableError>
  }
>()("acp-sidecar/ProcessTable") {}

/**
 * A process of {@link layerTest}.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface TestProcess extends ProcessInfo {
  readonly memory?: number | undefined
  readonly env?: Readonly<Record<string, string>> | undefined
  /** What it does when it is signalled; by default it is gone. A group whose first member `refuses` is `denied`. */
  readonly on?: ((signal: "TERM" | "KILL") => "dies" | "stays" | "refuses") | undefined
}

/**
 * A table for tests: what is in `processes`, which may change at any time. Each signal that was sent is appended to
 * `signals`.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerTest = (options: {
  readonly self: Self
  readonly processes: Map<number, TestProcess>
  readonly signals?: Array<{ readonly group: number; readonly signal: "TERM" | "KILL" }> | undefined
  /** Whether it can tell {@link ProcessTable} `carriers`; it can by default. */
  readonly readsEnvironments?: boolean | undefined
}): Layer.Layer<ProcessTable> =>
  Layer.sync(ProcessTable, () => {
    const { processes, readsEnvironments = true, self, signals } = options
    const alive = () => Array.from(processes.values()).filter(({ isZombie }) => !isZombie)
    return ProcessTable.of({
      self,
      all: Effect.sync(() => Array.from(processes.values())),
      startTime: (pid) => Effect.sync(() => alive().find((one) => one.pid === pid)?.startTime ?? null),
      members: (group) =>
        Effect.sync(() =>
          alive()
            .filter((one) => one.group === group)
            .map(({ pid }) => pid)
        ),
      memory: (groups) =>
        Effect.sync(() => {
          const wanted = new Set(groups)
          const sums = new Map<number, number>()
          for (const { group, memory = 0 } of alive()) {
            if (wanted.has(group)) sums.set(group, (sums.get(group) ?? 0) + memory)
          }
          return sums
        }),
      carriers: (variable) =>
        Effect.sync(() => {
          if (!readsEnvironments) return null
          const found = new Map<string, Array<number>>()
          for (const { env, pid } of alive()) {
            const value = env?.[variable]
            if (value !== undefined) found.set(value, [...(found.get(value) ?? []), pid])
          }
          return found
        }),
      signal: (group, signal, witness) =>
        Effect.sync(() => {
          const known = processes.get(witness.pid)
          if (known === undefined || known.startTime !== witness.startTime || known.group !== group) return "gone"
          const members = alive().filter((one) => one.group === group)
          if (members[0]?.on?.(signal) === "refuses") return "denied"
          signals?.push({ group, signal })
          for (const one of members) if ((one.on?.(signal) ?? "dies") === "dies") processes.delete(one.pid)
          return "sent"
        })
    })
  })
