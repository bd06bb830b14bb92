// Interruption at each operation of clients of a sidecar process, and connections that end at each of them.
import { assert, describe, it } from "@effect/vitest"
import { Sidecar, SidecarClient, SidecarServer } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import { pair } from "../src/testing/internal/memorySocket.ts"
import * as Strikes from "./support/strikes.ts"

const root = { root: "/work" }

interface World extends TestSidecar.Made {
  readonly server: SidecarServer.SidecarServer["Service"]
  readonly connect: Effect.Effect<SidecarClient.Connection, SidecarClient.ConnectError, Scope.Scope>
  /** Ends the servers of all connections. */
  readonly cut: Effect.Effect<void>
  readonly fibers: number
}

const world = (options: TestSidecar.Options, clientOptions: Partial<SidecarClient.Options>) =>
  Effect.gen(function* () {
    const made = yield* TestSidecar.make(options)
    const server = Context.get(
      yield* Layer.build(Layer.provide(SidecarServer.layer(), Layer.succeed(Sidecar.Sidecar, made.sidecar))),
      SidecarServer.SidecarServer
    )
    const scope = yield* Effect.scope
    const serving: Array<Fiber.Fiber<void>> = []
    const connect = Effect.gen(function* () {
      const [ours, theirs] = yield* pair()
      serving.push(yield* Effect.forkIn(server.serve(theirs), scope, { startImmediately: true }))
      return yield* SidecarClient.connect(ours, { client: "test", ...clientOptions })
    })
    const cut = Effect.suspend(() => Fiber.interruptAll(serving))
    return { ...made, server, connect, cut, fibers: yield* Strikes.liveFibers } satisfies World
  })

const nothingIsLeft = ({ fibers, server, sidecar, test }: World) =>
  Effect.gen(function* () {
    assert.strictEqual(server.clients(), 0, "clients")
    const { activePrompts, activeVmCount, hosts, state } = yield* sidecar.describe
    assert.deepStrictEqual(
      { activePrompts, activeVmCount, hosts: hosts.length, state },
      {
        activePrompts: 0,
        activeVmCount: 0,
        hosts: 0,
        state: "ready"
      }
    )
    assert.strictEqual(test.alive(), 0, "agents")
    yield* Strikes.assertFibers(fibers)
  })

const safe = <A, E>(
  body: (world: World) => Effect.Effect<A, E, Scope.Scope>,
  options: {
    readonly script?: TestSidecar.Options["script"]
    readonly client?: Partial<SidecarClient.Options>
    readonly strike?: (world: World) => Effect.Effect<unknown, unknown>
    readonly after?: (world: World) => Effect.Effect<unknown, unknown>
    readonly seeds?: number
  } = {}
): void => {
  const { after = nothingIsLeft, client = {}, script, seeds, strike } = options
  const runs = Strikes.assertSafe<World, A, E>({
    make: world({ script: script ?? { prompt: () => Effect.succeed("end_turn") } }, client),
    body,
    strike: strike === undefined ? undefined : (made) => Effect.andThen(Effect.yieldNow, strike(made)),
    seeds,
    check: (made, exit) =>
      Effect.gen(function* () {
        const isTyped = Exit.findErrorOption(exit)._tag === "Some"
        if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit) && !isTyped) yield* exit
        // One that went away before it said who it is had 5 seconds to say so.
        yield* Effect.sleep("6 seconds")
        yield* after(made)
      })
  })
  assert.isAbove(runs, 10)
}

const work = ({ connect }: World) =>
  Effect.gen(function* () {
    const { sidecar } = yield* connect
    const vm = yield* sidecar.openVm(root)
    const session = yield* vm.openSession({ agent: TestSidecar.profile })
    yield* session.prompt("go")
    const turn = yield* session.submit("more")
    yield* turn.await
    yield* session.close
    yield* vm.close
  })

describe("a client that goes away at whatever operation", () => {
  it("leaves nothing", () => {
    safe(({ connect }) => connect, { seeds: 2 })
    safe(work, { seeds: 3 })
  })

  it("leaves nothing of what it gives up on a connection that goes on", () => {
    const kept = ({ connect, ...rest }: World) =>
      Effect.gen(function* () {
        const { sidecar } = yield* connect
        yield* Effect.ignore(
          Effect.timeoutOption(Effect.scoped(work({ ...rest, connect: Effect.succeed({ sidecar }) as never })), 3)
        )
        // The very things that are left to a connection that goes on.
        assert.deepInclude(yield* sidecar.describe, { activeVmCount: 0, activePrompts: 0, hosts: [] })
        assert.strictEqual(rest.test.alive(), 0)
      })
    safe(kept, { seeds: 2 })
    const slowly = {
      newSession: () => Effect.as(Effect.sleep(5), { sessionId: "s" }),
      prompt: () => Effect.never
    } as const
    safe(kept, { seeds: 2, script: slowly })
  })

  it("leaves nothing with turns that go on, nor when it detaches and does not come back", () => {
    const prompt = () => Effect.never
    safe((made) => Effect.timeoutOption(work(made), 5), { seeds: 2, script: { prompt } })
    safe((made) => Effect.timeoutOption(work(made), 5), {
      client: { onDisconnect: "detach" },
      script: { prompt },
      after: (made) => Effect.andThen(Effect.sleep("11 minutes"), nothingIsLeft(made))
    })
  })
})

describe("a connection that ends at whatever operation of its client", () => {
  const typed = (made: World) =>
    Effect.gen(function* () {
      const exit = yield* Effect.exit(Effect.scoped(work(made)))
      if (Exit.isFailure(exit) && Exit.findErrorOption(exit)._tag === "None") yield* exit
    })

  it("leaves nothing, and fails its calls with typed errors", () => {
    safe(typed, { strike: ({ cut }) => cut, seeds: 3 })
    safe((made) => Effect.timeoutOption(typed(made), 20), {
      script: { prompt: () => Effect.never },
      strike: ({ cut }) => cut,
      seeds: 2
    })
  })
})
