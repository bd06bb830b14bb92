/**
 * Two ends of one connection, in memory.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Socket from "effect/socket/Socket"

const closed = (code: number) => new Socket.SocketError({ reason: new Socket.SocketCloseError({ code }) })

type Bytes = Queue.Queue<Uint8Array | string, Socket.SocketError>

const end = (incoming: Bytes, outgoing: Bytes): Socket.Socket => {
  const close = Effect.andThen(Queue.fail(incoming, closed(1000)), Queue.fail(outgoing, closed(1000)))
  const write = (chunk: Uint8Array | string | Socket.CloseEvent): Effect.Effect<void, Socket.SocketError> =>
    Socket.isCloseEvent(chunk)
      ? Effect.asVoid(close)
      : Effect.flatMap(Queue.offer(outgoing, chunk), (isTaken) =>
          isTaken
            ? Effect.void
            : Effect.fail(
                new Socket.SocketError({ reason: new Socket.SocketWriteError({ cause: new Error("socket closed") }) })
              )
        )
  return Socket.make({
    reader: Effect.acquireRelease(
      Effect.succeed<Socket.Reader>({
        pull: Queue.takeAll(incoming),
        upgrade: Socket.SocketUpgradeError.unsupported
      }),
      () => close
    ),
    writer: Effect.succeed({
      write,
      writeAll: (chunks) => Effect.forEach(chunks, write, { discard: true })
    })
  })
}

/** A connection that keeps `capacity` pieces each way; whoever writes more waits. */
export const pair = (capacity = 64): Effect.Effect<readonly [Socket.Socket, Socket.Socket]> =>
  Effect.gen(function* () {
    const one: Bytes = yield* Queue.bounded<Uint8Array | string, Socket.SocketError>(capacity)
    const other: Bytes = yield* Queue.bounded<Uint8Array | string, Socket.SocketError>(capacity)
    return [end(one, other), end(other, one)]
  })
