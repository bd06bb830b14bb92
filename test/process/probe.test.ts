// Probes of real processes. Nothing here depends on speed: waits are for what the agent does, and times are either too
// short for any start or long enough for all.
import { assert, describe, it } from "@effect/vitest"
import { AgentProfile, Sidecar } from "acp-sidecar"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { beside } from "../support/events.ts"
import { faulty, layer, openVm, untilText } from "../support/faultyAgent.ts"
import { newMark, running, untilGone } from "../support/processes.ts"

const shared = (...switches: ReadonlyArray<string>): AgentProfile.AgentProfile => ({
  ...faulty(...switches),
  share: AgentProfile.sharing({ idleTime: "1 hour" })
})
const hosts = Effect.flatMap(Sidecar.Sidecar, (sidecar) => Effect.map(sidecar.describe, (info) => info.hosts))

describe("a probe of a real process", { concurrent: true }, () => {
  it.live("tells what the agent is and has, and its process is gone afterwards", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const agent = faulty(`mark=${mark}`, "close", "list=3:2", "stderr=TOKEN=sk-verysecretkey1234")
      const ten = Array.from({ length: 10 }, () =>
        vm.probe({ agent, want: ["settings", "sessions", "commands"], commandsTimeout: "10 millis" })
      )
      const [found, ...others] = yield* Effect.all(ten, { concurrency: "unbounded" })
      for (const other of others) assert.strictEqual(other, found)
      const { diagnosis, sessions } = found!
      assert.deepStrictEqual(
        sessions?.sessions.map(({ sessionId }) => sessionId),
        ["old-0", "old-1", "old-2"]
      )
      assert.strictEqual(diagnosis.agentInfo?.name, "faulty-agent")
      assert.isNumber(diagnosis.pid)
      assert.notInclude(diagnosis.stderrTail, "verysecret")
      assert.includeMembers(Object.keys(diagnosis.tookMillis), ["spawn", "initialize", "session/new"])
      yield* untilGone(mark)
    }).pipe(Effect.provide(layer()))
  )

  it.live("that never answers is given up with its process, also one that ignores its end", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const agent = shared(`mark=${mark}`, "hang-at=initialize", "ignore-term", "ignore-eof")
      const error = yield* Effect.flip(vm.probe({ agent, timeout: "300 millis" }))
      assert.deepInclude(error, { _tag: "ProbeTimedOut", afterMillis: 300 })
      yield* untilGone(mark)
    }).pipe(Effect.provide(layer({ killGrace: "100 millis" })))
  )

  it.live("that times out beside a session on its process leaves that, and the agent has only its own", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const agent = shared(`mark=${mark}`, "close", "slow-new=2:1500")
      const session = yield* vm.openSession({ agent })
      const turn = yield* session.submit("{hang}")
      yield* untilText(turn, "chunk 0")
      const error = yield* Effect.flip(vm.probe({ agent, timeout: "50 millis" }))
      assert.deepInclude(error, { _tag: "ProbeTimedOut", phase: "session/new" })
      const quiet = Effect.map(hosts, ([host]) => host!.leases === 1 && host!.kept.left === 0)
      // Its answer comes late, and what it gave is closed.
      yield* Effect.repeat(Effect.andThen(Effect.sleep(20), quiet), { until: (it) => it })
      assert.deepInclude((yield* hosts)[0]!.kept, { routes: 1 })
      assert.strictEqual((yield* running(mark)).length, 1)
      assert.strictEqual((yield* turn.cancel)._tag, "Cancelled")
    }).pipe(Effect.provide(layer()))
  )

  it.live("B70: tells that its user has to sign in, and then a session can", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const agent = shared("auth")
      const { diagnosis } = yield* vm.probe({ agent })
      assert.isTrue(diagnosis.signInNeeded)
      assert.deepStrictEqual(diagnosis.authMethods, [{ id: "login", name: "Log in", description: "Scripted login" }])
      const refused = yield* Effect.flip(vm.openSession({ agent }))
      assert.deepInclude(refused, { _tag: "AgentStartFailed", phase: "session/new" })
      yield* vm.openSession({ agent, authenticate: "login" })
      assert.isFalse((yield* vm.probe({ agent })).diagnosis.signInNeeded)
    }).pipe(Effect.provide(layer()))
  )

  it.live("that dies, by itself or by a signal, fails with what it left", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      for (const how of ["exit-at=session/new:7", "kill-at=initialize"]) {
        const probing = yield* beside(Effect.flip(vm.probe({ agent: faulty(how) })))
        const error = yield* Fiber.join(probing)
        assert.strictEqual(error._tag, "ProbeFailed")
        assert.include(error.message, how.startsWith("exit") ? "7" : "SIGKILL")
      }
      const missing = { ...faulty(), command: ["/no/such/agent"] } as const
      assert.deepInclude(yield* Effect.flip(vm.probe({ agent: missing })), { _tag: "ProbeFailed", phase: "spawn" })
    }).pipe(Effect.provide(layer()))
  )
})
