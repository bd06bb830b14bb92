// Each limit, at 0, at its value, past it, and after something was given back. One row a limit: one without a row is a
// test that fails.
import { assert, describe, it } from "@effect/vitest"
import { AgentProfile, Sidecar, SidecarError, SidecarLimits, SidecarPool, SessionRouter } from "acp-sidecar"
import type { Session, SidecarEvent } from "acp-sidecar"
import { AcpConnection, StderrTail } from "acp-sidecar/acp"
import { type ScriptedAgent, TestSidecar } from "acp-sidecar/testing"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Latch from "effect/Latch"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { TestClock } from "effect/testing"
import * as Flood from "../src/internal/flood.ts"
import * as Clients from "./support/clients.ts"
import { beside, chunk, idle, provided, until } from "./support/events.ts"
import { hanging, manual, stuck } from "./support/turns.ts"

type Name = keyof SidecarLimits.SidecarLimits
type Env = Sidecar.Sidecar | TestSidecar.TestSidecar | Scope.Scope
type Test<A> = Effect.Effect<A, unknown, Env>
const names = Object.keys(SidecarLimits.defaults) as ReadonlyArray<Name>

interface World {
  readonly script?: TestSidecar.Options["script"]
  /** Other limits, so that they are not in the way. */
  readonly limits?: SidecarLimits.Overrides
}

/** What became of a use: `all`, or what the limit did about it; and how to give each piece back. */
interface Used {
  readonly found: string
  readonly held: ReadonlyArray<Effect.Effect<unknown>>
}

interface Counted extends World {
  /** How much fits, when the limit is `value` (which is the same unless given). */
  readonly cap: number
  readonly value?: number
  /** How much is used when the limit is 0. */
  readonly least: number
  readonly zero: string
  readonly past: string
  /** Whether 80 % of it is worth a warning: not where being full is the normal state, nor for sizes. */
  readonly warns: boolean
  readonly start: Test<(amount: number) => Test<Used>>
}

interface Timed extends World {
  readonly value: Duration.Input
  readonly over: string
  /** Begins to wait, and ends with what the limit made of it; `freed` is told how to end what would go on for good. */
  readonly begin: (freed: (free: Effect.Effect<void>) => void) => Test<Fiber.Fiber<string, unknown>>
}

/** For times that nobody waits for: what is found so long after. */
interface Looked extends World {
  readonly value: Duration.Input
  readonly look: (after: Duration.Duration) => Test<string>
  readonly before: string
  readonly over: string
}

const describeError = (error: unknown): string => {
  const { _tag, limit, max, reason, scope, setting, used } = error as {
    readonly [K in "_tag" | "limit" | "max" | "reason" | "scope" | "setting" | "used"]?: unknown
  }
  if (typeof reason === "object") return describeError(reason)
  if (limit === undefined) return String(_tag)
  const { message } = error as Error
  for (const said of [used, max, limit, setting]) assert.include(message, String(said))
  return `${_tag} ${used}/${max} ${limit}${scope === undefined ? "" : ` of the ${scope}`}`
}

/** Takes one after the other, until one is refused. */
const oneByOne =
  (take: Test<Effect.Effect<unknown>>) =>
  (amount: number): Test<Used> =>
    Effect.gen(function* () {
      const held: Array<Effect.Effect<unknown>> = []
      for (let i = 0; i < amount; i++) {
        const taken = yield* Effect.result(take)
        if (taken._tag === "Failure") return { found: describeError(taken.failure), held }
        held.push(taken.success)
      }
      return { found: "all", held }
    })

/** Tries something of a size, of which nothing stays. */
const atOnce =
  (attempt: (amount: number) => Test<string>) =>
  (amount: number): Test<Used> =>
    Effect.map(attempt(amount), (found) => ({ found, held: [] }))

/** Calls of one client that are not answered: streams of events, or modes that an agent does not set. */
const calls = (tag: "Events" | "Session.SetMode") =>
  Effect.gen(function* () {
    const { connect, dial } = yield* Clients.serve()
    const { sidecar } = yield* connect()
    const vm = yield* sidecar.openVm({ root: "/work" })
    const { id: sessionId } = yield* vm.openSession({ agent: TestSidecar.profile })
    const client = yield* Effect.flatMap(dial, Clients.raw)
    yield* client.write(Clients.hello({ role: "operator" }))
    yield* client.read
    let count = 0
    return oneByOne(
      Effect.gen(function* () {
        const id = ++count
        const payload = tag === "Events" ? undefined : { sessionId, modeId: "any" }
        yield* client.write({ _tag: "Request", id, tag, payload, headers: [] })
        const answer = yield* Effect.raceFirst(client.read, Effect.as(idle, undefined))
        if (answer === undefined) return Effect.andThen(client.write({ _tag: "Interrupt", requestId: id }), client.read)
        const { error } = answer["exit"].cause[0]
        if (error._tag !== "LimitExceeded") return yield* Effect.fail(error)
        return yield* Effect.fail(new SidecarError.LimitExceeded(error))
      })
    )
  })

