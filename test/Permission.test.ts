import { assert, it } from "@effect/vitest"
import { Permission, type Session, type SidecarEvent } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { beside, idle, is, provided, soFar, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"

/** A session whose agent has asked one question within a turn. */
const asking = (
  permission?: Permission.Policy,
  options?: ReadonlyArray<{ readonly optionId: string; readonly name: string; readonly kind: "allow_always" }>
) =>
  Effect.gen(function* () {
    const { agent, session, vm } = yield* TestSidecar.open({ permission })
    const turn = yield* session.submit("go")
    const prompt = yield* Queue.take(agent.prompts)
    const asked = yield* beside(prompt.ask(options))
    const question = yield* until(session, "PermissionAsked")
    return { agent, asked, prompt, question, session, turn, vm }
  })

/** Who answered each question, in order, after a check that each one was answered at most once. */
const answers = (session: Session.Session) =>
  Effect.map(soFar(session), (events) => {
    const all = events.filter(is("PermissionAnswered"))
    assert.strictEqual(new Set(all.map((event) => event.permissionId)).size, all.length)
    return all.map(({ answeredBy, optionId }) => [answeredBy, optionId] as const)
  })

const selected = (optionId: string) => ({ _tag: "Selected", optionId }) as const
const cancelled = { _tag: "Cancelled" } as const

everywhere("a question is answered exactly once", (layer) => {
  const manual = layer({ script: { prompt: "manual" } })

  it.effect("P1: by the user, and a second answer is told who was first", () =>
    Effect.gen(function* () {
      const { asked, prompt, question, session, turn } = yield* asking("ask")
      assert.deepStrictEqual(
        (yield* session.pendingPermissions).map(({ permissionId, turnId }) => ({ permissionId, turnId })),
        [{ permissionId: question.permissionId, turnId: turn.id }]
      )
      assert.strictEqual(question.turnId, turn.id)
      yield* session.answer(question.permissionId, { optionId: "allow" })
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("allow"))
      const again = yield* Effect.flip(session.answer(question.permissionId, { optionId: "reject" }))
      assert.deepInclude(again, { _tag: "PermissionNotPending", answeredBy: "user" })
      yield* prompt.end()
      yield* turn.await
      assert.deepStrictEqual(yield* answers(session), [["user", "allow"]])
      assert.strictEqual((yield* session.describe).pendingPermissions, 0)
    }).pipe(provided(manual))
  )

  it.effect("P1: of two answers in one tick the first counts", () =>
    Effect.gen(function* () {
      const { asked, question, session } = yield* asking("ask")
      const exits = yield* Effect.all(
        [
          Effect.exit(session.answer(question.permissionId, "reject")),
          Effect.exit(session.answer(question.permissionId, "allow"))
        ],
        { concurrency: "unbounded" }
      )
      assert.deepStrictEqual(exits.map(Exit.isSuccess), [true, false])
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("reject"))
      assert.deepStrictEqual(yield* answers(session), [["user", "reject"]])
    }).pipe(provided(manual))
  )

  it.effect("B47, P2: an option that was not offered is refused with the valid ids, and the question stays open", () =>
    Effect.gen(function* () {
      const { asked, question, session } = yield* asking("ask")
      const refused = yield* Effect.flip(session.answer(question.permissionId, { optionId: "allow_all" }))
      assert.deepInclude(refused, { _tag: "InvalidPermissionOption", given: "allow_all" })
      assert.deepStrictEqual((refused as { readonly valid: unknown }).valid, ["allow", "reject"])
      assert.strictEqual((yield* session.pendingPermissions).length, 1)
      yield* session.answer(question.permissionId, "allow")
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("allow"))
    }).pipe(provided(manual))
  )

  it.effect("B47: a question that was never asked is not pending, and nobody answered it", () =>
    Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      const refused = yield* Effect.flip(session.answer("permission-99", "allow"))
      assert.deepInclude(refused, { _tag: "PermissionNotPending", answeredBy: null })
    }).pipe(provided(manual))
  )

  for (const policy of ["reject", "allow"] as const) {
    it.effect(`P4, B42: the policy "${policy}" answers at once, without any time passing`, () =>
      Effect.gen(function* () {
        const { asked, session } = yield* asking(policy)
        assert.deepStrictEqual(yield* Fiber.join(asked), selected(policy))
        assert.deepStrictEqual(yield* answers(session), [["policy", policy]])
        assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      }).pipe(provided(manual))
    )
  }

  it.effect("P4, B42: without any policy the answer is to reject, at once", () =>
    Effect.gen(function* () {
      const { asked, session } = yield* asking()
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("reject"))
      assert.deepStrictEqual(yield* answers(session), [["policy", "reject"]])
    }).pipe(provided(manual))
  )

  it.effect("P1: by a handler, which sees the question with its turn", () =>
    Effect.gen(function* () {
      const seen: Array<Permission.Question> = []
      const { asked, question, session, turn } = yield* asking((asked) =>
        Effect.sync(() => {
          seen.push(asked)
          return { optionId: "allow" }
        })
      )
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("allow"))
      assert.deepStrictEqual(yield* answers(session), [["handler", "allow"]])
      assert.strictEqual(seen.length, 1)
      assert.deepInclude(seen[0], { permissionId: question.permissionId, turnId: turn.id })
      assert.strictEqual(seen[0]!.address.turnId, turn.id)
      assert.strictEqual(seen[0]!.toolCall.toolCallId, "tool-1")
    }).pipe(provided(manual))
  )

  it.effect("P1, B42: by the deadline when the user says nothing, not a moment earlier", () =>
    Effect.gen(function* () {
      const { asked, session } = yield* asking("ask")
      yield* TestClock.adjust("599999 millis")
      assert.isUndefined(asked.pollUnsafe())
      yield* TestClock.adjust("1 millis")
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("reject"))
      assert.deepStrictEqual(yield* answers(session), [["deadline", "reject"]])
    }).pipe(provided(manual))
  )

  it.effect("B42: a question has no deadline when that limit is off", () =>
    Effect.gen(function* () {
      const { asked, question, session } = yield* asking("ask")
      yield* TestClock.adjust("1000 days")
      assert.isUndefined(asked.pollUnsafe())
      yield* session.answer(question.permissionId, "allow")
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("allow"))
    }).pipe(
      provided(layer({ script: { prompt: "manual" }, limits: { permissionTimeout: "off", heartbeatTimeout: "off" } }))
    )
  )

  it.effect("P1: by the end of its turn, when the agent doesn't wait for the answer", () =>
    Effect.gen(function* () {
      const { asked, prompt, session, turn } = yield* asking("ask")
      yield* prompt.end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      assert.deepStrictEqual(yield* Fiber.join(asked), cancelled)
      assert.deepStrictEqual(yield* answers(session), [["turn_end", null]])
    }).pipe(provided(manual))
  )

  it.effect("P1: by the agent itself, which takes it back", () =>
    Effect.gen(function* () {
      const { agent, asked, question, session } = yield* asking("ask")
      yield* Fiber.interrupt(asked)
      yield* until(session, "PermissionAnswered")
      assert.deepStrictEqual(yield* answers(session), [["withdrawn", null]])
      const refused = yield* Effect.flip(session.answer(question.permissionId, "allow"))
      assert.deepInclude(refused, { _tag: "PermissionNotPending", answeredBy: "withdrawn" })
      yield* idle
      const frames = yield* Queue.takeAll(agent.received)
      const answer = frames.find((frame) => frame._tag === "Response")
      assert.strictEqual(answer?._tag === "Response" ? answer.error?.code : undefined, -32800)
    }).pipe(provided(manual))
  )

  it.effect("P1: by a crash, inside a turn and outside", () =>
    Effect.gen(function* () {
      const { agent, prompt, session, turn } = yield* asking("ask")
      yield* beside(prompt.ask())
      const second = yield* until(session, "PermissionAsked", 2)
      assert.strictEqual(second.turnId, turn.id)
      yield* agent.crash({ code: 3 })
      assert.strictEqual((yield* turn.outcome)._tag, "Failed")
      yield* until(session, "SessionEnded")
      assert.deepStrictEqual(yield* answers(session), [
        ["crash", null],
        ["crash", null]
      ])

      const idleSession = yield* TestSidecar.open({ permission: "ask" })
      yield* beside(idleSession.agent.ask(idleSession.session.agentSessionId))
      const outside = yield* until(idleSession.session, "PermissionAsked")
      assert.isNull(outside.turnId)
      yield* idleSession.agent.crash()
      yield* until(idleSession.session, "SessionEnded")
      assert.deepStrictEqual(yield* answers(idleSession.session), [["crash", null]])
    }).pipe(provided(manual))
  )

  it.effect("P1: by the close of its session, outside of any turn", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      yield* beside(agent.ask(session.agentSessionId))
      const { permissionId } = yield* until(session, "PermissionAsked")
      yield* session.close
      assert.deepStrictEqual(yield* answers(session), [["close", null]])
      const refused = yield* Effect.flip(session.answer(permissionId, "allow"))
      assert.deepInclude(refused, { _tag: "PermissionNotPending", answeredBy: "close" })
    }).pipe(provided(manual))
  )

  it.effect("P1: by the limit of open questions, when that is 0", () =>
    Effect.gen(function* () {
      const { asked, session } = yield* asking("ask")
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("reject"))
      assert.deepStrictEqual(yield* answers(session), [["limit", "reject"]])
    }).pipe(provided(layer({ script: { prompt: "manual" }, limits: { maxPendingPermissionsPerSession: 0 } })))
  )

  it.effect("P1: by the limit of open questions, past the cap, and not after an answer made room", () =>
    Effect.gen(function* () {
      const { asked, prompt, question, session } = yield* asking("ask")
      yield* beside(prompt.ask())
      yield* until(session, "PermissionAsked", 2)
      assert.strictEqual((yield* session.pendingPermissions).length, 2)
      assert.deepStrictEqual(yield* prompt.ask(), selected("reject"))
      assert.strictEqual((yield* session.pendingPermissions).length, 2)
      assert.deepStrictEqual(yield* answers(session), [["limit", "reject"]])
      yield* session.answer(question.permissionId, "allow")
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("allow"))
      const fourth = yield* beside(prompt.ask())
      const { permissionId } = yield* until(session, "PermissionAsked", 4)
      yield* session.answer(permissionId, "allow")
      assert.deepStrictEqual(yield* Fiber.join(fourth), selected("allow"))
    }).pipe(provided(layer({ script: { prompt: "manual" }, limits: { maxPendingPermissionsPerSession: 2 } })))
  )

  it.effect("P4: a fixed policy answers whatever the limit of open questions is", () =>
    Effect.gen(function* () {
      const { asked } = yield* asking("allow")
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("allow"))
    }).pipe(provided(layer({ script: { prompt: "manual" }, limits: { maxPendingPermissionsPerSession: 0 } })))
  )
})

