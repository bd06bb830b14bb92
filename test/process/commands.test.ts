// The commands of a running sidecar, against one that the command `serve` runs. Waits are for events, bounds are generous.
import * as NodeSocket from "@effect/platform-node/NodeSocket"
import { assert, describe, it } from "@effect/vitest"
import { AgentProfile, type Session, SidecarClient, SidecarPool } from "acp-sidecar"
import * as NodeConnector from "acp-sidecar/NodeConnector"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Stream from "effect/Stream"
import { spawn } from "node:child_process"
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import * as Net from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assertSentence, bin, jsonLines, root, run, start } from "../support/command.ts"

const faulty = AgentProfile.make({
  name: "faulty",
  command: [process.execPath, join(root, "test/fixtures/faulty-agent.mjs")]
})

interface Stage {
  readonly folder: string
  readonly env: Readonly<Record<string, string>>
  readonly command: (...args: ReadonlyArray<string>) => Effect.Effect<Awaited<ReturnType<typeof run>>>
  readonly started: (...args: ReadonlyArray<string>) => ReturnType<typeof start>
}

/** A state folder of its own. Commands find in it what is served there. */
const stage = Effect.map(
  Effect.acquireRelease(
    Effect.sync(() => mkdtempSync(join(tmpdir(), "acp-sidecar-c-"))),
    (folder) => Effect.sync(() => rmSync(folder, { recursive: true, force: true }))
  ),
  (folder): Stage => {
    const env = { ACP_SIDECAR_STATE: folder, ACP_SIDECAR_CANCEL_GRACE: "3s", ACP_SIDECAR_KILL_GRACE: "1s" }
    return {
      folder,
      env,
      command: (...args) => Effect.promise(() => run(args, { env })),
      started: (...args) => start(args, { env })
    }
  }
)

/** A sidecar that listens, until the scope closes. */
const serving = Effect.fnUntraced(function* ({ env, folder }: Stage, name: string) {
  const path = join(folder, `${name}.sock`)
  const child = yield* Effect.acquireRelease(
    Effect.sync(() => start(["serve", "--socket", path, "--id", name], { env })),
    ({ child, ended }) =>
      Effect.promise(async () => {
        child.kill("SIGCONT")
        child.kill("SIGTERM")
        await ended
      })
  )
  yield* Effect.promise(() => child.seen("stderr", "listening on"))
  return { path, ...child }
})

const client = Effect.fnUntraced(function* (path: string) {
  const socket = yield* NodeSocket.makeNet({ path })
  return yield* SidecarClient.connect(socket, { client: "test" })
})

const opened = Effect.fnUntraced(function* (stage: Stage, path: string, permission: "ask" | "allow" = "allow") {
  const { sidecar } = yield* client(path)
  const vm = yield* sidecar.openVm({ root: stage.folder })
  return { sidecar, vm, session: yield* vm.openSession({ agent: faulty, permission }) }
})

/** Submits a turn that lasts until it is cancelled, and is with the agent. */
const hanging = Effect.fnUntraced(function* (session: Session.Session) {
  const turn = yield* session.submit("{hang}")
  yield* turn.dispatched
  return turn
})

const listening = (path: string): Effect.Effect<boolean> =>
  Effect.callback((resume) => {
    const probe = Net.connect(path)
    probe.once("connect", () => resume(Effect.succeed(true)))
    probe.once("error", () => resume(Effect.succeed(false)))
    return Effect.sync(() => probe.destroy())
  })

const dead = (path: string) =>
  Effect.promise(
    () =>
      new Promise<void>((done) => {
        // Bound and killed, so that its file stays.
        const code = `require("node:net").createServer().listen(process.argv[1], () => process.kill(process.pid, "SIGKILL"))`
        spawn(process.execPath, ["-e", code, path]).once("close", () => done())
      })
  )

