/**
 * The port to which sessions write what happened, for those who keep it.
 *
 * @since 0.1.0
 */
import type * as Arr from "effect/Array"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Address from "./Address.ts"
import type * as SidecarEvent from "./SidecarEvent.ts"

/**
 * Keeps the events of sessions. A sidecar whose layer was given this service gives it every event of every session, in
 * order and in batches, from a fiber of the session that is a reader like any other: a slow journal delays nobody, and
 * misses the oldest (it is then given `Lagged`) when it falls behind the session's mailbox. When a session ends, its
 * journal has `closeTimeout` to take the rest. One that dies of a defect costs nobody else anything: the rest of that
 * session's events is not kept, which is logged.
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class Journal extends Context.Service<
  Journal,
  {
    readonly append: (
      session: Address.Address,
      events: Arr.NonEmptyReadonlyArray<SidecarEvent.SessionEvent>
    ) => Effect.Effect<void>
    /** The kept events of a session from this number on, the oldest first; empty for a session that isn't known. */
    readonly read: (session: Address.Address, from: number) => Effect.Effect<ReadonlyArray<SidecarEvent.SessionEvent>>
  }
>()("acp-sidecar/Journal") {}

/**
 * A journal in memory: the last `capacity` events (1,024 by default) of each of the last `sessions` sessions (256 by
 * default), gone with the process.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layerMemory = (options?: {
  readonly capacity?: number | undefined
  readonly sessions?: number | undefined
}): Layer.Layer<Journal> =>
  Layer.sync(Journal, () => {
    const capacity = options?.capacity ?? 1024
    const sessions = options?.sessions ?? 256
    const kept = new Map<string, Array<SidecarEvent.SessionEvent>>()
    return Journal.of({
      append: (session, events) =>
        Effect.sync(() => {
          const name = Address.format(session)
          let log = kept.get(name)
          if (log === undefined) {
            log = []
            kept.set(name, log)
            if (kept.size > sessions) kept.delete(kept.keys().next().value!)
          }
          log.push(...events.slice(-capacity))
          log.splice(0, log.length - capacity)
        }),
      read: (session, from) =>
        Effect.sync(() =>
          (kept.get(Address.format(session)) ?? []).filter((event) => !("number" in event) || event.number >= from)
        )
    })
  })
