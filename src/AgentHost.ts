/**
 * One agent process and the connection to it. For those who need an agent without a sidecar around it; an app opens
 * sessions with `Vm.openSession`.
 *
 * @since 0.1.0
 */

import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as AcpConnection from "./acp/AcpConnection.ts"
import * as AcpError from "./acp/AcpError.ts"
import * as AcpProtocol from "./acp/AcpProtocol.ts"
import * as AcpSchema from "./acp/AcpSchema.ts"
import type * as Address from "./Address.ts"
import * as AgentLauncher from "./AgentLauncher.ts"
import * as AgentProfile from "./AgentProfile.ts"
import * as HostMetrics from "./internal/hostMetrics.ts"
import * as Openings from "./internal/openings.ts"
import { version } from "./internal/version.ts"
import * as Observers from "./internal/observers.ts"
import { growingRedactor } from "./internal/redact.ts"
import * as LimitUsage from "./LimitUsage.ts"
import * as SessionRouter from "./SessionRouter.ts"
import * as SidecarError from "./SidecarError.ts"
import type * as SidecarEvent from "./SidecarEvent.ts"
import type * as SidecarLimits from "./SidecarLimits.ts"

/**
 * How far a start has come.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Phase = SidecarError.AgentStartFailed["phase"]

/**
 * A start in progress. `phase` is what a failure or a timeout is blamed on; `connection` is there once the process runs.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Start {
  phase: Phase
  connection: AcpConnection.AcpConnection | undefined
  /** The process that a session waits for, or is on. */
  hostId?: Address.HostId | undefined
  /** Its time is up, so that whoever waits goes away. */
  isTimedOut?: boolean | undefined
}

/**
 * A live agent process. Its scope owns it: closing that ends the process and resolves when it is gone.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface AgentHost {
  readonly profile: AgentProfile.AgentProfile
  readonly protocol: AcpProtocol.Protocol
  readonly connection: AcpConnection.AcpConnection
  readonly router: SessionRouter.SessionRouter
  readonly initialize: AcpSchema.Acp.InitializeResponse
  readonly startedAt: number
  readonly pid: number | undefined
  /** Takes the secrets that the agent was given out of text that it wrote. */
  readonly redact: (text: string) => string
  /**
   * Keeps the secrets among these variables as well: those of a session's MCP servers. Call what it gives when the
   * session is over; after that they are kept until 1,024 others were given up.
   */
  readonly learn: (variables: ReadonlyArray<Readonly<Record<string, string>>>) => () => void
  /**
   * Gives the process up: what still waits for it fails with `HostClosed` at once, and it is being stopped. Does not
   * wait for its end; the scope does.
   */
  readonly retire: (reason: string) => Effect.Effect<void>
  /** @internal See `AgentSession`. */
  readonly openings: Openings.Openings
  /** @internal Brings what was read and sent into the metrics, see `SidecarMetrics.wire`. */
  readonly countTraffic: () => void
}

/**
 * What a host is started with.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly address: Address.Address
  readonly profile: AgentProfile.AgentProfile
  readonly cwd: string
  readonly env: ReadonlyArray<Readonly<Record<string, string>> | undefined>
  /** The whole environment, in place of what the host's, the profile's and `env` come to. */
  readonly environment?: Readonly<Record<string, string>> | undefined
  readonly limits: SidecarLimits.SidecarLimits
  readonly emit: SidecarEvent.Emit
}

const client = { name: "acp-sidecar", version }

