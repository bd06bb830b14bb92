// The life of a sidecar's process: many sessions over one connection, its start, and its end.
import { tmpdir } from "node:os"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import * as AgentProfile from "../../src/AgentProfile.ts"
import * as Sidecar from "../../src/Sidecar.ts"
import * as SidecarLimits from "../../src/SidecarLimits.ts"
import * as Agents from "../agents.ts"
import * as Bundled from "../bundled.ts"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare } from "../figure.ts"
import * as Served from "../served.ts"

const many = 1000
const shared = AgentProfile.make({
  name: "bench",
  command: Contenders.lean.command,
  share: { maxSessions: many }
})

const embedded = Effect.map(
  Layer.build(Layer.provide(Layer.fresh(Sidecar.layer), SidecarLimits.layer(Served.roomy))),
  (context) => Context.get(context, Sidecar.Sidecar)
).pipe(Effect.orDie)

/** Milliseconds of a turn of each of many sessions, all at once. */
const crowd = Effect.fnUntraced(function* (sidecar: Sidecar.Sidecar["Service"]) {
  const vm = yield* Effect.orDie(sidecar.openVm({ root: tmpdir() }))
  const sessions = yield* Effect.forEach(
    Array.from({ length: many }),
    () => Effect.orDie(vm.openSession({ agent: shared })),
    { concurrency: "unbounded" }
  )
  const round = Effect.forEach(sessions, (session) => Effect.orDie(session.prompt("hello")), {
    concurrency: "unbounded",
    discard: true
  })
  yield* round
  return Effect.gen(function* () {
    const start = performance.now()
    yield* round
    return performance.now() - start
  })
})

export const remoteSessions: Bench = {
  about: `a turn of each of ${many.toLocaleString("en-US")} sessions at once over one Unix domain socket, beside an embedded sidecar`,
  detail: "All sessions share one agent process.",
  run: Effect.fnUntraced(function* (rounds) {
    const times = yield* Contenders.alternate(rounds(12), {
      ours: yield* Effect.flatMap(Served.over("socket"), crowd),
      embedded: yield* Effect.flatMap(embedded, crowd)
    })
    return [compare("remoteSessions.socket.embedded", "ms", times.ours, times.embedded)]
  })
}

const timed = <E>(effect: Effect.Effect<unknown, E>) =>
  Effect.gen(function* () {
    const start = performance.now()
    yield* effect
    return performance.now() - start
  })

export const remoteStart: Bench = {
  about: "a sidecar's process, a Vm and a session of the bundled agent from nothing, beside the same embedded",
  detail: "The program is the packed command.",
  run: Effect.fnUntraced(function* (rounds) {
    const agent = Bundled.profileOf(yield* Bundled.make)
    const open = (sidecar: Effect.Effect<Sidecar.Sidecar["Service"], never, Scope.Scope>) =>
      Effect.acquireUseRelease(
        Scope.make(),
        (scope) => timed(Effect.flatMap(sidecar, (one) => Served.session(one, agent)).pipe(Scope.provide(scope))),
        (scope) => Scope.close(scope, Exit.void)
      )
    const services = yield* Effect.context<never>()
    const times = yield* Contenders.alternate(rounds(12), {
      ours: open(Served.over("stdio")),
      embedded: Effect.provideContext(open(embedded as never), services)
    })
    return [compare("remoteStart.stdio.embedded", "ms", times.ours, times.embedded, atMost(1000, "value"))]
  })
}

const grace = 500
const stuck = 100
const quiet = AgentProfile.make({ name: "quiet", command: Agents.quietCommand })

/** Milliseconds until the process of a sidecar is gone. */
const ending = (count: number) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const { sidecar } = yield* Served.child({ ...Served.roomy, cancelGrace: grace }).pipe(Scope.provide(scope))
    const vm = yield* Effect.orDie(sidecar.openVm({ root: tmpdir() })).pipe(Scope.provide(scope))
    for (let i = 0; i < count; i++) {
      const session = yield* Effect.orDie(vm.openSession({ agent: quiet })).pipe(Scope.provide(scope))
      yield* (yield* Effect.orDie(session.submit("HOLD"))).dispatched
    }
    return yield* timed(Effect.andThen(sidecar.dispose, Scope.close(scope, Exit.void)))
  })

export const remoteEnd: Bench = {
  about: "the end of a sidecar's process, from its dispose until it is gone: idle, and with turns that are stuck",
  detail: `${stuck} turns whose agents ignore the cancel; its cancelGrace is ${grace} ms. The baseline has one such turn.`,
  run: Effect.fnUntraced(function* (rounds) {
    const times = yield* Contenders.alternate(rounds(5), { idle: ending(0), one: ending(1), many: ending(stuck) })
    return [
      compare("remoteEnd.idle.one", "ms", times.idle, times.one, atMost(100, "value")),
      compare("remoteEnd.stuck.one", "ms", times.many, times.one, atMost(grace + 500, "value"))
    ]
  })
}
