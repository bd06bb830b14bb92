import { mkdtemp, readFile, rm } from "node:fs/promises"
import { tmpdir } from "node:os"
import { assert, describe, it } from "@effect/vitest"
import { AgentProfile, Sidecar, TurnOutcome } from "acp-sidecar"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import { faulty, layer, open, openVm, untilText, wrapped } from "../support/faultyAgent.ts"
import { newMark, running, untilGone, untilRunning } from "../support/processes.ts"

/** How long something took, in milliseconds. */
const timed = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<number, E, R> =>
  Effect.map(Effect.timed(effect), ([time]) => Duration.toMillis(time))

describe("process groups", { concurrent: true }, () => {
  it.live("B01: close ends a wrapper, its agent and their grandchildren, and resolves after all are gone", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const session = yield* open(wrapped(`child=${mark}`))
      assert.strictEqual((yield* session.prompt(`{child=${mark}}`))._tag, "Completed")
      // The shell, the agent and two grandchildren.
      yield* untilRunning(mark, 4)
      yield* session.close
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer({ killGrace: "300 millis" })))
  )

  it.live("B02: interrupting the owner of the scope does the same, with a turn under way", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const owner = yield* Effect.forkChild(
        Effect.scoped(
          Effect.gen(function* () {
            const session = yield* open(wrapped(`child=${mark}:ignore-term+stdout`))
            yield* session.submit("{hang}")
            return yield* Effect.never
          })
        )
      )
      yield* untilRunning(mark, 3)
      yield* Fiber.interrupt(owner)
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer({ killGrace: "300 millis" })))
  )

  it.live("B02: interrupting an opening leaves nothing, at whatever point it is", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm()
      for (const point of ["start", "initialize", "session/new"]) {
        // At "start" the shell has not even become the agent.
        const agent = wrapped("ignore-eof", `mark=${mark}`, ...(point === "start" ? [] : [`hang-at=${point}`]))
        const opening = yield* Effect.forkChild(Effect.scoped(vm.openSession({ agent })), { startImmediately: true })
        if (point !== "start") yield* untilRunning(mark, 2)
        yield* Fiber.interrupt(opening)
        assert.deepStrictEqual(yield* running(mark), [], point)
      }
      assert.deepStrictEqual((yield* sidecar.describe).vms[0]?.opening, 0)
    }).pipe(Effect.provide(layer({ killGrace: "300 millis" })))
  )

  it.live(
    "B06, B09: after 50 times open, prompt and close the count of processes is what it was",
    () =>
      Effect.gen(function* () {
        const mark = newMark()
        const sidecar = yield* Sidecar.Sidecar
        const vm = yield* openVm()
        for (let round = 0; round < 50; round++) {
          const session = yield* vm.openSession({ agent: faulty(`mark=${mark}`) })
          assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
          yield* session.close
          assert.deepStrictEqual(yield* running(mark), [])
        }
        const { activePrompts, vms } = yield* sidecar.describe
        assert.strictEqual(activePrompts, 0)
        assert.deepStrictEqual(vms[0]?.sessions, [])
        assert.strictEqual(vms[0]?.opening, 0)
      }).pipe(Effect.provide(layer())),
    120_000
  )

  it.live(
    "B10: 20 idle sessions with children of their own are all gone when they are closed, told or not",
    () =>
      Effect.gen(function* () {
        const mark = newMark()
        const vm = yield* openVm()
        const kinds = [["close"], ["close", "hang-at=session/close"], [], ["ignore-eof"]]
        const sessions = yield* Effect.forEach(
          Array.from({ length: 20 }),
          (_, index) =>
            vm.openSession({ agent: faulty(`child=${mark}`, `mark=${mark}`, ...kinds[index % kinds.length]!) }),
          { concurrency: "unbounded" }
        )
        yield* untilRunning(mark, 40)
        yield* Effect.forEach(sessions, (session) => session.close, { concurrency: "unbounded" })
        assert.deepStrictEqual(yield* running(mark), [])
        assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
      }).pipe(Effect.provide(layer({ closeTimeout: "200 millis", killGrace: "300 millis" }))),
    60_000
  )

  it.live(
    "B08: a command that never answers is killed at the end of each start budget, and dispose is not held up",
    () =>
      Effect.gen(function* () {
        const mark = newMark()
        const sidecar = yield* Sidecar.Sidecar
        const vm = yield* openVm()
        const agent = AgentProfile.make({ command: ["/bin/sh", "-c", "cat >/dev/null; :", mark] })
        for (let attempt = 0; attempt < 3; attempt++) {
          const error = yield* Effect.flip(vm.openSession({ agent }))
          assert.strictEqual(error._tag, "AgentStartFailed")
          if (error._tag !== "AgentStartFailed") return
          assert.strictEqual(error.phase, "initialize")
          assert.strictEqual(error.reason._tag, "StartTimedOut")
          assert.deepStrictEqual(yield* running(mark), [])
        }
        assert.isBelow(yield* timed(sidecar.dispose), 5000)
        assert.strictEqual((yield* sidecar.describe).state, "disposed")
      }).pipe(Effect.provide(layer({ startTimeout: "500 millis", killGrace: "300 millis" })))
  )

  it.live("B08: dispose ends an opening that waits for its agent", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm()
      const opening = yield* Effect.forkChild(vm.openSession({ agent: faulty("mute", `mark=${mark}`) }))
      yield* untilRunning(mark, 1)
      assert.isBelow(yield* timed(sidecar.dispose), 10_000)
      assert.deepStrictEqual(yield* running(mark), [])
      assert.strictEqual((yield* Effect.flip(Fiber.join(opening)))._tag, "Disposed")
    }).pipe(Effect.provide(layer()))
  )

  it.live("B11: a session/close that is never answered costs no more than its budget", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const session = yield* open(faulty("close", "hang-at=session/close", `mark=${mark}`))
      assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
      const took = yield* timed(session.close)
      assert.isAtLeast(took, 290)
      assert.isBelow(took, 8000)
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer({ closeTimeout: "300 millis", killGrace: "8 seconds" })))
  )

  it.live("B12: whatever way turns end, their permits come back", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm()
      const session = yield* vm.openSession({ agent: faulty() })
      assert.strictEqual((yield* session.prompt("done"))._tag, "Completed")
      assert.strictEqual((yield* Effect.flip(session.prompt("{error=-32603}")))._tag, "TurnFailed")
      assert.strictEqual((yield* Effect.flip(session.prompt("{bad-result}")))._tag, "TurnFailed")
      const held = yield* session.submit("{hang}")
      yield* untilText(held, "chunk 0")
      assert.strictEqual((yield* held.cancel)._tag, "Cancelled")
      assert.strictEqual((yield* session.prompt("fifth", { onBusy: "reject" }))._tag, "Completed")
      const dying = yield* vm.openSession({ agent: faulty() })
      assert.strictEqual((yield* Effect.flip(dying.prompt("{exit=3}")))._tag, "TurnFailed")
      assert.strictEqual((yield* session.prompt("last"))._tag, "Completed")
      const info = yield* sidecar.describe
      assert.strictEqual(info.activePrompts, 0)
      assert.strictEqual(info.vms[0]?.activePrompts, 0)
    }).pipe(Effect.provide(layer({ maxPromptsPerVm: 1, maxPromptsPerSidecar: 1 })))
  )

  it.live("H5: an agent that ignores TERM and the end of its input is killed after the grace, its group too", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const session = yield* open(wrapped("ignore-term", "ignore-eof", `child=${mark}:ignore-term`))
      yield* session.prompt("hello")
      yield* untilRunning(mark, 3)
      const took = yield* timed(session.close)
      assert.isAtLeast(took, 290)
      assert.isBelow(took, 10_000)
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer({ killGrace: "300 millis" })))
  )

  it.live("killGrace of 0 kills an agent that ignores TERM at once", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const session = yield* open(faulty("ignore-term", "ignore-eof", `mark=${mark}`))
      yield* session.close
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer({ killGrace: 0 })))
  )

  it.live("with killGrace off an agent that ignores TERM is never killed, and close waits for its end", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const folder = yield* Effect.promise(() => mkdtemp(`${tmpdir()}/acp-sidecar-`))
      const session = yield* open(faulty("ignore-term", "ignore-eof", `mark=${mark}`, `log=${folder}/log`))
      const closing = yield* Effect.forkChild(session.close, { startImmediately: true })
      const log = Effect.promise(() => readFile(`${folder}/log`, "utf8"))
      yield* log.pipe(
        Effect.filterOrFail((text) => text.includes("SIGTERM")),
        Effect.retry({ schedule: Schedule.spaced("20 millis"), times: 500 })
      )
      for (let look = 0; look < 5; look++) assert.strictEqual((yield* running(mark)).length, 1)
      assert.isUndefined(closing.pollUnsafe())
      process.kill(session.pid!, "SIGKILL")
      yield* Fiber.join(closing)
      assert.deepStrictEqual(yield* running(mark), [])
      yield* Effect.promise(() => rm(folder, { recursive: true }))
    }).pipe(Effect.provide(layer({ killGrace: "off" })))
  )

  it.live("H5: an agent that never reads its input and ignores TERM is killed at the end of its start budget", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const error = yield* Effect.flip(vm.openSession({ agent: faulty("deaf", "ignore-term", `mark=${mark}`) }))
      assert.isTrue(error._tag === "AgentStartFailed" && error.reason._tag === "StartTimedOut", error.message)
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer({ startTimeout: "1 second", killGrace: "200 millis" })))
  )

  it.live("C02: an agent that is frozen, with 8 MB on their way to it, is given up and killed", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const frozen = yield* vm.openSession({ agent: faulty(`mark=${mark}`) })
      const other = yield* vm.openSession({ agent: faulty() })
      process.kill(frozen.pid!, "SIGSTOP")
      const turn = yield* frozen.submit("x".repeat(8_000_000))
      assert.isTrue(yield* turn.dispatched)
      const waiting = yield* frozen.submit("in the queue")
      assert.strictEqual((yield* other.prompt("hello"))._tag, "Completed")
      assert.deepStrictEqual(yield* turn.cancel, TurnOutcome.cancelled("caller", null, "retired"))
      assert.notStrictEqual((yield* waiting.outcome)._tag, "Completed")
      yield* frozen.close
      assert.deepStrictEqual(yield* running(mark), [])
      assert.strictEqual((yield* other.prompt("on"))._tag, "Completed")
    }).pipe(Effect.provide(layer({ cancelGrace: "300 millis", killGrace: "300 millis" })))
  )

  it.live(
    "B22, C02: an agent that ignores cancel is stopped with its grandchildren, and only its session suffers",
    () =>
      Effect.gen(function* () {
        const mark = newMark()
        const other = newMark()
        const sidecar = yield* Sidecar.Sidecar
        const vm = yield* openVm()
        const hung = yield* vm.openSession({ agent: wrapped(`child=${mark}`) })
        const healthy = yield* vm.openSession({ agent: faulty(`mark=${other}`) })
        const beside = yield* healthy.submit("{wait=1500}")
        const turn = yield* hung.submit("{hang} {ignore-cancel}")
        yield* untilText(turn, "chunk 0")
        yield* untilRunning(mark, 3)
        const [time, outcome] = yield* Effect.timed(turn.cancel)
        assert.deepStrictEqual(outcome, {
          _tag: "Cancelled",
          by: "caller",
          agentReported: null,
          escalation: "retired"
        })
        // The outcome does not wait for the process.
        assert.isAtLeast(Duration.toMillis(time), 390)
        assert.isBelow(Duration.toMillis(time), 3000)
        const again = yield* Effect.flip(hung.submit("again"))
        assert.strictEqual(again._tag, "SessionUnusable")
        if (again._tag === "SessionUnusable") assert.strictEqual(again.reason, "retired")
        yield* untilGone(mark)
        yield* hung.close
        assert.strictEqual((yield* running(other)).length, 1)
        assert.strictEqual((yield* beside.await)._tag, "Completed")
        assert.strictEqual((yield* healthy.prompt("and on"))._tag, "Completed")
        const info = yield* sidecar.describe
        assert.strictEqual(info.activePrompts, 0)
        assert.strictEqual(info.vms[0]?.sessions.length, 1)
      }).pipe(Effect.provide(layer({ cancelGrace: "400 millis", killGrace: "300 millis" })))
  )
})
