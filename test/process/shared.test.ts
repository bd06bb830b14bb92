// Cases from the field with one real process that several sessions share. Waits are for what the agent does.
import { mkdtemp, readFile, rm } from "node:fs/promises"
import { tmpdir } from "node:os"
import { assert, describe, it } from "@effect/vitest"
import { AgentLauncher, AgentProfile, Sidecar } from "acp-sidecar"
import type { Session, SidecarEvent, Vm } from "acp-sidecar"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import { beside, soFar, textOf, until } from "../support/events.ts"
import { faulty, jsonOf, layer, openVm, texts, untilText, wrapped } from "../support/faultyAgent.ts"
import { newMark, running, untilGone, untilRunning } from "../support/processes.ts"

const share = (
  profile: AgentProfile.AgentProfile,
  options: Parameters<typeof AgentProfile.sharing>[0] = {}
): AgentProfile.AgentProfile => ({ ...profile, share: AgentProfile.sharing(options) })
const shared = (...switches: ReadonlyArray<string>) => share(faulty(...switches))

const openAll = (
  vm: Vm.Vm,
  count: number,
  agent: AgentProfile.AgentProfile,
  options: Partial<Vm.SessionOptions> = {}
) =>
  Effect.forEach(Array.from({ length: count }), () => vm.openSession({ ...options, agent }), {
    concurrency: "unbounded"
  })

/** Each takes a second or two where nothing else runs. */
const slowly = { concurrent: true, timeout: 120_000 }

const hosts = Effect.flatMap(Sidecar.Sidecar, (sidecar) => Effect.map(sidecar.describe, (info) => info.hosts))
const pids = (sessions: ReadonlyArray<Session.Session>) => new Set(sessions.map((session) => session.pid))

/** Each of them does a turn, all at once, and gets what is its own. */
const allPrompt = (sessions: ReadonlyArray<Session.Session>) =>
  Effect.forEach(
    sessions,
    Effect.fnUntraced(function* (session) {
      const turn = yield* session.submit(`{text=own ${session.id}}`)
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      assert.deepStrictEqual(yield* texts(turn), [`own ${session.id}`, "chunk 0"])
    }),
    { concurrency: "unbounded", discard: true }
  )

const hung = Effect.fnUntraced(function* (session: Session.Session, text = "{hang}") {
  const turn = yield* session.submit(text)
  yield* untilText(turn, "chunk 0")
  return turn
})

/** What a session said of its end, which it says once. */
const endOf = Effect.fnUntraced(function* (session: Session.Session) {
  yield* until(session, "SessionEnded")
  const ends = (yield* soFar(session)).filter((event) => event._tag === "SessionEnded")
  assert.strictEqual(ends.length, 1)
  return ends[0] as SidecarEvent.SessionEnded
})

const failure = (turn: Session.Turn) => Effect.map(Effect.flip(turn.await), ({ reason }) => reason)

/** Why a session could not be opened. */
const refusal = (opening: Effect.Effect<unknown, Vm.OpenSessionError>) =>
  Effect.map(Effect.flip(opening), (error) => {
    if (error._tag !== "AgentStartFailed") return assert.fail(error.message)
    return error.reason
  })

const opened = (vm: Vm.Vm, options: Vm.SessionOptions) => Effect.scoped(vm.openSession(options))

const logFile = Effect.acquireRelease(
  Effect.promise(() => mkdtemp(`${tmpdir()}/acp-sidecar-`)),
  (folder) => Effect.promise(() => rm(folder, { recursive: true }))
).pipe(Effect.map((folder) => `${folder}/log`))

/** The methods that an agent was called with. */
const calls = (file: string) =>
  Effect.map(
    Effect.promise(() => readFile(file, "utf8")),
    (text) =>
      text
        .split("\n")
        .filter((line) => line.startsWith("{"))
        .map((line) => (JSON.parse(line) as { readonly method?: string }).method ?? "")
  )

const eventually = (holds: Effect.Effect<boolean, never, Sidecar.Sidecar>) =>
  Effect.repeat(holds, { until: (it) => it, schedule: Schedule.spaced("10 millis") })

