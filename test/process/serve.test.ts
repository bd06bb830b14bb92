// The command serve as a process, with clients of its own package. Nothing here depends on speed.
import { execFileSync, spawn, type ChildProcess } from "node:child_process"
import { once } from "node:events"
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  writeSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync
} from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { Duplex } from "node:stream"
import { afterAll, afterEach, assert, describe, it } from "@effect/vitest"
import * as NodeSocket from "@effect/platform-node/NodeSocket"
import { AgentProfile, SidecarClient } from "acp-sidecar"
import type { Session } from "acp-sidecar"
import * as NodeConnector from "acp-sidecar/NodeConnector"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Redacted from "effect/Redacted"
import type * as Socket from "effect/socket/Socket"
import * as Stream from "effect/Stream"
import * as Agents from "../../src/cli/agents.ts"
import * as ScriptedModel from "../../src/cli/ScriptedModel.ts"
import { assertSentence, bin, jsonLines, run, start } from "../support/command.ts"
import { faulty, texts, untilText } from "../support/faultyAgent.ts"
import { newMark, running, untilGone, untilRunning } from "../support/processes.ts"

const folders = mkdtempSync(join(tmpdir(), "acp-serve-"))
afterAll(() => rmSync(folders, { recursive: true, force: true }))
let count = 0
const newFolder = (): string => {
  const folder = join(folders, `${++count}`)
  mkdirSync(folder)
  return folder
}

/** What is killed after a test, should it fail. */
const marks: Array<string> = []
const marked = (): string => {
  const mark = newMark()
  marks.push(mark)
  return mark
}
afterEach(async () => {
  for (const mark of marks.splice(0)) {
    for (const { pid } of await Effect.runPromise(running(mark))) process.kill(pid, "SIGKILL")
  }
})

type Env = Readonly<Record<string, string | undefined>>

/** A sidecar that listens on the socket. */
const serving = (path: string, args: ReadonlyArray<string> = [], env: Env = {}) =>
  Effect.promise(async () => {
    const served = start(["serve", "--socket", path, ...args], { env })
    await served.seen("stderr", "listening on ")
    return served
  })

const ended = ({ ended }: ReturnType<typeof start>) => Effect.promise(() => ended)

const connect = (path: string, options: Partial<SidecarClient.Options> = {}) =>
  Effect.flatMap(NodeConnector.socket(path), (socket) => SidecarClient.connect(socket, { client: "test", ...options }))

const open = (connection: SidecarClient.Connection, agent: AgentProfile.AgentProfile) =>
  Effect.gen(function* () {
    const vm = yield* connection.sidecar.openVm({ root: tmpdir() })
    return yield* vm.openSession({ agent, permission: "reject" })
  })

/** A turn that runs until it is stopped; the agent has said so. */
const hang = (session: Session.Session, switches = "") =>
  Effect.gen(function* () {
    const turn = yield* session.submit(`{text=here} {hang} ${switches}`)
    yield* untilText(turn, "here")
    return turn
  })

/** An agent that nothing but KILL ends. */
const stubborn = (mark: string) => faulty("ignore-term", "ignore-eof", "ignore-cancel", `child=${mark}:ignore-term`)

