// SIGKILL of the app, of its sidecar, of an agent, each at every step, over both transports: what the other two do then.
// The agent that is struck obeys neither the end of its input nor TERM; `beside` is another one's session that obeys.
import { afterAll, assert, describe, it } from "@effect/vitest"
import { AgentProfile, SidecarClient } from "acp-sidecar"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import * as NodeConnector from "../../src/NodeConnector.ts"
import {
  agentCommand,
  type App,
  assertNothingLeft,
  type Line,
  type Part,
  pidOf,
  type Place,
  place,
  reach,
  type Row,
  start,
  type Step,
  steps,
  strike,
  type Transport,
  untilOnly,
  untilSo
} from "./killedApp.ts"

/** Milliseconds until all was over. Promised are 5 s; a test fails after 15 s, for machines that do other things too. */
const times: Array<Row & { readonly millis: number }> = []
afterAll(() => {
  const lines = (["client", "sidecar", "agent"] as const).flatMap((part) =>
    (["stdio", "socket"] as const).map((transport) => {
      const own = times.filter((one) => one.part === part && one.transport === transport)
      return `  ${part} over ${transport}: ${own.map(({ millis, step }) => `${step} ${Math.round(millis)}`).join(", ")}`
    })
  )
  process.stdout.write(`Milliseconds from SIGKILL until all that had to was over:\n${lines.join("\n")}\n`)
})
const note = (here: Place, millis: number): void => void times.push({ ...here.row, millis })

const matrix =
  (part: Part, body: (here: Place, app: App) => Effect.Effect<unknown, unknown, Scope.Scope>) =>
  (transport: Transport, sentences: Record<Step, string>) => {
    for (const step of steps) {
      it.live(`at ${step}, over ${transport}: ${sentences[step]}`, () =>
        Effect.gen(function* () {
          const here = yield* place({ part, step, transport })
          const app = yield* start(here)
          yield* body(here, app)
          assertNothingLeft(here)
        }).pipe(Effect.scoped)
      )
    }
  }

/** The app leaves by itself, with all that it has. */
const leave = Effect.fnUntraced(function* (here: Place, app: App) {
  app.tell("leave")
  yield* app.line("left")
  assert.deepStrictEqual(yield* app.exit, { code: 0, signal: null })
  yield* untilOnly(here)
})

const next = Effect.fnUntraced(function* (app: App, isSame: boolean) {
  app.tell("next")
  assert.deepStrictEqual(yield* app.line("next"), { next: "Completed", isSame, state: "ready" })
})

/** Another app in the same place, after all that was before. */
const anotherApp = (here: Place) =>
  Effect.gen(function* () {
    const other = yield* start(here)
    yield* next(other, true)
    yield* leave(here, other)
  }).pipe(Effect.scoped)

const isEarly = ({ row: { step } }: Place): boolean => step === "connect" || step === "handshake"

// The app.

/** An app that is connected to the same sidecar, in a turn of its own. */
const neighbour = Effect.fnUntraced(function* (here: Place) {
  const { sidecar } = yield* Effect.retry(
    Effect.flatMap(NodeConnector.socket(here.socket), (socket) =>
      SidecarClient.connect(socket, { client: "neighbour", role: "operator" })
    ),
    { schedule: Schedule.spaced("20 millis"), times: 500 }
  )
  const vm = yield* sidecar.openVm({ root: here.folder })
  const agent = AgentProfile.make({ name: "neighbour", command: agentCommand("neighbour", here.folder) })
  const session = yield* vm.openSession({ agent })
  const turn = yield* session.submit("{hang}")
  yield* turn.dispatched
  return { sidecar, session, turn }
})

const clientKilled = matrix("client", (here, app) =>
  Effect.gen(function* () {
    const { step, transport } = here.row
    if (transport === "stdio" || step === "handshake") {
      yield* reach(app, here)
      yield* strike(here, "client")
      note(here, yield* untilOnly(here))
      assertNothingLeft(here)
      return yield* anotherApp(here)
    }
    const scope = yield* Scope.make()
    const arriving = Scope.provide(neighbour(here), scope)
    const struck = Effect.andThen(reach(app, here), strike(here, "client"))
    const { session, sidecar, turn } =
      step === "connect"
        ? yield* Effect.andThen(struck, arriving)
        : yield* Effect.tap(
            Effect.map(Effect.all([arriving, reach(app, here)], { concurrency: "unbounded" }), ([arrived]) => arrived),
            strike(here, "client")
          )
    const took = yield* untilOnly(here, "sidecar", "neighbour")
    // All that counts is the neighbour's, as soon as what was the other's is closed.
    const isTrue = Effect.map(
      sidecar.describe,
      ({ activePrompts, activeVmCount, hosts, state }) =>
        state === "ready" && activePrompts === 1 && activeVmCount === 1 && hosts.length === 1
    )
    note(here, took + (yield* untilSo("the sidecar has only what is the neighbour's", isTrue)))
    assert.strictEqual((yield* turn.cancel)._tag, "Cancelled")
    assert.strictEqual((yield* session.prompt("next"))._tag, "Completed")
    yield* Scope.close(scope, Exit.void)
    yield* untilOnly(here)
    assertNothingLeft(here)
    yield* anotherApp(here)
  })
)

