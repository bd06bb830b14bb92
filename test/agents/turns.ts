// The steps about turns: side by side, with tools, cancelled, on a busy session, and with a model in trouble.
import { existsSync } from "node:fs"
import { join } from "node:path"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type * as Session from "../../src/Session.ts"
import type * as TurnOutcome from "../../src/TurnOutcome.ts"
import { seconds } from "./report.ts"
import * as Stage from "./stage.ts"
import { counted, type Found, millis, now, type Step, words } from "./step.ts"

const { demand, describe, follow, open, run, speak, untilText, usable } = Stage

/** B's quick turn is done while A's long one runs, and neither gets anything of the other. */
export const concurrent: Step = {
  name: "two sessions",
  run: Effect.fnUntraced(function* (stage, { a, b }) {
    yield* speak(stage, b, "warm")
    const alone = yield* speak(stage, b, "alone")
    const first = stage.asked.length
    const slow = yield* a.submit("[[slow:1200:100]]")
    const from = yield* now
    const following = yield* Effect.forkChild(follow(stage, slow, from, first), { startImmediately: true })
    yield* untilText(slow)
    const quick = yield* speak(stage, b, "quick")
    yield* demand((yield* a.describe).turns.length === 1, "the quick turn of B ended after the long one of A")
    yield* slow.cancel
    const long = yield* Fiber.join(following)
    const said = long.text.match(/tok\d+/g) ?? []
    yield* demand(said.join(" ") === words(0, said.length), `the long turn lost or mixed up text: ${long.text}`)
    const [aloneMillis, quickMillis] = [alone.to - alone.from, quick.to - quick.from]
    return {
      cell: seconds(quickMillis),
      detail: `alone ${seconds(aloneMillis)}, A had run for ${seconds(quick.to - from)}`
    }
  })
}

const asking = (ran: Stage.Ran) => ran.events.filter((event) => event._tag === "PermissionAsked")
const answered = (ran: Stage.Ran) => ran.events.filter((event) => event._tag === "PermissionAnswered")

export const tool = (decision: "allow" | "reject"): Step => ({
  name: `tool, ${decision}`,
  run: Effect.fnUntraced(function* (stage, sessions) {
    stage.decide = Effect.succeed(decision)
    const file = join(stage.work, `${decision}.txt`)
    const ran = yield* run(stage, sessions.a, `[[tool:touch ${file}]]`, { wallTimeout: "40 seconds" })
    stage.decide = Effect.succeed("reject")
    const questions = asking(ran)
    const kinds = questions.flatMap(({ options }) => options.map(({ kind }) => kind))
    for (const answer of answered(ran)) {
      yield* demand(answer.answeredBy === "handler", `the question was answered by ${answer.answeredBy}`)
      const question = questions.find(({ permissionId }) => permissionId === answer.permissionId)
      const chosen = question?.options.find(({ optionId }) => optionId === answer.optionId)
      yield* demand(
        chosen === undefined ? !kinds.some((kind) => kind.startsWith(decision)) : chosen.kind.startsWith(decision),
        `the answer was ${chosen?.kind ?? "cancelled"} of ${kinds.join(", ")}`
      )
    }
    const done = existsSync(file)
    const end = `${describe(ran.outcome)}${ran.text === "" ? "" : `, said ${JSON.stringify(ran.text.slice(0, 80))}`}`
    const detail = `${end}${kinds.length === 0 ? "" : `, offered ${kinds.join(", ")}`}`
    if (questions.length === 0) {
      return { cell: done ? "never asks" : "no tool", detail, cannot: true }
    }
    const asked = questions.length === 1 ? "asked" : `asked ${questions.length} times`
    return { cell: `${asked}, ${done ? "ran" : "did not run"}`, detail }
  })
})

