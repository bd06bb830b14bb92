// Sidecars of the demo as processes, which run this very program.
import { realpathSync } from "node:fs"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as NodeConnector from "../NodeConnector.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import * as SidecarPool from "../SidecarPool.ts"

/** Each time another one. */
export const sidecar = Effect.gen(function* () {
  const pool = yield* SidecarPool.SidecarPool
  const handle = yield* pool.explicit()
  return yield* handle.sidecar
})

export const layer = Layer.unwrap(
  Effect.sync(() => {
    const program = realpathSync(process.argv[1] ?? "")
    return Layer.provide(SidecarPool.layer, NodeConnector.layerChildProcess({ program, client: "acp-sidecar demo" }))
  })
).pipe(Layer.provide(SidecarLimits.layerFromEnv))
