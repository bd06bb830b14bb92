/**
 * What an agent offers, for a settings screen or a model picker: models, modes, commands, its sessions, and whether it
 * works at all. An app asks with `Vm.probe`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Scope from "effect/Scope"
import type { Acp } from "./acp/AcpSchema.ts"
import * as Address from "./Address.ts"
import type * as AgentHosts from "./AgentHosts.ts"
import type * as AgentProfile from "./AgentProfile.ts"
import type * as AgentSession from "./AgentSession.ts"
import * as Probing from "./internal/probing.ts"
import * as Time from "./internal/time.ts"
import * as LaunchIdentity from "./LaunchIdentity.ts"
import * as LimitUsage from "./LimitUsage.ts"
import * as SidecarError from "./SidecarError.ts"
import * as SidecarLimits from "./SidecarLimits.ts"

/**
 * What is asked for beside the diagnosis, which is always given. `settings`: models, modes and options, for which a
 * session is opened and closed again. `commands`: the same, and the slash commands, which agents tell some time after that,
 * or never. `sessions`: those that the agent has had in the folder.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Want = "settings" | "commands" | "sessions"

/**
 * What is probed, and how. `agent`, `cwd` (the Vm's root unless given), `env` and `sessionEnv` are those that a session
 * would be opened with. `want` is `["settings"]` unless given; with none, only the process is started. `timeout` is how
 * long this caller waits, the limit `probeTimeout` unless given. `commandsTimeout` is how long the agent may take to tell
 * its commands once its session is open, 2 seconds unless given. With `refresh` it is asked, whatever is remembered.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly agent: AgentProfile.AgentProfile
  readonly cwd?: string | undefined
  readonly env?: Readonly<Record<string, string>> | undefined
  readonly sessionEnv?: ReadonlyArray<string> | undefined
  readonly want?: ReadonlyArray<Want> | undefined
  readonly timeout?: Duration.Input | undefined
  readonly commandsTimeout?: Duration.Input | undefined
  readonly refresh?: boolean | undefined
}

/**
 * A model that a session of the agent can have.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Model {
  readonly id: string
  readonly name: string
  readonly description: string | null
}

/**
 * The models of an agent, and the one that a new session has. `configId` is the option to choose another one with, see
 * `Session.setConfigOption`; `null` for an agent that tells its models in the older way, which has no such option.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Models {
  readonly current: string | null
  readonly available: ReadonlyArray<Model>
  readonly configId: string | null
}

/**
 * How far a probe has come: it waits for `room` (its place, or the end of a process that must be gone first), or the agent
 * is being started or asked.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Phase = ProbeTimedOut["phase"]

/**
 * Who the agent is and how it is. `signInNeeded` is whether it wants its user to sign in first, by one of `authMethods`;
 * `null` when nothing was asked that would tell. `wasRunning`: it was not started for this. `tookMillis` has each phase
 * that it went through. `problems` are answers that could not be used, beside which the rest is good. `stderrTail` is the
 * end of what the process wrote there, without secrets.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Diagnosis {
  readonly agentInfo: Acp.Implementation | null
  readonly protocolVersion: number
  readonly capabilities: Acp.AgentCapabilities
  readonly authMethods: ReadonlyArray<{
    readonly id: string
    readonly name: string
    readonly description: string | null
  }>
  readonly signInNeeded: boolean | null
  readonly pid: number | null
  readonly wasRunning: boolean
  readonly tookMillis: Readonly<Partial<Record<Phase, number>>>
  readonly problems: ReadonlyArray<{ readonly method: string; readonly message: string }>
  readonly stderrTail: string
}

/**
 * What a probe found at the time `at`, in milliseconds. `models` and `modes` are `null` when the agent has none or they
 * were not asked for, `commands` when none came in time (an empty list means that the agent has none), and `sessions` when
 * the agent can't list them.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Findings {
  readonly agent: string
  readonly at: number
  readonly models: Models | null
  readonly modes: Acp.SessionModeState | null
  readonly configOptions: ReadonlyArray<Acp.SessionConfigOption>
  readonly commands: ReadonlyArray<Acp.AvailableCommand> | null
  readonly sessions: AgentSession.Listed | null
  readonly diagnosis: Diagnosis
}

const PhaseSchema = Schema.Literals([
  "room",
  ...SidecarError.AgentStartFailed.fields.phase.literals,
  "session/list",
  "commands"
])

/**
 * The time that this caller had for a probe is up. Others that wait for the same go on; when nobody does, all of it is
 * given back, and its process is stopped unless somebody else has it. `phase` says what was waited for.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class ProbeTimedOut extends Schema.TaggedError<ProbeTimedOut>()("ProbeTimedOut", {
  address: Address.Address,
  agent: Schema.String,
  phase: PhaseSchema,
  afterMillis: Schema.Finite,
  stderrTail: Schema.String
}) {
  override get message(): string {
    const wrote = this.stderrTail.trim()
    return (
      `${Address.format(this.address)}: the probe of "${this.agent}" had no result within ${this.afterMillis} ms, in phase ` +
      `${this.phase}${wrote === "" ? "" : `; it last wrote: ${wrote.slice(-400)}`}; give it a longer timeout, or raise ` +
      `${SidecarLimits.setting("probeTimeout")}, if the agent is only slow`
    )
  }
}

/**
 * The agent could not be started or asked. `phase` says how far it came; `reason` says why, with evidence. Nothing of the
 * probe is left, and nothing is remembered.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class ProbeFailed extends Schema.TaggedError<ProbeFailed>()("ProbeFailed", {
  address: Address.Address,
  agent: Schema.String,
  phase: PhaseSchema,
  reason: SidecarError.AgentStartFailed.fields.reason
}) {
  override get message(): string {
    const { address, agent, phase, reason } = this
    return `${Address.format(address)}: the probe of "${agent}" failed in phase ${phase}: ${reason.message}`
  }
}

/**
 * Why a probe gave no result. Nothing of it is left.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type ProbeError =
  | ProbeFailed
  | ProbeTimedOut
  | SidecarError.LimitExceeded
  | SidecarError.InvalidInput
  | SidecarError.Disposed

/**
 * The room that all probes of a sidecar have, so that they take none from openings and prompts.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Room {
  readonly usage: LimitUsage.LimitUsage
  /** @internal Probes that have their result, and give back what they took. */
  readonly leaving: Set<Seat>
}

