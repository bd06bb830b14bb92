// The steps about the end of a process that sessions share, and what it costs.
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type * as Session from "../../src/Session.ts"
import * as Crowd from "./crowd.ts"
import * as Ends from "./ends.ts"
import * as Leftovers from "./leftovers.ts"
import { seconds } from "./report.ts"
import * as Stage from "./stage.ts"
import { millis } from "./step.ts"

const { demand, describe, speak, untilText } = Stage

/** A machine at work takes its time. */
const slack = 5000

/** Nothing of the agent runs any more, also not outside its process group. */
const nothingLeft = Effect.fnUntraced(function* (stage: Stage.Stage, when: string) {
  const left = yield* Leftovers.processes(stage.owner)
  yield* demand(left.length === 0, `${when}: ${left.map(({ args, pid }) => `${pid} ${args}`).join("; ")}`)
})

/** What a session was told of its end. */
const endOf = Effect.fnUntraced(function* (session: Session.Session) {
  const events = yield* Stream.runCollect(session.updates)
  return events.flatMap((event) => (event._tag === "SessionEnded" ? [event] : []))
})

/** The process is killed while turns run: each session is told once and why, and the next one gets a new process. */
const kill = (signal: "SIGTERM" | "SIGKILL"): Crowd.Step => ({
  name: `shared, ${signal.slice(3)}`,
  run: Effect.fnUntraced(function* (stage, crowd) {
    for (let member = crowd.all.length; member < 4; member++) {
      crowd.all.push(yield* Crowd.openOne(stage, crowd, member))
    }
    const victims = crowd.all
    crowd.all = []
    const { pid } = yield* Crowd.hostOf(stage, victims.length)
    // The last one has nothing to do.
    const turns = yield* Crowd.each(
      victims.slice(0, -1),
      Effect.fnUntraced(function* (session) {
        const turn = yield* session.submit("[[slow:600:100]]")
        yield* untilText(turn)
        return turn
      })
    )
    const running = yield* Stage.look(stage)
    yield* Effect.sync(() => process.kill(pid!, signal))
    const [took, outcomes] = yield* millis(Crowd.each(turns, (turn) => turn.outcome))
    yield* demand(took < 8000, `the death of an agent was noticed after ${took} ms`)
    // One that is told to end, and one that a launcher has started, may still answer.
    let answered = 0
    for (const outcome of outcomes) {
      if (outcome._tag === "Completed") answered++
      else {
        yield* demand(
          outcome._tag === "Failed" && outcome.error.reason._tag === "ProcessExited",
          `a turn of a killed agent: ${describe(outcome)}`
        )
      }
    }
    const ends = yield* Effect.timeoutOption(Crowd.each(victims, endOf), "8 seconds")
    if (ends._tag === "None") return yield* new Stage.Violation({ message: "not all sessions had ended 8 s later" })
    const told = ends.value
    yield* demand(
      told.every((events) => events.length === 1 && events[0]!.reason === "agent_exited"),
      `the ends of its sessions: ${JSON.stringify(told.map((events) => events.map(({ reason }) => reason)))}`
    )
    const details = new Set(told.flat().map(({ detail }) => detail.replaceAll(/\s+/g, " ").slice(0, 80)))
    yield* demand(details.size === 1, `its sessions were told different things: ${Array.from(details).join(" / ")}`)
    const [goneMillis, next] = yield* millis(Crowd.openOne(stage, crowd, 0))
    crowd.all = [next]
    // The new one only starts when all of the group of the old one has ended.
    const old = (yield* Leftovers.processes(stage.owner)).filter(({ pid: id }) => running.some((one) => one.pid === id))
    yield* demand(
      old.length === 0,
      `left beside its successor: ${old.map(({ args, pid: id }) => `${id} ${args}`).join("; ")}`
    )
    yield* demand(next.pid !== pid, "the next session was put on the process that was killed")
    yield* speak(stage, next, "next")
    const host = yield* Crowd.hostOf(stage, 1)
    yield* demand(host.restarts > 0, "the host of the next session counts no restart")
    yield* next.close
    crowd.all = []
    yield* Crowd.shrunk(stage, 0, Duration.sum(Crowd.idleTime, Duration.seconds(8)))
    yield* nothingLeft(stage, "left after the last session")
    return {
      cell: `${seconds(took)}${answered === 0 ? "" : `, ${answered} still answered`}`,
      detail: `${victims.length} sessions, ${Crowd.kinds(running)}; told: ${Array.from(details).join("")}; the next open took ${seconds(goneMillis)}`
    }
  })
})

