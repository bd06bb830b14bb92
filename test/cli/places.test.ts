import { afterEach, assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import * as Net from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import * as Places from "../../src/cli/places.ts"

const names = ["ACP_SIDECAR_STATE", "ACP_SIDECAR_SOCKET", "XDG_STATE_HOME"] as const
const before = names.map((name) => process.env[name])
const variables = (given: Partial<Record<(typeof names)[number], string>>) => {
  for (const name of names) {
    const value = given[name]
    if (value === undefined) delete process.env[name]
    else process.env[name] = value
  }
}
afterEach(() => {
  for (const [index, name] of names.entries()) {
    if (before[index] === undefined) delete process.env[name]
    else process.env[name] = before[index]
  }
})

const given = (some: Partial<Record<keyof Places.Given, string>> = {}): Places.Given => ({
  socket: Option.fromUndefinedOr(some.socket),
  url: Option.fromUndefinedOr(some.url),
  tokenFile: Option.fromUndefinedOr(some.tokenFile)
})

const temporary = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "acp-sidecar-p-"))),
  (folder) => Effect.sync(() => rmSync(folder, { recursive: true, force: true }))
)

const listening = (path: string) =>
  Effect.acquireRelease(
    Effect.callback<Net.Server>((resume) => {
      const server = Net.createServer()
      server.listen(path, () => resume(Effect.succeed(server)))
    }),
    (server) => Effect.sync(() => void server.close())
  )

describe("find", () => {
  it.effect("takes the flag before the variable, and the variable before the folder", () =>
    Effect.gen(function* () {
      variables({ ACP_SIDECAR_SOCKET: "/run/of-variable.sock", ACP_SIDECAR_STATE: "/nowhere" })
      const flag = yield* Places.find(given({ socket: "/run/of-flag.sock" }))
      assert.deepStrictEqual([flag.all.map(({ socket }) => socket), flag.folder], [["/run/of-flag.sock"], undefined])
      const variable = yield* Places.find(given())
      assert.deepStrictEqual(
        variable.all.map(({ socket }) => socket),
        ["/run/of-variable.sock"]
      )
      assert.deepStrictEqual(yield* Places.findNamed(given()), { all: [], folder: "/nowhere" })
      variables({ ACP_SIDECAR_SOCKET: " ", ACP_SIDECAR_STATE: "/nowhere" })
      assert.deepStrictEqual(yield* Places.find(given()), { all: [], folder: "/nowhere" })
    })
  )

  it.effect("finds the sockets of the state folder and nothing else that is in there", () =>
    Effect.gen(function* () {
      const folder = yield* temporary
      variables({ ACP_SIDECAR_STATE: folder })
      for (const name of ["b.sock", "a.sock", ".hidden.sock", "other"]) yield* listening(join(folder, name))
      mkdirSync(join(folder, "launches.sock"))
      writeFileSync(join(folder, "file.sock"), "")
      const { all } = yield* Places.find(given())
      assert.deepStrictEqual(
        all.map(({ socket }) => socket),
        [join(folder, "a.sock"), join(folder, "b.sock")]
      )
    })
  )

  it.effect("reads the token of a WebSocket, and wants one", () =>
    Effect.gen(function* () {
      const folder = yield* temporary
      const tokenFile = join(folder, "token")
      writeFileSync(tokenFile, "secret\n")
      const url = "ws://127.0.0.1:8123"
      const [place] = (yield* Places.find(given({ url, tokenFile }))).all
      assert.deepStrictEqual([place!.url, place!.socket], [url, null])
      assert.strictEqual(Redacted.value(place!.token!), "secret")
      writeFileSync(join(folder, "long"), "x".repeat(5000))
      for (const [wrong, problem] of [
        [{ url }, "--token-file"],
        [{ url, socket: "a" }, "not both"],
        [{ url, tokenFile: folder }, "EISDIR"],
        [{ url, tokenFile: join(folder, "long") }, "no token"],
        [{ url: "nonsense", tokenFile }, "nonsense"]
      ] as const) {
        const error = yield* Effect.flip(Places.find(given(wrong)))
        assert.strictEqual(error.code, 2)
        assert.include(error.message, problem)
      }
    })
  )
})

describe("stateFolder", () => {
  it("is that of the variable, of XDG, or of the home folder", () => {
    variables({ ACP_SIDECAR_STATE: "/state", XDG_STATE_HOME: "/xdg" })
    assert.strictEqual(Places.stateFolder(), "/state")
    variables({ ACP_SIDECAR_STATE: "off", XDG_STATE_HOME: "/xdg" })
    assert.strictEqual(Places.stateFolder(), "/xdg/acp-sidecar")
    variables({ XDG_STATE_HOME: "relative" })
    assert.match(Places.stateFolder(), /^\/.*\/\.local\/state\/acp-sidecar$/)
  })
})

describe("howToStart", () => {
  it("is a command to copy, whatever the folder is called", () => {
    assert.include(Places.howToStart("/home/me/state"), "serve --socket /home/me/state/default.sock")
    assert.include(Places.howToStart("/home/my files"), "serve --socket '/home/my files'/default.sock")
  })
})