/** A question that nobody answers is answered by the cancel. */
export const cancelQuestion: Step = {
  name: "cancel, asking",
  run: Effect.fnUntraced(function* (stage, sessions) {
    stage.decide = Effect.never
    const first = stage.asked.length
    const from = yield* now
    const turn = yield* sessions.a.submit(`[[tool:touch ${join(stage.work, "never.txt")}]]`, {
      wallTimeout: "20 seconds"
    })
    const following = yield* Effect.forkChild(follow(stage, turn, from, first), { startImmediately: true })
    const asked = yield* Effect.raceFirst(
      Effect.as(
        Effect.repeat(sessions.a.pendingPermissions, { until: (open) => open.length > 0, schedule: Stage.often }),
        true
      ),
      Effect.as(turn.outcome, false)
    )
    if (!asked) {
      const ran = yield* Fiber.join(following)
      return { cell: "never asks", detail: describe(ran.outcome), cannot: true }
    }
    const [took, outcome] = yield* millis(turn.cancel)
    const ran = yield* Fiber.join(following)
    stage.decide = Effect.succeed("reject")
    yield* demand(
      answered(ran).every(({ answeredBy, optionId }) => answeredBy === "cancel" && optionId === null),
      `the question was answered by ${answered(ran).map(({ answeredBy }) => answeredBy)}`
    )
    const found = yield* cancelled(stage, outcome, took)
    sessions.a = yield* usable(stage, sessions.a)
    yield* speak(stage, sessions.a, "afterwards")
    return found
  })
}

const cancelled = Effect.fnUntraced(function* (
  stage: Stage.Stage,
  outcome: TurnOutcome.TurnOutcome,
  took: number
): Effect.fn.Return<Found, Stage.Violation> {
  if (outcome._tag !== "Cancelled") {
    return yield* new Stage.Violation({ message: `the outcome of a cancel is ${describe(outcome)}` })
  }
  const grace = Duration.toMillis(stage.sidecar.limits.cancelGrace)
  yield* demand(took < grace + 1000, `a cancel took ${took} ms`)
  const escalation = outcome.escalation === "none" ? "" : `, ${outcome.escalation.replaceAll("_", " ")}`
  return { cell: `${seconds(took)}, ${outcome.agentReported ?? "no answer"}${escalation}`, detail: "" }
})

export const cancel: Step = {
  name: "cancel",
  run: Effect.fnUntraced(function* (stage, sessions) {
    const first = stage.asked.length
    const turn = yield* sessions.a.submit("[[slow:600:100]]")
    yield* untilText(turn)
    const [took, outcome] = yield* millis(turn.cancel)
    const found = yield* cancelled(stage, outcome, took)
    const isOver = () => stage.asked.slice(first).every(({ end }) => end !== undefined)
    const [stopMillis, stopped] = yield* millis(Stage.eventually(isOver, "3 seconds"))
    sessions.a = yield* usable(stage, sessions.a)
    yield* speak(stage, sessions.a, "afterwards")
    const model = stopped
      ? `the model's answer was given up within ${seconds(stopMillis)}`
      : "the model's answer went on"
    return { ...found, detail: model }
  })
}

/** In the tick of the prompt, and a moment later: some agents lose a cancel that comes before they have begun. */
export const atOnce: Step = {
  name: "cancel at once",
  run: Effect.fnUntraced(function* (stage, sessions) {
    const said = new Map<string, number>()
    let longest = 0
    for (let round = 0; round < 6; round++) {
      const turn = yield* sessions.a.submit("[[slow:600:100]]")
      if (round % 2 === 1) yield* Effect.sleep("1 millis")
      const [took, outcome] = yield* millis(turn.cancel)
      const { cell } = yield* cancelled(stage, outcome, took)
      const how = cell.replace(/^[^,]*, /, "")
      said.set(how, (said.get(how) ?? 0) + 1)
      longest = Math.max(longest, took)
      sessions.a = yield* usable(stage, sessions.a)
      yield* speak(stage, sessions.a, `afterwards ${round}`)
    }
    const detail = Array.from(said, ([how, count]) => `${count} of 6 ${how}`).join(", ")
    return { cell: `${seconds(longest)}, ${Array.from(said.keys()).join(" or ")}`, detail }
  })
}