/** Prompts, each on a session of its own unless told otherwise: those that were accepted may have to wait. */
const prompts = (options: { readonly sameSession?: boolean; readonly lane?: "background" } = {}) =>
  Effect.gen(function* () {
    const first = yield* TestSidecar.open()
    const { lane } = options
    // Not by a cancel, which to the agent is one of all that its session runs.
    const end = Effect.andThen(
      Effect.flatMap(Queue.take(first.agent.prompts), (prompt) => prompt.end()),
      idle
    )
    return (amount: number): Test<Used> =>
      Effect.gen(function* () {
        const turns: Array<Session.Turn> = []
        for (let i = 0; i < amount; i++) {
          const { session } = options.sameSession === true ? first : yield* TestSidecar.open({ vm: first.vm })
          const turn = yield* Effect.result(session.submit("go", { lane }))
          if (turn._tag === "Failure") return { found: describeError(turn.failure), held: [] }
          turns.push(turn.success)
        }
        yield* idle
        const sidecar = yield* Sidecar.Sidecar
        const waiting = (yield* sidecar.describe).vms
          .flatMap((vm) => vm.sessions)
          .flatMap((session) => session.turns)
          .filter((turn) => turn.phase === "queued").length
        return {
          found: waiting === 0 ? "all" : `${waiting} waits`,
          held: turns.map((turn) => (options.sameSession === true ? end : turn.cancel))
        }
      })
  })

/** Questions that are open until they are answered. */
const questions = Effect.gen(function* () {
  const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
  return oneByOne(
    Effect.gen(function* () {
      const before = yield* session.pendingPermissions
      const asking = yield* beside(agent.ask(session.agentSessionId))
      yield* idle
      const answer = asking.pollUnsafe()
      if (answer !== undefined) {
        const { code } = (yield* answer) as { readonly code?: number }
        return yield* Effect.fail({ _tag: code === undefined ? "answered by the limit" : `refused with ${code}` })
      }
      const now = yield* session.pendingPermissions
      const { permissionId } = now[before.length]!
      return Effect.andThen(Effect.orDie(session.answer(permissionId, "reject")), idle)
    })
  )
})

const updateOf = (sessionId: string, bytes: number): string => {
  const line = (text: string) =>
    JSON.stringify({ jsonrpc: "2.0", method: "session/update", params: { sessionId, update: chunk(text) } })
  return `${line("x".repeat(bytes - line("").length))}\n`
}

/** One line of that many bytes within a turn. */
const lines = Effect.map(TestSidecar.open(), ({ agent, session }) =>
  atOnce((bytes) =>
    Effect.gen(function* () {
      const turn = yield* session.submit("go")
      const prompt = yield* Queue.take(agent.prompts)
      yield* agent.write(updateOf(session.agentSessionId, bytes))
      yield* idle
      yield* prompt.end()
      const outcome = yield* turn.outcome
      return outcome._tag === "Failed" ? describeError(outcome.error) : "all"
    })
  )
)

/** Updates of 200 bytes, read when all of them are there. */
const kept = Effect.map(TestSidecar.open(), ({ agent, session }) =>
  atOnce((amount) =>
    Effect.gen(function* () {
      const { events } = yield* session.describe
      for (let i = 0; i < amount; i++) yield* agent.write(updateOf(session.agentSessionId, 200))
      yield* idle
      const read = yield* Stream.runHead(session.updatesFrom(events + 1))
      const first = Option.getOrThrow(read)
      return first._tag === "Lagged" ? `lost ${first.to - first.from}` : "all"
    })
  )
)

/** An agent whose name says what it does before it answers. */
const early: ScriptedAgent.Script & TestSidecar.Options["script"] = ((launch) => {
  const [what, amount = "0", delay = "0"] = launch.profile.name.split(" ")
  const before = (agent: ScriptedAgent.ScriptedAgent, kind: string, line: string) =>
    what === kind ? agent.write(line.repeat(Number(amount))) : Effect.void
  return {
    initialize: (agent) => Effect.as(before(agent, "noise", "a line\n"), { protocolVersion: 1 }),
    newSession: (agent) =>
      before(agent, "update", updateOf("early", 200)).pipe(
        Effect.andThen(Effect.sleep(Number(delay))),
        Effect.as({ sessionId: "early" })
      )
  }
}) satisfies TestSidecar.Options["script"]

const openEarly = (name: string) =>
  TestSidecar.open({ agent: { ...TestSidecar.profile, name }, startTimeout: Infinity })

const earlyUpdates = Effect.succeed(
  atOnce((amount) =>
    Effect.gen(function* () {
      const { session } = yield* openEarly(`update ${amount}`)
      const { events } = yield* session.describe
      return events === amount ? "all" : `lost ${amount - events}`
    })
  )
)

/** A route of which only the closing counts. */
const silent: SessionRouter.Route = {
  onUpdate: () => {},
  onTooLarge: () => {},
  onPermission: () => Effect.void,
  flush: () => {}
}

