// Runs inputs through targets, and makes those that break a promise small.
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import { codec } from "./codec.ts"
import { connection } from "./connection.ts"
import * as Input from "./Input.ts"
import { schema } from "./schema.ts"
import { session } from "./session.ts"
import { sessions } from "./sessions.ts"

/** One thing under test. `check` dies when it breaks a promise. */
export interface Target {
  readonly about: string
  readonly check: (input: Input.Input) => Effect.Effect<void>
}

export type Name = "codec" | "connection" | "session" | "sessions" | "schema"

export const targets: Readonly<Record<Name, Target>> = { codec, connection, session, sessions, schema }
export const names = Object.keys(targets) as ReadonlyArray<Name>

/** What is wrong with an input, or nothing. A case takes milliseconds; one that takes seconds hangs. */
export const problem = (name: Name, input: Input.Input): Effect.Effect<string | undefined> =>
  targets[name].check(input).pipe(
    Effect.timeoutOrElse({ duration: "20 seconds", orElse: () => Effect.die(new Error("it hangs")) }),
    Effect.as(undefined),
    Effect.catchCause((cause) => Effect.succeed(Cause.pretty(cause)))
  )

/** All ways to leave something out of a list, the largest parts first. */
const without = function* <A>(length: number, slice: (from: number, to: number) => A): Generator<A> {
  for (let size = length; size >= 1; size = Math.floor(size / 2)) {
    for (let from = 0; from + size <= length; from += size) yield slice(from, from + size)
  }
}

const smaller = function* (input: Input.Input): Generator<Input.Input> {
  const { lines } = input
  yield* without(lines.length, (from, to) => ({ ...input, lines: lines.toSpliced(from, to - from) }))
  if (input.sizes.length > 1) for (const size of input.sizes) yield { ...input, sizes: [size] }
  for (const [index, line] of lines.entries()) {
    if (line.mark !== undefined) continue
    yield* without(line.bytes.length, (from, to) => {
      const bytes = new Uint8Array(Buffer.concat([line.bytes.subarray(0, from), line.bytes.subarray(to)]))
      return { ...input, lines: lines.with(index, { bytes }) }
    })
  }
}

/** The first line of a problem without its numbers, so that a smaller input shows the same one. */
const kindOf = (text: string | undefined): string | undefined => text?.split("\n")[0]!.replaceAll(/\d+/g, "#")

/** Leaves out of an input what it does not need to break the same promise, for at most half a minute. */
export const minimise = Effect.fnUntraced(function* (name: Name, found: Input.Input, what: string) {
  const kind = kindOf(what)
  const end = performance.now() + 30_000
  let input = found
  for (let progress = true; progress;) {
    progress = false
    for (const candidate of smaller(input)) {
      if (performance.now() > end) return input
      if (kindOf(yield* problem(name, candidate)) !== kind) continue
      input = candidate
      progress = true
      break
    }
  }
  return input
})

/** An input that broke a promise, and the smallest that still does. */
export interface Failure {
  readonly case: number
  readonly problem: string
  readonly input: string
}

/** Runs one case. */
export const run = Effect.fnUntraced(function* (
  name: Name,
  seed: number,
  number: number
): Effect.fn.Return<Failure | undefined> {
  const input = Input.make(seed, name, number)
  const found = yield* problem(name, input)
  if (found === undefined) return undefined
  const small = yield* minimise(name, input, found)
  return {
    case: number,
    problem: (yield* problem(name, small)) ?? `it came once, and not again: ${found}`,
    input: Input.show(small)
  }
})