everywhere("cancel", (layer) => {
  const manual = layer({ script: { prompt: "manual" } })

  it.effect(
    "B40: every open question of the turn is answered cancelled before session/cancel, then the turn settles",
    () =>
      Effect.gen(function* () {
        const { agent, asked, prompt, session, turn } = yield* asking("ask")
        const second = yield* beside(prompt.ask())
        yield* until(session, "PermissionAsked", 2)
        const cancelling = yield* beside(turn.cancel)
        yield* prompt.cancelled
        assert.deepStrictEqual(yield* Fiber.join(asked), cancelled)
        assert.deepStrictEqual(yield* Fiber.join(second), cancelled)
        yield* prompt.end("cancelled")
        assert.deepInclude(yield* Fiber.join(cancelling), { _tag: "Cancelled", agentReported: "cancelled" })
        assert.deepStrictEqual(yield* answers(session), [
          ["cancel", null],
          ["cancel", null]
        ])
        const order = (yield* Queue.takeAll(agent.received))
          .map((frame) => (frame._tag === "Response" ? "answer" : frame.method))
          .slice(-3)
        assert.deepStrictEqual(order, ["answer", "answer", "session/cancel"])
        assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      }).pipe(provided(manual))
  )

  it.effect("B40: what is asked while the turn is being cancelled is answered cancelled at once", () =>
    Effect.gen(function* () {
      const { prompt, session, turn } = yield* asking("ask")
      const cancelling = yield* beside(turn.cancel)
      yield* prompt.cancelled
      assert.deepStrictEqual(yield* prompt.ask(), cancelled)
      yield* prompt.end("cancelled")
      yield* Fiber.join(cancelling)
      assert.deepStrictEqual(yield* answers(session), [
        ["cancel", null],
        ["cancel", null]
      ])
      assert.strictEqual(yield* Clock.currentTimeMillis, 0)
    }).pipe(provided(manual))
  )

  it.effect("B40: a question outside the cancelled turn stays open", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      yield* beside(agent.ask(session.agentSessionId))
      yield* until(session, "PermissionAsked")
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* beside(prompt.ask())
      yield* until(session, "PermissionAsked", 2)
      const cancelling = yield* beside(turn.cancel)
      yield* prompt.cancelled
      yield* prompt.end("cancelled")
      yield* Fiber.join(cancelling)
      assert.deepStrictEqual(
        (yield* session.pendingPermissions).map((question) => question.turnId),
        [null]
      )
    }).pipe(provided(manual))
  )

  it.effect("B40: a handler that can't be stopped doesn't hold up the cancel", () =>
    Effect.gen(function* () {
      const go = yield* Deferred.make<Permission.Decision>()
      const { asked, prompt, session, turn } = yield* asking(() => Effect.uninterruptible(Deferred.await(go)))
      const cancelling = yield* beside(turn.cancel)
      yield* prompt.cancelled
      assert.deepStrictEqual(yield* Fiber.join(asked), cancelled)
      yield* prompt.end("cancelled")
      assert.strictEqual((yield* Fiber.join(cancelling))._tag, "Cancelled")
      assert.deepStrictEqual(yield* answers(session), [["cancel", null]])
      yield* session.close
      assert.strictEqual((yield* session.describe).state, "ended")
      // Only the app's own scope waits for it.
      yield* Deferred.succeed(go, "allow")
    }).pipe(provided(manual))
  )
})

