// The command as a process. Nothing here depends on speed: waits are for output, bounds are generous.
import { assert, describe, it } from "@effect/vitest"
import { spawnSync } from "node:child_process"
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { agent, alive, assertSentence, bin, jsonLines, newMarker, root, run, start } from "../support/command.ts"

const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"))

describe("acp-sidecar", () => {
  it("shows its version, and help without arguments", async () => {
    const [versioned, help, implicit] = await Promise.all([run(["--version"]), run(["--help"]), run([])])
    assert.deepStrictEqual(versioned, { code: 0, stdout: `acp-sidecar ${version}\n`, stderr: "" })
    assert.strictEqual(help.code, 0)
    assert.deepStrictEqual(implicit, help)
    for (const word of ["demo", "run", "EXAMPLES"]) assert.include(help.stdout, word)
  })

  it("documents the exit codes in the help of each command", async () => {
    for (const { code, stdout } of await Promise.all(["demo", "run", "doctor"].map((name) => run([name, "--help"])))) {
      assert.strictEqual(code, 0)
      for (const word of ["Exit codes: 0", "1 ", "2 bad input", "124", "130 cancelled", "EXAMPLES"]) {
        assert.include(stdout, word)
      }
    }
  })

  it("answers mistakes with a sentence and exit code 2", async () => {
    const cases: ReadonlyArray<readonly [ReadonlyArray<string>, string | RegExp]> = [
      [["run", "--agnt", "pi", "hi"], /--agnt.*--agent.*--help/],
      [["rnu"], /rnu.*--help/],
      [["demo", "--slow", "8"], "500ms, 8s, 5m or"],
      [["demo", "--slow", "1s"], "from 2s"],
      [["demo", "--agent", "claude"], "bundled, pi"],
      [["demo", "--sessions", "5"], "demo shared"],
      [["demo", "shared", "--sessions", "1"], "from 2 to 50"],
      [["demo", "shared", "--sessions", "51"], "from 2 to 50"],
      [["demo", "shared", "--sessions", "ten"], "--sessions"],
      [["demo", "shared", "--slow", "1s"], "from 2s"],
      [["demo", "shared", "--agent", "claude"], "bundled, pi"],
      [["run", "--agent", "no-such-agent", "hi"], /no-such-agent.*claude, codex/],
      [["run", "--agent", "node 'x", "hi"], "never closed"],
      [["run", "--agent", "node", "--env", "hunter2", "hi"], "NAME=VALUE"],
      [["run", "--agent", "node", "--cwd", "/no/such/folder", "hi"], "not a folder"],
      [["run", "--agent", "node", "--permission", "ask", "hi"], "terminal"],
      [["run", "--agent", "node", ""], "prompt is empty"],
      [["run", "--agent", "node", "-"], "prompt is empty"]
    ]
    const results = await Promise.all(cases.map(([args]) => run(args)))
    for (const [index, [args, part]] of cases.entries()) {
      const { code, stderr, stdout } = results[index]!
      assert.deepStrictEqual({ code, stdout }, { code: 2, stdout: "" }, args.join(" "))
      assertSentence(stderr, part)
      assert.notInclude(stderr, "hunter2")
    }
    const { code, stderr } = await run(["run", "--agent", agent(), "hi"], { env: { ACP_SIDECAR_MAX_VMS: "many" } })
    assert.strictEqual(code, 2)
    assertSentence(stderr, "ACP_SIDECAR_MAX_VMS")
  }, 120_000)

  it("says how to give the bundled agent a model", async () => {
    const { code, stderr } = await run(["run", "--agent", "bundled", "hi"], { env: { OPENAI_BASE_URL: undefined } })
    assert.strictEqual(code, 1)
    assert.match(stderr, /bundled agent has no model of its own: set OPENAI_BASE_URL /)
  })

  it("says how to install an agent that is missing", async () => {
    const env = { PATH: "/nowhere" }
    for (const args of [
      ["run", "--agent", "pi", "hi"],
      ["demo", "--agent", "pi"]
    ]) {
      const { code, stderr } = await run(args, { env })
      assert.strictEqual(code, 1)
      assertSentence(stderr, "npm install -g pi-acp")
    }
  })
})

