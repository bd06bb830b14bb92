// An app on top of the sidecar, simulated: every interleaving from a seed, and a caller that leaves at every operation.
import { assert, it } from "@effect/vitest"
import type { Sidecar } from "acp-sidecar"
import { Interruption, Machine, TestSidecar } from "acp-sidecar/testing"
import { Effect, RcMap } from "effect"
import { TestClock } from "effect/testing"

/** The app: a session for each room, opened by whoever speaks there first, closed when it was quiet for 10 minutes. */
const makeChat = Effect.fnUntraced(function* (sidecar: Sidecar.Sidecar["Service"]) {
  const vm = yield* sidecar.openVm({ root: "/work" })
  const rooms = yield* RcMap.make({
    lookup: (_room: string) => vm.openSession({ agent: TestSidecar.profile }),
    idleTimeToLive: "10 minutes"
  })
  const say = (room: string, text: string) =>
    Effect.scoped(Effect.flatMap(RcMap.get(rooms, room), (session) => session.prompt(text)))
  return { say, vm }
})

/** A fresh world for each run. Its agent thinks for 2 seconds, which take no time. */
const world = Effect.gen(function* () {
  const { sidecar, test } = yield* TestSidecar.make({
    script: { prompt: (turn) => Effect.as(Effect.delay(turn.say("Hello."), "2 seconds"), "end_turn") }
  })
  return { ...(yield* makeChat(sidecar)), test }
})

type Command =
  | { readonly _tag: "Say"; readonly room: string }
  | { readonly _tag: "Leave" }
  | { readonly _tag: "Wait"; readonly minutes: number }

it("a room never has two sessions, whoever speaks, leaves or waits", () => {
  const result = Machine.assertHolds(
    {
      start: world,
      // The model: the rooms in which somebody spoke.
      model: new Set<string>(),
      generate: (prng): Command =>
        prng.pick<Command>([
          { _tag: "Say", room: prng.pick(["red", "blue"]) },
          { _tag: "Leave" },
          { _tag: "Wait", minutes: prng.pick([0.01, 1, 11]) }
        ]),
      next: (rooms, command) => (command._tag === "Say" ? new Set([...rooms, command.room]) : rooms),
      perform: ({ say }, command, callers) => {
        if (command._tag === "Say") return say(command.room, "Hello?")
        return command._tag === "Leave" ? callers.leave(0) : TestClock.adjust(`${command.minutes} minutes`)
      },
      settled: ({ vm }, rooms) =>
        Effect.map(vm.describe, ({ sessions }) => assert.isAtMost(sessions.length, rooms.size, "sessions")),
      closed: ({ test }) => assert.strictEqual(test.alive(), 0, "agents")
    },
    { runs: 30, commands: 10 }
  )
  assert.strictEqual(result.sequences, 30)
})

it("a room gives everything back, at whatever operation its caller leaves", () => {
  const report = Interruption.assertSafe({
    make: world,
    body: ({ say }) => say("red", "Hello?"),
    // The session goes on and serves whoever speaks next.
    check: ({ say }) => Effect.map(say("red", "Again?"), (outcome) => assert.strictEqual(outcome._tag, "Completed")),
    closed: ({ test }) => assert.strictEqual(test.alive(), 0, "agents"),
    // The room's 10 minutes.
    keepsTimers: true,
    maxPoints: 50
  })
  assert.isAbove(report.runs, 10)
})