everywhere("outside of a turn", (layer) => {
  const manual = layer({ script: { prompt: "manual" } })

  it.effect("B41: a question after the turn's end is surfaced without a turn and answered at its deadline", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* prompt.end()
      yield* turn.await
      const late = yield* beside(prompt.ask())
      const question = yield* until(session, "PermissionAsked")
      assert.isNull(question.turnId)
      assert.strictEqual((yield* session.pendingPermissions).length, 1)
      yield* TestClock.adjust("10 minutes")
      assert.deepStrictEqual(yield* Fiber.join(late), selected("reject"))
    }).pipe(provided(manual))
  )

  it.effect("B41: a question in the same piece as the turn's response belongs to no turn", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* agent.together(
        Effect.andThen(
          prompt.end(),
          agent.send({
            id: "late",
            method: "session/request_permission",
            params: {
              sessionId: session.agentSessionId,
              toolCall: { toolCallId: "t" },
              options: [{ optionId: "yes", name: "Yes", kind: "allow_once" }]
            }
          })
        )
      )
      yield* turn.await
      const question = yield* until(session, "PermissionAsked")
      assert.isNull(question.turnId)
      assert.strictEqual((yield* session.pendingPermissions).length, 1)
    }).pipe(provided(manual))
  )

  it.effect("B41: a late question about a tool call of an earlier turn doesn't belong to the next turn", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const first = yield* session.submit("one")
      const one = yield* Queue.take(agent.prompts)
      yield* one.update({ sessionUpdate: "tool_call", toolCallId: "old", title: "run it" })
      yield* one.end()
      yield* first.await
      const second = yield* session.submit("two")
      const two = yield* Queue.take(agent.prompts)
      yield* beside(two.ask(undefined, "old"))
      assert.isNull((yield* until(session, "PermissionAsked")).turnId)
      yield* beside(two.ask(undefined, "new"))
      assert.strictEqual((yield* until(session, "PermissionAsked", 2)).turnId, second.id)
      yield* two.end()
      yield* second.await
      assert.strictEqual((yield* session.pendingPermissions).length, 1)
    }).pipe(provided(manual))
  )

  it.effect("a question while the session closes is answered cancelled at once", () => {
    const answer = Deferred.makeUnsafe<unknown>()
    return Effect.gen(function* () {
      const { session } = yield* TestSidecar.open({ permission: "ask" })
      yield* session.close
      assert.deepStrictEqual(yield* Deferred.await(answer), cancelled)
      assert.strictEqual(yield* Clock.currentTimeMillis, 0)
    }).pipe(
      provided(
        layer({
          script: {
            capabilities: { sessionCapabilities: { close: {} } },
            closeSession: (agent, sessionId) =>
              Effect.map(agent.ask(sessionId), (given) => {
                Deferred.doneUnsafe(answer, Exit.succeed(given))
                return {}
              })
          }
        })
      )
    )
  })
})

