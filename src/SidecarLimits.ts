/**
 * Every bound of a sidecar, with its default.
 *
 * @since 0.1.0
 */
import * as Config from "effect/Config"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as Time from "./internal/time.ts"

/**
 * The bounds of a sidecar. Counts and bytes are whole numbers from 0; times are durations, where infinity means "off".
 * Each one stands alone: lowering one never makes another invalid, since the lower bound always wins.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface SidecarLimits {
  /** Sidecars of a pool: those that are used, those that are ending, and those that were asked for and never used. */
  readonly maxSidecars: number
  /** Open Vms in the sidecar. */
  readonly maxVms: number
  /** Open sessions in one Vm. */
  readonly maxSessionsPerVm: number
  /** Agent processes of the sidecar, those that are still ending too. When it is full, one that serves nobody makes room. */
  readonly maxHosts: number
  /** Sessions of one agent process, where its profile lets sessions share one. */
  readonly maxSessionsPerHost: number
  /** Probes of the sidecar at once. */
  readonly maxProbes: number
  /** Prompts of one session that run at once. More than 1 only for agents that take prompts while busy. */
  readonly maxPromptsPerSession: number
  /** Prompts that run at once in one Vm. */
  readonly maxPromptsPerVm: number
  /** Prompts that run at once in the sidecar. */
  readonly maxPromptsPerSidecar: number
  /** Of `maxPromptsPerVm`, how many the background lane can't have. `null`: an eighth, at least 1, none for a cap of 1. */
  readonly reservedInteractivePerVm: number | null
  /** Of `maxPromptsPerSidecar`, how many the background lane can't have. `null`: an eighth, at least 1, none for a cap of 1. */
  readonly reservedInteractivePerSidecar: number | null
  /** Prompts of one session that wait for their turn. */
  readonly maxQueuedPromptsPerSession: number
  /** How long a prompt may wait to be admitted. */
  readonly admissionTimeout: Duration.Duration
  /** Questions of one session's agent that are open at once. */
  readonly maxPendingPermissionsPerSession: number
  /** How long a question to the user stays open before it is answered by refusing. */
  readonly permissionTimeout: Duration.Duration
  /** Size of one prompt as JSON, in bytes. */
  readonly maxPromptBytes: number
  /** Content blocks of one prompt. */
  readonly maxPromptBlocks: number
  /** Length of one line from an agent, in bytes. A longer one is dropped and ends the turn it belongs to. */
  readonly maxLineBytes: number
  /** What an agent may send within one turn, in bytes. More ends the turn. */
  readonly maxTurnOutputBytes: number
  /**
   * Events of one session kept for its readers. The lag policy: a reader that falls further behind is not waited for, it
   * skips what is gone and gets a `Lagged` event that says which events those were.
   */
  readonly mailboxCapacity: number
  /** Bytes of one session's events kept for its readers; the same lag policy. */
  readonly mailboxBytes: number
  /** What an agent may send for one session outside of any turn, counted anew with each turn, in bytes. */
  readonly maxIdleOutputBytes: number
  /** Frames of one session that can't be read. */
  readonly maxBrokenFrames: number
  /** Updates kept for one session id that isn't known yet. */
  readonly earlyUpdatesPerSession: number
  /** Updates kept for all session ids of one agent that aren't known yet. */
  readonly earlyUpdatesPerAgent: number
  /** Bytes of updates kept for all session ids of one agent that aren't known yet. */
  readonly earlyUpdateBytes: number
  /** How long such updates are kept, and how long a question for an id that is being opened waits. */
  readonly earlyUpdateTimeout: Duration.Duration
  /** Closed session ids of one agent that are remembered, so that late frames are told from early ones. */
  readonly maxTombstones: number
  /** How long a closed session id is remembered. */
  readonly tombstoneTimeout: Duration.Duration
  /** Requests of one agent, of all its sessions together, handled at once. */
  readonly maxInboundRequests: number
  /** Lines that are no frames which an agent may write before it answers `initialize`. */
  readonly maxNoiseBeforeInitialize: number
  /** What is kept of an agent's stderr, in bytes. */
  readonly stderrTailBytes: number
  /** Spawn, initialize, authenticate and session/new together. */
  readonly startTimeout: Duration.Duration
  /** How long an agent may take to end a cancelled turn, before its process is stopped. */
  readonly cancelGrace: Duration.Duration
  /** How long a session may stay open without being used, before it is closed. Off by default. */
  readonly sessionIdleTimeout: Duration.Duration
  /**
   * When a Vm has as many sessions as it may: how long one of them must not have been used to be closed for a new one, the
   * one longest unused first. Off by default: then the new one is refused.
   */
  readonly reclaimIdleAfter: Duration.Duration
  /** How long a process that sessions share is kept after its last session. */
  readonly hostIdleTime: Duration.Duration
  /** How long the opening of a session waits for the end of a process that must be gone first. */
  readonly hostExitTimeout: Duration.Duration
  /**
   * Processes of one launch identity that sessions share which may fail in a row, at their start or within `hostStableTime`
   * after it. From then on the next one is only tried after a delay, which begins with a second and doubles with each
   * failure. 0: there is never a delay.
   */
  readonly maxHostFailures: number
  /** The longest of these delays. 0: there is never a delay. */
  readonly maxHostRetryDelay: Duration.Duration
  /** A process that ends by itself so soon after its start, before a session was opened on it, counts as failed. */
  readonly hostStableTime: Duration.Duration
  /** Attempts in a row to resume a session whose agent has ended, where its `restart` says so. 0: it is not resumed. */
  readonly maxResumeAttempts: number
  /** How long an agent may take to answer `session/close`. */
  readonly closeTimeout: Duration.Duration
  /** How long an agent may take to set a mode or an option. */
  readonly callTimeout: Duration.Duration
  /** How long whoever asks waits for a probe. */
  readonly probeTimeout: Duration.Duration
  /** How long what a probe found is remembered. 0: not at all. */
  readonly probeTtl: Duration.Duration
  /** Time between TERM and KILL of an agent's process group. */
  readonly killGrace: Duration.Duration
  /** How long a turn may go without a frame of its agent. Off by default. */
  readonly turnIdleTimeout: Duration.Duration
  /** How long a turn may take. Off by default. */
  readonly turnTimeout: Duration.Duration
  /** Clients of a sidecar process, those that are connected and those that went away with `detach`. */
  readonly maxClients: number
  /** Openings, prompts and streams of one client that are under way at once. */
  readonly maxCallsPerClient: number
  /** Calls of one client that steer what runs (cancel, answer, close, describe) and are under way at once. */
  readonly maxControlCallsPerClient: number
  /** How long a client may take to say who it is. */
  readonly handshakeTimeout: Duration.Duration
  /** How long the other side of a connection may be silent before it counts as lost. */
  readonly heartbeatTimeout: Duration.Duration
  /** How long the work of a client that went away with `detach` is kept for it. */
  readonly detachTimeout: Duration.Duration
}

