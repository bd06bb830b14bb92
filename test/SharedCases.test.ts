// Cases from the field, and bad input, with one agent in memory that several sessions share.
import { assert, it } from "@effect/vitest"
import { AgentProfile, Sidecar } from "acp-sidecar"
import type { Session, Vm } from "acp-sidecar"
import { type ScriptedAgent, Simulation, TestSidecar } from "acp-sidecar/testing"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Random from "effect/Random"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import { beside, chunk, idle, provided, soFar, textOf, until } from "./support/events.ts"
import { everywhere } from "./support/places.ts"
import * as Strikes from "./support/strikes.ts"
import { assertEnded, manual } from "./support/turns.ts"

const share = (options: Parameters<typeof AgentProfile.sharing>[0] = {}): AgentProfile.AgentProfile => ({
  ...TestSidecar.profile,
  share: AgentProfile.sharing(options)
})
const agent = share()

const openVm = Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work" }))
const openAll = (vm: Vm.Vm, count: number, options: Partial<Vm.SessionOptions> = {}) =>
  Effect.all(
    Array.from({ length: count }, () => vm.openSession({ agent, ...options })),
    { concurrency: "unbounded" }
  )
const opened = (vm: Vm.Vm, options: Partial<Vm.SessionOptions> = {}) =>
  Effect.scoped(vm.openSession({ agent, ...options }))
const hosts = Effect.flatMap(Sidecar.Sidecar, (sidecar) => Effect.map(sidecar.describe, (info) => info.hosts))
const alive = Effect.map(TestSidecar.TestSidecar, (test) => test.alive())
const launches = Effect.map(TestSidecar.TestSidecar, (test) => test.launches().length)
const nextAgent = Effect.flatMap(TestSidecar.TestSidecar, ({ agents }) => Queue.take(agents))

/** Why a session could not be opened. */
const refusal = (opening: Effect.Effect<unknown, Vm.OpenSessionError>) =>
  Effect.map(Effect.flip(opening), (error) => {
    if (error._tag !== "AgentStartFailed") return assert.fail(error.message)
    return error.reason
  })

const textsOf = (session: Session.Session) =>
  Effect.map(soFar(session), (events) => events.map(textOf).filter((text) => text !== ""))

/** Waits until all that the agent has written is read. */
const read = (scripted: ScriptedAgent.ScriptedAgent) => scripted.ask("nobody")

const numbers = (count: number) => Array.from({ length: count }, (_, i) => i)

/** They all prompt at once, and each gets what is its own; afterwards their host keeps nothing but them. */
const assertHealthy = Effect.fnUntraced(function* (sessions: ReadonlyArray<Session.Session>) {
  const ends = yield* Effect.forEach(
    sessions,
    Effect.fnUntraced(function* (session) {
      const turn = yield* session.submit(`own ${session.id}`)
      const end = yield* turn.await
      const texts = (yield* Stream.runCollect(turn.updates)).map(textOf).filter((text) => text !== "")
      assert.deepStrictEqual(texts, [`own ${session.id}`])
      return end._tag
    }),
    { concurrency: "unbounded" }
  )
  assert.deepStrictEqual(
    ends,
    sessions.map(() => "Completed")
  )
  const [host, ...others] = yield* hosts
  assert.deepStrictEqual(others, [])
  assert.deepStrictEqual(new Set(host!.sessions), new Set(sessions.map((session) => session.id)))
  assert.strictEqual(host!.leases, sessions.length)
  assert.deepInclude(host!.kept, { routes: sessions.length, left: 0 })
  assert.strictEqual(yield* alive, 1)
  yield* assertEnded(...sessions)
})

/** Says back what it was told. */
const echo: ScriptedAgent.Script = { prompt: (turn) => Effect.as(turn.say(turn.text), "end_turn") }

const replies = (sessionId: unknown) => Effect.succeed({ sessionId })

everywhere("limits of a sidecar whose agents share", (layer) => {
  it.effect("B36: 10,000 opens at once start no more processes and sessions than allowed, and no more is kept", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const profile = share({ scope: "sidecar" })
      const [vm, other] = [yield* openVm, yield* openVm]
      const flood = Effect.fnUntraced(function* (into: Vm.Vm, count: number) {
        const exits = yield* Effect.forEach(numbers(count), () => Effect.exit(into.openSession({ agent: profile })), {
          concurrency: "unbounded"
        })
        const refused: Record<string, number> = {}
        for (const exit of exits) {
          if (Exit.isSuccess(exit)) continue
          const error = Option.getOrThrow(Exit.findErrorOption(exit))
          if (error._tag !== "LimitExceeded") return assert.fail(error.message)
          refused[error.limit] = (refused[error.limit] ?? 0) + 1
        }
        return { sessions: exits.flatMap((exit) => (Exit.isSuccess(exit) ? [exit.value] : [])), refused }
      })
      const { refused, sessions } = yield* flood(vm, 10_000)
      assert.deepStrictEqual([sessions.length, refused], [12, { maxSessionsPerVm: 9988 }])
      assert.deepStrictEqual((yield* flood(other, 300)).refused, { maxHosts: 300 })
      assert.deepStrictEqual([yield* alive, yield* launches], [3, 3])
      const info = yield* sidecar.describe
      assert.deepStrictEqual(
        info.hosts.map(({ kept, leases }) => [leases, kept.routes, kept.left]),
        [
          [4, 4, 0],
          [4, 4, 0],
          [4, 4, 0]
        ]
      )
      for (const { opening } of info.vms) assert.strictEqual(opening, 0)
      for (const session of sessions) yield* session.close
      yield* TestClock.adjust("1 second")
      yield* idle
      assert.strictEqual(yield* alive, 0)
      assert.strictEqual((yield* openAll(other, 12, { agent: profile })).length, 12)
    }).pipe(provided(layer({ limits: { maxSessionsPerVm: 12, maxHosts: 3, maxSessionsPerHost: 4 } })))
  )

  it.effect("B36, B39: a full process is refused or joined by another, as its profile says, 200 times", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const refusing = share({ scope: "small", maxSessions: 2, whenFull: "refuse" })
      const sessions = yield* openAll(vm, 2, { agent: refusing })
      for (const _ of numbers(200)) {
        const error = yield* Effect.flip(opened(vm, { agent: refusing }))
        assert.deepInclude(error, {
          _tag: "LimitExceeded",
          scope: "host",
          limit: "maxSessionsPerHost",
          max: 2,
          used: 2
        })
      }
      assert.strictEqual(yield* launches, 1)
      yield* assertHealthy(sessions)
    }).pipe(provided(layer({ script: echo })))
  )

  it.effect("B09: what was opened, used and closed 200 times leaves bounded tombstones and nothing else", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const stays = yield* vm.openSession({ agent })
      for (const _ of numbers(200)) {
        const session = yield* vm.openSession({ agent })
        yield* session.prompt("go")
        yield* session.close
      }
      const [host] = yield* hosts
      assert.deepStrictEqual(host!.kept, { routes: 1, earlyUpdates: 0, earlyBytes: 0, tombstones: 64, left: 0 })
      yield* assertHealthy([stays])
    }).pipe(provided(layer({ script: echo, limits: { maxTombstones: 64 } })))
  )
})