describe("a process that sessions share", slowly, () => {
  it.live("B01: outlives the close of some, and is gone with all of its group some time after the last", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const agent = share(wrapped("ignore-term", "ignore-eof", `child=${mark}:ignore-term`))
      const [first, ...others] = yield* openAll(vm, 3, agent)
      assert.strictEqual((yield* first!.prompt(`{child=${mark}:ignore-term+stdout}`))._tag, "Completed")
      // The shell, the agent and two grandchildren.
      yield* untilRunning(mark, 4)
      yield* first!.close
      yield* allPrompt(others)
      assert.strictEqual((yield* running(mark)).length, 4)
      for (const session of others) yield* session.close
      yield* untilGone(mark)
      yield* eventually(Effect.map(hosts, (all) => all.length === 0))
    }).pipe(Effect.provide(layer({ killGrace: "300 millis", hostIdleTime: "200 millis" })))
  )

  it.live("B02: interrupting the owner of the sidecar ends it, whatever its sessions are doing", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const agent = share(wrapped("ignore-term", "ignore-eof", `child=${mark}:ignore-term+stdout`))
      const owner = yield* beside(
        Effect.gen(function* () {
          const vm = yield* openVm()
          const sessions = yield* openAll(vm, 3, agent)
          yield* hung(sessions[0]!)
          yield* hung(sessions[1]!, "{hang} {ignore-cancel}")
          yield* vm.openSession({ agent: { ...agent, name: "another" } })
          return yield* Effect.never
        }).pipe(Effect.scoped, Effect.provide(layer({ killGrace: "300 millis", cancelGrace: "300 millis" })))
      )
      yield* untilRunning(mark, 6)
      yield* Fiber.interrupt(owner)
      assert.deepStrictEqual(yield* running(mark), [])
    })
  )

  it.live("B02: that is still starting is ended when the last of those who wait for it goes away", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      for (const point of ["initialize", "session/new"]) {
        // One that has not started is worth no idle time.
        const idleTime = point === "initialize" ? "1 hour" : 0
        const agent = share(wrapped("ignore-eof", `mark=${mark}`, `hang-at=${point}`), { idleTime })
        const openings = yield* Effect.forEach(Array.from({ length: 3 }), () => beside(opened(vm, { agent })))
        yield* untilRunning(mark, 2)
        for (const opening of openings.slice(1)) yield* Fiber.interrupt(opening)
        assert.strictEqual((yield* running(mark)).length, 2, point)
        yield* Fiber.interrupt(openings[0]!)
        yield* untilGone(mark)
        assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
        yield* eventually(Effect.map(hosts, (all) => all.length === 0))
      }
    }).pipe(Effect.provide(layer({ killGrace: "300 millis" })))
  )

  it.live("B06, B09: serves 50 rounds of open, prompt and close, and keeps nothing of them", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const agent = shared("close", `mark=${mark}`)
      for (let round = 0; round < 50; round++) {
        const session = yield* vm.openSession({ agent })
        assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
        yield* session.close
      }
      assert.strictEqual((yield* running(mark)).length, 1)
      const [host, ...others] = yield* hosts
      assert.deepStrictEqual(others, [])
      assert.deepInclude(host!, { leases: 0, sessions: [], restarts: 0 })
      assert.deepStrictEqual(host!.kept, { routes: 0, earlyUpdates: 0, earlyBytes: 0, tombstones: 50, left: 0 })
      assert.deepInclude(yield* vm.describe, { opening: 0, activePrompts: 0, sessions: [] })
      // Room for another process is made by its end, which is what its idle time would bring.
      const alone = yield* vm.openSession({ agent: faulty(`mark=${mark}`) })
      const [left] = yield* untilRunning(mark, 1)
      assert.strictEqual(left!.pid, alone.pid)
    }).pipe(Effect.provide(layer({ hostIdleTime: "1 hour", maxHosts: 1 })))
  )

  it.live("B06: without an idle time is a new one each round, and never two at once", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const seen = new Set<number | undefined>()
      for (let round = 0; round < 4; round++) {
        const session = yield* vm.openSession({ agent: shared(`mark=${mark}`) })
        assert.deepStrictEqual(
          (yield* running(mark)).map(({ pid }) => pid),
          [session.pid!]
        )
        seen.add(session.pid)
        assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
        yield* session.close
      }
      assert.strictEqual(seen.size, 4)
      yield* untilGone(mark)
    }).pipe(Effect.provide(layer({ hostIdleTime: 0 })))
  )

  it.live(
    "B08: that never answers initialize is killed once for all who wait, each time, and dispose is not held up",
    () =>
      Effect.gen(function* () {
        const mark = newMark()
        const sidecar = yield* Sidecar.Sidecar
        const vm = yield* openVm()
        const agent = share(AgentProfile.make({ command: ["/bin/sh", "-c", "trap '' TERM; cat >/dev/null; :", mark] }))
        for (let attempt = 0; attempt < 3; attempt++) {
          const errors = yield* Effect.forEach(Array.from({ length: 4 }), () => Effect.flip(opened(vm, { agent })), {
            concurrency: "unbounded"
          })
          for (const error of errors) {
            assert.deepInclude(error, { _tag: "AgentStartFailed", phase: "initialize" })
            assert.isTrue(error._tag === "AgentStartFailed" && error.reason._tag === "StartTimedOut", error.message)
          }
          assert.deepStrictEqual(yield* running(mark), [])
          assert.deepStrictEqual(yield* hosts, [])
        }
        // Three times is enough.
        assert.strictEqual((yield* refusal(opened(vm, { agent })))._tag, "StartHeldBack")
        assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
        const other = { ...agent, name: "other", env: { OTHER: "1" } }
        const waiting = yield* Effect.forEach(Array.from({ length: 3 }), () =>
          beside(Effect.flip(opened(vm, { agent: other, startTimeout: "1 minute" })))
        )
        yield* untilRunning(mark, 1)
        yield* sidecar.dispose
        assert.deepStrictEqual(yield* running(mark), [])
        for (const one of waiting) assert.strictEqual((yield* Fiber.join(one))._tag, "Disposed")
      }).pipe(Effect.provide(layer({ startTimeout: "2 seconds", killGrace: "200 millis" })))
  )

  it.live("B10: is gone, with its children, after 20 sessions that nobody used, told or not", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      for (const switches of [["close"], ["close", "hang-at=session/close"], ["ignore-eof"]]) {
        const sessions = yield* openAll(vm, 20, shared(...switches, `mark=${mark}`, `child=${mark}`))
        assert.strictEqual(pids(sessions).size, 1)
        for (const session of sessions) assert.strictEqual((yield* endOf(session)).reason, "idle")
        yield* untilGone(mark)
        assert.deepInclude(yield* vm.describe, { opening: 0, sessions: [] })
      }
    }).pipe(
      Effect.provide(
        layer({
          sessionIdleTimeout: "300 millis",
          hostIdleTime: "100 millis",
          closeTimeout: "200 millis",
          killGrace: "300 millis"
        })
      )
    )
  )

  it.live("B11: and never answers session/close costs each close its budget alone, and the others go on", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const sessions = yield* openAll(vm, 5, shared("close", "hang-at=session/close", `mark=${mark}`))
      const closing = yield* beside(
        Effect.forEach(sessions.slice(2), (session) => session.close, { concurrency: "unbounded" })
      )
      yield* allPrompt(sessions.slice(0, 2))
      yield* Fiber.join(closing)
      yield* allPrompt(sessions.slice(0, 2))
      const [host] = yield* hosts
      assert.strictEqual(host!.leases, 2)
      assert.strictEqual((yield* running(mark)).length, 1)
    }).pipe(Effect.provide(layer({ closeTimeout: "300 millis" })))
  )

  it.live("B12: gives back the permits of all turns, whatever way they end", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm()
      const agent = shared("close")
      const [one, two] = yield* openAll(vm, 2, agent)
      assert.strictEqual((yield* one!.prompt("done"))._tag, "Completed")
      assert.strictEqual((yield* Effect.flip(two!.prompt("{error=-32603}")))._tag, "TurnFailed")
      assert.strictEqual((yield* Effect.flip(one!.prompt("{bad-result}")))._tag, "TurnFailed")
      assert.strictEqual((yield* (yield* hung(two!)).cancel)._tag, "Cancelled")
      // Cut off alone, with its place.
      const stubborn = yield* (yield* hung(two!, "{hang} {ignore-cancel} {ignore-close}")).cancel
      assert.isTrue(stubborn._tag === "Cancelled" && stubborn.escalation === "quarantined", JSON.stringify(stubborn))
      const three = yield* vm.openSession({ agent })
      const held = yield* hung(three)
      yield* three.close
      assert.strictEqual((yield* held.outcome)._tag, "Cancelled")
      assert.strictEqual((yield* Effect.flip(one!.prompt("{exit=3}")))._tag, "TurnFailed")
      assert.strictEqual((yield* (yield* vm.openSession({ agent })).prompt("last"))._tag, "Completed")
      const info = yield* sidecar.describe
      assert.strictEqual(info.activePrompts, 0)
      assert.strictEqual(info.vms[0]?.activePrompts, 0)
    }).pipe(
      Effect.provide(
        layer({ maxPromptsPerVm: 1, maxPromptsPerSidecar: 1, cancelGrace: "300 millis", closeTimeout: "300 millis" })
      )
    )
  )
})

