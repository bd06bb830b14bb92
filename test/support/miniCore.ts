// A miniature of the core, small enough to read and built of the same parts: sessions as scopes, turns in a FiberMap,
// admission by a Semaphore, hosts in an RcMap, questions as Deferreds, updates through a bounded Queue. A `bug` puts a
// subtly wrong part in the place of a correct one: it tests the tests.
import { type Machine, Simulation } from "acp-sidecar/testing"
import * as Data from "effect/Data"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberMap from "effect/FiberMap"
import * as Latch from "effect/Latch"
import * as Queue from "effect/Queue"
import * as RcMap from "effect/RcMap"
import * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import { TestClock } from "effect/testing"

class AgentGone extends Data.TaggedError("AgentGone") {}

/** What the agent does with a prompt. */
export type Script = "echo" | "slow" | "ask" | "flood" | "silent"
export type Outcome = "completed" | "cancelled" | "failed"
export type Bug = "admissionGap" | "permitGap" | "cancelRace" | "hostLeak"

interface Host {
  readonly crashed: Deferred.Deferred<never, AgentGone>
}

interface Session {
  readonly host: Host
  readonly turns: FiberMap.FiberMap<number>
  readonly questions: Map<number, Deferred.Deferred<boolean>>
  readonly mailbox: Queue.Queue<string>
  readonly close: Effect.Effect<void>
}

/** Live counts. All but `peak` and `started` must be 0 once the core is closed. */
export interface Gauges {
  hosts: number
  sessions: number
  running: number
  questions: number
  permitsTaken: number
  /** Most turns that ever ran at once. */
  peak: number
  started: number
}

export interface MiniCore {
  readonly gauges: Gauges
  /** Every terminal event of every turn. */
  readonly ended: ReadonlyArray<readonly [turn: number, outcome: Outcome]>
  readonly open: Effect.Effect<void>
  readonly close: (session: number) => Effect.Effect<void>
  readonly prompt: (session: number, script: Script) => Effect.Effect<void>
  readonly cancel: (session: number) => Effect.Effect<void>
  readonly answer: (session: number) => Effect.Effect<void>
  readonly crash: Effect.Effect<void>
}

