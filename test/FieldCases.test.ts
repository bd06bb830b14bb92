// Cases from the field that belong to no one module.
import { assert, it } from "@effect/vitest"
import { AgentProfile, Sidecar } from "acp-sidecar"
import type { Session, SidecarEvent, TurnOutcome } from "acp-sidecar"
import { Simulation, TestSidecar } from "acp-sidecar/testing"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { beside, idle, provided, textOf, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"
import { assertEnded, manual, stuck } from "./support/turns.ts"

const sent = (opened: TestSidecar.Opened, method = "session/prompt") =>
  opened.agent.methods().filter((name) => name === method).length

everywhere("idle sessions", (layer, place) => {
  it("C10: 50 of them have no timer, and nothing of theirs runs while time passes", () => {
    /** Tasks that run within an hour. */
    const tasksWith = (sessions: number) => {
      const { exit, stuck } = Simulation.run(
        Effect.gen(function* () {
          const context = yield* Layer.build(layer())
          yield* Effect.provideContext(
            Effect.gen(function* () {
              const { session, vm } = yield* TestSidecar.open()
              const all = [session]
              while (all.length < sessions) all.push((yield* TestSidecar.open({ vm })).session)
              for (const one of all) yield* one.prompt("go", { idleTimeout: "1 minute", wallTimeout: "1 minute" })
            }),
            context
          )
          const { clock, scheduler } = yield* Simulation.here
          yield* Simulation.settle
          // A connection has the heartbeat of each of its ends, whatever it is there for.
          assert.strictEqual(clock.sleepers, place === "embedded" ? 0 : 2)
          const before = scheduler.steps
          for (let minute = 0; minute < 60; minute++) yield* clock.adjust("1 minute")
          return scheduler.steps - before
        }),
        { seed: 0, decisions: [] }
      )
      assert.isUndefined(stuck)
      if (exit === undefined || Exit.isFailure(exit)) return assert.fail(String(exit))
      return exit.value
    }
    assert.strictEqual(tasksWith(50), tasksWith(1))
  })

  it.effect("B10: 20 that are opened and closed have told their agent where it offers that, and are all gone", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const { alive } = yield* TestSidecar.TestSidecar
      const vm = yield* sidecar.openVm({ root: "/work" })
      const all: Array<TestSidecar.Opened> = []
      for (let i = 0; i < 20; i++) all.push(yield* TestSidecar.open({ vm }))
      assert.strictEqual(alive(), 20)
      yield* TestClock.adjust("1 hour")
      for (const { session } of all) yield* session.close
      assert.strictEqual(alive(), 0)
      for (const one of all) assert.deepStrictEqual(one.agent.methods().slice(2), ["session/close"])
      assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
      const last = yield* TestSidecar.open({ vm })
      assert.strictEqual(alive(), 1)
      yield* last.session.close
    }).pipe(
      provided(
        layer({
          script: { capabilities: { sessionCapabilities: { close: {} } } },
          limits: { maxSessionsPerVm: 20 }
        })
      )
    )
  )

  it.effect("B10: where it does not offer that, closing sends it nothing", () =>
    Effect.gen(function* () {
      const one = yield* TestSidecar.open()
      yield* one.session.close
      assert.strictEqual(sent(one, "session/close"), 0)
      assert.isTrue(one.agent.isGone())
    }).pipe(provided(layer()))
  )
})

everywhere("an agent that dies with the prompt", (layer) => {
  it.effect("B21: before its first update: the turn fails, and the prompt is never sent again", () =>
    Effect.gen(function* () {
      const one = yield* TestSidecar.open()
      const turn = yield* one.session.submit("only once", { idempotencyKey: "key" })
      const waiting = yield* one.session.submit("never")
      yield* Queue.take(one.agent.prompts)
      yield* one.agent.crash({ code: 7 })
      const failed = yield* Effect.flip(turn.await)
      assert.deepInclude(failed, { phase: "running" })
      assert.deepInclude(failed.reason, { _tag: "ProcessExited", code: 7 })
      assert.deepInclude(yield* Effect.flip(waiting.await), { phase: "queued" })

      // Neither by a later prompt, nor by the same one again.
      assert.deepInclude(yield* Effect.flip(one.session.submit("later")), { reason: "agent_exited" })
      assert.strictEqual((yield* one.session.submit("only once", { idempotencyKey: "key" })).id, turn.id)
      const two = yield* TestSidecar.open({ vm: one.vm })
      yield* TestClock.adjust("1 hour")
      assert.strictEqual(sent(two), 0)
      const next = yield* two.session.submit("another")
      const prompt = yield* Queue.take(two.agent.prompts)
      assert.strictEqual(prompt.text, "another")
      yield* prompt.end()
      assert.strictEqual((yield* next.await)._tag, "Completed")
      assert.deepStrictEqual([sent(one), sent(two)], [1, 1])
      const { agents } = yield* TestSidecar.TestSidecar
      assert.strictEqual(yield* Queue.size(agents), 0)
      yield* assertEnded(one.session, two.session)
    }).pipe(provided(layer({ script: manual })))
  )

  it.effect("B21: in the tick of the prompt, whether or not the agent has read it", () =>
    Effect.gen(function* () {
      for (const order of ["prompt first", "crash first"] as const) {
        const one = yield* TestSidecar.open()
        if (order === "crash first") yield* one.agent.crash({ code: 7 })
        const submitted = yield* Effect.exit(one.session.submit("go"))
        if (order === "prompt first") yield* one.agent.crash({ code: 7 })
        // Refused, or failed with the evidence: never accepted and dropped.
        if (Exit.isFailure(submitted)) assert.strictEqual(order, "crash first")
        else assert.deepInclude((yield* Effect.flip(submitted.value.await)).reason, { _tag: "ProcessExited", code: 7 })
        yield* idle
        assert.isAtMost(sent(one), 1)
        yield* assertEnded(one.session)
      }
    }).pipe(provided(layer({ script: manual })))
  )
})

