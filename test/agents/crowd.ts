// Ten sessions on one agent process: what the shared part of the scenario works with.
import { mkdir } from "node:fs/promises"
import { basename, join } from "node:path"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import * as AgentProfile from "../../src/AgentProfile.ts"
import type * as AgentHosts from "../../src/AgentHosts.ts"
import type * as Permission from "../../src/Permission.ts"
import type * as Session from "../../src/Session.ts"
import * as Leftovers from "./leftovers.ts"
import * as Stage from "./stage.ts"
import type { Found, StepError } from "./step.ts"

export const size = 10

/** Longer than the agent's process needs to be looked at, and shorter than anybody wants to wait. */
export const idleTime = Duration.seconds(2)

export const share: AgentProfile.Sharing = AgentProfile.sharing({ idleTime })

/** The sessions that most of the steps use, each in a folder of its own, and who answers their questions. */
export interface Crowd {
  all: Array<Session.Session>
  decide: (member: number, question: Permission.Question) => Effect.Effect<Permission.Decision>
}

export interface Step {
  readonly name: string
  readonly run: (stage: Stage.Stage, crowd: Crowd) => Effect.Effect<Found, StepError, Scope.Scope>
}

export const placeOf = (stage: Stage.Stage, member: number): string => join(stage.work, `place-${member}`)

/** Opens a session in the folder of this member. */
export const openOne = Effect.fnUntraced(function* (stage: Stage.Stage, crowd: Crowd, member: number) {
  const cwd = placeOf(stage, member)
  yield* Effect.promise(() => mkdir(cwd, { recursive: true }))
  return yield* Stage.open(stage, { cwd, permission: (question) => crowd.decide(member, question) })
})

/** All side by side, in the order of the list. */
export const each = <A, B, E, R>(
  list: ReadonlyArray<A>,
  work: (item: A, index: number) => Effect.Effect<B, E, R>
): Effect.Effect<Array<B>, E, R> => Effect.forEach(list, work, { concurrency: "unbounded" })

export const openMany = (stage: Stage.Stage, crowd: Crowd, count: number) =>
  each(Array.from({ length: count }), (_, member) => openOne(stage, crowd, member))

/** Opens those again that have ended, for what one step has found must not fail the next ones. */
export const restore = Effect.fnUntraced(function* (stage: Stage.Stage, crowd: Crowd) {
  for (const [member, session] of crowd.all.entries()) {
    if ((yield* session.describe).state === "open") continue
    yield* session.close
    crowd.all[member] = yield* openOne(stage, crowd, member)
  }
})

/** The one host that all of the agent's sessions are on, which has this many of them. */
export const hostOf = Effect.fnUntraced(function* (
  stage: Stage.Stage,
  sessions: number
): Effect.fn.Return<AgentHosts.HostInfo, Stage.Violation> {
  const { hosts } = yield* stage.sidecar.describe
  const [host] = hosts
  if (host === undefined || hosts.length > 1) {
    return yield* new Stage.Violation({ message: `${hosts.length} hosts for ${sessions} sessions that share` })
  }
  yield* Stage.demand(
    host.sessions.length === sessions && host.leases === sessions,
    `the host has ${host.sessions.length} sessions and ${host.leases} leases instead of ${sessions}`
  )
  return host
})

/** The processes that this one has started: those that agents are launched as. */
export const launched = (all: ReadonlyArray<Leftovers.Process>): ReadonlyArray<Leftovers.Process> =>
  all.filter(({ parent }) => parent === process.pid)

/** What a process is, in a word: its program, or the script that runs in it. */
export const kindOf = ({ args }: Leftovers.Process): string => {
  const [command = "", script = ""] = args
    .split(" ")
    .filter((text) => text === args.split(" ")[0] || !text.startsWith("-"))
  const shown = /^(node|bun)$/.test(basename(command)) && script !== "" ? script : command
  // `dist/index.js` says nothing, its package does.
  return (
    basename(shown.replace(/\/(dist|bundle|lib)\/.*$/, "").replace(/\/(index|cli|cli-entry)\.m?js$/, "")) || "nameless"
  )
}

/** Processes by what they are: `1 pi-acp, 10 pi`. */
export const kinds = (all: ReadonlyArray<Leftovers.Process>): string => {
  const counts = new Map<string, number>()
  for (const one of all) counts.set(kindOf(one), (counts.get(kindOf(one)) ?? 0) + 1)
  return Array.from(counts, ([kind, count]) => `${count} ${kind}`).join(", ")
}

/** Waits until the agent has at most this many processes; how many it has at the end of the time at the latest. */
export const shrunk = (stage: Stage.Stage, most: number, time: Duration.Input) =>
  Effect.gen(function* () {
    yield* Leftovers.processes(stage.owner).pipe(
      Effect.repeat({ until: (all) => all.length <= most, schedule: Stage.often }),
      Effect.timeoutOption(time)
    )
    return yield* Leftovers.processes(stage.owner)
  })
