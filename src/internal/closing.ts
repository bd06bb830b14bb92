/**
 * Closing a scope once, for any number of callers.
 *
 * @internal
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"

/**
 * An effect that closes `scope` and resolves when that is done, whoever began it. The closing runs in a fiber of
 * `owner`, so that an interrupted caller doesn't stop it half way, and a later caller waits for the rest. Call this
 * before anything else gets a finalizer in `scope`. With `mayBeLeft` the end of `owner` does not wait for it.
 */
export const make = Effect.fnUntraced(function* (
  scope: Scope.Closeable,
  owner: Scope.Scope,
  options: { readonly mayBeLeft?: boolean } = {}
): Effect.fn.Return<Effect.Effect<void>> {
  const done = Deferred.makeUnsafe<void>()
  let started = false
  // Registered first, so it runs last; when the owner closes the scope, nobody else would tell the waiters.
  yield* Scope.addFinalizer(
    scope,
    Effect.sync(() => (started ? undefined : Deferred.doneUnsafe(done, Exit.void)))
  )
  // Marked as closed and taken over in one step: of two callers, or a caller and the owner, only one runs the finalizers.
  const close = Effect.uninterruptible(
    Effect.suspend(() => {
      if (scope.state._tag === "Closed") return Effect.void
      started = true
      const closing = Scope.closeUnsafe(scope, Exit.void) ?? Effect.void
      return Effect.onExit(options.mayBeLeft === true ? Effect.interruptible(closing) : closing, (exit) =>
        Effect.sync(() => Deferred.doneUnsafe(done, exit))
      )
    })
  )
  return Effect.andThen(Effect.forkIn(close, owner, { startImmediately: true }), Deferred.await(done))
})