describe("acp-sidecar serve", { timeout: 120_000 }, () => {
  it.live.each(["SIGTERM", "SIGINT", "SIGHUP"] as const)(
    "disposes itself on %s, its agents and turns included",
    (signal) =>
      Effect.gen(function* () {
        const mark = marked()
        const path = join(newFolder(), "s.sock")
        const served = yield* serving(path, ["--id", "acp-sidecar-shared:mine"])
        const connection = yield* connect(path)
        assert.strictEqual(connection.sidecar.id, "acp-sidecar-shared:mine")
        const session = yield* open(connection, faulty(`mark=${mark}`))
        assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
        const turn = yield* hang(session)
        served.child.kill(signal)
        assert.deepInclude(yield* ended(served), { code: 0, stdout: "" })
        assert.deepStrictEqual(yield* running(mark), [])
        assert.isFalse(existsSync(path))
        assert.notStrictEqual((yield* turn.outcome)._tag, "Completed")
        assert.strictEqual((yield* Effect.flip(connection.sidecar.openVm({ root: tmpdir() })))._tag, "Disposed")
      })
  )

  it.live("ends idle on a signal, with and without clients", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      const alone = yield* serving(path)
      alone.child.kill("SIGTERM")
      assert.strictEqual((yield* ended(alone)).code, 0)
      const served = yield* serving(path)
      yield* connect(path)
      served.child.kill("SIGTERM")
      assert.strictEqual((yield* ended(served)).code, 0)
    })
  )

  it.live("keeps its clients connected while it disposes itself, so that they hear what became of their turns", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      const served = yield* serving(path, [], { ACP_SIDECAR_CANCEL_GRACE: "300 millis" })
      const connection = yield* connect(path)
      const turn = yield* hang(yield* open(connection, faulty("ignore-cancel")))
      const last = yield* Effect.forkChild(Stream.runCollect(connection.sidecar.events), { startImmediately: true })
      served.child.kill("SIGTERM")
      const outcome = yield* turn.outcome
      assert.isTrue(outcome._tag === "Cancelled" && outcome.escalation === "retired", JSON.stringify(outcome))
      assert.strictEqual((yield* ended(served)).code, 0)
      assert.include(
        (yield* Fiber.join(last)).map(({ kind }) => kind),
        "disposing"
      )
    })
  )

  it.live("kills agents that won't end on the second signal", () =>
    Effect.gen(function* () {
      const mark = marked()
      const path = join(newFolder(), "s.sock")
      const served = yield* serving(path, [], { ACP_SIDECAR_CANCEL_GRACE: "1 hour" })
      yield* hang(yield* open(yield* connect(path), stubborn(mark)))
      served.child.kill("SIGINT")
      yield* Effect.promise(() => served.seen("stderr", "again to kill"))
      assert.isAbove((yield* running(mark)).length, 0)
      served.child.kill("SIGINT")
      assert.strictEqual((yield* ended(served)).code, 0)
      assert.deepStrictEqual(yield* running(mark), [])
    })
  )

  it.live("B03, H6: takes over the socket of a killed one, and ends the agents that it has left", () =>
    Effect.gen(function* () {
      const mark = marked()
      const folder = newFolder()
      const path = join(folder, "s.sock")
      const env = { ACP_SIDECAR_STATE: join(folder, "state") }
      const first = yield* serving(path, [], env)
      const connection = yield* connect(path)
      const turn = yield* hang(yield* open(connection, stubborn(mark)))
      first.child.kill("SIGKILL")
      yield* ended(first)
      yield* connection.lost
      assert.strictEqual((yield* turn.outcome)._tag, "Failed")
      assert.isTrue(existsSync(path))
      assert.isAbove((yield* running(mark)).length, 0)
      const second = yield* serving(path, [], env)
      yield* untilGone(mark)
      const session = yield* open(yield* connect(path), faulty())
      assert.strictEqual((yield* session.prompt("again"))._tag, "Completed")
      second.child.kill("SIGTERM")
      assert.strictEqual((yield* ended(second)).code, 0)
    })
  )

  it.live("is refused where a live one listens, whose clients don't notice", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      yield* serving(path)
      const session = yield* open(yield* connect(path), faulty())
      const { code, stderr, stdout } = yield* Effect.promise(() => run(["serve", "--socket", path, "--json"]))
      assert.deepStrictEqual({ code, stdout }, { code: 1, stdout: "" })
      assertSentence(stderr, `"${path}"`)
      assert.strictEqual((yield* session.prompt("still"))._tag, "Completed")
    })
  )

  it.live("is one, of several that are started at once on what a killed one has left", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      const dead = yield* serving(path)
      dead.child.kill("SIGKILL")
      yield* ended(dead)
      const all = Array.from({ length: 4 }, () => start(["serve", "--socket", path]))
      const losers = yield* Effect.promise(async () => {
        const exits: Array<Awaited<(typeof all)[number]["ended"]>> = []
        await new Promise<void>((done) => {
          for (const { ended } of all) void ended.then((exit) => exits.push(exit) === 3 && done())
        })
        return exits
      })
      for (const { code, stderr } of losers) {
        assert.strictEqual(code, 1)
        assertSentence(stderr, `"${path}"`)
      }
      assert.strictEqual((yield* (yield* connect(path)).sidecar.describe).state, "ready")
    })
  )

  it.live("tells where it listens as JSON, and has files of its user alone", () =>
    Effect.gen(function* () {
      const folder = newFolder()
      const path = join(folder, "made", "s.sock")
      const tokenFile = join(folder, "token")
      const served = yield* serving(path, ["--json", "--id", "x", "--token-file", tokenFile])
      yield* Effect.promise(() => served.seen("stdout", "\n"))
      assert.strictEqual(statSync(path).mode & 0o777, 0o600)
      assert.strictEqual(statSync(join(folder, "made")).mode & 0o777, 0o700)
      assert.strictEqual(statSync(tokenFile).mode & 0o777, 0o600)
      const token = readFileSync(tokenFile, "utf8").trim()
      assert.isAtLeast(token.length, 32)
      const refused = yield* Effect.flip(connect(path, { token: Redacted.make("wrong") }))
      assert.deepInclude(refused, { _tag: "HandshakeRefused", reason: "token" })
      assert.deepInclude(yield* Effect.flip(connect(path)), { _tag: "HandshakeRefused", reason: "token" })
      yield* connect(path, { token: Redacted.make(token) })
      served.child.kill("SIGTERM")
      const { stderr, stdout } = yield* ended(served)
      assert.deepStrictEqual(jsonLines(stdout), [{ socket: path, pid: served.child.pid, sidecarId: "x", tokenFile }])
      assert.notInclude(stdout + stderr, token)
      // It is its user's, who may have told it to others.
      assert.strictEqual(readFileSync(tokenFile, "utf8").trim(), token)
    })
  )

  it.live("refuses a token file that others may read, and one without a token", () =>
    Effect.gen(function* () {
      const file = join(newFolder(), "token")
      const attempt = Effect.promise(() => run(["serve", "--listen", "127.0.0.1:0", "--token-file", file]))
      writeFileSync(file, "secret-token\n", { mode: 0o600 })
      for (const mode of [0o640, 0o604, 0o620, 0o666]) {
        chmodSync(file, mode)
        const { code, stderr } = yield* attempt
        assert.strictEqual(code, 2)
        assertSentence(stderr, "chmod 600")
        assert.notInclude(stderr, "secret-token")
      }
      writeFileSync(file, " \n")
      chmodSync(file, 0o600)
      const empty = yield* attempt
      assert.strictEqual(empty.code, 2)
      assertSentence(empty.stderr, "is empty")
      rmSync(file)
      mkdirSync(file, { mode: 0o700 })
      const folder = yield* attempt
      assert.strictEqual(folder.code, 2)
      assertSentence(folder.stderr, "is no file")
    })
  )

  it.live("asks for a token on a WebSocket, which it makes for the time when none is given", () =>
    Effect.gen(function* () {
      const runtime = newFolder()
      const served = start(["serve", "--listen", "127.0.0.1:0", "--json"], { env: { XDG_RUNTIME_DIR: runtime } })
      yield* Effect.promise(() => served.seen("stdout", "\n"))
      yield* Effect.promise(() => served.seen("stderr", "its token is in "))
      const at = (yield* firstLine(served)) as { readonly url: string; readonly tokenFile: string }
      assert.match(at.url, /^ws:\/\/127\.0\.0\.1:\d+\/$/)
      assert.isTrue(at.tokenFile.startsWith(runtime))
      assert.strictEqual(statSync(at.tokenFile).mode & 0o777, 0o600)
      const dial = (token: Redacted.Redacted<string> | undefined) =>
        Effect.flatMap(NodeConnector.webSocket(at.url), (socket) =>
          SidecarClient.connect(socket, { client: "test", token })
        )
      assert.deepInclude(yield* Effect.flip(dial(undefined)), { _tag: "HandshakeRefused", reason: "token" })
      const token = Redacted.make(readFileSync(at.tokenFile, "utf8").trim())
      const session = yield* open(yield* dial(token), faulty())
      assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
      served.child.kill("SIGTERM")
      assert.strictEqual((yield* ended(served)).code, 0)
      assert.isFalse(existsSync(at.tokenFile))
    })
  )

  it.live("ends when a client has disposed it, who hears of it", () =>
    Effect.gen(function* () {
      const mark = marked()
      const path = join(newFolder(), "s.sock")
      const served = yield* serving(path)
      const connection = yield* connect(path)
      yield* open(connection, faulty(`mark=${mark}`))
      yield* connection.sidecar.dispose
      assert.strictEqual((yield* connection.sidecar.describe).state, "disposed")
      assert.deepStrictEqual(yield* running(mark), [])
      assert.strictEqual((yield* ended(served)).code, 0)
    })
  )

  it.live("ends with --exit-when-unused when its last client has gone, and not before", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      const served = yield* serving(path, ["--exit-when-unused"])
      yield* Effect.scoped(
        Effect.gen(function* () {
          yield* connect(path)
          yield* Effect.scoped(connect(path))
          const session = yield* open(yield* connect(path), faulty())
          assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
        })
      )
      assert.strictEqual((yield* ended(served)).code, 0)
      assert.isFalse(existsSync(path))
    })
  )

  it.live("ends with --exit-when-unused also when its only client stays for no time at all", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      const served = yield* serving(path, ["--exit-when-unused"])
      yield* Effect.scoped(connect(path))
      // And not only when it gives up waiting for a first client, after 30 s.
      assert.strictEqual((yield* Effect.timeout(ended(served), "15 seconds")).code, 0)
    })
  )

  it.live("goes on when nobody reads what it says", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      const served = yield* serving(path)
      served.child.stderr.destroy()
      served.child.stdout.destroy()
      const session = yield* open(yield* connect(path), faulty())
      assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
      // It tells what it does on stderr.
      served.child.kill("SIGINT")
      assert.strictEqual((yield* ended(served)).code, 0)
      assert.isFalse(existsSync(path))
    })
  )

  it.live("ends with the process that --parent names, and kills agents that won't", () =>
    Effect.gen(function* () {
      const mark = marked()
      const path = join(newFolder(), "s.sock")
      const parent = yield* child(["-e", "setInterval(() => {}, 1000)"])
      const served = yield* serving(path, ["--parent", `${parent.pid}`], { ACP_SIDECAR_CANCEL_GRACE: "1 hour" })
      yield* hang(yield* open(yield* connect(path), stubborn(mark)))
      parent.kill("SIGKILL")
      assert.strictEqual((yield* ended(served)).code, 0)
      assert.deepStrictEqual(yield* running(mark), [])
      const gone = yield* Effect.promise(() => run(["serve", "--socket", path, "--parent", `${parent.pid}`]))
      assert.strictEqual(gone.code, 2)
      assertSentence(gone.stderr, "no such process")
    })
  )

  it.live("answers mistakes with a sentence and exit code 2", () =>
    Effect.gen(function* () {
      const folder = newFolder()
      const file = join(folder, "file")
      writeFileSync(file, "")
      const cases: ReadonlyArray<readonly [ReadonlyArray<string>, string, number?]> = [
        [[], "--stdio, --socket PATH or --listen"],
        [["--stdio", "--socket", "x"], "in one way"],
        [["--stdio", "--json"], "stdout is the client's"],
        [["--listen", "8123"], "HOST:PORT"],
        [["--listen", "127.0.0.1:65536"], "HOST:PORT"],
        [["--listen", "0.0.0.0:0"], "not loopback"],
        [["--listen", "[::]:0"], "not loopback"],
        [["--socket", `/${"x".repeat(120)}`], "121 bytes"],
        [["--socket", ""], "needs a path"],
        [["--socket", file], "no socket", 1],
        [["--socket", "x", "--parent", "0"], "id of a process"],
        [["--socket", "x", "--id", "a\nb"], "control character"],
        [["--socket", "x", "--token-file", ""], "needs a path"]
      ]
      const results = yield* Effect.promise(() => Promise.all(cases.map(([args]) => run(["serve", ...args]))))
      for (const [index, [args, part, expected = 2]] of cases.entries()) {
        const { code, stderr, stdout } = results[index]!
        assert.deepStrictEqual({ code, stdout }, { code: expected, stdout: "" }, args.join(" "))
        assertSentence(stderr, part)
      }
    })
  )
})