describe("demo", () => {
  const folders = () => {
    const tmp = mkdtempSync(join(tmpdir(), "acp-sidecar-cli-"))
    return { tmp, remove: () => rmSync(tmp, { recursive: true, force: true }) }
  }

  it("shows two sessions of one VM side by side", async () => {
    const { remove, tmp } = folders()
    try {
      const { code, stderr, stdout } = await run(["demo", "--slow", "4s"], { env: { TMPDIR: tmp, COLUMNS: "72" } })
      assert.strictEqual(stderr, "")
      const lines = stdout.split("\n")
      assert.match(
        lines[0]!,
        /^acp-sidecar demo: 1 VM, 2 sessions, agent "bundled" \(pids \d+, \d+\), scripted model on loopback, sidecar embedded$/
      )
      const events = lines.filter((line) => line.startsWith("[")).map((line) => line.replace(/^\[ *\d+\.\d\d s\] /, ""))
      assert.match(events[0]!, /^prompt B alone <- completed in \d+\.\d\d s$/)
      assert.deepStrictEqual(events.slice(1), [
        "prompt A -> sent (slow turn: the model waits 4 s)",
        "model request received (slow lane)",
        "prompt B -> sent (the model answers at once)",
        "model request received (fast lane)",
        "prompt B <- completed (end_turn)",
        "prompt A <- completed (end_turn)"
      ])
      assert.match(
        lines.find((line) => line.startsWith("A  "))!,
        /^A {2}█+ {2}\d+\.\d\d s$/
      )
      assert.match(
        lines.find((line) => line.startsWith("B  "))!,
        /^B {2} +█+ +\d+\.\d\d s {3}alone .* s, ratio .*$/
      )
      assert.isTrue(lines.slice(8).every((line) => line.length <= 72))
      assert.match(stdout, /\nverdict\[sessions\]: prompt B took \d+\.\d\d s -> CONCURRENT\n$/)
      assert.strictEqual(code, 0)
      assert.deepStrictEqual(spawnSync("ls", [tmp], { encoding: "utf8" }).stdout, "")
    } finally {
      remove()
    }
  })

  it("shows two VMs side by side, as JSON", async () => {
    const { code, stderr, stdout } = await run(["demo", "vms", "--slow", "4s", "--json"])
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    const lines = jsonLines(stdout)
    assert.strictEqual(lines[0].type, "started")
    assert.deepStrictEqual(
      lines.slice(1).map(({ lane, prompt, type }) => `${type} ${prompt ?? lane ?? ""}`),
      [
        "alone B",
        "prompt_sent A",
        "model_request slow",
        "prompt_sent B",
        "model_request fast",
        "prompt_completed B",
        "prompt_completed A",
        "verdict "
      ]
    )
    const { a, b, mode, ratio, verdict } = lines.at(-1)
    assert.deepStrictEqual({ mode, verdict }, { mode: "vms", verdict: "CONCURRENT" })
    assert.isAtLeast(a.tookMillis, 4000)
    assert.isBelow(b.toMillis, a.toMillis)
    assert.isAbove(b.aloneMillis, 0)
    assert.isAbove(ratio, 0)
  })

  it("is SERIALIZED with exit code 1 when only one prompt may run", async () => {
    const env = { ACP_SIDECAR_MAX_PROMPTS_PER_VM: "1" }
    const { code, stdout } = await run(["demo", "--slow", "2s"], { env })
    assert.match(stdout, /\nverdict\[sessions\]: prompt B took \d+\.\d\d s -> SERIALIZED\n$/)
    assert.strictEqual(code, 1)
  })

  it("says that an agent never asked the model", async () => {
    const { code, stderr } = await run(["demo", "--agent", agent()])
    assert.strictEqual(code, 1)
    assertSentence(stderr, "OPENAI_BASE_URL")
  })

  it("cleans up on Ctrl-C", async () => {
    const { remove, tmp } = folders()
    try {
      const demo = start(["demo", "--slow", "60s", "--json"], { env: { TMPDIR: tmp } })
      await demo.seen("stdout", '"lane":"slow"')
      demo.child.kill("SIGINT")
      const { code, stderr, stdout } = await demo.ended
      assert.strictEqual(code, 130)
      assertSentence(stderr, "cancelling")
      for (const pid of jsonLines(stdout)[0].pids) assert.isFalse(existsSync(`/proc/${pid}/exe`))
      assert.strictEqual(spawnSync("ls", [tmp], { encoding: "utf8" }).stdout, "")
    } finally {
      remove()
    }
  })
})