describe("the death of a process that sessions share", slowly, () => {
  it.live.each([
    ["{exit=134}", { code: 134, signal: null }, "exiting with 134"],
    ["{kill=SIGKILL}", { code: null, signal: "SIGKILL" }, "killing itself with SIGKILL"]
  ] as const)(
    "B14, B16: tells each of its sessions once, with evidence (%s), and the next open works",
    ([how, exit, said]) =>
      Effect.gen(function* () {
        const mark = newMark()
        const vm = yield* openVm()
        const agent = shared(`mark=${mark}`)
        const sessions = yield* openAll(vm, 4, agent)
        const turns = [yield* hung(sessions[0]!), yield* hung(sessions[1]!)]
        turns.push(yield* sessions[2]!.submit(how))
        for (const turn of turns) {
          const reason = yield* failure(turn)
          assert.deepInclude(reason, { _tag: "ProcessExited", ...exit })
          assert.isTrue(reason._tag === "ProcessExited" && reason.stderrTail.includes(said))
        }
        for (const session of sessions) {
          const { detail, reason } = yield* endOf(session)
          assert.strictEqual(reason, "agent_exited")
          assert.include(detail, how === "{exit=134}" ? "134" : "SIGKILL")
          const refused = yield* Effect.flip(session.submit("more"))
          assert.deepInclude(refused, { _tag: "SessionUnusable", reason: "agent_exited" })
        }
        const next = yield* openAll(vm, 2, agent)
        yield* allPrompt(next)
        assert.strictEqual(pids([...next, ...sessions]).size, 2)
        const [host, ...others] = yield* hosts
        assert.deepStrictEqual(others, [])
        assert.deepInclude(host!, { restarts: 1, leases: 2 })
        assert.strictEqual((yield* running(mark)).length, 1)
      }).pipe(Effect.provide(layer()))
  )

  it.live("B16: while nobody has a turn is found at once, and the next open starts another", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const agent = shared()
      for (let round = 0; round < 3; round++) {
        const sessions = yield* openAll(vm, 2, agent)
        process.kill(sessions[0]!.pid!, "SIGKILL")
        for (const session of sessions) assert.strictEqual((yield* endOf(session)).reason, "agent_exited")
        const next = yield* vm.openSession({ agent })
        assert.notStrictEqual(next.pid, sessions[0]!.pid)
        yield* allPrompt([next])
        yield* next.close
      }
    }).pipe(Effect.provide(layer()))
  )

  it.live("B19: is told from its closed output, to all of its sessions, and the process is ended", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const sessions = yield* openAll(vm, 3, shared("ignore-eof", "ignore-term", `mark=${mark}`))
      const turn = yield* hung(sessions[0]!)
      const closing = yield* sessions[1]!.submit("{close-stdout} {wait=60000}")
      for (const one of [turn, closing]) {
        assert.deepInclude(yield* failure(one), { _tag: "TransportClosed", side: "stdout" })
      }
      for (const session of sessions) assert.strictEqual((yield* endOf(session)).reason, "agent_exited")
      yield* untilGone(mark)
    }).pipe(Effect.provide(layer({ killGrace: "300 millis" })))
  )

  it.live("B21: sends none of their prompts again, neither at once nor with the next process", () =>
    Effect.gen(function* () {
      const log = yield* logFile
      const vm = yield* openVm()
      const agent = shared(`log=${log}`)
      const sessions = yield* openAll(vm, 3, agent)
      const turns = [yield* hung(sessions[0]!), yield* hung(sessions[1]!)]
      const waiting = [yield* sessions[0]!.submit("never"), yield* sessions[1]!.submit("never")]
      turns.push(yield* sessions[2]!.submit("{chunks=0} {exit=7}"))
      for (const turn of turns) assert.deepInclude(yield* failure(turn), { _tag: "ProcessExited", code: 7 })
      for (const turn of waiting) assert.strictEqual((yield* Effect.flip(turn.await)).phase, "queued")
      yield* allPrompt([yield* vm.openSession({ agent })])
      const prompts = (yield* calls(log)).filter((method) => method === "session/prompt")
      assert.strictEqual(prompts.length, 4)
    }).pipe(Effect.provide(layer()))
  )
})

