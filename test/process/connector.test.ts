import { spawn } from "node:child_process"
import { once } from "node:events"
import { chmodSync, mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import type * as Socket from "effect/socket/Socket"
import * as Address from "../../src/Address.ts"
import * as NodeConnector from "../../src/NodeConnector.ts"
import * as SidecarPool from "../../src/SidecarPool.ts"
import * as SidecarProcess from "../../src/SidecarProcess.ts"
import type * as SidecarProgram from "../../src/SidecarProgram.ts"
import { running, scopedMark, untilGone, untilRunning } from "../support/processes.ts"

const odd = fileURLToPath(new URL("../fixtures/odd-sidecar.mjs", import.meta.url))
const program = { path: odd, command: process.execPath, args: [odd] }

const start = (
  mark: string,
  mode: string,
  options: Partial<SidecarProcess.Options> = {}
): Effect.Effect<SidecarProcess.SidecarProcess, unknown, Scope.Scope> =>
  SidecarProcess.start({
    program,
    args: ["serve", "--stdio", `--mode=${mode}`, `--mark=${mark}`],
    env: {},
    killGrace: "300 millis",
    exitGrace: "5 seconds",
    ...options
  }).pipe(Effect.provide(NodeServices.layer))

const scopedFile = Effect.map(
  Effect.acquireRelease(
    Effect.sync(() => mkdtempSync(join(tmpdir(), "connector-"))),
    (folder) => Effect.sync(() => rmSync(folder, { recursive: true }))
  ),
  (folder) => join(folder, "reaped")
)

const linesOf = (file: string): number => {
  try {
    return readFileSync(file, "utf8").split("\n").length - 1
  } catch {
    return 0
  }
}

/** Milliseconds that it took. */
const timed = <A, E, R>(work: Effect.Effect<A, E, R>) =>
  Effect.suspend(() => {
    const since = performance.now()
    return Effect.map(work, () => performance.now() - since)
  })

const sizeOf = (read: ReadonlyArray<Uint8Array | string>): number => read.reduce((sum, piece) => sum + piece.length, 0)

const closeReason = ({ reason }: Socket.SocketError): string =>
  reason._tag === "SocketCloseError" ? `${reason.code} ${reason.closeReason}` : reason._tag

describe("a program as a child process", { concurrent: true }, () => {
  it.live("is a socket: what is written comes back, and the end of its input is its end", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const scope = yield* Scope.make()
      const child = yield* Scope.provide(start(mark, "echo"), scope)
      const { pull } = yield* Scope.provide(child.socket.reader, scope)
      const writer = yield* Scope.provide(child.socket.writer, scope)
      yield* writer.write("one ")
      yield* writer.writeAll(["two ", new TextEncoder().encode("three")])
      let text = ""
      while (text.length < 13) for (const piece of yield* pull) text += new TextDecoder().decode(piece as Uint8Array)
      assert.strictEqual(text, "one two three")
      child.answered()
      yield* Scope.close(scope, Exit.void)
      assert.deepStrictEqual(yield* child.ended, { code: 0, signal: null })
      assert.deepStrictEqual(yield* running(mark), [])
    })
  )

  it.live("writes no further ahead than it is read, and a writer waits until it reads", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const child = yield* start(mark, "echo")
      const { pull } = yield* child.socket.reader
      const writer = yield* child.socket.writer
      let written = 0
      const writing = yield* Effect.forEach(
        Array.from({ length: 256 }, () => new Uint8Array(65_536)),
        (piece) => Effect.map(writer.write(piece), () => ++written),
        { discard: true }
      ).pipe(Effect.forkChild({ startImmediately: true }))
      // It stands still when all pipes are full.
      yield* Effect.suspend(() => {
        const before = written
        return Effect.andThen(
          Effect.sleep("300 millis"),
          Effect.suspend(() => (written === before && written > 0 ? Effect.void : Effect.fail("moving")))
        )
      }).pipe(Effect.retry({ schedule: Schedule.forever, times: 50 }))
      assert.isBelow(written, 256)
      let read = 0
      while (read < 256 * 65_536) read += sizeOf(yield* pull)
      yield* Fiber.join(writing)
      assert.strictEqual(read, 256 * 65_536)
    })
  )

  it.live("that nobody reads from any more is let write, so that it can end", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const scope = yield* Scope.make()
      const child = yield* Scope.provide(start(mark, "flood"), scope)
      child.answered()
      yield* Effect.scoped(Effect.flatMap(child.socket.reader, ({ pull }) => pull))
      const took = yield* timed(Scope.close(scope, Exit.void))
      assert.isBelow(took, 4000)
      assert.deepStrictEqual(yield* child.ended, { code: 0, signal: null })
    })
  )

  it.live("that ends tells its reader and its writer how, with what it said last and without secrets", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const child = yield* start(mark, "exit", {
        env: { ODD_API_KEY: "very-secret-value" },
        redact: (text) => text.replaceAll("very-secret-value", "<ODD_API_KEY>")
      })
      const { pull } = yield* child.socket.reader
      const writer = yield* child.socket.writer
      const closed = yield* Effect.flip(pull)
      assert.strictEqual(
        closeReason(closed),
        "1006 the sidecar process: it ended with code 3; it said last: no licence for key <ODD_API_KEY>"
      )
      assert.deepStrictEqual(yield* child.ended, { code: 3, signal: null })
      const late = yield* Effect.flip(writer.write("late"))
      assert.strictEqual(late.reason._tag, "SocketWriteError")
    })
  )

  it.live("that leaves somebody behind who holds its output ends all the same", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const child = yield* start(mark, "leave")
      const { pull } = yield* child.socket.reader
      const writer = yield* child.socket.writer
      yield* untilRunning(mark, 2)
      yield* writer.write("now")
      assert.match(closeReason(yield* Effect.flip(pull)), /ended with code 4/)
      assert.strictEqual((yield* running(mark)).length, 1)
    })
  )

  it.live("that can't be run is an error that names it", () =>
    Effect.gen(function* () {
      const failed = yield* Effect.flip(
        start("none", "echo", { program: { path: "/gone", command: "/gone", args: [] } })
      )
      assert.deepInclude(failed, { _tag: "ProgramFailed", program: "/gone", problem: "it can't be run (ENOENT)" })
    })
  )

  it.live.each(["silent", "stubborn", "garbage", "exit"])("that is %s is gone when the scope has closed", (mode) =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const took = yield* timed(Effect.scoped(Effect.andThen(start(mark, mode), untilStarted(mark, mode))))
      assert.isBelow(took, 8000)
      assert.deepStrictEqual(yield* running(mark), [])
    })
  )

  it.live("that ignores the end of its input and TERM gets the time to dispose itself once it has answered", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const scope = yield* Scope.make()
      const child = yield* Scope.provide(start(mark, "stubborn", { exitGrace: "1500 millis" }), scope)
      yield* Effect.retry(
        Effect.suspend(() => (child.stderrTail() === "" ? Effect.fail("quiet") : Effect.void)),
        { schedule: Schedule.spaced("20 millis"), times: 500 }
      )
      child.answered()
      const took = yield* timed(Scope.close(scope, Exit.void))
      assert.isAtLeast(took, 1750)
      assert.deepStrictEqual(yield* child.ended, { code: null, signal: "SIGKILL" })
      assert.deepStrictEqual(yield* running(mark), [])
    })
  )

  it.live("that is killed is lost: the signal is told, and what it left is reaped once", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const file = yield* scopedFile
      const scope = yield* Scope.make()
      const child = yield* Scope.provide(start(mark, "echo", { env: { REAPED: file } }), scope)
      const { pull } = yield* Scope.provide(child.socket.reader, scope)
      child.answered()
      process.kill(child.pid, "SIGKILL")
      assert.match(closeReason(yield* Effect.flip(pull)), /^1006 the sidecar process: it was ended by SIGKILL/)
      assert.deepStrictEqual(yield* child.ended, { code: null, signal: "SIGKILL" })
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual(linesOf(file), 1)
    })
  )

  it.live("that ends well, or never answered, is not followed by a reaper", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const file = yield* scopedFile
      yield* Effect.scoped(
        Effect.gen(function* () {
          const well = yield* start(mark, "echo", { env: { REAPED: file } })
          well.answered()
          const never = yield* start(mark, "echo", { env: { REAPED: file } })
          process.kill(never.pid, "SIGKILL")
          yield* never.ended
        })
      )
      assert.strictEqual(linesOf(file), 0)
      assert.deepStrictEqual(yield* running(mark), [])
    })
  )

  it.live("leaves no process, wherever its start is interrupted", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      for (let steps = 0; steps < 12; steps++) {
        const starting = yield* Effect.scoped(Effect.andThen(start(mark, "silent"), Effect.never)).pipe(
          Effect.forkChild({ startImmediately: steps > 0 })
        )
        for (let step = 0; step < steps; step++) yield* Effect.sleep("1 millis")
        yield* Fiber.interrupt(starting)
        yield* untilGone(mark)
      }
    })
  )
})

