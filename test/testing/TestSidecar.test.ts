import { assert, describe, it } from "@effect/vitest"
import { Sidecar } from "acp-sidecar"
import { Simulation, TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"

describe("a test sidecar that is made in a scope", () => {
  it.effect("is a whole sidecar, which goes with the scope", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const { context, sidecar, test } = yield* Scope.provide(TestSidecar.make(), scope)
      const { session } = yield* Effect.provideContext(TestSidecar.open(), context).pipe(Scope.provide(scope))
      assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
      assert.deepInclude(yield* sidecar.describe, { state: "ready", activeVmCount: 1 })
      assert.strictEqual(test.alive(), 1)
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual((yield* sidecar.describe).state, "disposed")
      assert.strictEqual(test.alive(), 0)
    })
  )

  it.effect("is another one than those around it", () =>
    Effect.gen(function* () {
      const outer = yield* Sidecar.Sidecar
      const { sidecar } = yield* TestSidecar.make()
      const { sidecar: third } = yield* TestSidecar.make()
      assert.strictEqual(new Set([outer, sidecar, third]).size, 3)
    }).pipe(Effect.provide(TestSidecar.layer()))
  )

  it("runs the same from the same seed, to the last operation", () => {
    const program = Effect.gen(function* () {
      const { context } = yield* TestSidecar.make({
        script: { prompt: (turn) => Effect.as(Effect.delay(turn.say("ok"), "1 second"), "end_turn") }
      })
      const turns = Effect.gen(function* () {
        const { session } = yield* TestSidecar.open()
        const cancelled = Effect.flatMap(session.submit("c"), (turn) => turn.cancel)
        const all = [session.prompt("a"), session.prompt("b"), cancelled]
        yield* Simulation.trace(JSON.stringify(yield* Effect.all(all, { concurrency: "unbounded" })))
      })
      yield* Effect.provideContext(turns, context)
    })
    const shown = ({ scheduler, trace }: Simulation.Here) => [trace, scheduler.decisions, scheduler.operations]
    for (let seed = 0; seed < 15; seed++) {
      const run = Simulation.run(program, { seed })
      assert.isUndefined(Simulation.failureOf(run))
      assert.deepStrictEqual(shown(Simulation.run(program, { seed })), shown(run))
      const { decisions } = run.scheduler
      assert.deepStrictEqual(shown(Simulation.run(program, { seed, decisions })), shown(run))
    }
  })
})
