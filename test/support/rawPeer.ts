// The other end of a connection as bytes: what it gets is scripted, what it sends is recorded, and it may stop reading.
import type * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import * as AcpTransport from "../../src/acp/AcpTransport.ts"

export interface Frame {
  readonly id?: string | number | null
  readonly method?: string
  readonly params?: unknown
  readonly result?: unknown
  readonly error?: { readonly code: number; readonly message: string; readonly data?: unknown }
}

const encoder = new TextEncoder()

/** A line: text is sent as it is, anything else as a JSON-RPC frame. */
const line = (frame: string | Frame): string =>
  `${typeof frame === "string" ? frame : JSON.stringify({ jsonrpc: "2.0", ...frame })}\n`

export class RawPeer {
  /** The frames that the peer has read. */
  readonly sent: Array<Frame> = []
  closed = 0
  #unread: Array<Frame> = []
  #capacity: number
  #incoming: Queue.Queue<Uint8Array, Cause.Done>
  #ended = Deferred.makeUnsafe<AcpTransport.TransportEnd>()
  #wake: () => void = () => {}
  readonly transport: AcpTransport.AcpTransport

  constructor(incoming: Queue.Queue<Uint8Array, Cause.Done>, capacity: number) {
    this.#incoming = incoming
    this.#capacity = capacity
    this.transport = {
      incoming: Stream.fromQueue(incoming),
      send: (bytes) => {
        if (this.#unread.length >= this.#capacity) return false
        this.#unread.push(JSON.parse(new TextDecoder().decode(bytes)))
        if (this.#capacity === Number.POSITIVE_INFINITY) this.read()
        return true
      },
      onRoom: (wake) => {
        this.#wake = wake
      },
      ended: Deferred.await(this.#ended),
      pid: undefined,
      stderrTail: () => "",
      close: Effect.sync(() => {
        this.closed++
        this.end()
      })
    }
  }

  /** Sends lines in one chunk. */
  feed(...frames: ReadonlyArray<string | Frame>): void {
    Queue.offerUnsafe(this.#incoming, encoder.encode(frames.map(line).join("")))
  }
  feedBytes(bytes: Uint8Array): void {
    Queue.offerUnsafe(this.#incoming, bytes)
  }
  /** Reads what waits, up to `count` frames, and says so to whoever waits for room, unless it is told not to yet. */
  read(count = Number.POSITIVE_INFINITY, quietly = false): void {
    this.sent.push(...this.#unread.splice(0, count))
    if (!quietly) this.#wake()
  }
  end(how: AcpTransport.TransportEnd = AcpTransport.exited({ code: 3, stderrTail: "gone" })): void {
    Queue.endUnsafe(this.#incoming)
    Deferred.doneUnsafe(this.#ended, Exit.succeed(how))
  }
}

/** A peer that reads everything at once, or, with a capacity, only when it is told to. */
export const make = (capacity = Number.POSITIVE_INFINITY): Effect.Effect<RawPeer> =>
  Effect.map(Queue.unbounded<Uint8Array, Cause.Done>(), (incoming) => new RawPeer(incoming, capacity))

const turn = Effect.promise(() => new Promise<void>((resolve) => setImmediate(resolve)))

/** Lets everything run that can, without time passing. */
export const settle: Effect.Effect<void> = Effect.repeat(turn, { times: 15 })

/** Waits for something to become true, without time passing. */
export const until = (condition: () => boolean): Effect.Effect<void> =>
  Effect.suspend(() => (condition() ? Effect.void : Effect.fail("not yet"))).pipe(
    Effect.tapError(() => turn),
    Effect.retry({ times: 5000 }),
    Effect.orDie
  )
