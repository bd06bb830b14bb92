// Brings an agent as far as a session, ends it again, and tells each step as it happens.
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { AcpTransport } from "../acp/AcpTransport.ts"
import * as AcpError from "../acp/AcpError.ts"
import * as AcpProtocol from "../acp/AcpProtocol.ts"
import * as AcpSchema from "../acp/AcpSchema.ts"
import * as Address from "../Address.ts"
import * as AgentHost from "../AgentHost.ts"
import * as AgentSession from "../AgentSession.ts"
import * as AgentLauncher from "../AgentLauncher.ts"
import * as AgentProfile from "../AgentProfile.ts"
import { redactor } from "../internal/redact.ts"
import * as Permission from "../Permission.ts"
import type * as SessionRouter from "../SessionRouter.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import * as Agents from "./agents.ts"
import * as Diagnosis from "./diagnosis.ts"
import * as Ending from "./ending.ts"
import { CommandFailure, type ExitCode, exitCode, fromError, oneLine } from "./failure.ts"
import * as Installation from "./installation.ts"
import * as Output from "./output.ts"
import * as Report from "./report.ts"
import { cleaned, namedArguments } from "./secrets.ts"
import { layerLauncher } from "./sidecar.ts"
import { makeSteps, makeTeller, type Steps, type Teller } from "./steps.ts"
import * as Tap from "./tap.ts"

export interface Options {
  readonly agent: AgentProfile.AgentProfile
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  readonly timeout: Duration.Duration | undefined
  readonly authenticate: string | undefined
  readonly prompt: string | undefined
  readonly isJson: boolean
}

interface Prompted {
  text: string
  updates: number
  firstUpdateAt: number | undefined
  permissionsRejected: number
}

const maxText = 2000

/** Where a session's updates go; questions are refused. */
const makeRoute = (): { readonly route: SessionRouter.Route; readonly prompted: Prompted } => {
  const prompted: Prompted = { text: "", updates: 0, firstUpdateAt: undefined, permissionsRejected: 0 }
  return {
    prompted,
    route: {
      onUpdate: (raw) => {
        prompted.updates++
        prompted.firstUpdateAt ??= performance.now()
        const update = AcpSchema.sessionUpdate(raw)
        if (update.sessionUpdate !== "agent_message_chunk" || !("content" in update)) return
        const { content } = update as { readonly content: AcpSchema.Acp.ContentBlock }
        if (content.type === "text") prompted.text = (prompted.text + content.text).slice(0, maxText)
      },
      onTooLarge: () => {},
      onPermission: ({ options }) =>
        Effect.sync(() => {
          prompted.permissionsRejected++
          const optionId = Permission.choose("reject", options)
          return optionId === null
            ? AcpProtocol.v1.permissionCancelled
            : { outcome: { outcome: "selected" as const, optionId } }
        }),
      flush: () => {}
    }
  }
}

/** One prompt to its end, for a report. */
const ask = Effect.fnUntraced(function* (
  host: AgentHost.AgentHost,
  agentSessionId: string,
  text: string,
  prompted: Prompted
) {
  prompted.updates = 0
  prompted.firstUpdateAt = undefined
  const started = performance.now()
  const { method } = AcpProtocol
  const answer = yield* host.connection
    .request(method.sessionPrompt, host.protocol.prompt(agentSessionId, [{ type: "text", text }]))
    .pipe(
      Effect.onInterrupt(() => {
        const cancel = host.protocol.cancel(agentSessionId)
        return Effect.ignore(host.connection.notify(cancel.method, cancel.params))
      })
    )
  const read = host.protocol.turnEnd(answer)
  if (Result.isFailure(read)) {
    return yield* new AcpError.InvalidResponse({ method: method.sessionPrompt, detail: host.redact(read.failure) })
  }
  return {
    stopReason: read.success.stopReason,
    text: prompted.text,
    firstUpdateMillis: prompted.firstUpdateAt === undefined ? null : prompted.firstUpdateAt - started,
    updates: prompted.updates,
    permissionsRejected: prompted.permissionsRejected
  }
})

