// Agents that cost as little as can be, for what is measured of the sidecar with hundreds of them.
import type * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import * as AcpTransport from "../src/acp/AcpTransport.ts"
import * as AgentProfile from "../src/AgentProfile.ts"
import * as Sidecar from "../src/Sidecar.ts"
import * as SidecarLimits from "../src/SidecarLimits.ts"

export type Kind = "memory" | "process"

/**
 * An agent in memory: it answers each prompt with one chunk, or never when its text is `HOLD`, and takes no notice of a
 * cancel.
 */
export const make = Effect.gen(function* () {
  const output = yield* Queue.unbounded<Uint8Array, Cause.Done>()
  const ended = Deferred.makeUnsafe<AcpTransport.TransportEnd>()
  const decoder = new TextDecoder()
  const encoder = new TextEncoder()
  const line = (message: object): string => `${JSON.stringify({ jsonrpc: "2.0", ...message })}\n`
  const chunk = line({
    method: "session/update",
    params: {
      sessionId: "s1",
      update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text: "a few words of an answer. " } }
    }
  })
  const answer = (method: string, prompt: string): object | undefined => {
    switch (method) {
      case "initialize":
        return { protocolVersion: 1, agentCapabilities: {}, authMethods: [] }
      case "session/new":
        return { sessionId: "s1" }
      case "session/prompt":
        return prompt.includes('"HOLD"') ? undefined : { stopReason: "end_turn" }
    }
    return undefined
  }
  const close = Effect.sync(() => {
    Queue.endUnsafe(output)
    Deferred.doneUnsafe(ended, Effect.succeed(AcpTransport.exited({ code: 0 })))
  })
  const transport: AcpTransport.AcpTransport = {
    incoming: Stream.fromQueue(output),
    send: (frame) => {
      const text = decoder.decode(frame)
      const { id, method } = JSON.parse(text) as { readonly id?: number; readonly method: string }
      const result = answer(method, text)
      if (result === undefined) return true
      const response = line({ id, result })
      return Queue.offerUnsafe(output, encoder.encode(method === "session/prompt" ? chunk + response : response))
    },
    ended: Deferred.await(ended),
    pid: undefined,
    stderrTail: () => "",
    close
  }
  yield* Effect.addFinalizer(() => close)
  return transport
})

const said = (id: number, result: object): string => `echo '${JSON.stringify({ jsonrpc: "2.0", id, result })}'`

/** An agent as a process of less than 2 MiB: it answers `initialize` and `session/new` and then nothing any more. */
export const quietCommand = [
  "/bin/sh",
  "-c",
  [
    "read -r line",
    said(1, { protocolVersion: 1, agentCapabilities: {}, authMethods: [] }),
    "read -r line",
    said(2, { sessionId: "s1" }),
    // The third one keeps the output open.
    "exec cat 3>&1 > /dev/null"
  ].join("; ")
] as const

const agents: Readonly<Record<Kind, AgentProfile.AgentProfile>> = {
  memory: AgentProfile.make({ name: "memory", command: ["in-memory"] }),
  process: AgentProfile.make({ name: "quiet", command: quietCommand })
}

/**
 * A sidecar of its own whose agents are in memory, quiet processes or those of a profile, and what opens sessions in one
 * Vm of it. There is room for thousands of them.
 */
export const sidecar = Effect.fnUntraced(function* (
  kind: Kind | AgentProfile.AgentProfile,
  overrides: SidecarLimits.Overrides = {}
) {
  const limits = SidecarLimits.layer({
    maxSessionsPerVm: 100_000,
    maxHosts: 100_000,
    maxSessionsPerHost: 100_000,
    maxPromptsPerVm: 100_000,
    maxPromptsPerSidecar: 100_000,
    ...overrides
  })
  const built = kind === "memory" ? Sidecar.layerTest(() => make) : Sidecar.layer
  // Fresh, since layers are shared where they are built side by side.
  const context = yield* Layer.build(Layer.fresh(Layer.provide(built, Layer.orDie(limits))))
  const opened = Context.get(context, Sidecar.Sidecar)
  const vm = yield* Effect.orDie(opened.openVm({ root: "/" }))
  const agent = typeof kind === "string" ? agents[kind] : kind
  const openSession = Effect.orDie(vm.openSession({ agent }))
  return { sidecar: opened, openSession, openSessions: (count: number) => openMany(count, openSession) }
})

const openMany = <A, E, R>(count: number, open: Effect.Effect<A, E, R>): Effect.Effect<ReadonlyArray<A>, E, R> =>
  Effect.forEach(Array.from({ length: count }), () => open)
