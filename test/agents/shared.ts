// The steps with ten sessions on one agent process: they stay ten conversations.
import { existsSync, readdirSync } from "node:fs"
import * as Path from "node:path"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as Session from "../../src/Session.ts"
import * as Crowd from "./crowd.ts"
import * as Leftovers from "./leftovers.ts"
import { seconds } from "./report.ts"
import * as Stage from "./stage.ts"
import { counted, type Found, millis, now, type StepError, words } from "./step.ts"

const { demand, describe, follow, run, speak, untilText } = Stage

interface Started {
  readonly found: Found
  /** `undefined` with an agent that can't carry them. */
  readonly crowd: Crowd.Crowd | undefined
  /** They could only be opened one after the other. */
  readonly isOneByOne: boolean
}

/** Opens all of them at once; with an agent that can't take that, one after the other, if it can take that. */
export const start = Effect.fnUntraced(function* (
  stage: Stage.Stage
): Effect.fn.Return<Started, StepError, Scope.Scope> {
  const crowd: Crowd.Crowd = { all: [], decide: () => Effect.succeed("reject") }
  let problem: string | undefined
  const attempt = yield* Scope.fork(yield* Effect.scope)
  const inOrder = Effect.gen(function* () {
    yield* Crowd.shrunk(stage, 0, "20 seconds")
    return yield* Effect.forEach(Array.from({ length: Crowd.size }), (_, member) => Crowd.openOne(stage, crowd, member))
  })
  const [took, opened] = yield* millis(
    Crowd.openMany(stage, crowd, Crowd.size).pipe(
      Scope.provide(attempt),
      Effect.catchTag("AgentStartFailed", (error) => {
        problem = error.message
        return Effect.andThen(Scope.close(attempt, Exit.void), inOrder)
      }),
      Effect.map((all) => ({ all, error: undefined })),
      Effect.catchTag("AgentStartFailed", (error) => Effect.succeed({ all: [], error }))
    )
  )
  if (opened.error !== undefined) {
    const detail = `opened at once: ${problem}; one after the other: ${opened.error.message}`
    return {
      crowd: undefined,
      isOneByOne: true,
      found: { cell: "can't share", detail: detail.replaceAll(/\s+/g, " "), cannot: true }
    }
  }
  const { all } = opened
  crowd.all = all
  const host = yield* Crowd.hostOf(stage, Crowd.size)
  const ids = new Set(all.map(({ agentSessionId }) => agentSessionId))
  yield* demand(ids.size === Crowd.size, `${Crowd.size} sessions have ${ids.size} agent session ids`)
  const running = yield* Stage.look(stage)
  const launched = Crowd.launched(running)
  yield* demand(
    launched.length === 1 && launched[0]!.pid === host.pid && all.every(({ pid }) => pid === host.pid),
    `${Crowd.size} sessions that share have the processes ${launched.map(({ args, pid }) => `${pid} ${args}`).join("; ")}`
  )
  const found: Found = {
    cell: problem === undefined ? `${seconds(took)}, ${counted(running.length, "process")}` : "one by one",
    detail: `${Crowd.size} sessions: ${Crowd.kinds(running)}${problem === undefined ? "" : `; opened at once: ${problem}`}`,
    cannot: problem !== undefined
  }
  return { crowd, isOneByOne: problem !== undefined, found }
})