describe("one of the sessions of a process", slowly, () => {
  it.live("B15: that is silent for too long and doesn't end its turn is cut off alone", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const [silent, obedient, ...others] = yield* openAll(vm, 4, shared())
      const beside_ = yield* hung(others[0]!)
      const turns = [
        yield* silent!.submit("{hang} {ignore-cancel}", { idleTimeout: "300 millis" }),
        yield* obedient!.submit("{hang}", { idleTimeout: "300 millis" })
      ]
      const reasons = yield* Effect.forEach(turns, failure)
      assert.deepInclude(reasons[0], { _tag: "TurnTimedOut", deadline: "idle", escalation: "quarantined" })
      assert.deepInclude(reasons[1], { _tag: "TurnTimedOut", deadline: "idle", escalation: "none" })
      assert.strictEqual((yield* endOf(silent!)).reason, "quarantined")
      yield* allPrompt([obedient!, others[1]!])
      assert.strictEqual((yield* beside_.cancel)._tag, "Cancelled")
      yield* allPrompt([obedient!, ...others])
      const [host] = yield* hosts
      assert.deepInclude(host!, { leases: 3, restarts: 0, state: "ready" })
    }).pipe(Effect.provide(layer({ cancelGrace: "300 millis" })))
  )

  it.live("B17: whose cancelled turn ends with an error, or in other words, costs no one anything", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const [one, two, other] = yield* openAll(vm, 3, shared())
      const through = yield* hung(other!)
      for (const [session, how] of [
        [one!, "{cancel-error=-32800}"],
        [two!, "{cancel-stop=end_turn}"],
        [one!, "{cancel-late=50} {cancel-updates=3}"]
      ] as const) {
        const outcome = yield* (yield* hung(session, `{hang} ${how}`)).cancel
        assert.isTrue(outcome._tag === "Cancelled" && outcome.escalation === "none", JSON.stringify(outcome))
        yield* allPrompt([one!, two!])
      }
      assert.strictEqual((yield* through.cancel)._tag, "Cancelled")
      assert.deepInclude((yield* hosts)[0]!, { leases: 3, restarts: 0 })
    }).pipe(Effect.provide(layer()))
  )

  it.live("B18: that is closed, with a turn or without, is no crash, neither for it nor for the others", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* openVm()
      const sessions = yield* openAll(vm, 4, shared(`mark=${mark}`))
      const turns = yield* Effect.forEach(sessions, (session, index) =>
        hung(session, index === 1 ? "{hang} {ignore-cancel}" : "{hang}")
      )
      yield* sessions[0]!.close
      assert.deepInclude(yield* turns[0]!.outcome, { _tag: "Cancelled", by: "close" })
      assert.strictEqual((yield* endOf(sessions[0]!)).reason, "closed")
      assert.strictEqual((yield* running(mark)).length, 1)
      yield* sidecar.dispose
      assert.deepStrictEqual(yield* running(mark), [])
      for (const turn of turns.slice(1)) assert.deepInclude(yield* turn.outcome, { _tag: "Cancelled", by: "dispose" })
      for (const session of sessions.slice(1)) assert.strictEqual((yield* endOf(session)).reason, "disposed")
    }).pipe(Effect.provide(layer({ cancelGrace: "400 millis", killGrace: "500 millis" })))
  )

  it.live("B38: that asks its user holds others up at an agent that does one thing at a time, and is named", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const agent = shared("head-of-line", "close")
      const [asking, waiting] = yield* openAll(vm, 2, agent, { permission: "ask" })
      const turn = yield* asking!.submit("{permission}")
      const { permissionId } = yield* until(asking!, "PermissionAsked")

      const refused = yield* refusal(opened(vm, { agent, startTimeout: "500 millis" }))
      if (refused._tag !== "StartTimedOut") return assert.fail(refused.message)
      assert.deepStrictEqual(refused.blockedBy.length, 1)
      assert.include(refused.blockedBy[0], asking!.id)
      assert.include(refused.message, "share: false")
      // What it proposes helps.
      const alone = yield* vm.openSession({ agent, share: false })
      assert.notStrictEqual(alone.pid, asking!.pid)
      yield* allPrompt([alone])
      // Sent at once, as the agent may be able to take it; its own deadline ends it.
      const late = yield* waiting!.submit("late", { idleTimeout: "300 millis" })
      assert.isTrue(yield* late.dispatched)
      assert.deepInclude(yield* failure(late), { _tag: "TurnTimedOut", deadline: "idle" })

      yield* asking!.answer(permissionId, "allow")
      assert.strictEqual((yield* turn.await)._tag, "Completed")
      yield* allPrompt([asking!, yield* vm.openSession({ agent })])
      yield* eventually(Effect.map(hosts, ([host]) => host!.kept.left === 0))
      assert.deepInclude((yield* hosts)[0]!.kept, { routes: 2, earlyUpdates: 0 })
    }).pipe(Effect.provide(layer({ cancelGrace: "300 millis" })))
  )

  it.live("B39: that was the last leaves an idle process, which makes room for another kind of agent", () =>
    Effect.gen(function* () {
      const [old, next] = [newMark(), newMark()]
      const vm = yield* openVm()
      const session = yield* vm.openSession({ agent: shared("ignore-term", "ignore-eof", `mark=${old}`) })
      const refused = yield* Effect.flip(opened(vm, { agent: shared(`mark=${next}`) }))
      assert.deepInclude(refused, { _tag: "LimitExceeded", limit: "maxHosts", max: 1, used: 1 })
      yield* session.close
      const other = yield* vm.openSession({ agent: shared(`mark=${next}`) })
      assert.deepStrictEqual(yield* running(old), [])
      yield* allPrompt([other])
    }).pipe(Effect.provide(layer({ maxHosts: 1, hostIdleTime: "1 hour", killGrace: "200 millis" })))
  )
})

