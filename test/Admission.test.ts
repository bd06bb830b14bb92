import { assert, it } from "@effect/vitest"
import { Admission, type Session, Sidecar, SidecarLimits } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { everywhere } from "./support/places.ts"
import { assertEnded, assertIdle, events, hanging, manual, rest, stuck } from "./support/turns.ts"

const phases = (session: Session.Session) =>
  Effect.map(session.describe, (info) => info.turns.map((turn) => turn.phase))

const openMany = (count: number) =>
  Effect.gen(function* () {
    const first = yield* TestSidecar.open()
    const all = [first]
    while (all.length < count) all.push(yield* TestSidecar.open({ vm: first.vm }))
    return all
  })

everywhere("A1, A4: a prompt is admitted or refused, never swallowed", (layer) => {
  it.effect("B33: a prompt on a busy session waits for the one before it", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one")
      const two = yield* session.submit("two")
      yield* rest
      assert.deepStrictEqual(yield* phases(session), ["running", "queued"])
      const first = yield* Queue.take(agent.prompts)
      assert.strictEqual(yield* Queue.size(agent.prompts), 0)
      yield* first.end()
      yield* one.await
      yield* (yield* Queue.take(agent.prompts)).end()
      yield* two.await
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("B33, B34: or is refused, naming the turn in its way, which goes on", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("one", { onBusy: "reject" })
      const refused = yield* Effect.flip(session.submit("two", { onBusy: "reject" }))
      assert.deepInclude(refused, { _tag: "SessionBusy", turnId: one.id })
      assert.include(refused.message, one.id)
      yield* (yield* Queue.take(agent.prompts)).end()
      yield* one.await
      const three = yield* session.submit("three", { onBusy: "reject" })
      yield* (yield* Queue.take(agent.prompts)).end()
      yield* three.await
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("B34: or replaces the one that runs and all that wait", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const earlier = [yield* session.submit("1"), yield* session.submit("2"), yield* session.submit("3")]
      const last = yield* session.submit("4", { onBusy: "replace" })
      assert.deepStrictEqual(
        yield* Effect.forEach(earlier, (turn) => turn.outcome),
        ["cancelled", null, null].map((agentReported) => ({
          _tag: "Cancelled" as const,
          by: "replaced" as const,
          agentReported,
          escalation: "none" as const
        }))
      )
      yield* rest
      assert.deepStrictEqual(yield* phases(session), ["running"])
      assert.deepStrictEqual(agent.methods().slice(2), ["session/prompt", "session/cancel", "session/prompt"])
      yield* last.cancel
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("B34: replacing an idle session's nothing is just a prompt, and works with no queue at all", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const one = yield* session.submit("1", { onBusy: "replace" })
      const two = yield* session.submit("2", { onBusy: "replace" })
      const three = yield* session.submit("3", { onBusy: "replace" })
      for (const turn of [one, two]) assert.deepInclude(yield* turn.outcome, { _tag: "Cancelled", by: "replaced" })
      yield* three.cancel
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging, limits: { maxQueuedPromptsPerSession: 0 } })))
  )

  it.effect("B34: a replacement waits for the grace of what it replaces and fails, typed, when that is given up", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* session.submit("1")
      const two = yield* session.submit("2", { onBusy: "replace" })
      yield* TestClock.adjust("10 seconds")
      assert.strictEqual((yield* Effect.flip(two.await)).phase, "queued")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: stuck })))
  )

  it.effect("B34: of prompts that replace each other within one step the last one is left", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* session.submit("1")
      const two = yield* session.submit("2")
      // It runs inside of the third's submission, where the second ends.
      const fourth = yield* Effect.forkChild(
        Effect.andThen(
          two.outcome,
          Effect.suspend(() => session.submit("4", { onBusy: "replace" }))
        ),
        { startImmediately: true }
      )
      const three = yield* session.submit("3", { onBusy: "replace" })
      const four = yield* Fiber.join(fourth)
      assert.deepInclude(yield* three.outcome, { _tag: "Cancelled", by: "replaced", agentReported: null })
      assert.isTrue(yield* four.dispatched)
      yield* four.cancel
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("a queue takes as many as its limit says and not one more, and again after one has gone", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const turns = [yield* session.submit("0")]
      for (let i = 0; i < 3; i++) turns.push(yield* session.submit(`${i + 1}`))
      // In the same tick: nothing had time to be counted later.
      const refused = yield* Effect.flip(session.submit("one too many"))
      assert.deepInclude(refused, {
        _tag: "LimitExceeded",
        scope: "session",
        limit: "maxQueuedPromptsPerSession",
        max: 3,
        used: 3,
        setting: "ACP_SIDECAR_MAX_QUEUED_PROMPTS_PER_SESSION"
      })
      assert.deepStrictEqual(refused.address, session.address)
      yield* turns[2]!.cancel
      turns.push(yield* session.submit("again"))
      assert.strictEqual((yield* Effect.flip(session.submit("no")))._tag, "LimitExceeded")
      yield* turns[0]!.cancel
      turns.push(yield* session.submit("and again"))
      for (const turn of turns) yield* turn.cancel
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging, limits: { maxQueuedPromptsPerSession: 3 } })))
  )

  it.effect("with no queue a busy session refuses at once", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const one = yield* session.submit("1")
      assert.deepInclude(yield* Effect.flip(session.submit("2")), {
        _tag: "LimitExceeded",
        limit: "maxQueuedPromptsPerSession",
        max: 0,
        used: 0
      })
      yield* one.cancel
      yield* (yield* session.submit("3")).cancel
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging, limits: { maxQueuedPromptsPerSession: 0 } })))
  )

  it.effect("B29: after a forced end a prompt is refused, not accepted and dropped", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("1")
      const closing = yield* Effect.forkChild(session.close, { startImmediately: true })
      assert.deepInclude(yield* Effect.flip(session.submit("2")), { _tag: "SessionUnusable", reason: "closed" })
      yield* Fiber.join(closing)
      assert.strictEqual((yield* one.outcome)._tag, "Cancelled")
      assert.strictEqual((yield* Effect.flip(session.prompt("3")))._tag, "SessionUnusable")
      const all = yield* events(session)
      assert.strictEqual(all.filter((event) => event._tag === "TurnQueued").length, 1)
      assert.strictEqual(agent.methods().filter((method) => method === "session/prompt").length, 1)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("B29: in the very tick of a crash a prompt is refused too", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("1")
      yield* Effect.forkChild(Effect.andThen(one.outcome, Effect.exit(session.submit("2"))), { startImmediately: true })
      yield* agent.crash()
      yield* one.outcome
      const refused = yield* Effect.flip(session.submit("3"))
      assert.deepInclude(refused, { _tag: "SessionUnusable", reason: "agent_exited" })
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("a prompt that waits too long fails with the limit's name and was never sent", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const one = yield* session.submit("1")
      const two = yield* session.submit("2")
      yield* TestClock.adjust("59 seconds")
      assert.deepStrictEqual(yield* phases(session), ["running", "queued"])
      yield* TestClock.adjust("1 seconds")
      const failed = yield* Effect.flip(two.await)
      assert.strictEqual(failed.phase, "queued")
      assert.deepInclude(failed.reason, {
        _tag: "TurnTimedOut",
        deadline: "admission",
        afterMillis: 60_000,
        escalation: "none"
      })
      assert.include(failed.message, "ACP_SIDECAR_ADMISSION_TIMEOUT")
      assert.isFalse(yield* two.dispatched)
      yield* one.cancel
      yield* rest
      assert.deepStrictEqual(agent.methods().slice(2), ["session/prompt", "session/cancel"])
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ script: hanging, limits: { admissionTimeout: "1 minute" } })))
  )

  it.effect("A2, B12: permits come back on every way out, so the next ones are admitted at once", () =>
    Effect.gen(function* () {
      const sessions = yield* openMany(5)
      const [one, two, three, four, five] = sessions.map(({ session }) => session) as Array<Session.Session>
      const prompts = sessions.map(({ agent }) => Queue.take(agent.prompts))
      const turns = yield* Effect.forEach([one!, two!, three!, four!], (session) => session.submit("hello"))
      const fifth = yield* five!.submit("hello")
      yield* rest
      assert.deepStrictEqual(yield* phases(five!), ["queued"])
      yield* (yield* prompts[0]!).end()
      yield* turns[0]!.outcome
      yield* rest
      assert.deepStrictEqual(yield* phases(five!), ["running"])
      yield* (yield* prompts[1]!).fail(-32603, "no")
      yield* sessions[2]!.agent.crash()
      const cancelling = yield* Effect.forkChild(turns[3]!.cancel, { startImmediately: true })
      yield* (yield* prompts[3]!).end("cancelled")
      yield* Fiber.join(cancelling)
      yield* (yield* prompts[4]!).end()
      yield* fifth.await
      yield* assertEnded(...sessions.map(({ session }) => session))
      const again = yield* Effect.forEach([one!, two!, four!, five!], (session) => session.submit("again"))
      yield* rest
      for (const session of [one!, two!, four!, five!]) assert.deepStrictEqual(yield* phases(session), ["running"])
      yield* Effect.forEach([0, 1, 3, 4], (i) => Effect.flatMap(prompts[i]!, (held) => held.end()))
      yield* Effect.forEach(again, (turn) => turn.await)
      yield* assertEnded(...sessions.map(({ session }) => session))
    }).pipe(Effect.provide(layer({ script: manual, limits: { maxPromptsPerVm: 4, maxPromptsPerSidecar: 4 } })))
  )

  it("decides from the number of unfinished turns alone", () => {
    const limits = { maxPromptsPerSession: 1, maxQueuedPromptsPerSession: 2 }
    const decide = (onBusy: Admission.OnBusy, unfinished: number, some: Partial<typeof limits> = {}) =>
      Admission.decide(onBusy, unfinished, { ...limits, ...some })
    assert.deepStrictEqual(
      [0, 1, 2, 3, 4].map((n) => decide("queue", n)),
      ["start", "queue", "queue", "full", "full"]
    )
    assert.deepStrictEqual(
      [0, 1, 9].map((n) => decide("reject", n)),
      ["start", "busy", "busy"]
    )
    assert.deepStrictEqual(
      [0, 1, 9].map((n) => decide("replace", n)),
      ["start", "replace", "replace"]
    )
    for (const onBusy of ["queue", "reject", "replace"] as const) {
      assert.strictEqual(decide(onBusy, 0, { maxPromptsPerSession: 0 }), "full")
    }
  })
})