/** All prompt at once, twice; each answer carries the word of its session and no other's. */
const answers: Crowd.Step = {
  name: "shared, words",
  run: Effect.fnUntraced(function* (stage, { all }) {
    const heard = stage.heard.length
    let together = true
    for (const round of [1, 2]) {
      // None is answered before all have come to the model.
      const here = new Set<number>()
      const everybody = yield* Deferred.make<void>()
      const { hold } = stage.gate
      stage.gate.hold = Effect.fnUntraced(function* (directive) {
        if (directive._tag !== "Say") return
        for (const speaker of Stage.speakers(directive.text)) here.add(speaker)
        if (here.size === all.length) yield* Deferred.succeed(everybody, undefined)
        yield* Effect.timeoutOption(Deferred.await(everybody), "30 seconds")
      })
      const prompts = Crowd.each(
        all,
        Effect.fnUntraced(function* (session, member) {
          const word = Stage.wordOf(member, round)
          const { outcome, text } = yield* run(stage, session, `[[say:${word}]]`, { wallTimeout: "2 minutes" })
          yield* demand(outcome._tag === "Completed", `the prompt of session ${member}: ${describe(outcome)}`)
          const said = Array.from(Stage.speakers(text))
          yield* demand(
            text.includes(word) && said.length === 1 && said[0] === member,
            `session ${member} got ${JSON.stringify(text.slice(0, 200))}`
          )
        })
      )
      yield* Effect.ensuring(
        prompts,
        Effect.sync(() => void (stage.gate.hold = hold))
      )
      together &&= yield* Deferred.isDone(everybody)
    }
    const mixed = stage.heard.slice(heard).filter(({ size }) => size > 1).length
    return {
      cell: `own words, ${together ? all.length : "not all"} at once${mixed === 0 ? "" : ", mixed"}`,
      detail: mixed === 0 ? "" : `the model was sent words of several sessions in ${counted(mixed, "request")}`,
      cannot: !together || mixed > 0
    }
  })
}

/** All ask at once; half are allowed, half rejected, and each command runs in the folder of its session. */
const permissions: Crowd.Step = {
  name: "shared, tools",
  run: Effect.fnUntraced(function* (stage, crowd) {
    const mark = (member: number) => `mark-${member}-of-it`
    const isAllowed = (member: number) => member % 2 === 0
    const asked = new Set<number>()
    const everybody = yield* Deferred.make<void>()
    const foreign: Array<string> = []
    crowd.decide = Effect.fnUntraced(function* (member, { toolCall }) {
      for (const [text, of] of JSON.stringify(toolCall).matchAll(/mark-(\d+)-of-it/g)) {
        if (Number(of) !== member) foreign.push(`session ${member} was asked about ${text}`)
      }
      asked.add(member)
      if (asked.size === crowd.all.length) yield* Deferred.succeed(everybody, undefined)
      // All questions are to be open at once, should this agent ask for all.
      yield* Effect.timeoutOption(Deferred.await(everybody), "10 seconds")
      return isAllowed(member) ? "allow" : "reject"
    })
    const ran = yield* Crowd.each(crowd.all, (session, member) =>
      run(stage, session, `[[tool:touch ${mark(member)}]]`, { wallTimeout: "1 minute" })
    )
    crowd.decide = () => Effect.succeed("reject")
    yield* demand(foreign.length === 0, foreign.join("; "))
    const ends = Array.from(new Set(ran.map(({ outcome }) => describe(outcome)))).join(" or ")
    const isIn = (folder: string, member: number) => existsSync(Path.join(folder, mark(member)))
    const done = crowd.all.flatMap((_, member) => (isIn(Crowd.placeOf(stage, member), member) ? [member] : []))
    const astray = crowd.all.flatMap((_, member) =>
      [stage.work, ...readdirSync(stage.work).map((name) => Path.join(stage.work, name))].flatMap((folder) =>
        folder !== Crowd.placeOf(stage, member) && isIn(folder, member) ? [`${mark(member)} is in ${folder}`] : []
      )
    )
    const where = astray.length === 0 ? "each in its own folder" : astray.join(", ")
    if (asked.size === 0) {
      return {
        cell: done.length === 0 ? "no tool" : "never asks",
        detail: `${ends}; ${done.length} ran, ${where}`,
        cannot: true
      }
    }
    yield* demand(
      done.every((member) => isAllowed(member) || !asked.has(member)),
      `the commands of sessions ${done.join(", ")} ran, and those of odd numbers were rejected`
    )
    const together = yield* Deferred.isDone(everybody)
    const ok = together && astray.length === 0 && done.length === crowd.all.length / 2
    return {
      cell: `${asked.size} asked${together ? " at once" : ""}, ${done.length} ran`,
      detail: `${ends}; ${where}`,
      cannot: !ok
    }
  })
}

const wholeText = (ran: Stage.Ran, count: number): boolean =>
  ran.outcome._tag === "Completed" && ran.text.replaceAll(/\s+/g, " ").includes(words(0, count))

/** Whether a turn said all of it, once and in order. */
const demandWhole = (who: string, ran: Stage.Ran, count: number) =>
  demand(
    wholeText(ran, count),
    `the turn of ${who}: ${describe(ran.outcome)}, it said ${JSON.stringify(ran.text.slice(0, 600))}`
  )

