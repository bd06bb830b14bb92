// Three ways to drive the same agent. Each runs turns one after the other and says how long each took.
import { spawn } from "node:child_process"
import { tmpdir } from "node:os"
import { Readable, Writable } from "node:stream"
import { fileURLToPath } from "node:url"
import * as Acp from "@agentclientprotocol/sdk"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as AgentProfile from "../src/AgentProfile.ts"
import type * as Session from "../src/Session.ts"
import * as Sidecar from "../src/Sidecar.ts"

const agentFile = fileURLToPath(new URL("agent.mjs", import.meta.url))
const folder = tmpdir()

export interface Contender {
  /** Milliseconds that each of `count` turns of one chunk took, from the prompt to its response. */
  readonly turns: (count: number) => Effect.Effect<ReadonlyArray<number>>
  /**
   * Milliseconds from the prompt until the consumer has counted `count` updates and the turn's end. The agent gives
   * `batch` lines to its pipe at once.
   */
  readonly stream: (count: number, batch: number) => Effect.Effect<number>
}

/** An agent as it is started, and what it has to be told. */
export interface Driven {
  readonly command: AgentProfile.AgentProfile["command"]
  readonly env: Readonly<Record<string, string>>
  /** A prompt for one update. */
  readonly hello: string
  /** A prompt for `count` updates, of which `batch` are given to the pipe at once where the agent can be told that. */
  readonly streaming: (count: number, batch: number) => string
}

/** The agent of `agent.mjs`. */
export const lean: Driven = {
  command: [process.execPath, agentFile],
  env: {},
  hello: "hello",
  streaming: (count, batch) => `CHUNKS:${count} BATCH:${batch}`
}

const startAgent = ({ command: [command, ...args], env }: Driven) =>
  Effect.acquireRelease(
    Effect.sync(() =>
      spawn(command, args, { cwd: folder, env: { ...process.env, ...env }, stdio: ["pipe", "pipe", "ignore"] })
    ),
    (child) => Effect.sync(() => child.kill())
  )

const miscounted = (got: number, wanted: number) => new Error(`${got} updates arrived instead of ${wanted}`)

const text = (prompt: string) => [{ type: "text" as const, text: prompt }]

const timed = async (count: number, turn: () => Promise<unknown>): Promise<ReadonlyArray<number>> => {
  const times: Array<number> = []
  for (let i = 0; i < count; i++) {
    const start = performance.now()
    await turn()
    times.push(performance.now() - start)
  }
  return times
}

/** What the two promise-based contenders have in common: a prompt, and a callback for updates that counts them. */
const counting = (
  counter: { updates: number },
  { hello, streaming }: Driven,
  prompt: (text: string) => Promise<unknown>
): Contender => ({
  turns: (count) => Effect.promise(() => timed(count, () => prompt(hello))),
  stream: (count, batch) =>
    Effect.promise(async () => {
      counter.updates = 0
      const start = performance.now()
      await prompt(streaming(count, batch))
      // A response may overtake updates whose handlers run later.
      while (counter.updates < count) await new Promise((resolve) => setImmediate(resolve))
      const time = performance.now() - start
      if (counter.updates !== count) throw miscounted(counter.updates, count)
      return time
    })
})

interface Message {
  readonly id?: number
  readonly result?: unknown
  readonly params?: { readonly sessionId: string }
}

/**
 * No sidecar, no library: split lines, parse them, look the id up. Nothing is checked and nothing is supervised. It gives
 * what opens one session after the other on one process.
 */
