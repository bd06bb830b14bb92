/**
 * The recent events of one session, numbered, for any number of readers. For those who need such a log of their own; an
 * app reads `Session.updates`, `Turn.updates` and `Sidecar.events`, which are streams over one.
 *
 * @since 0.1.0
 */

import type * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"

/**
 * A bounded log. The lag policy: writing never waits for a reader. The oldest entries make room, and a reader that is so
 * far behind that its next entry is gone skips to the oldest one that is kept and is told which it missed. So one slow
 * reader costs itself, and no one else, and memory stays within `capacity` entries and `maxBytes` bytes (the newest entry
 * is always kept). Effect's own queues bound by count alone and do not say what was dropped, which is why this exists.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Mailbox<A> {
  readonly capacity: number
  readonly maxBytes: number
  /** The number of the oldest entry that is kept. */
  first: number
  /** The number that the next entry gets. */
  next: number
  bytes: number
  isClosed: boolean
  /** @internal The oldest first; all but the last are full. */
  readonly segments: Array<Segment<A>>
  /** @internal */
  waiters: Set<() => void>
}

/**
 * A stretch of entries. One large array would be old to the garbage collector, which then pays for each young entry that
 * is put into it; a short array ages together with what is in it.
 */
interface Segment<A> {
  /** The number of its first entry. */
  readonly from: number
  readonly entries: Array<A>
  readonly sizes: Array<number>
}

const segmentSize = 256

/**
 * An empty mailbox whose first entry is number 1.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = <A>(options: { readonly capacity: number; readonly maxBytes: number }): Mailbox<A> => ({
  capacity: Math.max(1, options.capacity),
  maxBytes: options.maxBytes,
  first: 1,
  next: 1,
  bytes: 0,
  isClosed: false,
  segments: [],
  waiters: new Set()
})

/**
 * Adds an entry and gives its number; nothing happens to a closed mailbox. Readers wake at the next {@link flush}, so
 * that many entries cost one wake-up.
 *
 * @stability unstable
 * @category writing
 * @since 0.1.0
 */
export const append = <A>(self: Mailbox<A>, entry: A, bytes: number): number => {
  if (self.isClosed) return self.next
  const number = self.next++
  let last = self.segments.at(-1)
  if (last === undefined || last.entries.length === segmentSize) {
    last = { from: number, entries: [], sizes: [] }
    self.segments.push(last)
  }
  last.entries.push(entry)
  last.sizes.push(bytes)
  self.bytes += bytes
  while (number - self.first >= self.capacity || (self.bytes > self.maxBytes && self.first < number)) {
    const oldest = self.segments[0]!
    const index = self.first++ - oldest.from
    self.bytes -= oldest.sizes[index]!
    oldest.entries[index] = undefined as A
    if (index === segmentSize - 1) self.segments.shift()
  }
  return number
}

/**
 * Wakes the readers that wait for more.
 *
 * @stability unstable
 * @category writing
 * @since 0.1.0
 */
export const flush = <A>(self: Mailbox<A>): void => {
  if (self.waiters.size === 0) return
  const waiting = Array.from(self.waiters)
  self.waiters.clear()
  for (const wake of waiting) wake()
}

/**
 * Ends the mailbox: readers get what is left and then the end.
 *
 * @stability unstable
 * @category writing
 * @since 0.1.0
 */
export const close = <A>(self: Mailbox<A>): void => {
  self.isClosed = true
  flush(self)
}

/**
 * What a reader makes of a stretch of entries: what to emit, and whether that was all it wanted.
 *
 * @stability unstable
 * @category reading
 * @since 0.1.0
 */
export interface Slice<B> {
  readonly emit: ReadonlyArray<B>
  readonly isLast: boolean
}

/**
 * A reader from entry number `from` on: all that is there at once, then what comes, until the mailbox is closed.
 * `select` turns each stretch into what to emit. A reader that fell behind is never waited for: it goes on with the
 * oldest entry that is kept, and `onLag` says what to emit for the entries from `from` up to, not including, `to`, which
 * are gone. `isOver` is asked when nothing is left to read: whether nothing more can come for this reader.
 *
 * @stability unstable
 * @category reading
 * @since 0.1.0
 */
export const stream = <A, B, E = never>(
  self: Mailbox<A>,
  options: {
    readonly from: number
    readonly select: (entries: ReadonlyArray<A>) => Slice<B>
    readonly onLag: (from: number, to: number) => Effect.Effect<ReadonlyArray<B>, E>
    readonly isOver?: (() => boolean) | undefined
  }
): Stream.Stream<B, E> =>
  Stream.fromPull(
    Effect.sync(() => {
      let cursor = options.from
      let done = false
      const pull: Effect.Effect<Arr.NonEmptyReadonlyArray<B>, E | Cause.Done> = Effect.suspend(() => {
        if (done) return Cause.done()
        if (cursor < self.first) {
          const from = cursor
          cursor = self.first
          return Effect.flatMap(options.onLag(from, self.first), (emit) =>
            isNonEmpty(emit) ? Effect.succeed(emit) : pull
          )
        }
        if (cursor < self.next) {
          const slice = options.select(since(self, cursor))
          cursor = self.next
          done = slice.isLast
          return isNonEmpty(slice.emit) ? Effect.succeed(slice.emit) : pull
        }
        if (self.isClosed || options.isOver?.() === true) return Cause.done()
        return Effect.andThen(more(self, cursor), pull)
      })
      return pull
    })
  )

/** The entries from this number on; there is at least one. */
const since = <A>(self: Mailbox<A>, number: number): ReadonlyArray<A> => {
  const index = Math.floor((number - self.segments[0]!.from) / segmentSize)
  const segment = self.segments[index]!
  const entries = segment.entries.slice(number - segment.from)
  return index === self.segments.length - 1
    ? entries
    : entries.concat(...self.segments.slice(index + 1).map((later) => later.entries))
}

const more = <A>(self: Mailbox<A>, cursor: number): Effect.Effect<void> =>
  Effect.callback<void>((resume) => {
    // A fiber may be paused anywhere, so something may have come since the caller looked.
    if (cursor < self.next || self.isClosed) return resume(Effect.void)
    // Not within the writer's call: no reader's code runs inside whoever writes, and none holds it up.
    const wake = () => resume(Effect.yieldNow)
    self.waiters.add(wake)
    return Effect.sync(() => self.waiters.delete(wake))
  })

const isNonEmpty = <B>(items: ReadonlyArray<B>): items is Arr.NonEmptyReadonlyArray<B> => items.length > 0
