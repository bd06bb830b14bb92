// A slice of `npm run fuzz` that is the same every time.
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fuzz from "./Fuzz.ts"

const seed = 1
const cases: Readonly<Record<Fuzz.Name, number>> = {
  codec: 150,
  connection: 100,
  session: 60,
  sessions: 20,
  schema: 100
}

describe("garbage costs nothing but itself, and the valid frames beside it arrive once and in order", () => {
  it.live.each(Fuzz.names)("%s", (name) =>
    Effect.gen(function* () {
      for (let number = 0; number < cases[name]; number++) {
        const failure = yield* Fuzz.run(name, seed, number)
        assert.isUndefined(failure, failure && `case ${number}: ${failure.problem}\n${failure.input}`)
      }
    })
  )
})