/** What is decided about a session that got so much. */
const floods = (add: (flood: Flood.Flood, amount: number) => void) =>
  Effect.map(Sidecar.Sidecar, ({ limits }) =>
    atOnce((amount) =>
      Effect.sync(() => {
        const flood = Flood.make()
        add(flood, amount)
        const verdict = Flood.decide(flood, limits)
        return verdict === undefined ? "all" : `${verdict.limit} ${verdict.used}/${verdict.max}`
      })
    )
  )

const timedOut = (session: Session.Session) =>
  Effect.flatMap(session.submit("go"), (turn) =>
    beside(
      Effect.map(Effect.flip(turn.await), ({ reason }) =>
        reason._tag === "TurnTimedOut" ? `${reason._tag} ${reason.deadline}` : reason._tag
      )
    )
  )

const exceeded = (limit: Name, scope: string, used: number, max: number) =>
  `LimitExceeded ${used}/${max} ${limit} of the ${scope}`

const sharing = { ...TestSidecar.profile, share: AgentProfile.sharing({}) }
/** Holds up the end of an agent that can't be killed. */
const unkillable = Latch.makeUnsafe(true)
/** An agent that does not start. */
let isBroken = true
const refusing: ScriptedAgent.Script = { initialize: () => Effect.fail(AcpConnection.refusal(-32603, "no")) }
const broken = (): ScriptedAgent.Script => (isBroken ? refusing : {})
/** How many of the next starts fail. */
let failing = 0
const openBroken = Effect.map(
  Effect.flatMap(Sidecar.Sidecar, (sidecar) => sidecar.openVm({ root: "/work" })),
  (vm) => vm.openSession({ agent: sharing })
)
const counted = { cap: 3, least: 1, warns: true } as const
const hello = JSON.stringify([{ type: "text", text: "" }]).length

type Rows = {
  readonly [K in Name]: SidecarLimits.SidecarLimits[K] extends Duration.Duration ? Timed | Looked : Counted
}