const firstLine = (served: ReturnType<typeof start>) =>
  Effect.promise(async () => {
    await served.seen("stdout", "\n")
    return JSON.parse(served.text.stdout) as unknown
  })

/** A Node process that is killed with the test. */
const child = (args: ReadonlyArray<string>, options: { readonly env?: Env; readonly command?: string } = {}) =>
  Effect.acquireRelease(
    Effect.sync(() =>
      spawn(options.command ?? process.execPath, args, {
        stdio: "pipe",
        env: { PATH: process.env["PATH"], HOME: process.env["HOME"], ...options.env }
      })
    ),
    (process) => Effect.sync(() => process.kill("SIGKILL"))
  )

const exit = (process: ChildProcess) =>
  Effect.promise(async () =>
    process.exitCode === null ? ((await once(process, "exit"))[0] as number) : process.exitCode
  )

/** The streams of a process, as its client has them. */
const streams = ({
  stdin,
  stdout
}: {
  readonly stdin: NodeJS.WritableStream
  readonly stdout: NodeJS.ReadableStream
}) =>
  Effect.flatMap(
    NodeSocket.fromDuplex(Effect.sync(() => Duplex.from({ readable: stdout, writable: stdin }))),
    (socket: Socket.Socket) => SidecarClient.connect(socket, { client: "test" })
  )