describe("demo shared", { timeout: 90_000 }, () => {
  it("shows ten sessions that prompt at once in one process, which the process table confirms", async () => {
    const { code, stderr, stdout } = await run(["demo", "shared", "--slow", "3s"], { env: { COLUMNS: "72" } })
    assert.strictEqual(stderr, "")
    const lines = stdout.split("\n")
    const pid =
      /^acp-sidecar demo: 1 VM, 10 sessions, agent "bundled" \(pid (\d+)\), scripted model on loopback, sidecar embedded$/.exec(
        lines[0]!
      )?.[1]
    assert.isDefined(pid)
    const events = lines.filter((line) => line.startsWith("[")).map((line) => line.replace(/^\[ *\d+\.\d\d s\] /, ""))
    assert.deepStrictEqual(events, [
      "10 prompts -> sent (the model answers when it has all of them, number 1 only after 3 s)",
      "the model has all 10 prompts at once",
      "prompts 2 to 10 <- completed",
      "prompt 1 <- completed (end_turn)"
    ])
    assert.lengthOf(
      lines.filter((line) => /^ ?\d+ {2} *█+ +\d+\.\d\d s$/.test(line) && line.length <= 72),
      10
    )
    const table = lines.indexOf("process table: 1 agent process (pid " + pid + "), 10 sessions")
    assert.match(lines[table - 2]!, /^host +identity +pid +sessions +leases +uptime +memory +noise +late +restarts$/)
    const [host, identity, hostPid, sessions, leases, ...others] = lines[table - 1]!.split(/ {2,}/)
    assert.deepStrictEqual([host, hostPid, sessions, leases], ["host-1", pid, "10", "10"])
    assert.match(identity!, /^[0-9a-f]{12}$/)
    assert.match(others.join("  "), /^\d+\.\d\d s {2}\d+ MiB {2}0 {2}0 {2}0$/)
    assert.match(stdout, /\nverdict\[shared\]: 10 sessions in 1 agent process -> SHARED and CONCURRENT\n$/)
    assert.strictEqual(code, 0)
  })

  it("gives the same as JSON", async () => {
    const { code, stderr, stdout } = await run(["demo", "shared", "--sessions", "3", "--slow", "2s", "--json"])
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    const lines = jsonLines(stdout)
    const [started] = lines
    assert.deepStrictEqual([started.type, started.mode, started.sessions], ["started", "shared", 3])
    assert.lengthOf(started.pids, 1)
    assert.deepStrictEqual(
      lines.slice(1, 3).map(({ type }) => type),
      ["prompts_sent", "model_requests"]
    )
    const completed = lines.filter(({ type }) => type === "prompt_completed").map(({ prompt }) => prompt)
    assert.deepStrictEqual([completed.at(-1), completed.toSorted()], [1, [1, 2, 3]])
    const { hosts, processTable } = lines.at(-2)
    assert.lengthOf(hosts, 1)
    assert.deepStrictEqual([hosts[0].pid, hosts[0].sessions.length, hosts[0].leases], [started.pids[0], 3, 3])
    assert.isAbove(hosts[0].memoryBytes, 10 * 1024 * 1024)
    assert.deepStrictEqual(processTable, [{ pid: started.pids[0], members: 1 }])
    assert.deepStrictEqual(lines.at(-1), {
      type: "verdict",
      mode: "shared",
      sharing: "SHARED",
      verdict: "CONCURRENT",
      sessions: 3,
      atOnce: 3,
      problems: []
    })
  })

  it("is NOT SHARED with exit code 1 where a limit splits the sessions", async () => {
    const env = { ACP_SIDECAR_MAX_SESSIONS_PER_HOST: "2" }
    const { code, stdout } = await run(["demo", "shared", "--sessions", "5", "--slow", "2s"], { env })
    assert.match(stdout, /\nprocess table: 3 agent processes \(pids \d+, \d+, \d+\), 5 sessions\n/)
    assert.match(stdout, /\nThere were 3 agent processes for 5 sessions, not one\.\n/)
    assert.match(stdout, /\nverdict\[shared\]: 5 sessions in 3 agent processes -> NOT SHARED and CONCURRENT\n$/)
    assert.strictEqual(code, 1)
  })

  it("is SERIALIZED with exit code 1 when only one prompt may run", async () => {
    const env = { ACP_SIDECAR_MAX_PROMPTS_PER_VM: "1" }
    const { code, stdout } = await run(["demo", "shared", "--sessions", "3", "--slow", "2s"], { env })
    assert.match(stdout, /\nThe model had 1 of the 3 prompts at once, not all\.\n/)
    assert.match(stdout, /\nverdict\[shared\]: 3 sessions in 1 agent process -> SHARED and SERIALIZED\n$/)
    assert.strictEqual(code, 1)
  })

  it("finds answers that went to the wrong session", async () => {
    const folder = mkdtempSync(join(tmpdir(), "acp-sidecar-cli-"))
    const file = join(folder, "mixing.mjs")
    writeFileSync(file, mixing)
    const { code, stdout } = await run(
      ["demo", "shared", "--sessions", "2", "--slow", "2s", "--agent", `'${process.execPath}' '${file}'`],
      {}
    )
    rmSync(folder, { recursive: true })
    // That of session 1 comes long after the turn of session 2.
    assert.include(stdout, "\nSession 1 got the answer of session 2.\nSession 2 got the answer of session 1.\n")
    assert.match(stdout, /-> SHARED and CONCURRENT\n$/)
    assert.strictEqual(code, 1)
  })

  it("says in a sentence that the agent can't carry more than one session", async () => {
    for (const [fault, part] of [
      ["--one-session", /refused a session beside the one .* share: false/],
      ["--session-id=same", /session\/new is not valid: the agent gave the id of a session that is open/]
    ] as const) {
      const marker = newMarker()
      const { code, stderr, stdout } = await run(["demo", "shared", "--agent", agent(fault, `--child=${marker}`)])
      assert.deepStrictEqual({ code, stdout }, { code: 1, stdout: "" })
      assertSentence(stderr, part)
      assert.deepStrictEqual(alive(marker), [])
    }
  })

  it("leaves no process behind on Ctrl-C", async () => {
    const demo = start(["demo", "shared", "--slow", "60s", "--json"])
    await demo.seen("stdout", '"prompt":10')
    demo.child.kill("SIGINT")
    const { code, stderr, stdout } = await demo.ended
    assert.strictEqual(code, 130)
    assertSentence(stderr, "cancelling")
    const [pid, ...others] = jsonLines(stdout)[0].pids
    assert.deepStrictEqual(others, [])
    assert.isFalse(existsSync(`/proc/${pid}/exe`))
  })
})

