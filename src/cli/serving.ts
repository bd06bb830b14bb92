// The work of acp-sidecar serve: a sidecar, what listens for clients, and everything that ends both.
import * as NodeFileSystem from "@effect/platform-node/NodeFileSystem"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Latch from "effect/Latch"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import * as Address from "../Address.ts"
import * as NodeListener from "../NodeListener.ts"
import * as NodeProcessTable from "../NodeProcessTable.ts"
import * as Sidecar from "../Sidecar.ts"
import * as SidecarServer from "../SidecarServer.ts"
import { badInput, CommandFailure, exitCode, fromError } from "./failure.ts"
import * as LiveAgents from "./LiveAgents.ts"
import * as Output from "./output.ts"
import * as ServingParent from "./servingParent.ts"
import * as ServingToken from "./servingToken.ts"
import { withSidecar } from "./sidecar.ts"

export interface Options {
  readonly way:
    | { readonly _tag: "Stdio" }
    | { readonly _tag: "UnixSocket"; readonly path: string }
    | { readonly _tag: "WebSocket"; readonly host: string; readonly port: number }
  readonly tokenFile: string | undefined
  readonly id: string | undefined
  readonly exitWhenUnused: boolean
  readonly parent: number | undefined
  readonly isJson: boolean
}

/**
 * What the agents have to end once the parent is seen to be gone; after that they are killed. All of it within 5 s:
 * half a second may pass until it is seen, and a whole one until those that were killed are gone.
 */
const orphanGrace = "3 seconds"
/** What the rest may take then, before this process ends without it. */
const orphanEnd = "5 seconds"
/** How long the first client may take to come, with --exit-when-unused. */
const firstClient = "30 seconds"
/** How long clients may take to hear the last of a sidecar that one of them has disposed. */
const lastWords = "500 millis"

const inputErrors = ["NotLoopback", "SocketPathTooLong"]

const listener = (way: Options["way"]): Effect.Effect<NodeListener.Listener, CommandFailure, Scope.Scope> => {
  switch (way._tag) {
    case "Stdio":
      return NodeListener.stdio
    case "WebSocket":
      return Effect.mapError(NodeListener.webSocket(way), asFailure)
    case "UnixSocket":
      return NodeListener.unixSocket(way).pipe(
        Effect.provide(NodeFileSystem.layer),
        Effect.provide(NodeProcessTable.layer),
        Effect.mapError(asFailure)
      )
  }
}

const asFailure = (error: { readonly _tag: string; readonly message: string }): CommandFailure =>
  inputErrors.includes(error._tag) ? badInput(error.message) : fromError(error)

/** Tells people, and with `--json` programs, where it listens. */
const announce = Effect.fnUntraced(function* (
  place: NodeListener.Place,
  sidecarId: string,
  tokenFile: string | undefined,
  isJson: boolean
) {
  if (place._tag === "Stdio") return
  const where = place._tag === "UnixSocket" ? { socket: place.path } : { url: place.url }
  const token = tokenFile === undefined ? "" : `, its token is in ${tokenFile}`
  yield* Output.note(`listening on ${where.socket ?? where.url} (pid ${process.pid}${token})`)
  if (isJson) {
    yield* Output.json({ ...where, pid: process.pid, sidecarId, ...(tokenFile === undefined ? {} : { tokenFile }) })
  }
})

/** Ends when nobody uses the sidecar any more, or nobody ever has. */
const unused = (server: SidecarServer.SidecarServer["Service"]): Effect.Effect<void> =>
  // One that came and went meanwhile counts too.
  Effect.sync(() => server.welcomed() > 0).pipe(
    Effect.repeat({ schedule: Schedule.spaced("50 millis"), until: (isUsed) => isUsed }),
    Effect.timeoutOption(firstClient),
    Effect.andThen(server.unused)
  )

const serve = Effect.fnUntraced(function* (
  { exitWhenUnused, isJson }: Options,
  { place, run }: NodeListener.Listener,
  tokenFile: string | undefined,
  orphaned: Effect.Effect<void>
) {
  const sidecar = yield* Sidecar.Sidecar
  const server = yield* SidecarServer.SidecarServer
  const left = Latch.makeUnsafe(true)
  let connections = 0
  const running = yield* run((socket) =>
    Effect.acquireUseRelease(
      Effect.sync(() => {
        connections++
        left.closeUnsafe()
      }),
      () => server.serve(socket),
      () => Effect.sync(() => void (--connections === 0 && left.openUnsafe()))
    )
  ).pipe(Effect.forkScoped({ startImmediately: true }))
  // First of all, while clients are still there to hear of it.
  yield* Effect.addFinalizer(() => sidecar.dispose)
  yield* announce(place, sidecar.id, tokenFile, isJson)
  yield* Effect.raceAllFirst([
    orphaned,
    Effect.andThen(server.disposed, Effect.timeoutOption(left.await, lastWords)),
    ...(place._tag === "Stdio" ? [Fiber.join(running)] : []),
    ...(exitWhenUnused ? [unused(server)] : [])
  ])
}, Effect.scoped)

/** Where the memory of agents can't be read, all else is still there. */
const processTable = Layer.catch(NodeProcessTable.layer, () => Layer.empty)

export const main = Effect.fnUntraced(function* (options: Options) {
  const { id, way } = options
  const agents = yield* LiveAgents.LiveAgents

  const orphaned = yield* Deferred.make<void>()
  const gone = yield* ServingParent.gone({ parent: options.parent, isStdio: way._tag === "Stdio" })
  // Goes on while the sidecar is disposed, for whatever reason.
  yield* gone.pipe(
    Effect.andThen(Deferred.succeed(orphaned, void 0)),
    Effect.andThen(Effect.sleep(orphanGrace)),
    Effect.andThen(Effect.sync(agents.kill)),
    Effect.andThen(Effect.sleep(orphanEnd)),
    Effect.andThen(Effect.sync(() => process.exit(exitCode.failed))),
    Effect.forkScoped({ startImmediately: true })
  )

  const token =
    options.tokenFile !== undefined
      ? yield* ServingToken.fromFile(options.tokenFile)
      : way._tag === "WebSocket"
        ? yield* ServingToken.temporary
        : undefined
  const listening = yield* listener(way)
  yield* serve(options, listening, token?.file, Deferred.await(orphaned)).pipe(
    Effect.provide(SidecarServer.layer({ token: token?.value })),
    withSidecar,
    Effect.provide(processTable),
    Effect.provideService(Sidecar.Id, id === undefined ? undefined : Address.SidecarId.make(id))
  )
}, Effect.scoped)