everywhere("updates of a shared agent", (layer) => {
  it.effect("B48: around ten answers to session/new at once, mixed in one write, each gets its own, in order", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const opening = yield* beside(openAll(vm, 10))
      const scripted = yield* nextAgent
      yield* idle
      const requests = (yield* Queue.clear(scripted.received)).flatMap((frame) =>
        frame._tag === "Request" && frame.method === "session/new" ? [frame.id] : []
      )
      assert.strictEqual(requests.length, 10)
      // All of them before any answer, then between the answers, then after the last.
      const say = (round: string) =>
        Effect.forEach(requests, (_, index) => scripted.update(`s-${index}`, chunk(`${round} of ${index}`)))
      yield* scripted.together(
        Effect.gen(function* () {
          yield* say("first")
          for (const [index, id] of requests.entries()) {
            yield* scripted.send({ id, result: { sessionId: `s-${index}` } })
            yield* say(`after ${index}`)
          }
        })
      )
      const sessions = yield* Fiber.join(opening)
      yield* read(scripted)
      for (const session of sessions) {
        const index = session.agentSessionId.slice(2)
        assert.deepStrictEqual(yield* textsOf(session), [
          `first of ${index}`,
          ...numbers(10).map((round) => `after ${round} of ${index}`)
        ])
      }
      assert.strictEqual(new Set(sessions.map((session) => session.agentSessionId)).size, 10)
      const [host] = yield* hosts
      assert.deepInclude(host!.kept, { routes: 10, earlyUpdates: 0, earlyBytes: 0 })
    }).pipe(provided(layer({ script: { newSession: () => Effect.never } })))
  )

  it.effect("B51: frames of a closed session reach neither those beside it nor the one that has its id next", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const stays = yield* vm.openSession({ agent })
      const scripted = yield* nextAgent
      const from = { agentSessionId: "old", method: "resume" } as const
      for (const round of numbers(20)) {
        const session = yield* vm.openSession({ agent, from })
        yield* scripted.update("old", chunk(`in ${round}`))
        yield* idle
        assert.deepStrictEqual(yield* textsOf(session), [`in ${round}`])
        yield* session.close
        yield* scripted.update("old", chunk(`late ${round}`))
        assert.deepStrictEqual(yield* scripted.ask("old"), { _tag: "Error", code: -32002 })
      }
      assert.deepStrictEqual(yield* textsOf(stays), [])
      assert.strictEqual((yield* stays.describe).unrouted.late, 20)
      yield* assertHealthy([stays])
    }).pipe(provided(layer({ script: { ...echo, capabilities: { sessionCapabilities: { resume: {} } } } })))
  )

  it.effect(
    "B55: ghosts are counted, never grow, and are told to none of ten sessions, nor a sample while others share it",
    () =>
      Effect.gen(function* () {
        const vm = yield* openVm
        const sessions = yield* openAll(vm, 10)
        const scripted = yield* nextAgent
        for (const i of numbers(5000)) yield* scripted.update(`ghost-${i}`, chunk("boo"))
        yield* read(scripted)
        for (const session of sessions) assert.deepStrictEqual(yield* soFar(session), [])
        const { unrouted } = yield* sessions[0]!.describe
        assert.deepInclude(unrouted, { buffered: 5000, dropped: 4000, sample: "" })
        assert.strictEqual((yield* hosts)[0]!.kept.earlyUpdates, 1000)
        yield* TestClock.adjust("2 minutes")
        yield* scripted.update("ghost", chunk("boo"))
        yield* idle
        assert.strictEqual((yield* hosts)[0]!.kept.earlyUpdates, 1)
        yield* assertHealthy(sessions)
        // Whose ids those are is nobody's business while others share the agent.
        for (const session of sessions.slice(1)) yield* session.close
        assert.strictEqual((yield* sessions[0]!.describe).unrouted.sample, "ghost")
      }).pipe(provided(layer({ script: echo })))
  )

  for (const pace of ["one update at a time", "all at once"] as const) {
    it.effect(`B63: of a flood, ${pace}, whose reader has stalled, cost a neighbour nothing`, () =>
      Effect.gen(function* () {
        const vm = yield* openVm
        const [noisy, calm] = yield* openAll(vm, 2)
        const scripted = yield* nextAgent
        const flood = yield* noisy!.submit("flood")
        const prompt = yield* Queue.take(scripted.prompts)
        const go = Deferred.makeUnsafe<void>()
        const reading = yield* beside(Stream.runCollect(Stream.tap(flood.updates, () => Deferred.await(go))))
        const calmTurn = Effect.gen(function* () {
          const turn = yield* calm!.submit("go")
          const held = yield* Queue.take(scripted.prompts)
          yield* held.say("calm")
          yield* held.end()
          assert.strictEqual((yield* turn.await)._tag, "Completed")
          assert.deepStrictEqual(
            (yield* Stream.runCollect(turn.updates)).map(textOf).filter((text) => text !== ""),
            ["calm"]
          )
        })
        if (pace === "all at once") {
          yield* scripted.together(Effect.forEach(numbers(20_000), (i) => prompt.say(`${i}`), { discard: true }))
          for (const _ of numbers(10)) yield* calmTurn
        } else {
          for (const i of numbers(500)) {
            yield* prompt.say(`${i}`)
            if (i % 50 === 0) yield* calmTurn
          }
        }
        yield* prompt.end()
        assert.strictEqual((yield* flood.await)._tag, "Completed")
        assert.isUndefined(reading.pollUnsafe())
        yield* Deferred.succeed(go, undefined)
        const events = yield* Fiber.join(reading)
        assert.isTrue(events.some((event) => event._tag === "Lagged"))
        assert.strictEqual(events.map(textOf).at(-2), pace === "all at once" ? "19999" : "499")
        assert.strictEqual(yield* Clock.currentTimeMillis, 0)
        yield* assertEnded(calm!)
      }).pipe(provided(layer({ script: manual, limits: { mailboxCapacity: 100 } })))
    )
  }

  for (const others of [10, 30]) {
    it.effect(`C04: 20,000 in one turn beside ${others} sessions: all arrive in order, and nobody notices`, () =>
      Effect.gen(function* () {
        const vm = yield* openVm
        const [noisy, through, ...calm] = yield* openAll(vm, others + 1)
        assert.strictEqual(yield* launches, 1)
        const scripted = yield* nextAgent
        const take = Queue.take(scripted.prompts)
        const flood = yield* noisy!.submit("flood")
        const prompt = yield* take
        const reading = yield* beside(Stream.runCollect(flood.updates))
        const running = yield* through!.submit("through")
        const held = yield* take
        yield* held.say("before")

        yield* scripted.together(Effect.forEach(numbers(20_000), (i) => prompt.say(`${i}`), { discard: true }))
        // On its way now, and not read yet.
        const turns = yield* Effect.forEach(calm, (session) => session.submit("short"))
        for (const turn of turns) {
          const short = yield* take
          yield* short.say("mine")
          yield* short.end()
          assert.strictEqual((yield* turn.await)._tag, "Completed")
          const texts = (yield* Stream.runCollect(turn.updates)).map(textOf).filter((text) => text !== "")
          assert.deepStrictEqual(texts, ["mine"])
        }
        yield* held.say("after")
        yield* held.end()
        assert.strictEqual((yield* running.await)._tag, "Completed")
        assert.deepStrictEqual(yield* textsOf(through!), ["before", "after"])
        yield* prompt.end()
        assert.strictEqual((yield* flood.await)._tag, "Completed")
        const texts = (yield* Fiber.join(reading)).map(textOf).filter((text) => text !== "")
        assert.deepStrictEqual(texts, numbers(20_000).map(String))
        assert.strictEqual(yield* Clock.currentTimeMillis, 0)
        yield* assertEnded(noisy!, through!, ...calm)
      }).pipe(provided(layer({ script: manual, limits: { maxSessionsPerHost: 50 } })))
    )
  }
})

