// Many sessions of one real process. Nothing here depends on speed: waits are for what the agent does.
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert, describe, it } from "@effect/vitest"
import { Address, AgentHost, AgentLauncher, AgentSession, SidecarLimits } from "acp-sidecar"
import type { SessionRouter } from "acp-sidecar"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import { beside } from "../support/events.ts"
import { faulty } from "../support/faultyAgent.ts"

const launcher = AgentLauncher.layerChildProcess.pipe(Layer.provide(NodeServices.layer))

const hosted = (...switches: ReadonlyArray<string>) =>
  AgentHost.start(
    {
      address: { sidecarId: Address.SidecarId.make("sidecar") },
      profile: faulty(...switches),
      cwd: tmpdir(),
      env: [],
      limits: SidecarLimits.defaults,
      emit: () => {}
    },
    { phase: "spawn", connection: undefined }
  ).pipe(Effect.provide(launcher))

const listener = (onPermission: SessionRouter.Route["onPermission"] = () => Effect.never) => {
  const heard: Array<string> = []
  const route: SessionRouter.Route = {
    onUpdate: (update) => {
      heard.push((update as { readonly content: { readonly text: string } }).content.text)
    },
    onTooLarge: () => {},
    onPermission,
    flush: () => {}
  }
  return { heard, route }
}

const open = (host: AgentHost.AgentHost, options: Partial<AgentSession.Options> = {}) =>
  AgentSession.open(
    host,
    { how: { _tag: "New" }, cwd: tmpdir(), route: listener().route, ...options },
    { phase: "spawn", connection: undefined }
  )

const prompt = (host: AgentHost.AgentHost, { agentSessionId }: AgentSession.HostedSession, text: string) =>
  host.connection.request("session/prompt", { sessionId: agentSessionId, prompt: [{ type: "text", text }] })

/** Waits until something holds. */
const until = (holds: () => boolean) =>
  Effect.repeat(Effect.sync(holds), { until: (it) => it, schedule: Schedule.spaced("5 millis") })

describe("one process", { concurrent: true }, () => {
  it.live("carries ten sessions that prompt at once, and each gets what is its own", () =>
    Effect.gen(function* () {
      const host = yield* hosted()
      yield* Effect.forEach(
        Array.from({ length: 10 }, (_, i) => `session ${i}`),
        Effect.fnUntraced(function* (name) {
          const { heard, route } = listener()
          const session = yield* open(host, { route })
          yield* prompt(host, session, `{text=${name}}{chunks=3:5}`)
          assert.deepStrictEqual(heard, [name, "chunk 0", "chunk 1", "chunk 2"])
        }),
        { concurrency: "unbounded" }
      )
    })
  )

  it.live("B38: that does one thing at a time is sent the next session at once, and takes it later", () =>
    Effect.gen(function* () {
      const host = yield* hosted("head-of-line")
      const asked = Deferred.makeUnsafe<void>()
      const answer = Deferred.makeUnsafe<void>()
      let isAnswered = false
      const { route } = listener(() =>
        Deferred.succeed(asked, undefined).pipe(
          Effect.andThen(Deferred.await(answer)),
          Effect.as({ outcome: { outcome: "selected", optionId: "allow" } })
        )
      )
      const first = yield* open(host, { route })
      const turn = yield* beside(prompt(host, first, "{permission}"))
      yield* Deferred.await(asked)
      const sent = host.connection.stats.requestsOut
      const second = yield* beside(open(host, { onOpen: () => assert.isTrue(isAnswered) }))
      assert.strictEqual(host.connection.stats.requestsOut, sent + 1)
      isAnswered = true
      yield* Deferred.succeed(answer, undefined)
      assert.notStrictEqual((yield* Fiber.join(second)).agentSessionId, first.agentSessionId)
      yield* Fiber.join(turn)
    })
  )

  it.live("B77: that replays around its answer to session/load", () =>
    Effect.gen(function* () {
      const host = yield* hosted("load=50:5")
      const { heard, route } = listener()
      let replayed = -1
      yield* open(host, {
        how: { _tag: "Load", agentSessionId: "old" },
        route,
        onReplayEnd: () => void (replayed = heard.length)
      })
      yield* until(() => heard.length === 55)
      assert.strictEqual(replayed, 50)
      assert.deepStrictEqual(
        heard,
        Array.from({ length: 55 }, (_, i) => `replay ${i}`)
      )
    })
  )

  it.live("B78: that replays at session/resume, and one that does not", () =>
    Effect.gen(function* () {
      for (const [name, count] of [
        ["resume-replays=5", 5],
        ["resume", 0]
      ] as const) {
        const host = yield* hosted(name)
        const { heard, route } = listener()
        let replayed = -1
        yield* open(host, {
          how: { _tag: "Resume", agentSessionId: "old" },
          route,
          onReplayEnd: () => void (replayed = heard.length)
        })
        assert.deepStrictEqual([replayed, heard.length], [count, count])
      }
    })
  )

  it.live("that carries one session refuses the next, and the first goes on", () =>
    Effect.gen(function* () {
      const host = yield* hosted("one-session")
      const { heard, route } = listener()
      const first = yield* open(host, { route })
      assert.strictEqual((yield* Effect.flip(open(host)))._tag, "OneSessionOnly")
      yield* prompt(host, first, "go")
      assert.deepStrictEqual(heard, ["chunk 0"])
    })
  )

  it.live("that is slow with a session which was left gets that closed when it is there", () =>
    Effect.gen(function* () {
      const folder = mkdtempSync(join(tmpdir(), "acp-sidecar-sessions-"))
      yield* Effect.addFinalizer(() => Effect.sync(() => rmSync(folder, { recursive: true })))
      const log = join(folder, "log")
      const host = yield* hosted("close", "slow-new=2:300", `log=${log}`)
      const first = yield* open(host)
      const second = yield* beside(Effect.scoped(open(host)))
      yield* Fiber.interrupt(second)
      assert.strictEqual(AgentSession.left(host), 1)
      yield* prompt(host, first, "go")
      yield* until(() => AgentSession.left(host) === 0)
      const lines = readFileSync(log, "utf8").trim().split("\n")
      const frames = lines.map((line) => JSON.parse(line) as { readonly method?: string; readonly params?: unknown })
      const closed = frames.filter(({ method }) => method === "session/close")
      assert.strictEqual(closed.length, 1)
      assert.notDeepEqual(closed[0]!.params, { sessionId: first.agentSessionId })
    })
  )

  it.live("that lists its sessions page by page", () =>
    Effect.gen(function* () {
      const host = yield* hosted("list=5:2")
      const { isComplete, sessions } = yield* AgentSession.list(host, { cwd: "/work" })
      assert.isTrue(isComplete)
      assert.deepStrictEqual(
        sessions.map(({ cwd, sessionId }) => [sessionId, cwd]),
        Array.from({ length: 5 }, (_, i) => [`old-${i}`, "/work"])
      )
    })
  )
})
