import { assert, describe, it } from "@effect/vitest"
import { AgentProfile } from "acp-sidecar"
import { parseListening, parseStat } from "./leftovers.ts"
import { installArguments, parsePackage, profileOf, recipes } from "./recipes.ts"

const setup = { folder: "/agents/one", home: "/homes/one", port: 4321 }

describe("recipes", () => {
  it.each(Object.entries(recipes))("%s is the built-in profile, with nothing of this machine", (name, recipe) => {
    const profile = profileOf(recipe, setup)
    const { env, passEnv, ...rest } = profile
    const { env: _, passEnv: __, ...builtIn } = AgentProfile.builtIn[name]!
    assert.deepStrictEqual(rest, builtIn)
    assert.deepStrictEqual(passEnv, [])
    assert.strictEqual(env["HOME"], setup.home)
    assert.isTrue(env["PATH"]!.startsWith("/agents/one/node_modules/.bin:"))
    const model = JSON.stringify([env, recipe.files(setup)])
    assert.include(model, "http://127.0.0.1:4321")
  })

  it.each(Object.values(recipes).flatMap(({ packages }) => packages))("%s is pinned to a version", (text) => {
    const { name, version } = parsePackage(text)
    assert.match(name, /^(@[\w-]+\/)?[\w-]+$/)
    assert.match(version, /^\d+\.\d+\.\d+$/)
  })

  it("are installed by npm, each into its own folder", () =>
    assert.deepStrictEqual(installArguments(recipes["qwen"]!, "/agents/qwen"), [
      "install",
      "--no-audit",
      "--no-fund",
      "--prefix",
      "/agents/qwen",
      "@qwen-code/qwen-code@0.24.4"
    ]))
})

describe("leftovers", () => {
  it("a process's state, parent and group are read whatever its name", () => {
    assert.deepStrictEqual(parseStat("12 (a) S (b) R 1 77 3 0"), { state: "R", parent: 1, group: 77 })
    assert.isUndefined(parseStat(""))
  })

  it("only listening sockets count", () => {
    const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
    const row = (port: string, state: string, inode: number) =>
      `   0: 0100007F:${port} 00000000:0000 ${state} 00000000:00000000 00:00000000 00000000  0  0 ${inode} 1 0`
    assert.deepStrictEqual(
      Array.from(parseListening([head, row("1F90", "0A", 7), row("1F91", "01", 8), ""].join("\n"))),
      [["7", 8080]]
    )
  })
})
