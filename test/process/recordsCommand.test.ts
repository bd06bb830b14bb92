// The launch records of the command.
import { afterAll, afterEach, assert, describe, it } from "@effect/vitest"
import { chmodSync, existsSync, mkdtempSync, readdirSync, rmSync, statSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import * as Effect from "effect/Effect"
import { agent, alive, assertSentence, newMarker, run, start } from "../support/command.ts"
import { running } from "../support/processes.ts"

const folders = mkdtempSync(join(tmpdir(), "acp-sidecar-state-"))
/** What is killed after the test, should it fail. */
const markers: Array<string> = []
const marked = () => {
  const marker = newMarker()
  markers.push(marker)
  return marker
}
afterEach(async () => {
  for (const marker of markers.splice(0)) {
    for (const { pid } of await Effect.runPromise(running(marker))) process.kill(pid, "SIGKILL")
  }
})
afterAll(() => rmSync(folders, { recursive: true, force: true }))
let count = 0
const newFolder = () => join(folders, `${++count}`)

const launches = (folder: string) => readdirSync(join(folder, "launches"))

describe("the command's launch records", { timeout: 120_000 }, () => {
  it("are there while the agent runs, and none is left behind", async () => {
    const ACP_SIDECAR_STATE = newFolder()
    const { ended, seen } = start(["run", "--agent", agent(), "go on {text=here} {wait=300}"], {
      env: { ACP_SIDECAR_STATE }
    })
    await seen("stdout", "here")
    assert.strictEqual(launches(ACP_SIDECAR_STATE).length, 1)
    assert.strictEqual(statSync(join(ACP_SIDECAR_STATE, "launches")).mode & 0o777, 0o700)
    assert.deepInclude(await ended, { code: 0, stderr: "" })
    assert.deepStrictEqual(launches(ACP_SIDECAR_STATE), [])
  })

  it("are kept by doctor and demo too", async () => {
    const env = { ACP_SIDECAR_STATE: newFolder() }
    assert.strictEqual((await run(["doctor", agent()], { env })).code, 0)
    assert.deepStrictEqual(launches(env.ACP_SIDECAR_STATE), [])
    const other = { ACP_SIDECAR_STATE: newFolder() }
    assert.strictEqual((await run(["demo", "--slow", "2s"], { env: other })).code, 0)
    assert.deepStrictEqual(launches(other.ACP_SIDECAR_STATE), [])
  })

  it("let the next run end what a killed one has left", async () => {
    const env = { ACP_SIDECAR_STATE: newFolder() }
    const marker = marked()
    const stubborn = agent("--ignore-eof", "--ignore-term", `--child=${marker}:ignore-term`)
    const { child, ended, seen } = start(["run", "--agent", stubborn, "{text=here} {hang}"], { env })
    await seen("stdout", "here")
    child.kill("SIGKILL")
    await ended
    assert.strictEqual(alive(marker).length, 2)
    assert.strictEqual(launches(env.ACP_SIDECAR_STATE).length, 1)
    const next = await run(["run", "--agent", agent(), "{text=next}"], { env })
    assert.deepInclude(next, { code: 0, stderr: "" })
    assert.deepStrictEqual(alive(marker), [])
    assert.deepStrictEqual(launches(env.ACP_SIDECAR_STATE), [])
  })

  it("are none after a second Ctrl-C, which kills", async () => {
    const env = { ACP_SIDECAR_STATE: newFolder() }
    const marker = marked()
    const stubborn = agent("--ignore-eof", "--ignore-term", "--ignore-cancel", `--mark=${marker}`)
    const { child, ended, seen } = start(["run", "--agent", stubborn, "{text=here} {hang}"], { env })
    await seen("stdout", "here")
    child.kill("SIGINT")
    await seen("stderr", "again to kill")
    child.kill("SIGINT")
    assert.strictEqual((await ended).code, 130)
    assert.deepStrictEqual(alive(marker), [])
    assert.deepStrictEqual(launches(env.ACP_SIDECAR_STATE), [])
  })

  it("can be switched off", async () => {
    const env = { ACP_SIDECAR_STATE: "off", XDG_STATE_HOME: newFolder() }
    const { code, stdout } = await run(["run", "--agent", agent(), "{env}"], { env })
    assert.strictEqual(code, 0)
    assert.notInclude(stdout, "ACP_SIDECAR_LAUNCH")
    assert.isFalse(existsSync(env.XDG_STATE_HOME))
  })

  it("are in the user's state folder by default, and done without, with a warning, where that can't be", async () => {
    const env = { ACP_SIDECAR_STATE: "", XDG_STATE_HOME: newFolder() }
    assert.deepInclude(await run(["run", "--agent", agent(), "hello"], { env }), { code: 0, stderr: "" })
    const folder = join(env.XDG_STATE_HOME, "acp-sidecar")
    assert.deepStrictEqual(launches(folder), [])
    chmodSync(join(folder, "launches"), 0o777)
    const { code, stderr, stdout } = await run(["run", "--agent", agent(), "{text=fine}"], { env })
    assert.strictEqual(code, 0)
    assert.include(stdout, "fine")
    assertSentence(
      stderr,
      /launches can't be recorded in ".*\/acp-sidecar\/launches" \(others may write to it\); .*\.$/m
    )
  })

  it("end the command when they can't be where they were wanted", async () => {
    const env = { ACP_SIDECAR_STATE: "/dev/null/state" }
    for (const args of [
      ["run", "--agent", agent(), "hello"],
      ["doctor", agent()]
    ]) {
      const { code, stderr } = await run(args, { env })
      assert.strictEqual(code, 2)
      assertSentence(stderr, 'launches can\'t be recorded in "/dev/null/state/launches" (ENOTDIR)')
    }
  })
})
