// The life of a sidecar process without one: interruption at each operation, and time that only the test moves.
import { assert, describe, it } from "@effect/vitest"
import { SidecarProcess } from "acp-sidecar"
import { Interruption } from "acp-sidecar/testing"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as PlatformError from "effect/PlatformError"
import type * as ChildProcess from "effect/process/ChildProcess"
import * as Spawner from "effect/process/ChildProcessSpawner"
import * as Scope from "effect/Scope"
import * as Sink from "effect/Sink"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/testing/TestClock"

/** How a program behaves: what it takes to end it, and what it does with its input. */
interface Behaviour {
  readonly endsOn: "end of input" | "TERM" | "KILL"
  /** Milliseconds that it takes for that. */
  readonly takes?: number
}

interface World {
  readonly started: Array<string>
  readonly log: Array<string>
  live: number
  readonly spawner: Spawner.ChildProcessSpawner["Service"]
  /** Ends the process from outside. */
  readonly die: (signal: string) => Effect.Effect<void>
}

const bySignal = (signal: string) =>
  PlatformError.systemError({
    _tag: "Unknown",
    module: "ChildProcess",
    method: "exitCode",
    cause: new Error(`Process interrupted due to receipt of signal: '${signal}'`)
  })

const makeWorld = (behaviour: Behaviour): World => {
  let exited = Deferred.makeUnsafe<Spawner.ExitCode, PlatformError.PlatformError>()
  const end = (exit: Exit.Exit<Spawner.ExitCode, PlatformError.PlatformError>) =>
    Effect.sync(() => {
      if (Deferred.doneUnsafe(exited, exit)) world.live--
    })
  const after = (work: Effect.Effect<void>) => Effect.delay(work, behaviour.takes ?? 0)
  const spawn = (command: ChildProcess.Command) =>
    Effect.gen(function* () {
      const args = "args" in command ? command.args.map(String) : []
      world.started.push(args.at(-1) ?? "")
      if (args.at(-1) === "reap") {
        const done = Effect.succeed(Spawner.ExitCode(0))
        return Spawner.makeHandle({ ...handle, exitCode: Effect.delay(done, 5) })
      }
      world.live++
      const own = Deferred.makeUnsafe<Spawner.ExitCode, PlatformError.PlatformError>()
      exited = own
      yield* Effect.addFinalizer(() => {
        world.log.push("release")
        return end(Exit.fail(bySignal("SIGKILL")))
      })
      const finished = Effect.ignore(Deferred.await(own))
      return Spawner.makeHandle({
        ...handle,
        exitCode: Deferred.await(own),
        stdin: Sink.drain.pipe(
          Sink.mapEffect(() => {
            world.log.push("end of input")
            const exit = after(end(Exit.succeed(Spawner.ExitCode(0))))
            return behaviour.endsOn === "end of input" ? exit : finished
          })
        ),
        stdout: Stream.concat(Stream.succeed(new Uint8Array([1])), Stream.fromEffectDrain(finished)),
        stderr: Stream.fromEffectDrain(finished),
        kill: () =>
          Effect.suspend(() => {
            world.log.push("kill")
            return after(end(Exit.fail(bySignal(`SIG${behaviour.endsOn === "KILL" ? "KILL" : "TERM"}`))))
          }),
        unref: Effect.sync(() => {
          world.log.push("unref")
          return Effect.sync(() => void world.log.push("ref"))
        })
      })
    }).pipe(Effect.uninterruptible)
  const handle: Omit<Spawner.ChildProcessHandle, "~effect/process/ChildProcessSpawner/ChildProcessHandle"> = {
    pid: Spawner.ProcessId(4711),
    exitCode: Effect.never,
    isRunning: Effect.succeed(true),
    kill: () => Effect.void,
    stdin: Sink.drain,
    stdout: Stream.empty,
    stderr: Stream.empty,
    all: Stream.empty,
    getInputFd: () => Sink.drain,
    getOutputFd: () => Stream.empty,
    unref: Effect.succeed(Effect.void)
  }
  const world: World = {
    started: [],
    log: [],
    live: 0,
    spawner: Spawner.make(spawn),
    die: (signal) => Effect.suspend(() => (world.live === 0 ? Effect.void : end(Exit.fail(bySignal(signal)))))
  }
  return world
}

const start = (world: World) =>
  SidecarProcess.start({
    program: { path: "/bin/sidecar", command: "/bin/sidecar", args: [] },
    args: ["serve"],
    env: {}
  }).pipe(Effect.provideService(Spawner.ChildProcessSpawner, world.spawner))

const use = (world: World, isAnswered: boolean) =>
  Effect.gen(function* () {
    const child = yield* start(world)
    const { pull } = yield* child.socket.reader
    const writer = yield* child.socket.writer
    yield* writer.write("hello")
    yield* pull
    if (isAnswered) child.answered()
    yield* Effect.scoped(child.hold)
    return yield* Effect.scoped(Effect.andThen(child.hold, writer.writeAll(["one", "two"])))
  })

