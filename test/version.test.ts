import { assert, it } from "@effect/vitest"
import pkg from "../package.json" with { type: "json" }
import { version } from "../src/internal/version.ts"

it("the sidecar introduces itself to agents with the version of the package", () => {
  assert.strictEqual(version, pkg.version)
})
