import { assert, it } from "@effect/vitest"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import { program } from "../examples/share.ts"
import { provided } from "./support/events.ts"
import { everywhere } from "./support/places.ts"

everywhere("examples/share.ts", (layer) => {
  it.effect("has ten conversations in one process, and says why another does not join", () =>
    Effect.gen(function* () {
      const questions = Array.from({ length: 10 }, (_, index) => `Question ${index}?`)
      const { ends, hosts, why } = yield* program(["some-agent", "--acp"], questions)
      assert.deepStrictEqual(new Set(ends.map((end) => end._tag)), new Set(["Completed"]))
      assert.lengthOf(hosts, 1)
      assert.strictEqual(hosts[0]!.leases, 10)
      assert.strictEqual(why, "They don't share: the environment differs in TEAM_KEY.")
      const launches = (yield* TestSidecar.TestSidecar).launches()
      assert.lengthOf(launches, 1)
      assert.notProperty(launches[0]!.env, "CHAT")
    }).pipe(provided(layer()))
  )
})