const MiB = 1024 * 1024

/**
 * The defaults.
 *
 * @stability unstable
 * @category constants
 * @since 0.1.0
 */
export const defaults: SidecarLimits = {
  maxSidecars: 1024,
  maxVms: 64,
  maxSessionsPerVm: 256,
  maxHosts: 1024,
  maxSessionsPerHost: 32,
  maxProbes: 8,
  maxPromptsPerSession: 1,
  maxPromptsPerVm: 64,
  maxPromptsPerSidecar: 1024,
  reservedInteractivePerVm: null,
  reservedInteractivePerSidecar: null,
  maxQueuedPromptsPerSession: 8,
  admissionTimeout: Duration.hours(1),
  maxPendingPermissionsPerSession: 32,
  permissionTimeout: Duration.minutes(10),
  maxPromptBytes: 64 * MiB,
  maxPromptBlocks: 16_384,
  maxLineBytes: 16 * MiB,
  maxTurnOutputBytes: 256 * MiB,
  mailboxCapacity: 65_536,
  mailboxBytes: 64 * MiB,
  maxIdleOutputBytes: 64 * MiB,
  maxBrokenFrames: 1000,
  earlyUpdatesPerSession: 100,
  earlyUpdatesPerAgent: 1000,
  earlyUpdateBytes: 4 * MiB,
  earlyUpdateTimeout: Duration.seconds(60),
  maxTombstones: 1024,
  tombstoneTimeout: Duration.minutes(10),
  maxInboundRequests: 2048,
  maxNoiseBeforeInitialize: 200,
  stderrTailBytes: 16 * 1024,
  startTimeout: Duration.seconds(60),
  cancelGrace: Duration.seconds(10),
  sessionIdleTimeout: Duration.infinity,
  reclaimIdleAfter: Duration.infinity,
  hostIdleTime: Duration.seconds(1),
  hostExitTimeout: Duration.seconds(10),
  maxHostFailures: 3,
  maxHostRetryDelay: Duration.minutes(1),
  hostStableTime: Duration.seconds(10),
  maxResumeAttempts: 3,
  closeTimeout: Duration.seconds(2),
  callTimeout: Duration.seconds(30),
  probeTimeout: Duration.seconds(30),
  probeTtl: Duration.minutes(5),
  killGrace: Duration.seconds(2),
  turnIdleTimeout: Duration.infinity,
  turnTimeout: Duration.infinity,
  maxClients: 1024,
  maxCallsPerClient: 16_384,
  maxControlCallsPerClient: 1024,
  handshakeTimeout: Duration.seconds(5),
  heartbeatTimeout: Duration.seconds(30),
  detachTimeout: Duration.minutes(10)
}