everywhere("a shared agent that wants a sign-in", (layer) => {
  const script = (): ScriptedAgent.Script => {
    let signedIn = false
    let made = 0
    return {
      ...echo,
      authMethods: [{ id: "login", name: "Log in" }],
      authenticate: () => Effect.sync(() => ((signedIn = true), {})),
      newSession: () =>
        Effect.suspend(() =>
          signedIn ? replies(`s-${++made}`) : Effect.fail({ code: -32000, message: "Authentication required" } as never)
        )
    }
  }
  it.effect("B70: is signed in once for ten sessions at once, and not for one that does not say so", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const [reason, ...sessions] = yield* Effect.all(
        [refusal(opened(vm)), ...numbers(10).map(() => vm.openSession({ agent, authenticate: "login" }))],
        { concurrency: "unbounded" }
      )
      assert.deepInclude(reason, { _tag: "AuthRequired", methods: [{ id: "login", name: "Log in" }] })
      const methods = (yield* nextAgent).methods()
      assert.strictEqual(methods.filter((method) => method === "authenticate").length, 1)
      yield* assertHealthy(sessions as ReadonlyArray<Session.Session>)
    }).pipe(provided(layer({ script })))
  )
})

everywhere("the death of a shared agent", (layer) => {
  it.effect("answers all questions that are pending with crash, once, in each session", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const sessions = yield* openAll(vm, 3, { permission: "ask" })
      const scripted = yield* nextAgent
      const turns = yield* Effect.forEach(sessions, (session) => session.submit("ask"))
      const asking = yield* Effect.forEach(turns, () => Queue.take(scripted.prompts))
      for (const prompt of asking) for (const id of ["a", "b"]) yield* beside(prompt.ask(undefined, id))
      // And one outside of any turn.
      const quiet = yield* vm.openSession({ agent, permission: "ask" })
      yield* beside(scripted.ask(quiet.agentSessionId))
      yield* idle
      const all = [...sessions, quiet]
      assert.deepStrictEqual(
        yield* Effect.forEach(all, (session) => Effect.map(session.pendingPermissions, (open) => open.length)),
        [2, 2, 2, 1]
      )
      yield* scripted.crash({ code: 9, stderrTail: "out of luck" })
      for (const turn of turns) {
        const { reason } = yield* Effect.flip(turn.await)
        assert.deepInclude(reason, { _tag: "ProcessExited", code: 9 })
      }
      for (const session of all) {
        yield* until(session, "SessionEnded")
        const events = yield* soFar(session)
        const answers = events.filter((event) => event._tag === "PermissionAnswered")
        const asked = events.filter((event) => event._tag === "PermissionAsked").map((event) => event.permissionId)
        assert.deepStrictEqual(answers.map((event) => event.permissionId).toSorted(), asked.toSorted())
        assert.deepStrictEqual(new Set(answers.map((event) => event.answeredBy)), new Set(["crash"]))
        assert.strictEqual(events.at(-1)?._tag, "SessionEnded")
        assert.strictEqual(events.filter((event) => event._tag === "SessionEnded").length, 1)
        const late = yield* Effect.flip(session.answer(asked[0]!, "allow"))
        assert.deepInclude(late, { _tag: "PermissionNotPending", answeredBy: "crash" })
      }
      yield* assertEnded(...sessions)
      assert.deepStrictEqual(yield* hosts, [])
    }).pipe(provided(layer({ script: manual })))
  )

  it.effect("H3: is not waited for by whoever hears of it first: the next open gets another", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const sessions = yield* openAll(vm, 2)
      const turns = yield* Effect.forEach(sessions, (session) => session.submit("go"))
      const next = yield* Effect.forEach(turns, (turn) =>
        beside(Effect.andThen(Effect.flip(turn.await), vm.openSession({ agent })))
      )
      yield* idle
      yield* (yield* nextAgent).crash({ code: 9 })
      const again = yield* Effect.forEach(next, Fiber.join)
      assert.strictEqual(new Set(again.map((session) => session.hostId)).size, 1)
      assert.notStrictEqual(again[0]!.hostId, sessions[0]!.hostId)
      assert.deepStrictEqual([yield* alive, yield* launches], [1, 2])
    }).pipe(provided(layer({ script: manual })))
  )

  it.effect("B81: what it still owed is nothing to the turns of the next process, whatever that answers", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const [first] = yield* openAll(vm, 2)
      const turn = yield* first!.submit("go", { idempotencyKey: "key" })
      const one = yield* nextAgent
      const owed = yield* Queue.take(one.prompts)
      yield* one.crash({ code: 9 })
      yield* Effect.flip(turn.await)
      const again = yield* vm.openSession({ agent })
      const two = yield* nextAgent
      yield* two.send({ id: owed.requestId, result: { stopReason: "end_turn" } })
      yield* two.update(owed.sessionId, chunk("of the turn before"))
      yield* idle
      const next = yield* again.submit("go")
      const prompt = yield* Queue.take(two.prompts)
      assert.isUndefined((yield* again.describe).turns.find(({ phase }) => phase !== "running"))
      yield* prompt.say("mine")
      yield* prompt.end()
      assert.strictEqual((yield* next.await)._tag, "Completed")
      assert.strictEqual((yield* turn.outcome)._tag, "Failed")
      assert.strictEqual((yield* hosts)[0]!.late, 1)
      assert.strictEqual(two.methods().filter((method) => method === "session/prompt").length, 1)
      yield* assertEnded(first!, again)
    }).pipe(provided(layer({ script: manual })))
  )
})

