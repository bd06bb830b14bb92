// The steps about ends: the death of an agent, close, dispose, and what is left afterwards.
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Leftovers from "./leftovers.ts"
import { seconds } from "./report.ts"
import * as Stage from "./stage.ts"
import { counted, groupOf, millis, noneLeft, now, type Step, words } from "./step.ts"

const { demand, describe, follow, open, speak, untilText, usable } = Stage

/** Whoever kills an agent's process harms that session alone. */
export const kill: Step = {
  name: "kill",
  run: Effect.fnUntraced(function* (stage, sessions) {
    const killed = yield* open(stage)
    yield* speak(stage, killed, "alive")
    const beside = stage.asked.length
    const from = yield* now
    const other = yield* sessions.a.submit("[[slow:40:100]]")
    const following = yield* Effect.forkChild(follow(stage, other, from, beside), { startImmediately: true })
    const turn = yield* killed.submit("[[slow:600:100]]")
    yield* untilText(turn)
    const before = yield* groupOf(stage, killed.pid)
    yield* Effect.sync(() => process.kill(killed.pid!, "SIGKILL"))
    const [took, outcome] = yield* millis(turn.outcome)
    // A launcher is not the agent: the process that it started may still answer.
    const answered = outcome._tag === "Completed" ? `, it still answered ${outcome.stopReason}` : ""
    yield* demand(
      answered !== "" ||
        (outcome._tag === "Failed" &&
          outcome.error.reason._tag === "ProcessExited" &&
          outcome.error.reason.signal === "SIGKILL"),
      `the turn of a killed agent: ${describe(outcome)}`
    )
    yield* demand(took < 8000, `the death of an agent was noticed after ${took} ms`)
    const ended = yield* killed.describe.pipe(
      Effect.repeat({ until: ({ state }) => state === "ended", schedule: Stage.often }),
      Effect.timeoutOption("8 seconds")
    )
    yield* demand(ended._tag === "Some", "the session of a dead agent is still open after 8 s")
    const again = yield* Effect.match(killed.submit("[[say:no]]"), {
      onFailure: ({ _tag }) => _tag,
      onSuccess: () => "a turn"
    })
    yield* demand(again === "SessionUnusable", `a prompt to a dead session was answered with ${again}`)
    yield* killed.close
    yield* noneLeft(stage, killed.pid)
    const [openMillis, next] = yield* millis(open(stage))
    yield* speak(stage, next, "next")
    yield* next.close
    const long = yield* Fiber.join(following)
    const said = long.text.replaceAll(/\s+/g, " ")
    yield* demand(
      long.outcome._tag === "Completed" && said.includes(words(0, 40)),
      `the turn beside it: ${describe(long.outcome)}, it said ${JSON.stringify(said)}`
    )
    return {
      cell: `${seconds(took)}${answered}`,
      detail: `${counted(before.length, "process")} in its group, the next open took ${seconds(openMillis)}`
    }
  })
}

export const close: Step = {
  name: "close",
  run: Effect.fnUntraced(function* (stage, sessions) {
    const before = yield* groupOf(stage, sessions.b.pid)
    const [took] = yield* millis(sessions.b.close)
    yield* noneLeft(stage, sessions.b.pid)
    return { cell: seconds(took), detail: `${counted(before.length, "process")} in its group` }
  })
}

export const dispose: Step = {
  name: "dispose",
  run: Effect.fnUntraced(function* (stage, sessions) {
    const active = yield* usable(stage, sessions.a)
    yield* open(stage)
    const turn = yield* active.submit("[[slow:600:100]]")
    yield* untilText(turn)
    yield* Stage.look(stage)
    const [took] = yield* millis(stage.sidecar.dispose)
    const outcome = yield* turn.outcome
    yield* demand(outcome._tag === "Cancelled" && outcome.by === "dispose", `the active turn: ${describe(outcome)}`)
    const { cancelGrace, closeTimeout, killGrace } = stage.sidecar.limits
    const allowed = [cancelGrace, closeTimeout, killGrace].reduce((sum, time) => sum + Duration.toMillis(time), 0)
    yield* demand(took < allowed + 1500, `dispose took ${took} ms`)
    return { cell: seconds(took), detail: "with a turn under way, and a second session" }
  })
}

/** Nothing of the agent is left, wherever it went, and the events of all its sessions keep the contracts. */
export const after: Step = {
  name: "afterwards",
  run: Effect.fnUntraced(function* (stage) {
    const left = yield* Leftovers.processes(stage.owner)
    yield* demand(left.length === 0, `still running: ${left.map(({ args, pid }) => `${pid} ${args}`).join("; ")}`)
    const open = yield* Leftovers.stillOpen(stage.ports)
    yield* demand(open.length === 0, `ports still open: ${open.join(", ")}`)
    for (const reader of stage.readers) yield* Fiber.join(reader)
    yield* demand(stage.broken.length === 0, stage.broken.join("; "))
    const { afterTurn, outside, unrecognized } = stage.kinds
    const shown = Object.entries({ "after a turn": afterTurn, "outside turns": outside, unknown: unrecognized })
      .filter(([, counts]) => Object.keys(counts).length > 0)
      .map(
        ([when, counts]) =>
          `${when}: ${Object.entries(counts)
            .map(([kind, count]) => `${count} ${kind}`)
            .join(", ")}`
      )
    const { early, late, noise } = stage.odd
    const odd = Object.entries({ noise, late, early }).filter(([, count]) => count > 0)
    const ports = stage.ports.size === 0 ? [] : [`listened on ${counted(stage.ports.size, "port")}`]
    return {
      cell: "nothing left",
      detail: [...ports, ...shown, ...odd.map(([word, count]) => `${count} ${word}`)].join("; ")
    }
  })
}