describe("C07, B03: an app that is killed", { concurrent: true, timeout: 120_000 }, () => {
  const ends = "its sidecar ends itself and every agent, and another app starts anew"
  clientKilled("stdio", {
    connect: "its sidecar, which was just starting, ends, and another app starts anew",
    handshake: "its sidecar, which was just answering, ends, and another app starts anew",
    open: ends,
    "prompt written": ends,
    "mid-stream": ends,
    "permission pending": ends,
    "cancel sent": `${ends}, whatever the grace period is`,
    dispose: `${ends}, whatever the grace period is`
  })
  const livesOn = "its Vm and agents end, its neighbour's turn goes on, and the sidecar ends with its last app"
  clientKilled("socket", {
    connect: "the sidecar that it has started waits for the next app, and ends with its last",
    handshake: "the sidecar that has no other app ends, and another app starts anew",
    open: livesOn,
    "prompt written": livesOn,
    "mid-stream": livesOn,
    "permission pending": livesOn,
    "cancel sent": livesOn,
    dispose: livesOn
  })
})

// The sidecar.

/** What the app is told, that waited for something when its sidecar was lost. */
const assertLost = ({ step, transport }: Row, ended: Line): void => {
  switch (step) {
    case "connect":
    case "handshake":
      return assert.deepInclude(ended, { _tag: "ProgramFailed", code: null, signal: "SIGKILL" })
    case "open":
      assert.strictEqual(ended["_tag"], "Disposed")
      return assert.match(ended["message"], transport === "stdio" ? /ended by SIGKILL/ : /./)
    case "dispose":
      assert.strictEqual(ended["disposed"], "done")
      return assert.strictEqual(ended["outcome"].error.reason._tag, "SidecarLost")
    default:
      assert.strictEqual(ended["_tag"], "Failed")
      assert.strictEqual(ended["error"].reason._tag, "SidecarLost")
      // A socket only tells that it was closed, or reset.
      assert.match(ended["error"].reason.detail, transport === "stdio" ? /ended by SIGKILL/ : /./)
  }
}

const sidecarKilled = matrix("sidecar", (here, app) =>
  Effect.gen(function* () {
    const { step, transport } = here.row
    yield* reach(app, here)
    const since = performance.now()
    yield* strike(here, "sidecar")
    assertLost(here.row, (yield* app.line("ended"))["ended"])
    // The next use needs not wait until all has been cleared away.
    if (step === "mid-stream") yield* next(app, false)
    if (step === "dispose" && transport === "socket") {
      // It was the app's no more, so nobody saw it go: the next start clears up.
      yield* untilOnly(here, "client", "struck")
      yield* next(app, false)
    }
    yield* untilOnly(here, "client")
    note(here, performance.now() - since)
    app.tell("state")
    const { beside, handle, pool, session, vm } = yield* app.line("handle")
    if (isEarly(here)) {
      assert.deepInclude(handle, { state: "ready", activeVmCount: 0 })
    } else {
      assert.deepInclude(handle, { state: "disposed", activeVmCount: 0 })
      assert.deepStrictEqual(pool, [])
      assert.deepInclude(vm, { opening: 0, activePrompts: 0, sessions: [] })
      assert.deepInclude(beside, { _tag: "SessionUnusable", reason: "sidecar_lost" })
      if (step !== "open") assert.deepInclude(session, { state: "ended", turns: [], pendingPermissions: 0 })
    }
    yield* next(app, isEarly(here))
    yield* leave(here, app)
  })
)

describe("C07, H6, L4: a sidecar that is killed", { concurrent: true, timeout: 120_000 }, () => {
  const failed = "whoever wanted a Vm is told of the signal, the pool still has room for it, and the next one starts it"
  const lost = "the turn fails with SidecarLost, its agents are reaped, the pool reads disposed and starts the next"
  const ended = {
    connect: failed,
    handshake: failed,
    open: "the opening fails with Disposed, its agents are reaped, the pool reads disposed and starts the next",
    "prompt written": lost,
    "mid-stream": `${lost}, also before they are`,
    "permission pending": lost,
    "cancel sent": lost
  } as const
  sidecarKilled("stdio", {
    ...ended,
    dispose: "the disposal succeeds, its agents are reaped, and the pool starts the next"
  })
  sidecarKilled("socket", { ...ended, dispose: "the disposal succeeds, and the start of the next reaps its agents" })
})

