import { chmodSync, mkdirSync, mkdtempSync, realpathSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { AgentLauncher, AgentProfile, Sidecar } from "acp-sidecar"
import type { SidecarError, Vm } from "acp-sidecar"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import { agentFile, faulty, jsonOf, layer, open, openVm, texts } from "../support/faultyAgent.ts"
import { newMark, running } from "../support/processes.ts"

/** How an opening failed; anything else is a defect. */
const refusal = (
  agent: AgentProfile.AgentProfile,
  options: Partial<Vm.SessionOptions> = {}
): Effect.Effect<SidecarError.AgentStartFailed, never, Sidecar.Sidecar> =>
  Effect.scoped(open(agent, options)).pipe(
    Effect.flip,
    Effect.flatMap((error) =>
      error._tag === "AgentStartFailed" ? Effect.succeed(error) : Effect.die(new Error(`got ${JSON.stringify(error)}`))
    ),
    Effect.catch((session) => Effect.die(new Error(`it opened ${JSON.stringify(session)}`)))
  )

/** A folder of its own, gone afterwards. */
const folder = Effect.acquireRelease(
  Effect.sync(() => realpathSync(mkdtempSync(join(tmpdir(), "a folder ")))),
  (path) => Effect.sync(() => rmSync(path, { recursive: true, force: true }))
)

describe("starting agents", { concurrent: true }, () => {
  it.live.each(["start", "initialize", "session/new"] as const)(
    "B68: an agent that exits at %s fails the opening at once, with what it said last",
    (point) =>
      Effect.gen(function* () {
        const mark = newMark()
        const agent = faulty("stderr=no such model", `exit-at=${point}:7`, `mark=${mark}`)
        const [time, error] = yield* Effect.timed(refusal(agent))
        assert.strictEqual(error.phase, point === "session/new" ? "session/new" : "initialize")
        assert.strictEqual(error.reason._tag, "ProcessExited")
        if (error.reason._tag !== "ProcessExited") return
        assert.strictEqual(error.reason.code, 7)
        assert.include(error.reason.stderrTail, "no such model")
        assert.include(error.message, "no such model")
        // The budget is 60 s.
        assert.isBelow(Duration.toMillis(time), 10_000)
        assert.deepStrictEqual(yield* running(mark), [])
      }).pipe(Effect.provide(layer()))
  )

  it.live("B67: when the budget is used up, what the agent last wrote is in the error", () =>
    Effect.gen(function* () {
      const mark = newMark()
      // The shell writes at once: the budget may be short.
      const agent = AgentProfile.make({
        command: ["/bin/sh", "-c", "echo downloading 12 of 80 >&2; cat >/dev/null; :", mark]
      })
      const error = yield* refusal(agent)
      assert.strictEqual(error.reason._tag, "StartTimedOut")
      if (error.reason._tag !== "StartTimedOut") return
      assert.strictEqual(error.reason.budgetMillis, 1500)
      assert.include(error.reason.stderrTail, "downloading 12 of 80")
      assert.include(error.message, "downloading 12 of 80")
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer({ startTimeout: "1500 millis", killGrace: "300 millis" })))
  )

  it.live("B69: one budget covers all phases, and the error names the one that hung", () =>
    Effect.gen(function* () {
      const [hung, signing] = yield* Effect.all(
        [
          refusal(faulty("hang-at=session/new")),
          refusal(faulty("auth", "hang-at=authenticate"), { authenticate: "login" })
        ],
        { concurrency: "unbounded" }
      )
      assert.strictEqual(hung.phase, "session/new")
      assert.strictEqual(hung.reason._tag, "StartTimedOut")
      assert.strictEqual(signing.phase, "authenticate")
      assert.strictEqual(signing.reason._tag, "StartTimedOut")
    }).pipe(Effect.provide(layer({ startTimeout: "3 seconds" })))
  )

  it.live("B70: an agent that wants its user to sign in is reported, or signed in when told how", () =>
    Effect.gen(function* () {
      const error = yield* refusal(faulty("auth"))
      assert.strictEqual(error.reason._tag, "AuthRequired")
      if (error.reason._tag === "AuthRequired") {
        assert.deepStrictEqual(error.reason.methods, [{ id: "login", name: "Log in" }])
      }
      const session = yield* open(faulty("auth"), { authenticate: "login" })
      assert.strictEqual((yield* session.prompt("hello"))._tag, "Completed")
    }).pipe(Effect.provide(layer()))
  )

  it.live("B75: arguments arrive as they are, whatever is in them", () =>
    Effect.gen(function* () {
      const odd = ["a b", `"double" 'single'`, "back\\slash", "$HOME `id` $(id)", "", "*", "new\nline", "--x=ü€😀"]
      const dir = yield* folder
      const script = join(dir, "an agent.mjs")
      writeFileSync(
        script,
        `process.env.FAULT = "text=" + Buffer.from(JSON.stringify(process.argv.slice(2))).toString("base64")\n` +
          `process.argv.length = 2\n` +
          `await import(${JSON.stringify(agentFile)})\n`
      )
      const session = yield* open(AgentProfile.make({ command: [process.execPath, script, ...odd] }))
      const turn = yield* session.submit("hello")
      const [first = ""] = yield* texts(turn)
      assert.deepStrictEqual(JSON.parse(Buffer.from(first, "base64").toString()), odd)
    }).pipe(Effect.provide(layer()))
  )

  it.live("B75: a program that is missing, or that may not be run, and a missing folder are named", () =>
    Effect.gen(function* () {
      const dir = yield* folder
      const plain = join(dir, "agent.sh")
      writeFileSync(plain, "#!/bin/sh\n")
      chmodSync(plain, 0o644)
      const cases = [
        { command: "no-such-agent-anywhere", cwd: dir, code: "ENOENT", subject: "command" },
        { command: join(dir, "missing"), cwd: dir, code: "ENOENT", subject: "command" },
        { command: plain, cwd: dir, code: "EACCES", subject: "command" },
        { command: process.execPath, cwd: join(dir, "nowhere"), code: "ENOENT", subject: "folder" }
      ] as const
      for (const { code, command, cwd, subject } of cases) {
        const error = yield* refusal(AgentProfile.make({ command: [command, agentFile] }), { cwd })
        assert.strictEqual(error.phase, "spawn")
        assert.strictEqual(error.reason._tag, "SpawnError")
        if (error.reason._tag !== "SpawnError") continue
        const { reason } = error
        assert.deepStrictEqual(
          { code: reason.code, command: reason.command, cwd: reason.cwd, subject: reason.subject },
          { code, command, cwd, subject }
        )
        assert.include(error.message, command)
      }
      const sidecar = yield* Sidecar.Sidecar
      assert.strictEqual((yield* sidecar.describe).activePrompts, 0)
    }).pipe(Effect.provide(layer()))
  )

  it.live("B76: another protocol version is refused, and the process is stopped", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const error = yield* refusal(faulty("version=99", "ignore-eof", `mark=${mark}`))
      assert.strictEqual(error.phase, "initialize")
      assert.strictEqual(error.reason._tag, "VersionMismatch")
      if (error.reason._tag === "VersionMismatch") {
        assert.deepStrictEqual({ offered: error.reason.offered, got: error.reason.got }, { offered: 1, got: 99 })
      }
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer()))
  )

  it.live.each(["text", "ansi", "json", "number", "array"] as const)(
    "B57: noise on stdout (%s) is counted and costs nothing",
    (kind) =>
      Effect.gen(function* () {
        const beside = Effect.fnUntraced(function* (place: string) {
          const session = yield* open(faulty(`noise=${kind}:${place}`))
          const turn = yield* session.submit("hello")
          assert.strictEqual((yield* turn.await)._tag, "Completed")
          assert.deepStrictEqual(yield* texts(turn), ["chunk 0"])
          const among = yield* session.submit(`{noise=${kind}:${place}:update} {chunks=3}`)
          assert.strictEqual((yield* among.await)._tag, "Completed")
          assert.deepStrictEqual(yield* texts(among), ["chunk 0", "chunk 1", "chunk 2"])
          // One beside each of three responses, then one beside each of three updates; the last may still come.
          const { malformed, noise } = yield* session.describe
          assert.isAtLeast(noise + malformed, 5, place)
          yield* session.close
        })
        yield* Effect.forEach(["before", "after", "same-chunk"], beside, { concurrency: "unbounded" })
      }).pipe(Effect.provide(layer()))
  )

  it.live("B57: a program that only writes lines is no agent, and it is said after some of them", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const script = `while :; do echo "just a log line"; done`
      const error = yield* refusal(AgentProfile.make({ command: ["/bin/sh", "-c", script, mark] }))
      assert.strictEqual(error.phase, "initialize")
      assert.strictEqual(error.reason._tag, "NotAnAcpAgent")
      assert.include(error.message, "just a log line")
      assert.deepStrictEqual(yield* running(mark), [])
    }).pipe(Effect.provide(layer()))
  )

  it.live("H7, B66: 256 KiB of stderr do not block an agent", () =>
    Effect.gen(function* () {
      const session = yield* open(faulty("stderr-kib=256"))
      assert.strictEqual((yield* session.prompt("{stderr-kib=256}"))._tag, "Completed")
      const failed = yield* Effect.flip(session.prompt("{stderr-kib=256} {exit=3}"))
      assert.strictEqual(failed._tag, "TurnFailed")
      if (failed._tag !== "TurnFailed" || failed.reason._tag !== "ProcessExited") return assert.fail(failed.message)
      assert.include(failed.reason.stderrTail, "exiting with 3")
      assert.isAtMost(failed.reason.stderrTail.length, 2048)
    }).pipe(Effect.provide(layer({ stderrTailBytes: 2048 })))
  )

  it.live("B73, H8: an agent sees the allowed variables and the overlays, and nothing else of the host", () =>
    Effect.gen(function* () {
      const host = {
        PATH: process.env["PATH"],
        HOME: "/home/somebody",
        LC_ALL: "C",
        AWS_SECRET_ACCESS_KEY: "host secret",
        ANTHROPIC_API_KEY: "host key",
        NODE_OPTIONS: "--no-warnings",
        NAMED: "by the profile",
        BOTH: "host"
      }
      const agent = { ...faulty(), passEnv: ["NAMED", "BOTH"], env: { OWN: "profile", BOTH: "profile" } }
      const vm = yield* openVm({ env: { OF_VM: "vm", OWN: "vm" } })
      const session = yield* vm
        .openSession({ agent, env: { OF_SESSION: "session", BOTH: "session" } })
        .pipe(Effect.provideService(AgentLauncher.HostEnvironment, () => host))
      const seen = { ...(yield* jsonOf(yield* session.submit("{env} {chunks=0}"))) }
      // macOS adds this one to every process.
      delete seen["__CF_USER_TEXT_ENCODING"]
      assert.deepStrictEqual(seen, {
        PATH: process.env["PATH"],
        HOME: "/home/somebody",
        LC_ALL: "C",
        NAMED: "by the profile",
        OWN: "vm",
        OF_VM: "vm",
        OF_SESSION: "session",
        BOTH: "session"
      })
    }).pipe(Effect.provide(layer()))
  )

  it.live("an agent runs in its session's folder, which is the Vm's unless given", () =>
    Effect.gen(function* () {
      const root = yield* folder
      const inner = join(root, "in side")
      mkdirSync(inner)
      const vm = yield* openVm({ root })
      for (const cwd of [undefined, inner]) {
        const session = yield* vm.openSession({ agent: faulty(), cwd })
        const expected = cwd ?? root
        assert.deepStrictEqual(yield* jsonOf(yield* session.submit("{cwd} {chunks=0}")), {
          session: expected,
          process: expected
        })
      }
      assert.isTrue(Exit.isFailure(yield* Effect.exit(vm.openSession({ agent: faulty(), cwd: "relative" }))))
    }).pipe(Effect.provide(layer()))
  )
})