describe("a sidecar process, interrupted at each operation of its start, its use and its end, is gone", () => {
  const behaviours: ReadonlyArray<Behaviour> = [
    { endsOn: "end of input" },
    { endsOn: "end of input", takes: 300 },
    { endsOn: "TERM" },
    { endsOn: "KILL", takes: 2000 }
  ]
  for (const behaviour of behaviours) {
    for (const isAnswered of [false, true]) {
      it(`when it ends on ${behaviour.endsOn} after ${behaviour.takes ?? 0} ms and has ${isAnswered ? "" : "not "}answered`, () => {
        const report = Interruption.assertSafe<World, void, unknown>({
          make: Effect.sync(() => makeWorld(behaviour)),
          body: (world) => use(world, isAnswered),
          check: (world) => {
            assert.strictEqual(world.live, 0)
            assert.isAtMost(world.started.filter((name) => name === "serve").length, 1)
            assert.isAtMost(world.started.filter((name) => name === "reap").length, 1)
          }
        })
        assert.isAbove(report.runs, 30)
      })
    }
  }

  it("when it is killed at any moment, and is then reaped once if it had answered", () => {
    const report = Interruption.assertSafe<World & { answered: boolean }, void, unknown>({
      make: Effect.sync(() => Object.assign(makeWorld({ endsOn: "end of input" }), { answered: false })),
      body: (world) =>
        Effect.gen(function* () {
          const child = yield* start(world)
          const { pull } = yield* child.socket.reader
          yield* pull
          child.answered()
          world.answered = true
          yield* Effect.ignore(pull)
          yield* child.ended
        }).pipe(Effect.timeoutOption(1000)),
      strike: (world) => world.die("SIGKILL"),
      check: (world, exit) => {
        assert.strictEqual(world.live, 0)
        assert.isTrue(Exit.isSuccess(exit))
        const isLost = world.answered && !world.log.includes("end of input")
        assert.isAtMost(world.started.filter((name) => name === "reap").length, 1)
        if (isLost) assert.include(world.started, "reap")
      }
    })
    assert.isAbove(report.runs, 20)
  })
})

describe("the end of a sidecar process", () => {
  const closing = (behaviour: Behaviour, isAnswered: boolean) =>
    Effect.gen(function* () {
      const world = makeWorld(behaviour)
      const scope = yield* Scope.make()
      const child = yield* Scope.provide(start(world), scope)
      if (isAnswered) child.answered()
      const fiber = yield* Effect.forkChild(Scope.close(scope, Exit.void), { startImmediately: true })
      return { world, fiber, child }
    })

  it.effect("is awaited for exitGrace when it has answered, then forced", () =>
    Effect.gen(function* () {
      const { fiber, world } = yield* closing({ endsOn: "TERM" }, true)
      yield* TestClock.adjust("7999 millis")
      assert.deepStrictEqual(world.log, ["end of input"])
      yield* TestClock.adjust("1 millis")
      assert.deepStrictEqual(world.started, ["serve", "reap"])
      yield* TestClock.adjust("5 millis")
      yield* Fiber.join(fiber)
      assert.deepStrictEqual(world.log, ["end of input", "kill", "release"])
      assert.strictEqual(world.live, 0)
    })
  )

  it.effect("is awaited for half a second when it has not", () =>
    Effect.gen(function* () {
      const { fiber, world } = yield* closing({ endsOn: "TERM" }, false)
      yield* TestClock.adjust("499 millis")
      assert.deepStrictEqual(world.log, ["end of input"])
      yield* TestClock.adjust("1 millis")
      yield* Fiber.join(fiber)
      assert.deepStrictEqual(world.started, ["serve"])
    })
  )

  it.effect("comes at last, also for one that can't be killed, which is told", () =>
    Effect.gen(function* () {
      const { fiber, world } = yield* closing({ endsOn: "KILL", takes: 3_600_000 }, true)
      yield* TestClock.adjust("8 seconds")
      yield* TestClock.adjust("7 seconds")
      yield* TestClock.adjust("1 seconds")
      yield* Fiber.join(fiber)
      // Let go, so that the spawner doesn't wait for it either.
      assert.deepStrictEqual(world.log, ["end of input", "kill", "unref", "release"])
    })
  )
})

describe("holds of a sidecar process", () => {
  it.effect("keep the app alive from the first to the last, and so does the end", () =>
    Effect.gen(function* () {
      const world = makeWorld({ endsOn: "end of input" })
      const scope = yield* Scope.make()
      const child = yield* Scope.provide(start(world), scope)
      const [first, second] = [yield* Scope.make(), yield* Scope.make()]
      yield* Scope.provide(child.hold, first)
      yield* Scope.provide(child.hold, second)
      yield* Scope.close(first, Exit.void)
      assert.deepStrictEqual(world.log, [])
      yield* Scope.close(second, Exit.void)
      assert.deepStrictEqual(world.log, ["unref"])
      yield* Effect.scoped(
        Effect.andThen(
          child.hold,
          Effect.sync(() => world.log.push("held"))
        )
      )
      assert.deepStrictEqual(world.log, ["unref", "ref", "held", "unref"])
      yield* Effect.forkChild(Scope.close(scope, Exit.void), { startImmediately: true })
      yield* TestClock.adjust("1 second")
      assert.deepStrictEqual(world.log.slice(4), ["ref", "end of input", "release"])
    })
  )
})