/** The place of one probe; resolves when it is free. */
type Seat = Deferred.Deferred<void>

/**
 * The room of a sidecar, counted by `usage`.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const makeRoom = (usage: LimitUsage.LimitUsage): Room => ({ usage, leaving: new Set() })

/**
 * What the probes of a Vm need. `env` is the Vm's.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Context {
  readonly address: Address.Address
  readonly limits: SidecarLimits.SidecarLimits
  readonly hosts: AgentHosts.AgentHosts
  readonly room: Room
  readonly root: string
  readonly env: Readonly<Record<string, string>> | undefined
}

/** One start and its questions, for all that asked the same at the same time. */
interface Flight {
  readonly key: string
  readonly agent: string
  readonly result: Deferred.Deferred<Findings, Exclude<ProbeError, ProbeTimedOut>>
  readonly progress: Probing.Progress
  waiting: number
  isTimedOut: boolean
  seat: Seat | undefined
  fiber: Fiber.Fiber<void> | undefined
}

/** Findings that are remembered. */
const maxRemembered = 64

/**
 * The probes of a Vm, which end with the current scope. See `Vm.probe`.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = Effect.fnUntraced(function* (
  context: Context
): Effect.fn.Return<(options: Options) => Effect.Effect<Findings, ProbeError>, never, Scope.Scope> {
  const { address, hosts, limits, room } = context
  const clock = yield* Clock.Clock
  const scope = yield* Scope.fork(yield* Effect.scope, "parallel")
  const flights = new Map<string, Flight>()
  const remembered = new Map<string, Findings>()
  const disposed = new SidecarError.Disposed({ address })

  /** The last known findings, unless they are too old. */
  const recall = (key: string): Findings | undefined => {
    const findings = remembered.get(key)
    if (findings === undefined) return undefined
    if (clock.currentTimeMillisUnsafe() - findings.at < Duration.toMillis(limits.probeTtl)) return findings
    remembered.delete(key)
    return undefined
  }
  const remember = (key: string, findings: Findings): void => {
    const { problems, signInNeeded } = findings.diagnosis
    remembered.delete(key)
    // Whoever has signed in, or mended something, is not to be told that it has to be done.
    if (signInNeeded === true || problems.length > 0 || !Duration.isPositive(limits.probeTtl)) return
    remembered.set(key, findings)
    if (remembered.size > maxRemembered) remembered.delete(remembered.keys().next().value!)
  }

  /** From here on nobody joins it, and it gives back what it has. */
  const settle = (flight: Flight, exit: Exit.Exit<Findings, Exclude<ProbeError, ProbeTimedOut>>): void => {
    if (flights.get(flight.key) === flight) flights.delete(flight.key)
    if (flight.seat !== undefined) room.leaving.add(flight.seat)
    if (Exit.isSuccess(exit)) remember(flight.key, exit.value)
    Deferred.doneUnsafe(flight.result, Exit.hasInterrupts(exit) ? Exit.fail(disposed) : exit)
  }
  const leave = (flight: Flight, exit: Exit.Exit<unknown, ProbeError>): void => {
    flight.waiting--
    if (flight.waiting > 0 || Deferred.isDoneUnsafe(flight.result)) return
    const failure = Exit.findErrorOption(exit)
    flight.isTimedOut = Option.isSome(failure) && failure.value._tag === "ProbeTimedOut"
    if (flights.get(flight.key) === flight) flights.delete(flight.key)
    flight.fiber?.interruptUnsafe()
  }

  const begin = Effect.fnUntraced(function* (key: string, job: Omit<Probing.Job, "isTimedOut">) {
    const flight: Flight = {
      key,
      agent: job.request.profile.name,
      result: Deferred.makeUnsafe(),
      progress: Probing.makeProgress(() => clock.currentTimeMillisUnsafe()),
      waiting: 0,
      isTimedOut: false,
      seat: undefined,
      fiber: undefined
    }
    flights.set(key, flight)
    const work = enter(room, address, (seat) => (flight.seat = seat)).pipe(
      Effect.andThen(Probing.run(hosts, { ...job, isTimedOut: () => flight.isTimedOut }, flight.progress)),
      Effect.mapError((reason) => {
        if (reason._tag === "LimitExceeded") return reason
        return new ProbeFailed({ address, agent: flight.agent, phase: flight.progress.step, reason })
      }),
      Effect.interruptible,
      // Before all is given back, which nobody has to wait for; also when the Vm was closed before it began.
      Effect.onExit((exit) => Effect.sync(() => settle(flight, exit))),
      Effect.scoped,
      Effect.exit,
      Effect.asVoid,
      Effect.uninterruptible
    )
    // A fiber of the Vm's, since whoever asked first may go first.
    flight.fiber = yield* Effect.forkIn(work, scope, { startImmediately: true })
    // Closed since it was looked at: then the fiber may never have run.
    if (scope.state._tag === "Closed") settle(flight, Exit.fail(disposed))
    return flight
  })

  const await_ = (flight: Flight, timeout: Duration.Duration): Effect.Effect<Findings, ProbeError> =>
    Duration.isFinite(timeout)
      ? Effect.timeoutOrElse(Deferred.await(flight.result), {
          duration: timeout,
          orElse: () =>
            Effect.fail(
              new ProbeTimedOut({
                address,
                agent: flight.agent,
                phase: flight.progress.step,
                afterMillis: Duration.toMillis(timeout),
                stderrTail: flight.progress.connection?.stderrTail() ?? ""
              })
            )
        })
      : Deferred.await(flight.result)

  return Effect.fnUntraced(function* (options) {
    const { agent, cwd = context.root, want = ["settings"] } = options
    const timeout = yield* time(address, "timeout", options.timeout ?? limits.probeTimeout)
    const commandsTimeout = yield* time(address, "commandsTimeout", options.commandsTimeout ?? "2 seconds")
    const unknown = want.find((each) => !wants.has(each))
    if (unknown !== undefined) {
      const problem = `it has no part ${JSON.stringify(String(unknown).slice(0, 100))}; ask for ${[...wants].join(", ")}`
      return yield* new SidecarError.InvalidInput({ address, input: "want", problem })
    }
    const sharing = LaunchIdentity.problem({ profile: agent, sessionEnv: options.sessionEnv })
    if (sharing !== undefined) {
      return yield* new SidecarError.InvalidInput({ address, input: "agent", problem: `its ${sharing}` })
    }
    const request: AgentHosts.Request = {
      address,
      profile: agent,
      root: context.root,
      cwd,
      env: [context.env, options.env],
      sessionEnv: options.sessionEnv,
      startTimeout: timeout,
      limits
    }
    const asked = [...new Set(want)].sort()
    const { key: launch } = yield* hosts.identity(request)
    const key = JSON.stringify([launch, cwd, asked, Duration.toMillis(commandsTimeout)])
    return yield* Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        if (scope.state._tag === "Closed") return yield* disposed
        if (options.refresh === true) remembered.delete(key)
        const known = recall(key)
        if (known !== undefined) return known
        const flight = flights.get(key) ?? (yield* begin(key, { request, want: new Set(asked), commandsTimeout }))
        flight.waiting++
        flight.isTimedOut = false
        return yield* Effect.onExit(restore(await_(flight, timeout)), (exit) => Effect.sync(() => leave(flight, exit)))
      })
    )
  })
})