everywhere("a session beside another", (layer) => {
  it.effect("B38: what waits for its user in A holds up nothing of B, and B's own timeouts speak of B", () =>
    Effect.gen(function* () {
      const a = yield* TestSidecar.open({ permission: "ask" })
      const asking = yield* a.session.submit("ask")
      const held = yield* Queue.take(a.agent.prompts)
      yield* beside(held.ask())
      yield* until(a.session, "PermissionAsked")

      const b = yield* TestSidecar.open({ vm: a.vm })
      const first = yield* b.session.submit("go", { idleTimeout: "30 seconds" })
      // The bytes are with B's agent while A's question is open.
      const prompt = yield* Queue.take(b.agent.prompts)
      assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      yield* prompt.end()
      assert.strictEqual((yield* first.await)._tag, "Completed")

      // An agent that waits for something else is one that is silent, and it is named with its own turn.
      const second = yield* b.session.submit("wait", { idleTimeout: "30 seconds" })
      const silent = yield* Queue.take(b.agent.prompts)
      yield* beside(Effect.andThen(silent.cancelled, silent.end("cancelled")))
      const ending = yield* beside(Effect.flip(second.await))
      yield* TestClock.adjust("29 seconds")
      assert.isUndefined(ending.pollUnsafe())
      yield* TestClock.adjust("1 second")
      const failed = yield* Fiber.join(ending)
      assert.deepInclude(failed.reason, { _tag: "TurnTimedOut", deadline: "idle", afterMillis: 30_000 })
      assert.deepStrictEqual(failed.address, second.address)
      assert.include(failed.message, second.id)
      assert.strictEqual((yield* a.session.pendingPermissions).length, 1)

      const opening = yield* beside(Effect.exit(a.vm.openSession({ agent: { ...TestSidecar.profile, name: "mute" } })))
      yield* TestClock.adjust("1 minute")
      const unopened = yield* Effect.flip(Effect.flatten(Fiber.join(opening)))
      assert.deepInclude(unopened, { _tag: "AgentStartFailed", agent: "mute", phase: "initialize" })

      yield* a.session.answer((yield* a.session.pendingPermissions)[0]!.permissionId, "allow")
      yield* held.end()
      assert.strictEqual((yield* asking.await)._tag, "Completed")
    }).pipe(
      provided(
        layer({
          script: ({ profile }) =>
            profile.name === "mute" ? { initialize: () => Effect.never } : { prompt: "manual" as const }
        })
      )
    )
  )

  it.effect("B82: has an agent of its own unless its profile shares, also where nothing else differs", () =>
    Effect.gen(function* () {
      for (const name of ["claude", "codex", "gemini", "copilot", "opencode", "qwen", "pi"] as const) {
        assert.isFalse(AgentProfile[name].share, name)
      }
      assert.isFalse(AgentProfile.make({ command: ["any"] }).share)

      const { alive, launches } = yield* TestSidecar.TestSidecar
      const one = yield* TestSidecar.open()
      const two = yield* TestSidecar.open({ vm: one.vm })
      assert.strictEqual(launches().length, 2)
      assert.notStrictEqual(one.agent, two.agent)
      // What one of them says, or is told, is nothing to the other.
      yield* one.agent.update(two.session.agentSessionId, {
        sessionUpdate: "agent_message_chunk",
        content: { type: "text", text: "not mine" }
      })
      yield* idle
      assert.strictEqual((yield* two.session.describe).events, 0)
      yield* one.session.close
      assert.strictEqual(alive(), 1)
      assert.strictEqual((yield* two.session.prompt("go"))._tag, "Completed")
    }).pipe(provided(layer()))
  )

  for (const others of [10, 30]) {
    it.effect(`C04: 20,000 updates in one turn beside ${others} sessions: all arrive in order, nobody notices`, () =>
      Effect.gen(function* () {
        const noisy = yield* TestSidecar.open()
        const siblings: Array<TestSidecar.Opened> = []
        for (let i = 0; i < others - 1; i++) siblings.push(yield* TestSidecar.open({ vm: noisy.vm }))
        const elsewhere = yield* TestSidecar.open()
        const all = [...siblings, elsewhere]

        const flood = yield* noisy.session.submit("flood")
        const prompt = yield* Queue.take(noisy.agent.prompts)
        const reading = yield* beside(Stream.runCollect(flood.updates))
        // A turn that runs through all of it, in the same Vm and in another one.
        const through = [siblings[0]!, elsewhere]
        const running = yield* Effect.forEach(through, ({ session }) => session.submit("through"))
        const held = yield* Effect.forEach(through, ({ agent }) => Queue.take(agent.prompts))
        yield* Effect.forEach(held, (one) => one.say("before"))

        const numbers = Array.from({ length: 20_000 }, (_, i) => i)
        yield* noisy.agent.together(Effect.forEach(numbers, (i) => prompt.say(`${i}`), { discard: true }))
        // On its way now, and not read yet.
        for (const { agent, session } of all.filter((one) => !through.includes(one))) {
          const turn = yield* session.submit("short")
          yield* (yield* Queue.take(agent.prompts)).end()
          assert.strictEqual((yield* turn.await)._tag, "Completed")
        }
        for (const [index, one] of held.entries()) {
          yield* one.say("after")
          yield* one.end()
          assert.strictEqual((yield* running[index]!.await)._tag, "Completed")
          const texts = (yield* Stream.runCollect(running[index]!.updates)).map(textOf).filter((text) => text !== "")
          assert.deepStrictEqual(texts, ["before", "after"])
        }
        yield* prompt.end()
        assert.strictEqual((yield* flood.await)._tag, "Completed")
        const texts = (yield* Fiber.join(reading)).map(textOf).filter((text) => text !== "")
        assert.deepStrictEqual(texts, numbers.map(String))

        // And every later prompt, on all of them.
        for (const { agent, session } of [noisy, ...all]) {
          const turn = yield* session.submit("later")
          yield* (yield* Queue.take(agent.prompts)).end()
          assert.strictEqual((yield* turn.await)._tag, "Completed")
          yield* assertEnded(session)
        }
        assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      }).pipe(provided(layer({ script: manual })))
    )
  }
})