everywhere("A3: lanes and fairness", (layer) => {
  for (const [scope, limits] of [
    ["Vm", { maxPromptsPerVm: 4 }],
    ["sidecar", { maxPromptsPerSidecar: 4 }]
  ] as const) {
    it.effect(
      `background work never takes the reserved permits of a ${scope}; an interactive prompt gets in at once`,
      () =>
        Effect.gen(function* () {
          const sessions = yield* openMany(6)
          const background = yield* Effect.forEach(sessions.slice(0, 5), ({ session }) =>
            session.submit("work", { lane: "background" })
          )
          yield* rest
          assert.deepStrictEqual(yield* Effect.forEach(sessions.slice(0, 5), ({ session }) => phases(session)), [
            ["running"],
            ["running"],
            ["running"],
            ["queued"],
            ["queued"]
          ])
          const { agent, session } = sessions[5]!
          const quick = yield* session.submit("quick")
          assert.deepStrictEqual(yield* phases(session), ["running"])
          yield* (yield* Queue.take(agent.prompts)).end()
          assert.strictEqual((yield* quick.await)._tag, "Completed")
          yield* rest
          assert.deepStrictEqual(yield* phases(sessions[3]!.session), ["queued"])
          for (const [i, turn] of background.entries()) {
            yield* rest
            yield* (yield* Queue.take(sessions[i]!.agent.prompts)).end()
            yield* turn.await
          }
          yield* assertEnded(...sessions.map((opened) => opened.session))
        }).pipe(Effect.provide(layer({ script: manual, limits })))
    )
  }

  it.effect("background work that waits for its share keeps nobody waiting behind it", () =>
    Effect.gen(function* () {
      const sessions = yield* openMany(5)
      const [a, b, c, d, e] = sessions.map(({ session }) => session) as Array<Session.Session>
      yield* a!.submit("work", { lane: "background" })
      yield* b!.submit("work", { lane: "background" })
      yield* c!.submit("quick")
      yield* d!.submit("quick")
      yield* rest
      assert.deepStrictEqual(yield* Effect.forEach([a!, b!, c!, d!], phases), [
        ["running"],
        ["queued"],
        ["running"],
        ["queued"]
      ])
      yield* c!.cancel()
      yield* rest
      assert.deepStrictEqual(yield* Effect.forEach([b!, d!], phases), [["queued"], ["running"]])
      yield* a!.cancel()
      yield* rest
      assert.deepStrictEqual(yield* phases(b!), ["running"])
      yield* e!.submit("quick")
      yield* Effect.forEach([b!, d!, e!], (session) => session.cancel())
      yield* assertEnded(a!, b!, c!, d!, e!)
    }).pipe(Effect.provide(layer({ script: hanging, limits: { maxPromptsPerVm: 2 } })))
  )

  it.effect("interactive prompts may take all permits, and background work then waits", () =>
    Effect.gen(function* () {
      const sessions = yield* openMany(5)
      for (const { session } of sessions.slice(0, 4)) yield* session.submit("quick")
      const work = yield* sessions[4]!.session.submit("work", { lane: "background" })
      yield* rest
      assert.deepStrictEqual(yield* phases(sessions[4]!.session), ["queued"])
      yield* sessions[0]!.session.cancel()
      yield* rest
      assert.deepStrictEqual(yield* phases(sessions[4]!.session), ["running"])
      yield* work.cancel
      yield* Effect.forEach(sessions, ({ session }) => session.cancel())
      yield* assertEnded(...sessions.map(({ session }) => session))
    }).pipe(Effect.provide(layer({ script: hanging, limits: { maxPromptsPerVm: 4 } })))
  )

  it.effect("a cap of 1 has no reserve, so background work runs", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const outcome = yield* session.prompt("work", { lane: "background" })
      assert.strictEqual(outcome._tag, "Completed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ limits: { maxPromptsPerVm: 1, maxPromptsPerSidecar: 1 } })))
  )

  it("an eighth is reserved, at least 1, and never more than there is", () => {
    assert.deepStrictEqual(
      [0, 1, 2, 8, 64, 1024].map((cap) => SidecarLimits.reserved(cap, null)),
      [0, 0, 1, 1, 8, 128]
    )
    assert.deepStrictEqual([SidecarLimits.reserved(4, 9), SidecarLimits.reserved(4, 0)], [4, 0])
  })

  it.effect("a lane that could never be served is refused, and the reserve counts as used", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      assert.deepInclude(yield* Effect.flip(session.submit("work", { lane: "background" })), {
        _tag: "LimitExceeded",
        scope: "vm",
        limit: "maxPromptsPerVm",
        max: 2,
        used: 2,
        setting: "ACP_SIDECAR_MAX_PROMPTS_PER_VM"
      })
      assert.strictEqual((yield* session.prompt("quick"))._tag, "Completed")
      yield* assertEnded(session)
    }).pipe(Effect.provide(layer({ limits: { maxPromptsPerVm: 2, reservedInteractivePerVm: 9 } })))
  )

  it.effect("the sessions of a Vm take turns, however much one of them has waiting", () =>
    Effect.gen(function* () {
      const limits = { maxPromptsPerVm: 1, maxPromptsPerSession: 3 }
      yield* Effect.gen(function* () {
        const [a, b] = yield* openMany(2)
        const order: Array<string> = []
        const submit = (opened: TestSidecar.Opened, name: string) =>
          Effect.flatMap(opened.session.submit(name), (turn) =>
            Effect.forkChild(
              Effect.tap(turn.dispatched, () => Effect.sync(() => order.push(name))),
              { startImmediately: true }
            )
          )
        yield* submit(a!, "a1")
        yield* submit(a!, "a2")
        yield* submit(a!, "a3")
        yield* submit(b!, "b1")
        yield* submit(b!, "b2")
        for (let i = 0; i < 5; i++) {
          yield* rest
          for (const { session } of [a!, b!]) {
            const running = (yield* session.describe).turns.find((turn) => turn.phase === "running")
            if (running !== undefined) yield* session.cancel(running.turnId)
          }
        }
        assert.deepStrictEqual(order, ["a1", "a2", "b1", "a3", "b2"])
        yield* assertEnded(a!.session, b!.session)
      }).pipe(Effect.provide(layer({ script: hanging, limits })))
    })
  )

  it.effect("the Vms of a sidecar take turns too", () =>
    Effect.gen(function* () {
      const a = yield* openMany(4)
      const b = yield* openMany(2)
      const order: Array<string> = []
      const submit = (opened: TestSidecar.Opened, name: string) =>
        Effect.flatMap(opened.session.submit(name), (turn) =>
          Effect.forkChild(
            Effect.tap(turn.dispatched, () => Effect.sync(() => order.push(name))),
            { startImmediately: true }
          )
        )
      for (const [i, opened] of a.entries()) yield* submit(opened, `a${i}`)
      for (const [i, opened] of b.entries()) yield* submit(opened, `b${i}`)
      for (let i = 0; i < 6; i++) {
        yield* rest
        for (const { session } of [...a, ...b]) {
          if ((yield* phases(session))[0] === "running") yield* session.cancel()
        }
      }
      assert.deepStrictEqual(order, ["a0", "a1", "b0", "a2", "b1", "a3"])
      yield* assertEnded(...[...a, ...b].map(({ session }) => session))
    }).pipe(Effect.provide(layer({ script: hanging, limits: { maxPromptsPerSidecar: 1 } })))
  )

  it.effect("a session that waits for its own turn holds no permit of its Vm", () =>
    Effect.gen(function* () {
      const [a, b] = yield* openMany(2)
      yield* a!.session.submit("a1")
      yield* a!.session.submit("a2")
      yield* a!.session.submit("a3")
      const info = yield* a!.vm.describe
      assert.strictEqual(info.activePrompts, 1)
      yield* b!.session.submit("b1")
      assert.deepStrictEqual(yield* phases(b!.session), ["running"])
      yield* a!.session.close
      yield* b!.session.close
      yield* assertEnded(a!.session, b!.session)
    }).pipe(Effect.provide(layer({ script: hanging, limits: { maxPromptsPerVm: 2 } })))
  )
})

