// One turn of one agent in a sidecar of its own, streamed, to its exit code.
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { AgentProfile } from "../AgentProfile.ts"
import type * as Session from "../Session.ts"
import * as Sidecar from "../Sidecar.ts"
import { badInput, fromError, oneLine } from "./failure.ts"
import { withSidecar } from "./sidecar.ts"
import * as Turn from "./turn.ts"

export interface Options {
  readonly agent: AgentProfile
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  readonly permission: "ask" | "allow" | "reject"
  readonly timeout: Duration.Duration | undefined
  readonly idleTimeout: Duration.Duration | undefined
  readonly mode: string | undefined
  readonly authenticate: string | undefined
  readonly prompt: string
  readonly isJson: boolean
}

const setMode = Effect.fnUntraced(function* (session: Session.Session, mode: string) {
  const modes = session.modes?.availableModes ?? []
  if (modes.some(({ id }) => id === mode)) return yield* Effect.mapError(session.setMode(mode), fromError)
  const offered = modes.map(({ id }) => oneLine(id, 80)).join(", ")
  return yield* badInput(
    `--mode "${oneLine(mode, 80)}" is not offered by the agent; ${offered === "" ? "it has no modes" : `its modes are ${offered}`}.`
  )
})

const open = Effect.fnUntraced(function* (options: Options) {
  const sidecar = yield* Sidecar.Sidecar
  const { agent, authenticate, mode, permission } = options
  const vm = yield* sidecar.openVm({ root: options.cwd, env: options.env })
  const session = yield* vm.openSession({ agent, permission, authenticate })
  if (mode !== undefined) yield* setMode(session, mode)
  return session
})

export const main = (options: Options) =>
  withSidecar(Effect.scoped(Turn.run(open(options), { ...options, isAsking: options.permission === "ask" })))