everywhere("a shared agent that can't be started or ended", (layer) => {
  it.effect("whose initialize is never answered fails all who wait, typed, and the next ones get another", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const openings = yield* Effect.forEach(numbers(5), () => beside(refusal(opened(vm))))
      yield* TestClock.adjust("30 seconds")
      const late = yield* beside(refusal(opened(vm)))
      yield* TestClock.adjust("30 seconds")
      for (const opening of openings) assert.strictEqual((yield* Fiber.join(opening))._tag, "StartTimedOut")
      // That one has its own time, but the process does not.
      assert.strictEqual((yield* Fiber.join(late))._tag, "StartTimedOut")
      assert.deepStrictEqual([yield* alive, yield* launches], [0, 1])
      const next = yield* openAll(vm, 3)
      yield* assertHealthy(next)
      assert.strictEqual(yield* launches, 2)
    }).pipe(
      provided(
        layer({
          script: (() => {
            let started = 0
            return () => (++started === 1 ? { initialize: () => Effect.never } : echo)
          })()
        })
      )
    )
  )

  it.effect("whose initialize is never answered and that can't be killed keeps its place until it is gone", () => {
    const released = Deferred.makeUnsafe<void>()
    let started = 0
    const script = () => (++started === 1 ? { initialize: () => Effect.never, end: Deferred.await(released) } : echo)
    return Effect.gen(function* () {
      const vm = yield* openVm
      const openings = yield* Effect.forEach(numbers(3), () => beside(refusal(opened(vm))))
      yield* TestClock.adjust("60 seconds")
      yield* TestClock.adjust("60 seconds")
      for (const opening of openings) assert.strictEqual((yield* Fiber.join(opening))._tag, "StartTimedOut")
      const [host] = yield* hosts
      assert.deepInclude(host!, { state: "ending", leases: 0, sessions: [] })
      for (const _ of numbers(3)) {
        const waiting = yield* Effect.forEach(numbers(2), () => beside(refusal(opened(vm))))
        yield* TestClock.adjust("10 seconds")
        for (const opening of waiting) {
          assert.deepInclude(yield* Fiber.join(opening), { _tag: "HostStillEnding", afterMillis: 10_000 })
        }
      }
      assert.deepStrictEqual([yield* alive, yield* launches], [1, 1])
      assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })

      const patient = yield* beside(openAll(vm, 2))
      yield* TestClock.adjust("9 seconds")
      assert.isUndefined(patient.pollUnsafe())
      yield* Deferred.succeed(released, undefined)
      yield* assertHealthy(yield* Fiber.join(patient))
      assert.strictEqual(yield* launches, 2)
    }).pipe(provided(layer({ script })))
  })

  it.effect("that can't be killed when it is idle fails who comes next, typed, and blocks no dispose for good", () => {
    const released = Deferred.makeUnsafe<void>()
    return Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm
      yield* opened(vm)
      yield* TestClock.adjust("1 second")
      const waiting = yield* beside(refusal(opened(vm)))
      yield* TestClock.adjust("10 seconds")
      assert.strictEqual((yield* Fiber.join(waiting))._tag, "HostStillEnding")
      const disposing = yield* beside(sidecar.dispose)
      yield* TestClock.adjust("1 minute")
      yield* Deferred.succeed(released, undefined)
      yield* TestClock.adjust("1 minute")
      yield* Fiber.join(disposing)
      assert.deepStrictEqual([yield* alive, yield* launches], [0, 1])
    }).pipe(provided(layer({ script: { ...echo, end: Deferred.await(released) } })))
  })

  it.effect("that opens no session in time is ended when nobody else has it, so that the next one gets another", () => {
    let started = 0
    const mute: ScriptedAgent.Script = { newSession: () => Effect.never }
    return Effect.gen(function* () {
      const vm = yield* openVm
      const patient = { agent: share({ idleTime: "1 day" }) }
      // Of those that wait together only the last one is alone with it.
      const waiting = yield* Effect.forEach(numbers(3), () => beside(refusal(opened(vm, patient))))
      yield* TestClock.adjust("60 seconds")
      for (const opening of waiting) assert.strictEqual((yield* Fiber.join(opening))._tag, "StartTimedOut")
      yield* idle
      assert.deepStrictEqual([yield* alive, yield* hosts], [0, []])
      yield* assertHealthy(yield* openAll(vm, 2, patient))
      assert.strictEqual(yield* launches, 2)
    }).pipe(provided(layer({ script: () => (++started === 1 ? mute : echo) })))
  })

  it.effect("that opens no session in time stays for those who have one, and for who gave up before", () => {
    let asked = 0
    const script: ScriptedAgent.Script = {
      ...echo,
      newSession: () => (++asked === 2 || asked === 3 ? Effect.never : replies(`open-${asked}`))
    }
    return Effect.gen(function* () {
      const vm = yield* openVm
      const patient = { agent: share({ idleTime: "1 day" }) }
      const first = yield* vm.openSession(patient)
      const late = yield* beside(refusal(opened(vm, patient)))
      yield* TestClock.adjust("60 seconds")
      assert.strictEqual((yield* Fiber.join(late))._tag, "StartTimedOut")
      assert.strictEqual((yield* first.prompt("still here"))._tag, "Completed")
      yield* first.close
      const left = yield* beside(opened(vm, patient))
      yield* TestClock.adjust("30 seconds")
      yield* Fiber.interrupt(left)
      yield* vm.openSession(patient)
      assert.deepStrictEqual([yield* alive, yield* launches], [1, 1])
    }).pipe(provided(layer({ script })))
  })
})

