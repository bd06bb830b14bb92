// The experiment of the demo: a slow turn, one second later a fast one, and what came of it.
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { AgentProfile } from "../AgentProfile.ts"
import type * as Session from "../Session.ts"
import * as Sidecar from "../Sidecar.ts"
import * as Chart from "./chart.ts"
import * as DemoModel from "./demoModel.ts"
import { CommandFailure, exitCode, failed, fromError } from "./failure.ts"
import * as Output from "./output.ts"
import { withSidecar } from "./sidecar.ts"

export type Mode = "sessions" | "vms"

export interface Options {
  readonly mode: Mode
  readonly slow: Duration.Duration
  readonly agent: string
  readonly isJson: boolean
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
  options: Options
): Effect.fn.Return<Chart.Verdict, CommandFailure, Sidecar.Sidecar | Scope.Scope> {
  const reporter = yield* makeReporter(options.isJson)
  const { folder, lanes, profile } = yield* DemoModel.make(options.agent, ({ lane }) =>
    reporter.event(`model request received (${lane} lane)`, { type: "model_request", lane })
  )
  const [a, b, vmCount] = yield* open(options.mode, profile, folder).pipe(Effect.mapError(fromError))
  const pids = [a.pid, b.pid]
  const layout = vmCount === 1 ? "1 VM, 2 sessions" : "2 VMs, 1 session each"
  yield* options.isJson
    ? Output.json({
        type: "started",
        mode: options.mode,
        agent: profile.name,
        pids,
        slowMillis: Duration.toMillis(options.slow)
      })
    : Output.line(
        "out",
        `acp-sidecar demo: ${layout}, agent "${profile.name}" (pids ${pids.join(", ")}), scripted model on loopback`
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
    return Chart.judge({ a: spanA, b: spanB, aloneMillis })
  })
  return yield* measured.pipe(Effect.mapError((error) => (error instanceof CommandFailure ? error : fromError(error))))
}, Effect.scoped)

export const neverAsked = (profile: AgentProfile) =>
  failed(
    `The agent "${profile.name}" ended its turns without asking the scripted model; ` +
      "the demo needs an agent that asks the OpenAI-compatible model at OPENAI_BASE_URL."
  )

const open = Effect.fnUntraced(function* (mode: Mode, agent: AgentProfile, folder: string) {
  const sidecar = yield* Sidecar.Sidecar
  const first = yield* sidecar.openVm({ root: folder })
  const second = mode === "vms" ? yield* sidecar.openVm({ root: folder }) : first
  const [a, b] = yield* Effect.all([first.openSession({ agent }), second.openSession({ agent })], {
    concurrency: "unbounded"
  })
  return [a, b, first === second ? 1 : 2] as const
})

const report = (verdict: Chart.Verdict, mode: Mode, isJson: boolean): Effect.Effect<void> => {
  const { a, aMillis, aloneMillis, b, bMillis, ratio, verdict: word } = verdict
  if (isJson) {
    const round = (span: Chart.Span) => ({ fromMillis: Math.round(span.from), toMillis: Math.round(span.to) })
    return Output.json({
      type: "verdict",
      mode,
      verdict: word,
      a: { ...round(a), tookMillis: Math.round(aMillis) },
      b: { ...round(b), tookMillis: Math.round(bMillis), aloneMillis: Math.round(aloneMillis) },
      ratio: Math.round(ratio * 100) / 100
    })
  }
  const isColored = Output.canColor("out")
  return Effect.forEach(
    [
      "",
      ...Chart.draw(verdict, Output.columns()),
      `verdict[${mode}]: prompt B took ${Chart.seconds(bMillis)} s -> ` +
        Output.style(word, word === "CONCURRENT" ? "green" : "red", isColored)
    ],
    (text) => Output.line("out", text),
    { discard: true }
  )
}

export const main = Effect.fnUntraced(function* (options: Options) {
  const verdict = yield* withSidecar(experiment(options))
  yield* report(verdict, options.mode, options.isJson)
  if (verdict.verdict === "SERIALIZED") return yield* new CommandFailure({ code: exitCode.failed, message: "" })
})