const rows: Rows = {
  maxSidecars: {
    ...counted,
    // A pool is not a part of the sidecar whose events are looked at.
    warns: false,
    zero: exceeded("maxSidecars", "pool", 0, 0),
    past: exceeded("maxSidecars", "pool", 3, 3),
    start: Effect.gen(function* () {
      const { limits } = yield* Sidecar.Sidecar
      const connector = { connect: () => Effect.never }
      const context = yield* Layer.build(SidecarPool.layer).pipe(
        Effect.provideService(SidecarPool.SidecarConnector, connector),
        Effect.provideService(SidecarLimits.SidecarLimits, limits)
      )
      const pool = Context.get(context, SidecarPool.SidecarPool)
      return oneByOne(Effect.map(pool.explicit(), (handle) => Effect.orDie(handle.dispose)))
    })
  },
  maxVms: {
    ...counted,
    zero: exceeded("maxVms", "sidecar", 0, 0),
    past: exceeded("maxVms", "sidecar", 3, 3),
    start: Effect.map(Sidecar.Sidecar, (sidecar) =>
      oneByOne(Effect.map(sidecar.openVm({ root: "/work" }), (vm) => vm.close))
    )
  },
  maxSessionsPerVm: {
    ...counted,
    zero: exceeded("maxSessionsPerVm", "vm", 0, 0),
    past: exceeded("maxSessionsPerVm", "vm", 3, 3),
    start: Effect.gen(function* () {
      const vm = yield* (yield* Sidecar.Sidecar).openVm({ root: "/work" })
      return oneByOne(Effect.map(vm.openSession({ agent: TestSidecar.profile }), (session) => session.close))
    })
  },
  maxHosts: {
    ...counted,
    zero: exceeded("maxHosts", "sidecar", 0, 0),
    past: exceeded("maxHosts", "sidecar", 3, 3),
    start: Effect.gen(function* () {
      const vm = yield* (yield* Sidecar.Sidecar).openVm({ root: "/work" })
      return oneByOne(Effect.map(vm.openSession({ agent: TestSidecar.profile }), (session) => session.close))
    })
  },
  maxSessionsPerHost: {
    ...counted,
    warns: false,
    zero: exceeded("maxSessionsPerHost", "host", 0, 0),
    past: exceeded("maxSessionsPerHost", "host", 3, 3),
    start: Effect.gen(function* () {
      const vm = yield* (yield* Sidecar.Sidecar).openVm({ root: "/work" })
      const agent = { ...TestSidecar.profile, share: AgentProfile.sharing({ whenFull: "refuse" }) }
      return oneByOne(Effect.map(vm.openSession({ agent }), (session) => session.close))
    })
  },
  maxProbes: {
    ...counted,
    script: { newSession: () => Effect.never },
    zero: exceeded("maxProbes", "sidecar", 0, 0),
    past: exceeded("maxProbes", "sidecar", 3, 3),
    start: Effect.gen(function* () {
      const vm = yield* (yield* Sidecar.Sidecar).openVm({ root: "/work" })
      let folders = 0
      return oneByOne(
        Effect.gen(function* () {
          const probing = yield* beside(vm.probe({ agent: TestSidecar.profile, cwd: `/${++folders}` }))
          yield* idle
          const over = probing.pollUnsafe()
          if (over !== undefined) yield* over
          return Effect.andThen(Fiber.interrupt(probing), idle)
        })
      )
    })
  },
  maxPromptsPerSession: {
    ...counted,
    script: manual,
    zero: exceeded("maxPromptsPerSession", "session", 0, 0),
    past: "1 waits",
    start: prompts({ sameSession: true })
  },
  maxPromptsPerVm: {
    ...counted,
    script: hanging,
    zero: exceeded("maxPromptsPerVm", "vm", 0, 0),
    past: "1 waits",
    start: prompts()
  },
  maxPromptsPerSidecar: {
    ...counted,
    script: hanging,
    zero: exceeded("maxPromptsPerSidecar", "sidecar", 0, 0),
    past: "1 waits",
    start: prompts()
  },
  reservedInteractivePerVm: {
    script: hanging,
    limits: { maxPromptsPerVm: 10 },
    value: 3,
    cap: 7,
    least: 10,
    warns: false,
    zero: "all",
    past: "1 waits",
    start: prompts({ lane: "background" })
  },
  reservedInteractivePerSidecar: {
    script: hanging,
    limits: { maxPromptsPerSidecar: 10 },
    value: 3,
    cap: 7,
    least: 10,
    warns: false,
    zero: "all",
    past: "1 waits",
    start: prompts({ lane: "background" })
  },
  maxQueuedPromptsPerSession: {
    ...counted,
    script: hanging,
    zero: exceeded("maxQueuedPromptsPerSession", "session", 0, 0),
    past: exceeded("maxQueuedPromptsPerSession", "session", 3, 3),
    start: Effect.gen(function* () {
      const { session } = yield* TestSidecar.open()
      yield* session.submit("runs")
      return oneByOne(Effect.map(session.submit("waits"), (turn) => turn.cancel))
    })
  },
  admissionTimeout: {
    script: hanging,
    value: "1 hour",
    over: "TurnTimedOut admission",
    begin: () =>
      Effect.gen(function* () {
        const { session } = yield* TestSidecar.open()
        yield* session.submit("runs")
        return yield* timedOut(session)
      })
  },
  maxPendingPermissionsPerSession: {
    ...counted,
    zero: "answered by the limit",
    past: "answered by the limit",
    start: questions
  },
  permissionTimeout: {
    value: "10 minutes",
    over: "deadline",
    begin: () =>
      Effect.gen(function* () {
        const { agent, session } = yield* TestSidecar.open({ permission: "ask" })
        yield* beside(agent.ask(session.agentSessionId))
        return yield* beside(Effect.map(until(session, "PermissionAnswered"), (event) => event.answeredBy))
      })
  },
  maxPromptBytes: {
    cap: 100,
    least: hello,
    warns: false,
    zero: exceeded("maxPromptBytes", "turn", hello, 0),
    past: exceeded("maxPromptBytes", "turn", 101, 100),
    start: Effect.map(TestSidecar.open(), ({ session }) =>
      atOnce((bytes) =>
        session.prompt("x".repeat(bytes - hello)).pipe(
          Effect.as("all"),
          Effect.catch((error) => Effect.succeed(describeError(error)))
        )
      )
    )
  },
  maxPromptBlocks: {
    ...counted,
    warns: false,
    zero: exceeded("maxPromptBlocks", "turn", 1, 0),
    past: exceeded("maxPromptBlocks", "turn", 4, 3),
    start: Effect.map(TestSidecar.open(), ({ session }) =>
      atOnce((count) =>
        session.prompt(Array.from({ length: count }, () => ({ type: "text", text: "x" }) as const)).pipe(
          Effect.as("all"),
          Effect.catch((error) => Effect.succeed(describeError(error)))
        )
      )
    )
  },
  maxLineBytes: {
    script: manual,
    cap: 1000,
    least: 200,
    warns: false,
    // Not even the answer to `initialize` fits.
    zero: "InvalidResponse",
    past: "OutputExceeded 1001/1000 maxLineBytes",
    start: lines
  },
  maxTurnOutputBytes: {
    script: manual,
    cap: 1000,
    least: 200,
    warns: false,
    zero: "OutputExceeded 200/0 maxTurnOutputBytes",
    past: "OutputExceeded 1001/1000 maxTurnOutputBytes",
    start: lines
  },
  // The newest event is always kept.
  mailboxCapacity: { cap: 3, least: 2, warns: false, zero: "lost 1", past: "lost 1", start: kept },
  mailboxBytes: { cap: 3, value: 600, least: 2, warns: false, zero: "lost 1", past: "lost 1", start: kept },
  earlyUpdatesPerSession: {
    ...counted,
    script: early,
    warns: false,
    zero: "lost 1",
    past: "lost 1",
    start: earlyUpdates
  },
  earlyUpdatesPerAgent: {
    ...counted,
    script: early,
    warns: false,
    zero: "lost 1",
    past: "lost 1",
    start: earlyUpdates
  },
  earlyUpdateBytes: {
    ...counted,
    script: early,
    value: 600,
    warns: false,
    zero: "lost 1",
    past: "lost 1",
    start: earlyUpdates
  },
  earlyUpdateTimeout: {
    script: early,
    value: "1 minute",
    before: "1 kept",
    over: "0 kept",
    look: (after) =>
      Effect.gen(function* () {
        const opening = yield* beside(openEarly(`update 1 ${Duration.toMillis(after)}`))
        yield* idle
        yield* TestClock.adjust(after)
        const { session } = yield* opening.pollUnsafe() ?? Effect.die("it has not answered")
        return `${(yield* session.describe).events} kept`
      })
  },
  maxTombstones: {
    ...counted,
    warns: false,
    zero: "1 forgotten",
    past: "1 forgotten",
    start: Effect.map(Sidecar.Sidecar, ({ limits }) => {
      const router = SessionRouter.make(limits)
      let ids = 0
      return atOnce((amount) =>
        Effect.sync(() => {
          const closed = Array.from({ length: amount }, () => `session ${++ids}`)
          for (const id of closed) SessionRouter.register(router, id, silent, 0)
          for (const id of closed) SessionRouter.unregister(router, id, silent)
          const before = router.stats.late
          for (const id of closed) SessionRouter.deliver(router, id, {}, 10, 0)
          const forgotten = amount - (router.stats.late - before)
          return forgotten === 0 ? "all" : `${forgotten} forgotten`
        })
      )
    })
  },
  tombstoneTimeout: {
    value: "10 minutes",
    before: "late",
    over: "early",
    look: (after) =>
      Effect.map(Sidecar.Sidecar, ({ limits }) => {
        const router = SessionRouter.make(limits)
        SessionRouter.register(router, "session", silent, 0)
        SessionRouter.unregister(router, "session", silent, 0)
        SessionRouter.deliver(router, "session", {}, 10, Duration.toMillis(after))
        return router.stats.late === 1 ? "late" : "early"
      })
  },
  maxIdleOutputBytes: {
    ...counted,
    warns: false,
    zero: "maxIdleOutputBytes 1/0",
    past: "maxIdleOutputBytes 4/3",
    start: floods((flood, amount) => Flood.idle(flood, amount))
  },
  maxBrokenFrames: {
    ...counted,
    warns: false,
    zero: "maxBrokenFrames 1/0",
    past: "maxBrokenFrames 4/3",
    start: floods((flood, amount) => {
      for (let i = 0; i < amount; i++) Flood.broken(flood)
    })
  },
  maxInboundRequests: { ...counted, zero: "refused with -32603", past: "refused with -32603", start: questions },
  maxNoiseBeforeInitialize: {
    ...counted,
    script: early,
    warns: false,
    zero: "NotAnAcpAgent",
    past: "NotAnAcpAgent",
    start: Effect.succeed(
      oneByOneOf((lines: number) => Effect.flatMap(openEarly(`noise ${lines}`), ({ session }) => session.close))
    )
  },
  stderrTailBytes: {
    cap: 100,
    least: 1,
    warns: false,
    zero: "the last 0",
    past: "the last 100",
    start: Effect.gen(function* () {
      yield* TestSidecar.open()
      const [launch] = (yield* TestSidecar.TestSidecar).launches()
      return atOnce((bytes) =>
        Effect.sync(() => {
          const tail = StderrTail.make(launch!.stderrTailBytes)
          tail.push(new TextEncoder().encode("x".repeat(bytes)))
          const text = tail.text()
          return text.length === bytes ? "all" : `the last ${text.length}`
        })
      )
    })
  },
  startTimeout: {
    script: { initialize: () => Effect.never },
    value: "1 minute",
    over: "StartTimedOut",
    begin: () => beside(Effect.map(Effect.flip(TestSidecar.open()), describeError))
  },
  cancelGrace: {
    script: stuck,
    value: "10 seconds",
    over: "retired",
    begin: (freed) =>
      Effect.gen(function* () {
        const { agent, session } = yield* TestSidecar.open()
        freed(agent.crash())
        const turn = yield* session.submit("go")
        return yield* beside(
          Effect.map(turn.cancel, (outcome) => (outcome._tag === "Cancelled" ? outcome.escalation : outcome._tag))
        )
      })
  },
  sessionIdleTimeout: {
    value: "10 minutes",
    over: "idle",
    begin: (freed) =>
      Effect.gen(function* () {
        const { session } = yield* TestSidecar.open()
        freed(session.close)
        return yield* beside(Effect.map(until(session, "SessionEnded"), ({ reason }) => reason))
      })
  },
  reclaimIdleAfter: {
    limits: { maxSessionsPerVm: 1 },
    value: "10 minutes",
    before: exceeded("maxSessionsPerVm", "vm", 1, 1),
    over: "in its place",
    look: (after) =>
      Effect.gen(function* () {
        const { vm } = yield* TestSidecar.open()
        yield* TestClock.adjust(after)
        const opening = TestSidecar.open({ vm })
        return yield* Effect.match(opening, { onFailure: describeError, onSuccess: () => "in its place" })
      })
  },
  hostIdleTime: {
    value: "1 second",
    before: "1 process",
    over: "0 processes",
    look: (after) =>
      Effect.gen(function* () {
        const { session } = yield* TestSidecar.open({ agent: sharing })
        yield* session.close
        yield* TestClock.adjust(after)
        yield* idle
        const alive = (yield* TestSidecar.TestSidecar).alive()
        return alive === 1 ? "1 process" : `${alive} processes`
      })
  },
  hostExitTimeout: {
    script: { end: Effect.suspend(() => unkillable.await) },
    value: "10 seconds",
    over: "HostStillEnding",
    begin: (freed) =>
      Effect.gen(function* () {
        unkillable.closeUnsafe()
        freed(unkillable.open)
        const { agent, session, vm } = yield* TestSidecar.open({ agent: sharing })
        yield* agent.crash()
        yield* until(session, "SessionEnded")
        const opening = vm.openSession({ agent: sharing, startTimeout: Infinity })
        return yield* beside(Effect.match(opening, { onFailure: describeError, onSuccess: () => "it was waited for" }))
      })
  },
  maxHostFailures: {
    ...counted,
    script: broken,
    warns: false,
    // There is no such delay.
    zero: "all",
    past: "StartHeldBack",
    start: Effect.gen(function* () {
      const open = yield* openBroken
      const works = Effect.gen(function* () {
        yield* TestClock.adjust("1 minute")
        isBroken = false
        yield* Effect.scoped(open)
        yield* TestClock.adjust("2 seconds")
        yield* idle
        isBroken = true
      }).pipe(Effect.orDie)
      return (amount) =>
        Effect.gen(function* () {
          isBroken = true
          for (let i = 0; i < amount; i++) {
            const why = yield* Effect.flip(open)
            if (describeError(why) === "StartHeldBack") return { found: "StartHeldBack", held: [works] }
          }
          return { found: "all", held: [works] }
        })
    })
  },
  maxHostRetryDelay: {
    script: broken,
    value: "1 minute",
    before: "held back",
    over: "tried",
    look: (after) =>
      Effect.gen(function* () {
        isBroken = true
        const open = yield* openBroken
        const failure = Effect.map(Effect.flip(open), (error) =>
          error._tag === "AgentStartFailed" ? error.reason : undefined
        )
        for (let i = 0; i < 40; i++) {
          const reason = yield* failure
          if (reason?._tag !== "StartHeldBack") continue
          yield* TestClock.adjust(reason.retryInMillis)
          yield* failure
        }
        yield* TestClock.adjust(after)
        return (yield* failure)?._tag === "StartHeldBack" ? "held back" : "tried"
      })
  },
  hostStableTime: {
    script: { newSession: () => Effect.never },
    limits: { maxHostFailures: 1 },
    value: "10 seconds",
    before: "held back",
    over: "tried",
    look: (after) =>
      Effect.gen(function* () {
        const vm = yield* (yield* Sidecar.Sidecar).openVm({ root: "/work" })
        const opening = beside(Effect.flip(vm.openSession({ agent: sharing, startTimeout: Infinity })))
        yield* opening
        yield* idle
        yield* TestClock.adjust(after)
        yield* (yield* Queue.take((yield* TestSidecar.TestSidecar).agents)).crash()
        yield* idle
        const next = yield* opening
        yield* idle
        const answer = next.pollUnsafe()
        return answer !== undefined && describeError(yield* answer) === "StartHeldBack" ? "held back" : "tried"
      })
  },
  maxResumeAttempts: {
    ...counted,
    script: () => (failing-- > 0 ? refusing : { capabilities: { loadSession: true } }),
    warns: false,
    zero: "agent_exited",
    past: "agent_exited",
    start: Effect.sync(() => {
      failing = 0
      return atOnce((attempts) =>
        Effect.gen(function* () {
          const { agent, session } = yield* TestSidecar.open({ restart: "resume" })
          failing = attempts - 1
          yield* agent.crash()
          yield* idle
          yield* TestClock.adjust("1 second")
          yield* TestClock.adjust("2 seconds")
          yield* TestClock.adjust("4 seconds")
          failing = 0
          const { events } = yield* session.describe
          const [last] = yield* Stream.runCollect(Stream.take(session.updatesFrom(events), 1))
          yield* Queue.clear((yield* TestSidecar.TestSidecar).agents)
          return last?._tag === "SessionEnded" ? last.reason : "all"
        })
      )
    })
  },
  maxClients: {
    cap: 2,
    least: 1,
    warns: false,
    zero: "HandshakeRefused full",
    past: "HandshakeRefused full",
    start: Effect.gen(function* () {
      const { dial } = yield* Clients.serve()
      return oneByOne(
        Effect.gen(function* () {
          const scope = yield* Scope.fork(yield* Effect.scope)
          const client = yield* Effect.flatMap(dial, Clients.raw).pipe(Scope.provide(scope))
          yield* client.write(Clients.hello())
          const answer = yield* client.read
          if (answer?.["_tag"] === "Welcome") return Effect.andThen(Scope.close(scope, Exit.void), idle)
          return yield* Effect.fail({ _tag: `${answer?.["_tag"]} ${answer?.["reason"]}` })
        })
      )
    })
  },
  maxCallsPerClient: {
    cap: 3,
    least: 1,
    warns: false,
    zero: "LimitExceeded 0/0 maxCallsPerClient of the client",
    past: "LimitExceeded 3/3 maxCallsPerClient of the client",
    start: calls("Events")
  },
  maxControlCallsPerClient: {
    script: { request: () => Effect.never },
    cap: 3,
    least: 1,
    warns: false,
    zero: "LimitExceeded 0/0 maxControlCallsPerClient of the client",
    past: "LimitExceeded 3/3 maxControlCallsPerClient of the client",
    start: calls("Session.SetMode")
  },
  handshakeTimeout: {
    value: "5 seconds",
    over: "timeout",
    begin: () =>
      Effect.gen(function* () {
        const client = yield* Effect.flatMap((yield* Clients.serve()).dial, Clients.raw)
        return yield* beside(Effect.map(client.read, (answer) => String(answer?.["reason"])))
      })
  },
  heartbeatTimeout: {
    value: "30 seconds",
    over: "closed",
    begin: () =>
      Effect.gen(function* () {
        const client = yield* Effect.flatMap((yield* Clients.serve()).dial, Clients.raw)
        yield* client.write(Clients.hello())
        yield* client.read
        return yield* beside(Effect.map(client.read, (answer) => (answer === undefined ? "closed" : "said something")))
      })
  },
  detachTimeout: {
    value: "10 minutes",
    before: "kept",
    over: "closed",
    look: (after) =>
      Effect.gen(function* () {
        const { connect, server } = yield* Clients.serve()
        yield* Effect.scoped(
          Effect.gen(function* () {
            const { sidecar } = yield* connect({ onDisconnect: "detach" })
            // In a scope that does not end with the connection.
            yield* sidecar.openVm({ root: "/work" }).pipe(Scope.provide(Scope.makeUnsafe()))
          })
        )
        yield* idle
        yield* TestClock.adjust(after)
        return server.clients() === 1 ? "kept" : "closed"
      })
  },
  closeTimeout: {
    script: { capabilities: { sessionCapabilities: { close: {} } }, closeSession: () => Effect.never },
    value: "2 seconds",
    over: "closed",
    begin: (freed) =>
      Effect.flatMap(TestSidecar.open(), ({ agent, session }) => {
        freed(agent.crash())
        return beside(Effect.as(session.close, "closed"))
      })
  },
  callTimeout: {
    script: { request: () => Effect.never },
    value: "30 seconds",
    over: "CallTimedOut",
    begin: () =>
      Effect.flatMap(TestSidecar.open(), ({ session }) =>
        beside(Effect.map(Effect.flip(session.setMode("any")), describeError))
      )
  },
  probeTimeout: {
    script: { initialize: () => Effect.never },
    value: "30 seconds",
    over: "ProbeTimedOut",
    begin: (freed) =>
      Effect.gen(function* () {
        const vm = yield* (yield* Sidecar.Sidecar).openVm({ root: "/work" })
        const probing = yield* beside(Effect.map(Effect.flip(vm.probe({ agent: TestSidecar.profile })), describeError))
        const agent = yield* Queue.take((yield* TestSidecar.TestSidecar).agents)
        freed(agent.crash())
        return probing
      })
  },
  probeTtl: {
    value: "5 minutes",
    before: "asked once",
    over: "asked twice",
    look: (after) =>
      Effect.gen(function* () {
        const vm = yield* (yield* Sidecar.Sidecar).openVm({ root: "/work" })
        yield* vm.probe({ agent: TestSidecar.profile })
        yield* TestClock.adjust(after)
        yield* vm.probe({ agent: TestSidecar.profile })
        return (yield* TestSidecar.TestSidecar).launches().length === 1 ? "asked once" : "asked twice"
      })
  },
  // What it does to a process is shown with real ones.
  killGrace: {
    value: "2 seconds",
    before: "as given",
    over: "as given",
    look: () =>
      Effect.gen(function* () {
        yield* TestSidecar.open()
        const { limits } = yield* Sidecar.Sidecar
        const [launch] = (yield* TestSidecar.TestSidecar).launches()
        return launch!.killGrace === limits.killGrace ? "as given" : "another"
      })
  },
  turnIdleTimeout: {
    script: hanging,
    value: "5 minutes",
    over: "TurnTimedOut idle",
    begin: () => Effect.flatMap(TestSidecar.open(), ({ session }) => timedOut(session))
  },
  turnTimeout: {
    script: hanging,
    value: "5 minutes",
    over: "TurnTimedOut wall",
    begin: () => Effect.flatMap(TestSidecar.open(), ({ session }) => timedOut(session))
  }
}

