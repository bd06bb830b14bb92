// The experiment of the demo: a slow turn, one second later a fast one, and what came of it.
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { AgentProfile } from "../AgentProfile.ts"
import type * as Session from "../Session.ts"
import type * as Sidecar from "../Sidecar.ts"
import * as Chart from "./chart.ts"
import * as Children from "./children.ts"
import * as DemoModel from "./demoModel.ts"
import * as DemoPlace from "./demoPlace.ts"
import { CommandFailure, exitCode, failed, fromError } from "./failure.ts"
import * as Output from "./output.ts"

export type Mode = "sessions" | "vms" | "sidecars"

export interface Options {
  readonly mode: Mode
  readonly slow: Duration.Duration
  readonly agent: string
  readonly isJson: boolean
  readonly where: DemoPlace.Where
}

type Sidecars = ReadonlyArray<Sidecar.Sidecar["Service"]>

/** What came of it. `isIndependent`: whether the end of A's sidecar left B alone, where they have one each. */
interface Result {
  readonly verdict: Chart.Verdict
  readonly isIndependent: boolean | undefined
}

const layouts: Readonly<Record<Mode, string>> = {
  sessions: "1 VM, 2 sessions",
  vms: "2 VMs, 1 session each",
  sidecars: "2 sidecars, 1 session each"
}

/** B is sent this long after A. */
const headStart = Duration.seconds(1)

/** What happens in the demo, told as it happens. */
export interface Reporter {
  readonly isJson: boolean
  /** Milliseconds since the beginning of the demo. */
  readonly now: Effect.Effect<number>
  readonly event: (text: string, fields: Readonly<Record<string, unknown>>, at?: number) => Effect.Effect<void>
}

export const makeReporter = Effect.fnUntraced(function* (isJson: boolean): Effect.fn.Return<Reporter> {
  const started = yield* Clock.currentTimeNanos
  const now = Effect.map(Clock.currentTimeNanos, (nanos) => Number(nanos - started) / 1e6)
  return {
    isJson,
    now,
    event: (text, fields, given) =>
      Effect.flatMap(given === undefined ? now : Effect.succeed(given), (at) =>
        isJson
          ? Output.json({ ...fields, atMillis: Math.round(at) })
          : Output.line("out", `[${Chart.seconds(at).padStart(5)} s] ${text}`)
      )
  }
})

/** One prompt from its submission to its end. */
const turn = Effect.fnUntraced(function* (
  reporter: Reporter,
  session: Session.Session,
  options: {
    readonly label: string
    readonly prompt: string
    readonly about?: string | undefined
    readonly sent?: Deferred.Deferred<void> | undefined
    readonly isQuiet?: boolean | undefined
  }
) {
  const { label } = options
  const from = yield* reporter.now
  const running = yield* session.submit(options.prompt)
  const told = running.dispatched.pipe(
    Effect.andThen(
      options.isQuiet === true
        ? Effect.void
        : reporter.event(`prompt ${label} -> sent (${options.about})`, { type: "prompt_sent", prompt: label })
    ),
    Effect.andThen(options.sent === undefined ? Effect.void : Deferred.succeed(options.sent, undefined))
  )
  const [outcome, to] = yield* Effect.raceFirst(
    Effect.andThen(told, Effect.never),
    Effect.flatMap(running.await, (end) => Effect.map(reporter.now, (at) => [end, at] as const))
  )
  if (outcome._tag === "Cancelled") return yield* failed(`Prompt ${label} was cancelled by ${outcome.by}.`)
  if (options.isQuiet !== true) {
    yield* reporter.event(
      `prompt ${label} <- completed (${outcome.stopReason})`,
      { type: "prompt_completed", prompt: label, stopReason: outcome.stopReason, tookMillis: Math.round(to - from) },
      to
    )
  }
  return { from, to } satisfies Chart.Span
})

