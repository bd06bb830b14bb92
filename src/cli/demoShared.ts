// The experiment of demo shared: many sessions in one agent process, prompted at once.
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import type * as AgentHosts from "../AgentHosts.ts"
import * as AgentProfile from "../AgentProfile.ts"
import * as NodeProcessTable from "../NodeProcessTable.ts"
import type * as Session from "../Session.ts"
import type * as Sidecar from "../Sidecar.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import * as Children from "./children.ts"
import * as Crowd from "./crowd.ts"
import * as DemoModel from "./demoModel.ts"
import * as DemoPlace from "./demoPlace.ts"
import { makeReporter, neverAsked, type Reporter } from "./demoExperiment.ts"
import { CommandFailure, exitCode, failed, fromError } from "./failure.ts"
import * as HostsTable from "./hostsTable.ts"
import * as Output from "./output.ts"
import type { ModelEvent } from "./ScriptedModel.ts"

export interface Options {
  readonly sessions: number
  readonly slow: Duration.Duration
  readonly agent: string
  readonly isJson: boolean
  readonly where: DemoPlace.Where
}

/** What is seen of the experiment, and what it comes to. */
interface Result {
  readonly turns: ReadonlyArray<Crowd.Turn>
  readonly hosts: ReadonlyArray<AgentHosts.HostInfo>
  readonly children: ReadonlyArray<Children.Child> | null
  readonly atOnce: number
  readonly verdict: Crowd.Verdict
}

/** Two digits, so that none is a part of another. */
const wordOf = (index: number): string => `answer-${`${index + 1}`.padStart(2, "0")}`

const sharing = (sessions: number): AgentProfile.Sharing =>
  // A limit that somebody has set holds, also when it makes the demo fail.
  AgentProfile.sharing({
    maxSessions: process.env[SidecarLimits.setting("maxSessionsPerHost")] === undefined ? sessions : null
  })

/** Longer than so many prompts need to get to the model, on a busy machine too. */
const patienceFor = (sessions: number): Duration.Duration => Duration.seconds(Math.max(10, 2 * sessions))

/**
 * Where prompts wait at the model until all of them are there: only then are any answered, so that they are at the model
 * at the same time or, when that takes too long, not.
 */
const makeGate = Effect.fnUntraced(function* (words: ReadonlyArray<string>, reporter: Reporter) {
  const patience = patienceFor(words.length)
  const here = new Set<string>()
  // How many there were when it opened.
  const opened = yield* Deferred.make<number>()
  const open = Effect.suspend(() => Deferred.succeed(opened, here.size))
  const arrive = ({ directive }: ModelEvent): Effect.Effect<void> =>
    Effect.gen(function* () {
      const word = "text" in directive ? words.find((one) => one === directive.text) : undefined
      if (word === undefined) return
      here.add(word)
      if (here.size === words.length && (yield* open)) {
        yield* reporter.event(`the model has all ${words.length} prompts at once`, {
          type: "model_requests",
          atOnce: words.length
        })
      }
      const waited = yield* Effect.timeoutOption(Deferred.await(opened), patience)
      if (waited._tag === "None") yield* open
    })
  /** Once all turns have ended: nobody comes any more. */
  const close = Effect.andThen(open, Deferred.await(opened))
  return { arrive, close }
})

/** What a session may get to hear before it is too much to look at. */
const maxHeard = 1024 * 1024

/** All that the agent says in a session until that ends, in a turn or not. */
const hear = (session: Session.Session): Effect.Effect<string> =>
  Stream.runFold(
    session.updates,
    () => "",
    (heard, event) => {
      if (event._tag !== "Update" || event.update.sessionUpdate !== "agent_message_chunk") return heard
      const { content } = event.update
      return content.type === "text" && heard.length < maxHeard ? heard + content.text : heard
    }
  )

const prompt = Effect.fnUntraced(function* (reporter: Reporter, session: Session.Session, index: number, text: string) {
  const from = yield* reporter.now
  const end = yield* session.prompt(text)
  const to = yield* reporter.now
  if (end._tag === "Cancelled") return yield* failed(`The prompt of session ${index + 1} was cancelled by ${end.by}.`)
  if (reporter.isJson || index === 0) {
    yield* reporter.event(
      `prompt ${index + 1} <- completed (${end.stopReason})`,
      {
        type: "prompt_completed",
        prompt: index + 1,
        stopReason: end.stopReason,
        tookMillis: Math.round(to - from)
      },
      to
    )
  }
  return { from, to }
})

const promptAll = Effect.fnUntraced(function* (
  reporter: Reporter,
  sessions: ReadonlyArray<Session.Session>,
  words: ReadonlyArray<string>,
  slow: Duration.Duration
) {
  const count = sessions.length
  // The first turn also loads and connects, which is not what this is about.
  yield* Effect.all(
    sessions.map((session) => session.prompt("[[say:ready]]")),
    { concurrency: "unbounded" }
  )
  const wait = Duration.toMillis(slow)
  yield* reporter.event(
    `${count} prompts -> sent (the model answers when it has all of them, number 1 only after ${wait / 1000} s)`,
    { type: "prompts_sent", prompts: count }
  )
  const [first, ...others] = sessions.map((session, index) =>
    prompt(reporter, session, index, index === 0 ? `[[wait:${wait}:${words[0]}]]` : `[[say:${words[index]}]]`)
  )
  const quick = Effect.all(others, { concurrency: "unbounded" }).pipe(
    Effect.tap((spans) =>
      reporter.isJson
        ? Effect.void
        : reporter.event(
            `${count === 2 ? "prompt 2" : `prompts 2 to ${count}`} <- completed`,
            {},
            Math.max(...spans.map(({ to }) => to))
          )
    )
  )
  const [span, spans] = yield* Effect.all([first!, quick], { concurrency: "unbounded" })
  return [span, ...spans]
})

