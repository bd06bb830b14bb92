import { assert, describe, it } from "@effect/vitest"
import { Address, Admission, Sidecar, type SidecarLimits } from "acp-sidecar"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import { everywhere, type Place } from "./support/places.ts"
import * as Strikes from "./support/strikes.ts"
import { assertEnded, events, hanging, stuck } from "./support/turns.ts"

const safeAt =
  (place: Place) =>
  <A, E>(
    script: ScriptedAgent.Script,
    body: (world: Strikes.World) => Effect.Effect<A, E, Scope.Scope>,
    options: {
      readonly limits?: SidecarLimits.Overrides
      readonly strike?: (world: Strikes.World) => Effect.Effect<unknown, unknown>
      /** Whether the session takes prompts afterwards. */
      readonly usable?: boolean
      /** Whether the body may leave a turn behind, since it submits: that one goes on without it. */
      readonly submits?: boolean
      readonly seeds?: number
    } = {}
  ): void => {
    const { limits, submits = true, usable = true, ...rest } = options
    const runs = Strikes.assertSafe<Strikes.World, A, E>({
      make: Strikes.world({ script, limits, permission: "ask", place }),
      body,
      ...rest,
      check: ({ fibers, session, sidecar }, exit) =>
        Effect.gen(function* () {
          if (Exit.isFailure(exit) && !Exit.hasInterrupts(exit)) yield* exit
          for (;;) {
            const { turns } = yield* session.describe
            if (turns.length === 0) break
            assert.isTrue(submits, "a turn of nobody")
            yield* session.cancel()
          }
          yield* assertEnded(session).pipe(Effect.provideService(Sidecar.Sidecar, sidecar))
          let started: string | undefined
          for (const event of yield* events(session)) {
            if (event._tag === "TurnEnded" && event.turnId === started) started = undefined
            if (event._tag !== "TurnStarted") continue
            assert.isUndefined(started, "one turn at a time")
            started = event.turnId
          }
          yield* Strikes.assertFibers(fibers)
          if (!usable) return
          const again = yield* session.submit("again")
          assert.isTrue(yield* again.dispatched)
          yield* again.cancel
          yield* assertEnded(session).pipe(Effect.provideService(Sidecar.Sidecar, sidecar))
        }).pipe(Effect.orDie),
      closed: Strikes.assertGone
    })
    assert.isAbove(runs, 10)
  }

const polite: ScriptedAgent.Script = {
  prompt: (turn) => (turn.text === "quick" ? Effect.as(turn.say("ok"), "end_turn") : Effect.never)
}

everywhere("whoever goes away, at whatever operation, nothing is left", (_layer, place) => {
  const safe = safeAt(place)
  it("of a prompt", () => {
    safe(polite, ({ session }) => session.prompt("quick"), { submits: false, seeds: 3 })
  })

  it("of a prompt with deadlines", () => {
    safe(polite, ({ session }) => Effect.exit(session.prompt("slow", { idleTimeout: 5000, wallTimeout: 7000 })), {
      submits: false,
      seeds: 2
    })
  })

  it("of a turn that is submitted and awaited", () => {
    safe(polite, ({ session }) => Effect.flatMap(session.submit("quick"), (turn) => turn.await), { seeds: 3 })
  })

  it("of one that waits behind another", () => {
    safe(polite, ({ session }) =>
      Effect.gen(function* () {
        const one = yield* session.submit("slow")
        const two = yield* Effect.forkChild(session.prompt("quick"), { startImmediately: true })
        yield* one.cancel
        return yield* Fiber.join(two)
      })
    )
  })

  it("of ones that wait for a permit of the Vm and of the sidecar, in both lanes", () => {
    safe(
      polite,
      ({ session, vm }) =>
        Effect.gen(function* () {
          const other = yield* vm.openSession({ agent: TestSidecar.profile })
          const one = yield* other.submit("slow")
          const two = yield* Effect.forkChild(session.prompt("quick", { lane: "background" }), {
            startImmediately: true
          })
          yield* one.cancel
          return yield* Fiber.join(two)
        }),
      { limits: { maxPromptsPerVm: 1, maxPromptsPerSidecar: 1 } }
    )
  })

  it("of a cancel", () => {
    safe(polite, ({ session }) => Effect.flatMap(session.submit("slow"), (turn) => turn.cancel), { seeds: 3 })
  })

  it("of a cancel that has to go all the way", () => {
    safe(stuck, ({ session }) => Effect.flatMap(session.submit("slow"), (turn) => turn.cancel), { usable: false })
  })

  it("of a replacement", () => {
    safe(polite, ({ session }) =>
      Effect.gen(function* () {
        yield* session.submit("slow")
        yield* session.submit("waits")
        return yield* session.prompt("quick", { onBusy: "replace" })
      })
    )
  })

  it("of a turn with a question", () => {
    safe(
      {
        prompt: (turn) =>
          turn.text === "ask"
            ? Effect.map(turn.ask(), (answer) => (answer._tag === "Selected" ? "end_turn" : "refusal"))
            : Effect.never
      },
      ({ session }) =>
        Effect.gen(function* () {
          const turn = yield* Effect.forkChild(session.prompt("ask"), { startImmediately: true })
          for (;;) {
            const [question] = yield* session.pendingPermissions
            if (question !== undefined) {
              yield* session.answer(question.permissionId, "allow")
              break
            }
            yield* Effect.sleep(1)
          }
          return yield* Fiber.join(turn)
        })
    )
  })

  it("of a close during a turn and one that waits", () => {
    safe(
      hanging,
      ({ session }) =>
        Effect.gen(function* () {
          yield* session.submit("one")
          yield* session.submit("two")
          // Once begun it goes on without its caller, so it is awaited here whatever happens.
          yield* Effect.ensuring(session.close, session.close)
        }),
      { usable: false }
    )
  })
})