export const pipes = Effect.fnUntraced(function* (
  driven: Driven
): Effect.fn.Return<Effect.Effect<Contender>, never, Scope.Scope> {
  const child = yield* startAgent(driven)
  const pending = new Map<number, (result: unknown) => void>()
  const counters = new Map<string, { updates: number }>()
  let lastId = 0
  let rest = ""
  child.stdout.setEncoding("utf8")
  child.stdout.on("data", (data: string) => {
    rest += data
    let from = 0
    for (let to = rest.indexOf("\n"); to >= 0; to = rest.indexOf("\n", from)) {
      const message = JSON.parse(rest.slice(from, to)) as Message
      from = to + 1
      if (message.id === undefined) {
        const counter = counters.get(message.params!.sessionId)
        if (counter !== undefined) counter.updates++
        continue
      }
      const resolve = pending.get(message.id)
      pending.delete(message.id)
      resolve?.(message.result)
    }
    rest = rest.slice(from)
  })
  const request = (method: string, params: unknown) =>
    new Promise<unknown>((resolve) => {
      const id = ++lastId
      pending.set(id, resolve)
      child.stdin.write(JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n")
    })
  yield* Effect.promise(() => request("initialize", { protocolVersion: 1, clientCapabilities: {} }))
  return Effect.promise(async () => {
    const session = await request("session/new", { cwd: folder, mcpServers: [] })
    const { sessionId } = session as { readonly sessionId: string }
    const counter = { updates: 0 }
    counters.set(sessionId, counter)
    return counting(counter, driven, (prompt) => request("session/prompt", { sessionId, prompt: text(prompt) }))
  })
})

/** One session over a bare pipe. */
export const pipe: Effect.Effect<Contender, never, Scope.Scope> = Effect.flatten(pipes(lean))

/** The client connection of the ACP SDK, with the cheapest consumer it has: one notification handler. */
export const sdk: Effect.Effect<Contender, never, Scope.Scope> = Effect.gen(function* () {
  const child = yield* startAgent(lean)
  const counter = { updates: 0 }
  const stream = Acp.ndJsonStream(
    Writable.toWeb(child.stdin),
    Readable.toWeb(child.stdout) as unknown as ReadableStream<Uint8Array>
  )
  const connection = yield* Effect.acquireRelease(
    Effect.sync(() =>
      Acp.client({ name: "bench" })
        .onNotification(Acp.methods.client.session.update, () => {
          counter.updates++
        })
        .connect(stream)
    ),
    (open) => Effect.sync(() => open.close())
  )
  const { agent } = connection
  yield* Effect.promise(() =>
    agent.request(Acp.methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} })
  )
  const { sessionId } = yield* Effect.promise(() =>
    agent.request(Acp.methods.agent.session.new, { cwd: folder, mcpServers: [] })
  )
  return counting(counter, lean, (prompt) =>
    agent.request(Acp.methods.agent.session.prompt, { sessionId, prompt: text(prompt) })
  )
})

/** Opens sessions, each with an agent process of its own, in one Vm of an embedded sidecar. */
export const openSession: Effect.Effect<
  Effect.Effect<Session.Session, never, Scope.Scope>,
  never,
  ChildProcessSpawner | Scope.Scope
> = Effect.gen(function* () {
  const sidecar = Context.get(yield* Layer.build(Sidecar.layer), Sidecar.Sidecar)
  const vm = yield* Effect.orDie(sidecar.openVm({ root: folder }))
  const agent = AgentProfile.make({ name: "bench", command: [process.execPath, agentFile] })
  return Effect.orDie(vm.openSession({ agent }))
})

/** Turns through the public API: `session.prompt`, and for streams `submit` with a reader of the turn's `updates`. */
export const sidecar = (session: Session.Session, driven: Driven = lean): Contender => {
  const hello = Effect.orDie(session.prompt(driven.hello))
  return {
    turns: Effect.fnUntraced(function* (count) {
      const times: Array<number> = []
      for (let i = 0; i < count; i++) {
        const start = performance.now()
        yield* hello
        times.push(performance.now() - start)
      }
      return times
    }),
    stream: Effect.fnUntraced(function* (count, batch) {
      let updates = 0
      const start = performance.now()
      const turn = yield* Effect.orDie(session.submit(driven.streaming(count, batch)))
      yield* Stream.runForEachArray(turn.updates, (events) =>
        Effect.sync(() => {
          for (const event of events) if (event._tag === "Update") updates++
        })
      )
      const time = performance.now() - start
      if (updates !== count) return yield* Effect.die(miscounted(updates, count))
      return time
    })
  }
}

export const all = Effect.gen(function* () {
  const session = yield* Effect.flatten(openSession)
  return { ours: sidecar(session), pipe: yield* pipe, sdk: yield* sdk }
})

export type Name = "ours" | "pipe" | "sdk"

/**
 * Runs all of these in turns, the first one of a round another one each time, so that a noisy machine is noisy for all
 * of them, and collects what each gave, in rounds.
 */
export const alternate = Effect.fnUntraced(function* <K extends string, A, R>(
  rounds: number,
  runs: Readonly<Record<K, Effect.Effect<A, never, R>>>
) {
  const order = Object.keys(runs) as Array<K>
  const results = Object.fromEntries(order.map((name) => [name, [] as Array<A>])) as Record<K, Array<A>>
  for (let round = 0; round < rounds; round++) {
    for (const name of order) results[name].push(yield* runs[name])
    order.push(order.shift()!)
  }
  return results
})

export const interleave = <A>(rounds: number, run: (name: Name) => Effect.Effect<A>) =>
  alternate<Name, A, never>(rounds, { ours: run("ours"), pipe: run("pipe"), sdk: run("sdk") })
