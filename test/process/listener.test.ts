import { spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs"
import * as Http from "node:http"
import * as Net from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll, assert, describe, it } from "@effect/vitest"
import * as NodeServices from "@effect/platform-node/NodeServices"
import { WebSocket } from "@effect/platform-node/NodeWS"
import * as NodeListener from "acp-sidecar/NodeListener"
import { ProcessTable } from "acp-sidecar"
import * as NodeProcessTable from "acp-sidecar/NodeProcessTable"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import type * as Socket from "effect/socket/Socket"

const folders = mkdtempSync(join(tmpdir(), "acp-listen-"))
afterAll(() => rmSync(folders, { recursive: true, force: true }))
let count = 0
const newFolder = () => join(folders, `${++count}`)
const platform = Layer.mergeAll(NodeServices.layer, NodeProcessTable.layer)

/** Gives back what it gets until the connection ends. */
const echo = (socket: Socket.Socket): Effect.Effect<void> =>
  Effect.gen(function* () {
    const writer = yield* socket.writer
    const { pull } = yield* socket.reader
    yield* Effect.forever(Effect.flatMap(pull, (chunks) => writer.writeAll(chunks)))
  }).pipe(Effect.scoped, Effect.ignore)

const echoing = <E, R>(listener: Effect.Effect<NodeListener.Listener, E, R>) =>
  Effect.tap(listener, ({ run }) => Effect.forkScoped(run(echo), { startImmediately: true }))

/** A client that is cut off after the test, should it fail. */
const connect = (path: string) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const client = Net.connect(path)
      client.on("error", () => {})
      await once(client, "connect")
      return client
    }),
    (client) => Effect.sync(() => client.destroy())
  )

const event = (client: Net.Socket | WebSocket, name: string) =>
  Effect.promise(() => new Promise<unknown>((done) => void client.once(name, done)))

const say = (client: Net.Socket, text: string) =>
  Effect.promise(async () => {
    const answer = once(client, "data")
    client.write(text)
    return String((await answer)[0])
  })

/** Leaves a socket file as a process does that is killed. */
const leaveSocket = (path: string) =>
  Effect.promise(async () => {
    const code = `require("net").createServer().listen(${JSON.stringify(path)}, () => console.log("there"))`
    const child = spawn(process.execPath, ["-e", code], { stdio: ["ignore", "pipe", "inherit"] })
    await once(child.stdout, "data")
    child.kill("SIGKILL")
    await once(child, "exit")
  })

