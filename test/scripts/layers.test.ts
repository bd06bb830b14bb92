import { execFileSync } from "node:child_process"
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"
import { describe, expect, it } from "vitest"
import { check, withoutComments } from "../../scripts/layers.ts"

const root = fileURLToPath(new URL("../..", import.meta.url))

const clean: Readonly<Record<string, string>> = {
  "src/index.ts": `export * as Turn from "./Turn.ts"`,
  "src/bin.ts": `import "./cli/main.ts"\nimport * as NodeRuntime from "@effect/platform-node/NodeRuntime"`,
  "src/cli/main.ts": `import { spawn } from "node:child_process"\nimport * as Turn from "../Turn.ts"`,
  "src/acp/AcpCodec.ts": `import * as Effect from "effect/Effect"\nimport { join } from "../internal/bytes.ts"`,
  "src/internal/bytes.ts": `export const join = 1`,
  "src/internal/turns.ts": `import type { Turn } from "../Turn.ts"`,
  "src/Address.ts": `// import "node:fs" is only a comment\nexport const a = "/* no comment"`,
  "src/Turn.ts": `import type { X } from "./Address.ts"\nimport * as Codec from "./acp/AcpCodec.ts"`,
  "src/Session.ts": `import {\n  a,\n  b,\n} from "./Turn.ts"\nimport { t } from "./internal/turns.ts"`,
  "src/testing/index.ts": `import * as Session from "../Session.ts"`
}

const rules = (files: Readonly<Record<string, string>>) =>
  check(new Map(Object.entries({ ...clean, ...files }))).map(({ file, line, rule }) => `${file}:${line} ${rule}`)

describe("layer rules", () => {
  it("accept sources that keep them", () => expect(rules({})).toEqual([]))

  it.each<[string, Readonly<Record<string, string>>, ReadonlyArray<string>]>([
    ["acp imports a domain file", { "src/acp/X.ts": `import "../Address.ts"` }, ["src/acp/X.ts:1 acp"]],
    [
      "acp imports a domain type",
      { "src/acp/X.ts": `\nimport type { A } from "../Address.ts"` },
      ["src/acp/X.ts:2 acp"]
    ],
    [
      "acp imports a domain file through internal",
      { "src/acp/X.ts": `import "../internal/turns.ts"` },
      ["src/acp/X.ts:1 acp"]
    ],
    [
      "a noun imports what is internal to acp",
      { "src/Vm.ts": `import "./acp/internal/x.ts"`, "src/acp/internal/x.ts": `` },
      ["src/Vm.ts:1 acp-internal"]
    ],
    ["a noun imports cli", { "src/Vm.ts": `import "./cli/main.ts"` }, ["src/Vm.ts:1 cli"]],
    ["a noun imports the barrel", { "src/Vm.ts": `export { x } from "./index.ts"` }, ["src/Vm.ts:1 barrel"]],
    ["a noun imports testing", { "src/Vm.ts": `await import("./testing/index.ts")` }, ["src/Vm.ts:1 testing"]],
    ["cli imports testing", { "src/cli/x.ts": `import "../testing/index.ts"` }, ["src/cli/x.ts:1 testing"]],
    ["a noun imports node", { "src/Vm.ts": `import * as fs from "node:fs"` }, ["src/Vm.ts:1 platform"]],
    [
      "testing imports the platform",
      { "src/testing/x.ts": `import {} from "@effect/platform-node"` },
      ["src/testing/x.ts:1 platform"]
    ],
    ["a file imports a higher level", { "src/SidecarError.ts": `import "./Turn.ts"` }, ["src/SidecarError.ts:1 level"]],
    ["internal lifts its importer", { "src/Journal.ts": `import "./internal/turns.ts"` }, ["src/Journal.ts:1 level"]],
    ["a file is not in the map", { "src/Novel.ts": `` }, ["src/Novel.ts:1 unknown-file"]],
    ["a file names its own package", { "src/Vm.ts": `import "acp-sidecar/Turn"` }, ["src/Vm.ts:1 self-reference"]],
    ["a specifier lacks .ts", { "src/Vm.ts": `import "./Turn"` }, ["src/Vm.ts:1 unresolved"]],
    [
      "files import each other",
      { "src/Admission.ts": `import "./Permission.ts"`, "src/Permission.ts": `import "./Admission.ts"` },
      ["src/Permission.ts:1 cycle"]
    ],
    [
      "concurrency has a bound",
      { "src/Vm.ts": `Effect.forEach(xs, (x) => f(x), {\n  concurrency: 4,\n  discard: true })` },
      ["src/Vm.ts:2 bounded-concurrency"]
    ],
    [
      "concurrency is a variable",
      { "src/Vm.ts": `Effect.all([a, b], { concurrency })` },
      ["src/Vm.ts:1 bounded-concurrency"]
    ]
  ])("report it when %s", (_, files, expected) => expect(rules(files)).toEqual(expected))

  it.each([
    `Effect.forEach(xs, f, { concurrency: "unbounded" })`,
    `Effect.all(xs, { concurrency: 1 })`,
    `Effect.all([Stream.mapEffect(s, f, { concurrency: 4 })])`,
    `Stream.flatMap(f, { concurrency: 4 })`,
    `// Effect.all(xs, { concurrency: 4 })`
  ])("let pass %s", (text) => expect(rules({ "src/Vm.ts": text })).toEqual([]))

  it("types may form a cycle", () =>
    expect(
      rules({
        "src/Admission.ts": `import type { P } from "./Permission.ts"`,
        "src/Permission.ts": `import "./Admission.ts"`
      })
    ).toEqual([]))

  it("comments are blanked with their offsets kept", () => {
    const text = `a /* b\n c */ "// d" // e\nf`
    expect(withoutComments(text)).toBe(`a     \n      "// d"     \nf`)
  })
})

describe("oxlint rules", () => {
  it("report each banned call in library files, and let cli have its own", () => {
    const folder = mkdtempSync(join(tmpdir(), "lint-"))
    const lines = [
      `Effect.runPromise(x)`,
      `Effect.runSync(x)`,
      `Effect.runFork(x)`,
      `Effect.forkDetach(x)`,
      `setTimeout(x, 1)`,
      `setInterval(x, 1)`,
      `console.log(x)`,
      `process.exit(1)`,
      `Buffer.from(x)`
    ]
    const banned = `import * as Effect from "effect/Effect"\nconst x: never = 1 as never\n${lines.join("\n")}\n`
    try {
      for (const file of ["src/Vm.ts", "src/acp/X.ts", "src/testing/x.ts", "src/cli/x.ts"]) {
        mkdirSync(dirname(join(folder, file)), { recursive: true })
        writeFileSync(join(folder, file), banned)
      }
      writeFileSync(join(folder, ".oxlintrc.json"), readFileSync(join(root, ".oxlintrc.json")))
      let output = ""
      try {
        execFileSync(process.execPath, [join(root, "node_modules/oxlint/bin/oxlint"), "--format=unix"], { cwd: folder })
      } catch (error) {
        output = String((error as { readonly stdout: Buffer }).stdout)
      }
      const at = (file: string) =>
        [...output.matchAll(/^(\S+?):(\d+):/gm)]
          .filter((match) => match[1]!.endsWith(file))
          .map((match) => Number(match[2]) - 3)
          .sort()
      const all = lines.map((_, index) => index)
      expect(at("src/Vm.ts")).toEqual(all)
      expect(at("src/acp/X.ts")).toEqual(all)
      expect(at("src/testing/x.ts")).toEqual(all)
      expect(at("src/cli/x.ts")).toEqual([3])
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})