everywhere("a handler fails closed", (layer) => {
  const manual = layer({ script: { prompt: "manual" } })

  const broken: Record<string, () => Effect.Effect<Permission.Decision, unknown>> = {
    fails: () => Effect.fail("no"),
    dies: () => Effect.die(new Error("broken")),
    throws: () => {
      throw new Error("broken")
    },
    "interrupts itself": () => Effect.interrupt,
    "chooses what was not offered": () => Effect.succeed({ optionId: "allow_all" }),
    "returns nonsense": () => Effect.succeed(undefined as unknown as Permission.Decision)
  }
  for (const [how, handler] of Object.entries(broken)) {
    it.effect(`B42, P3: when it ${how}, the answer is to reject, at once`, () =>
      Effect.gen(function* () {
        const { asked, session } = yield* asking(handler)
        assert.deepStrictEqual(yield* Fiber.join(asked), selected("reject"))
        assert.deepStrictEqual(yield* answers(session), [["handler", "reject"]])
        assert.strictEqual(yield* Clock.currentTimeMillis, 0)
      }).pipe(provided(manual))
    )
  }

  for (const [how, region] of [
    ["never ends", Effect.interruptible],
    ["can't even be stopped", Effect.uninterruptible]
  ] as const) {
    it.effect(`B42: when it ${how}, the deadline answers`, () =>
      Effect.gen(function* () {
        const go = yield* Deferred.make<Permission.Decision>()
        const { asked, session } = yield* asking(() => region(Deferred.await(go)))
        yield* TestClock.adjust("10 minutes")
        assert.deepStrictEqual(yield* Fiber.join(asked), selected("reject"))
        assert.deepStrictEqual(yield* answers(session), [["deadline", "reject"]])
        yield* Deferred.succeed(go, "allow")
      }).pipe(provided(manual))
    )
  }

  it.effect("a handler whose question was answered otherwise is interrupted", () =>
    Effect.gen(function* () {
      const stopped = yield* Deferred.make<void>()
      const { question, session } = yield* asking(() =>
        Effect.onInterrupt(Effect.never, () => Deferred.succeed(stopped, undefined))
      )
      yield* session.answer(question.permissionId, "allow")
      yield* Deferred.await(stopped)
      assert.deepStrictEqual(yield* answers(session), [["user", "allow"]])
    }).pipe(provided(manual))
  )

  it.effect("P1: a handler that answers too late changes nothing", () =>
    Effect.gen(function* () {
      const go = yield* Deferred.make<void>()
      const { asked, session, turn, prompt } = yield* asking(() =>
        Effect.uninterruptible(Effect.as(Deferred.await(go), "allow" as const))
      )
      const cancelling = yield* beside(turn.cancel)
      assert.deepStrictEqual(yield* Fiber.join(asked), cancelled)
      yield* Deferred.succeed(go, undefined)
      yield* prompt.end("cancelled")
      yield* Fiber.join(cancelling)
      assert.deepStrictEqual(yield* answers(session), [["cancel", null]])
    }).pipe(provided(manual))
  )

  it.effect("P1: a handler that answers through the session and then decides otherwise is counted once", () =>
    Effect.gen(function* () {
      const opened = yield* Deferred.make<Session.Session>()
      const { agent, session } = yield* TestSidecar.open({
        permission: ({ permissionId }) =>
          Effect.flatMap(Deferred.await(opened), (self) =>
            Effect.as(self.answer(permissionId, "allow"), "reject" as const)
          )
      })
      yield* Deferred.succeed(opened, session)
      assert.deepStrictEqual(yield* agent.ask(session.agentSessionId), selected("allow"))
      yield* idle
      assert.deepStrictEqual(yield* answers(session), [["user", "allow"]])
      assert.strictEqual((yield* session.describe).pendingPermissions, 0)
    }).pipe(provided(manual))
  )
})

