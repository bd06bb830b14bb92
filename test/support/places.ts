// One suite for both places that a sidecar can have: in the app itself, and behind a connection.
import { describe } from "@effect/vitest"
import { Sidecar, SidecarClient, SidecarServer } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { pair } from "../../src/testing/internal/memorySocket.ts"

export type Place = "embedded" | "remote"

/**
 * Runs a suite once for each place, with the `TestSidecar.layer` of that place. What only an embedded sidecar can promise
 * asks for its `place`, and says why.
 */
export const everywhere = (name: string, suite: (layer: typeof TestSidecar.layer, place: Place) => void): void => {
  for (const place of ["embedded", "remote"] as const) {
    describe(`${name} (${place})`, () => suite((options) => TestSidecar.layer({ ...options, place }), place))
  }
}

export interface Behind {
  readonly sidecar: Sidecar.Sidecar["Service"]
  /** How many clients its server has. */
  readonly clients: () => number
  /** Another connection to its server; it is there until the current scope closes. */
  readonly connect: Effect.Effect<SidecarClient.Connection, SidecarClient.ConnectError, Scope.Scope>
  /** The client goes away. */
  readonly leave: Effect.Effect<void>
  /** The server closes the connection of that client. */
  readonly drop: Effect.Effect<void>
}

/** The sidecar behind a connection, as its client sees it, until the current scope closes. */
export const behind = Effect.fnUntraced(function* (
  sidecar: Sidecar.Sidecar["Service"]
): Effect.fn.Return<Behind, SidecarClient.ConnectError, Scope.Scope> {
  const context = yield* Layer.build(Layer.provide(SidecarServer.layer(), Layer.succeed(Sidecar.Sidecar, sidecar)))
  const { clients, serve } = Context.get(context, SidecarServer.SidecarServer)
  const scope = yield* Effect.scope
  const dial = Effect.gen(function* () {
    // A transport that is opened is closed, also one that nobody came to use.
    const [ours, theirs] = yield* Effect.acquireRelease(pair(), ([end]) => Effect.ignore(Effect.scoped(end.reader)))
    const serving = yield* Effect.forkIn(serve(theirs), scope, { startImmediately: true })
    return { serving, connection: yield* SidecarClient.connect(ours, { client: "test" }) }
  })
  const client = yield* Scope.fork(scope)
  const { connection, serving } = yield* Scope.provide(dial, client)
  return {
    sidecar: connection.sidecar,
    clients,
    connect: Effect.map(dial, ({ connection: another }) => another),
    leave: Scope.close(client, Exit.void),
    drop: Fiber.interrupt(serving)
  }
})

/** The sidecar of a layer that is not `TestSidecar.layer`, at a place. */
export const placed =
  (place: Place) =>
  <E, R>(layer: Layer.Layer<Sidecar.Sidecar, E, R>): Layer.Layer<Sidecar.Sidecar, E, R> => {
    if (place === "embedded") return layer
    const client = Effect.gen(function* () {
      const { sidecar } = yield* behind(yield* Sidecar.Sidecar)
      return sidecar
    })
    return Layer.provide(Layer.effect(Sidecar.Sidecar, Effect.orDie(client)), layer)
  }
