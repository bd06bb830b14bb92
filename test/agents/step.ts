// What a step of the scenario is, and what several of them do.
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type * as Session from "../../src/Session.ts"
import type * as SidecarError from "../../src/SidecarError.ts"
import type * as Vm from "../../src/Vm.ts"
import * as Leftovers from "./leftovers.ts"
import type { Result } from "./report.ts"
import * as Stage from "./stage.ts"

export type Found = Pick<Result, "cell" | "detail"> & { readonly cannot?: boolean }

/** The two sessions that most of the steps use; one that has ended is replaced. */
export interface Sessions {
  a: Session.Session
  b: Session.Session
}

export type StepError =
  | Stage.Violation
  | Session.SubmitError
  | SidecarError.TurnFailed
  | Vm.OpenSessionError
  | { readonly _tag: string; readonly message: string }

export interface Step {
  readonly name: string
  readonly run: (stage: Stage.Stage, sessions: Sessions) => Effect.Effect<Found, StepError, Scope.Scope>
}

export const millis = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<readonly [number, A], E, R> =>
  Effect.map(Effect.timed(effect), ([time, value]) => [Duration.toMillis(time), value] as const)

export const now = Effect.sync(() => Date.now())

export const counted = (count: number, word: string): string =>
  `${count} ${word}${count === 1 ? "" : word.endsWith("s") ? "es" : "s"}`

export const groupOf = (stage: Stage.Stage, pid: number | undefined) =>
  Effect.map(Leftovers.processes(stage.owner), (all) => all.filter(({ group }) => group === pid))

export const noneLeft = Effect.fnUntraced(function* (stage: Stage.Stage, pid: number | undefined) {
  const left = yield* groupOf(stage, pid)
  yield* Stage.demand(left.length === 0, `left in its process group: ${left.map(({ args }) => args).join("; ")}`)
})

export const words = (first: number, count: number): string =>
  Array.from({ length: count }, (_, index) => `tok${first + index}`).join(" ")
