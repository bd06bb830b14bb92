/**
 * What one probe asks of an agent, and how the answers read.
 *
 * @internal
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Scope from "effect/Scope"
import type * as AcpConnection from "../acp/AcpConnection.ts"
import * as AcpError from "../acp/AcpError.ts"
import * as AcpProtocol from "../acp/AcpProtocol.ts"
import * as AcpSchema from "../acp/AcpSchema.ts"
import type * as AgentHost from "../AgentHost.ts"
import type * as AgentHosts from "../AgentHosts.ts"
import * as AgentSession from "../AgentSession.ts"
import type { Findings, Model, Models, Phase, Want } from "../Probe.ts"
import type * as SessionRouter from "../SessionRouter.ts"
import type * as SidecarError from "../SidecarError.ts"

export interface Job {
  readonly request: AgentHosts.Request
  readonly want: ReadonlySet<Want>
  readonly commandsTimeout: Duration.Duration
  /** Nobody waits any more, since the time of the last one was up. */
  readonly isTimedOut: () => boolean
}

/** How far a probe has come, and when it came there. */
export interface Progress extends AgentHost.Start {
  /** Beyond the phases of a start. */
  step: Phase
  readonly marks: ReadonlyArray<readonly [Phase, number]>
}

export const makeProgress = (now: () => number): Progress => {
  const marks: Array<readonly [Phase, number]> = [["room", now()]]
  let phase: AgentHost.Phase = "spawn"
  let step: Phase = "room"
  let connection: AcpConnection.AcpConnection | undefined
  return {
    marks,
    get phase() {
      return phase
    },
    set phase(next) {
      phase = next
      this.step = next
    },
    get step() {
      return step
    },
    set step(next) {
      if (step !== next) marks.push([next, now()])
      step = next
    },
    get connection() {
      return connection
    },
    set connection(next) {
      connection = next
    }
  }
}

/** Takes a lease, asks, and gives all of it back with the current scope. */
export const run = Effect.fnUntraced(function* (
  hosts: AgentHosts.AgentHosts,
  job: Job,
  progress: Progress
): Effect.fn.Return<Findings, SidecarError.StartReason | SidecarError.LimitExceeded, Scope.Scope> {
  const lease = yield* hosts.acquire(job.request, progress)
  const giveUp = Effect.suspend(() =>
    job.isTimedOut() && lease.isSole() ? lease.retire("a probe of it timed out, and nobody else has it") : Effect.void
  )
  // Just before the lease is given back: of two probes that time out together only the last one is alone.
  yield* Effect.addFinalizer(() => giveUp)
  // And before its session is closed, which such an agent would not answer.
  return yield* Effect.onInterrupt(ask(lease, job, progress), () => giveUp)
})

const ask = Effect.fnUntraced(function* (
  lease: AgentHosts.Lease,
  job: Job,
  progress: Progress
): Effect.fn.Return<Findings, SidecarError.StartReason, Scope.Scope> {
  const { request, want } = job
  const { host } = lease
  const clock = yield* Clock.Clock
  const now = () => clock.currentTimeMillisUnsafe()
  const wasRunning = progress.marks.every(([phase]) => phase !== "spawn")
  const problems: Array<{ readonly method: string; readonly message: string }> = []
  const listener = listen()
  let signInNeeded: boolean | null = null
  let opened: AgentSession.HostedSession | undefined

  if (want.has("settings") || want.has("commands")) {
    // No method is named, so that nothing is ever signed in here.
    const { cwd } = request
    const options = { how: { _tag: "New" }, cwd, route: listener.route, onOpen: listener.onOpen } as const
    opened = yield* AgentSession.open(host, options, progress).pipe(
      Effect.catchTag("AuthRequired", () => Effect.undefined)
    )
    signInNeeded = opened === undefined
    if (opened !== undefined) lease.opened()
  }
  const openedAt = now()

  let sessions: AgentSession.Listed | null = null
  if (want.has("sessions")) {
    progress.step = "session/list"
    sessions = yield* AgentSession.list(host, { cwd: request.cwd }).pipe(
      Effect.map(({ isComplete, sessions }) => ({
        isComplete,
        sessions: sessions.filter(({ sessionId }) => sessionId !== opened?.agentSessionId)
      })),
      Effect.catchTag("NotSupported", () => Effect.succeed(null)),
      Effect.catchTag(["RequestError", "InvalidResponse"], (error) => {
        if (error._tag === "RequestError" && error.code === AcpError.code.authRequired) signInNeeded = true
        else problems.push({ method: AcpProtocol.method.sessionList, message: error.message })
        return Effect.succeed(null)
      })
    )
  }
  if (want.has("commands") && opened !== undefined && listener.commands === null) {
    progress.step = "commands"
    const left = Math.max(0, Duration.toMillis(job.commandsTimeout) - (now() - openedAt))
    const came = Effect.timeoutOption(Deferred.await(listener.told), left)
    yield* Effect.raceFirst(came, Effect.flatMap(host.connection.ended, Effect.fail))
  }

  const { configOptions, legacyModels, modes } = listener
  const { agentCapabilities, agentInfo, authMethods, protocolVersion } = host.initialize
  return {
    agent: request.profile.name,
    at: now(),
    models: modelsOf(configOptions, legacyModels),
    modes,
    configOptions,
    commands: listener.commands,
    sessions,
    diagnosis: {
      agentInfo: agentInfo ?? null,
      protocolVersion,
      capabilities: agentCapabilities ?? {},
      authMethods: (authMethods ?? []).map(({ description, id, name }) => ({
        id: host.redact(id),
        name: host.redact(name ?? id),
        description: description == null ? null : host.redact(description)
      })),
      signInNeeded,
      pid: host.pid ?? null,
      wasRunning,
      tookMillis: durations(progress.marks, wasRunning, now()),
      problems,
      stderrTail: host.connection.stderrTail()
    }
  }
})