const wanted = {
  sidecarId: Address.SidecarId.make("acp-sidecar-test"),
  placement: { kind: "explicit", sidecarId: Address.SidecarId.make("acp-sidecar-test") }
} as const

/** A sidecar of the odd program, through the layer for child processes. */
const connect = (mark: string, mode: string, options: NodeConnector.Options = {}) =>
  Effect.gen(function* () {
    const context = yield* Layer.build(
      NodeConnector.layerChildProcess({
        program: odd,
        args: [`--mode=${mode}`, `--mark=${mark}`],
        killGrace: "300 millis",
        ...options
      })
    )
    return yield* Context.get(context, SidecarPool.SidecarConnector).connect(wanted)
  })

describe("a sidecar as a child process", { concurrent: true }, () => {
  it.live.each([
    ["exit", /^it ended with code 3$/, 3, "no licence for key <ODD_API_KEY>\n"],
    ["garbage", /./, null, ""],
    ["silent", /./, null, ""],
    ["stubborn", /./, null, "I stay\n"]
  ] as const)("%s is told with evidence, in time, and nothing is left", ([mode, problem, code, stderrTail]) =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const failed = yield* Effect.flip(
        Effect.scoped(connect(mark, mode, { startTimeout: "2 seconds", env: { ODD_API_KEY: "very-secret-value" } }))
      )
      assert.deepInclude(failed as SidecarProgram.ProgramFailed, {
        _tag: "ProgramFailed",
        program: odd,
        code,
        signal: null,
        stderrTail
      })
      assert.match((failed as SidecarProgram.ProgramFailed).problem, problem)
      assert.deepStrictEqual(yield* running(mark), [])
    })
  )

  it.live("whose program is missing is an error that names all three places", () =>
    Effect.gen(function* () {
      const failed = yield* Effect.flip(connect("none", "echo", { program: "/nowhere/sidecar" }))
      assert.strictEqual(failed._tag, "ProgramNotFound")
      const own = fileURLToPath(new URL("../../src/bin.ts", import.meta.url))
      assert.include(failed.message, '"/nowhere/sidecar" (nothing)')
      assert.include(failed.message, "ACP_SIDECAR_BIN is not given")
      assert.deepInclude((failed as SidecarProgram.ProgramNotFound).places[2], { path: own, found: "a file" })
    })
  )

  it.live("with limits that make no sense is refused before it is started", () =>
    Effect.gen(function* () {
      const failed = yield* Effect.flip(connect("none", "echo", { limits: { maxVms: -1 } }))
      assert.strictEqual(failed._tag, "InvalidLimit")
    })
  )

  it.live("that is killed is lost, and the signal is in the detail", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const file = yield* scopedFile
      const { lost } = yield* connect(mark, "welcome", { env: { REAPED: file } })
      const [found] = yield* untilRunning(mark, 1)
      process.kill(found!.pid, "SIGKILL")
      assert.match((yield* lost).detail, /^it was ended by SIGKILL/)
      yield* Effect.suspend(() => (linesOf(file) === 1 ? Effect.void : Effect.fail("not reaped"))).pipe(
        Effect.retry({ schedule: Schedule.spaced("20 millis"), times: 250 })
      )
    })
  )

  it.live("leaves no process, wherever its start is interrupted", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      for (let wait = 0; wait < 120; wait += 8) {
        const starting = yield* Effect.scoped(Effect.andThen(connect(mark, "welcome"), Effect.never)).pipe(
          Effect.forkChild({ startImmediately: true })
        )
        yield* Effect.sleep(wait)
        yield* Fiber.interrupt(starting)
        assert.deepStrictEqual(yield* running(mark), [])
      }
    })
  )
})