describe("acp-sidecar serve --stdio", { timeout: 120_000 }, () => {
  it.live("serves its one client, and disposes itself when its input ends, with a turn of the bundled agent", () =>
    Effect.gen(function* () {
      const model = yield* ScriptedModel.make()
      const folder = newFolder()
      const mark = marked()
      const served = yield* child([bin, "serve", "--stdio"], { env: { ACP_SIDECAR_STATE: join(folder, mark) } })
      const left = exit(served)
      const connection = yield* streams(served)
      const agent = AgentProfile.make({
        ...Agents.bundled,
        command: [...Agents.bundled.command, mark],
        env: { OPENAI_BASE_URL: model.baseUrl, OPENAI_API_KEY: "none", OPENAI_MODEL: "scripted" }
      })
      const session = yield* open(connection, agent)
      const said = yield* session.submit("[[say:over stdio]]")
      assert.strictEqual((yield* texts(said)).join(""), "over stdio")
      const turn = yield* session.submit("[[slow:1000:1000]]")
      yield* turn.updates.pipe(Stream.take(1), Stream.runDrain)
      yield* untilRunning(mark, 1)
      served.stdin.end()
      assert.strictEqual(yield* left, 0)
      assert.deepStrictEqual(yield* running(mark), [])
      assert.notStrictEqual((yield* turn.outcome)._tag, "Completed")
    })
  )

  it.live("disposes itself when its client is killed, and kills agents that won't end", () =>
    Effect.gen(function* () {
      const mark = marked()
      const agent = [process.execPath, ...stubborn(mark).command.slice(1)]
      // A client of its own, as a process that is killed.
      const parent = yield* child([join(import.meta.dirname, "../fixtures/stdio-client.ts"), bin, ...agent], {
        env: { ACP_SIDECAR_STATE: join(newFolder(), mark), ACP_SIDECAR_CANCEL_GRACE: "1 hour" }
      })
      const [pid] = yield* Effect.promise(() => once(parent.stdout.setEncoding("utf8"), "data"))
      assert.isAbove((yield* running(mark)).length, 0)
      parent.kill("SIGKILL")
      yield* untilGone(mark)
      yield* untilEnded(Number(pid))
    })
  )

  it.live("ends when the process that started it has, though its input stays open", () =>
    Effect.gen(function* () {
      const mark = marked()
      const folder = newFolder()
      const fifo = join(folder, "fifo")
      execFileSync("mkfifo", [fifo])
      // Both ends of it, so that it never ends.
      const input = yield* Effect.acquireRelease(
        Effect.sync(() => openSync(fifo, "r+")),
        (file) => Effect.sync(() => closeSync(file))
      )
      const shell = yield* Effect.acquireRelease(
        Effect.sync(() =>
          spawn("/bin/sh", ["-c", '"$0" "$@"; :', process.execPath, bin, "serve", "--stdio", "--id", mark], {
            stdio: [input, "pipe", "inherit"],
            env: { PATH: process.env["PATH"], ACP_SIDECAR_STATE: folder }
          })
        ),
        (shell) => Effect.sync(() => shell.kill("SIGKILL"))
      )
      writeSync(input, `${JSON.stringify({ acpSidecar: 1, client: "test" })}\n`)
      const [welcome] = yield* Effect.promise(() => once(shell.stdout!, "data"))
      assert.include(String(welcome), mark)
      yield* untilRunning(mark, 2)
      shell.kill("SIGKILL")
      yield* untilGone(mark)
    })
  )
})

