// The child process transport, with real processes and a connection on top of it.
import { assert, describe, it } from "@effect/vitest"
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Scope from "effect/Scope"
import { chmodSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import * as AcpConnection from "../../src/acp/AcpConnection.ts"
import * as AcpTransport from "../../src/acp/AcpTransport.ts"
import { newMark, running, untilGone, untilRunning } from "../support/processes.ts"
import { ask } from "../../examples/wire.ts"

const agentFile = fileURLToPath(new URL("../fixtures/faulty-agent.mjs", import.meta.url))
const env = { PATH: process.env["PATH"] ?? "/usr/bin:/bin" }

type Options = Partial<AcpTransport.ProcessOptions>

/** Starts the faulty agent with these switches; unknown ones do nothing, so a mark may be one of them. */
const launch = (switches: ReadonlyArray<string>, options: Options = {}) =>
  AcpTransport.makeChildProcess({
    command: process.execPath,
    args: [agentFile, ...switches.map((text) => `--${text}`)],
    cwd: tmpdir(),
    env,
    killGrace: "300 millis",
    ...options
  })

/** The same behind a shell that stays, as package runners do it. */
const launchWrapped = (switches: ReadonlyArray<string>, options: Options = {}) =>
  launch([], {
    command: "/bin/sh",
    args: ["-c", '"$0" "$@"; :', process.execPath, agentFile, ...switches.map((text) => `--${text}`)],
    ...options
  })

/** A connection to it, and the texts of the updates it sent. */
const connect = Effect.fnUntraced(function* (transport: AcpTransport.AcpTransport) {
  const texts: Array<string> = []
  const connection = yield* AcpConnection.make(transport, {
    onNotification: (_, params) => {
      const given = params as { readonly update?: { readonly content?: { readonly text?: string } } } | undefined
      texts.push(given?.update?.content?.text ?? "?")
    },
    onRequest: (method) => Effect.fail(AcpConnection.methodNotFound(method))
  })
  const open = Effect.gen(function* () {
    yield* connection.request("initialize", { protocolVersion: 1 })
    const response = yield* connection.request("session/new", { cwd: tmpdir(), mcpServers: [] })
    return (response as { readonly sessionId: string }).sessionId
  })
  const prompt = (sessionId: string, text: string) =>
    connection.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] })
  return { connection, texts, open, prompt }
})

const start = (switches: ReadonlyArray<string> = [], options: Options = {}) =>
  Effect.flatMap(launch(switches, options), connect)

const failureOf = <A, E>(exit: Exit.Exit<A, E>): E => Option.getOrThrow(Exit.findErrorOption(exit))
const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.gen(function* () {
    const before = yield* Clock.currentTimeMillis
    const value = yield* effect
    return [value, (yield* Clock.currentTimeMillis) - before] as const
  })
/** Waits for something to become true, for at most 15 s. */
const until = (condition: () => boolean): Effect.Effect<void> =>
  Effect.suspend(() => (condition() ? Effect.void : Effect.fail("not yet"))).pipe(
    Effect.retry({ schedule: Schedule.spaced("10 millis"), times: 1500 }),
    Effect.orDie
  )
/** A folder for the test's files. */
const folder = Effect.acquireRelease(
  Effect.sync(() => realpathSync(mkdtempSync(join(tmpdir(), "acp transport ")))),
  (path) => Effect.sync(() => rmSync(path, { recursive: true, force: true }))
)

