// Sidecars in processes of their own, run by the packed command, over each of its transports.
import { spawn } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { readFileSync } from "node:fs"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import type * as Scope from "effect/Scope"
import * as Address from "../src/Address.ts"
import type * as AgentProfile from "../src/AgentProfile.ts"
import * as NodeConnector from "../src/NodeConnector.ts"
import type * as Session from "../src/Session.ts"
import type * as Sidecar from "../src/Sidecar.ts"
import * as SidecarClient from "../src/SidecarClient.ts"
import type * as SidecarLimits from "../src/SidecarLimits.ts"
import * as SidecarPool from "../src/SidecarPool.ts"
import * as Packed from "./packed.ts"

export type Transport = "stdio" | "socket" | "webSocket"

export interface Served {
  readonly sidecar: Sidecar.Sidecar["Service"]
  /** Of a child's: resolves when its process is gone. */
  readonly gone: Effect.Effect<void>
}

/** Limits that nothing here meets. */
export const roomy: SidecarLimits.Overrides = {
  maxSessionsPerVm: 10_000,
  maxSessionsPerHost: 10_000,
  maxPromptsPerVm: 10_000,
  maxPromptsPerSidecar: 10_000
}

const sidecarId = Address.SidecarId.make("acp-sidecar-bench")

/** A child over its standard streams. Its scope ends it. */
export const child = Effect.fnUntraced(function* (limits: SidecarLimits.Overrides = roomy) {
  const program = yield* Packed.file("bin.mjs")
  const layer = NodeConnector.layerChildProcess({ program, limits, env: { ACP_SIDECAR_STATE: "off" } })
  const connector = Context.get(yield* Effect.orDie(Layer.build(layer)), SidecarPool.SidecarConnector)
  return yield* Effect.orDie(connector.connect({ sidecarId, placement: { kind: "explicit", sidecarId } }))
})

const variables = (limits: SidecarLimits.Overrides): Readonly<Record<string, string>> =>
  Object.fromEntries(
    Object.entries(limits).map(([name, value]) => [
      `ACP_SIDECAR_${name.replace(/[A-Z]/g, (letter) => `_${letter}`).toUpperCase()}`,
      String(value)
    ])
  )

interface Where {
  readonly socket?: string
  readonly url?: string
  readonly tokenFile?: string
}

/** A server until the scope ends, and a connection to it. */
const served = Effect.fnUntraced(function* (transport: Exclude<Transport, "stdio">) {
  const program = yield* Packed.file("bin.mjs")
  const folder = yield* Effect.acquireRelease(
    Effect.sync(() => mkdtempSync(join(tmpdir(), "bench-"))),
    (path) => Effect.sync(() => rmSync(path, { recursive: true, force: true }))
  )
  const place =
    transport === "socket"
      ? ["--socket", join(folder, "s")]
      : ["--listen", "127.0.0.1:0", "--token-file", join(folder, "token")]
  const { where } = yield* Effect.acquireRelease(
    Effect.promise(
      () =>
        new Promise<{ readonly where: Where; readonly end: () => Promise<void> }>((resolve, reject) => {
          const server = spawn(process.execPath, [program, "serve", ...place, "--json"], {
            env: { ...process.env, ...variables(roomy), ACP_SIDECAR_STATE: "off" },
            stdio: ["ignore", "pipe", "ignore"]
          })
          const exit = new Promise<void>((done) => server.once("exit", () => done()))
          server.once("exit", (code) => reject(new Error(`serve ended with code ${code}`)))
          createInterface({ input: server.stdout }).once("line", (line) =>
            resolve({
              where: JSON.parse(line) as Where,
              end: () => {
                server.kill()
                return exit
              }
            })
          )
        })
    ),
    ({ end }) => Effect.promise(end)
  )
  const socket =
    where.socket === undefined ? yield* NodeConnector.webSocket(where.url!) : yield* NodeConnector.socket(where.socket)
  const token = where.tokenFile === undefined ? undefined : Redacted.make(readFileSync(where.tokenFile, "utf8").trim())
  const { sidecar } = yield* Effect.orDie(SidecarClient.connect(socket, { client: "bench", token }))
  return sidecar
})

/** A sidecar over a transport, for as long as the scope is open. */
export const over = (transport: Transport): Effect.Effect<Sidecar.Sidecar["Service"], never, Scope.Scope> =>
  transport === "stdio" ? Effect.map(child(), ({ sidecar }) => sidecar) : served(transport)

/** A session in a Vm of its own. */
export const session = (
  sidecar: Sidecar.Sidecar["Service"],
  agent: AgentProfile.AgentProfile
): Effect.Effect<Session.Session, never, Scope.Scope> =>
  Effect.orDie(Effect.flatMap(sidecar.openVm({ root: tmpdir() }), (vm) => vm.openSession({ agent })))