/** How long each phase took. A process that runs is at the end of its last phase, which then is none of the probe's. */
const durations = (
  marks: Progress["marks"],
  wasRunning: boolean,
  now: number
): Readonly<Partial<Record<Phase, number>>> => {
  const took: Partial<Record<Phase, number>> = {}
  marks.forEach(([phase, at], index) => {
    const millis = (marks[index + 1]?.[1] ?? now) - at
    if (phase !== "initialize" || !wasRunning || millis > 0) took[phase] = millis
  })
  return took
}

/** The route of a probe's session: keeps the last of each thing that was asked for, and nothing else. */
const listen = () => {
  const told = Deferred.makeUnsafe<void>()
  const self = {
    told,
    modes: null as AcpSchema.Acp.SessionModeState | null,
    configOptions: [] as ReadonlyArray<AcpSchema.Acp.SessionConfigOption>,
    commands: null as ReadonlyArray<AcpSchema.Acp.AvailableCommand> | null,
    legacyModels: undefined as unknown,
    onOpen: (response: AcpSchema.Acp.NewSessionResponse): void => {
      const { configOptions, models, modes } = response as {
        readonly [K in "configOptions" | "models" | "modes"]?: unknown
      }
      // What came early for it is older than what the answer says.
      if (Array.isArray(configOptions)) self.configOptions = configOptions
      if (isModes(modes)) self.modes = modes
      self.legacyModels = models
    },
    route: {
      onUpdate: (raw) => {
        const update = AcpSchema.sessionUpdate(raw)
        if (update.sessionUpdate === "config_option_update") self.configOptions = update.configOptions
        if (update.sessionUpdate === "current_mode_update" && self.modes !== null) {
          self.modes = { ...self.modes, currentModeId: update.currentModeId }
        }
        if (update.sessionUpdate !== "available_commands_update") return
        self.commands = update.availableCommands
        Deferred.doneUnsafe(told, Exit.void)
      },
      onTooLarge: () => {},
      // Nobody is there to be asked.
      onPermission: () => Effect.succeed(AcpProtocol.v1.permissionCancelled),
      flush: () => {}
    } satisfies SessionRouter.Route
  }
  return self
}

const isObject = (raw: unknown): raw is Readonly<Record<string, unknown>> =>
  typeof raw === "object" && raw !== null && !Array.isArray(raw)

const isModes = (raw: unknown): raw is AcpSchema.Acp.SessionModeState =>
  isObject(raw) && typeof raw["currentModeId"] === "string" && Array.isArray(raw["availableModes"])

const text = (raw: unknown): string | null => (typeof raw === "string" ? raw : null)

/** The models of the option that is for them, else of the field that agents had for it before there was one. */
export const modelsOf = (configOptions: ReadonlyArray<unknown>, legacy: unknown): Models | null => {
  const option = configOptions.find(
    (each): each is Readonly<Record<string, unknown>> =>
      isObject(each) && each["category"] === "model" && typeof each["id"] === "string" && Array.isArray(each["options"])
  )
  if (option !== undefined) {
    const choices = (option["options"] as ReadonlyArray<unknown>).flatMap((each) =>
      isObject(each) && Array.isArray(each["options"]) ? (each["options"] as ReadonlyArray<unknown>) : [each]
    )
    return {
      current: text(option["currentValue"]),
      available: models(choices, "value"),
      configId: option["id"] as string
    }
  }
  if (!isObject(legacy) || !Array.isArray(legacy["availableModels"])) return null
  return {
    current: text(legacy["currentModelId"]),
    available: models(legacy["availableModels"], "modelId"),
    configId: null
  }
}

const models = (choices: ReadonlyArray<unknown>, key: "value" | "modelId"): ReadonlyArray<Model> =>
  choices.flatMap((each) => {
    if (!isObject(each)) return []
    const id = each[key]
    return typeof id === "string"
      ? [{ id, name: text(each["name"]) ?? id, description: text(each["description"]) }]
      : []
  })
