import { assert, describe, it } from "@effect/vitest"
import { Machine } from "acp-sidecar/testing"
import type { Command } from "./commands.ts"
import * as Core from "./machine.ts"

describe("the core, under random commands and interleavings", { timeout: 600_000 }, () => {
  it("keeps T1 to T3, A2 to A4 and P1, and leaves nothing behind", () => {
    const counted = new Set<string>()
    const machine = Core.make({ count: (what) => counted.add(what) })
    const { runs, traces } = Machine.assertHolds(machine, { runs: 200, seed: 1 })
    assert.strictEqual(runs, 200)
    assert.isAbove(traces, 150)
    // It really comes to the ends that are hard to come to.
    const hard = ["escalation: retired", "answered by crash", "a reader lagged", "failed: running, ProcessExited"]
    assert.includeMembers(Array.from(counted), hard)
  })

  it("keeps them in short sequences whichever single step of a fiber comes late", () => {
    const machine = Core.make({ open: 1 })
    const { runs } = Machine.assertHolds(machine, {
      runs: 5,
      seed: 1,
      commands: 3,
      settleProbability: 0.2,
      schedule: "everySingleChoice"
    })
    assert.isAbove(runs, 500)
  })
})

// What the model test has found before.
describe("the core, whichever single step of a fiber comes late", () => {
  const holds = (...steps: ReadonlyArray<Machine.Step<Command>>): void => {
    const { runs, trial } = Machine.everySingleChoice(Core.make(), steps)
    assert.isUndefined(trial?.message)
    assert.isAbove(runs, 10)
  }
  const now = (command: Command) => ({ command, settle: false })
  const first = (command: Command) => ({ command, settle: true })

  it("lists no Vm that was opened while the sidecar was disposed", () => {
    holds(now({ _tag: "OpenVm" }), now({ _tag: "Dispose" }))
  })

  it("asks nothing in the name of a turn that has ended", () => {
    holds(
      first({
        _tag: "Open",
        vm: 2,
        agent: { start: "good", canClose: false, close: "good" },
        policy: "handlerBad"
      }),
      first({ _tag: "Prompt", session: 0, prompt: { behaviour: "ask", how: "prompt" } }),
      now({ _tag: "Prompt", session: 0, prompt: { behaviour: "refuse", how: "prompt" } }),
      now({ _tag: "Garbage", session: 0, what: "strayAsk" })
    )
  })

  it("starts no waiting turn with an agent that is being stopped", () => {
    holds(
      first({ _tag: "Open", vm: 2, agent: { start: "good", canClose: false, close: "good" }, policy: "ask" }),
      first({ _tag: "Prompt", session: 0, prompt: { behaviour: "hang", how: "cancelNow" } }),
      first({ _tag: "Prompt", session: 0, prompt: { behaviour: "quick", how: "submit" } }),
      first({ _tag: "Advance", millis: 750 })
    )
  })
})
