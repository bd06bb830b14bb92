// doctor and agents as a process. Nothing here depends on speed: waits are for output, bounds are generous.
import { assert, describe, it } from "@effect/vitest"
import { spawnSync } from "node:child_process"
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync
} from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { agent, alive, assertSentence, bin, jsonLines, newMarker, run, start } from "../support/command.ts"

const temporary = () => {
  const path = mkdtempSync(join(tmpdir(), "acp-sidecar-doctor-"))
  return { path, [Symbol.dispose]: () => rmSync(path, { recursive: true, force: true }) }
}

/** Of tests with several processes: for slow machines. */
const timeout = 120_000

/** The agents here end at once or have to be killed, so the grace may be short. */
const env = { ACP_SIDECAR_KILL_GRACE: "500 millis" }

const lastLine = (stdout: string) => stdout.trimEnd().split("\n").at(-1)!

const doctor = async (switches: ReadonlyArray<string>, ...args: ReadonlyArray<string>) => {
  const marker = newMarker()
  const result = await run(["doctor", agent(`--mark=${marker}`, ...switches), ...args], { env })
  assert.deepStrictEqual(alive(marker), [], "something was left running")
  return { ...result, verdict: lastLine(result.stdout) }
}

describe("doctor", () => {
  it("shows each step of an agent that works, and says so", async () => {
    const { code, stderr, stdout, verdict } = await doctor(["--close"])
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    const labels = stdout.split("\n").map((line) => line.slice(2, 18).trim())
    const order = [
      "command",
      "folder",
      "spawn",
      "initialize",
      "can do",
      "sign-in",
      "session/new",
      "session/close",
      "exit"
    ]
    assert.deepStrictEqual(
      labels.filter((label) => order.includes(label)),
      order
    )
    assert.include(stdout, "faulty-agent 1.0.0, ACP version 1")
    // That of Node would mislead.
    assert.notMatch(stdout, / package /)
    assert.match(stdout, / exit .*after the end of its input \(exit code 0\)/)
    assert.strictEqual(
      verdict,
      "faulty-agent.mjs: works (a session opens; only --prompt TEXT shows whether its model answers)"
    )
  })

  it("gives all of it as one JSON document, with the steps on stderr", async () => {
    const { code, stderr, stdout } = await doctor(["--noise=text:same-chunk"], "--json")
    assert.strictEqual(code, 0)
    const [report, ...more] = jsonLines(stdout)
    assert.deepStrictEqual(more, [])
    assert.deepInclude(report, { agent: "faulty-agent.mjs", works: true, exitCode: 0, problem: null, prompt: null })
    assert.deepStrictEqual(
      report.phases.map(({ name, outcome }: { name: string; outcome: string }) => `${name} ${outcome}`),
      ["spawn done", "initialize done", "session/new done", "exit done"]
    )
    assert.strictEqual(report.initialize.agentInfo.version, "1.0.0")
    assert.match(report.session.sessionId, /^faulty-/)
    assert.deepInclude(report.end, { by: "end of input", code: 0, signal: null, left: [] })
    assert.deepInclude(report.stdout, { frames: 2, noise: 2, malformed: 0 })
    assert.include(report.findings[0].what, "2 lines")
    for (const step of ["spawn", "initialize", "session/new", "exit"]) assert.include(stderr, `acp-sidecar: ${step}: `)
  })

  // What it does, and what the verdict has to say: the trouble, and the way out.
  const failures: ReadonlyArray<
    readonly [name: string, switches: ReadonlyArray<string>, says: RegExp, args?: ReadonlyArray<string>]
  > = [
    [
      "exits at once",
      ["--exit-at=start:7", "--stderr=no model"],
      /exited with code 7 .*initialize.*no model.*; .*by hand/
    ],
    ["exits with code 0", ["--exit-at=start:0"], /exited with code 0.*; .*ACP mode/],
    ["is killed", ["--kill-at=initialize:SIGKILL"], /ended by SIGKILL.*; .*memory/],
    [
      "lacks a module",
      ["--stderr=Error: Cannot find module 'x'", "--exit-at=start:1"],
      /Cannot find module.*; install it again/
    ],
    [
      "does not know its flag",
      ["--stderr=error: unknown option --acp", "--exit-at=start:1"],
      /unknown option.*; it does not know its arguments/
    ],
    ["exits in session/new", ["--exit-at=session/new:3"], /exited with code 3 in session\/new/],
    ["wants a sign-in", ["--auth"], /wants its user to sign in.*; .*--authenticate METHOD \(login\)/],
    [
      "does not offer the method",
      ["--auth"],
      /does not offer the method "x"; choose one of login/,
      ["--authenticate", "x"]
    ],
    ["speaks another version", ["--version=99"], /version 99 of ACP.*version 1 was offered; .*newer acp-sidecar/],
    [
      "refuses session/new",
      ["--error-at=session/new:-32603"],
      /refused session\/new with error -32603.*; look at its stderr/
    ],
    [
      "does not know initialize",
      ["--error-at=initialize:-32601"],
      /refused initialize with error -32601.*; .*update it/
    ],
    ["closes its stdout", ["--close-stdout-at=initialize"], /closed its stdout .*kept running.*; .*background/],
    [
      "answers in the wrong shape",
      ["--session-id=" + "x".repeat(1025)],
      /answer to session\/new is not valid.*; update it/
    ]
  ]
  for (const [name, switches, says, args = []] of failures) {
    it(`of an agent that ${name} says that and what to do`, async () => {
      const { code, stderr, verdict } = await doctor(switches, ...args)
      assert.deepStrictEqual({ code, stderr }, { code: 1, stderr: "" })
      assert.match(verdict, /^faulty-agent\.mjs: does not work: /)
      assert.match(verdict, says)
    })
  }

  it("says where an agent hangs, and ends what hangs", { timeout }, async () => {
    // Each start has to be done within this time on a slow machine.
    const time = ["--timeout", "12s"]
    const cases: ReadonlyArray<readonly [ReadonlyArray<string>, RegExp, ReadonlyArray<string>?]> = [
      [["--mute"], /did not answer initialize within 12 s and wrote nothing to stdout; .*ACP mode.*--timeout/],
      [["--deaf", "--stderr=loading"], /did not answer initialize within 12 s.*loading; .*ACP mode/],
      [
        ["--hang-at=session/new"],
        /had not answered session\/new after .* s, when the 12 s for the whole start were over; .*sign-in.*--timeout/
      ],
      [[], /did not answer session\/prompt within 12 s/, ["--prompt", "{hang} {ignore-cancel}"]]
    ]
    const results = await Promise.all(cases.map(([switches, , args = []]) => doctor(switches, ...time, ...args)))
    for (const [index, { code, stderr, verdict }] of results.entries()) {
      assert.deepStrictEqual({ code, stderr }, { code: 124, stderr: "" })
      assert.match(verdict, cases[index]![1])
    }
  })

  it("tells a program that writes something else from one that is silent", { timeout }, async () => {
    const marker = newMarker()
    const noisy = `sh -c 'echo "Welcome to the shell"; sleep 600' ${marker}`
    const { code, stdout } = await run(["doctor", noisy, "--timeout", "2s"], { env })
    assert.strictEqual(code, 124)
    assert.match(lastLine(stdout), /no ACP agent: .*1 line.*Welcome to the shell.*; .*ACP mode/)
    const flood = `sh -c 'while :; do echo "Welcome to the shell"; done' ${marker}`
    const flooded = await run(["doctor", flood], { env })
    assert.strictEqual(flooded.code, 1)
    assert.match(lastLine(flooded.stdout), /no ACP agent: it wrote \d+ lines.*Welcome to the shell/)
    const broken = `sh -c 'echo "{\\"jsonrpc\\":\\"2.0\\",\\"method\\":\\"x"; sleep 600' ${marker}`
    const garbled = await run(["doctor", broken, "--timeout", "2s"], { env })
    const asking = await run(["doctor", `sh -c 'printf Password:; sleep 600' ${marker}`, "--timeout", "2s"], { env })
    assert.match(lastLine(asking.stdout), /wrote no whole line to stdout; .*wait for a terminal/)
    assert.match(lastLine(garbled.stdout), /broken JSON-RPC, such as .*; each message has to be one line of JSON/)
    assert.deepStrictEqual(alive(marker), [])
  })

  it("says what can't be started, and where", { timeout }, async () => {
    using folder = temporary()
    const plain = join(folder.path, "plain")
    writeFileSync(plain, "no first line\n")
    chmodSync(plain, 0o644)
    const none = join(folder.path, "none")
    const orphan = join(folder.path, "orphan")
    writeFileSync(orphan, "#!/no/such/interpreter\n")
    chmodSync(orphan, 0o755)
    const cases: ReadonlyArray<readonly [string, RegExp]> = [
      [plain, /"[^"]*plain" may not be executed \(EACCES\); .*chmod \+x/],
      [none, /"[^"]*none" does not exist/],
      [orphan, /"[^"]*orphan" does not exist, or the one that its first line/]
    ]
    for (const [path, says] of cases) {
      const { code, stdout } = await run(["doctor", path], { env })
      assert.strictEqual(code, 1, path)
      assert.match(lastLine(stdout), says)
    }
    const missing = await run(["doctor", "claude", "--json"], { env: { PATH: "/nowhere" } })
    assert.strictEqual(missing.code, 1)
    assert.deepStrictEqual(jsonLines(missing.stdout)[0].problem, {
      what: "it is not installed: its command claude-agent-acp is not on PATH",
      advice: "install it: npm install -g @agentclientprotocol/claude-agent-acp"
    })
    assert.include(missing.stderr, "acp-sidecar: claude: does not work: it is not installed")
  })

  it("answers mistakes with a sentence and exit code 2", { timeout }, async () => {
    const cases: ReadonlyArray<readonly [ReadonlyArray<string>, RegExp]> = [
      [["doctor", "no-such-agent"], /no-such-agent.*claude, codex/],
      [["doctor", "node 'x"], /never closed/],
      [["doctor", "node", "--cwd", "/no/such/folder"], /not a folder/],
      [["doctor", "node", "--timeout", "5"], /--timeout.*500ms/],
      [["doctor", "node", "--env", "hunter2"], /NAME=VALUE/],
      [["doctor", "node", "--prompt", " "], /--prompt is empty/],
      [["doctor"], /agent.*--help/i]
    ]
    for (const [args, part] of cases) {
      const { code, stderr, stdout } = await run(args)
      assert.deepStrictEqual({ code, stdout }, { code: 2, stdout: "" }, args.join(" "))
      assertSentence(stderr, part)
      assert.notInclude(stderr, "hunter2")
    }
  })

  it("signs in only when it is told how, and sends a prompt only when it is given one", async () => {
    using folder = temporary()
    const log = join(folder.path, "log")
    const { code, stdout } = await doctor(
      ["--auth", `--log=${log}`],
      "--authenticate",
      "login",
      "--prompt",
      "{permission=1} {text=hello} {chunks=0}",
      "--json"
    )
    assert.strictEqual(code, 0)
    const [{ phases, prompt }] = jsonLines(stdout)
    assert.deepStrictEqual(
      phases.map(({ name, outcome }: { name: string; outcome: string }) => `${name} ${outcome}`),
      [
        "spawn done",
        "initialize done",
        "session/new wants a sign-in",
        "authenticate done",
        "session/new done",
        "session/prompt done",
        "exit done"
      ]
    )
    assert.deepInclude(prompt, { stopReason: "end_turn", updates: 2, permissionsRejected: 1 })
    assert.include(prompt.text, "hello")
    assert.include(prompt.text, '"optionId":"reject"')
    const quiet = await doctor([`--log=${log}2`])
    assert.strictEqual(quiet.code, 0)
    assert.notMatch(readFileSync(`${log}2`, "utf8"), /session\/prompt|authenticate/)
  })

  it("says what is wrong with a prompt", async () => {
    const failed = await doctor([], "--prompt", "{error=-32000}")
    assert.strictEqual(failed.code, 1)
    assert.match(failed.verdict, /refused session\/prompt with error -32000.*sign in/)
  })

  it("says how it ended, and what it left", { timeout }, async () => {
    const marker = newMarker()
    const ends = async (...switches: ReadonlyArray<string>) => {
      const { code, stdout } = await run(["doctor", agent(...switches), "--json"], { env })
      assert.strictEqual(code, 0)
      return jsonLines(stdout)[0]
    }
    const termed = await ends("--ignore-eof")
    assert.deepInclude(termed.end, { by: "TERM", signal: "SIGTERM" })
    const killed = await ends("--ignore-eof", "--ignore-term")
    assert.deepInclude(killed.end, { by: "KILL", signal: "SIGKILL" })
    assert.match(killed.findings[0].what, /ignores the end of its input and TERM/)
    const left = await ends(`--child=${marker}`)
    assert.deepInclude(left.end, { by: "end of input", left: left.end.left })
    assert.isNotEmpty(left.end.left)
    assert.match(left.findings[0].what, /leaves processes behind \(.*sh.*\)/)
    assert.deepStrictEqual(alive(marker), [])
  })

  it("S4: never prints a secret, wherever it stands", async () => {
    const secret = "hunter2-hunter2-hunter2"
    const others = ["first-of-two", "of-a-variable", "of-a-query"]
    const { code, stderr, stdout } = await doctor(
      [
        `--api-key=${others[0]}`,
        `--api-key=${secret}`,
        `SOME_KEY=${others[1]}`,
        `--url=https://host/?key=${others[2]}&b=c`,
        `--stderr=using ${secret} and another-secret-value`,
        "--exit-at=session/new:1"
      ],
      "--env",
      "MY_TOKEN=another-secret-value"
    )
    assert.strictEqual(code, 1)
    for (const word of [secret, ...others, "another-secret-value"]) assert.notInclude(stdout + stderr, word)
    assert.include(stdout, "<MY_TOKEN>")
    assert.match(stdout, /it gets +MY_TOKEN\n/)
  })

  it("names the variables that its profile passes on, and those that are unset", async () => {
    using folder = temporary()
    writeFileSync(join(folder.path, "qwen"), "#!/bin/sh\nexit 3\n")
    chmodSync(join(folder.path, "qwen"), 0o755)
    const PATH = `${folder.path}:/usr/bin:/bin`
    const { code, stdout } = await run(["doctor", "qwen"], { env: { ...env, PATH, OPENAI_API_KEY: "sk-1234567890" } })
    assert.strictEqual(code, 1)
    assert.match(stdout, /it gets +OPENAI_API_KEY\n/)
    assert.match(stdout, /unset here +OPENAI_BASE_URL, OPENAI_MODEL, DASHSCOPE_API_KEY\n/)
    assert.match(stdout, /known +a second prompt on a busy session fails the first\n/)
    assert.notInclude(stdout, "sk-1234567890")
  })

  it("stops on Ctrl-C, and at once on a second one, and leaves nothing behind", { timeout }, async () => {
    for (const isStubborn of [false, true]) {
      using folder = temporary()
      const log = join(folder.path, "log")
      const marker = newMarker()
      const switches = isStubborn ? ["--ignore-term", "--ignore-eof"] : []
      const flags = isStubborn ? ":ignore-term" : ""
      const running = start(["doctor", agent("--mute", `--log=${log}`, `--child=${marker}${flags}`, ...switches)], {
        // Longer than the test may take, where the second Ctrl-C has to do it.
        env: { ACP_SIDECAR_KILL_GRACE: isStubborn ? "10 minutes" : "2 seconds" }
      })
      while (!existsSync(log)) await new Promise((done) => setTimeout(done, 20))
      running.child.kill("SIGINT")
      await running.seen("stderr", "cancelling")
      if (isStubborn) running.child.kill("SIGINT")
      const { code, stderr } = await running.ended
      assert.strictEqual(code, 130)
      assert.include(stderr, "acp-sidecar: cancelled in initialize\n")
      assert.deepStrictEqual(alive(marker), [])
    }
  })
})