describe("a permit is never lost, whoever is interrupted at whatever operation", () => {
  const address = { sidecarId: Address.SidecarId.make("sidecar") }
  interface Gates {
    readonly gate: Admission.Gate
    waiter: Fiber.Fiber<unknown> | undefined
  }
  const gates = (lane: Admission.Lane, strike: ((world: Gates) => Effect.Effect<unknown>) | undefined) =>
    Strikes.assertSafe<Gates, void, never>({
      make: Effect.sync(() => ({
        gate: Admission.make({
          address,
          scope: "vm",
          limit: "maxPromptsPerVm",
          max: 2,
          reserved: 1,
          emit: () => undefined
        }),
        waiter: undefined
      })),
      body: (world) =>
        Effect.gen(function* () {
          const use = (key: string) =>
            Effect.forkChild(Admission.withPermit(world.gate, key, lane)(Effect.sleep(10)), { startImmediately: true })
          const fibers = [yield* use("a"), yield* use("a"), yield* use("b"), yield* use("c")]
          world.waiter = fibers[2]
          yield* Effect.forEach(fibers, Fiber.await)
        }),
      maxPoints: Number.POSITIVE_INFINITY,
      strike,
      check: ({ gate }) =>
        Effect.sync(() => {
          assert.strictEqual(gate.usage.used, 0)
          assert.strictEqual(gate.background, 0)
          assert.strictEqual(gate.waiting.size, 0)
        })
    })

  for (const lane of ["interactive", "background"] as const) {
    it(`in the ${lane} lane`, () => {
      assert.isAbove(gates(lane, undefined), 50)
      assert.isAbove(
        gates(lane, (world) => Effect.sync(() => world.waiter?.interruptUnsafe())),
        50
      )
    })
  }
})

everywhere("whatever happens at whatever operation of a turn, it ends once and leaves nothing", (_layer, place) => {
  const safe = safeAt(place)
  const two = ({ session }: Strikes.World) =>
    Effect.gen(function* () {
      const one = yield* Effect.forkChild(Effect.exit(session.prompt("quick")), { startImmediately: true })
      yield* Effect.exit(session.prompt("quick"))
      yield* Fiber.join(one)
    })

  it("a cancel", () => {
    safe(polite, two, { strike: ({ session }) => session.cancel(), seeds: 2 })
  })

  it("a close of the session", () => {
    safe(polite, two, { strike: ({ session }) => session.close, usable: false, seeds: 2 })
  })

  it("a close of the Vm", () => {
    safe(polite, two, { strike: ({ vm }) => vm.close, usable: false })
  })

  it("a dispose", () => {
    safe(polite, two, { strike: ({ sidecar }) => sidecar.dispose, usable: false })
  })

  it("a crash", () => {
    safe(polite, two, { strike: ({ agent }) => agent.crash(), usable: false, seeds: 2 })
  })

  it("a prompt that replaces it", () => {
    safe(polite, two, {
      strike: ({ session }) => Effect.exit(session.prompt("quick", { onBusy: "replace" })),
      seeds: 2
    })
  })

  it("a close while an agent that ignores it is being cancelled", () => {
    safe(stuck, ({ session }) => Effect.exit(Effect.flatMap(session.submit("slow"), (turn) => turn.cancel)), {
      strike: ({ session }) => session.close,
      usable: false
    })
  })

  it("a crash while it is being cancelled", () => {
    safe(stuck, ({ session }) => Effect.exit(Effect.flatMap(session.submit("slow"), (turn) => turn.cancel)), {
      strike: ({ agent }) => agent.crash(),
      usable: false
    })
  })
})
