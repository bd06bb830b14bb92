import { assert, describe, it } from "@effect/vitest"
import { Sidecar } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
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
})
