import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join, resolve } from "node:path"
import * as AgentProfile from "../../src/AgentProfile.ts"
import * as Agents from "../../src/cli/agents.ts"

const command = (text: string) => Result.getOrThrow(Agents.parse(text)).command

describe("parse", () => {
  it("knows the built-in names", () => {
    for (const name of Agents.known) assert.strictEqual(Result.getOrThrow(Agents.parse(name)).name, name)
    assert.strictEqual(Result.getOrThrow(Agents.parse(" claude ")), AgentProfile.claude)
  })

  it("takes anything else as a command line", () => {
    assert.deepStrictEqual(command("node agent.mjs 'a b'"), ["node", "agent.mjs", "a b"])
    assert.deepStrictEqual(command("claude --acp"), ["claude", "--acp"])
    assert.deepStrictEqual(command("toString"), ["toString"])
  })

  it("takes the path of a program, also with blanks in it, as seen from here", () => {
    const folder = mkdtempSync(join(tmpdir(), "acp sidecar "))
    try {
      const program = join(folder, "my agent")
      writeFileSync(program, "")
      assert.deepStrictEqual(command(program), [program])
    } finally {
      rmSync(folder, { recursive: true })
    }
    assert.deepStrictEqual(command("./bin/agent --acp"), [resolve("bin/agent"), "--acp"])
  })
})

describe("resolve", () => {
  const problem = (text: string, path: string) => Effect.flip(Agents.resolve(text, path))

  it.effect("names the known agents when there is no such program", () =>
    Effect.gen(function* () {
      const error = yield* problem("no-such-agent", process.env["PATH"]!)
      assert.strictEqual(error.code, 2)
      for (const name of ["no-such-agent", ...Agents.known]) assert.include(error.message, name)
    })
  )

  it.effect("says how to install a known agent that is missing", () =>
    Effect.gen(function* () {
      const error = yield* problem("codex", "/nowhere")
      assert.strictEqual(error.code, 1)
      assert.include(error.message, AgentProfile.codex.install)
    })
  )

  it.effect("finds programs on the given PATH", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual((yield* Agents.resolve("sh -x", "/nowhere:/bin")).command, ["sh", "-x"])
      assert.strictEqual((yield* problem("sh -x", "/nowhere")).code, 2)
    })
  )
})