describe("starting", () => {
  it.live(
    "B75: arguments with spaces, quotes, backslashes and newlines arrive as they are, and no shell sees them",
    () =>
      Effect.gen(function* () {
        const cwd = yield* folder
        const file = join(cwd, 'print "args" .mjs')
        writeFileSync(
          file,
          `const { argv, env } = process
        console.log(JSON.stringify({ jsonrpc: "2.0", id: 1, result: { args: argv.slice(2), cwd: process.cwd(), env } }))
        process.stdin.resume()`
        )
        const args = [
          "two words",
          "",
          'a "quoted" one',
          "it's",
          "C:\\dir\\new",
          "$HOME `id` $(id) ; | & > *",
          "a\nb",
          "é"
        ]
        const given = { ONLY: 'a "b" \\c $PATH' }
        const { connection } = yield* start([], { args: [file, ...args], cwd, env: given })
        const got = yield* connection.request("print", {})
        assert.deepStrictEqual(got, { args, cwd, env: given })
      }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("B75: what can't be started is a SpawnError that names the command or the folder", () =>
    Effect.gen(function* () {
      const dir = yield* folder
      const plain = join(dir, "plain")
      writeFileSync(plain, "not a program")
      chmodSync(plain, 0o644)
      const shut = join(dir, "nowhere")
      const cases: ReadonlyArray<readonly [Options, string, string]> = [
        [{ command: "no-such-program-anywhere" }, "ENOENT", "command"],
        [{ command: join(dir, "no such file") }, "ENOENT", "command"],
        [{ command: plain }, "EACCES", "command"],
        [{ command: dir }, "EACCES", "command"],
        [{ command: join(plain, "below") }, "ENOTDIR", "command"],
        [{ args: ["nul\0"] }, "EINVAL", "command"],
        [{ args: Array.from({ length: 40 }, () => "x".repeat(120_000)) }, "E2BIG", "command"],
        [{ cwd: shut }, "ENOENT", "folder"],
        [{ cwd: plain }, "ENOTDIR", "folder"],
        [{ cwd: "" }, "ENOENT", "folder"],
        // Both are missing: the folder is looked at first.
        [{ cwd: shut, command: "no-such-program-anywhere" }, "ENOENT", "folder"]
      ]
      for (const [options, code, subject] of cases) {
        const [exit, millis] = yield* timed(Effect.exit(launch([], options)))
        const error = failureOf(exit)
        const label = JSON.stringify(options).slice(0, 100)
        assert.deepStrictEqual([error._tag, error.code, error.subject], ["SpawnError", code, subject], label)
        assert.strictEqual(error.command, options.command ?? process.execPath)
        assert.strictEqual(error.cwd, options.cwd ?? tmpdir())
        assert.include(error.message, subject === "folder" ? "the folder" : error.command)
        assert.isBelow(millis, 5000)
      }
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("interrupting a start leaves no process, whenever it comes", () =>
    Effect.gen(function* () {
      const mark = newMark()
      for (let turns = 0; turns < 8; turns++) {
        const fiber = yield* Effect.forkChild(Effect.scoped(Effect.andThen(launch([`mark=${mark}`]), Effect.never)), {
          startImmediately: true
        })
        for (let turn = 0; turn < turns; turn++) {
          yield* Effect.promise(() => new Promise<void>((resolve) => setImmediate(resolve)))
        }
        yield* Fiber.interrupt(fiber)
        assert.deepStrictEqual(yield* running(mark), [])
      }
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("B68: a process that exits at once is told in a moment, with its stderr", () =>
    Effect.gen(function* () {
      const { connection } = yield* start(["stderr=cannot find the login", "exit-at=start:7"])
      const [exit, millis] = yield* timed(Effect.exit(connection.request("initialize", { protocolVersion: 1 })))
      const error = failureOf(exit)
      assert(error._tag === "ProcessExited")
      assert.deepStrictEqual([error.code, error.signal, error.sinceLastFrameMillis], [7, null, null])
      assert.strictEqual(error.stderrTail, "cannot find the login\nfaulty-agent: exiting with 7\n")
      assert.include(error.message, "cannot find the login")
      assert.isBelow(millis, 5000)
    }).pipe(Effect.provide(NodeServices.layer))
  )
})

describe("the end of a process", () => {
  it.live("B14: an exit in the middle of a turn fails all that waits, after the frames that were written before", () =>
    Effect.gen(function* () {
      const { connection, open, prompt, texts } = yield* start()
      const session = yield* open
      const other = yield* Effect.forkChild(prompt(session, "{hang}"))
      yield* until(() => texts.length === 1)
      const exit = yield* Effect.exit(prompt(session, "{chunks=300} {exit=134}"))
      const error = failureOf(exit)
      assert(error._tag === "ProcessExited")
      assert.deepStrictEqual([error.code, error.stderrTail], [134, "faulty-agent: exiting with 134\n"])
      assert.isAtLeast(error.sinceLastFrameMillis!, 0)
      assert.strictEqual(failureOf(yield* Fiber.await(other)), error)
      assert.deepStrictEqual(
        texts.slice(1),
        Array.from({ length: 300 }, (_, index) => `chunk ${index}`)
      )
      assert.strictEqual(yield* connection.ended, error)
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("death by a signal names the signal", () =>
    Effect.gen(function* () {
      for (const signal of ["SIGKILL", "SIGTERM", "SIGSEGV"]) {
        const { open, prompt } = yield* start()
        const error = failureOf(yield* Effect.exit(prompt(yield* open, `{kill=${signal}}`)))
        assert(error._tag === "ProcessExited")
        assert.deepStrictEqual([error.code, error.signal], [null, signal])
        assert.include(error.stderrTail, signal)
      }
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("a last line without its newline is read, and half a frame is no frame", () =>
    Effect.gen(function* () {
      const whole = yield* start()
      assert.deepStrictEqual(yield* whole.prompt(yield* whole.open, "{no-newline}"), { stopReason: "end_turn" })
      assert.strictEqual((yield* whole.connection.ended)._tag, "ProcessExited")
      const half = yield* start()
      const error = failureOf(yield* Effect.exit(half.prompt(yield* half.open, "{partial=3}")))
      assert(error._tag === "ProcessExited")
      assert.strictEqual(error.code, 3)
      assert.deepStrictEqual(half.texts, ["chunk 0"])
      assert.strictEqual(half.connection.stats.malformed, 1)
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("B19: a process that closes its stdout and lives on is TransportClosed, not exited", () =>
    Effect.gen(function* () {
      const { open, prompt, texts } = yield* start([], { drainGrace: "100 millis" })
      const error = failureOf(yield* Effect.exit(prompt(yield* open, "{close-stdout} {hang}")))
      assert(error._tag === "TransportClosed")
      assert.strictEqual(error.side, "stdout")
      assert.deepStrictEqual(texts, ["chunk 0"])
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("writing to a process that closed its stdin is TransportClosed with EPIPE, not an uncaught error", () =>
    Effect.gen(function* () {
      const { connection, open, prompt, texts } = yield* start([], { drainGrace: "100 millis" })
      const session = yield* open
      const turn = yield* Effect.forkChild(prompt(session, "{close-stdin} {text=closed} {hang}"))
      yield* until(() => texts.length === 2)
      // The agent closes it behind its last text.
      yield* Effect.ignore(connection.notify("session/cancel", { sessionId: session })).pipe(
        Effect.repeat({ schedule: Schedule.spaced("10 millis"), until: () => !connection.isOpen(), times: 1000 })
      )
      const error = failureOf(yield* Fiber.await(turn))
      assert(error._tag === "TransportClosed")
      assert.deepStrictEqual([error.side, error.detail], ["stdin", "EPIPE"])
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("EPIPE because the process is gone is told as its exit", () =>
    Effect.gen(function* () {
      const { connection } = yield* start(["exit-at=start:5"])
      yield* Effect.ignore(connection.notify("any", { text: "x".repeat(100_000) })).pipe(
        Effect.repeat({ while: () => connection.isOpen(), schedule: Schedule.spaced("1 millis"), times: 15_000 })
      )
      const end = yield* connection.ended
      assert(end._tag === "ProcessExited")
      assert.strictEqual(end.code, 5)
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("a grandchild that holds stdout open does not keep the exit from being told", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const { open, prompt, texts } = yield* start([], { drainGrace: "100 millis" })
      const session = yield* open
      const exit = yield* Effect.exit(prompt(session, `{child=${mark}:stdout+ignore-term} {chunks=50} {exit=0}`))
      const error = failureOf(exit)
      assert(error._tag === "ProcessExited")
      assert.strictEqual(error.code, 0)
      assert.strictEqual(texts.length, 50)
    }).pipe(Effect.scoped, Effect.provide(NodeServices.layer))
  )

  it.live("a grandchild that goes on writing is cut after ten drain graces", () =>
    Effect.gen(function* () {
      const script = `(while :; do echo '{"jsonrpc":"2.0","method":"tick"}'; sleep 0.02; done) & exit 0`
      const transport = yield* launch([], { command: "/bin/sh", args: ["-c", script], drainGrace: "100 millis" })
      const { connection } = yield* connect(transport)
      const [end, millis] = yield* timed(connection.ended)
      assert.strictEqual(end._tag, "ProcessExited")
      assert.isAbove(millis, 500)
      assert.isBelow(millis, 10_000)
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live(
    "what a grandchild still writes after the exit is delivered, as long as it does not pause for the drain grace",
    () =>
      Effect.gen(function* () {
        const transport = yield* launch([], {
          command: "/bin/sh",
          args: ["-c", `(for i in 1 2 3 4 5 6; do sleep 0.06; echo '{"jsonrpc":"2.0","method":"n"}'; done) & exit 0`],
          drainGrace: "150 millis"
        })
        const { connection } = yield* connect(transport)
        yield* connection.ended
        assert.strictEqual(connection.stats.framesIn, 6)
      }).pipe(Effect.provide(NodeServices.layer))
  )
})

describe("stderr", () => {
  it.live("H7, B66: 256 KiB on stderr block nothing, and a bounded tail of it is kept", () =>
    Effect.gen(function* () {
      const { connection, open } = yield* start(["stderr-kib=256"], { stderrTailBytes: 2048 })
      yield* open
      yield* until(() => connection.stderrTail().length === 2048)
      assert.match(connection.stderrTail(), /^e*\ne+\n(e+\n)?$/)
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("what comes on stderr a moment after the exit is in the evidence", () =>
    Effect.gen(function* () {
      const script = "(sleep 0.1; echo the reason >&2) >&- & exit 0"
      const transport = yield* launch([], { command: "/bin/sh", args: ["-c", script], drainGrace: "5 seconds" })
      const { connection } = yield* connect(transport)
      const end = yield* connection.ended
      assert(end._tag === "ProcessExited")
      assert.strictEqual(end.stderrTail, "the reason\n")
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("secrets are taken out of the tail and of the error", () =>
    Effect.gen(function* () {
      const redact = (text: string) => text.replaceAll("hunter2", "<PASSWORD>")
      const { connection } = yield* start(["stderr=the password is hunter2", "exit-at=start:1"], { redact })
      const end = yield* connection.ended
      assert(end._tag === "ProcessExited")
      assert.match(end.stderrTail, /^the password is <PASSWORD>\n/)
      assert.notInclude(end.message, "hunter2")
    }).pipe(Effect.provide(NodeServices.layer))
  )
})

describe("stopping", () => {
  it.live("B01: close ends a shell wrapper, its agent and a grandchild, and resolves when all are gone", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const transport = yield* launchWrapped([`child=${mark}`])
      const { open } = yield* connect(transport)
      yield* open
      yield* untilRunning(mark, 3)
      yield* transport.close
      assert.deepStrictEqual(yield* running(mark), [])
      assert.strictEqual((yield* transport.ended)._tag, "ProcessExited")
      yield* transport.close
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("B02: interrupting the owner of the scope does the same", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const owner = yield* Effect.forkChild(
        Effect.scoped(Effect.andThen(launchWrapped([`child=${mark}`]), () => Effect.never))
      )
      yield* untilRunning(mark, 3)
      yield* Fiber.interrupt(owner)
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("an agent, a wrapper and a grandchild that ignore TERM and the end of input are killed after killGrace", () =>
    Effect.gen(function* () {
      const mark = newMark()
      for (const start of [launch, launchWrapped]) {
        const transport = yield* start(["ignore-term", "ignore-eof", `child=${mark}:ignore-term+stdout`], {
          killGrace: "200 millis"
        })
        const { open } = yield* connect(transport)
        yield* open
        yield* untilRunning(mark, start === launch ? 2 : 3)
        const [, millis] = yield* timed(transport.close)
        assert.deepStrictEqual(yield* running(mark), [])
        assert.isAtLeast(millis, 190)
        assert.isBelow(millis, 10_000)
        const end = yield* transport.ended
        assert(end._tag === "ProcessExited")
      }
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("B18: requests that wait at a close fail with HostClosed, not with the exit that follows", () =>
    Effect.gen(function* () {
      const { connection, open, prompt, texts } = yield* start()
      const session = yield* open
      const turn = yield* Effect.forkChild(prompt(session, "{hang}"))
      yield* until(() => texts.length === 1)
      yield* connection.close("the session was closed")
      assert.strictEqual(failureOf(yield* Fiber.await(turn))._tag, "HostClosed")
      assert.strictEqual((yield* connection.ended)._tag, "HostClosed")
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("closing the scope of a process that is gone already still ends the grandchild it left", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const scope = yield* Scope.make()
      const { connection } = yield* start([`child=${mark}`, "exit-at=initialize:0"]).pipe(Scope.provide(scope))
      yield* untilRunning(mark, 2)
      yield* Effect.exit(connection.request("initialize", { protocolVersion: 1 }))
      yield* untilRunning(mark, 1)
      yield* Scope.close(scope, Exit.void)
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("endInput ends the input alone: one process ends by itself, another stays until it is closed", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const ending = yield* launch([`mark=${mark}`])
      yield* ending.endInput!
      const end = yield* ending.ended
      assert.deepInclude(end, { _tag: "ProcessExited", code: 0, signal: null })
      const staying = yield* launch([`mark=${mark}`, "ignore-eof"])
      yield* staying.endInput!
      assert.isFalse(staying.send(new TextEncoder().encode("{}\n")))
      yield* untilRunning(mark, 1)
      yield* staying.close
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("a grandchild in a group of its own (setsid) is not covered: the agent has to end it itself", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const transport = yield* launch([`child=${mark}:setsid`])
      yield* untilRunning(mark, 2)
      yield* transport.close
      const [left, ...others] = yield* running(mark)
      assert.deepStrictEqual(others, [])
      assert.include(left!.args, "/bin/sh")
      process.kill(-left!.pid, "SIGKILL")
      yield* untilGone(mark)
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("a process that never reads keeps nobody waiting at a close", () =>
    Effect.gen(function* () {
      const transport = yield* launch(["deaf"], { outgoingCapacity: 4 })
      const { connection } = yield* connect(transport)
      const sender = yield* Effect.forkChild(Effect.forever(connection.notify("_text", { text: "x".repeat(50_000) })))
      yield* until(() => connection.stats.framesOut >= 5)
      yield* connection.close("enough")
      assert.strictEqual(failureOf(yield* Fiber.await(sender))._tag, "HostClosed")
      assert.strictEqual((yield* transport.ended)._tag, "ProcessExited")
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("W7: what waits for a process that doesn't read is bounded in bytes too", () =>
    Effect.gen(function* () {
      const transport = yield* launch(["deaf"], { outgoingBytes: 1_000_000 })
      const frame = new Uint8Array(300_000).fill(32)
      // One alone goes, however large; it is being written from then on.
      assert.isTrue(transport.send(new Uint8Array(2_000_000).fill(32)))
      const sent = [1, 2, 3, 4, 5].map(() => transport.send(frame))
      assert.deepStrictEqual(sent, [true, true, true, false, false])
      assert.isTrue(transport.send(new Uint8Array(100_000)))
      assert.isFalse(transport.send(new Uint8Array(1)))
    }).pipe(Effect.provide(NodeServices.layer))
  )

  it.live("is a layer too, for a program that uses the wire alone", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const args = [agentFile, "--close", `--child=${mark}`]
      const transport = AcpTransport.layerChildProcess({ command: process.execPath, args, cwd: tmpdir(), env })
      const said = yield* ask(tmpdir(), "hello {text=hi}").pipe(Effect.provide(transport))
      assert.include(said, "hi")
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(NodeServices.layer))
  )
})
