/**
 * @internal
 */
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"

/** A version 4 UUID from Effect's `Random`, so that a seeded run gives the same names. It is a name, not a secret. */
export const uuid: Effect.Effect<string> = Effect.map(
  Effect.replicateEffect(Random.nextIntBetween(0, 15), 32),
  (digits) => {
    digits[12] = 4
    digits[16] = 8 + (digits[16]! % 4)
    const hex = digits.map((digit) => digit.toString(16)).join("")
    return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-")
  }
)
