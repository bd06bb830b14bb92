/**
 * The events of a session as its readers and its journal get them.
 *
 * @internal
 */
import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as Address from "../Address.ts"
import type * as Journal from "../Journal.ts"
import * as Mailbox from "../Mailbox.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import type * as SidecarLimits from "../SidecarLimits.ts"
import * as SidecarMetrics from "../SidecarMetrics.ts"
import * as SessionTurns from "./sessionTurns.ts"

/** About as many bytes as a value has as JSON. It does not recur: an agent may nest deeper than the stack allows. */
export const sizeOf = (value: unknown): number => {
  let size = 0
  const rest = [value]
  while (rest.length > 0) {
    const item = rest.pop()
    size += typeof item === "string" ? item.length + 3 : 8
    if (typeof item !== "object" || item === null) continue
    for (const [key, inner] of Object.entries(item)) {
      size += key.length
      rest.push(inner)
    }
  }
  return size
}

/** All events from a number on: those that are kept, and then those that come. */
export const stream = (
  mailbox: Mailbox.Mailbox<SidecarEvent.SessionEvent>,
  from: number
): Stream.Stream<SidecarEvent.SessionEvent> =>
  Mailbox.stream(mailbox, { from, select: (events) => ({ emit: events, isLast: false }), onLag: SessionTurns.onLag })

/** Writes a session's events down, behind everybody else, and has a moment for the last of them when it ends. */
export const keep = Effect.fnUntraced(function* (
  journal: Journal.Journal["Service"],
  address: Address.Address,
  mailbox: Mailbox.Mailbox<SidecarEvent.SessionEvent>,
  limits: SidecarLimits.SidecarLimits,
  metrics: Context.Context<never>
) {
  const duration = SidecarMetrics.journal.appendDuration({})
  const append = Effect.fnUntraced(function* (batch: Arr.NonEmptyReadonlyArray<SidecarEvent.SessionEvent>) {
    const from = yield* Clock.currentTimeMillis
    yield* journal.append(address, batch)
    const to = yield* Clock.currentTimeMillis
    duration.updateUnsafe(Math.max(0, to - from) / 1000, metrics)
  })
  const writer = yield* stream(mailbox, 1).pipe(
    Stream.runForEachArray(append),
    // The session goes on without it, but nobody awaits this fiber.
    Effect.onError((cause) =>
      Cause.hasInterruptsOnly(cause)
        ? Effect.void
        : Effect.logError(`The journal failed for ${Address.format(address)}; the rest of it is not kept`, cause)
    ),
    Effect.forkScoped({ startImmediately: true })
  )
  yield* Effect.addFinalizer(() => Effect.timeoutOption(Effect.interruptible(Fiber.await(writer)), limits.closeTimeout))
})
