/**
 * Counted claims on a sidecar, which keep it from being disposed.
 *
 * @since 0.1.0
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import * as Address from "./Address.ts"
import * as Closing from "./internal/closing.ts"
import * as Tie from "./internal/tie.ts"
import * as SidecarMetrics from "./SidecarMetrics.ts"

/**
 * What a lease is for: `vm` is one open Vm, `package` is the sidecar as a whole. They are counted apart.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Kind = "vm" | "package"

/**
 * Where a lease stands. `retained`: it was to be given back, but it is not sure that what it was for is gone, so it counts
 * until the sidecar is disposed.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type State = "held" | "retained" | "released"

/**
 * A claim on a sidecar. It is given back by `release`, or with the scope that it was taken in, whichever is first.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Lease {
  readonly kind: Kind
  readonly address: Address.Address
  readonly state: () => State
  /**
   * Gives it back, once, however often it is called. When it was the last lease of a shared sidecar, this resolves when that
   * is disposed; what failed then is logged.
   */
  readonly release: Effect.Effect<void>
  /** Keeps it until the sidecar is disposed, whatever is released, and logs why. It does nothing for one that is given back. */
  readonly retain: (why: string) => Effect.Effect<void>
}

/**
 * The leases of one sidecar.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Ledger {
  readonly address: Address.Address
  /** Whose registry counts them. */
  readonly metrics: Context.Context<never>
  /** Runs after each lease that was given back. */
  readonly onRelease: Effect.Effect<void>
  /** @internal Those that count: held and retained. */
  readonly claims: Set<Claim>
}

/**
 * A counted claim which nothing gives back yet, see {@link open}.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Claim {
  readonly kind: Kind
  state: State
}

/**
 * What {@link open} gives: a lease, and the scope whose end gives it back. `tie` lets it end with a caller's scope too.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Open {
  readonly lease: Lease
  readonly scope: Scope.Scope
  readonly tie: (caller: Scope.Scope) => Effect.Effect<void>
}

/**
 * A ledger without leases.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (options: Pick<Ledger, "address" | "metrics" | "onRelease">): Ledger => ({
  ...options,
  claims: new Set()
})

/**
 * Counts a lease: a plain step, so that whoever looked at the sidecar before it can be sure of what was seen. Follow it
 * with {@link open} before anything else.
 *
 * @stability unstable
 * @category counting
 * @since 0.1.0
 */
export const reserve = (self: Ledger, kind: Kind): Claim => {
  const claim: Claim = { kind, state: "held" }
  self.claims.add(claim)
  SidecarMetrics.leases.active({ kind }).modifyUnsafe(1, self.metrics)
  return claim
}

const drop = (self: Ledger, claim: Claim): void => {
  if (!self.claims.delete(claim)) return
  claim.state = "released"
  SidecarMetrics.leases.active({ kind: claim.kind }).modifyUnsafe(-1, self.metrics)
}

/**
 * How many leases of a kind count.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const count = (self: Ledger, kind: Kind): number => {
  let found = 0
  for (const claim of self.claims) if (claim.kind === kind) found++
  return found
}

/**
 * Whether no lease of any kind counts.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const isUnused = (self: Ledger): boolean => self.claims.size === 0

/**
 * Ends all leases, the retained ones too, since their sidecar is gone.
 *
 * @stability unstable
 * @category counting
 * @since 0.1.0
 */
export const forfeit = (self: Ledger): void => {
  for (const claim of Array.from(self.claims)) drop(self, claim)
}

/**
 * The lease of a claim. It belongs to `owner`, which ends it when it closes. With `warns` there is a warning when a scope
 * that it is tied to gives it back, since nobody has released it.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const open = Effect.fnUntraced(function* (
  self: Ledger,
  claim: Claim,
  owner: Scope.Scope,
  options: { readonly warns: boolean }
): Effect.fn.Return<Open> {
  const scope = yield* Scope.fork(owner)
  const release = yield* Closing.make(scope, owner)
  const { address } = self
  const { kind } = claim
  const dropped = Effect.suspend(() =>
    claim.state === "held"
      ? Effect.logWarning(`a ${kind} lease on ${Address.format(address)} was not released before its scope closed`)
      : Effect.void
  )
  const tie = yield* Tie.make(scope, options.warns ? Effect.andThen(dropped, release) : release)
  yield* Scope.addFinalizer(
    scope,
    Effect.suspend(() => {
      if (claim.state !== "held") return Effect.void
      drop(self, claim)
      return self.onRelease
    })
  )
  const lease: Lease = {
    kind,
    address,
    state: () => claim.state,
    release,
    retain: (why) =>
      Effect.suspend(() => {
        if (claim.state !== "held") return Effect.void
        claim.state = "retained"
        return Effect.logWarning(
          `a ${kind} lease on ${Address.format(address)} is kept until that is disposed, as its cleanup is not confirmed: ${why}`
        )
      })
  }
  return { lease, scope, tie }
})
