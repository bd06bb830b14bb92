// What becomes of a client's work, wherever it is, when the client goes away or is cut off.
import { assert, describe, it } from "@effect/vitest"
import type { ScriptedAgent } from "acp-sidecar/testing"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import * as Strikes from "./support/strikes.ts"

const { profile } = TestSidecar

const script: ScriptedAgent.Script = {
  prompt: (turn) =>
    turn.text === "ask"
      ? Effect.as(turn.ask(), "end_turn")
      : turn.text === "quick"
        ? Effect.as(turn.say("ok"), "end_turn")
        : Effect.never
}

/** Nothing of the client is left, and the sidecar takes the next one. */
const gone = ({ alive, between, embedded, gauges }: Strikes.Bare) =>
  Effect.gen(function* () {
    // Its agents take their time to end.
    yield* Effect.sleep("1 second")
    assert.strictEqual(between!.clients(), 0, "clients")
    assert.strictEqual(alive(), 0, "agents")
    const used = Object.keys(gauges()).filter((name) => !name.startsWith("acp_sidecar.limit.max"))
    assert.deepStrictEqual(used, [], "gauges")
    assert.deepInclude(yield* embedded.describe, { state: "ready", activeVmCount: 0, vms: [], hosts: [] })
    yield* Effect.scoped(
      Effect.gen(function* () {
        const { sidecar } = yield* between!.connect
        const session = yield* (yield* sidecar.openVm({ root: "/next" })).openSession({ agent: profile })
        assert.strictEqual((yield* session.prompt("quick"))._tag, "Completed")
      })
    )
    yield* Effect.sleep("1 second")
    assert.strictEqual(between!.clients(), 0, "clients")
    assert.strictEqual(alive(), 0, "agents")
  })

const safe = (
  strike: (world: Strikes.Bare) => Effect.Effect<unknown>,
  body: (world: Strikes.Bare) => Effect.Effect<unknown, unknown, Scope.Scope>,
  options: { readonly seeds?: number } = {}
): void => {
  const runs = Strikes.assertSafe<Strikes.Bare, Exit.Exit<unknown, unknown>, never>({
    make: Strikes.bare({ script, spawn: 5, place: "remote" }),
    // What it comes to is typed, whatever it is.
    body: (world) => Effect.exit(body(world)),
    strike,
    check: (world, exit) =>
      Effect.gen(function* () {
        const inner = yield* exit
        const known = [
          "Disposed",
          "SessionUnusable",
          "TurnFailed",
          "AgentCallFailed",
          "NotFound",
          "PermissionNotPending"
        ]
        if (Exit.isFailure(inner)) {
          const error = Exit.findErrorOption(inner)
          assert.isTrue(error._tag === "Some" && known.includes((error.value as { _tag: string })._tag), String(inner))
        }
        // Where the strike came after the work, the client is still there.
        yield* strike(world)
        yield* gone(world)
      }),
    closed: Strikes.assertGone,
    ...options
  })
  assert.isAbove(runs, 10)
}

for (const [what, strike] of [
  ["goes away", ({ between }: Strikes.Bare) => between!.leave],
  ["is cut off", ({ between }: Strikes.Bare) => between!.drop]
] as const) {
  describe(`a client that ${what} at whatever operation leaves nothing`, () => {
    it("of a Vm and a session that it opens", () => {
      safe(strike, ({ sidecar }) =>
        Effect.gen(function* () {
          const vm = yield* sidecar.openVm({ root: "/other" })
          yield* vm.openSession({ agent: profile })
        })
      )
    })

    it("of its turns, also one that waits", () => {
      safe(strike, ({ vm }) =>
        Effect.gen(function* () {
          const session = yield* vm.openSession({ agent: profile })
          const slow = yield* session.submit("slow")
          const quick = yield* Effect.forkChild(session.prompt("quick"), { startImmediately: true })
          yield* slow.cancel
          return yield* Fiber.join(quick)
        })
      )
    })

    it("of a question that its own function is asked", () => {
      safe(strike, ({ vm }) =>
        Effect.gen(function* () {
          const session = yield* vm.openSession({
            agent: profile,
            permission: () => Effect.as(Effect.sleep(5), "allow" as const)
          })
          return yield* session.prompt("ask")
        })
      )
    })

    it("of a probe, nor of what it closes", () => {
      safe(strike, ({ vm }) =>
        Effect.gen(function* () {
          const session = yield* vm.openSession({ agent: profile })
          yield* vm.probe({ agent: profile })
          yield* session.close
          yield* vm.close
        })
      )
    })
  })
}

describe("a client that is connecting, struck at whatever operation", () => {
  it("leaves nothing", () => {
    const runs = Strikes.assertSafe<Strikes.Bare, unknown, unknown>({
      make: Strikes.bare({ script, place: "remote" }),
      body: ({ between }) => Effect.flatMap(between!.connect, ({ sidecar }) => sidecar.describe),
      check: ({ between, fibers }, exit) =>
        Effect.gen(function* () {
          if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit)) yield* exit
          assert.strictEqual(between!.clients(), 1)
          yield* Strikes.assertFibers(fibers)
        }),
      closed: Strikes.assertGone,
      seeds: 2
    })
    assert.isAbove(runs, 10)
  })
})
