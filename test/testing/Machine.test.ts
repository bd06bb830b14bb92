import { assert, describe, it } from "@effect/vitest"
import { Machine, Prng, Simulation } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Random from "effect/Random"
import * as MiniCore from "../support/miniCore.ts"

const { machine } = MiniCore

describe("a machine", () => {
  it("holds under random commands and interleavings, and says how much was tried", () => {
    const { runs, sequences, traces } = Machine.assertHolds(machine(), { runs: 100 })
    assert.strictEqual(sequences, 100)
    assert.strictEqual(runs, 100)
    assert.isAbove(traces, 80)
  })

  it("shows many interleavings of the same commands", () => {
    const prng = Prng.make(3)
    const steps = Array.from({ length: 30 }, () => ({ command: machine().generate(prng), settle: false }))
    const traces = new Set<string>()
    for (let seed = 0; seed < 50; seed++) traces.add(Machine.runSteps(machine(), steps, { seed }).trace.join(" "))
    assert.isAbove(traces.size, 25)
  })

  for (const [bug, seed] of [
    ["admissionGap", 1005],
    ["permitGap", 1242],
    ["cancelRace", 1081]
  ] as const) {
    it(`has its ${bug} found, and shrunk to a few commands and one scheduling choice`, () => {
      const { counterexample: found } = Machine.check(machine(bug), { seed, runs: 10 })
      assert.isDefined(found)
      assert.isAtMost(found.steps.length, 4)
      assert.strictEqual(found.decisions.length, 1)
      const again = Machine.replay(machine(bug), found.token)
      assert.strictEqual(again.message, found.message)
      assert.deepStrictEqual(again.trace, found.trace)
      assert.isUndefined(Machine.replay(machine(), found.token).message)
    })

    it(`shows no ${bug} under the plain schedule`, () => {
      assert.isUndefined(Machine.check(machine(bug), { seed, runs: 100, schedule: "fifo" }).counterexample)
    })
  }

  it.effect("shows no cancelRace under Effect's own scheduler", () =>
    Effect.gen(function* () {
      for (let pause = 0; pause < 100; pause++) {
        const attempt = Effect.gen(function* () {
          const core = yield* MiniCore.make({ limit: 2, bug: "cancelRace" })
          yield* core.open
          yield* core.prompt(0, "echo")
          const canceller = yield* Effect.forkChild(core.cancel(0))
          for (let i = 0; i < pause % 10; i++) yield* Effect.yieldNow
          yield* Fiber.join(canceller)
          assert.isAtMost(core.ended.length, 1)
        })
        yield* Effect.scoped(attempt)
      }
    })
  )

  it("has a leak that needs no race reported as such", () => {
    const { counterexample: found } = Machine.check(machine("hostLeak"), { runs: 10 })
    assert.isDefined(found)
    assert.deepStrictEqual(found.decisions, [])
    assert.include(Machine.format(machine("hostLeak"), found), "schedule: plain FIFO")
    assert.throws(() => Machine.assertHolds(machine("hostLeak"), { runs: 10 }), /left[^]*replay token: \{/)
  })

  const steps = (...commands: ReadonlyArray<MiniCore.Command>): ReadonlyArray<Machine.Step<MiniCore.Command>> =>
    commands.map((command, index) => ({ command, settle: index === 0 }))
  const cancelAndClose = steps(
    { _tag: "Open" },
    { _tag: "Prompt", session: 0, script: "echo" },
    { _tag: "Cancel", session: 0 },
    { _tag: "Close", session: 0 }
  )

  it("holds for given commands under each schedule that differs from the plain one in one choice", () => {
    const { runs, trial } = Machine.everySingleChoice(machine(), cancelAndClose)
    assert.isUndefined(trial)
    assert.isAbove(runs, 100)
    assert.isDefined(Machine.everySingleChoice(machine("cancelRace"), cancelAndClose).trial)
  })

  it("holds for short random sequences under each such schedule", () => {
    const { runs, sequences } = Machine.assertHolds(machine(), { runs: 10, commands: 4, schedule: "everySingleChoice" })
    assert.strictEqual(sequences, 10)
    assert.isAbove(runs, 500)
  })

  it("is replayed with the random numbers that failed", () => {
    // Wrong for about one number in eight, whatever the schedule.
    const unlucky: Machine.Machine<void, number, number> = {
      start: Effect.void,
      model: 0,
      generate: (prng) => prng.int(3),
      next: (count) => count + 1,
      perform: () =>
        Effect.map(Random.next, (number) => {
          if (number > 0.88) throw new Error("unlucky")
        })
    }
    for (const seed of [0, 50, 100, 150]) {
      const { counterexample: found } = Machine.check(unlucky, { seed, commands: 6 })
      assert.isDefined(found)
      assert.strictEqual(Machine.replay(unlucky, found.token).message, "unlucky")
      assert.isAtMost(found.steps.length, 2)
    }
  })

  it("doesn't slip to another bug while it shrinks", () => {
    // Fewer commands always fail in another way; only the first kind counts.
    const two: Machine.Machine<ReadonlyArray<number>, number, number> = {
      start: Effect.succeed([]),
      model: 0,
      generate: (prng) => prng.int(2),
      next: (count) => count + 1,
      perform: () => Effect.void,
      closed: (_, count) => {
        if (count >= 3) throw new Error(`three, with ${count} commands`)
        throw new Error("few")
      }
    }
    const { counterexample } = Machine.check(two, { runs: 1 })
    assert.strictEqual(counterexample?.message, "three, with 3 commands")
    assert.strictEqual(counterexample?.stepsBefore, 30)
  })

  it("stops when its time is over, and says how far it is", () => {
    const progress: Array<Machine.Progress> = []
    const result = Machine.check(machine(), { millis: 50, onProgress: (now) => progress.push(now) })
    assert.isUndefined(result.counterexample)
    assert.isAbove(result.sequences, 0)
    assert.strictEqual(progress.length, result.sequences)
    assert.strictEqual(progress.at(-1)?.runs, result.runs)
    assert.strictEqual(Machine.check(machine(), { millis: 60_000, runs: 2 }).sequences, 2)
    assert.strictEqual(Machine.check(machine(), { millis: 0 }).sequences, 0)
  })
})

describe("the commands of a machine", () => {
  type Command = "work" | "leave"
  const log: Array<string> = []
  const desk = (options: Partial<Machine.Machine<void, number, Command>>): Machine.Machine<void, number, Command> => ({
    start: Effect.sync(() => void log.splice(0)),
    model: 0,
    generate: (prng) => prng.pick<Command>(["work", "leave"]),
    next: (count, command) => (command === "work" ? count + 1 : count),
    perform: (_, command, callers) =>
      command === "leave"
        ? callers.leave(0)
        : Effect.onExit(Effect.sleep("1 minute"), (exit) => Effect.sync(() => void log.push(exit._tag))),
    ...options
  })

  it("have callers that may go away", () => {
    const { message } = Machine.runSteps<void, number, Command>(
      desk({}),
      [
        { command: "leave", settle: false },
        { command: "work", settle: true },
        { command: "work", settle: true },
        { command: "leave", settle: true }
      ],
      { seed: 0 }
    )
    assert.isUndefined(message)
    assert.deepStrictEqual(log, ["Failure", "Success"])
    Machine.assertHolds(desk({}), { runs: 50 })
  })

  it("fail the run when they fail, and not when they are interrupted", () => {
    const refused = new Error("refused")
    const failing = desk({ perform: () => Effect.fail(refused) })
    const { counterexample } = Machine.check(failing, { runs: 1 })
    assert.strictEqual(counterexample?.message, "refused")
    // The error itself, whose stack says where it came from.
    assert.strictEqual(counterexample?.cause, refused)
    assert.isUndefined(Machine.check(desk({ perform: () => Effect.interrupt }), { runs: 5 }).counterexample)
  })

  it("are reported as stuck when they wait for ever", () => {
    const { counterexample } = Machine.check(desk({ perform: () => Effect.withSpan(Effect.never, "Desk.work") }))
    assert.match(counterexample?.message ?? "", /^Nothing can run[^]*Desk\.work/)
    assert.strictEqual(counterexample?.steps.length, 1)
  })

  it("are followed by checks that may be Effects", () => {
    const failure = Effect.fail(new Error("not settled"))
    const found = Machine.check(desk({ settled: (_, count) => (count > 1 ? failure : Effect.void) }))
    assert.strictEqual(found.counterexample?.message, "not settled")
    assert.deepStrictEqual(
      found.counterexample?.steps.map((step) => step.command),
      ["work", "work"]
    )
  })

  it("fail where a check gives a promise, which would be looked at too late", () => {
    const late = (() => Promise.resolve()) as never
    assert.match(Machine.check(desk({ settled: late })).counterexample?.message ?? "", /A check gave a promise/)
  })

  it("are shown with the end of a long trace", () => {
    const perform = Effect.fnUntraced(function* () {
      for (let line = 1; line <= 1000; line++) yield* Simulation.trace(`line ${line}`)
      return yield* Effect.fail(new Error("at the end"))
    })
    const found = Machine.check(desk({ perform })).counterexample
    const text = Machine.format(desk({ perform }), found!)
    assert.include(text, "trace, without its first 800 lines:\n  line 801\n")
    assert.include(text, "  line 1000\nreplay token")
  })
})