export const busy: Step = {
  name: "busy",
  run: Effect.fnUntraced(function* (stage, sessions) {
    const { a } = sessions
    const slow = yield* a.submit("[[slow:10:100]]")
    const refused = yield* Effect.exit(a.submit("[[say:refused]]", { onBusy: "reject" }))
    yield* demand(refused._tag === "Failure", "a prompt with onBusy reject was accepted by a busy session")
    const queued = yield* run(stage, a, "[[say:queued]]")
    yield* demand((yield* slow.outcome)._tag === "Completed", `the first turn: ${describe(yield* slow.outcome)}`)
    yield* demand(
      queued.outcome._tag === "Completed" && queued.text.includes("queued") && !queued.text.includes("tok"),
      `the queued turn: ${describe(queued.outcome)}, it said ${JSON.stringify(queued.text.slice(0, 200))}`
    )
    const replaced = yield* a.submit("[[slow:100:100]]")
    yield* untilText(replaced)
    const next = yield* run(stage, a, "[[say:next]]", { onBusy: "replace" })
    const first = yield* replaced.outcome
    yield* demand(first._tag === "Cancelled" && first.by === "replaced", `the replaced turn: ${describe(first)}`)
    yield* demand(
      next.outcome._tag === "Completed" && next.text.includes("next") && !next.text.includes("tok"),
      `the turn in its place: ${describe(next.outcome)}, it said ${JSON.stringify(next.text.slice(0, 200))}`
    )
    return { cell: "all three", detail: `replaced within ${seconds(next.to - next.from)}` }
  })
}

/** What the agent itself does with a second prompt, which the sidecar sends only when it is told to. */
export const whileBusy: Step = {
  name: "second prompt",
  run: Effect.fnUntraced(function* (stage) {
    const vm = yield* stage.sidecar.openVm({ root: stage.work, limits: { maxPromptsPerSession: 2 } })
    const session = yield* open(stage, { vm, maxRunning: 2 })
    yield* speak(stage, session, "warm")
    const first = stage.asked.length
    const from = yield* now
    const slow = yield* session.submit("[[slow:80:100]]", { wallTimeout: "1 minute" })
    const following = yield* Effect.forkChild(follow(stage, slow, from, first), { startImmediately: true })
    yield* untilText(slow)
    const second = yield* run(stage, session, "[[say:second]]", { wallTimeout: "1 minute" })
    const one = yield* Fiber.join(following)
    yield* vm.close
    const askedAt = stage.asked.slice(first).find(({ directive }) => directive._tag === "Say")?.at
    const what =
      one.outcome._tag === "Failed" && one.outcome.error.reason._tag === "RequestError"
        ? "fails_first"
        : one.outcome._tag === "Completed" && one.outcome.stopReason === "cancelled"
          ? "cancels_first"
          : one.outcome._tag !== "Completed" || second.outcome._tag !== "Completed"
            ? "unknown"
            : askedAt !== undefined && askedAt < one.to
              ? "merges"
              : "queues"
    const known = stage.profile.whileBusy
    const ends = `first: ${describe(one.outcome)}, second: ${describe(second.outcome)}`
    return {
      cell: what.replaceAll("_", " "),
      detail: what === known ? ends : `${ends}; the profile says ${known.replaceAll("_", " ")}`
    }
  })
}

/** How a turn ends whose model does not answer as it should. */
export const trouble = (name: string, prompt: string, options: Session.SubmitOptions): Step => ({
  name,
  run: Effect.fnUntraced(function* (stage, sessions) {
    const ran = yield* run(stage, sessions.a, prompt, options)
    const took = seconds(ran.to - ran.from)
    sessions.a = yield* usable(stage, sessions.a)
    yield* speak(stage, sessions.a, "afterwards")
    const { outcome } = ran
    const said = ran.text === "" ? "no text" : `said ${JSON.stringify(ran.text.slice(0, 160))}`
    const end = `${describe(outcome)}, ${said}, ${counted(ran.requests.length, "request")}`
    if (outcome._tag !== "Failed")
      return { cell: `${took}, ${outcome._tag === "Completed" ? outcome.stopReason : "cancelled"}`, detail: end }
    const { reason } = outcome.error
    switch (reason._tag) {
      case "RequestError":
        return { cell: `${took}, error ${reason.code}`, detail: end }
      case "TurnTimedOut": {
        const how = reason.escalation === "none" ? "" : `, ${reason.escalation.replaceAll("_", " ")}`
        return { cell: `${reason.deadline} deadline, ${took}${how}`, detail: end }
      }
      default:
        return yield* new Stage.Violation({ message: `the turn failed: ${describe(outcome)}` })
    }
  })
})