everywhere("when the caller goes away", (layer) => {
  const manual = layer({ script: { prompt: "manual" } })

  it.effect("B44, P3: a caller whose scope closes while a question is open never allows", () =>
    Effect.gen(function* () {
      const go = yield* Deferred.make<void>()
      const caller = yield* Scope.make()
      const { agent, asked, prompt, question, session } = yield* asking(() =>
        Effect.as(Deferred.await(go), "allow" as const)
      ).pipe(Scope.provide(caller))
      yield* beside(Effect.andThen(prompt.cancelled, prompt.end("cancelled")))
      yield* Scope.close(caller, Exit.void)
      yield* Deferred.succeed(go, undefined)
      assert.deepStrictEqual(yield* Fiber.join(asked), cancelled)
      assert.deepStrictEqual(yield* answers(session), [["cancel", null]])
      const refused = yield* Effect.flip(session.answer(question.permissionId, "allow"))
      assert.strictEqual(refused._tag, "PermissionNotPending")
      const frames = yield* Queue.takeAll(agent.received)
      assert.isFalse(JSON.stringify(frames).includes('"selected"'))
      yield* agent.gone
    }).pipe(provided(manual))
  )

  it.effect("B44: interrupting the prompt that waits behind a question cancels both", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const prompting = yield* beside(session.prompt("go"))
      const prompt = yield* Queue.take(agent.prompts)
      const asked = yield* beside(prompt.ask())
      yield* until(session, "PermissionAsked")
      yield* beside(Effect.andThen(prompt.cancelled, prompt.end("cancelled")))
      yield* Fiber.interrupt(prompting)
      assert.deepStrictEqual(yield* Fiber.join(asked), cancelled)
      assert.deepStrictEqual(yield* answers(session), [["cancel", null]])
    }).pipe(provided(manual))
  )
})