export const make = Effect.fnUntraced(function* (options: {
  readonly limit: number
  readonly bug?: Bug | undefined
}): Effect.fn.Return<MiniCore, never, Scope.Scope> {
  const { bug, limit } = options
  const root = yield* Effect.scope
  const gauges: Gauges = { hosts: 0, sessions: 0, running: 0, questions: 0, permitsTaken: 0, peak: 0, started: 0 }
  const ended: Array<readonly [number, Outcome]> = []
  const sessions = new Map<number, Session>()
  const liveHosts = new Set<Host>()
  const permits = yield* Semaphore.make(limit)
  const room = yield* Latch.make(true)
  let opened = 0
  let turns = 0

  const hosts = yield* RcMap.make({
    lookup: () =>
      Effect.acquireRelease(
        Effect.sync(() => {
          const host: Host = { crashed: Deferred.makeUnsafe() }
          liveHosts.add(host)
          gauges.hosts++
          return host
        }),
        (host) => Effect.sync(() => liveHosts.delete(host) && gauges.hosts--)
      ),
    idleTimeToLive: "1 minute"
  })

  /** Counts `key` up while `work` runs. */
  const counted = <A, E>(key: keyof Gauges, work: Effect.Effect<A, E>): Effect.Effect<A, E> =>
    Effect.acquireUseRelease(
      Effect.sync(() => gauges[key]++),
      () => work,
      () => Effect.sync(() => gauges[key]--)
    )

  const take = Effect.andThen(
    permits.take(1),
    Effect.sync(() => gauges.permitsTaken++)
  )
  const release = Effect.andThen(
    Effect.sync(() => gauges.permitsTaken--),
    permits.release(1)
  )
  const admitted = <A, E>(work: Effect.Effect<A, E>): Effect.Effect<A, E> => {
    switch (bug) {
      case "admissionGap": // BUG: looks first and takes later, so that two turns may both see the last permit.
        return Effect.suspend(() => {
          if (gauges.permitsTaken < limit) {
            return Effect.andThen(
              Simulation.trace("admitted"),
              Effect.ensuring(counted("permitsTaken", work), room.open)
            )
          }
          room.closeUnsafe()
          return Effect.andThen(room.await, admitted(work))
        })
      case "permitGap": // BUG: an interrupt between the two operations loses the permit.
        return Effect.andThen(take, Effect.ensuring(work, release))
      default:
        return permits.withPermit(counted("permitsTaken", work))
    }
  }

  const agent = (session: Session, turn: number, script: Script): Effect.Effect<unknown> => {
    switch (script) {
      case "echo":
        return Effect.andThen(Effect.yieldNow, Queue.offer(session.mailbox, `t${turn} hello`))
      case "slow":
        return Effect.sleep("10 seconds")
      case "flood":
        return Effect.forEach([1, 2, 3, 4, 5, 6], (i) => Queue.offer(session.mailbox, `t${turn} update ${i}`))
      case "silent":
        return Effect.never
      case "ask": {
        const answer = Deferred.makeUnsafe<boolean>()
        return counted(
          "questions",
          Effect.acquireUseRelease(
            Effect.sync(() => session.questions.set(turn, answer)),
            () => Deferred.await(answer),
            () => Effect.sync(() => session.questions.delete(turn))
          )
        )
      }
    }
  }

  const end = (turn: number, exit: Exit.Exit<unknown, unknown>): Effect.Effect<void> =>
    Effect.suspend(() => {
      if (bug === "cancelRace" && ended.some(([other]) => other === turn)) return Effect.void
      const outcome = Exit.isSuccess(exit) ? "completed" : Exit.hasInterrupts(exit) ? "cancelled" : "failed"
      return Effect.andThen(
        Simulation.trace(`t${turn} ${outcome}`),
        Effect.sync(() => void ended.push([turn, outcome]))
      )
    })

  // The mask comes first and the span inside it: an interrupt before the mask would swallow the turn without an event.
  const runTurn = (session: Session, turn: number, script: Script) =>
    Effect.uninterruptibleMask((restore) => {
      gauges.started++
      const work = Effect.andThen(
        Effect.sync(() => (gauges.peak = Math.max(gauges.peak, gauges.running))),
        Effect.raceFirst(agent(session, turn, script), Deferred.await(session.host.crashed))
      )
      const call = Effect.withSpan(admitted(counted("running", work)), "Turn.run")
      return Effect.flatMap(Effect.exit(restore(call)), (exit) => end(turn, exit))
    })

  const onSession = (index: number, f: (session: Session) => Effect.Effect<unknown>): Effect.Effect<void> =>
    Effect.suspend(() => (sessions.size === 0 ? Effect.void : f([...sessions.values()][index % sessions.size]!))).pipe(
      Effect.asVoid
    )

  return {
    gauges,
    ended,
    open: Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const id = opened++
        const scope = yield* Scope.fork(bug === "hostLeak" ? yield* Scope.make() : root)
        const close = Scope.close(scope, Exit.void)
        const session = yield* Effect.gen(function* () {
          const host = yield* RcMap.get(hosts, "agent")
          const turns = yield* FiberMap.make<number>()
          const mailbox = yield* Effect.acquireRelease(Queue.bounded<string>(4), Queue.shutdown)
          yield* Effect.forkScoped(Effect.forever(Effect.flatMap(Queue.take(mailbox), Simulation.trace)))
          return { host, turns, mailbox, questions: new Map(), close } satisfies Session
        }).pipe(
          Scope.provide(scope),
          restore,
          Effect.onError(() => close)
        )
        // The finalizer comes first: a session that can be seen can be closed, and must then be removed.
        yield* Scope.addFinalizer(
          scope,
          Effect.sync(() => sessions.delete(id) && gauges.sessions--)
        )
        yield* Effect.sync(() => scope.state._tag !== "Closed" && sessions.set(id, session) && gauges.sessions++)
        yield* Simulation.trace(`s${id} open`)
      })
    ).pipe(Effect.withSpan("Session.open")),
    close: (index) => onSession(index, (session) => session.close).pipe(Effect.withSpan("Session.close")),
    prompt: (index, script) =>
      onSession(index, (session) => {
        const turn = turns++
        return FiberMap.run(session.turns, turn, runTurn(session, turn, script), { startImmediately: true })
      }),
    cancel: (index) =>
      onSession(index, (session) => {
        const turn = [...session.turns][0]?.[0]
        if (turn === undefined) return Effect.void
        const remove = FiberMap.remove(session.turns, turn)
        // BUG: says so first and stops the turn later, which may end by itself in between.
        return bug === "cancelRace" ? Effect.andThen(end(turn, Exit.interrupt()), remove) : remove
      }).pipe(Effect.withSpan("Turn.cancel")),
    answer: (index) =>
      onSession(index, (session) => {
        const [answer] = session.questions.values()
        return answer === undefined ? Effect.void : Deferred.succeed(answer, true)
      }),
    crash: Effect.suspend(() => {
      const [host] = liveHosts
      if (host === undefined) return Effect.void
      return Effect.andThen(RcMap.invalidate(hosts, "agent"), Deferred.fail(host.crashed, new AgentGone()))
    }).pipe(Effect.withSpan("Agent.crash"))
  }
})

