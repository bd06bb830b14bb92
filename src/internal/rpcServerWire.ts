/**
 * One connection of a client, as effect/rpc sees it: messages are looked at before they get in, calls are counted, and
 * control goes ahead of updates.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Latch from "effect/Latch"
import * as Queue from "effect/Queue"
import type { FromClientEncoded, FromServerEncoded } from "effect/rpc/RpcMessage"
import { constPong } from "effect/rpc/RpcMessage"
import * as RpcServer from "effect/rpc/RpcServer"
import * as Schema from "effect/Schema"
import * as Semaphore from "effect/Semaphore"
import type * as Socket from "effect/socket/Socket"
import type * as Address from "../Address.ts"
import * as SidecarError from "../SidecarError.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import * as SidecarRpc from "../SidecarRpc.ts"
import * as RpcWire from "./rpcWire.ts"

/** Answers that a client has not taken yet; beyond them nothing more is read from it. */
const maxUntaken = 1024

type Kind = "control" | "work" | "ending"

const encodeExit = Schema.encodeUnknownSync(
  Schema.toCodecJson(Schema.Exit(Schema.Never, SidecarError.LimitExceeded, Schema.Never))
)

export const make = Effect.fnUntraced(function* (
  wire: RpcWire.Wire,
  options: {
    readonly address: Address.Address
    readonly limits: SidecarLimits.SidecarLimits
  }
): Effect.fn.Return<{
  readonly protocol: RpcServer.Protocol["Service"]
  /** Reads until the connection ends or breaks, and says why it did. */
  readonly read: Effect.Effect<string>
}> {
  const { address, limits } = options
  const parser = RpcWire.makeParser(RpcWire.maxMessage.ofClient(limits))
  const active = new Map<string | number, Kind>()
  const used = { control: 0, work: 0, ending: 0 }
  // One at a time and in turn: a control answer then has at most one piece of a stream before it.
  const streams = yield* Semaphore.make(1)
  const taken = yield* Latch.make(true)
  const over = yield* Latch.make(false)
  let isOver = false
  let untaken = 0
  let heard = 0
  let writeRequest!: (clientId: number, message: FromClientEncoded) => Effect.Effect<void>

  // A connection that is gone is seen by its reader. Nobody waits for a client that is no longer read from.
  const write = (message: FromServerEncoded): Effect.Effect<void> =>
    Effect.suspend(() =>
      isOver ? Effect.void : Effect.raceFirst(RpcWire.write(wire, parser.encode(message)!), over.await)
    )
  const answer = (message: FromServerEncoded): Effect.Effect<void> =>
    Effect.suspend(() => {
      if (++untaken >= maxUntaken) taken.closeUnsafe()
      return Effect.ensuring(
        write(message),
        Effect.sync(() => {
          if (--untaken < maxUntaken) taken.openUnsafe()
        })
      )
    })
  const end = (id: string | number): void => {
    const kind = active.get(id)
    if (kind === undefined) return
    active.delete(id)
    used[kind]--
  }
  /** Its client has no more use for it, and may have its room for the next call while it ends; so many at once. */
  const giveUp = (id: string | number): void => {
    const kind = active.get(id)
    if (kind === undefined || kind === "ending" || used.ending >= limits.maxCallsPerClient) return
    active.set(id, "ending")
    used[kind]--
    used.ending++
  }

  const protocol = yield* RpcServer.Protocol.make((writeRequest_) => {
    writeRequest = writeRequest_
    return Effect.map(Queue.make<number>(), (disconnects) => ({
      disconnects,
      send: (_client: number, message: FromServerEncoded) => {
        if (message._tag === "Chunk") return streams.withPermit(write(message))
        if (message._tag === "Exit") end(message.requestId)
        return answer(message)
      },
      end: () => Effect.void,
      clientIds: Effect.succeed(new Set([0])),
      initialMessage: Effect.succeedNone,
      supportsAck: true,
      supportsTransferables: false,
      supportsSpanPropagation: false,
      supportsNotifications: false,
      codecFor: Schema.toCodecJson as RpcServer.Protocol["Service"]["codecFor"]
    }))
  })

  const request = (message: Readonly<Record<string, unknown>>): Effect.Effect<void, RpcWire.BrokenWire> => {
    const { id, payload, tag } = message
    if (!RpcWire.isId(id) || typeof tag !== "string") return broken("a request without id or tag")
    if (active.has(id)) return broken(`request ${JSON.stringify(id)} came twice`)
    const kind = SidecarRpc.isControl(tag) ? "control" : "work"
    const limit = kind === "control" ? "maxControlCallsPerClient" : "maxCallsPerClient"
    if (used[kind] >= limits[limit]) {
      const setting = SidecarLimits.setting(limit)
      const error = new SidecarError.LimitExceeded({
        address,
        scope: "client",
        limit,
        max: limits[limit],
        used: used[kind],
        setting
      })
      return answer({ _tag: "Exit", requestId: id, exit: encodeExit(Exit.fail(error)) as never })
    }
    active.set(id, kind)
    used[kind]++
    // What a call that takes nothing is given is null on this wire.
    return writeRequest(0, { _tag: "Request", id, tag, payload: payload ?? null, headers: [] })
  }
  const onMessage = (message: unknown): Effect.Effect<void, RpcWire.BrokenWire> => {
    heard++
    if (!RpcWire.isObject(message)) return broken("a message that is no object")
    switch (message["_tag"]) {
      case "Request":
        return Effect.andThen(taken.await, request(message))
      case "Ack":
      case "Interrupt": {
        const { requestId } = message
        if (!RpcWire.isId(requestId)) return broken("a message without request id")
        // Of a call that has ended meanwhile, or that there never was.
        if (!active.has(requestId)) return Effect.void
        if (message["_tag"] === "Interrupt") giveUp(requestId)
        return writeRequest(0, { _tag: message["_tag"], requestId })
      }
      case "Ping":
        return answer(constPong)
      case "Eof":
        return broken("the end of its input")
      default:
        return broken("a message of a kind that there is not")
    }
  }

  const silent = RpcWire.silence(limits.heartbeatTimeout, () => heard, Effect.void)
  const read = RpcWire.readAll(wire, parser, [], onMessage).pipe(
    Effect.catchTags({
      BrokenWire: ({ detail }) =>
        // It may not read any more, so nobody waits for long.
        Effect.as(
          Effect.timeoutOption(write({ _tag: "Defect", defect: `The connection is closed: ${detail}.` }), "1 second"),
          detail
        ),
      SocketError: (error: Socket.SocketError) => Effect.succeed(error.message)
    }),
    Effect.raceFirst(silent),
    Effect.ensuring(
      Effect.suspend(() => {
        isOver = true
        return over.open
      })
    )
  )
  return { protocol, read }
})

const broken = (detail: string) => Effect.fail(new RpcWire.BrokenWire({ detail }))