everywhere("what a decision means", (layer) => {
  const manual = layer({ script: { prompt: "manual" } })

  const option = (kind: string) => ({ optionId: `id-${kind}`, name: kind, kind: kind as "allow_once" })
  const cases: ReadonlyArray<readonly [Permission.Decision, ReadonlyArray<string>, string | null]> = [
    ["allow", ["allow_always", "allow_once"], "id-allow_once"],
    ["allow", ["reject_once", "allow_always"], "id-allow_always"],
    ["allow", ["reject_once", "reject_always"], null],
    ["reject", ["reject_always", "reject_once"], "id-reject_once"],
    ["reject", ["allow_once", "reject_always"], "id-reject_always"],
    ["reject", ["allow_once", "allow_always"], null],
    ["reject", [], null],
    ["allow", ["sometimes"], null],
    ["cancel", ["allow_once", "reject_once"], null],
    [{ optionId: "x" }, ["allow_once"], "x"]
  ]
  for (const [decision, offered, expected] of cases) {
    it(`${JSON.stringify(decision)} of [${offered.join(", ")}] is ${expected ?? "cancelled"}`, () => {
      assert.strictEqual(Permission.choose(decision, offered.map(option)), expected)
    })
  }

  it.effect("the policy allow takes allow_always when nothing else is offered", () =>
    Effect.gen(function* () {
      const { asked } = yield* asking("allow", [{ optionId: "ever", name: "Always", kind: "allow_always" }])
      assert.deepStrictEqual(yield* Fiber.join(asked), selected("ever"))
    }).pipe(provided(manual))
  )

  it.effect("the policy reject never picks an allowing option: with nothing else offered it is cancelled", () =>
    Effect.gen(function* () {
      const { asked } = yield* asking("reject", [{ optionId: "ever", name: "Always", kind: "allow_always" }])
      assert.deepStrictEqual(yield* Fiber.join(asked), cancelled)
    }).pipe(provided(manual))
  )
})