everywhere("A5: nothing about one session delays another", (layer) => {
  it.effect("B32: while A holds, others open, prompt, cancel and close without the clock moving", () =>
    Effect.gen(function* () {
      const a = yield* TestSidecar.open({ permission: "ask" })
      const slow = yield* a.session.submit("slow")
      const held = yield* Queue.take(a.agent.prompts)
      yield* Effect.forkChild(held.ask(), { startImmediately: true })
      const stopping = yield* Effect.forkChild(slow.cancel, { startImmediately: true })
      for (let i = 0; i < 3; i++) {
        const b = yield* TestSidecar.open({ vm: a.vm })
        const fast = yield* b.session.submit("fast")
        yield* (yield* Queue.take(b.agent.prompts)).end()
        assert.strictEqual((yield* fast.await)._tag, "Completed")
        const other = yield* b.session.submit("other")
        const cancelling = yield* Effect.forkChild(other.cancel, { startImmediately: true })
        yield* (yield* Queue.take(b.agent.prompts)).end("cancelled")
        assert.strictEqual((yield* Fiber.join(cancelling))._tag, "Cancelled")
        yield* b.session.close
        assert.isTrue(b.agent.isGone())
      }
      assert.isUndefined(stopping.pollUnsafe())
      assert.strictEqual(yield* Effect.clockWith((clock) => clock.currentTimeMillis), 0)
      yield* held.end("cancelled")
      yield* Fiber.join(stopping)
      yield* assertEnded(a.session)
    }).pipe(Effect.provide(layer({ script: manual })))
  )

  it.effect("C08: 135 prompts at once on 135 sessions all run within the default limits", () =>
    Effect.gen(function* () {
      const sessions: Array<TestSidecar.Opened> = []
      for (const count of [60, 60, 15]) sessions.push(...(yield* openMany(count)))
      const turns = yield* Effect.forEach(sessions, ({ session }) => session.submit("hello"))
      yield* rest
      const sidecar = yield* Sidecar.Sidecar
      assert.strictEqual((yield* sidecar.describe).activePrompts, 135)
      for (const { session } of sessions) assert.deepStrictEqual(yield* phases(session), ["running"])
      yield* Effect.forEach(turns, (turn) => turn.cancel, { concurrency: "unbounded" })
      yield* assertEnded(...sessions.map(({ session }) => session))
    }).pipe(Effect.provide(layer({ script: hanging })))
  )

  it.effect("C08: past a Vm's limit they wait, and all run in the end", () =>
    Effect.gen(function* () {
      const sessions = yield* openMany(135)
      const turns = yield* Effect.forEach(sessions, ({ session }) => session.submit("hello"))
      const sidecar = yield* Sidecar.Sidecar
      assert.isAtMost((yield* sidecar.describe).activePrompts, 64)
      for (const turn of turns) assert.strictEqual((yield* turn.await)._tag, "Completed")
      yield* assertEnded(...sessions.map(({ session }) => session))
    }).pipe(Effect.provide(layer()))
  )
})