/**
 * The limits in force. Without a layer they are the {@link defaults}.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export const SidecarLimits: Context.Reference<SidecarLimits> = Context.Reference<SidecarLimits>(
  "acp-sidecar/SidecarLimits",
  { defaultValue: () => defaults }
)

/**
 * A limit was given a value that it can't have. Names the limit, the environment variable for it and what is wrong.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class InvalidLimit extends Schema.TaggedError<InvalidLimit>()("InvalidLimit", {
  limit: Schema.String,
  setting: Schema.String,
  given: Schema.String,
  expected: Schema.String
}) {
  override get message(): string {
    return `The limit ${this.limit} (${this.setting}) can't be ${this.given}: it must be ${this.expected}.`
  }
}

/**
 * The environment variable that sets a limit: `maxPromptsPerVm` is `ACP_SIDECAR_MAX_PROMPTS_PER_VM`.
 *
 * @stability unstable
 * @category configuration
 * @since 0.1.0
 */
export const setting = (limit: keyof SidecarLimits): string =>
  `ACP_SIDECAR_${limit.replaceAll(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase()}`

/**
 * Some limits, as they may be given: times also as `"10 seconds"`, milliseconds or `"off"`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Overrides = {
  readonly [K in keyof SidecarLimits]?:
    | (SidecarLimits[K] extends Duration.Duration ? Duration.Input | "off" : SidecarLimits[K])
    | undefined
}

const names = Object.keys(defaults) as ReadonlyArray<keyof SidecarLimits>
const isTime = (name: keyof SidecarLimits): boolean => Duration.isDuration(defaults[name])

const parse = (name: keyof SidecarLimits, given: unknown): Option.Option<number | null | Duration.Duration> => {
  const value = typeof given === "string" && /^\d+$/.test(given) ? Number(given) : given
  if (isTime(name)) {
    return value === "off" ? Option.some(Duration.infinity) : Time.parse(value)
  }
  if (value === null && defaults[name] === null) return Option.some(null)
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? Option.some(value) : Option.none()
}

/**
 * The defaults (or `base`) with some limits replaced; fails with {@link InvalidLimit} for a value that makes no sense.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (
  overrides: Overrides,
  base: SidecarLimits = defaults
): Effect.Effect<SidecarLimits, InvalidLimit> =>
  Effect.suspend(() => {
    const result: Record<string, unknown> = { ...base }
    for (const name of names) {
      const given = overrides[name]
      if (given === undefined) continue
      const value = parse(name, given)
      if (Option.isNone(value)) {
        return Effect.fail(
          new InvalidLimit({
            limit: name,
            setting: setting(name),
            given: typeof given === "string" ? JSON.stringify(given.slice(0, 100)) : String(given),
            expected: isTime(name) ? 'a time such as "10 seconds", milliseconds, or "off"' : "a whole number from 0"
          })
        )
      }
      result[name] = value.value
    }
    return Effect.succeed(result as unknown as SidecarLimits)
  })

/**
 * Limits as plain JSON: times in milliseconds, or `"off"`. {@link make} takes it back.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Plain = {
  readonly [K in keyof SidecarLimits]: SidecarLimits[K] extends Duration.Duration ? number | "off" : SidecarLimits[K]
}

/**
 * Limits as a plain value, for showing and sending.
 *
 * @stability unstable
 * @category conversions
 * @since 0.1.0
 */
export const plain = (limits: SidecarLimits): Plain =>
  Object.fromEntries(
    names.map((name) => {
      const value = limits[name]
      if (!Duration.isDuration(value)) return [name, value]
      return [name, Duration.isFinite(value) ? Duration.toMillis(value) : "off"]
    })
  ) as unknown as Plain

/**
 * Puts some limits in force, over those that are in force already.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer = (overrides: Overrides): Layer.Layer<never, InvalidLimit> =>
  Layer.effect(
    SidecarLimits,
    Effect.flatMap(SidecarLimits, (base) => make(overrides, base))
  )

/**
 * The limits that the environment sets, see {@link setting}. What is not set is left out.
 *
 * @stability unstable
 * @category configuration
 * @since 0.1.0
 */
export const config: Config.Config<Overrides> = Config.map(
  Config.all(names.map((name) => Config.option(Config.String(setting(name))))),
  (values) => {
    const found: Record<string, unknown> = {}
    values.forEach((value, index) => {
      const name = names[index]!
      if (Option.isSome(value)) found[name] = value.value.trim()
    })
    return found as Overrides
  }
)

/**
 * Puts the limits in force that the environment sets (`ACP_SIDECAR_*`).
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerFromEnv: Layer.Layer<never, InvalidLimit | Config.ConfigError> = Layer.effect(
  SidecarLimits,
  Effect.gen(function* () {
    const base = yield* SidecarLimits
    return yield* make(yield* config, base)
  })
)

/**
 * How many of a cap's permits are kept from the background lane.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const reserved = (cap: number, configured: number | null): number =>
  configured === null ? (cap > 1 ? Math.max(1, Math.floor(cap / 8)) : 0) : Math.min(cap, configured)