describe("agents", () => {
  const install = (folder: string) => {
    const home = join(folder, "lib/node_modules/@google/gemini-cli")
    mkdirSync(join(home, "bundle"), { recursive: true })
    mkdirSync(join(folder, "bin"))
    writeFileSync(
      join(home, "package.json"),
      JSON.stringify({ name: "@google/gemini-cli", version: "9.8.7", bin: { gemini: "bundle/gemini.js" } })
    )
    // It would hang, or worse, if it were started.
    writeFileSync(join(home, "bundle/gemini.js"), `#!/bin/sh\ntouch ${folder}/started\nsleep 600\n`)
    chmodSync(join(home, "bundle/gemini.js"), 0o755)
    symlinkSync(join(home, "bundle/gemini.js"), join(folder, "bin/gemini"))
    writeFileSync(join(folder, "bin/codex-acp"), "#!/bin/sh\n")
    chmodSync(join(folder, "bin/codex-acp"), 0o755)
    writeFileSync(join(folder, "bin/qwen"), "not a program\n")
    return { env: { PATH: join(folder, "bin") } }
  }

  it("lists those that are here with their versions, and how to install the others, and starts none", async () => {
    using folder = temporary()
    const { code, stderr, stdout } = await run(["agents"], install(folder.path))
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    const [here, missing] = stdout.split("\n\n")
    assert.match(here!, /^Installed here:\n/)
    assert.match(here!, /\n {2}gemini +9\.8\.7 +\S+\/bin\/gemini --acp/)
    assert.match(here!, /\n {2}codex +\? +\S+\/bin\/codex-acp/)
    assert.match(here!, /\n {2}bundled +\d+\.\d+\.\d+ +\S+demo-agent\.mjs/)
    assert.match(missing!, /^Not installed\. To install:\n/)
    assert.match(missing!, /\n {2}claude +npm install -g @agentclientprotocol\/claude-agent-acp/)
    assert.match(missing!, /\n {2}qwen +npm install -g @qwen-code\/qwen-code/)
    assert.isFalse(existsSync(join(folder.path, "started")))
  })

  it("does not wait for a package.json that is a pipe", { timeout }, async () => {
    using folder = temporary()
    const options = install(folder.path)
    spawnSync("mkfifo", [join(folder.path, "bin/package.json")])
    // One that waits for the pipe hears no signal but this.
    const { status, stdout } = spawnSync(process.execPath, [bin, "agents"], {
      ...options,
      encoding: "utf8",
      timeout: timeout / 4,
      killSignal: "SIGKILL"
    })
    assert.strictEqual(status, 0)
    assert.match(stdout, /\n {2}codex +\? +\S+\/bin\/codex-acp/)
  })

  it.skipIf(!existsSync("/dev/full"))("fails when its output can't be written", async () => {
    for (const args of [
      ["agents", "--json"],
      ["doctor", "--json", agent()]
    ]) {
      const full = openSync("/dev/full", "w")
      const { status, stderr } = spawnSync(process.execPath, [bin, ...args], {
        stdio: ["ignore", full, "pipe"],
        encoding: "utf8"
      })
      closeSync(full)
      assert.include([1, 130], status)
      assert.include(stderr, "the output could not be written (ENOSPC)")
    }
  })

  it("gives them as one JSON document", async () => {
    using folder = temporary()
    const { code, stdout } = await run(["agents", "--json"], install(folder.path))
    assert.strictEqual(code, 0)
    const [{ agents }, ...more] = jsonLines(stdout)
    assert.deepStrictEqual(more, [])
    const byName = Object.fromEntries(agents.map((found: { name: string }) => [found.name, found]))
    assert.deepInclude(byName.gemini, {
      installed: true,
      path: join(folder.path, "bin/gemini"),
      version: "9.8.7",
      package: "@google/gemini-cli",
      command: ["gemini", "--acp"]
    })
    assert.deepInclude(byName.codex, { installed: true, version: null, package: null })
    assert.deepInclude(byName.claude, { installed: false, path: null, version: null })
    assert.deepInclude(byName.bundled, { installed: true, package: "acp-sidecar" })
  })
})