const experiment = Effect.fnUntraced(function* (
  options: Options,
  sidecars: Sidecars
): Effect.fn.Return<Result, CommandFailure, Scope.Scope> {
  const { mode, where } = options
  const reporter = yield* makeReporter(options.isJson)
  const { folder, lanes, profile } = yield* DemoModel.make(options.agent, ({ lane }) =>
    reporter.event(`model request received (${lane} lane)`, { type: "model_request", lane })
  )
  const [a, b] = yield* open(mode, sidecars, profile, folder).pipe(Effect.mapError(fromError))
  const pids = [a.pid, b.pid]
  const sidecarPids = yield* DemoPlace.pidsOf(where, pids)
  yield* options.isJson
    ? Output.json({
        type: "started",
        mode,
        agent: profile.name,
        pids,
        in: where,
        sidecarPids,
        slowMillis: Duration.toMillis(options.slow)
      })
    : Output.line(
        "out",
        `acp-sidecar demo: ${layouts[mode]}, agent "${profile.name}" (pids ${pids.join(", ")}), ` +
          `scripted model on loopback, ${DemoPlace.told(where, sidecarPids, sidecars.length)}`
      )

  const fast = "[[say:fast answer]]"
  const slowMillis = Duration.toMillis(options.slow)
  const measured = Effect.gen(function* () {
    // The first turn of a process also loads and connects, so the second one is what B takes alone.
    yield* turn(reporter, b, { label: "B", prompt: fast, isQuiet: true })
    const alone = yield* turn(reporter, b, { label: "B", prompt: fast, isQuiet: true })
    const aloneMillis = alone.to - alone.from
    if (lanes.fast === 0) return yield* neverAsked(profile)
    yield* reporter.event(`prompt B alone <- completed in ${Chart.seconds(aloneMillis)} s`, {
      type: "alone",
      prompt: "B",
      tookMillis: Math.round(aloneMillis)
    })
    lanes.isLoud = true
    const sent = yield* Deferred.make<void>()
    const [spanA, spanB] = yield* Effect.all(
      [
        turn(reporter, a, {
          label: "A",
          prompt: `[[wait:${slowMillis}:slow answer]]`,
          about: `slow turn: the model waits ${slowMillis / 1000} s`,
          sent
        }),
        Deferred.await(sent).pipe(
          Effect.andThen(Effect.sleep(headStart)),
          Effect.andThen(turn(reporter, b, { label: "B", prompt: fast, about: "the model answers at once" }))
        )
      ],
      { concurrency: "unbounded" }
    )
    if (lanes.slow === 0 || spanA.to - spanA.from < slowMillis / 2) return yield* neverAsked(profile)
    const verdict = Chart.judge({ a: spanA, b: spanB, aloneMillis })
    lanes.isLoud = false
    const isIndependent = mode === "sidecars" ? yield* outlive(reporter, sidecars, b, sidecarPids?.[0]) : undefined
    return { verdict, isIndependent }
  })
  return yield* measured.pipe(Effect.mapError((error) => (error instanceof CommandFailure ? error : fromError(error))))
}, Effect.scoped)

export const neverAsked = (profile: AgentProfile) =>
  failed(
    `The agent "${profile.name}" ended its turns without asking the scripted model; ` +
      "the demo needs an agent that asks the OpenAI-compatible model at OPENAI_BASE_URL."
  )

const open = Effect.fnUntraced(function* (mode: Mode, sidecars: Sidecars, agent: AgentProfile, folder: string) {
  const [sidecar, other = sidecar] = sidecars
  const first = yield* sidecar!.openVm({ root: folder })
  const second = mode === "sessions" ? first : yield* other!.openVm({ root: folder })
  return yield* Effect.all([first.openSession({ agent }), second.openSession({ agent })], {
    concurrency: "unbounded"
  })
})

/** B has a turn under way while the sidecar of A ends, which may take its grace periods, and another one after that. */
const outlive = Effect.fnUntraced(function* (
  reporter: Reporter,
  [first, second]: Sidecars,
  b: Session.Session,
  pidOfA: number | undefined
) {
  const running = yield* b.submit(`[[wait:3000:still here]]`)
  yield* running.dispatched
  yield* first!.dispose
  const isRunning = (yield* b.describe).turns.some(({ turnId }) => turnId === running.id)
  yield* reporter.event("sidecar of A <- disposed, while a prompt of B runs", { type: "disposed", sidecar: "A" })
  const meanwhile = yield* running.outcome
  const after = yield* b.prompt("[[say:still here]]")
  yield* reporter.event("sidecar of B <- both that prompt and another one completed", { type: "alive", sidecar: "B" })
  const states = [(yield* first!.describe).state, (yield* second!.describe).state]
  const isGone = pidOfA === undefined || pidOfA === process.pid || !Children.isRunning(pidOfA)
  return (
    isRunning &&
    isGone &&
    meanwhile._tag === "Completed" &&
    after._tag === "Completed" &&
    states.join() === "disposed,ready"
  )
})

const report = ({ isIndependent, verdict }: Result, mode: Mode, isJson: boolean): Effect.Effect<void> => {
  const { a, aMillis, aloneMillis, b, bMillis, ratio, verdict: word } = verdict
  if (isJson) {
    const round = (span: Chart.Span) => ({ fromMillis: Math.round(span.from), toMillis: Math.round(span.to) })
    return Output.json({
      type: "verdict",
      mode,
      verdict: word,
      a: { ...round(a), tookMillis: Math.round(aMillis) },
      b: { ...round(b), tookMillis: Math.round(bMillis), aloneMillis: Math.round(aloneMillis) },
      ratio: Math.round(ratio * 100) / 100,
      ...(isIndependent === undefined ? {} : { independent: isIndependent })
    })
  }
  const isColored = Output.canColor("out")
  return Effect.forEach(
    [
      "",
      ...Chart.draw(verdict, Output.columns()),
      `verdict[${mode}]: prompt B took ${Chart.seconds(bMillis)} s -> ` +
        Output.style(word, word === "CONCURRENT" ? "green" : "red", isColored) +
        (isIndependent === undefined
          ? ""
          : ` and ${isIndependent ? Output.style("INDEPENDENT", "green", isColored) : Output.style("NOT INDEPENDENT", "red", isColored)}`)
    ],
    (text) => Output.line("out", text),
    { discard: true }
  )
}

export const main = Effect.fnUntraced(function* (options: Options) {
  const { isJson, mode, where } = options
  const count = mode === "sidecars" ? 2 : 1
  const result = yield* DemoPlace.withSidecars(where, count, (sidecars) => experiment(options, sidecars))
  yield* report(result, mode, isJson)
  if (result.verdict.verdict === "SERIALIZED" || result.isIndependent === false) {
    return yield* new CommandFailure({ code: exitCode.failed, message: "" })
  }
})