// An agent.

const assertExited = ({ step, transport }: Row, ended: Line): void => {
  const exited = { _tag: "ProcessExited", code: null, signal: "SIGKILL" }
  switch (step) {
    case "connect":
    case "handshake":
    case "open":
      assert.deepInclude(ended, { _tag: "AgentStartFailed", phase: step === "open" ? "session/new" : "initialize" })
      return assert.deepInclude(ended["reason"], exited)
    case "cancel sent":
      return assert.deepInclude(ended, { _tag: "Cancelled", by: "caller", agentReported: null, escalation: "none" })
    case "dispose":
      assert.strictEqual(ended["disposed"], "done")
      return transport === "stdio"
        ? assert.deepInclude(ended["outcome"], { _tag: "Cancelled", by: "dispose", agentReported: null })
        : assert.strictEqual(ended["outcome"].error.reason._tag, "SidecarLost")
    default:
      assert.strictEqual(ended["_tag"], "Failed")
      assert.deepInclude(ended["error"].reason, exited)
  }
}

const agentKilled = matrix("agent", (here, app) =>
  Effect.gen(function* () {
    const { step } = here.row
    yield* reach(app, here)
    const sidecar = yield* pidOf(here, "sidecar")
    const since = performance.now()
    yield* strike(here, "struck")
    assertExited(here.row, (yield* app.line("ended"))["ended"])
    const isDisposed = step === "dispose"
    yield* untilOnly(here, "client", ...(isDisposed ? [] : ["sidecar", "beside"]))
    // Its session is closed by now, or just being closed.
    let state: Line = {}
    const namesOf = ({ vm }: Line) => (vm["sessions"] as ReadonlyArray<Line>).map(({ agent }) => agent).join(" ")
    yield* untilSo(
      "the Vm has no other session than that beside",
      Effect.gen(function* () {
        app.tell("state")
        state = yield* app.line("handle")
        return namesOf(state) === (isDisposed ? "" : "beside")
      }),
      () => namesOf(state)
    )
    note(here, performance.now() - since)
    const { beside, handle, session, vm } = state
    assert.deepInclude(
      handle,
      isDisposed ? { state: "disposed", activeVmCount: 0 } : { state: "ready", activeVmCount: 1 }
    )
    assert.deepInclude(vm, { opening: 0, activePrompts: 0 })
    if (!isDisposed) {
      assert.strictEqual(beside["_tag"], "Completed")
      assert.strictEqual(yield* pidOf(here, "sidecar"), sidecar)
    }
    if (session !== null) assert.deepInclude(session, { state: "ended", turns: [], pendingPermissions: 0 })
    yield* next(app, !isDisposed)
    yield* leave(here, app)
  })
)

describe("C07: an agent that is killed", { concurrent: true, timeout: 120_000 }, () => {
  const notStarted = "the opening fails with the phase and the signal, all others live on, and the next opening works"
  const failed = "its turn fails with the signal, its session ends, all others live on, and the next opening works"
  for (const transport of ["stdio", "socket"] as const) {
    agentKilled(transport, {
      connect: notStarted,
      handshake: notStarted,
      open: notStarted,
      "prompt written": failed,
      "mid-stream": failed,
      "permission pending": `${failed}; nothing is asked any more`,
      "cancel sent": "the turn is cancelled, its session ends, all others live on, and the next opening works",
      dispose: "the disposal is over the sooner, nothing is left, and the next use starts a sidecar"
    })
  }
})

// Two at once.

describe("B03, H6: an app and its sidecar that are killed together", { concurrent: true, timeout: 120_000 }, () => {
  for (const transport of ["stdio", "socket"] as const) {
    it.live(`over ${transport}: the agent that stays is ended by the start of the next sidecar`, () =>
      Effect.gen(function* () {
        const here = yield* place({ part: "client", step: "mid-stream", transport })
        const app = yield* start(here)
        yield* reach(app, here)
        const sidecar = yield* pidOf(here, "sidecar")
        yield* strike(here, "client")
        process.kill(sidecar, "SIGKILL")
        yield* untilOnly(here, "struck")
        yield* anotherApp(here)
        assertNothingLeft(here)
      }).pipe(Effect.scoped)
    )
  }
})
