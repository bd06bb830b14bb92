// Clients of a sidecar, over connections in memory.
import { Sidecar, SidecarClient, SidecarServer } from "acp-sidecar"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import type * as Socket from "effect/socket/Socket"
import { pair } from "../../src/testing/internal/memorySocket.ts"
import { beside } from "./events.ts"

export interface Served {
  readonly server: SidecarServer.SidecarServer["Service"]
  /** A new connection: the client's end of it. Its server ends with the current scope. */
  readonly dial: Effect.Effect<Socket.Socket, never, Scope.Scope>
  /** Dials and connects. */
  readonly connect: (
    options?: Partial<SidecarClient.Options>
  ) => Effect.Effect<SidecarClient.Connection, SidecarClient.ConnectError, Scope.Scope>
}

/** Serves the sidecar of the test until the current scope closes. */
export const serve = Effect.fnUntraced(function* (
  options: SidecarServer.Options = {}
): Effect.fn.Return<Served, never, Sidecar.Sidecar | Scope.Scope> {
  const sidecar = yield* Sidecar.Sidecar
  const server = Context.get(
    yield* Layer.build(Layer.provide(SidecarServer.layer(options), Layer.succeed(Sidecar.Sidecar, sidecar))),
    SidecarServer.SidecarServer
  )
  const dial = Effect.gen(function* () {
    const [ours, theirs] = yield* pair()
    yield* beside(server.serve(theirs))
    return ours
  })
  return {
    server,
    dial,
    connect: (given = {}) =>
      Effect.flatMap(dial, (socket) => SidecarClient.connect(socket, { client: "test", ...given }))
  }
})

/** A client that writes what it likes, line by line. */
export const raw = Effect.fnUntraced(function* (socket: Socket.Socket) {
  const writer = yield* socket.writer
  const reader = yield* socket.reader
  const decoder = new TextDecoder()
  let text = ""
  return {
    write: (value: unknown) =>
      Effect.orDie(writer.write(typeof value === "string" ? value : `${JSON.stringify(value)}\n`)),
    /** The next line as JSON; `undefined` once the connection has ended. */
    read: Effect.gen(function* () {
      while (!text.includes("\n")) {
        const chunks = yield* Effect.catch(reader.pull, () => Effect.succeed(undefined))
        if (chunks === undefined) return undefined
        for (const chunk of chunks) text += typeof chunk === "string" ? chunk : decoder.decode(chunk, { stream: true })
      }
      const end = text.indexOf("\n")
      const line = text.slice(0, end)
      text = text.slice(end + 1)
      // oxlint-disable-next-line typescript/no-explicit-any -- any message at all
      return JSON.parse(line) as Readonly<Record<string, any>>
    })
  }
})

export const hello = (given: Readonly<Record<string, unknown>> = {}) => ({ acpSidecar: 1, client: "raw", ...given })

/** A call as it stands on the wire. */
export const request = (id: unknown, tag: string, payload: unknown = null) => ({
  _tag: "Request",
  id,
  tag,
  payload,
  headers: []
})