everywhere("C12: each limit can be lowered alone", (layer, place) => {
  const names = Object.keys(SidecarLimits.defaults) as Array<keyof SidecarLimits.SidecarLimits>
  const isTime = (name: keyof SidecarLimits.SidecarLimits) => Duration.isDuration(SidecarLimits.defaults[name])

  /** What becomes of a prompt under these limits, by the end of two minutes. */
  const tried = (limits: SidecarLimits.Overrides, lane: Admission.Lane) =>
    Effect.gen(function* () {
      const fiber = yield* Effect.gen(function* () {
        const { session } = yield* TestSidecar.open()
        const outcome = yield* session.prompt("hello", { lane })
        yield* assertIdle
        return outcome._tag
      }).pipe(
        Effect.catch((error) => Effect.succeed(error._tag === "TurnFailed" ? error.reason._tag : error._tag)),
        Effect.scoped,
        Effect.provide(layer({ limits }), { local: true }),
        // A layer without a connection dies of it.
        Effect.catchDefect((defect) => {
          const { _tag: tag } = defect as { readonly _tag?: string }
          return tag === "HandshakeRefused" || tag === "SidecarUnreachable" ? Effect.succeed(tag) : Effect.die(defect)
        }),
        Effect.forkChild({ startImmediately: true })
      )
      for (let i = 0; i < 5 && fiber.pollUnsafe() === undefined; i++) yield* rest
      if (fiber.pollUnsafe() === undefined) yield* TestClock.adjust("2 minutes")
      return yield* Fiber.join(fiber)
    })

  const refused = {
    maxVms: "LimitExceeded",
    maxSessionsPerVm: "LimitExceeded",
    maxPromptsPerSession: "LimitExceeded",
    maxPromptsPerVm: "LimitExceeded",
    maxPromptsPerSidecar: "LimitExceeded",
    maxHosts: "LimitExceeded",
    maxPromptBytes: "LimitExceeded",
    maxPromptBlocks: "LimitExceeded",
    maxTurnOutputBytes: "OutputExceeded",
    maxLineBytes: "AgentStartFailed",
    startTimeout: "AgentStartFailed"
  } as const

  const refusedByServer = { maxClients: "HandshakeRefused", maxCallsPerClient: "LimitExceeded" } as const

  for (const value of [0, 1]) {
    it.effect(`to ${value}: a prompt works, or is refused with a type`, () =>
      Effect.gen(function* () {
        const found: Record<string, string> = {}
        for (const name of names.filter((name) => !isTime(name))) {
          for (const lane of ["interactive", "background"] as const) {
            const tag = yield* tried({ [name]: value }, lane)
            if (tag !== "Completed") found[name] = tag
          }
        }
        const { maxLineBytes, maxPromptBytes, maxTurnOutputBytes } = refused
        const { startTimeout: _, ...none } = refused
        const wanted = value === 0 ? none : { maxLineBytes, maxPromptBytes, maxTurnOutputBytes }
        assert.deepStrictEqual(found, { ...wanted, ...(place === "remote" && value === 0 ? refusedByServer : {}) })
      })
    )
  }

  /** Without time for a hello or a heartbeat there is no connection. */
  const unconnected: Readonly<Record<string, string>> = {
    handshakeTimeout: "HandshakeRefused",
    heartbeatTimeout: "Disposed"
  }

  it.effect("or a time to nothing", () =>
    Effect.gen(function* () {
      for (const name of names.filter(isTime)) {
        const tag = yield* tried({ [name]: 0 }, "interactive")
        const wanted = place === "remote" ? unconnected[name] : undefined
        if (wanted !== undefined) assert.strictEqual(tag, wanted, name)
        else assert.include(["Completed", "AgentStartFailed", "TurnTimedOut", "SessionUnusable"], tag, name)
      }
    })
  )
})