const experiment = Effect.fnUntraced(function* (
  options: Options,
  sidecar: Sidecar.Sidecar["Service"]
): Effect.fn.Return<Result, CommandFailure, Scope.Scope> {
  const { agent, isJson, slow, where } = options
  const reporter = yield* makeReporter(isJson)
  const words = Array.from({ length: options.sessions }, (_, index) => wordOf(index))
  const gate = yield* makeGate(words, reporter)
  const { folder, lanes, profile } = yield* DemoModel.make(agent, gate.arrive)
  lanes.isLoud = true
  const sharer = { ...profile, share: sharing(options.sessions) }
  const open = Effect.gen(function* () {
    const vm = yield* sidecar.openVm({ root: folder })
    // One after the other: agents with a process a session, such as pi, may not start many at once in one home folder.
    return yield* Effect.forEach(words, () => vm.openSession({ agent: sharer }))
  })
  const sessions = yield* Effect.mapError(open, fromError)
  const pids = [...new Set(sessions.map(({ pid }) => pid))]
  const sidecarPids = yield* DemoPlace.pidsOf(where, pids)
  yield* isJson
    ? Output.json({
        type: "started",
        mode: "shared",
        agent: profile.name,
        sessions: sessions.length,
        pids,
        in: where,
        sidecarPids,
        slowMillis: Duration.toMillis(slow)
      })
    : Output.line(
        "out",
        `acp-sidecar demo: 1 VM, ${sessions.length} sessions, agent "${profile.name}" ` +
          `(${pids.length === 1 ? "pid" : "pids"} ${pids.join(", ")}), scripted model on loopback, ` +
          DemoPlace.told(where, sidecarPids, 1)
      )
  const hearing = yield* Effect.forEach(sessions, (session) => Effect.forkScoped(hear(session)))
  const spans = yield* promptAll(reporter, sessions, words, slow).pipe(
    Effect.mapError((error) => (error instanceof CommandFailure ? error : fromError(error)))
  )
  if (lanes.slow + lanes.fast === 0) return yield* neverAsked(profile)
  const { hosts } = yield* sidecar.describe
  const [sidecarPid] = sidecarPids ?? []
  const children = sidecarPid === undefined ? null : Children.list(sidecarPid)
  // What comes after a turn counts too, so they listen to the end.
  yield* Effect.forEach(sessions, (session) => session.close, { concurrency: "unbounded", discard: true })
  const heard = yield* Effect.forEach(hearing, (fiber) => Fiber.join(fiber))
  const turns = spans.map((span, index) => ({ span, word: words[index]!, heard: heard[index]! }))
  const atOnce = yield* gate.close
  const verdict = Crowd.judge({
    ids: sessions.map(({ agentSessionId }) => agentSessionId),
    hosts: hosts.length,
    processes: children?.length ?? null,
    turns,
    atOnce
  })
  return { turns, hosts, children, atOnce, verdict }
}, Effect.scoped)

const report = ({ atOnce, children, hosts, turns, verdict }: Result, isJson: boolean): Effect.Effect<void> => {
  const { isConcurrent, isShared, problems } = verdict
  const words = { sharing: isShared ? "SHARED" : "NOT SHARED", verdict: isConcurrent ? "CONCURRENT" : "SERIALIZED" }
  if (isJson) {
    return Effect.andThen(
      Output.json({ type: "hosts", hosts, processTable: children }),
      Output.json({ type: "verdict", mode: "shared", ...words, sessions: turns.length, atOnce, problems })
    )
  }
  const isColored = Output.canColor("out")
  const processes = HostsTable.plural(children?.length ?? hosts.length, "agent process", "agent processes")
  return Effect.forEach(
    [
      "",
      ...Crowd.draw(turns, Output.columns()),
      "",
      ...HostsTable.lines(hosts),
      HostsTable.confirmed(children, turns.length),
      ...problems.map((problem) => Output.style(problem, "red", isColored)),
      `verdict[shared]: ${turns.length} sessions in ${processes} -> ` +
        `${Output.style(words.sharing, isShared ? "green" : "red", isColored)} and ` +
        Output.style(words.verdict, isConcurrent ? "green" : "red", isColored)
    ],
    (text) => Output.line("out", text),
    { discard: true }
  )
}

/** Where the memory of the agent can't be read, all else is still shown. */
const processTable = Layer.catch(NodeProcessTable.layer, () => Layer.empty)

export const main = Effect.fnUntraced(function* (options: Options) {
  const result = yield* DemoPlace.withSidecars(options.where, 1, ([sidecar]) => experiment(options, sidecar!)).pipe(
    Effect.provide(processTable)
  )
  yield* report(result, options.isJson)
  if (result.verdict.problems.length > 0) return yield* new CommandFailure({ code: exitCode.failed, message: "" })
})