function oneByOneOf(open: (amount: number) => Test<unknown>) {
  return atOnce((amount) =>
    open(amount).pipe(
      Effect.as("all"),
      Effect.catch((error) => Effect.succeed(describeError(error)))
    )
  )
}

const within = (row: World, name: Name, value: number | Duration.Input | "off") =>
  provided(
    TestSidecar.layer({
      ...(row.script === undefined ? {} : { script: row.script }),
      limits: { ...row.limits, [name]: value }
    })
  )

const found = (row: Counted, amount: number) =>
  Effect.gen(function* () {
    const use = yield* row.start
    return (yield* use(amount)).found
  }).pipe(Effect.catch((error) => Effect.succeed(describeError(error))))

const warningsOf = Effect.gen(function* () {
  const seen: Array<SidecarEvent.SidecarEvent> = []
  const { events } = yield* Sidecar.Sidecar
  yield* events.pipe(
    Stream.filter((event) => event.kind === "limit_warning"),
    Stream.runForEach((event) => Effect.sync(() => seen.push(event))),
    Effect.forkScoped({ startImmediately: true })
  )
  return seen
})

it("every limit has a row", () => {
  assert.deepStrictEqual(Object.keys(rows).toSorted(), names.toSorted())
})

describe.each(names)("%s", (name) => {
  const row: Counted | Timed | Looked = rows[name]

  if ("start" in row) {
    const value = row.value ?? row.cap
    it.effect("at 0", () =>
      Effect.gen(function* () {
        assert.strictEqual(yield* found(row, row.least), row.zero)
      }).pipe(within(row, name, 0))
    )
    it.effect("at the cap", () =>
      Effect.gen(function* () {
        assert.strictEqual(yield* found(row, row.cap), "all")
      }).pipe(within(row, name, value))
    )
    it.effect("past the cap, and after what was held is given back", () =>
      Effect.gen(function* () {
        const use = yield* row.start
        const past = yield* use(row.cap + 1)
        assert.strictEqual(past.found, row.past)
        yield* Effect.forEach(past.held, (release) => release)
        const again = yield* use(row.cap)
        assert.strictEqual(again.found, "all")
        yield* Effect.forEach(again.held, (release) => release)
      }).pipe(within(row, name, value))
    )
    it.effect(row.warns ? "warns at 80 %, once, and again after it was under 50 %" : "never warns", () =>
      Effect.gen(function* () {
        const warnings = yield* warningsOf
        const own = () => warnings.filter((event) => event.limit === name)
        if (!row.warns) {
          const use = yield* row.start
          yield* use(row.cap + 1)
          yield* idle
          return assert.deepStrictEqual(own(), [])
        }
        const use = yield* row.start
        const held: Array<Effect.Effect<unknown>> = []
        const fill = (to: number) =>
          Effect.gen(function* () {
            if (held.length < to) {
              const used = yield* use(to - held.length)
              assert.strictEqual(used.found, "all")
              held.push(...used.held)
            }
            while (held.length > to) yield* held.pop()!
            yield* idle
            return own().length
          })
        assert.deepStrictEqual([yield* fill(7), yield* fill(8), yield* fill(10)], [0, 1, 1])
        assert.deepStrictEqual([yield* fill(5), yield* fill(10)], [1, 1], "5 of 10 is not under 50 %")
        assert.deepStrictEqual([yield* fill(4), yield* fill(7), yield* fill(10)], [1, 1, 2])
        for (const warning of own()) {
          assert.deepInclude(warning, { limit: name, used: 8, max: 10 })
          assert.include(warning.detail, SidecarLimits.setting(name))
        }
        yield* fill(0)
      }).pipe(within(row, name, row.warns ? 10 : value))
    )
    return
  }

  const value = Duration.fromInputUnsafe(row.value)
  const justBefore = Duration.millis(Duration.toMillis(value) - 1)
  if ("look" in row) {
    it.effect("at 0", () =>
      Effect.gen(function* () {
        assert.strictEqual(yield* row.look(Duration.zero), row.over)
      }).pipe(within(row, name, 0))
    )
    it.effect("before its time", () =>
      Effect.gen(function* () {
        assert.strictEqual(yield* row.look(justBefore), row.before)
      }).pipe(within(row, name, row.value))
    )
    it.effect("at its time", () =>
      Effect.gen(function* () {
        assert.strictEqual(yield* row.look(value), row.over)
      }).pipe(within(row, name, row.value))
    )
    it.effect("off", () =>
      Effect.gen(function* () {
        assert.strictEqual(yield* row.look(Duration.days(1000)), row.before)
      }).pipe(within(row, name, "off"))
    )
    return
  }

  const result = (fiber: Fiber.Fiber<string, unknown>) => fiber.pollUnsafe() ?? Effect.succeed("waiting")
  it.effect("at 0", () =>
    Effect.gen(function* () {
      const fiber = yield* row.begin(() => {})
      yield* TestClock.adjust(0)
      assert.strictEqual(yield* result(fiber), row.over)
    }).pipe(within(row, name, 0))
  )
  it.effect("before its time and at it", () =>
    Effect.gen(function* () {
      const fiber = yield* row.begin(() => {})
      yield* TestClock.adjust(justBefore)
      assert.strictEqual(yield* result(fiber), "waiting")
      yield* TestClock.adjust(1)
      assert.strictEqual(yield* result(fiber), row.over)
    }).pipe(within(row, name, row.value))
  )
  it.effect("off", () =>
    Effect.gen(function* () {
      let free = Effect.void
      const fiber = yield* row.begin((freed) => (free = freed))
      yield* TestClock.adjust("1000 days")
      assert.strictEqual(yield* result(fiber), "waiting")
      yield* free
    }).pipe(within(row, name, "off"))
  )
})