export type Command =
  | { readonly _tag: "Open" | "Crash" }
  | { readonly _tag: "Close" | "Cancel" | "Answer"; readonly session: number }
  | { readonly _tag: "Prompt"; readonly session: number; readonly script: Script }
  | { readonly _tag: "Leave"; readonly caller: number }
  | { readonly _tag: "Advance"; readonly seconds: number }

/** What is certain whatever the interleaving: how often each thing was asked for. */
export interface Model {
  readonly opens: number
  readonly leaves: number
  readonly closes: number
  readonly prompts: number
  readonly cancels: number
  readonly crashes: number
}

const counts: Partial<Record<Command["_tag"], keyof Model>> = {
  Open: "opens",
  Leave: "leaves",
  Close: "closes",
  Prompt: "prompts",
  Cancel: "cancels",
  Crash: "crashes"
}

/** These checks run after each command of each run: an assertion library would take half of the time. */
const ensure = (condition: boolean, message: string): void => {
  if (!condition) throw new Error(message)
}

const limit = 2

export const machine = (bug?: Bug): Machine.Machine<MiniCore, Model, Command> => ({
  start: make({ limit, bug }),
  model: { opens: 0, leaves: 0, closes: 0, prompts: 0, cancels: 0, crashes: 0 },
  generate: (prng) => {
    const session = prng.int(3)
    const kind = prng.int(104)
    if (kind < 15) return { _tag: "Open" }
    if (kind < 50) {
      return { _tag: "Prompt", session, script: prng.pick(["echo", "echo", "slow", "ask", "flood", "silent"]) }
    }
    if (kind < 68) return { _tag: "Cancel", session }
    if (kind < 76) return { _tag: "Answer", session }
    if (kind < 84) return { _tag: "Close", session }
    if (kind < 88) return { _tag: "Crash" }
    if (kind < 92) return { _tag: "Leave", caller: session }
    return { _tag: "Advance", seconds: prng.pick([1, 5, 10, 70]) }
  },
  next: (model, command) => {
    const key = counts[command._tag]
    return key === undefined ? model : { ...model, [key]: model[key] + 1 }
  },
  perform: (core, command, callers) => {
    switch (command._tag) {
      case "Open":
        return core.open
      case "Close":
        return core.close(command.session)
      case "Prompt":
        return core.prompt(command.session, command.script)
      case "Cancel":
        return core.cancel(command.session)
      case "Answer":
        return core.answer(command.session)
      case "Crash":
        return core.crash
      case "Leave":
        return callers.leave(command.caller)
      case "Advance":
        return TestClock.adjust(`${command.seconds} seconds`)
    }
  },
  always: ({ ended, gauges }, model) => {
    ensure(gauges.peak <= limit, "too many turns at once")
    ensure(new Set(ended.map(([turn]) => turn)).size === ended.length, "two terminal events for one turn")
    ensure(gauges.started <= model.prompts, "a turn without a prompt")
    ensure(ended.length <= gauges.started, "a terminal event without a turn")
  },
  settled: ({ ended, gauges }, model) => {
    const { cancels, closes, crashes, leaves, opens } = model
    ensure(gauges.sessions <= opens, "sessions opened by nobody")
    ensure(gauges.sessions >= opens - closes - leaves, "sessions closed by nobody")
    ensure(gauges.sessions === 0 || gauges.hosts > 0, "a session without a host")
    const count = (outcome: Outcome) => ended.filter((event) => event[1] === outcome).length
    ensure(crashes > 0 || count("failed") === 0, "failed without a crash")
    ensure(closes > 0 || count("cancelled") <= cancels, "cancelled without a cancel")
    // Nothing can run now, so no turn may wait while a permit is free.
    const waiting = gauges.started - ended.length - gauges.running
    ensure(gauges.permitsTaken === limit || waiting === 0, "a turn waits beside a free permit")
    ensure(gauges.permitsTaken === gauges.running, "a permit taken by nobody")
  },
  closed: ({ ended, gauges }) => {
    ensure(ended.length === gauges.started, "a turn without a terminal event")
    for (const key of ["hosts", "questions", "permitsTaken", "running", "sessions"] as const) {
      ensure(gauges[key] === 0, `${gauges[key]} ${key} left`)
    }
  }
})