everywhere("clients of one scope", (layer) => {
  it.effect("in two Vms have one process and two conversations, and another environment has its own", () =>
    Effect.gen(function* () {
      const [one, two] = [yield* openVm, yield* openVm]
      const profile = share({ scope: "team" })
      const first = yield* one.openSession({ agent: profile })
      const second = yield* two.openSession({ agent: profile })
      assert.notStrictEqual(first.agentSessionId, second.agentSessionId)
      yield* assertHealthy([first, second])
      const other = yield* two.openSession({ agent: profile, env: { HOME: "/elsewhere" } })
      assert.notStrictEqual(other.hostId, second.hostId)
      assert.strictEqual(yield* launches, 2)
      // The end of one Vm is not that of the process.
      yield* one.close
      assert.strictEqual((yield* second.prompt("on"))._tag, "Completed")
      assert.strictEqual(yield* alive, 2)
      yield* two.close
      yield* TestClock.adjust("1 second")
      yield* idle
      assert.strictEqual(yield* alive, 0)
    }).pipe(provided(layer({ script: echo })))
  )

  it.effect("a Vm that closes while its session is being opened leaves the other one's alone, and nothing behind", () =>
    Effect.gen(function* () {
      const [one, two] = [yield* openVm, yield* openVm]
      const profile = share({ scope: "team" })
      const first = yield* one.openSession({ agent: profile })
      const opening = yield* beside(Effect.flip(opened(two, { agent: profile })))
      yield* idle
      yield* two.close
      assert.strictEqual((yield* Fiber.join(opening))._tag, "Disposed")
      assert.strictEqual((yield* hosts)[0]!.kept.left, 1)
      yield* TestClock.adjust("5 seconds")
      yield* idle
      const scripted = yield* nextAgent
      assert.deepStrictEqual(scripted.sessions(), [first.agentSessionId])
      yield* assertHealthy([first])
    }).pipe(
      provided(
        layer({
          script: () => {
            let made = 0
            return {
              ...echo,
              capabilities: { sessionCapabilities: { close: {} } },
              newSession: () =>
                Effect.andThen(made++ > 0 ? Effect.sleep("5 seconds") : Effect.void, replies(`s-${made}`))
            }
          }
        })
      )
    )
  )
})