everywhere("C11: each end has a reason of its own", (layer) => {
  interface End {
    readonly how: string
    readonly by: (opened: TestSidecar.Opened, scope: Scope.Closeable) => Effect.Effect<unknown, never, Sidecar.Sidecar>
    readonly turn: TurnOutcome.CancelledBy | "ProcessExited" | "TransportClosed"
    readonly session: SidecarEvent.SessionEnded["reason"]
  }
  const ends: ReadonlyArray<End> = [
    { how: "a crash", by: ({ agent }) => agent.crash({ code: 9 }), turn: "ProcessExited", session: "agent_exited" },
    { how: "the close of the session", by: ({ session }) => session.close, turn: "close", session: "closed" },
    {
      how: "the end of its opener's scope",
      by: (_, scope) => Scope.close(scope, Exit.void),
      turn: "close",
      session: "closed"
    },
    { how: "the close of its Vm", by: ({ vm }) => vm.close, turn: "vm_close", session: "vm_closed" },
    {
      how: "the dispose of the sidecar",
      by: () => Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.dispose),
      turn: "dispose",
      session: "disposed"
    },
    {
      how: "an agent that has to be stopped",
      by: ({ session }) => session.cancel(),
      turn: "caller",
      session: "retired"
    }
  ]

  for (const { by, how, session: reason, turn: expected } of ends) {
    it.effect(how, () =>
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const opened = yield* TestSidecar.open().pipe(Scope.provide(scope))
        const { session } = opened
        const turn = yield* session.submit("go")
        yield* turn.dispatched
        const ending = yield* beside(by(opened, scope))
        yield* TestClock.adjust("10 seconds")
        yield* Fiber.join(ending)
        const outcome = yield* turn.outcome
        assert.strictEqual(
          outcome._tag === "Failed" ? outcome.error.reason._tag : "by" in outcome && outcome.by,
          expected
        )
        const last = yield* until(session, "SessionEnded")
        assert.strictEqual(last.reason, reason)
        const refused = yield* Effect.flip(session.submit("more"))
        assert.deepInclude(refused, { _tag: "SessionUnusable", reason, detail: last.detail })
        yield* Scope.close(scope, Exit.void)
      }).pipe(provided(layer({ script: stuck })))
    )
  }

  it.effect("whoever came first is named, for the turn and for the session", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const opened = yield* TestSidecar.open()
      const turns: ReadonlyArray<Session.Turn> = [
        yield* opened.session.submit("go"),
        yield* opened.session.submit("waits")
      ]
      const closing = [yield* beside(opened.session.close)]
      yield* TestClock.adjust("1 second")
      closing.push(yield* beside(opened.vm.close), yield* beside(sidecar.dispose))
      yield* TestClock.adjust("9 seconds")
      yield* Fiber.joinAll(closing)
      for (const turn of turns) assert.deepInclude(yield* turn.outcome, { _tag: "Cancelled", by: "close" })
      assert.strictEqual((yield* until(opened.session, "SessionEnded")).reason, "closed")
    }).pipe(provided(layer({ script: stuck })))
  )
})
