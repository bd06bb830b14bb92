// The command as a process, bundled as it is published. Import it once a test file: it bundles before all of its tests.
import { afterAll, afterEach, assert, beforeAll } from "@effect/vitest"
import { spawn, spawnSync } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { rolldown } from "rolldown"

export const root = fileURLToPath(new URL("../..", import.meta.url))
const fixture = join(root, "test/fixtures/faulty-agent.mjs")

/** An agent that a test can find in the list of processes: `marker` is in its arguments, and its child's. */
export const agent = (...switches: ReadonlyArray<string>) =>
  [process.execPath, fixture, ...switches].map((word) => `'${word}'`).join(" ")

let markers = 0
export const newMarker = () => `acp-sidecar-test-${process.pid}-${++markers}`

export const alive = (marker: string): ReadonlyArray<string> =>
  spawnSync("ps", ["-eo", "args"], { encoding: "utf8" })
    .stdout.split("\n")
    .filter((line) => line.includes(marker) && !line.includes("bin.mjs"))

// Bundled as it is published, since that starts several times faster than the sources.
const bundles = mkdtempSync(join(tmpdir(), "acp-sidecar-cli-"))
export const bin = join(bundles, "bin.mjs")
/** Where its launch records are, unless a test gives another folder. */
export const stateFolder = join(bundles, "state")
beforeAll(async () => {
  for (const [input, file] of [
    ["src/bin.ts", bin],
    ["src/cli/demoAgent.ts", join(bundles, "demo-agent.mjs")]
  ] as const) {
    const bundle = await rolldown({ input: join(root, input), platform: "node" })
    await bundle.write({ file, format: "esm", codeSplitting: false })
    await bundle.close()
  }
}, 60_000)
afterAll(() => rmSync(bundles, { recursive: true, force: true }))

const started = new Set<() => void>()
afterEach(() => {
  for (const kill of started) kill()
  started.clear()
})

export const start = (
  args: ReadonlyArray<string>,
  options: { readonly env?: object; readonly stdin?: string } = {}
) => {
  const child = spawn(process.execPath, [bin, ...args], {
    cwd: root,
    env: {
      PATH: process.env["PATH"],
      HOME: process.env["HOME"],
      NO_COLOR: "1",
      ACP_SIDECAR_STATE: stateFolder,
      ...options.env
    },
    stdio: "pipe"
  })
  const kill = () => void child.kill("SIGKILL")
  started.add(kill)
  const text = { stdout: "", stderr: "" }
  const watchers = new Set<() => void>()
  for (const name of ["stdout", "stderr"] as const) {
    child[name].setEncoding("utf8").on("data", (chunk: string) => {
      text[name] += chunk
      for (const watch of watchers) watch()
    })
  }
  child.stdin.on("error", () => {})
  child.stdin.end(options.stdin ?? "")
  const ended = new Promise<{ readonly code: number | null; readonly stdout: string; readonly stderr: string }>(
    (done) => {
      child.once("close", (code) => {
        started.delete(kill)
        for (const watch of watchers) watch()
        done({ code, ...text })
      })
    }
  )
  const seen = (name: "stdout" | "stderr", part: string) =>
    new Promise<void>((done, fail) => {
      const watch = () => {
        if (text[name].includes(part)) done()
        else if (child.exitCode !== null) fail(new Error(`ended without ${part}: ${text.stdout}${text.stderr}`))
        else return
        watchers.delete(watch)
      }
      watchers.add(watch)
      watch()
    })
  return { child, ended, seen, text }
}

export const run = (args: ReadonlyArray<string>, options?: Parameters<typeof start>[1]) => start(args, options).ended

// oxlint-disable-next-line typescript/no-explicit-any -- what a test looks into
export const jsonLines = (text: string): ReadonlyArray<any> => {
  assert.isTrue(text.endsWith("\n"))
  return text
    .slice(0, -1)
    .split("\n")
    .map((line) => JSON.parse(line))
}

/** One sentence for the user, no stack trace. */
export const assertSentence = (stderr: string, part: string | RegExp) => {
  assert.match(stderr, /^acp-sidecar: .+\n$/)
  assert.notMatch(stderr, /\n\s+at /)
  if (typeof part === "string") assert.include(stderr, part)
  else assert.match(stderr, part)
}