const promptNote = ({ stopReason, text, updates }: NonNullable<Report.Report["prompt"]>): string =>
  `${oneLine(stopReason, 40)}, ${Report.count(updates, "update")}${text === "" ? ", no words" : `: ${oneLine(text, 200)}`}`

/** What an examination has found so far. */
interface Progress {
  transport: AcpTransport | undefined
  initialize: AcpSchema.Acp.InitializeResponse | undefined
  session: AcpSchema.Acp.NewSessionResponse | undefined
  prompt: Report.Report["prompt"]
  closing: Diagnosis.Finding | undefined
}

/** From spawn to session/close, each step told. */
const bring = Effect.fnUntraced(function* (
  options: Options,
  limits: SidecarLimits.SidecarLimits,
  budget: Duration.Duration,
  seen: Tap.Seen,
  steps: Steps,
  teller: Teller,
  found: Progress
): Effect.fn.Return<void, Diagnosis.Reason, AgentLauncher.AgentLauncher | Scope.Scope> {
  const launcher = yield* AgentLauncher.AgentLauncher
  const timed = <A, E, R>(work: Effect.Effect<A, E, R>) =>
    Effect.timeoutOrElse(work, {
      duration: budget,
      orElse: () => Effect.fail({ _tag: "TimedOut", millis: Duration.toMillis(budget) } as const)
    })
  const progress: AgentHost.Start = {
    get phase() {
      return steps.current() as AgentHost.Phase
    },
    set phase(phase) {
      steps.begin(phase)
    },
    connection: undefined
  }
  const { route, prompted } = makeRoute()
  const opening = Effect.gen(function* () {
    steps.begin("spawn")
    const host = yield* AgentHost.start(
      {
        address: { sidecarId: Address.SidecarId.make("sidecar-doctor") },
        profile: options.agent,
        cwd: options.cwd,
        env: [options.env],
        limits,
        emit: () => {}
      },
      progress
    ).pipe(
      Effect.provideService(AgentLauncher.AgentLauncher, {
        launch: (launch) =>
          Effect.gen(function* () {
            const transport = Tap.on(yield* launcher.launch(launch), seen, limits.maxLineBytes)
            found.transport = transport
            steps.finish("done")
            yield* steps.tell(`process ${transport.pid}`)
            return transport
          })
      })
    )
    steps.finish("done")
    found.initialize = host.initialize
    yield* steps.tell(Report.version(host.initialize))
    yield* teller.labelled("can do", Report.capabilities(host.initialize.agentCapabilities))
    yield* teller.labelled("sign-in", Report.authMethods(host.initialize))
    const session = yield* AgentSession.open(
      host,
      { how: { _tag: "New" }, cwd: options.cwd, authenticate: options.authenticate, route },
      progress
    )
    steps.finish("done")
    found.session = session.response
    yield* steps.tell()
    for (const [label, text] of Report.offers(session.response)) yield* teller.labelled(label, text)
    return { host, id: session.agentSessionId }
  })
  const { host, id } = yield* timed(opening)
  if (options.prompt !== undefined) {
    steps.begin("session/prompt")
    found.prompt = yield* timed(ask(host, id, options.prompt, prompted))
    steps.finish("done")
    yield* steps.tell(promptNote(found.prompt))
  }
  if (!host.protocol.canClose(host.initialize.agentCapabilities)) return
  steps.begin("session/close")
  const closed = yield* AgentSession.requestClose(host, id).pipe(
    Effect.timeoutOption(limits.closeTimeout),
    Effect.result
  )
  const isAnswered = Result.isSuccess(closed) && Option.isSome(closed.success)
  steps.finish(isAnswered ? "done" : Result.isSuccess(closed) ? "timed out" : "failed")
  yield* steps.tell()
  if (isAnswered) return
  const why = Result.isFailure(closed) ? oneLine(closed.failure.message, 200) : "it did not answer in time"
  found.closing = { what: `it offers session/close, and that failed: ${why}`, advice: "update it, or tell its authors" }
})