const wants: ReadonlySet<string> = new Set<Want>(["settings", "commands", "sessions"])

const time = (
  address: Address.Address,
  input: string,
  given: Duration.Input
): Effect.Effect<Duration.Duration, SidecarError.InvalidInput> => {
  const parsed = Time.parse(given)
  if (Option.isSome(parsed)) return Effect.succeed(parsed.value)
  const problem = `it must be a time such as "5 seconds"`
  return Effect.fail(new SidecarError.InvalidInput({ address, input, problem }))
}

/** Takes a place until the current scope closes. Of those that only give theirs back one is waited for. */
const enter = (
  room: Room,
  address: Address.Address,
  onSeat: (seat: Seat) => void
): Effect.Effect<void, SidecarError.LimitExceeded, Scope.Scope> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      while (LimitUsage.isFull(room.usage)) {
        const [leaving] = room.leaving
        if (leaving === undefined) return yield* LimitUsage.refusal(room.usage, address)
        yield* restore(Deferred.await(leaving))
      }
      LimitUsage.take(room.usage)
      const seat: Seat = Deferred.makeUnsafe()
      onSeat(seat)
      yield* Effect.addFinalizer(() =>
        Effect.sync(() => {
          LimitUsage.release(room.usage)
          room.leaving.delete(seat)
          Deferred.doneUnsafe(seat, Exit.void)
        })
      )
    })
  )
