/**
 * Two ways to end a thing.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"

/** Closes a thing with the caller's scope as well. When the thing ends first, the caller's scope forgets it. */
export const tie = Effect.fnUntraced(function* (thing: Scope.Scope, caller: Scope.Scope, close: Effect.Effect<void>) {
  const knot = yield* Scope.fork(caller)
  let untying = false
  yield* Scope.addFinalizer(
    knot,
    Effect.suspend(() => (untying ? Effect.void : close))
  )
  yield* Scope.addFinalizer(
    thing,
    Effect.suspend(() => {
      untying = true
      return Scope.close(knot, Exit.void)
    })
  )
})