everywhere("warnings", (layer) => {
  it.effect("a limit warns at 80 %, once, and again only after it fell under 50 %", () =>
    Effect.gen(function* () {
      const { session, vm } = yield* TestSidecar.open()
      const sidecar = yield* Sidecar.Sidecar
      const warnings: Array<string> = []
      yield* sidecar.events.pipe(
        Stream.filter((event) => event.kind === "limit_warning"),
        Stream.runForEach((event) => Effect.sync(() => warnings.push(`${event.limit} ${event.used}/${event.max}`))),
        Effect.forkScoped({ startImmediately: true })
      )
      const sessions = [session]
      while (sessions.length < 10) sessions.push((yield* TestSidecar.open({ vm })).session)
      const fill = (to: number) =>
        Effect.gen(function* () {
          for (const one of sessions.slice(0, to)) if ((yield* phases(one)).length === 0) yield* one.submit("hello")
          for (const one of sessions.slice(to)) yield* one.cancel()
          yield* rest
        })
      const of = "maxPromptsPerVm"
      yield* fill(7)
      assert.deepStrictEqual(warnings, [])
      yield* fill(10)
      assert.deepStrictEqual(warnings, [`${of} 8/10`])
      yield* fill(5)
      yield* fill(10)
      assert.deepStrictEqual(warnings, [`${of} 8/10`], "5 of 10 is not under 50 %")
      yield* fill(4)
      yield* fill(10)
      assert.deepStrictEqual(warnings, [`${of} 8/10`, `${of} 8/10`])
      yield* fill(0)
      yield* assertEnded(...sessions)
    }).pipe(Effect.provide(layer({ script: hanging, limits: { maxPromptsPerVm: 10 } })))
  )

  it.effect("a session's queue warns too, and names its setting", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const sidecar = yield* Sidecar.Sidecar
      const warning = yield* sidecar.events.pipe(
        Stream.filter((event) => event.kind === "limit_warning"),
        Stream.runHead,
        Effect.forkScoped({ startImmediately: true })
      )
      for (let i = 0; i < 5; i++) yield* session.submit(`${i}`)
      const found = yield* Fiber.join(warning)
      assert.deepInclude(found._tag === "Some" ? found.value : {}, {
        limit: "maxQueuedPromptsPerSession",
        used: 4,
        max: 5,
        address: session.address
      })
      assert.include(found._tag === "Some" ? found.value.detail : "", "ACP_SIDECAR_MAX_QUEUED_PROMPTS_PER_SESSION")
    }).pipe(Effect.provide(layer({ script: hanging, limits: { maxQueuedPromptsPerSession: 5 } })))
  )
})