const scopedFolder = Effect.acquireRelease(
  // Short, since the path of a socket has to be.
  Effect.sync(() => mkdtempSync(join(tmpdir(), "s-"))),
  (folder) => Effect.sync(() => rmSync(folder, { recursive: true, force: true }))
)

/** A connection of one app, to the sidecar that the apps share in this folder. */
const share = (mark: string, folder: string, mode = "welcome", options: NodeConnector.SocketOptions = {}) =>
  Effect.gen(function* () {
    const context = yield* Layer.build(
      NodeConnector.layerSocket({
        program: odd,
        args: [`--mode=${mode}`, `--mark=${mark}`],
        folder,
        killGrace: "300 millis",
        ...options
      })
    )
    return yield* Context.get(context, SidecarPool.SidecarConnector).connect(wanted)
  })

describe("a sidecar that apps share", { concurrent: true }, () => {
  it.live("is one process for apps that start it at the same time, and stays until the last has left", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const folder = yield* scopedFolder
      const scopes = yield* Effect.forEach(Array.from({ length: 4 }), () => Scope.make())
      const all = yield* Effect.forEach(scopes, (scope) => Scope.provide(share(mark, folder), scope), {
        concurrency: "unbounded"
      })
      assert.deepStrictEqual(
        all.map(({ sidecar }) => sidecar.id),
        all.map(() => wanted.sidecarId)
      )
      const [only] = yield* untilRunning(mark, 1)
      for (const scope of scopes.slice(1)) yield* Scope.close(scope, Exit.void)
      yield* Effect.scoped(share(mark, folder))
      assert.deepStrictEqual(yield* running(mark), [only!])
      yield* Scope.close(scopes[0]!, Exit.void)
      yield* untilGone(mark)
    })
  )

  it.live("is left alone by the dispose of one app", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const folder = yield* scopedFolder
      const one = yield* share(mark, folder)
      yield* Effect.scoped(
        Effect.gen(function* () {
          const other = yield* share(mark, folder)
          yield* other.sidecar.dispose
        })
      )
      assert.strictEqual((yield* running(mark)).length, 1)
      yield* one.sidecar.dispose
      yield* untilGone(mark)
    })
  )

  it.live.each([
    ["exit", 3, "no licence for key <ODD_API_KEY>\n"],
    ["silent", null, ""],
    ["stubborn", null, "I stay\n"]
  ] as const)("%s is told with evidence, in time, and nothing is left", ([mode, code, stderrTail]) =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const failed = yield* Effect.flip(
        Effect.scoped(
          share(mark, yield* scopedFolder, mode, {
            startTimeout: mode === "exit" ? "10 seconds" : "2 seconds",
            env: { ODD_API_KEY: "very-secret-value" }
          })
        )
      )
      assert.deepInclude(failed as SidecarProgram.ProgramFailed, {
        _tag: "ProgramFailed",
        program: odd,
        code,
        signal: null,
        stderrTail
      })
      assert.deepStrictEqual(yield* running(mark), [])
    })
  )

  it.live("leaves no process, wherever its start is interrupted", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const folder = yield* scopedFolder
      for (let wait = 0; wait < 160; wait += 10) {
        const starting = yield* Effect.scoped(share(mark, folder, "welcome")).pipe(
          Effect.forkChild({ startImmediately: true })
        )
        yield* Effect.sleep(wait)
        yield* Fiber.interrupt(starting)
        yield* untilGone(mark)
      }
    })
  )

  it.live("is not looked for where others could put a socket, nor where none can be", () =>
    Effect.gen(function* () {
      const folder = yield* scopedFolder
      const refusal = (options: NodeConnector.SocketOptions) =>
        Effect.map(Effect.flip(Effect.scoped(share("none", folder, "welcome", options))), (error) => {
          assert.strictEqual(error._tag, "SidecarUnreachable")
          return error.message
        })
      assert.match(yield* refusal({ folder: "relative" }), /is not absolute/)
      assert.match(yield* refusal({ path: `${folder}/${"x".repeat(100)}` }), /is longer than \d+ bytes/)
      chmodSync(folder, 0o777)
      assert.match(yield* refusal({}), /not one that only its user may write to/)
      assert.match(yield* refusal({ path: "/dev/null/socket" }), /can't be used \((EEXIST|ENOTDIR)\)/)
    })
  )
})