const untilEnded = (pid: number) =>
  Effect.promise(async () => {
    for (;;) {
      try {
        process.kill(pid, 0)
      } catch {
        return
      }
      await new Promise((done) => setImmediate(done))
    }
  })

describe("acp-sidecar reap", { timeout: 120_000 }, () => {
  it.live("ends what a killed sidecar has left, and leaves those of a live one alone", () =>
    Effect.gen(function* () {
      const [mark, other] = [marked(), marked()]
      const folder = newFolder()
      const env = { ACP_SIDECAR_STATE: join(folder, "state") }
      const dead = yield* serving(join(folder, "a.sock"), [], env)
      yield* hang(yield* open(yield* connect(join(folder, "a.sock")), stubborn(mark)))
      yield* serving(join(folder, "b.sock"), [], env)
      const session = yield* open(yield* connect(join(folder, "b.sock")), faulty(`mark=${other}`))
      dead.child.kill("SIGKILL")
      yield* ended(dead)
      const reaped = yield* Effect.promise(() => run(["reap", "--json"], { env }))
      assert.strictEqual(reaped.code, 0)
      assert.deepInclude(jsonLines(reaped.stdout)[0], { records: 2, live: 1, reaped: 1, kept: 0 })
      assert.deepStrictEqual(yield* running(mark), [])
      assert.strictEqual((yield* session.prompt("still"))._tag, "Completed")
      const again = yield* Effect.promise(() => run(["reap"], { env }))
      assert.deepStrictEqual(again, {
        code: 0,
        stdout: "1 launch record: 1 agent of live sidecars left alone.\n",
        stderr: ""
      })
    })
  )

  it("says when there is nothing to do", async () => {
    const env = { ACP_SIDECAR_STATE: newFolder() }
    assert.deepInclude(await run(["reap"], { env }), {
      code: 0,
      stdout: "Nothing was left: there are no launch records.\n"
    })
    const off = await run(["reap"], { env: { ACP_SIDECAR_STATE: "off" } })
    assert.strictEqual(off.code, 0)
    assert.include(off.stdout, "off")
    const help = await run(["reap", "--help"])
    for (const word of ["Exit codes: 0", "EXAMPLES"]) assert.include(help.stdout, word)
  })
})
