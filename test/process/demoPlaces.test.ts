// The demo with sidecars in other places. Nothing here depends on speed: bounds are generous.
import { assert, describe, it } from "@effect/vitest"
import { existsSync } from "node:fs"
import { assertSentence, jsonLines, run, start } from "../support/command.ts"

const isRunning = (pid: number) => existsSync(`/proc/${pid}/exe`)

// Whether a prompt was sent is heard from another process, so these two may be told in any order.
const types = (text: string) =>
  jsonLines(text).map(({ lane, prompt, sidecar, type }) => `${type} ${prompt ?? lane ?? sidecar ?? ""}`.trim())

describe("demo --in", { timeout: 90_000 }, () => {
  it("is answered with a sentence when there is no such place", async () => {
    const { code, stderr } = await run(["demo", "--in", "cloud"])
    assert.strictEqual(code, 2)
    assertSentence(stderr, /embedded.*process/)
  })

  it.each(["sessions", "vms"])("runs demo %s with the sidecar in a process of its own", async (mode) => {
    const { code, stderr, stdout } = await run(["demo", mode, "--in", "process", "--slow", "3s", "--json"])
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    const lines = jsonLines(stdout)
    const [started] = lines
    const verdict = lines.at(-1)
    assert.deepStrictEqual([started.type, started.mode, started.in], ["started", mode, "process"])
    assert.deepStrictEqual([verdict.type, verdict.mode, verdict.verdict], ["verdict", mode, "CONCURRENT"])
    assert.deepStrictEqual(types(stdout).slice(-3), ["prompt_completed B", "prompt_completed A", "verdict"])
    assert.lengthOf(started.sidecarPids, 1)
    for (const pid of [...started.pids, ...started.sidecarPids]) assert.isFalse(isRunning(pid))
  })

  it("runs demo shared with the sidecar in a process of its own, which the process table confirms", async () => {
    const { code, stderr, stdout } = await run(["demo", "shared", "--in", "process", "--sessions", "3", "--slow", "2s"])
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    const [, pid, sidecar] =
      /^acp-sidecar demo: 1 VM, 3 sessions, agent "bundled" \(pid (\d+)\), .*, sidecar in process (\d+)\n/.exec(stdout)!
    assert.match(stdout, new RegExp(`\nhost-1 +[\\da-f]+ +${pid} +3 +3 +\\d+\\.\\d+ s +\\d+ MiB `))
    assert.include(stdout, `\nprocess table: 1 agent process (pid ${pid}), 3 sessions\n`)
    assert.match(stdout, /\nverdict\[shared\]: 3 sessions in 1 agent process -> SHARED and CONCURRENT\n$/)
    assert.isFalse(isRunning(Number(sidecar)))
  })

  it("leaves no sidecar and no agent when it is interrupted", async () => {
    const demo = start(["demo", "sidecars", "--in", "process", "--slow", "60s", "--json"])
    await demo.seen("stdout", '"prompt_completed","prompt":"B"')
    demo.child.kill("SIGINT")
    const { code, stderr, stdout } = await demo.ended
    assert.strictEqual(code, 130)
    assertSentence(stderr, "cancelling")
    const [{ pids, sidecarPids }] = jsonLines(stdout)
    for (const pid of [...pids, ...sidecarPids]) assert.isFalse(isRunning(pid))
  })
})

describe("demo sidecars", { timeout: 90_000 }, () => {
  it("shows two embedded sidecars, of which one outlives the other", async () => {
    const { code, stderr, stdout } = await run(["demo", "sidecars", "--slow", "3s"], { env: { COLUMNS: "72" } })
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    assert.match(
      stdout,
      /^acp-sidecar demo: 2 sidecars, 1 session each, agent "bundled" \(pids \d+, \d+\), scripted model on loopback, sidecars embedded\n/
    )
    const events = stdout
      .split("\n")
      .filter((line) => line.startsWith("["))
      .map((line) => line.replace(/^\[ *\d+\.\d\d s\] /, ""))
    assert.deepStrictEqual(events.slice(-2), [
      "sidecar of A <- disposed, while a prompt of B runs",
      "sidecar of B <- both that prompt and another one completed"
    ])
    assert.match(stdout, /\nverdict\[sidecars\]: prompt B took \d+\.\d\d s -> CONCURRENT and INDEPENDENT\n$/)
  })

  it("shows two in processes of their own, of which one outlives the other", async () => {
    const { code, stderr, stdout } = await run(["demo", "sidecars", "--in", "process", "--slow", "3s", "--json"])
    assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
    const lines = jsonLines(stdout)
    const [{ pids, sidecarPids }] = lines
    const verdict = lines.at(-1)
    assert.strictEqual(new Set([...pids, ...sidecarPids]).size, 4)
    assert.deepStrictEqual(types(stdout).slice(-4), ["prompt_completed A", "disposed A", "alive B", "verdict"])
    assert.deepStrictEqual([verdict.verdict, verdict.independent], ["CONCURRENT", true])
    for (const pid of [...pids, ...sidecarPids]) assert.isFalse(isRunning(pid))
  })
})
