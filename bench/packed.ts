// The command and the bundled agent as they are packed, and as the sources are now.
import { spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"

const path = (file: string): string => fileURLToPath(new URL(`../${file}`, import.meta.url))

let isBuilt = false

/** The path of a file of `dist/`, which is built before, once in a run. */
export const file = (name: string): Effect.Effect<string> =>
  Effect.sync(() => {
    if (!isBuilt) {
      const { status, stderr, stdout } = spawnSync(process.execPath, [path("scripts/build.ts")], { encoding: "utf8" })
      if (status !== 0) throw new Error(`The build failed: ${stdout}${stderr}`)
      isBuilt = true
    }
    return path(`dist/${name}`)
  })
