/**
 * What keeps this process alive for as long as somebody needs it to.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

export interface Holds {
  /** One that counts until the scope closes. */
  readonly hold: Effect.Effect<void, never, Scope.Scope>
  /** Keeps this process alive whatever the count is, until that changes. */
  readonly keep: Effect.Effect<void>
}

/** A thing that keeps this process alive until `letGo`, and again from `keep` on. It is let go with the last of the holds. */
export const make = (thing: { readonly keep: Effect.Effect<void>; readonly letGo: Effect.Effect<void> }): Holds => {
  let count = 0
  let isKept = true
  const set = (wanted: boolean) =>
    Effect.suspend(() => {
      if (isKept === wanted) return Effect.void
      isKept = wanted
      return wanted ? thing.keep : thing.letGo
    })
  return {
    hold: Effect.acquireRelease(
      Effect.suspend(() => (++count === 1 ? set(true) : Effect.void)),
      () => Effect.suspend(() => (--count === 0 ? set(false) : Effect.void))
    ),
    keep: set(true)
  }
}
