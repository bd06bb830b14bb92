/**
 * Holds back agent processes that do not come up: starts that fail in a row, and processes that end soon after them.
 *
 * @internal
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type * as Address from "../Address.ts"
import type { HeldBack } from "../AgentHosts.ts"
import * as SidecarError from "../SidecarError.ts"
import type * as SidecarLimits from "../SidecarLimits.ts"
import type { Entry } from "./hostTable.ts"

type State =
  | { readonly _tag: "Closed" }
  /** Nothing is started until then; whoever comes next after that is the trial. */
  | { readonly _tag: "HeldBack"; readonly until: number; readonly delay: number }
  /** This process decides; until it has, no other is started. */
  | { readonly _tag: "OnTrial"; readonly hostId: Address.HostId; readonly delay: number }

/** What is remembered of a launch identity. */
interface History {
  /** Processes that ended by themselves. */
  crashes: number
  /** Failures in a row. */
  failures: number
  /** Of the last failure; without secrets. */
  reason: string
  agent: string
  identity: string
  state: State
  /** The next delay; kept from one failure to the next. */
  next: Effect.Success<ReturnType<typeof delays>> | undefined
}

/** By launch identity, the one that failed last at the end. */
export type Breaker = Map<string, History>

/** Identities that are remembered; of more, those that failed longest ago are forgotten. */
const maxIdentities = 256
const maxReason = 1000
const closed: State = { _tag: "Closed" }

export const make = (): Breaker => new Map()

const delays = ({ maxHostRetryDelay }: SidecarLimits.SidecarLimits) =>
  Schedule.toStep(
    Schedule.exponential("1 second").pipe(
      Schedule.modifyDelay(({ duration }) => Effect.succeed(Duration.min(duration, maxHostRetryDelay)))
    )
  )

export const crashes = (self: Breaker, key: string): number => self.get(key)?.crashes ?? 0

/** Why no process of an identity is started now, if so. */
export const refusal = (self: Breaker, key: string, now: number): SidecarError.StartHeldBack | undefined => {
  const history = self.get(key)
  if (history === undefined || history.state._tag === "Closed") return undefined
  const { failures, reason, state } = history
  if (state._tag === "HeldBack" && now >= state.until) return undefined
  const retryInMillis = state._tag === "HeldBack" ? state.until - now : state.delay
  return new SidecarError.StartHeldBack({ failures, retryInMillis, reason })
}

/** A process is to be started. */
export const starting = (self: Breaker, key: string, hostId: Address.HostId): void => {
  const history = self.get(key)
  if (history?.state._tag !== "HeldBack") return
  history.state = { _tag: "OnTrial", hostId, delay: history.state.delay }
}

/** A process has shown that it works. */
export const worked = (self: Breaker, key: string): void => {
  const history = self.get(key)
  if (history === undefined) return
  history.failures = 0
  history.state = closed
  history.next = undefined
  if (history.crashes === 0) self.delete(key)
}

/** A process is gone. If it was on trial and that came to nothing, another one is tried. */
export const gone = (self: Breaker, key: string, hostId: Address.HostId): void => {
  const history = self.get(key)
  if (history?.state._tag !== "OnTrial" || history.state.hostId !== hostId) return
  history.state = { _tag: "HeldBack", until: 0, delay: history.state.delay }
}

const historyOf = (self: Breaker, key: string, entry: Entry): History => {
  const history = self.get(key) ?? {
    crashes: 0,
    failures: 0,
    reason: "",
    agent: entry.agent,
    identity: entry.identity!,
    state: closed,
    next: undefined
  }
  self.delete(key)
  self.set(key, history)
  if (self.size > maxIdentities) self.delete(self.keys().next().value!)
  return history
}

/** A process that had come up has ended by itself. */
export const crashed = (self: Breaker, key: string, entry: Entry): void => {
  historyOf(self, key, entry).crashes++
}

/** A start has failed, or a process has ended soon after it. Gives for how long its identity is held back from now on. */
export const failed = (
  self: Breaker,
  key: string,
  entry: Entry,
  reason: string,
  now: number
): Effect.Effect<SidecarError.StartHeldBack | undefined> =>
  Effect.suspend(() => {
    const { limits } = entry
    const history = historyOf(self, key, entry)
    history.failures++
    history.reason = reason.slice(0, maxReason)
    const { failures, state } = history
    // One that was started before the others failed says nothing new.
    if (state._tag === "HeldBack" || (state._tag === "OnTrial" && state.hostId !== entry.hostId)) {
      return Effect.undefined
    }
    if (limits.maxHostFailures === 0 || failures < limits.maxHostFailures) return Effect.undefined
    const step = Effect.suspend(() => (history.next === undefined ? delays(limits) : Effect.succeed(history.next)))
    return Effect.flatMap(step, (next) => {
      history.next = next
      // It goes on for ever.
      return Effect.map(Effect.orDie(next(now, undefined)), ([, duration]) => {
        const delay = Duration.toMillis(duration)
        history.state = delay === 0 ? closed : { _tag: "HeldBack", until: now + delay, delay }
        return refusal(self, key, now)
      })
    })
  })

/** The identities that are held back, or whose next process is on trial. */
export const describe = (self: Breaker, now: number): ReadonlyArray<HeldBack> =>
  Array.from(self.values()).flatMap(({ agent, failures, identity, reason, state }) =>
    state._tag === "Closed"
      ? []
      : [
          {
            identity,
            agent,
            failures,
            retryInMillis: state._tag === "HeldBack" ? Math.max(0, state.until - now) : 0,
            isOnTrial: state._tag === "OnTrial",
            reason
          }
        ]
  )