describe("sessions of one process", slowly, () => {
  it.live.each(["before", "same", "after"])(
    "B48: ten that are opened at once lose nothing that came around session/new (%s), in order",
    (when) =>
      Effect.gen(function* () {
        const vm = yield* openVm()
        const sessions = yield* openAll(vm, 10, shared(`early=5:${when}`))
        assert.strictEqual(pids(sessions).size, 1)
        // So that all that came after the answer is there too.
        for (const session of sessions) {
          assert.strictEqual((yield* session.prompt(`{text=own ${session.id}}`))._tag, "Completed")
        }
        for (const session of sessions) {
          assert.deepStrictEqual(
            (yield* soFar(session)).map(textOf).filter((text) => text !== ""),
            [...Array.from({ length: 5 }, (_, i) => `early ${i}`), `own ${session.id}`, "chunk 0"]
          )
        }
        assert.deepInclude((yield* hosts)[0]!.kept, { earlyUpdates: 0, earlyBytes: 0 })
      }).pipe(Effect.provide(layer()))
  )

  it.live("B51, B55: what still comes for one that was closed is counted, and reaches nobody", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const [one, two] = yield* openAll(vm, 2, shared())
      assert.strictEqual((yield* one!.prompt("{after=5:100}"))._tag, "Completed")
      const before = (yield* soFar(two!)).length
      yield* one!.close
      yield* eventually(Effect.map(hosts, ([host]) => host!.late === 5))
      assert.strictEqual((yield* soFar(two!)).length, before)
      const { unrouted } = yield* two!.describe
      assert.deepInclude(unrouted, { late: 5, buffered: 0, sample: one!.agentSessionId })
      yield* allPrompt([two!])
    }).pipe(Effect.provide(layer()))
  )

  it.live("B63: a flood whose reader has stalled costs neither a fast neighbour nor one in a long turn anything", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const [noisy, fast, long] = yield* openAll(vm, 3, shared())
      const flood = yield* noisy!.submit("{chunks=0} {flood=20000}")
      const stalled = Deferred.makeUnsafe<void>()
      const go = Deferred.makeUnsafe<void>()
      const reading = yield* beside(
        Stream.runCollect(
          Stream.tap(flood.updates, () => Effect.andThen(Deferred.succeed(stalled, undefined), Deferred.await(go)))
        )
      )
      yield* Deferred.await(stalled)
      const through = yield* long!.submit("{chunks=50:2}")
      for (let round = 0; round < 20; round++) yield* allPrompt([fast!])
      assert.strictEqual((yield* through.await)._tag, "Completed")
      assert.deepStrictEqual(
        yield* texts(through),
        Array.from({ length: 50 }, (_, i) => `chunk ${i}`)
      )
      assert.strictEqual((yield* flood.await)._tag, "Completed")
      assert.isUndefined(reading.pollUnsafe())
      yield* Deferred.succeed(go, undefined)
      const events = yield* Fiber.join(reading)
      // It is told what it has missed, and then gets the newest, in order.
      assert.isTrue(events.some((event) => event._tag === "Lagged"))
      assert.strictEqual(events.at(-1)?._tag, "TurnEnded")
      assert.strictEqual(events.map(textOf).at(-2), "flood 19999")
      yield* allPrompt([noisy!, fast!, long!])
    }).pipe(Effect.provide(layer({ mailboxCapacity: 1000 })))
  )

  it.live("B70: sign in once for all, and are told how when they are not told to", () =>
    Effect.gen(function* () {
      const log = yield* logFile
      const vm = yield* openVm()
      const agent = shared("auth", `log=${log}`)
      const refusals = yield* Effect.forEach(Array.from({ length: 3 }), () => refusal(opened(vm, { agent })), {
        concurrency: "unbounded"
      })
      for (const reason of refusals) {
        assert.deepInclude(reason, { _tag: "AuthRequired", methods: [{ id: "login", name: "Log in" }] })
      }
      assert.notInclude(yield* calls(log), "authenticate")
      yield* allPrompt(yield* openAll(vm, 10, agent, { authenticate: "login" }))
      assert.strictEqual((yield* calls(log)).filter((method) => method === "authenticate").length, 1)
      assert.strictEqual((yield* calls(log)).filter((method) => method === "initialize").length, 1)
    }).pipe(Effect.provide(layer({ hostIdleTime: "1 hour" })))
  )

  it.live(
    "B72, B73: see the environment of their process: no other token, nothing of another session or of the host",
    () =>
      Effect.gen(function* () {
        const vm = yield* openVm({ env: { OF_VM: "vm" } })
        const agent = { ...shared(), sessionEnv: ["AGENT_ID"] }
        const open = (token: string, id: string) =>
          vm.openSession({
            agent,
            env: { ANTHROPIC_AUTH_TOKEN: token, AGENT_ID: id, CALLER: id },
            sessionEnv: ["CALLER"]
          })
        const [one, two, other] = [
          yield* open("first", "id-1"),
          yield* open("first", "id-2"),
          yield* open("second", "id-3")
        ]
        assert.strictEqual(one.pid, two.pid)
        assert.notStrictEqual(one.pid, other.pid)
        for (const [session, token] of [
          [one, "first"],
          [two, "first"],
          [other, "second"]
        ] as const) {
          const env = yield* jsonOf(yield* session.submit("{env} {chunks=0}"))
          assert.deepInclude(env, { ANTHROPIC_AUTH_TOKEN: token, OF_VM: "vm" })
          assert.notInclude(JSON.stringify(env), "id-")
          assert.notProperty(env, "SECRET_OF_THE_HOST")
          assert.notInclude(JSON.stringify(env), token === "first" ? "second" : "first")
        }
        // A process of its own does get them.
        const alone = yield* vm.openSession({ agent, env: { AGENT_ID: "id-4" }, share: false })
        assert.deepInclude(yield* jsonOf(yield* alone.submit("{env} {chunks=0}")), { AGENT_ID: "id-4" })
      }).pipe(
        Effect.provide(layer()),
        Effect.provideService(AgentLauncher.HostEnvironment, () => ({ ...process.env, SECRET_OF_THE_HOST: "hidden" }))
      )
  )

  it.live("B78: one that is resumed gets what the agent replays, as such, and no other does", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      const agent = shared("resume-replays=20")
      const other = yield* vm.openSession({ agent })
      const turn = yield* hung(other)
      const from = { agentSessionId: "old", method: "resume", replay: "keep" } as const
      const [kept, dropped] = yield* Effect.all(
        [
          vm.openSession({ agent, from }),
          vm.openSession({ agent, from: { agentSessionId: "older", method: "resume" } })
        ],
        { concurrency: "unbounded" }
      )
      const replayed = (yield* soFar(kept)).filter((event) => event._tag === "Update")
      assert.deepStrictEqual(
        replayed.map(textOf),
        Array.from({ length: 20 }, (_, i) => `replay ${i}`)
      )
      assert.isTrue(replayed.every((event) => event.replay === true))
      assert.deepStrictEqual(yield* soFar(dropped), [])
      yield* allPrompt([kept, dropped])
      assert.strictEqual((yield* turn.cancel)._tag, "Cancelled")
      assert.deepStrictEqual(yield* texts(turn), ["chunk 0"])
    }).pipe(Effect.provide(layer()))
  )

  it.live("B82: are of one process only where their profile says so, and then still have folders of their own", () =>
    Effect.gen(function* () {
      const vm = yield* openVm()
      assert.strictEqual(pids(yield* openAll(vm, 2, faulty())).size, 2)
      const here = yield* vm.openSession({ agent: shared() })
      const there = yield* vm.openSession({ agent: shared(), cwd: "/" })
      assert.strictEqual(here.pid, there.pid)
      const folders = yield* Effect.forEach([here, there], (session) =>
        Effect.flatMap(session.submit("{cwd} {chunks=0}"), jsonOf)
      )
      assert.deepStrictEqual(
        folders.map(({ session }) => session),
        [tmpdir(), "/"]
      )
    }).pipe(Effect.provide(layer()))
  )

  it.live.each([10, 30])(
    "C04: 20,000 updates of one turn arrive in order while %i others prompt, and none of them fails",
    (count) =>
      Effect.gen(function* () {
        const vm = yield* openVm()
        const [noisy, through, ...others] = yield* openAll(vm, count + 1, share(faulty(), { maxSessions: 50 }))
        assert.strictEqual(pids([noisy!, through!, ...others]).size, 1)
        const beside_ = yield* hung(through!)
        const flood = yield* noisy!.submit("{chunks=0} {flood=20000}")
        const reading = yield* beside(Stream.runCollect(flood.updates))
        let rounds = 0
        // At least once each, and for as long as it floods.
        do {
          yield* allPrompt(others)
          rounds++
        } while (reading.pollUnsafe() === undefined && rounds < 1000)
        assert.strictEqual((yield* flood.await)._tag, "Completed")
        const received = (yield* Fiber.join(reading)).map(textOf).filter((text) => text !== "")
        assert.strictEqual(received.length, 20_000)
        assert.isTrue(received.every((text, index) => text === `flood ${index}`))
        assert.strictEqual((yield* beside_.cancel)._tag, "Cancelled")
        yield* allPrompt([noisy!, through!, ...others])
      }).pipe(Effect.provide(layer()))
  )

  it.live(
    "that an agent which carries one refuses cost the first nothing, and have processes of their own when told so",
    () =>
      Effect.gen(function* () {
        const mark = newMark()
        const vm = yield* openVm()
        const agent = shared("one-session", `mark=${mark}`)
        const first = yield* vm.openSession({ agent })
        const turn = yield* hung(first)
        const exits = yield* Effect.forEach(Array.from({ length: 3 }), () => Effect.exit(opened(vm, { agent })), {
          concurrency: "unbounded"
        })
        assert.isTrue(exits.every(Exit.isFailure))
        assert.strictEqual((yield* refusal(opened(vm, { agent })))._tag, "OneSessionOnly")
        assert.deepInclude((yield* hosts)[0]!, { leases: 1, sessions: [first.id] })
        yield* allPrompt(yield* openAll(vm, 2, agent, { share: false }))
        assert.strictEqual((yield* turn.cancel)._tag, "Cancelled")
        yield* allPrompt([first])
        assert.strictEqual((yield* running(mark)).length, 3)
      }).pipe(Effect.provide(layer()))
  )
})
