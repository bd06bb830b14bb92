/**
 * A small seeded random number generator (sfc32, seeded through FNV-1a).
 *
 * @since 0.1.0
 */

/**
 * A stream of random numbers that follows from its seed alone. Not for secrets.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Prng {
  /** A number from 0 up to, but without, 1. */
  readonly next: () => number
  /** A whole number from 0 up to, but without, `bound`. */
  readonly int: (bound: number) => number
  /** `true` as often as `probability`, a number from 0 to 1, says. */
  readonly chance: (probability: number) => boolean
  /** One of the items. Throws when there is none. */
  readonly pick: <A>(items: ReadonlyArray<A>) => A
}

const hash = (text: string): number => {
  let h = 0x811c9dc5
  for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 0x01000193)
  return h >>> 0
}

/**
 * Makes a stream. Each purpose takes its own with a label, so that drawing more numbers for one purpose never changes
 * what another one sees.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (seed: number | string, label = ""): Prng => {
  let a = hash(`a:${label}:${seed}`)
  let b = hash(`b:${label}:${seed}`)
  let c = hash(`c:${label}:${seed}`)
  let counter = 1
  const next32 = (): number => {
    const t = (a + b + counter++) | 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) | 0
    c = (((c << 21) | (c >>> 11)) + t) | 0
    return t >>> 0
  }
  for (let i = 0; i < 12; i++) next32()
  const next = () => next32() / 0x1_0000_0000
  const int = (bound: number) => Math.floor(next() * bound)
  return {
    next,
    int,
    chance: (probability) => next() < probability,
    pick: (items) => {
      if (items.length === 0) throw new RangeError("Prng.pick needs at least one item.")
      return items[int(items.length)]!
    }
  }
}