const signedOut = (options: Options, found: Progress, seen: Tap.Seen): Diagnosis.Finding | null => {
  const { signedIn } = seen
  if (signedIn?.kind !== "none" || found.session === undefined || found.prompt !== null) return null
  const label = signedIn.label === "" ? "" : ` (${oneLine(signedIn.label, 80)})`
  const authMethods = found.initialize?.authMethods ?? []
  return {
    what: `it opens sessions, but says that nobody is signed in${label}`,
    advice: `${Diagnosis.signIn({ profile: options.agent, authMethods })}; if it needs no sign-in, show it with --prompt TEXT`
  }
}

const unusedMethod = (options: Options, steps: Steps): ReadonlyArray<Diagnosis.Finding> =>
  options.authenticate === undefined || steps.phases.some(({ name }) => name === "authenticate")
    ? []
    : [{ what: "it did not ask for a sign-in, so --authenticate was not used", advice: "" }]

const examine = Effect.fnUntraced(function* (
  options: Options,
  limits: SidecarLimits.SidecarLimits,
  redact: (text: string) => string,
  teller: Teller,
  steps: Steps
): Effect.fn.Return<Report.Report, never, AgentLauncher.AgentLauncher | Scope.Scope> {
  const { agent } = options
  const [command] = agent.command
  const host = process.env
  const path = Agents.find(command, options.env["PATH"] ?? host["PATH"] ?? "") ?? null
  const given = Object.keys(options.env)
  const named = agent.passEnv.filter((name) => !given.includes(name))
  const passed = named.filter((name) => host[name] !== undefined)
  const unset = named.filter((name) => host[name] === undefined)
  const found: Progress = {
    transport: undefined,
    initialize: undefined,
    session: undefined,
    prompt: null,
    closing: undefined
  }
  const installed = agent === Agents.bundled ? Installation.of(agent, "").package : undefined
  // Of `npx my-agent` or `node agent.mjs`, the program's package is that of npm or Node, which would mislead.
  const nameOf = (line: AgentProfile.AgentProfile["command"]) => AgentProfile.make({ command: line }).name
  const isOwn = nameOf(agent.command) === nameOf([command])
  const pkg = installed ?? (path === null || !isOwn ? undefined : Installation.packageOf(path)) ?? null

  yield* teller.line(redact(`acp-sidecar doctor: ${oneLine(agent.name, 80)}`))
  yield* teller.labelled("command", oneLine([path ?? command, ...agent.command.slice(1)].join(" ")))
  yield* teller.labelled("package", pkg === null ? "" : oneLine(`${pkg.name} ${pkg.version}`, 120))
  yield* teller.labelled("folder", oneLine(options.cwd))
  yield* teller.labelled("it gets", [...passed, ...given].join(", "))
  yield* teller.labelled("unset here", unset.join(", "))

  const seen = Tap.make()
  const budget = options.timeout ?? limits.startTimeout
  const brought = yield* Effect.result(bring(options, limits, budget, seen, steps, teller, found))
  const reason = Result.isFailure(brought) ? brought.failure : undefined
  const phase = (steps.current() ?? "spawn") as Diagnosis.Phase
  steps.finish(reason?._tag === "TimedOut" ? "timed out" : "failed")
  yield* steps.tell()
  const phaseMillis = steps.phases.at(-1)?.millis ?? 0
  const { transport } = found
  // Before it is ended, since that makes some agents talk.
  const authMethods = found.initialize?.authMethods ?? []
  const facts: Diagnosis.Facts = {
    profile: agent,
    path,
    phase,
    phaseMillis,
    stderr: transport?.stderrTail() ?? "",
    bytes: seen.bytes,
    frames: seen.frames,
    noise: seen.noise,
    noiseSample: seen.noiseSample,
    malformed: seen.malformed,
    malformedSample: seen.malformedSample,
    authMethods,
    authenticate: options.authenticate
  }
  const grace = Duration.toMillis(limits.killGrace)
  let end: Ending.End | null = null
  if (transport !== undefined) {
    steps.begin("exit")
    end = yield* Ending.end(transport, limits.killGrace)
    steps.finish("done", end?.millis)
    if (end !== null) yield* steps.tell(Report.ending(end, grace))
  }
  const problem = reason === undefined ? signedOut(options, found, seen) : Diagnosis.explain(reason, facts)
  const code: ExitCode =
    problem === null ? exitCode.done : reason?._tag === "TimedOut" ? exitCode.timedOut : exitCode.failed
  const report: Report.Report = cleaned(
    {
      agent: agent.name,
      works: code === exitCode.done,
      exitCode: code,
      problem,
      findings: [
        ...unusedMethod(options, steps),
        ...Diagnosis.ofOutput(seen),
        ...(found.closing === undefined ? [] : [found.closing]),
        ...(end === null ? [] : Diagnosis.ofEnd(end, grace))
      ],
      command: agent.command,
      path,
      package: pkg,
      cwd: options.cwd,
      environment: { passed, unset, given },
      phases: steps.phases,
      initialize: found.initialize ?? null,
      session: found.session ?? null,
      prompt: found.prompt,
      stdout: {
        frames: seen.frames,
        noise: seen.noise,
        noiseSample: seen.noiseSample,
        malformed: seen.malformed,
        malformedSample: seen.malformedSample,
        tooLarge: seen.tooLarge,
        refused: [...seen.requests].filter((method) => method !== AcpProtocol.method.requestPermission)
      },
      stderr: transport?.stderrTail() ?? "",
      end,
      quirks: agent.quirks
    },
    redact
  )
  if (transport !== undefined) {
    const { frames, malformed, noise, refused } = report.stdout
    const asked = refused.length === 0 ? "" : `; it asked us for ${refused.map((name) => oneLine(name, 60)).join(", ")}`
    yield* teller.labelled(
      "stdout",
      `${Report.count(frames, "message")}, ${Report.count(noise, "other line")}, ${malformed} broken${asked}`
    )
    for (const line of Report.stderrLines(report.stderr)) yield* teller.labelled("stderr", line)
  }
  for (const quirk of report.quirks) yield* teller.labelled("known", quirk)
  for (const finding of report.findings) yield* teller.labelled("note", oneLine(Report.sentence(finding)))
  return report
})