const app = fileURLToPath(new URL("../fixtures/app.ts", import.meta.url))

/** Starts an app that connects to a sidecar, and waits until it has done what it does. */
const startApp = (mark: string, leases: string, ...folder: ReadonlyArray<string>) =>
  Effect.acquireRelease(
    Effect.sync(() =>
      spawn(process.execPath, [app, odd, leases, mark, ...folder], { stdio: ["ignore", "pipe", "inherit"] })
    ),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  ).pipe(
    Effect.map((child) => ({ child, exit: once(child, "exit") })),
    Effect.tap(({ child }) => Effect.promise(() => once(child.stdout, "data")))
  )

describe.each(["as a child process", "that apps share"])("an app with a sidecar %s", { concurrent: true }, (place) => {
  const folderOf = place === "that apps share" ? Effect.map(scopedFolder, (folder) => [folder]) : Effect.succeed([])

  it.live("that has released all leases ends by itself, and its sidecar with it", () =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const { exit } = yield* startApp(mark, "released", ...(yield* folderOf))
      assert.deepStrictEqual(yield* Effect.promise(() => exit), [0, null])
      yield* untilGone(mark)
    })
  )

  it.live.each(["held", "connected"])("does not end by itself while it has one that is %s", (leases) =>
    Effect.gen(function* () {
      const mark = yield* scopedMark
      const { child, exit } = yield* startApp(mark, leases, ...(yield* folderOf))
      const ended = yield* Effect.timeoutOption(
        Effect.promise(() => exit),
        "1500 millis"
      )
      assert.isTrue(Option.isNone(ended))
      child.kill("SIGKILL")
      yield* untilGone(mark)
    })
  )
})

/** Waits until a program of this kind has done what it does before it waits. */
const untilStarted = (mark: string, mode: string): Effect.Effect<unknown> =>
  mode === "exit" ? untilGone(mark) : untilRunning(mark, 1)