/** Begins a long turn, and waits until the agent has said something in it. */
const begin = Effect.fnUntraced(function* (stage: Stage.Stage, session: Session.Session, count: number) {
  const [first, from] = [stage.asked.length, yield* now]
  const turn = yield* session.submit(`[[slow:${count}:100]]`, { wallTimeout: "2 minutes" })
  const following = yield* Effect.forkScoped(follow(stage, turn, from, first), { startImmediately: true })
  yield* untilText(turn)
  return { turn, following }
})

/** A session is opened on the process while a turn of another one runs. */
export const join: Crowd.Step = {
  name: "shared, open",
  run: Effect.fnUntraced(function* (stage, crowd) {
    const turn = yield* crowd.all[0]!.submit("[[slow:6000:100]]", { idleTimeout: "20 seconds" })
    let said = ""
    yield* Effect.forkScoped(
      Stream.runForEach(turn.text, (text) => Effect.sync(() => void (said += text))),
      { startImmediately: true }
    )
    yield* untilText(turn)
    const opened = yield* Effect.result(millis(Crowd.openOne(stage, crowd, Crowd.size)))
    if (opened._tag === "Success") {
      yield* speak(stage, opened.success[1], "joined")
      yield* opened.success[1].close
    }
    const before = said.length
    const goesOn = yield* Stage.eventually(() => said.length > before, "30 seconds")
    const outcome = yield* turn.cancel
    if (opened._tag === "Failure") {
      return { cell: "not beside a turn", detail: opened.failure.message.replaceAll(/\s+/g, " "), cannot: true }
    }
    const took = seconds(opened.success[0])
    if (goesOn) return { cell: took, detail: "a turn of another session goes on" }
    return {
      cell: "breaks a turn",
      detail: `the turn of another session: ${describe(outcome)}; its last words: ${JSON.stringify(said.slice(-40))}`,
      cannot: true
    }
  })
}

/** Two turns are cancelled, one after the other, and all others go on to their end. */
const cancel: Crowd.Step = {
  name: "shared, cancel",
  run: Effect.fnUntraced(function* (stage, crowd) {
    const length = 60
    const cancelled = [3, 7]
    // These are to run until they are cancelled, however long the others take to begin.
    const begun = yield* Crowd.each(crowd.all, (session, member) =>
      begin(stage, session, cancelled.includes(member) ? 1000 : length)
    )
    const took: Array<number> = []
    const said = new Set<string>()
    for (const member of cancelled) {
      const [time, outcome] = yield* millis(begun[member]!.turn.cancel)
      if (outcome._tag !== "Cancelled") {
        return yield* new Stage.Violation({ message: `the outcome of a cancel is ${describe(outcome)}` })
      }
      took.push(time)
      said.add(
        `${outcome.agentReported ?? "no answer"}${outcome.escalation === "none" ? "" : `, ${outcome.escalation}`}`
      )
    }
    for (const [member, { following }] of begun.entries()) {
      const ran = yield* Fiber.join(following)
      if (!cancelled.includes(member)) yield* demandWhole(`session ${member}, which nobody cancelled,`, ran, length)
    }
    const states = yield* Effect.forEach(cancelled, (member) => crowd.all[member]!.describe)
    const again = states.filter(({ state }) => state !== "open").length
    yield* Crowd.restore(stage, crowd)
    for (const member of cancelled) yield* speak(stage, crowd.all[member]!, "afterwards")
    yield* Crowd.hostOf(stage, Crowd.size)
    return {
      cell: `${took.map(seconds).join(" and ")}, ${Array.from(said).join(" or ")}`,
      detail: `${Crowd.size - cancelled.length} others went on to their end${again === 0 ? "" : `, ${again} opened again`}`
    }
  })
}