describe("a Unix domain socket", () => {
  it.live("is its user's alone, in a folder that is made for it, and gone when the scope closes", () =>
    Effect.gen(function* () {
      const folder = join(newFolder(), "made")
      const path = join(folder, "s.sock")
      const scope = yield* Scope.make()
      const mask = process.umask(0)
      const listener = yield* echoing(NodeListener.unixSocket({ path })).pipe(
        Scope.provide(scope),
        Effect.ensuring(Effect.sync(() => process.umask(mask)))
      )
      assert.deepStrictEqual(listener.place, { _tag: "UnixSocket", path })
      assert.strictEqual(statSync(path).mode & 0o777, 0o600)
      assert.strictEqual(statSync(folder).mode & 0o777, 0o700)
      const [one, two] = [yield* connect(path), yield* connect(path)]
      assert.strictEqual(yield* say(one, "hello"), "hello")
      assert.strictEqual(yield* say(two, "world"), "world")
      // Nothing of how it came to be is left.
      assert.deepStrictEqual(readdirSync(folder), ["s.sock"])
      const ends = [event(one, "close"), event(two, "close")].map((end) => Effect.runFork(end))
      yield* Scope.close(scope, Exit.void)
      yield* Effect.forEach(ends, Fiber.join)
      assert.deepStrictEqual(readdirSync(folder), [])
    }).pipe(Effect.provide(platform))
  )

  it.live("that a killed process left is taken over, a live one is refused, and what is no socket is left alone", () =>
    Effect.gen(function* () {
      const folder = newFolder()
      mkdirSync(folder)
      const path = join(folder, "s.sock")
      yield* leaveSocket(path)
      assert.isTrue(existsSync(path))
      yield* echoing(NodeListener.unixSocket({ path }))
      const refused = yield* Effect.flip(NodeListener.unixSocket({ path }))
      assert.strictEqual(refused._tag, "SocketInUse")
      assert.include(refused.message, path)
      assert.strictEqual(yield* say(yield* connect(path), "still"), "still")
      const file = join(folder, "file")
      writeFileSync(file, "mine")
      const other = yield* Effect.flip(NodeListener.unixSocket({ path: file }))
      assert.strictEqual(other._tag, "ListenFailed")
      assert.include(other.message, "no socket")
      assert.isTrue(statSync(file).isFile())
    }).pipe(Effect.scoped, Effect.provide(platform))
  )

  it.live("goes to one of many starters at once, whether a dead one is there or none", () =>
    Effect.gen(function* () {
      for (const isThere of [false, true]) {
        const folder = newFolder()
        mkdirSync(folder)
        const path = join(folder, "s.sock")
        if (isThere) yield* leaveSocket(path)
        const exits = yield* Effect.forEach(
          Array.from({ length: 8 }),
          () => Effect.exit(echoing(NodeListener.unixSocket({ path }))),
          { concurrency: "unbounded" }
        )
        assert.strictEqual(exits.filter(Exit.isSuccess).length, 1)
        for (const exit of exits) {
          if (Exit.isSuccess(exit)) continue
          assert.strictEqual((yield* Effect.flip(exit))._tag, "SocketInUse")
        }
        assert.strictEqual(yield* say(yield* connect(path), "one"), "one")
        assert.deepStrictEqual(readdirSync(folder), ["s.sock"])
      }
    }).pipe(Effect.scoped, Effect.provide(platform))
  )

  it.live("waits for a live starter that was there before, and not for a dead one", () =>
    Effect.gen(function* () {
      const folder = newFolder()
      mkdirSync(folder)
      const path = join(folder, "s.sock")
      const { self } = yield* ProcessTable.ProcessTable
      const named = (startTime: string, id: string) =>
        join(folder, `.s.sock.claim_${self.pid}_${encodeURIComponent(startTime).replaceAll("_", "%5F")}_${id}`)
      const dead = named("another time", "00000000-0000-4000-8000-000000000001")
      const live = named(self.startTime, "00000000-0000-4000-8000-000000000002")
      writeFileSync(dead, "")
      writeFileSync(live, "")
      const listening = yield* Effect.forkChild(echoing(NodeListener.unixSocket({ path })), { startImmediately: true })
      // It has looked, and taken its own claim away for the other one's sake.
      const looked = Effect.sync(() => !existsSync(dead) && readdirSync(folder).length === 1)
      yield* Effect.repeat(Effect.andThen(Effect.yieldNow, looked), { until: (isSo) => isSo })
      assert.isTrue(existsSync(live))
      assert.isFalse(existsSync(path))
      rmSync(live)
      yield* Fiber.join(listening)
      assert.strictEqual(yield* say(yield* connect(path), "mine"), "mine")
      assert.deepStrictEqual(readdirSync(folder), ["s.sock"])
    }).pipe(Effect.scoped, Effect.provide(platform))
  )

  it.live("is not removed when another one has come in its place", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      const scope = yield* Scope.make()
      yield* Scope.provide(echoing(NodeListener.unixSocket({ path })), scope)
      rmSync(path)
      yield* echoing(NodeListener.unixSocket({ path }))
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual(yield* say(yield* connect(path), "mine"), "mine")
    }).pipe(Effect.scoped, Effect.provide(platform))
  )

  it.live("has a path that the system allows, to the byte, and an absolute one", () =>
    Effect.gen(function* () {
      const folder = newFolder()
      const max = process.platform === "linux" ? 107 : 103
      const longest = join(folder, "x".repeat(max - folder.length - 1))
      yield* echoing(NodeListener.unixSocket({ path: longest }))
      assert.strictEqual(yield* say(yield* connect(longest), "long"), "long")
      const refused = yield* Effect.flip(NodeListener.unixSocket({ path: `${longest}x` }))
      assert.deepInclude(refused, { _tag: "SocketPathTooLong", bytes: max + 1, max })
      for (const path of ["s.sock", `${folder}/`, `${folder}/a\0b`]) {
        assert.strictEqual((yield* Effect.flip(NodeListener.unixSocket({ path })))._tag, "ListenFailed")
      }
    }).pipe(Effect.scoped, Effect.provide(platform))
  )

  it.live("closes connections beyond its number at once, and takes others when one has gone", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      yield* echoing(NodeListener.unixSocket({ path, maxConnections: 2 }))
      const [one, two] = [yield* connect(path), yield* connect(path)]
      assert.strictEqual(yield* say(one, "1"), "1")
      assert.strictEqual(yield* say(two, "2"), "2")
      const three = yield* connect(path)
      three.resume()
      yield* event(three, "close")
      assert.strictEqual(yield* say(two, "2"), "2")
      const gone = event(one, "close")
      one.end()
      yield* gone
      assert.strictEqual(yield* say(yield* connect(path), "4"), "4")
    }).pipe(Effect.scoped, Effect.provide(platform))
  )

  it.live("ends a handler whose client has gone", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      const listener = yield* NodeListener.unixSocket({ path })
      const left = yield* Deferred.make<void>()
      const handler = (socket: Socket.Socket) => Effect.ensuring(echo(socket), Deferred.succeed(left, void 0))
      yield* Effect.forkScoped(listener.run(handler), { startImmediately: true })
      const client = yield* connect(path)
      assert.strictEqual(yield* say(client, "hello"), "hello")
      client.destroy()
      yield* Deferred.await(left)
    }).pipe(Effect.scoped, Effect.provide(platform))
  )

  it.live("cuts a client that doesn't read when its handler ends", () =>
    Effect.gen(function* () {
      const path = join(newFolder(), "s.sock")
      const listener = yield* NodeListener.unixSocket({ path, maxConnections: 1 })
      const chunk = new Uint8Array(1024 * 1024)
      const full = yield* Deferred.make<void>()
      const served = yield* Deferred.make<void>()
      let isCut = false
      const handler = (socket: Socket.Socket) =>
        Effect.gen(function* () {
          if (isCut) return yield* Deferred.succeed(served, void 0)
          const writer = yield* socket.writer
          const { pull } = yield* socket.reader
          yield* pull
          // More than fits into the system's buffers, so that it waits for the client to read.
          yield* Effect.forkScoped(Effect.forever(writer.write(chunk)))
          yield* Deferred.succeed(full, void 0)
          yield* pull
        }).pipe(Effect.scoped, Effect.ignore)
      yield* Effect.forkScoped(listener.run(handler), { startImmediately: true })
      const stuck = yield* connect(path)
      stuck.write("fill")
      yield* Deferred.await(full)
      isCut = true
      stuck.write("over")
      // Its place is free as soon as it is cut, though it never reads. Until then others are closed at once.
      const next = Effect.gen(function* () {
        const client = yield* connect(path)
        client.resume()
        return yield* Effect.raceFirst(
          Effect.as(event(client, "close"), false),
          Effect.as(Deferred.await(served), true)
        )
      }).pipe(Effect.scoped)
      yield* Effect.repeat(next, { until: (isServed) => isServed })
    }).pipe(Effect.scoped, Effect.provide(platform))
  )
})

