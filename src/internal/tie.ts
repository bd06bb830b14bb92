/**
 * Two ways to end a thing.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"

/**
 * Gives what closes a thing with a caller's scope as well. When the thing ends first, the caller's scope forgets it, but
 * not before all of it is gone: a scope that closes meanwhile waits for the rest. Call this before anything of the thing
 * gets a finalizer, and the result once there is something to close.
 */
export const make = Effect.fnUntraced(function* (
  thing: Scope.Scope,
  close: Effect.Effect<void>
): Effect.fn.Return<(caller: Scope.Scope) => Effect.Effect<void>> {
  let knot: Scope.Closeable | undefined
  let untying = false
  yield* Scope.addFinalizer(
    thing,
    Effect.suspend(() => {
      untying = true
      return knot === undefined ? Effect.void : Scope.close(knot, Exit.void)
    })
  )
  return Effect.fnUntraced(function* (caller) {
    knot = yield* Scope.fork(caller)
    yield* Scope.addFinalizer(
      knot,
      Effect.suspend(() => (untying ? Effect.void : close))
    )
  })
})
