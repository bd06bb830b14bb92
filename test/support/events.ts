// Short ways to a session's events. None of them lets time pass.
import type { Session, SidecarEvent } from "acp-sidecar"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"

type Tag = SidecarEvent.SessionEvent["_tag"]
type Tagged<T extends Tag> = Extract<SidecarEvent.SessionEvent, { readonly _tag: T }>

export const is =
  <T extends Tag>(tag: T) =>
  (event: SidecarEvent.SessionEvent): event is Tagged<T> =>
    event._tag === tag

/** Waits for the nth event of a kind, counted from the first that is kept. */
export const until = <T extends Tag>(session: Session.Session, tag: T, nth = 1): Effect.Effect<Tagged<T>> =>
  Stream.filter(session.updates, is(tag)).pipe(
    Stream.take(nth),
    Stream.runCollect,
    Effect.map((events) => events[nth - 1]!)
  )

/** All that has happened so far and is kept. */
export const soFar = (session: Session.Session): Effect.Effect<ReadonlyArray<SidecarEvent.SessionEvent>> =>
  Effect.flatMap(session.describe, ({ events }) =>
    events === 0
      ? Effect.succeed([])
      : Stream.runCollect(Stream.takeUntil(session.updates, (event) => "number" in event && event.number === events))
  )

/** The text of an update, "" for anything else. */
export const textOf = (event: SidecarEvent.SessionEvent): string =>
  event._tag === "Update" &&
  event.update.sessionUpdate === "agent_message_chunk" &&
  event.update.content.type === "text"
    ? event.update.content.text
    : ""

/** An `agent_message_chunk`. */
export const chunk = (text: string) => ({
  sessionUpdate: "agent_message_chunk" as const,
  content: { type: "text" as const, text }
})

/** Starts an effect at once beside this one. */
export const beside = <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.forkChild(effect, { startImmediately: true })

/** Lets all that can run without time passing do so. */
export const idle = Effect.repeat(Effect.yieldNow, { times: 50 })

/**
 * Provides a sidecar to a test. Once the test's body is over, time passes by itself, so that what it left running (or
 * what a failed one did) ends with the grace period.
 */
export const provided =
  <R, E>(layer: Layer.Layer<R, E>) =>
  <A, E2, R2>(body: Effect.Effect<A, E2, R2>): Effect.Effect<A, E | E2, Exclude<R2, R>> => {
    const passing = Effect.repeat(TestClock.adjust("5 seconds"), { times: 20 })
    return Effect.provide(Effect.ensuring(body, Effect.forkDetach(passing)), layer)
  }
