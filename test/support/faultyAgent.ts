// The faulty agent as a profile, the core over real processes, and short ways to what tests look at.
import { tmpdir } from "node:os"
import { fileURLToPath } from "node:url"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { AgentProfile, Sidecar, SidecarLimits } from "acp-sidecar"
import type { Session, Vm } from "acp-sidecar"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { textOf } from "./events.ts"

export const agentFile = fileURLToPath(new URL("../fixtures/faulty-agent.mjs", import.meta.url))

const argv = (switches: ReadonlyArray<string>): ReadonlyArray<string> => [
  agentFile,
  ...switches.map((text) => `--${text}`)
]

/** The faulty agent with these switches. Unknown ones do nothing, so a mark may be one of them. */
export const faulty = (...switches: ReadonlyArray<string>): AgentProfile.AgentProfile =>
  AgentProfile.make({ name: "faulty", command: [process.execPath, ...argv(switches)] })

/** The same behind a shell that stays, as package runners do it. */
export const wrapped = (...switches: ReadonlyArray<string>): AgentProfile.AgentProfile =>
  AgentProfile.make({
    name: "wrapped",
    command: ["/bin/sh", "-c", '"$0" "$@"; :', process.execPath, ...argv(switches)]
  })

/** The core with real processes. */
export const layer = (limits: SidecarLimits.Overrides = {}): Layer.Layer<Sidecar.Sidecar, SidecarLimits.InvalidLimit> =>
  Sidecar.layer.pipe(Layer.provide(NodeServices.layer), Layer.provide(SidecarLimits.layer(limits)))

/** A Vm in the temporary folder. */
export const openVm = (
  options: Partial<Vm.Options> = {}
): Effect.Effect<Vm.Vm, Sidecar.OpenVmError, Sidecar.Sidecar | Scope.Scope> =>
  Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: tmpdir(), ...options }))

/** A session in a Vm of its own. */
export const open = (
  agent: AgentProfile.AgentProfile,
  options: Partial<Vm.SessionOptions> = {}
): Effect.Effect<Session.Session, Sidecar.OpenVmError | Vm.OpenSessionError, Sidecar.Sidecar | Scope.Scope> =>
  Effect.flatMap(openVm(), (vm) => vm.openSession({ ...options, agent }))

/** All texts of a turn, in order, once it has ended. */
export const texts = (turn: Session.Turn): Effect.Effect<ReadonlyArray<string>> =>
  Stream.runCollect(turn.updates).pipe(Effect.map((events) => events.map(textOf).filter((text) => text !== "")))

/** Waits for a text of a turn. */
export const untilText = (turn: Session.Turn, wanted: string): Effect.Effect<void> =>
  turn.updates.pipe(
    Stream.filter((event) => textOf(event) === wanted),
    Stream.runHead,
    Effect.flatMap((found) =>
      found._tag === "Some" ? Effect.void : Effect.die(new Error(`the turn ended without ${JSON.stringify(wanted)}`))
    )
  )

/** A reply to a turn, as JSON in its only text. */
export const jsonOf = (turn: Session.Turn): Effect.Effect<Readonly<Record<string, unknown>>> =>
  Effect.map(texts(turn), (all) => JSON.parse(all[0] ?? "null") as Readonly<Record<string, unknown>>)