/** An agent that asks the model and sends what it gets to all of its sessions. */
const mixing = `
import { createInterface } from "node:readline"
const sessions = []
const send = (message) => console.log(JSON.stringify({ jsonrpc: "2.0", ...message }))
const ask = async (prompt) => {
  const response = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
    method: "POST",
    body: JSON.stringify({ messages: [{ role: "user", content: prompt[0].text }] })
  })
  return (await response.json()).choices[0].message.content
}
createInterface({ input: process.stdin }).on("line", async (line) => {
  const { id, method, params } = JSON.parse(line)
  if (id === undefined) return
  if (method === "initialize") return send({ id, result: { protocolVersion: 1 } })
  if (method === "session/new") {
    sessions.push("s" + sessions.length)
    return send({ id, result: { sessionId: sessions.at(-1) } })
  }
  const text = await ask(params.prompt)
  for (const sessionId of sessions) {
    const update = { sessionUpdate: "agent_message_chunk", content: { type: "text", text } }
    send({ method: "session/update", params: { sessionId, update } })
  }
  send({ id, result: { stopReason: "end_turn" } })
}).on("close", () => process.exit(0))
`

describe("run", () => {
  it("streams the answer to stdout and all else to stderr", async () => {
    const { code, stderr, stdout } = await run(["run", "--agent", agent(), "{text=Hello} {chunks=2} {tool}"])
    assert.deepStrictEqual(
      { code, stdout, stderr },
      {
        code: 0,
        stdout: "Hellochunk 0chunk 1\n",
        stderr: "tool (read): Read a file: in_progress\ntool (read): Read a file: completed\nplan:\n  [x] Read a file\n"
      }
    )
  })

  it("takes the prompt from stdin, a folder, and variables, and passes on no secret", async () => {
    const env = { HUNTER_API_KEY: "hunter2", OPENAI_API_KEY: "hunter2" }
    const args = ["run", "--agent", agent(), "--cwd", tmpdir(), "--env", "MINE=yes", "--json", "-"]
    const { code, stderr, stdout } = await run(args, { env, stdin: "{env} {cwd} {echo}" })
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    const said = jsonLines(stdout)
      .map((line) => line.update?.content?.text ?? "")
      .join("\n")
    assert.include(said, '"MINE":"yes"')
    assert.include(said, JSON.stringify(tmpdir()))
    assert.include(said, "{env} {cwd} {echo}")
    assert.notInclude(stdout, "hunter2")
  })

  it("gives one event a line with --json, and then the outcome", async () => {
    const { code, stderr, stdout } = await run(["run", "--agent", agent(), "--json", "{tool} {permission}"])
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    const lines = jsonLines(stdout)
    const tags = lines.map((line) => line._tag)
    assert.deepStrictEqual(tags.slice(0, 2), ["TurnQueued", "TurnStarted"])
    assert.deepStrictEqual(tags.slice(-2), ["TurnEnded", "Outcome"])
    for (const tag of ["Update", "PermissionAsked", "PermissionAnswered"]) assert.include(tags, tag)
    assert.deepStrictEqual(
      lines.slice(0, -1).map((line) => line.number),
      lines.slice(0, -1).map((_, index) => lines[0].number + index)
    )
    const { exitCode, message, outcome } = lines.at(-1)
    assert.deepStrictEqual({ exitCode, message, tag: outcome._tag }, { exitCode: 0, message: "", tag: "Completed" })
  })

  it("answers permissions as told, and rejects when there is nobody to ask", async () => {
    const cases = [
      [["--permission", "allow"], "allow", "Allow"],
      [["--permission", "reject"], "reject", "Reject"],
      [[], "reject", "Reject"]
    ] as const
    for (const [flags, optionId, name] of cases) {
      const { code, stderr, stdout } = await run(["run", "--agent", agent(), ...flags, "{permission}"])
      assert.strictEqual(code, 0)
      assert.include(stdout, JSON.stringify({ outcome: { outcome: "selected", optionId } }))
      assert.match(stderr, new RegExp(`^permission: .*: ${name} \\(by policy\\)\n$`))
    }
  })

  it("fails with one sentence, also as JSON", async () => {
    const turn = await run(["run", "--agent", agent(), "--json", "{exit=7}"])
    assert.strictEqual(turn.code, 1)
    assertSentence(turn.stderr, "exited with code 7")
    const outcome = jsonLines(turn.stdout).at(-1)
    assert.deepStrictEqual([outcome._tag, outcome.exitCode, outcome.outcome._tag], ["Outcome", 1, "Failed"])
    assert.strictEqual(turn.stderr, `acp-sidecar: ${outcome.message}\n`)

    const opening = await run(["run", "--agent", agent("--exit-at=initialize:3"), "--json", "hi"])
    assert.strictEqual(opening.code, 1)
    assertSentence(opening.stderr, "in phase initialize")
    const [only, ...more] = jsonLines(opening.stdout)
    assert.deepStrictEqual([only._tag, only.exitCode, only.outcome, more], ["Outcome", 1, null, []])
  })

  it("says how to sign in, and signs in when told how", async () => {
    const refused = await run(["run", "--agent", agent("--auth"), "hi"])
    assert.strictEqual(refused.code, 1)
    assertSentence(refused.stderr, "--authenticate (login)")
    assert.strictEqual((await run(["run", "--agent", agent("--auth"), "--authenticate", "login", "hi"])).code, 0)
  })

  it("refuses a mode that is not offered", async () => {
    const { code, stderr } = await run(["run", "--agent", agent(), "--mode", "turbo", "hi"])
    assert.strictEqual(code, 2)
    assertSentence(stderr, "turbo")
  })

  it("ends a turn that takes too long with 124", async () => {
    const marker = newMarker()
    for (const flag of ["--timeout", "--idle-timeout"]) {
      const { code, stderr } = await run(["run", "--agent", agent(`--child=${marker}`), flag, "700ms", "{hang}"])
      assert.strictEqual(code, 124)
      assertSentence(stderr, flag)
    }
    const env = { ACP_SIDECAR_START_TIMEOUT: "700 millis" }
    const { code, stderr } = await run(["run", "--agent", agent(`--child=${marker}`, "--mute"), "hi"], { env })
    assert.strictEqual(code, 124)
    assertSentence(stderr, "ACP_SIDECAR_START_TIMEOUT")
    assert.deepStrictEqual(alive(marker), [])
  })

  it("cancels on Ctrl-C, SIGTERM and SIGHUP, and leaves nothing behind", async () => {
    for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
      const marker = newMarker()
      const running = start(["run", "--agent", agent(`--child=${marker}`), "--json", "{hang}"])
      await running.seen("stdout", "chunk 0")
      assert.isNotEmpty(alive(marker))
      running.child.kill(signal)
      const { code, stderr, stdout } = await running.ended
      assert.strictEqual(code, 130, signal)
      assert.strictEqual(
        stderr,
        `${signal === "SIGINT" ? "acp-sidecar: cancelling … press Ctrl-C again to kill\n" : ""}acp-sidecar: The turn was cancelled.\n`
      )
      const { exitCode, outcome } = jsonLines(stdout).at(-1)
      assert.deepStrictEqual([exitCode, outcome.agentReported, outcome.escalation], [130, "cancelled", "none"])
      assert.deepStrictEqual(alive(marker), [])
    }
  })

  it("kills at once on a second Ctrl-C", async () => {
    const marker = newMarker()
    const stubborn = agent(`--child=${marker}:ignore-term`, "--ignore-term", "--ignore-eof")
    // The grace is longer than the test may take.
    const env = { ACP_SIDECAR_CANCEL_GRACE: "10 minutes" }
    const running = start(["run", "--agent", stubborn, "{hang} {ignore-cancel} {ignore-close}"], { env })
    await running.seen("stdout", "chunk 0")
    running.child.kill("SIGINT")
    await running.seen("stderr", "cancelling")
    assert.isNotEmpty(alive(marker))
    running.child.kill("SIGINT")
    const { code, stderr } = await running.ended
    assert.strictEqual(code, 130)
    assert.include(stderr, "acp-sidecar: killed\n")
    assert.deepStrictEqual(alive(marker), [])
  })

  it("kills an agent that is still starting on a second Ctrl-C", async () => {
    const marker = newMarker()
    const log = join(mkdtempSync(join(tmpdir(), "acp-sidecar-cli-")), "log")
    const stubborn = agent(`--child=${marker}:ignore-term`, "--ignore-term", "--mute", `--log=${log}`)
    const env = { ACP_SIDECAR_KILL_GRACE: "10 minutes" }
    const running = start(["run", "--agent", stubborn, "hi"], { env })
    while (!existsSync(log)) await new Promise((done) => setTimeout(done, 20))
    running.child.kill("SIGINT")
    await running.seen("stderr", "cancelling")
    running.child.kill("SIGINT")
    assert.strictEqual((await running.ended).code, 130)
    assert.deepStrictEqual(alive(marker), [])
    rmSync(join(log, ".."), { recursive: true })
  })

  it.skipIf(!existsSync("/dev/full"))("says when its output can't be written", () => {
    const args = [bin, "run", "--agent", agent(), "{chunks=2} {wait=5000}"]
    const full = openSync("/dev/full", "w")
    const { status, stderr } = spawnSync(process.execPath, args, { stdio: ["ignore", full, "pipe"], encoding: "utf8" })
    closeSync(full)
    assert.strictEqual(status, 130)
    assert.include(stderr, "the output could not be written (ENOSPC)")
  })

  it("says when the current folder is gone", () => {
    const folder = mkdtempSync(join(tmpdir(), "acp-sidecar-gone-"))
    const command = `cd '${folder}' && rmdir '${folder}' && exec '${process.execPath}' '${bin}' run --agent node hi`
    const { status, stderr } = spawnSync("/bin/sh", ["-c", command], { encoding: "utf8" })
    assert.strictEqual(status, 2)
    assertSentence(stderr, "not a folder")
  })

  it("does not wait for a reader that stopped reading once it is to end", async () => {
    const marker = newMarker()
    const log = join(mkdtempSync(join(tmpdir(), "acp-sidecar-cli-")), "log")
    const flooding = agent(`--child=${marker}`, `--log=${log}`)
    const running = start(["run", "--agent", flooding, "--json", "{flood=5000} {permission} {hang}"])
    running.child.stdout.pause()
    // The question comes after the flood, which is far more than fits into the pipe.
    while (!existsSync(log) || !readFileSync(log, "utf8").includes('"outcome"'))
      await new Promise((done) => setTimeout(done, 20))
    const exited = new Promise((done) => running.child.once("exit", done))
    running.child.kill("SIGTERM")
    assert.strictEqual(await exited, 130)
    assert.deepStrictEqual(alive(marker), [])
    running.child.stdout.resume()
    await running.ended
    rmSync(join(log, ".."), { recursive: true })
  })

  it("ends quietly when nobody reads any more", async () => {
    const marker = newMarker()
    const running = start(["run", "--agent", agent(`--child=${marker}`), "{chunks=100000:20}"])
    await running.seen("stdout", "chunk 0")
    running.child.stdout.destroy()
    const { code, stderr } = await running.ended
    assert.deepStrictEqual({ code, stderr }, { code: 130, stderr: "" })
    assert.deepStrictEqual(alive(marker), [])
  })
})
