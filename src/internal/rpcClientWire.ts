/**
 * The client's side of a connection, as effect/rpc sees it: nobody waits for a slow reader of one stream, and the end of
 * the connection ends all calls at once.
 *
 * @internal
 */
import type * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Queue from "effect/Queue"
import * as RpcClient from "effect/rpc/RpcClient"
import { RpcClientDefect, RpcClientError } from "effect/rpc/RpcClientError"
import type { FromClientEncoded, FromServerEncoded } from "effect/rpc/RpcMessage"
import { constPing } from "effect/rpc/RpcMessage"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type * as Socket from "effect/socket/Socket"
import * as Stream from "effect/Stream"
import type * as SidecarLimits from "../SidecarLimits.ts"
import * as RpcWire from "./rpcWire.ts"

/**
 * Holds back what makes the server send the next piece of a stream until its reader has taken the one before, so that no
 * more than one piece is ever kept here. The server waits with that stream alone.
 */
interface Gate {
  isTaken: boolean
  isHeld: boolean
  requestId: string | number | undefined
}

const gateHeader = "acp-sidecar-gate"

export interface ClientWire {
  readonly protocol: RpcClient.Protocol["Service"]
  /** Reads until the connection ends, and then ends all calls. */
  readonly read: Effect.Effect<string>
  /** A stream of a call that is made with these options. */
  readonly gated: <A, E>(
    call: (options: GateOptions) => Effect.Effect<Queue.Dequeue<A, E>, never, Scope.Scope>
  ) => Stream.Stream<A, Exclude<E, Cause.Done<unknown>>>
}

/** What a call is told so that its stream is held back here. */
export interface GateOptions {
  readonly asQueue: true
  readonly streamBufferSize: number
  readonly headers: Readonly<Record<string, string>>
}

