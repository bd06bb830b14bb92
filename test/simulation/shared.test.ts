import { assert, describe, it } from "@effect/vitest"
import { Machine } from "acp-sidecar/testing"
import type { ProcessPlan } from "./shared/agents.ts"
import type { Command } from "./shared/commands.ts"
import * as Shared from "./shared/machine.ts"

describe("sessions that share processes, under random commands and interleavings", { timeout: 600_000 }, () => {
  it("keep T1, T3, H1 to H3, A5 and W3, and leave nothing behind", () => {
    const counted = new Set<string>()
    const machine = Shared.make({ count: (what) => counted.add(what) })
    const { runs, traces } = Machine.assertHolds(machine, { runs: 100, seed: 1 })
    assert.strictEqual(runs, 100)
    assert.isAbove(traces, 80)
    // It really comes to the ends that are hard to come to.
    const hard = ["session ended: quarantined", "session ended: retired", "session ended: agent_exited"]
    assert.includeMembers(Array.from(counted), [...hard, "open refused: HostStillEnding"])
  })

  it("keep them in short sequences whichever single step of a fiber comes late", () => {
    const machine = Shared.make({ open: 1 })
    const { runs } = Machine.assertHolds(machine, {
      runs: 3,
      seed: 1,
      commands: 3,
      settleProbability: 0.2,
      schedule: "everySingleChoice"
    })
    assert.isAbove(runs, 300)
  })
})

// What the model test has found before.
describe("sessions that share processes, whichever single step of a fiber comes late", () => {
  const holds = (...steps: ReadonlyArray<Machine.Step<Command>>): void => {
    const { runs, trial } = Machine.everySingleChoice(Shared.make(), steps)
    assert.isUndefined(trial?.message)
    assert.isAbove(runs, 10)
  }
  const now = (command: Command) => ({ command, settle: false })
  const good: ProcessPlan = { start: "good", end: "good", canClose: true, close: "good" }

  it("tell an opening whose process dies in its last step of that, and not that somebody closed it", () => {
    holds(
      now({ _tag: "Open", vm: 0, group: "all", process: good, answer: "good" }),
      now({ _tag: "Open", vm: 1, group: "all", process: good, answer: "crash" })
    )
  })

  it("tell a probe that the sidecar was disposed in the moment of its start", () => {
    holds(
      now({ _tag: "Probe", vm: 0, group: "vm", process: good, answer: "good", want: "nothing", timeout: 1500 }),
      now({ _tag: "Dispose", after: 0 })
    )
  })

  it("open no route when they are disposed of while the agent answers", () => {
    const dispose = (after: number): void =>
      holds(
        now({ _tag: "Open", vm: 0, group: "vm", process: good, answer: "good", hold: 900 }),
        now({ _tag: "Dispose", after })
      )
    for (const after of [20, 23, 26]) dispose(after)
  })

  it("end a process that serves nobody in time, also beside one that can't be killed", () => {
    const then = (command: Command) => ({ command, settle: true })
    const unkillable: ProcessPlan = { ...good, end: "never" }
    holds(
      then({ _tag: "Probe", vm: 0, group: "vm", process: unkillable, answer: "good", want: "nothing", timeout: 1500 }),
      then({ _tag: "Advance", millis: 400 }),
      then({ _tag: "Open", vm: 1, group: "all", process: good, answer: "long" }),
      then({ _tag: "Dispose" }),
      then({ _tag: "Advance", millis: 300 })
    )
  })
})