everywhere("requests that can't be served", (layer) => {
  const manual = layer({ script: { prompt: "manual" } })

  const refusal = (params: unknown) =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "allow" })
      yield* agent.send({ id: 7, method: "session/request_permission", params })
      yield* idle
      const frames = yield* Queue.takeAll(agent.received)
      const answer = frames.find((frame) => frame._tag === "Response")
      assert.deepStrictEqual(yield* answers(session), [])
      return answer?._tag === "Response" ? answer.error?.code : undefined
    })
  const malformed: Record<string, unknown> = {
    "no options": { sessionId: "agent-session-1", toolCall: { toolCallId: "t" } },
    "no tool call": { sessionId: "agent-session-1", options: [] },
    "an option without an id": {
      sessionId: "agent-session-1",
      toolCall: { toolCallId: "t" },
      options: [{ name: "x", kind: "allow_once" }]
    },
    "no params": undefined
  }
  for (const [what, params] of Object.entries(malformed)) {
    it.effect(`a permission request with ${what} is answered -32602`, () =>
      Effect.gen(function* () {
        assert.strictEqual(yield* refusal(params), -32602)
      }).pipe(provided(manual))
    )
  }

  it.effect("a permission request for an unknown session is answered -32002", () =>
    Effect.gen(function* () {
      const params = { sessionId: "who", toolCall: { toolCallId: "t" }, options: [] }
      assert.strictEqual(yield* refusal(params), -32002)
    }).pipe(provided(manual))
  )

  it.effect("a method that nobody handles is answered -32601", () =>
    Effect.gen(function* () {
      const { agent } = yield* TestSidecar.open()
      yield* agent.send({ id: 7, method: "fs/read_text_file", params: { path: "/etc/passwd" } })
      yield* idle
      const answer = (yield* Queue.takeAll(agent.received)).find((frame) => frame._tag === "Response")
      assert.strictEqual(answer?._tag === "Response" ? answer.error?.code : undefined, -32601)
    }).pipe(provided(manual))
  )
})

everywhere("large questions", (layer) => {
  it.effect("a question that is nested deeper than the stack is asked and answered as any other", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
      const nested = `${"[".repeat(100_000)}${"]".repeat(100_000)}`
      const toolCall = `{"toolCallId":"t","rawInput":${nested}}`
      const options = `[{"optionId":"yes","name":"Yes","kind":"allow_once"}]`
      const params = `{"sessionId":"${session.agentSessionId}","toolCall":${toolCall},"options":${options}}`
      yield* agent.write(`{"jsonrpc":"2.0","id":"q","method":"session/request_permission","params":${params}}\n`)
      const { permissionId } = yield* until(session, "PermissionAsked")
      yield* session.answer(permissionId, "allow")
      const reply = yield* Stream.fromQueue(agent.received).pipe(
        Stream.filter((frame) => frame._tag === "Response"),
        Stream.runHead
      )
      assert.deepInclude(Option.getOrThrow(reply), {
        id: "q",
        result: { outcome: { outcome: "selected", optionId: "yes" } }
      })
    }).pipe(Effect.provide(layer()))
  )

  it.effect("memory: a large question counts with its size against the bytes that are kept", () =>
    Effect.gen(function* () {
      const { agent, session } = yield* TestSidecar.open()
      const options = [{ optionId: "x".repeat(40_000), name: "n", kind: "allow_once" as const }]
      for (let i = 0; i < 10; i++) yield* agent.ask(session.agentSessionId, options)
      const events: ReadonlyArray<SidecarEvent.SessionEvent> = yield* soFar(session)
      assert.strictEqual(events[0]?._tag, "Lagged")
      assert.isBelow(JSON.stringify(events).length, 130_000)
    }).pipe(provided(layer({ limits: { mailboxBytes: 100_000 } })))
  )
})