const run = Effect.fnUntraced(function* (options: Options) {
  const limits = yield* SidecarLimits.SidecarLimits
  const env = AgentProfile.environment(options.agent, process.env, options.env)
  const redact = redactor(env, ...namedArguments(options.agent.command))
  const teller = makeTeller(options.isJson, redact)
  const steps = makeSteps(teller)
  // The process group is gone before the verdict.
  const report = yield* Effect.scoped(examine(options, limits, redact, teller, steps)).pipe(
    Effect.onInterrupt(() => Output.note(`cancelled in ${steps.current() ?? "between two steps"}`))
  )
  const verdict = oneLine(Report.verdict(report))
  yield* options.isJson
    ? Output.write(
        "out",
        Output.jsonLine(report, (whole) => whole)
      )
    : teller.line(Output.style(verdict, report.works ? "green" : "red", Output.canColor("out")))
  if (!report.works) return yield* new CommandFailure({ code: report.exitCode, message: options.isJson ? verdict : "" })
})

export const main = (options: Options) =>
  run(options).pipe(
    Effect.provide(layerLauncher),
    Effect.provide(SidecarLimits.layerFromEnv),
    Effect.provide(NodeServices.layer),
    Effect.mapError((error) => (error instanceof CommandFailure ? error : fromError(error)))
  )
