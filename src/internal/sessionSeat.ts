/**
 * The place that a session has at an agent process. When the process ends by itself, a session may get another one.
 *
 * @internal
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Pull from "effect/Pull"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as AcpError from "../acp/AcpError.ts"
import type * as AcpSchema from "../acp/AcpSchema.ts"
import * as AgentHost from "../AgentHost.ts"
import type * as AgentHosts from "../AgentHosts.ts"
import * as AgentSession from "../AgentSession.ts"
import type * as SidecarError from "../SidecarError.ts"
import type * as SidecarLimits from "../SidecarLimits.ts"

/** A lease on a process and the agent's session there. All of it is given back together. */
export interface Seat {
  readonly lease: AgentHosts.Lease
  readonly host: AgentHost.AgentHost
  readonly hosted: AgentSession.HostedSession
  /** How it was opened. */
  readonly method: AgentSession.How["_tag"]
  /** Clock time in milliseconds. */
  readonly since: number
  /** Closes the route and the lease. */
  readonly close: Effect.Effect<void>
}

export type Failure = SidecarError.StartReason | SidecarError.LimitExceeded

export interface Options extends Omit<AgentSession.Options, "how" | "onOpen"> {
  readonly hosts: AgentHosts.AgentHosts
  readonly request: AgentHosts.Request
  readonly how: (host: AgentHost.AgentHost) => AgentSession.How
  /** The process is there; the session is asked for next. What it gives runs when the session has left it. */
  readonly onHost: (host: AgentHost.AgentHost) => () => void
  /** Runs in the reader, between what came before the agent's answer and what comes after it. Nothing can fail after it. */
  readonly onSeat: (seat: Seat) => void
  /** Is awaited first. */
  readonly after?: Effect.Effect<void, Failure> | undefined
  /** For all of it; without it the caller bounds the time. */
  readonly timeout?: Duration.Duration | undefined
  /** Has a scope of its own for each seat, in its own place in the order of the session's end. */
  readonly seats: Scope.Scope
  readonly now: () => number
}

/** Takes a place at a process and opens the session there. Of one that fails, or is interrupted, nothing is left. */
export const take = (options: Options, progress: AgentHost.Start): Effect.Effect<Seat, Failure> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const scope = yield* Scope.fork(options.seats)
      let seat: Seat | undefined
      const opening = Effect.gen(function* () {
        if (options.after !== undefined) yield* options.after
        const lease = yield* options.hosts.acquire(options.request, progress)
        const { host } = lease
        // Just before the lease is given back: of several that time out together only the last one is alone.
        const giveUp = Effect.suspend(() =>
          seat === undefined && progress.isTimedOut === true && lease.isSole()
            ? lease.retire("a session was not opened in time, and nobody else has it")
            : Effect.void
        )
        yield* Effect.addFinalizer(() => giveUp)
        yield* Effect.acquireRelease(
          Effect.sync(() => options.onHost(host)),
          (left) => Effect.sync(left)
        )
        const how = options.how(host)
        const onOpen = (response: AcpSchema.Acp.NewSessionResponse): void => {
          const hosted = { agentSessionId: response.sessionId, response }
          lease.opened()
          seat = { lease, host, hosted, method: how._tag, since: options.now(), close: Scope.close(scope, Exit.void) }
          options.onSeat(seat)
        }
        yield* AgentSession.open(host, { ...options, how, onOpen }, progress)
        return seat!
      })
      const { timeout } = options
      const tooLate = (duration: Duration.Duration): Effect.Effect<never, Failure> =>
        Effect.andThen(
          Effect.sleep(duration),
          // The answer that came in this moment was in time.
          Effect.suspend(() => {
            if (seat !== undefined) return Effect.never
            progress.isTimedOut = true
            return Effect.fail(AgentHost.startTimedOut(duration, progress))
          })
        )
      const bounded = timeout === undefined ? opening : Effect.raceFirst(opening, tooLate(timeout))
      const exit = yield* Effect.exit(restore(bounded).pipe(Scope.provide(scope)))
      if (Exit.isFailure(exit)) yield* Scope.close(scope, exit)
      return yield* exit
    })
  )

/** Whether an agent can go on with a session that it has had, and how: without its history where it can. */
export const reopening = (host: AgentHost.AgentHost, agentSessionId: string): AgentSession.How | undefined => {
  const { agentCapabilities } = host.initialize
  if (host.protocol.canResume(agentCapabilities)) return { _tag: "Resume", agentSessionId }
  return host.protocol.canLoad(agentCapabilities) ? { _tag: "Load", agentSessionId } : undefined
}

/** The attempts to take another seat, which count on until one has lasted. */
export interface Attempts {
  next: ((why: Failure | AcpError.ConnectionEnd) => Effect.Effect<boolean>) | undefined
}

export const attempts = (): Attempts => ({ next: undefined })

/** An agent that is held back is not asked for before its time. */
const delays = (limits: SidecarLimits.SidecarLimits) =>
  Schedule.exponential("1 second").pipe(
    Schedule.setInputType<Failure | AcpError.ConnectionEnd>(),
    Schedule.modifyDelay(({ duration, input }) =>
      Effect.succeed(
        input._tag === "StartHeldBack" ? Duration.max(duration, Duration.millis(input.retryInMillis)) : duration
      )
    ),
    Schedule.upTo({ times: Math.max(0, limits.maxResumeAttempts - 1) })
  )

/** Tries again and again, with growing delays: as long as it may help, and at most `maxResumeAttempts` times. */
export const retake = (
  self: Attempts,
  limits: SidecarLimits.SidecarLimits,
  why: AcpError.ConnectionEnd,
  attempt: Effect.Effect<Seat, Failure>
): Effect.Effect<Seat, Failure | AcpError.ConnectionEnd> =>
  Effect.gen(function* () {
    let last: Failure | AcpError.ConnectionEnd = why
    while (true) {
      if (self.next === undefined) {
        const step = yield* Schedule.toStepWithSleep(delays(limits))
        self.next = (input) => Effect.as(step(input), true).pipe(Pull.catchDone(() => Effect.succeed(false)))
      } else if (!(yield* self.next(last))) {
        return yield* Effect.fail(last)
      }
      const result = yield* Effect.result(attempt)
      if (result._tag === "Success") return result.success
      last = result.failure
      if (!mayPass(last)) return yield* Effect.fail(last)
    }
  })

/** Whether another attempt may go better. */
const mayPass = (failure: Failure): boolean => {
  switch (failure._tag) {
    case "NotSupported":
    case "UnusableSessionId":
    case "AuthRequired":
    case "VersionMismatch":
    case "OneSessionOnly":
    case "HostClosed":
      return false
    case "RequestError":
      return !isFinal.has(failure.code)
    default:
      return true
  }
}

/** The agent has no such session, or can't do what it says that it can. */
const isFinal: ReadonlySet<number> = new Set([
  AcpError.code.notFound,
  AcpError.code.invalidParams,
  AcpError.code.methodNotFound,
  AcpError.code.authRequired
])