everywhere("an idle end that meets an opening", (_layer, place) => {
  const race = (end: string) =>
    Effect.gen(function* () {
      const { context, test } = yield* TestSidecar.make({
        place,
        script: { ...echo, end: Effect.sleep(end as "1 second") }
      })
      yield* Effect.gen(function* () {
        const vm = yield* openVm
        const { clock } = yield* Simulation.here
        for (const round of numbers(3)) {
          const early = yield* vm.openSession({ agent })
          yield* early.close
          // The idle time is over in the moment in which they come, just before it, or while the process ends.
          const delay = yield* Random.nextIntBetween(998, 1003)
          const opening = yield* beside(Effect.andThen(Effect.sleep(delay), openAll(vm, 3)))
          const sessions = yield* Fiber.join(opening)
          assert.isAtMost(test.alive(), 1)
          yield* assertHealthy(sessions)
          yield* Simulation.trace(`${round}: ${test.launches().length}`)
          for (const session of sessions) yield* session.close
        }
        yield* clock.adjust("1 minute")
        yield* Simulation.settle
        assert.strictEqual(test.alive(), 0)
        assert.deepStrictEqual(yield* hosts, [])
      }).pipe(Effect.scoped, Effect.provideContext(context))
    })

  for (const end of ["0 millis", "1 second"]) {
    it(`gives it a live process, never two, in any order of what happens (it takes ${end} to end)`, () => {
      const { traces } = Simulation.assertHolds(race(end), { runs: 20 })
      assert.isAbove(traces, 3)
    })
  }

  it("leaves nothing when the opening is interrupted at any operation", () => {
    const runs = Strikes.assertSafe({
      make: Strikes.bare({ script: echo, spawn: 1, place }),
      body: ({ vm }) =>
        Effect.gen(function* () {
          yield* Effect.scoped(vm.openSession({ agent }))
          yield* Effect.sleep("1 second")
          const session = yield* vm.openSession({ agent })
          yield* session.prompt("go")
        }),
      check: (world) =>
        Effect.gen(function* () {
          yield* Effect.sleep("10 seconds")
          assert.strictEqual(world.alive(), 0)
          assert.deepStrictEqual((yield* world.sidecar.describe).hosts, [])
          assert.deepInclude(yield* world.vm.describe, { opening: 0, sessions: [] })
          yield* Strikes.assertFibers(world.fibers)
          assert.deepStrictEqual(world.gauges(), world.idle)
        }),
      closed: Strikes.assertGone
    })
    assert.isAbove(runs, 10)
  })
})

everywhere("one session of a shared agent", (layer) => {
  it.effect("B15: is timed by its own frames, however much the agent says to others, and is cut off alone", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const [silent, busy] = yield* openAll(vm, 2)
      const scripted = yield* nextAgent
      const turn = yield* silent!.submit("go", { idleTimeout: "30 seconds" })
      const other = yield* busy!.submit("go", { idleTimeout: "30 seconds" })
      const prompts = [yield* Queue.take(scripted.prompts), yield* Queue.take(scripted.prompts)]
      const ending = yield* beside(Effect.flip(turn.await))
      for (const i of numbers(12)) {
        if (i === 1) yield* prompts[0]!.say("still here")
        yield* prompts[1]!.say(`${i}`)
        yield* TestClock.adjust("5 seconds")
        if (i < 6) assert.isUndefined(ending.pollUnsafe())
      }
      const { reason } = yield* Fiber.join(ending)
      assert.deepInclude(reason, {
        _tag: "TurnTimedOut",
        deadline: "idle",
        afterMillis: 30_000,
        escalation: "quarantined"
      })
      assert.strictEqual((yield* until(silent!, "SessionEnded")).reason, "quarantined")
      yield* prompts[1]!.end()
      assert.strictEqual((yield* other.await)._tag, "Completed")
      assert.deepStrictEqual(yield* textsOf(busy!), numbers(12).map(String))
      assert.deepInclude((yield* hosts)[0]!, { leases: 1, sessions: [busy!.id], restarts: 0 })
      yield* assertEnded(silent!, busy!)
    }).pipe(provided(layer({ script: { ...manual, ignoreCancel: true } })))
  )
})