describe("commands of a running sidecar", { timeout: 90_000 }, () => {
  it("answer mistakes with a sentence and exit code 2, and have help with examples", async () => {
    const empty = mkdtempSync(join(tmpdir(), "acp-sidecar-c-"))
    try {
      const tokenless = join(empty, "token")
      writeFileSync(tokenless, " \n")
      const cases: ReadonlyArray<readonly [ReadonlyArray<string>, string | RegExp]> = [
        [["ps", "--socket", "a", "--url", "ws://127.0.0.1:1"], "not both"],
        [["ps", "--url", "ws://127.0.0.1:1"], "--token-file"],
        [["ps", "--url", "http://127.0.0.1:1", "--token-file", tokenless], "no token"],
        [["ps", "--token-file", join(empty, "none")], "ENOENT"],
        [["ps", "--socket", " "], "--socket is empty"],
        [["prompt"], "session"],
        [["prompt", "session-1"], "prompt is empty"],
        [["prompt", "session-1", "-"], "prompt is empty"],
        [["prompt", "session-1", "hi", "--timeout", "5"], "500ms, 8s, 5m or"],
        [["cancel"], "turn"],
        [["close"], "session"],
        [["stop", "--all", "--socket", "a"], "not both"]
      ]
      const results = await Promise.all(cases.map(([args]) => run(args, { env: { ACP_SIDECAR_STATE: empty } })))
      for (const [index, [args, part]] of cases.entries()) {
        const { code, stderr, stdout } = results[index]!
        assert.deepStrictEqual({ code, stdout }, { code: 2, stdout: "" }, args.join(" "))
        assertSentence(stderr, part)
      }
      const names = ["ps", "prompt", "cancel", "close", "stop"]
      for (const { code, stdout } of await Promise.all(names.map((name) => run([name, "--help"])))) {
        assert.strictEqual(code, 0)
        for (const word of ["Exit codes: 0", "2 bad input", "130 cancelled", "--json", "--socket", "EXAMPLES"]) {
          assert.include(stdout, word)
        }
      }
    } finally {
      rmSync(empty, { recursive: true, force: true })
    }
  })

  it.live("say how to start a sidecar where there is none", () =>
    Effect.gen(function* () {
      const { command, folder } = yield* stage
      yield* dead(join(folder, "gone.sock"))
      const [shown, json, cancelled, stopped, all, chosen] = yield* Effect.all(
        [
          command("ps"),
          command("ps", "--json"),
          command("cancel", "turn-1"),
          command("stop"),
          command("stop", "--all"),
          command("ps", "--socket", join(folder, "never.sock"))
        ],
        { concurrency: "unbounded" }
      )
      const hint = `acp-sidecar serve --socket ${folder}/default.sock`
      assert.strictEqual(shown.code, 0)
      assert.match(shown.stdout, /^.*gone\.sock: dead\n {2}The sidecar at .*ECONNREFUSED.*\n$/)
      assertSentence(shown.stderr, hint)
      const [one] = jsonLines(json.stdout)
      assert.deepStrictEqual(
        [one.socket, one.url, one.state, one.sidecarId, one.vms, one.hosts],
        [join(folder, "gone.sock"), null, "unreachable", null, [], []]
      )
      for (const { code, stderr } of [cancelled, stopped]) {
        assert.strictEqual(code, 1)
        assertSentence(stderr, hint)
        assert.include(stderr, "gone.sock")
      }
      assert.deepStrictEqual(all, { code: 0, stdout: "", stderr: "acp-sidecar: No sidecar runs.\n" })
      assert.strictEqual(chosen.code, 1)
      assert.include(chosen.stdout, "ENOENT")
    })
  )

  it.live("ps shows sessions with their turns, and agents with their processes", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const { path } = yield* serving(all, "first")
      const { session } = yield* opened(all, path)
      const turn = yield* hanging(session)
      const [text, json] = yield* Effect.all([all.command("ps"), all.command("ps", "--json")], {
        concurrency: "unbounded"
      })
      assert.deepStrictEqual([text.code, text.stderr], [0, ""])
      const lines = text.stdout.split("\n")
      assert.match(lines[0]!, /^first: ready, 1 VM, 1 session, 1 turn, 1 agent process \(version \S+, .*first\.sock\)$/)
      assert.match(lines[1]!, /^ {2}vm +session +agent +state +turn +phase +lane +questions +idle +folder$/)
      assert.match(lines[2]!, /^ {2}vm-1 +session-1 +faulty +open +turn-1 +running +interactive +0 +- /)
      assert.match(lines[3]!, /^ {2}host +agent +pid +state +sessions +uptime +memory +restarts$/)
      assert.match(lines[4]!, new RegExp(`^ {2}host-1 +faulty +${session.pid} +ready +1 +[\\d.]+ s +\\d+ MiB +0$`))
      const [one, ...rest] = jsonLines(json.stdout)
      assert.deepStrictEqual(rest, [])
      assert.deepStrictEqual(Object.keys(one), [
        "socket",
        "url",
        "state",
        "problem",
        "sidecarId",
        "version",
        "activePrompts",
        "vms",
        "hosts",
        "heldBack"
      ])
      assert.deepStrictEqual([one.socket, one.state, one.sidecarId], [path, "ready", "first"])
      assert.deepStrictEqual(one.vms[0].sessions[0].turns, [{ turnId: turn.id, phase: "running", lane: "interactive" }])
      assert.deepStrictEqual([one.hosts[0].pid, one.hosts[0].sessions], [session.pid, ["session-1"]])
    })
  )

  it.live("prompt streams the turn of somebody else's session, who sees it too", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const { path } = yield* serving(all, "first")
      const { session } = yield* opened(all, path)
      const seen = yield* session.updates.pipe(
        Stream.takeUntil(({ _tag }) => _tag === "TurnEnded"),
        Stream.runCollect,
        Effect.forkScoped({ startImmediately: true })
      )
      const text = yield* all.command("prompt", "session-1", "{text=hello} {permission}")
      assert.deepStrictEqual([text.code, text.stdout.startsWith("hello")], [0, true])
      assert.include(text.stderr, "permission: ")
      assert.include(text.stderr, "(by policy)")
      assert.include(JSON.stringify(Array.from(yield* Fiber.join(seen))), "hello")
      const piped = yield* Effect.promise(() =>
        run(["prompt", "session-1", "--json"], { env: all.env, stdin: "{text=again} {stop=refusal}" })
      )
      const lines = jsonLines(piped.stdout)
      assert.strictEqual(lines.at(-1)._tag, "Outcome")
      assert.deepStrictEqual([lines.at(-1).exitCode, lines.at(-1).outcome._tag], [0, "Completed"])
      assert.include(piped.stderr, "refusal")
      const timed = yield* all.command("prompt", "session-1", "{hang}", "--timeout", "300ms")
      assert.strictEqual(timed.code, 124)
      assertSentence(timed.stderr, "--timeout")
      const failed = yield* all.command("prompt", "session-1", "{error=-32000}", "--json")
      assert.deepStrictEqual([failed.code, jsonLines(failed.stdout).at(-1).outcome._tag], [1, "Failed"])
      const unknown = yield* all.command("prompt", "session-9", "hi", "--json")
      assert.strictEqual(unknown.code, 1)
      assertSentence(unknown.stderr, "first/session-9 does not exist")
      assert.isNull(jsonLines(unknown.stdout)[0].outcome)
    })
  )

  it.live("a question is left to the app where there is no terminal", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const { path } = yield* serving(all, "first")
      const { session } = yield* opened(all, path, "ask")
      const prompting = all.started("prompt", "session-1", "{permission}")
      const asked = yield* session.updates.pipe(
        Stream.filter((event) => event._tag === "PermissionAsked"),
        Stream.runHead
      )
      assert(asked._tag === "Some" && asked.value._tag === "PermissionAsked")
      yield* session.answer(asked.value.permissionId, "allow")
      const { code, stderr } = yield* Effect.promise(() => prompting.ended)
      assert.strictEqual(code, 0)
      assert.notInclude(stderr, 'Allow "')
      assert.match(stderr, /permission: .*: .+\n/)
    })
  )

  it.live("Ctrl-C cancels the turn of prompt, and a second one leaves", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const { path } = yield* serving(all, "first")
      const { session } = yield* opened(all, path)
      const prompting = all.started("prompt", "session-1", "{text=on-my-way} {hang}")
      yield* Effect.promise(() => prompting.seen("stdout", "on-my-way"))
      prompting.child.kill("SIGINT")
      const first = yield* Effect.promise(() => prompting.ended)
      assert.strictEqual(first.code, 130)
      assert.match(first.stderr, /cancelling … press Ctrl-C again to leave\n[^]*The turn was cancelled\.\n$/)
      assert.deepStrictEqual((yield* session.describe).turns, [])

      const stubborn = all.started("prompt", "session-1", "{text=again} {ignore-cancel} {hang}")
      yield* Effect.promise(() => stubborn.seen("stdout", "again"))
      stubborn.child.kill("SIGINT")
      yield* Effect.promise(() => stubborn.seen("stderr", "again to leave"))
      assert.strictEqual((yield* session.describe).turns.length, 1)
      stubborn.child.kill("SIGINT")
      const second = yield* Effect.promise(() => stubborn.ended)
      assert.strictEqual(second.code, 130)
      // It has not waited for the grace, and the sidecar still does.
      assert.strictEqual((yield* session.describe).turns.length, 1)
    })
  )

  it.live("cancel finds the session of a turn, and says when there is none", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const { path } = yield* serving(all, "first")
      const { session } = yield* opened(all, path)
      const first = yield* hanging(session)
      const wrong = yield* all.command("cancel", first.id, "--session", "session-9")
      assert.strictEqual(wrong.code, 1)
      assertSentence(wrong.stderr, "does not exist")
      const done = yield* all.command("cancel", first.id)
      assert.deepStrictEqual(done, { code: 0, stdout: "turn-1 of session-1: it was cancelled\n", stderr: "" })
      assert.strictEqual((yield* first.outcome)._tag, "Cancelled")
      const again = yield* all.command("cancel", first.id, "--json")
      assert.deepStrictEqual([again.code, again.stdout], [1, ""])
      assertSentence(again.stderr, "first/turn-1 does not exist")
      const second = yield* hanging(session)
      const json = yield* all.command("cancel", second.id, "--session", "session-1", "--json")
      const [line] = jsonLines(json.stdout)
      assert.deepStrictEqual(
        [json.code, line.sidecarId, line.sessionId, line.turnId, line.outcome._tag, line.outcome.by],
        [0, "first", "session-1", "turn-2", "Cancelled", "caller"]
      )
    })
  )

  it.live("close ends a session with what runs in it, and no other", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const { path } = yield* serving(all, "first")
      const { session, vm } = yield* opened(all, path)
      const other = yield* vm.openSession({ agent: faulty })
      const turn = yield* hanging(session)
      const closed = yield* all.command("close", "session-1")
      assert.deepStrictEqual(closed, { code: 0, stdout: "session-1: closed, turn-1 cancelled\n", stderr: "" })
      assert.strictEqual((yield* turn.outcome)._tag, "Cancelled")
      const again = yield* all.command("close", "session-1")
      assert.strictEqual(again.code, 1)
      assertSentence(again.stderr, /first\/.*session-1 does not exist/)
      assert.strictEqual((yield* other.prompt("hi"))._tag, "Completed")
      const json = yield* all.command("close", "session-2", "--json")
      assert.deepStrictEqual(jsonLines(json.stdout), [{ sidecarId: "first", sessionId: "session-2", turns: [] }])
    })
  )

  it.live("stop disposes the sidecar, and its process is gone", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const { ended, path } = yield* serving(all, "first")
      const { session } = yield* opened(all, path)
      const turn = yield* hanging(session)
      const stopped = yield* all.command("stop")
      assert.deepStrictEqual([stopped.code, stopped.stderr], [0, ""])
      assert.match(stopped.stdout, /^first: stopped \(1 VM, 1 session, 1 turn, 1 agent process\) in \d+ ms\n$/)
      assert.isFalse(yield* listening(path))
      assert.isFalse(existsSync(path))
      assert.strictEqual((yield* Effect.promise(() => ended)).code, 0)
      assert.notStrictEqual((yield* turn.outcome)._tag, "Completed")
    })
  )

  it.live("find the sidecar that apps share by name, and end it for all of them", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const layer = Layer.provide(
        SidecarPool.layer,
        NodeConnector.layerSocket({ program: bin, env: { ...all.env, NO_COLOR: "1" } })
      )
      const pool = Context.get(
        yield* Layer.build(layer).pipe(
          Effect.provideService(
            ConfigProvider.ConfigProvider,
            ConfigProvider.fromUnknown({ ACP_SIDECAR_STATE: all.folder })
          )
        ),
        SidecarPool.SidecarPool
      )
      const handle = yield* pool.shared("team")
      const vm = yield* handle.openVm({ root: all.folder })
      const session = yield* vm.openSession({ agent: faulty, permission: "allow" })
      const shown = yield* all.command("ps")
      assert.match(shown.stdout, /^acp-sidecar-shared:team: ready, 1 VM, 1 session, 0 turns, 1 agent process /)
      const prompted = yield* all.command("prompt", session.id, "{text=hello}")
      assert.deepStrictEqual([prompted.code, prompted.stderr], [0, ""])
      const stopped = yield* all.command("stop")
      assert.match(stopped.stdout, /^acp-sidecar-shared:team: stopped \(1 VM, 1 session, 0 turns, 1 agent process\)/)
      const error = yield* Effect.flip(session.submit("hi"))
      assert.strictEqual(error._tag, "SessionUnusable")
      assert.notStrictEqual((yield* handle.describe).state, "ready")
    })
  )

  it.live("of several sidecars one has to be chosen, and stop --all stops all that answer", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const [first, second] = yield* Effect.all([serving(all, "first"), serving(all, "second")], {
        concurrency: "unbounded"
      })
      yield* dead(join(all.folder, "gone.sock"))
      for (const args of [["cancel", "turn-1"], ["close", "session-1"], ["stop"], ["prompt", "session-1", "hi"]]) {
        const { code, stderr } = yield* all.command(...args)
        assert.strictEqual(code, 2)
        assertSentence(stderr, /first\.sock \(first\).*second\.sock \(second\).*--socket/)
        assert.notInclude(stderr, "gone.sock")
      }
      const listed = yield* all.command("ps")
      for (const part of ["first: ready", "second: ready", "gone.sock: dead"]) assert.include(listed.stdout, part)
      const chosen = yield* Effect.promise(() =>
        run(["close", "session-1"], { env: { ...all.env, ACP_SIDECAR_SOCKET: second.path } })
      )
      assertSentence(chosen.stderr, "second/session-1")
      const stopped = yield* all.command("stop", "--all", "--json")
      assert.strictEqual(stopped.code, 0)
      const lines = jsonLines(stopped.stdout)
      assert.deepStrictEqual(lines.map(({ sidecarId }) => sidecarId).sort(), ["first", "second"])
      assert.deepStrictEqual(Object.keys(lines[0]), ["socket", "url", "sidecarId", "ended", "millis", "problem"])
      for (const { ended } of [first, second]) assert.strictEqual((yield* Effect.promise(() => ended)).code, 0)
    })
  )

  it.live("a sidecar that does not answer is an error within seconds", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const { child, path } = yield* serving(all, "first")
      const other = yield* serving(all, "second")
      child.kill("SIGSTOP")
      const [ps, stop, prompt, cancel] = yield* Effect.all(
        [
          all.command("ps"),
          all.command("stop", "--socket", path),
          all.command("prompt", "session-1", "hi", "--socket", path),
          // Those that do not answer are passed over.
          all.command("cancel", "turn-1")
        ],
        { concurrency: "unbounded" }
      )
      assert.strictEqual(ps.code, 0)
      assert.match(ps.stdout, /first\.sock: dead\n.*did not answer within 5000 ms[^]*second: ready/)
      for (const { code, stderr } of [stop, prompt]) {
        assert.strictEqual(code, 1)
        assertSentence(stderr, "did not answer within 5000 ms")
      }
      assertSentence(cancel.stderr, "second/turn-1 does not exist")
      assert.isTrue(yield* listening(other.path))
    })
  )

  it.live("a sidecar that is killed ends what waits for it, with a sentence", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const { child, ended, path } = yield* serving(all, "first")
      const { session } = yield* opened(all, path)
      const prompting = all.started("prompt", "session-1", "{text=on-my-way} {ignore-cancel} {hang}", "--json")
      yield* Effect.promise(() => prompting.seen("stdout", "on-my-way"))
      const [turn] = (yield* session.describe).turns
      const cancelling = all.started("cancel", turn!.turnId)
      // Now the cancel is under way, and the agent takes no notice of it.
      yield* Effect.repeat(session.describe, { until: ({ turns }) => turns[0]?.phase === "cancelling" })
      child.kill("SIGKILL")
      yield* Effect.promise(() => ended)
      const [prompted, cancelled] = yield* Effect.promise(() => Promise.all([prompting.ended, cancelling.ended]))
      for (const { code, stderr } of [prompted, cancelled]) {
        assert.strictEqual(code, 1)
        assertSentence(stderr, "was lost")
      }
      const last = jsonLines(prompted.stdout).at(-1)
      assert.deepStrictEqual(
        [last._tag, last.outcome._tag, last.outcome.error.reason._tag],
        ["Outcome", "Failed", "SidecarLost"]
      )
      const shown = yield* all.command("ps")
      assert.match(shown.stdout, /first\.sock: dead\n/)
    })
  )

  it.live("reach a sidecar over its WebSocket with its token, and are refused without", () =>
    Effect.gen(function* () {
      const all = yield* stage
      const token = join(all.folder, "token")
      const serving = yield* Effect.acquireRelease(
        Effect.sync(() => all.started("serve", "--listen", "127.0.0.1:0", "--token-file", token, "--json")),
        ({ child, ended }) =>
          Effect.promise(async () => {
            child.kill("SIGTERM")
            await ended
          })
      )
      yield* Effect.promise(() => serving.seen("stdout", "\n"))
      const [{ url }] = jsonLines(serving.text.stdout)
      const wrong = join(all.folder, "wrong")
      writeFileSync(wrong, "another", { mode: 0o600 })
      const secret = readFileSync(token, "utf8").trim()
      const refused = yield* all.command("stop", "--url", url, "--token-file", wrong)
      assert.strictEqual(refused.code, 1)
      assertSentence(refused.stderr, "refused")
      assert.notInclude(refused.stderr, secret)
      const shown = yield* all.command("ps", "--url", url, "--token-file", token, "--json")
      assert.deepStrictEqual([jsonLines(shown.stdout)[0].url, jsonLines(shown.stdout)[0].state], [url, "ready"])
      const stopped = yield* all.command("stop", "--url", url, "--token-file", token)
      assert.strictEqual(stopped.code, 0)
      assert.strictEqual((yield* Effect.promise(() => serving.ended)).code, 0)
    })
  )
})