export const make = Effect.fnUntraced(function* (
  wire: RpcWire.Wire,
  options: {
    readonly limits: Pick<SidecarLimits.SidecarLimits, "heartbeatTimeout" | "maxLineBytes" | "mailboxBytes">
    readonly rest: ReadonlyArray<Uint8Array | string>
    /** Called once, with how it ended, and whether it did by itself. */
    readonly onEnd: (detail: string, byItself: boolean) => void
  }
): Effect.fn.Return<ClientWire, never, Scope.Scope> {
  const scope = yield* Effect.scope
  const parser = RpcWire.makeParser(RpcWire.maxMessage.ofServer(options.limits))
  const gates = new Map<string, Gate>()
  const gateOf = new Map<string | number, Gate>()
  let gateCount = 0
  let heard = 0
  let error: RpcClientError | undefined
  let deliver!: (message: FromServerEncoded) => Effect.Effect<void>

  const write = (message: FromClientEncoded): Effect.Effect<void> =>
    Effect.suspend(() => RpcWire.write(wire, parser.encode(message)!))

  // Neither the reader of the connection nor that of a stream waits for a server that does not read. One for each stream.
  const acknowledge = (message: FromClientEncoded): Effect.Effect<void> =>
    Effect.asVoid(Effect.forkIn(write(message), scope, { startImmediately: true }))

  const send = (message: FromClientEncoded): Effect.Effect<void, RpcClientError> => {
    if (error !== undefined) return Effect.fail(error)
    switch (message._tag) {
      case "Request": {
        const name = message.headers.find(([header]) => header === gateHeader)?.[1]
        const gate = name === undefined ? undefined : gates.get(name)
        if (gate !== undefined) {
          gate.requestId = message.id
          gateOf.set(message.id, gate)
        }
        return write({ ...message, headers: [] })
      }
      case "Ack": {
        const gate = gateOf.get(message.requestId)
        if (gate === undefined || gate.isTaken) {
          if (gate !== undefined) gate.isTaken = false
          return acknowledge(message)
        }
        gate.isHeld = true
        return Effect.void
      }
      default:
        return write(message)
    }
  }

  const protocol = yield* RpcClient.Protocol.make((writeResponse) => {
    // Known from the first call on, which may be over before the client runs; what is delivered then is kept for it.
    let client: number | undefined
    deliver = (message) => Effect.suspend(() => (client === undefined ? Effect.void : writeResponse(client, message)))
    return Effect.succeed({
      send: (clientId: number, message: FromClientEncoded) => {
        client = clientId
        return send(message)
      },
      supportsAck: true,
      supportsTransferables: false,
      codecFor: Schema.toCodecJson as RpcClient.Protocol["Service"]["codecFor"]
    })
  })

  const onMessage = (message: unknown): Effect.Effect<void, RpcWire.BrokenWire> => {
    heard++
    if (!RpcWire.isObject(message))
      return Effect.fail(new RpcWire.BrokenWire({ detail: "a message that is no object" }))
    switch (message["_tag"]) {
      case "Chunk":
        if (gateOf.get(message["requestId"] as string | number)?.isHeld === true)
          return Effect.fail(new RpcWire.BrokenWire({ detail: "more of a stream than was asked for" }))
        return deliver(message as unknown as FromServerEncoded)
      case "Exit":
        return deliver(message as unknown as FromServerEncoded)
      case "Pong":
        return Effect.void
      case "Defect":
        return Effect.fail(new RpcWire.BrokenWire({ detail: String(message["defect"]).slice(0, 400) }))
      default:
        return Effect.fail(new RpcWire.BrokenWire({ detail: "a message of a kind that there is not" }))
    }
  }

  const silent = RpcWire.silence(options.limits.heartbeatTimeout, () => heard, write(constPing))
  const read = RpcWire.readAll(wire, parser, options.rest, onMessage).pipe(
    Effect.catchTags({
      BrokenWire: ({ detail }) => Effect.succeed(detail),
      SocketError: (failure: Socket.SocketError) => Effect.succeed(reasonOf(failure))
    }),
    Effect.raceFirst(silent),
    Effect.onExit((exit) => {
      const detail = Exit.isSuccess(exit) ? exit.value : "this app has closed the connection"
      error = new RpcClientError({ reason: new RpcClientDefect({ message: detail, cause: undefined }) })
      // Before those who wait for an answer know of it.
      options.onEnd(detail, Exit.isSuccess(exit))
      gates.clear()
      gateOf.clear()
      return deliver({ _tag: "ClientProtocolError", error })
    })
  )

  const gated: ClientWire["gated"] = (call) =>
    Stream.unwrap(
      Effect.gen(function* () {
        const name = `${++gateCount}`
        const gate: Gate = { isTaken: false, isHeld: false, requestId: undefined }
        gates.set(name, gate)
        yield* Effect.addFinalizer(() =>
          Effect.sync(() => {
            gates.delete(name)
            if (gate.requestId !== undefined) gateOf.delete(gate.requestId)
          })
        )
        // Without a bound of its own, so that offering to it never holds up the reader: the gate is its bound.
        const queue = yield* call({
          asQueue: true,
          streamBufferSize: Number.POSITIVE_INFINITY,
          headers: { [gateHeader]: name }
        })
        const next = Effect.suspend(() => {
          if (!gate.isHeld) {
            gate.isTaken = true
            return Effect.void
          }
          gate.isHeld = false
          return acknowledge({ _tag: "Ack", requestId: gate.requestId! })
        })
        return Stream.fromPull(Effect.succeed(Effect.tap(Queue.takeAll(queue), () => next)))
      })
    )

  return { protocol, read, gated }
})

export const reasonOf = ({ message, reason }: Socket.SocketError): string => {
  if (reason._tag === "SocketCloseError") {
    return `the connection was closed${reason.closeReason === undefined ? "" : ` (${reason.closeReason})`}`
  }
  const cause = "cause" in reason && reason.cause instanceof Error ? reason.cause.message : ""
  return cause === "" ? message : cause
}
