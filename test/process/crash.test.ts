import { mkdtemp, readFile, rm } from "node:fs/promises"
import { tmpdir } from "node:os"
import { assert, describe, it } from "@effect/vitest"
import { Sidecar, TurnOutcome } from "acp-sidecar"
import type { Session, SidecarError, Vm } from "acp-sidecar"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import { faulty, layer, open, openVm, texts, untilText } from "../support/faultyAgent.ts"
import { newMark, running, untilGone } from "../support/processes.ts"

/** Why a turn failed; anything else is a defect. */
const failure = (turn: Session.Turn): Effect.Effect<SidecarError.TurnReason> =>
  Effect.flatMap(turn.outcome, (outcome) =>
    outcome._tag === "Failed"
      ? Effect.succeed(outcome.error.reason)
      : Effect.die(new Error(`expected a failure, got ${JSON.stringify(outcome)}`))
  )

/** Waits until the session has ended by itself. */
const ended = (session: Session.Session) =>
  session.updates.pipe(
    Stream.filter((event) => event._tag === "SessionEnded"),
    Stream.runHead
  )

describe("crash and hang", { concurrent: true }, () => {
  it.live.each([
    ["{exit=134}", { code: 134, signal: null }, "exiting with 134"],
    ["{exit=0}", { code: 0, signal: null }, "exiting with 0"],
    ["{kill=SIGKILL}", { code: null, signal: "SIGKILL" }, "killing itself with SIGKILL"],
    ["{kill=SIGABRT}", { code: null, signal: "SIGABRT" }, "killing itself with SIGABRT"],
    ["{partial=9}", { code: 9, signal: null }, "exiting with 9"]
  ] as const)("B14: a death mid-turn (%s) fails that turn at once, with evidence", ([how, expected, said]) =>
    Effect.gen(function* () {
      const mark = newMark()
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm()
      const dying = yield* vm.openSession({ agent: faulty(`mark=${mark}`) })
      const other = yield* vm.openSession({ agent: faulty() })
      const beside = yield* other.submit("{hang}")
      yield* untilText(beside, "chunk 0")
      const turn = yield* dying.submit(`the last {text=${mark}} ${how}`)
      const waiting = yield* dying.submit("in the queue")
      const reason = yield* failure(turn)
      assert.strictEqual(reason._tag, "ProcessExited")
      if (reason._tag !== "ProcessExited") return
      assert.deepStrictEqual({ code: reason.code, signal: reason.signal }, expected)
      assert.include(reason.stderrTail, said)
      assert.isNumber(reason.sinceLastFrameMillis)
      // What it had written before comes first.
      assert.deepStrictEqual(yield* texts(turn), [mark, "chunk 0"])
      assert.strictEqual((yield* failure(waiting))._tag, "ProcessExited")
      yield* ended(dying)
      const again = yield* Effect.flip(dying.submit("again"))
      assert.strictEqual(again._tag, "SessionUnusable")
      if (again._tag === "SessionUnusable") assert.strictEqual(again.reason, "agent_exited")
      yield* untilGone(mark)
      // Nobody else noticed, and the permit is back.
      assert.strictEqual((yield* other.describe).turns[0]?.phase, "running")
      assert.strictEqual((yield* beside.cancel)._tag, "Cancelled")
      assert.strictEqual((yield* other.prompt("on"))._tag, "Completed")
      assert.strictEqual((yield* sidecar.describe).activePrompts, 0)
    }).pipe(Effect.provide(layer()))
  )

  it.live("B14: a grandchild that holds the dead agent's output open delays the news by little, and goes too", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const session = yield* open(faulty(`mark=${mark}`))
      const turn = yield* session.submit(`{child=${mark}:stdout+ignore-term} {exit=5}`)
      const reason = yield* failure(turn)
      assert.isTrue(reason._tag === "ProcessExited" && reason.code === 5, JSON.stringify(reason))
      assert.deepStrictEqual(yield* texts(turn), ["chunk 0"])
      yield* ended(session)
      yield* untilGone(mark)
    }).pipe(Effect.provide(layer({ killGrace: "300 millis" })))
  )

  it.live("B15: silence for the idle time ends the turn, and an agent that stays silent is stopped", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const session = yield* open(faulty(`mark=${mark}`))
      const turn = yield* session.submit("{hang} {ignore-cancel}", { idleTimeout: "300 millis" })
      const reason = yield* failure(turn)
      assert.strictEqual(reason._tag, "TurnTimedOut")
      if (reason._tag !== "TurnTimedOut") return
      assert.strictEqual(reason.deadline, "idle")
      assert.isAtLeast(reason.afterMillis, 300)
      assert.strictEqual(reason.escalation, "retired")
      assert.deepStrictEqual(yield* texts(turn), ["chunk 0"])
      assert.strictEqual((yield* Effect.flip(session.submit("again")))._tag, "SessionUnusable")
      yield* untilGone(mark)
    }).pipe(Effect.provide(layer({ cancelGrace: "200 millis", killGrace: "300 millis" })))
  )

  it.live("B15: an agent that works for longer than the idle time is left alone, and one that obeys lives on", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty())
      const busy = yield* session.submit("{chunks=7:450}", { idleTimeout: "2500 millis" })
      assert.strictEqual((yield* busy.await)._tag, "Completed")
      const silent = yield* session.submit("{hang}", { idleTimeout: "100 millis" })
      const reason = yield* failure(silent)
      assert.strictEqual(reason._tag, "TurnTimedOut")
      if (reason._tag === "TurnTimedOut") assert.strictEqual(reason.escalation, "none")
      assert.strictEqual((yield* session.prompt("on"))._tag, "Completed")
    }).pipe(Effect.provide(layer()))
  )

  it.live("B16: after an idle agent was killed its session says so, and the next open works", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const agent = faulty()
      const first = yield* vm.openSession({ agent })
      process.kill(first.pid!, "SIGKILL")
      const last = yield* ended(first)
      assert.strictEqual(last._tag, "Some")
      const refused = yield* Effect.flip(first.submit("anyone?"))
      assert.strictEqual(refused._tag, "SessionUnusable")
      if (refused._tag === "SessionUnusable") {
        assert.strictEqual(refused.reason, "agent_exited")
        assert.include(refused.detail, "SIGKILL")
      }
      yield* first.close
      assert.deepStrictEqual((yield* vm.describe).sessions, [])
      const second = yield* vm.openSession({ agent })
      assert.notStrictEqual(second.pid, first.pid)
      assert.strictEqual((yield* second.prompt("hello"))._tag, "Completed")
    }).pipe(Effect.provide(layer()))
  )

  it.live("B17: an agent that ends a cancelled turn with an error, or its own word, lives on", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty())
      const cancelOf = Effect.fnUntraced(function* (prompt: string) {
        const turn = yield* session.submit(prompt)
        yield* untilText(turn, "chunk 0")
        return yield* turn.cancel
      })
      const cancelled = (agentReported: string) => TurnOutcome.cancelled("caller", agentReported)
      assert.deepStrictEqual(yield* cancelOf("{hang}"), cancelled("cancelled"))
      assert.deepStrictEqual(yield* cancelOf("{hang} {cancel-error}"), cancelled("error -32800"))
      assert.deepStrictEqual(yield* cancelOf("{hang} {cancel-error=-32603}"), cancelled("error -32603"))
      // B25
      assert.deepStrictEqual(yield* cancelOf("{hang} {cancel-stop}"), cancelled("end_turn"))
      const { pid } = session
      const next = yield* session.submit("{pid}")
      assert.include((yield* texts(next))[0], `"pid":${pid}`)
    }).pipe(Effect.provide(layer()))
  )

  it.live("B18: a turn that dispose ends was cancelled by it, and no crash is reported", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm()
      const obedient = yield* vm.openSession({ agent: faulty(`mark=${mark}`) })
      const stubborn = yield* vm.openSession({ agent: faulty(`mark=${mark}`) })
      const turns = [yield* obedient.submit("{hang}"), yield* stubborn.submit("{hang} {ignore-cancel}")]
      for (const turn of turns) yield* untilText(turn, "chunk 0")
      yield* sidecar.dispose
      assert.deepStrictEqual(yield* running(mark), [])
      assert.deepStrictEqual(yield* turns[0]!.outcome, {
        _tag: "Cancelled",
        by: "dispose",
        agentReported: "cancelled",
        escalation: "none"
      })
      assert.deepStrictEqual(yield* turns[1]!.outcome, {
        _tag: "Cancelled",
        by: "dispose",
        agentReported: null,
        escalation: "retired"
      })
      for (const session of [obedient, stubborn]) {
        const last = yield* ended(session)
        assert.isTrue(last._tag === "Some" && last.value._tag === "SessionEnded" && last.value.reason === "disposed")
      }
    }).pipe(Effect.provide(layer({ cancelGrace: "400 millis", killGrace: "500 millis" })))
  )

  it.live("B18: a turn that ends because its session is closed says so", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty())
      const turn = yield* session.submit("{hang}")
      yield* untilText(turn, "chunk 0")
      yield* session.close
      const outcome = yield* turn.outcome
      assert.strictEqual(outcome._tag, "Cancelled")
      if (outcome._tag === "Cancelled") assert.strictEqual(outcome.by, "close")
    }).pipe(Effect.provide(layer()))
  )

  it.live.each([
    ["stdout", "{close-stdout} {wait=60000}"],
    ["stdin", "{close-stdin} {wait=60000}"]
  ] as const)(
    "B19: an agent that closes its %s and lives on is told from one that exited, and is ended",
    ([side, how]) =>
      Effect.gen(function* () {
        const mark = newMark()
        const session = yield* open(faulty("ignore-eof", `mark=${mark}`))
        const turn = yield* session.submit(how)
        // Whether stdin is closed is seen when something is written.
        const poke =
          side === "stdin" ? Effect.ignore(Effect.timeout(session.setMode("any"), "100 millis")) : Effect.void
        yield* untilText(turn, "chunk 0")
        const poking = yield* Effect.forkChild(Effect.forever(Effect.andThen(poke, Effect.sleep("20 millis"))))
        const reason = yield* failure(turn)
        yield* Fiber.interrupt(poking)
        assert.strictEqual(reason._tag, "TransportClosed")
        if (reason._tag === "TransportClosed") assert.strictEqual(reason.side, side)
        yield* ended(session)
        yield* untilGone(mark)
      }).pipe(Effect.provide(layer({ killGrace: "500 millis" })))
  )

  it.live("C01, B24: a cancel in the tick of its prompt is never lost, 20 times", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty())
      for (let round = 0; round < 20; round++) {
        const turn = yield* session.submit("{hang}")
        const result = yield* session.cancel()
        assert.strictEqual(result._tag, "Settled")
        assert.strictEqual((yield* turn.outcome)._tag, "Cancelled")
      }
      assert.deepStrictEqual(yield* session.cancel(), { _tag: "NoActiveTurn" })
      assert.strictEqual((yield* session.prompt("on"))._tag, "Completed")
    }).pipe(Effect.provide(layer()))
  )

  it.live("B21: a death between the prompt and the first update fails that turn, and nobody sends it again", () =>
    Effect.gen(function* () {
      const folder = yield* Effect.promise(() => mkdtemp(`${tmpdir()}/acp-sidecar-`))
      const log = `${folder}/log`
      const vm = yield* openVm()
      const session = yield* vm.openSession({ agent: faulty(`log=${log}`, "exit-at=session/prompt:7") })
      const [turn, waiting] = [yield* session.submit("only once"), yield* session.submit("never")]
      const reason = yield* failure(turn)
      assert.deepInclude(reason, { _tag: "ProcessExited", code: 7 })
      yield* failure(waiting)
      yield* ended(session)
      assert.strictEqual((yield* Effect.flip(session.submit("later")))._tag, "SessionUnusable")
      const next = yield* vm.openSession({ agent: faulty(`log=${log}`) })
      assert.strictEqual((yield* next.prompt("another"))._tag, "Completed")
      const lines = (yield* Effect.promise(() => readFile(log, "utf8"))).split("\n")
      const prompts = lines.filter((line) => line.includes('"session/prompt"'))
      assert.strictEqual(prompts.length, 2)
      assert.include(prompts[0], "only once")
      assert.include(prompts[1], "another")
      yield* Effect.promise(() => rm(folder, { recursive: true }))
    }).pipe(Effect.provide(layer()))
  )

  it.live("C11: crash, close of session and Vm, dispose and retirement are told apart", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const reasonOf = Effect.fnUntraced(function* (
        end: (session: Session.Session, vm: Vm.Vm) => Effect.Effect<unknown>
      ) {
        const vm = yield* openVm()
        const session = yield* vm.openSession({ agent: faulty() })
        yield* end(session, vm)
        yield* ended(session)
        const error = yield* Effect.flip(session.submit("again"))
        return error._tag === "SessionUnusable" ? error.reason : error._tag
      })
      assert.strictEqual(yield* reasonOf((session) => Effect.exit(session.prompt("{exit=1}"))), "agent_exited")
      assert.strictEqual(yield* reasonOf((session) => session.close), "closed")
      assert.strictEqual(
        yield* reasonOf((session) =>
          Effect.orDie(
            Effect.gen(function* () {
              const turn = yield* session.submit("{hang} {ignore-cancel}")
              yield* untilText(turn, "chunk 0")
              yield* turn.cancel
            })
          )
        ),
        "retired"
      )
      assert.strictEqual(yield* reasonOf((_, vm) => vm.close), "vm_closed")
      assert.strictEqual(yield* reasonOf(() => sidecar.dispose), "disposed")
    }).pipe(Effect.provide(layer({ cancelGrace: "100 millis", killGrace: "300 millis" })))
  )
})