/** One session is closed while another works; a new one in its place joins the same process. */
const closeOne: Crowd.Step = {
  name: "shared, close",
  run: Effect.fnUntraced(function* (stage, crowd) {
    const length = 60
    const last = Crowd.size - 1
    const { pid } = yield* Crowd.hostOf(stage, Crowd.size)
    const before = yield* Leftovers.processes(stage.owner)
    const { following } = yield* begin(stage, crowd.all[0]!, length)
    const own = yield* begin(stage, crowd.all[last]!, 600)
    const [took] = yield* millis(crowd.all[last]!.close)
    const outcome = yield* own.turn.outcome
    yield* demand(outcome._tag === "Cancelled" && outcome.by === "close", `the turn of it: ${describe(outcome)}`)
    yield* Crowd.hostOf(stage, Crowd.size - 1)
    const left = yield* Crowd.shrunk(stage, before.length - 1, "4 seconds")
    yield* demandWhole("session 0 beside it", yield* Fiber.join(following), length)
    const [openMillis, session] = yield* millis(Crowd.openOne(stage, crowd, last))
    crowd.all[last] = session
    yield* demand(session.pid === pid, `the next session is on process ${session.pid} and not on ${pid}`)
    yield* speak(stage, session, "next")
    const fewer = before.length - left.length
    const offers = crowd.all[0]!.initialize.agentCapabilities?.sessionCapabilities?.close != null
    return {
      cell: `${seconds(took)}, ${fewer === 0 ? "no process" : counted(fewer, "process")} less`,
      detail: `${offers ? "told by session/close" : "offers no session/close"}; the next open on it took ${seconds(openMillis)}`
    }
  })
}

/** An option of one session is changed: neither the others, nor a new one, are to notice. */
const settings: Crowd.Step = {
  name: "shared, options",
  run: Effect.fnUntraced(function* (stage, crowd) {
    const [a, b] = [crowd.all[0]!, crowd.all[1]!]
    const valuesOf = Effect.fnUntraced(function* (session: Session.Session) {
      return new Map((yield* session.configOptions).map(({ currentValue, id }) => [id, currentValue]))
    })
    const before = yield* valuesOf(b)
    const changed: Array<string> = []
    const refused: Array<string> = []
    for (const option of yield* a.configOptions) {
      if (option.type !== "select") continue
      const values = option.options.flatMap((one) => ("options" in one ? one.options : [one])).map(({ value }) => value)
      const other = values.find((value) => value !== option.currentValue)
      if (other === undefined) continue
      const set = yield* Effect.result(a.setConfigOption(option.id, other))
      if (set._tag === "Success") changed.push(option.id)
      else refused.push(option.id)
    }
    const mode = a.modes?.availableModes.find(({ id }) => id !== a.modes!.currentModeId)?.id
    const moded = mode === undefined ? undefined : yield* Effect.result(a.setMode(mode))
    yield* speak(stage, b, "beside")
    const beside = yield* valuesOf(b)
    const fresh = yield* Crowd.openOne(stage, crowd, Crowd.size)
    const inFresh = yield* valuesOf(fresh)
    const leaked = (now: ReadonlyMap<string, unknown>) => changed.filter((id) => now.get(id) !== before.get(id))
    const toBeside = leaked(beside)
    const toFresh = leaked(inFresh)
    const modeLeaks =
      moded?._tag === "Success" && fresh.modes !== null && fresh.modes.currentModeId !== b.modes?.currentModeId
    // The next steps want it as it was.
    yield* fresh.close
    yield* a.close
    crowd.all[0] = yield* Crowd.openOne(stage, crowd, 0)
    const told = [
      changed.length === 0 ? "no option to change" : `changed ${changed.join(", ")}`,
      ...(refused.length === 0 ? [] : [`refused ${refused.join(", ")}`]),
      ...(moded === undefined ? [] : [`mode ${mode} ${moded._tag === "Success" ? "set" : "refused"}`]),
      ...(toBeside.length === 0 ? [] : [`the session beside it has ${toBeside.join(", ")} too`]),
      ...(toFresh.length === 0 ? [] : [`a new session has ${toFresh.join(", ")} too`]),
      ...(modeLeaks ? ["a new session has its mode too"] : [])
    ].join("; ")
    if (changed.length === 0 && moded?._tag !== "Success") return { cell: "none", detail: told, cannot: true }
    const leaks = toBeside.length > 0 || toFresh.length > 0 || modeLeaks
    return {
      cell: leaks ? (toBeside.length > 0 ? "reach the others" : "reach new ones") : "stay apart",
      detail: told,
      cannot: leaks
    }
  })
}

export const steps: ReadonlyArray<Crowd.Step> = [answers, permissions, join, cancel, closeOne, settings]