everywhere("bad input of an agent that is shared", (layer) => {
  it.effect("a second session that is refused fails alone, with what to do", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const first = yield* vm.openSession({ agent })
      const reasons = yield* Effect.forEach(numbers(5), () => refusal(opened(vm)), { concurrency: "unbounded" })
      for (const reason of reasons) {
        assert.deepInclude(reason, { _tag: "OneSessionOnly", code: -32603, others: 1 })
        assert.include(reason.message, "share: false")
      }
      yield* assertHealthy([first])
    }).pipe(
      provided(
        layer({
          script: () => {
            let made = 0
            return {
              ...echo,
              newSession: () =>
                made++ === 0 ? replies("only") : Effect.fail({ code: -32603, message: "one is enough" } as never)
            }
          }
        })
      )
    )
  )

  it.effect("an id that is another session's fails the new one alone, whether it comes at once or after a while", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const exits = yield* Effect.forEach(numbers(5), () => Effect.exit(vm.openSession({ agent })), {
        concurrency: "unbounded"
      })
      const sessions = exits.flatMap((exit) => (Exit.isSuccess(exit) ? [exit.value] : []))
      assert.strictEqual(sessions.length, 1)
      const scripted = yield* nextAgent
      const turn = yield* sessions[0]!.submit("go")
      const reason = yield* refusal(opened(vm))
      assert.isTrue(reason._tag === "InvalidResponse" && reason.detail.includes("is open"), reason.message)
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      // Which is not asked to close the one that it has.
      assert.notInclude(scripted.methods(), "session/close")
      yield* assertHealthy(sessions)
    }).pipe(
      provided(
        layer({
          script: { ...echo, capabilities: { sessionCapabilities: { close: {} } }, newSession: () => replies("same") }
        })
      )
    )
  )

  for (const [name, id, problem] of [
    ["of a megabyte", "x".repeat(1_000_000), "1000000 characters"],
    ["that is empty", "", "is empty"],
    ["that is a number", 7, "no session id"],
    ["that is an object", { toString: "evil" }, "no session id"],
    ["that is missing", undefined, "no session id"]
  ] as const) {
    it.effect(`an id ${name} fails its session alone, and nothing of it is kept`, () =>
      Effect.gen(function* () {
        const vm = yield* openVm
        const [one, two] = [yield* vm.openSession({ agent }), yield* vm.openSession({ agent })]
        const scripted = yield* nextAgent
        for (const _ of numbers(5)) {
          const reason = yield* refusal(opened(vm))
          assert.strictEqual(reason._tag, "InvalidResponse")
          assert.include(reason.message, problem)
          assert.isBelow(reason.message.length, 500)
        }
        if (typeof id === "string") {
          yield* scripted.update(id, chunk("for it"))
          yield* idle
          assert.isBelow((yield* one.describe).unrouted.sample.length, 65)
        }
        assert.isBelow((yield* hosts)[0]!.kept.earlyBytes, 1000)
        yield* assertHealthy([one, two])
      }).pipe(
        provided(
          layer({
            script: () => {
              let made = 0
              return { ...echo, newSession: () => replies(++made > 2 ? id : `s-${made}`) }
            }
          })
        )
      )
    )
  }

  it.effect("ids that mean something elsewhere are ids like others", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const sessions = yield* Effect.forEach(odd, () => vm.openSession({ agent }))
      assert.deepStrictEqual(
        sessions.map((session) => session.agentSessionId),
        odd
      )
      const scripted = yield* nextAgent
      for (const session of sessions) yield* scripted.update(session.agentSessionId, chunk(`to ${session.id}`))
      yield* idle
      for (const session of sessions) assert.deepStrictEqual(yield* textsOf(session), [`to ${session.id}`])
      yield* assertHealthy(sessions)
      yield* sessions[0]!.close
      assert.deepStrictEqual(yield* scripted.ask(odd[0]!), { _tag: "Error", code: -32002 })
      yield* assertHealthy(sessions.slice(1))
      assert.isUndefined(({} as { polluted?: unknown }).polluted)
    }).pipe(
      provided(
        layer({
          script: () => {
            let made = 0
            return { ...echo, newSession: () => replies(odd[made++]) }
          }
        })
      )
    )
  )

  it.effect("what names a neighbour is the neighbour's, whoever's turn it is, and nobody else's", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const one = yield* vm.openSession({ agent, permission: "ask" })
      const two = yield* vm.openSession({ agent, permission: "ask" })
      const three = yield* vm.openSession({ agent, permission: "ask" })
      const scripted = yield* nextAgent
      const turn = yield* one.submit("go")
      const prompt = yield* Queue.take(scripted.prompts)
      // In the middle of the turn of one.
      yield* scripted.update(two.agentSessionId, chunk("for two"))
      const question = yield* beside(scripted.ask(two.agentSessionId))
      yield* prompt.say("for one")
      yield* idle
      const pending = yield* Effect.forEach([one, two, three], (session) => session.pendingPermissions)
      assert.deepStrictEqual(
        pending.map((open) => open.length),
        [0, 1, 0]
      )
      assert.isNull(pending[1]![0]!.turnId)
      const event = (yield* soFar(two)).find((event) => event._tag === "Update")
      assert.deepInclude(event, { turnId: null, afterTurn: null })
      // The end of that turn takes nothing of it back.
      yield* prompt.end()
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      assert.strictEqual((yield* two.pendingPermissions).length, 1)
      const wrong = yield* Effect.flip(one.answer(pending[1]![0]!.permissionId, "allow"))
      assert.strictEqual(wrong._tag, "PermissionNotPending")
      yield* two.answer(pending[1]![0]!.permissionId, "allow")
      assert.deepStrictEqual(yield* Fiber.join(question), { _tag: "Selected", optionId: "allow" })
      assert.deepStrictEqual(yield* Effect.forEach([one, two, three], textsOf), [["for one"], ["for two"], []])
    }).pipe(provided(layer({ script: manual })))
  )

  it.effect("two answers to one session/new open one session, and the second is counted", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const first = yield* vm.openSession({ agent })
      const scripted = yield* nextAgent
      const before = yield* Queue.clear(scripted.received)
      assert.isAbove(before.length, 0)
      for (const second of ["s-2", "s-2b", first.agentSessionId]) {
        const opening = yield* beside(vm.openSession({ agent }))
        yield* idle
        const request = (yield* Queue.clear(scripted.received)).find((frame) => frame._tag === "Request")
        yield* scripted.together(
          Effect.gen(function* () {
            yield* scripted.send({ id: request!.id, result: { sessionId: "s-2" } })
            yield* scripted.send({ id: request!.id, result: { sessionId: second } })
          })
        )
        const session = yield* Fiber.join(opening)
        assert.strictEqual(session.agentSessionId, "s-2")
        yield* assertHealthy([first, session])
        yield* session.close
        yield* Queue.clear(scripted.received)
      }
      assert.strictEqual((yield* hosts)[0]!.late, 3)
      yield* assertHealthy([first])
    }).pipe(
      provided(
        layer({
          script: () => {
            let made = 0
            return { ...echo, newSession: () => (++made === 1 ? replies("s-1") : Effect.never) }
          }
        })
      )
    )
  )

  it.effect(
    "a request for a session that is being opened waits for it; for one that was closed, or put out, it is refused",
    () =>
      Effect.gen(function* () {
        const vm = yield* openVm
        const [stays, closed, flooded] = [
          yield* vm.openSession({ agent }),
          yield* vm.openSession({ agent }),
          yield* vm.openSession({ agent })
        ]
        const scripted = yield* nextAgent
        const refused = { _tag: "Error", code: -32002 } as const
        assert.deepStrictEqual(yield* scripted.ask("nobody"), refused)
        yield* closed.close
        assert.deepStrictEqual(yield* scripted.ask(closed.agentSessionId), refused)
        for (const _ of numbers(20)) yield* scripted.update(flooded.agentSessionId, chunk("x".repeat(100)))
        assert.strictEqual((yield* until(flooded, "SessionEnded")).reason, "quarantined")
        assert.deepStrictEqual(yield* scripted.ask(flooded.agentSessionId), refused)

        const opening = yield* beside(vm.openSession({ agent, permission: "allow" }))
        yield* idle
        const question = yield* beside(scripted.ask("s-4"))
        const others = yield* beside(scripted.ask("s-5"))
        yield* idle
        assert.isUndefined(question.pollUnsafe())
        yield* TestClock.adjust("5 seconds")
        const late = yield* Fiber.join(opening)
        assert.deepStrictEqual(yield* Fiber.join(question), { _tag: "Selected", optionId: "allow" })
        assert.deepStrictEqual(yield* Fiber.join(others), refused)
        // The id of a session that was put out is not given to another.
        const reason = yield* beside(refusal(opened(vm)))
        yield* TestClock.adjust("5 seconds")
        const { message } = yield* Fiber.join(reason)
        assert.include(message, "was put out")
        yield* assertHealthy([stays, late])
      }).pipe(
        provided(
          layer({
            limits: { maxIdleOutputBytes: 1000 },
            script: () => {
              let made = 0
              return {
                ...echo,
                newSession: () =>
                  ++made > 3
                    ? Effect.delay(replies(made === 5 ? "s-3" : `s-${made}`), "5 seconds")
                    : replies(`s-${made}`)
              }
            }
          })
        )
      )
  )

  it.effect("notifications and requests with garbage in them cost nobody anything", () =>
    Effect.gen(function* () {
      const vm = yield* openVm
      const sessions = yield* openAll(vm, 3)
      const scripted = yield* nextAgent
      const id = sessions[0]!.agentSessionId
      const garbage: ReadonlyArray<unknown> = [
        null,
        [],
        "text",
        7,
        {},
        { sessionId: null, update: chunk("x") },
        { sessionId: 7, update: chunk("x") },
        { sessionId: [id], update: chunk("x") },
        { sessionId: id },
        { sessionId: id, update: null },
        { sessionId: id, update: [] },
        { sessionId: "", update: chunk("x") },
        { sessionId: "__proto__", update: chunk("x") },
        { __proto__: { sessionId: id }, update: chunk("x") },
        { sessionId: "y".repeat(1_000_000), update: chunk("x") }
      ]
      const methods = [
        "session/update",
        "session/request_permission",
        "fs/read_text_file",
        "_mine/thing",
        "",
        "__proto__"
      ]
      let requests = 0
      for (const method of methods) {
        for (const params of garbage) {
          const frame = { jsonrpc: "2.0", method, params }
          yield* scripted.write(`${JSON.stringify(frame)}\n${JSON.stringify({ ...frame, id: `g-${++requests}` })}\n`)
        }
        yield* scripted.write(`{"jsonrpc":"2.0","method":${JSON.stringify(method)}}\n`)
      }
      yield* read(scripted)
      yield* idle
      // Each request has one answer, an error.
      const answers = (yield* Queue.clear(scripted.received)).filter((frame) => frame._tag === "Response")
      // And the one that was asked for.
      assert.strictEqual(answers.length, requests + 1)
      assert.isTrue(answers.every((frame) => frame.error !== undefined))
      for (const session of sessions) {
        assert.deepStrictEqual(yield* textsOf(session), [])
        assert.deepStrictEqual(yield* session.pendingPermissions, [])
      }
      for (const session of sessions.slice(1)) {
        const events = (yield* soFar(session)).filter((event) => event._tag === "Update")
        assert.deepStrictEqual(events, [])
      }
      yield* assertHealthy(sessions)
    }).pipe(provided(layer({ script: echo })))
  )
})

const odd = [
  "__proto__",
  "constructor",
  "toString",
  "hasOwnProperty",
  "\u0000\u001b[31m\r\n",
  " ",
  "\u{1f600}",
  "../../etc",
  "null"
]