const port = ({ place }: NodeListener.Listener): number => (place._tag === "WebSocket" ? place.port : 0)

/** What a plain HTTP client is told. */
const ask = (options: Http.RequestOptions) =>
  Effect.promise(
    () =>
      new Promise<number | "open">((done, fail) => {
        const request = Http.request({ host: "127.0.0.1", ...options })
        request.on("error", fail)
        request.on("response", (response) => {
          response.resume()
          done(response.statusCode!)
        })
        request.on("upgrade", (_, raw) => {
          raw.destroy()
          done("open")
        })
        request.end()
      })
  )

const upgrade = {
  Connection: "Upgrade",
  Upgrade: "websocket",
  "Sec-WebSocket-Version": "13",
  "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="
}

const dial = (url: string, options: object = {}) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const client = new WebSocket(url, options)
      client.on("error", () => {})
      await once(client, "open")
      return client
    }),
    (client) => Effect.sync(() => client.terminate())
  )

describe("a WebSocket", () => {
  it.live("is on loopback alone, on a free port when it is 0", () =>
    Effect.gen(function* () {
      for (const host of ["0.0.0.0", "::", "192.168.1.2", "example.com", "127.0.0.1.example.com", ""]) {
        const refused = yield* Effect.flip(NodeListener.webSocket({ host, port: 0 }))
        assert.strictEqual(refused._tag, "NotLoopback")
      }
      const one = yield* echoing(NodeListener.webSocket({ host: "localhost", port: 0 }))
      assert.isAbove(port(one), 0)
      assert.deepInclude(one.place, { host: "127.0.0.1", url: `ws://127.0.0.1:${port(one)}/` })
      const taken = yield* Effect.flip(NodeListener.webSocket({ host: "127.0.0.1", port: port(one) }))
      assert.strictEqual(taken._tag, "ListenFailed")
      assert.include(taken.message, "EADDRINUSE")
      const client = yield* dial(`ws://127.0.0.1:${port(one)}/`)
      client.send("hello")
      assert.strictEqual(String(yield* event(client, "message")), "hello")
    }).pipe(Effect.scoped)
  )

  it.live("refuses a Host and an Origin that are not loopback, other paths, and what is no upgrade", () =>
    Effect.gen(function* () {
      const listener = yield* echoing(NodeListener.webSocket({ host: "127.0.0.1", port: 0 }))
      const at = port(listener)
      const status = (headers: Record<string, string>, path = "/") =>
        ask({ port: at, path, headers: { ...upgrade, ...headers } })
      assert.strictEqual(yield* status({}), "open")
      for (const Host of [`localhost:${at}`, `LOCALHOST:${at}`, `[::1]:${at}`]) {
        assert.strictEqual(yield* status({ Host }), "open", Host)
      }
      for (const Host of [
        "evil.example",
        `evil.example:${at}`,
        "127.0.0.1",
        `127.0.0.1:${at + 1}`,
        `127.0.0.1:${at}.x`
      ]) {
        assert.strictEqual(yield* status({ Host }), 403, Host)
      }
      for (const Origin of [`http://127.0.0.1:${at}`, "http://localhost:3000", "https://[::1]"]) {
        assert.strictEqual(yield* status({ Origin }), "open", Origin)
      }
      for (const Origin of [
        "https://evil.example",
        "null",
        "",
        "file://",
        "http://127.0.0.1.evil.example",
        "http://10.0.0.1"
      ]) {
        assert.strictEqual(yield* status({ Origin }), 403, Origin)
      }
      assert.strictEqual(yield* status({}, "/other"), 404)
      assert.strictEqual(yield* ask({ port: at }), 426)
      assert.strictEqual(yield* ask({ port: at, headers: { Host: "evil.example" } }), 403)
    }).pipe(Effect.scoped)
  )

  it.live("cuts a client that says nothing, and one whose message is too large, and others go on", () =>
    Effect.gen(function* () {
      const listener = yield* echoing(NodeListener.webSocket({ host: "127.0.0.1", port: 0 }))
      const url = `ws://127.0.0.1:${port(listener)}/`
      const other = yield* dial(url)
      const silent = yield* Effect.acquireRelease(
        Effect.sync(() => Net.connect(port(listener), "127.0.0.1").on("error", () => {})),
        (client) => Effect.sync(() => client.destroy())
      )
      silent.resume()
      const cut = yield* Effect.forkChild(event(silent, "close"), { startImmediately: true })
      const large = yield* dial(url)
      const closed = yield* Effect.forkChild(event(large, "close"), { startImmediately: true })
      large.send("x".repeat(16 * 1024 * 1024 + 1))
      assert.strictEqual(yield* Fiber.join(closed), 1009)
      yield* Fiber.join(cut)
      other.send("x".repeat(1024 * 1024))
      assert.strictEqual(String(yield* event(other, "message")).length, 1024 * 1024)
    }).pipe(Effect.scoped)
  )

  it.live("closes connections beyond its number at once, and all of them with its scope", () =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const listener = yield* Scope.provide(
        echoing(NodeListener.webSocket({ host: "127.0.0.1", port: 0, maxConnections: 1 })),
        scope
      )
      const url = `ws://127.0.0.1:${port(listener)}/`
      const client = yield* dial(url)
      const second = new WebSocket(url)
      yield* event(second, "error")
      const closed = yield* Effect.forkChild(event(client, "close"), { startImmediately: true })
      yield* Scope.close(scope, Exit.void)
      yield* Fiber.join(closed)
    }).pipe(Effect.scoped)
  )

  it.live("waits for a client that doesn't read, so that what is sent to it doesn't pile up", () =>
    Effect.gen(function* () {
      const listener = yield* NodeListener.webSocket({ host: "127.0.0.1", port: 0 })
      let written = 0
      const chunk = "x".repeat(1024 * 1024)
      const heard = yield* Queue.unbounded<unknown>()
      const handler = (socket: Socket.Socket) =>
        Effect.gen(function* () {
          const writer = yield* socket.writer
          const { pull } = yield* socket.reader
          const write = Effect.andThen(
            writer.write(chunk),
            Effect.sync(() => written++)
          )
          yield* Effect.forkScoped(Effect.repeat(write, { times: 63 }))
          yield* Effect.forever(Effect.flatMap(pull, (messages) => Queue.offerAll(heard, messages)))
        }).pipe(Effect.scoped, Effect.ignore)
      yield* Effect.forkScoped(listener.run(handler), { startImmediately: true })
      const client = yield* dial(`ws://127.0.0.1:${port(listener)}/`)
      client.pause()
      // It is heard all the while, for long enough to write all of them.
      for (let turn = 0; turn < 100; turn++) {
        client.send("stuck?")
        yield* Queue.take(heard)
      }
      assert.isBelow(written, 32)
      let got = 0
      const all = new Promise<void>((done) => client.on("message", () => ++got === 64 && done()))
      client.resume()
      yield* Effect.promise(() => all)
    }).pipe(Effect.scoped)
  )
})
