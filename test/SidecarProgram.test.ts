import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { assert, describe, it } from "@effect/vitest"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as SidecarLimits from "../src/SidecarLimits.ts"
import * as SidecarProgram from "../src/SidecarProgram.ts"

const withFolder = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "sidecar-program-"))),
  (folder) => Effect.sync(() => rmSync(folder, { recursive: true }))
)

const fileIn = (folder: string, name: string): string => {
  const path = join(folder, name)
  writeFileSync(path, "")
  return path
}

const find = (given: { readonly option?: string; readonly variable?: string; readonly own?: ReadonlyArray<string> }) =>
  SidecarProgram.find({ program: given.option }, { runtime: "/runtime/node", own: given.own ?? [] }).pipe(
    Effect.provideService(
      ConfigProvider.ConfigProvider,
      ConfigProvider.fromEnv({ env: given.variable === undefined ? {} : { ACP_SIDECAR_BIN: given.variable } })
    ),
    Effect.provide(NodeServices.layer)
  )

describe("the program of a sidecar", () => {
  it.effect("is that of the option, then of ACP_SIDECAR_BIN, then the package's own", () =>
    Effect.gen(function* () {
      const folder = yield* withFolder
      const [option, variable, own] = ["option", "variable", "own"].map((name) => fileIn(folder, name)) as [
        string,
        string,
        string
      ]
      const gone = join(folder, "gone")
      const table: ReadonlyArray<readonly [Parameters<typeof find>[0], string]> = [
        [{ option, variable, own: [own] }, option],
        [{ option, variable: gone, own: [gone] }, option],
        [{ variable, own: [own] }, variable],
        [{ option: "", variable, own: [own] }, variable],
        [{ own: [own] }, own],
        [{ option: "", variable: "", own: [gone, own] }, own]
      ]
      for (const [given, path] of table) {
        assert.deepStrictEqual(yield* find(given), { path, command: path, args: [] })
      }
    })
  )

  it.effect.each([".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"])("%s is run by the Node of the app", (extension) =>
    Effect.gen(function* () {
      const path = fileIn(yield* withFolder, `program${extension}`)
      assert.deepStrictEqual(yield* find({ option: path }), { path, command: "/runtime/node", args: [path] })
    })
  )

  it.effect("that is missing is an error that names all three places and what is there", () =>
    Effect.gen(function* () {
      const folder = yield* withFolder
      const own = fileIn(folder, "own.mjs")
      const gone = join(folder, "gone")
      mkdirSync(join(folder, "folder"))
      const missing = yield* Effect.flip(find({ option: gone, variable: join(folder, "folder"), own: [own] }))
      assert.deepStrictEqual(missing.places, [
        { place: "option", path: gone, found: "nothing" },
        { place: "variable", path: join(folder, "folder"), found: "no file" },
        { place: "package", path: own, found: "a file" }
      ])
      assert.strictEqual(
        missing.message,
        `No program to run the sidecar with: the option program is "${gone}" (nothing), the variable ACP_SIDECAR_BIN is ` +
          `"${join(folder, "folder")}" (no file), the package's own program is "${own}" (a file); correct the option program.`
      )
      const ofVariable = yield* Effect.flip(find({ variable: gone, own: [own] }))
      assert.match(ofVariable.message, /option program is not given.*correct the variable ACP_SIDECAR_BIN\.$/)
      const ofPackage = yield* Effect.flip(find({ own: [gone, join(folder, "gone too")] }))
      assert.strictEqual(ofPackage.places[2]?.path, gone)
      const none = yield* Effect.flip(find({}))
      assert.deepStrictEqual(
        none.places.map(({ found, path }) => [path, found]),
        [
          [null, "not given"],
          [null, "not given"],
          [null, "not given"]
        ]
      )
      assert.match(none.message, /give one of them\.$/)
    })
  )
})

describe("limits for a sidecar", () => {
  const names = Object.keys(SidecarLimits.defaults) as ReadonlyArray<keyof SidecarLimits.SidecarLimits>

  /** What a process with these variables, and nothing else of the kind, has as its limits. */
  const inProcess = (limits: SidecarLimits.Overrides, inherited: Record<string, string> = {}) =>
    Effect.gen(function* () {
      const env: Record<string, string> = { ...inherited }
      for (const [name, value] of Object.entries(yield* SidecarProgram.limitVariables(limits))) {
        if (value === undefined) delete env[name]
        else env[name] = value
      }
      const provider = ConfigProvider.fromEnv({ env })
      return yield* SidecarLimits.SidecarLimits.pipe(
        Effect.provide(SidecarLimits.layerFromEnv),
        Effect.provideService(ConfigProvider.ConfigProvider, provider)
      )
    })

  const odd = (name: keyof SidecarLimits.SidecarLimits, way: number): SidecarLimits.Overrides => {
    const value = SidecarLimits.defaults[name]
    const times = [Duration.millis(1234), Duration.zero, "off", "1.5 minutes", Duration.micros(1500n), 7]
    const counts = [Number(value ?? 3) + 1, 0, Number.MAX_SAFE_INTEGER]
    return { [name]: Duration.isDuration(value) ? times[way % times.length] : counts[way % counts.length] }
  }

  it.effect.each(names)("%s arrives as it was given, and alone", (name) =>
    Effect.gen(function* () {
      for (let way = 0; way < 6; way++) {
        const given = odd(name, way)
        const arrived = SidecarLimits.plain(yield* inProcess(given))
        assert.deepStrictEqual(arrived, SidecarLimits.plain(yield* SidecarLimits.make(given)))
      }
    })
  )

  it.effect("arrive all at once", () =>
    Effect.gen(function* () {
      const given: SidecarLimits.Overrides = Object.assign({}, ...names.map((name) => odd(name, 0)))
      const arrived = SidecarLimits.plain(yield* inProcess(given))
      assert.deepStrictEqual(arrived, SidecarLimits.plain(yield* SidecarLimits.make(given)))
      const plain = SidecarLimits.plain(SidecarLimits.defaults)
      for (const name of names) assert.notStrictEqual(arrived[name], plain[name], name)
    })
  )

  it.effect("that are not given stay as the environment has them, and null is the default against it", () =>
    Effect.gen(function* () {
      const inherited = { ACP_SIDECAR_MAX_VMS: "5", ACP_SIDECAR_RESERVED_INTERACTIVE_PER_VM: "3" }
      const kept = yield* inProcess({ maxVms: undefined }, inherited)
      assert.deepStrictEqual([kept.maxVms, kept.reservedInteractivePerVm], [5, 3])
      const reset = yield* inProcess({ reservedInteractivePerVm: null }, inherited)
      assert.deepStrictEqual([reset.maxVms, reset.reservedInteractivePerVm], [5, null])
    })
  )

  it.effect("that make no sense are refused before anything is started", () =>
    Effect.gen(function* () {
      const refused = yield* Effect.flip(SidecarProgram.limitVariables({ maxVms: -1 }))
      assert.strictEqual(refused._tag, "InvalidLimit")
      assert.strictEqual(refused.setting, "ACP_SIDECAR_MAX_VMS")
    })
  )
})