/**
 * Starts an agent and initializes it, into the current scope. The caller bounds the time. It fails with the evidence of
 * whatever went wrong, and leaves nothing running.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const start = Effect.fnUntraced(function* (
  options: Options,
  progress: Start
): Effect.fn.Return<AgentHost, SidecarError.StartReason, AgentLauncher.AgentLauncher | Scope.Scope> {
  const { limits, profile } = options
  const launcher = yield* AgentLauncher.AgentLauncher
  const hostEnvironment = yield* AgentLauncher.HostEnvironment
  const clock = yield* Clock.Clock
  const scope = yield* Effect.scope
  const env = options.environment ?? AgentProfile.environment(profile, hostEnvironment(), ...options.env)
  const { learn, redact } = growingRedactor(env)
  const router = SessionRouter.make(limits, redact)
  const notAnAgent = Deferred.makeUnsafe<never, SidecarError.NotAnAcpAgent>()
  let initialized = false
  let started = false

  const { address, emit } = options
  const services = yield* Observers.current
  const inbound = LimitUsage.make({
    address,
    scope: "host",
    limit: "maxInboundRequests",
    max: limits.maxInboundRequests,
    emit
  })
  // This and what follows come before the process, so that they end after it.
  yield* LimitUsage.measure(inbound, services)
  let metrics: HostMetrics.HostMetrics | undefined
  let exited: (() => void) | undefined
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      exited?.()
      const end = progress.connection?.endReason()
      metrics?.gone({ now: clock.currentTimeMillisUnsafe(), end, isStarted: started })
    })
  )
  const transport = yield* launcher.launch({
    profile,
    cwd: options.cwd,
    env,
    redact,
    stderrTailBytes: limits.stderrTailBytes,
    killGrace: limits.killGrace
  })
  const counting = HostMetrics.make(services, {
    agent: profile.name,
    pid: transport.pid,
    killGrace: limits.killGrace
  })
  metrics = counting
  yield* Effect.addFinalizer(() => Effect.sync(() => counting.ending(clock.currentTimeMillisUnsafe())))
  const connection = yield* AcpConnection.make(
    transport,
    {
      onNotification: (method, params, bytes) => {
        if (method !== AcpProtocol.method.sessionUpdate) {
          return SessionRouter.notify(router, method, params, bytes, connection.stats.lastFrameAt!)
        }
        const read = AcpSchema.sessionNotification(params)
        if (Result.isFailure(read)) return SessionRouter.unroutable(router)
        const { sessionId, update } = read.success
        SessionRouter.deliver(router, sessionId, update, bytes, connection.stats.lastFrameAt!)
      },
      onRequest: (method, params) => counted(inbound, serve(router, method, params)),
      onProblem: (problem) => {
        switch (problem._tag) {
          case "TooLarge":
            // An answer costs the request that it answers, which was told; no turn beside it.
            if (problem.method === undefined && problem.id !== undefined) return
            return SessionRouter.tooLarge(router, problem.sessionId, problem)
          case "Noise": {
            const noiseLines = connection.stats.noise
            if (initialized || noiseLines <= limits.maxNoiseBeforeInitialize) return
            const sample = redact(problem.text)
            return void Deferred.doneUnsafe(
              notAnAgent,
              Effect.fail(new SidecarError.NotAnAcpAgent({ noiseLines, sample }))
            )
          }
        }
      },
      onChunkEnd: () => {
        SessionRouter.flush(router)
        counting.traffic(connection.stats.lastFrameAt!)
      }
    },
    { maxLineBytes: limits.maxLineBytes, maxInbound: limits.maxInboundRequests, redact }
  )
  progress.connection = connection
  counting.watch(connection.stats, router.stats)

  progress.phase = "initialize"
  const protocol = AcpProtocol.v1
  const answer = yield* Effect.raceFirst(
    connection.request(AcpProtocol.method.initialize, protocol.initialize(client)),
    Deferred.await(notAnAgent)
  )
  initialized = true
  const initialize = AcpSchema.initializeResponse(answer)
  if (Result.isFailure(initialize)) {
    return yield* new AcpError.InvalidResponse({
      method: AcpProtocol.method.initialize,
      detail: redact(initialize.failure)
    })
  }
  const got = initialize.success.protocolVersion
  if (got !== protocol.version) return yield* new SidecarError.VersionMismatch({ offered: protocol.version, got })

  started = true
  emit({
    kind: "host_started",
    address,
    detail: `agent ${profile.name} runs as process ${connection.pid ?? "in memory"}`
  })
  exited = () => {
    exited = undefined
    SessionRouter.close(router)
    emit({ kind: "host_exited", address, detail: connection.endReason()?.message ?? "it was ended" })
  }
  yield* connection.ended.pipe(
    Effect.andThen(Effect.sync(() => exited?.())),
    Effect.forkIn(scope, { startImmediately: true })
  )
  return {
    profile,
    protocol,
    connection,
    router,
    initialize: initialize.success,
    startedAt: clock.currentTimeMillisUnsafe(),
    pid: connection.pid,
    redact,
    learn,
    // Stopping it goes on in the host's own scope, whose end waits for the process in any case.
    retire: (reason) =>
      Effect.suspend(() => {
        counting.retired(clock.currentTimeMillisUnsafe())
        return Effect.asVoid(Effect.forkIn(connection.close(reason), scope, { startImmediately: true }))
      }),
    openings: yield* Openings.make({
      connection,
      canClose: protocol.canClose(initialize.success.agentCapabilities),
      closeTimeout: limits.closeTimeout
    }),
    countTraffic: counting.count
  }
})

/** The connection refuses what is over the limit; here it is counted, so that there is a warning before. */
const counted = <A, E>(usage: LimitUsage.LimitUsage, effect: Effect.Effect<A, E>): Effect.Effect<A, E> =>
  Effect.uninterruptibleMask((restore) => {
    LimitUsage.take(usage)
    return Effect.ensuring(
      restore(effect),
      Effect.sync(() => LimitUsage.release(usage))
    )
  })

const serve = (
  router: SessionRouter.SessionRouter,
  method: string,
  params: unknown
): Effect.Effect<unknown, unknown> => {
  if (method !== AcpProtocol.method.requestPermission) return Effect.fail(AcpConnection.methodNotFound(method))
  const read = AcpSchema.permissionRequest(params)
  if (Result.isFailure(read)) {
    return Effect.fail(AcpConnection.refusal(AcpError.code.invalidParams, `Invalid params: ${read.failure}`))
  }
  const { sessionId } = read.success
  return Effect.flatMap(SessionRouter.awaitRoute(router, sessionId, router.limits.earlyUpdateTimeout), (route) =>
    route === undefined
      ? Effect.fail(
          AcpConnection.refusal(AcpError.code.notFound, "Session not found", { sessionId: sessionId.slice(0, 256) })
        )
      : route.onPermission(read.success)
  )
}

/**
 * The failure of a start that took longer than it may, with what the agent wrote until then.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const startTimedOut = (
  budget: Duration.Duration,
  progress: Start,
  blockedBy: ReadonlyArray<string> = []
): SidecarError.StartTimedOut =>
  new SidecarError.StartTimedOut({
    budgetMillis: Duration.toMillis(budget),
    stderrTail: progress.connection?.stderrTail() ?? "",
    noiseSample: progress.connection?.stats.noiseSample ?? "",
    blockedBy
  })