/** After its last session the process waits for another one, which gets it; then it ends in time. */
const idle: Crowd.Step = {
  name: "shared, idle",
  run: Effect.fnUntraced(function* (stage, crowd) {
    for (const session of crowd.all) yield* session.close
    crowd.all = yield* Crowd.openMany(stage, crowd, 3)
    yield* Crowd.each(crowd.all, (session, member) => speak(stage, session, `word of ${member}`))
    const { pid } = yield* Crowd.hostOf(stage, 3)
    yield* Crowd.each(crowd.all, (session) => session.close)
    crowd.all = []
    yield* Crowd.hostOf(stage, 0)
    const joined = yield* Crowd.openOne(stage, crowd, 0)
    yield* demand(joined.pid === pid, `within the idle time a session got process ${joined.pid} and not ${pid}`)
    yield* speak(stage, joined, "joined")
    yield* joined.close
    const { killGrace } = stage.sidecar.limits
    const allowed = Duration.sum(Crowd.idleTime, killGrace)
    const [took] = yield* millis(Crowd.shrunk(stage, 0, Duration.sum(allowed, Duration.millis(slack))))
    yield* nothingLeft(stage, `left ${Duration.toMillis(allowed) + slack} ms after the last session`)
    const free = stage.sidecar.describe.pipe(
      Effect.repeat({ until: ({ hosts }) => hosts.length === 0, schedule: Stage.often }),
      Effect.timeoutOption("2 seconds")
    )
    yield* demand((yield* free)._tag === "Some", "the sidecar still counts the host whose process is gone")
    return { cell: `gone after ${seconds(took)}`, detail: `idle time ${Duration.format(Crowd.idleTime)}` }
  })
}

const many = Crowd.size

/** The memory of all of an agent's processes for one session and for ten, sharing one process and not, after a turn each. */
const memory: Crowd.Step = {
  name: "shared, memory",
  run: Effect.fnUntraced(function* (stage) {
    const measured: Array<string> = []
    for (const share of [true, false]) {
      const sizes: Array<string> = []
      const sessions: Array<Session.Session> = []
      for (const count of [1, many]) {
        const added = yield* Crowd.each(Array.from({ length: count - sessions.length }), () =>
          Stage.open(stage, { share })
        )
        yield* Crowd.each(added, (session) => speak(stage, session, "warm"))
        sessions.push(...added)
        const all = yield* Stage.look(stage)
        sizes.push(`${(yield* Leftovers.memory(all)) ?? "unknown"} MiB in ${all.length}`)
      }
      measured.push(sizes.join(" to "))
      yield* Crowd.each(sessions, (session) => session.close)
      yield* Crowd.shrunk(stage, 0, "20 seconds")
    }
    return { cell: measured[0]!, detail: `1 and ${many} sessions; each in its own process: ${measured[1]}` }
  })
}

/** Nothing of the agent is left, wherever it went, and the events of all its sessions keep the contracts. */
const after: Crowd.Step = {
  name: "shared, afterwards",
  run: Effect.fnUntraced(function* (stage, crowd) {
    yield* stage.sidecar.dispose
    return yield* Ends.after.run(stage, { a: crowd.all[0]!, b: crowd.all[0]! })
  })
}

export const steps: ReadonlyArray<Crowd.Step> = [kill("SIGTERM"), kill("SIGKILL"), idle, memory, after]
