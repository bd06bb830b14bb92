// Packs the package and uses it as a stranger would: installs the tarball into an empty folder, imports every entry
// point, runs the command, type-checks a consumer, and asks publint and attw.
import { spawnSync } from "node:child_process"
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  realpathSync,
  rmSync,
  writeFileSync
} from "node:fs"
import { tmpdir } from "node:os"
import { basename, join } from "node:path"
import { fileURLToPath } from "node:url"
import { stripVTControlCharacters } from "node:util"

const root = fileURLToPath(new URL("..", import.meta.url))
const read = (path: string) => JSON.parse(readFileSync(path, "utf8"))
const pkg = read(join(root, "package.json"))
const lock = read(join(root, "package-lock.json")).packages
const folder = mkdtempSync(join(tmpdir(), "acp-sidecar-pack-"))
const app = join(folder, "app")
const failures: Array<string> = []

const result = (ok: boolean, name: string, detail = "") => {
  console.log(`${ok ? "ok  " : "FAIL"} ${name}${detail === "" ? "" : ok ? ` (${detail})` : `\n${detail}`}`)
  if (!ok) failures.push(name)
  return ok
}

const run = (command: string, args: ReadonlyArray<string>, cwd: string, env: object = {}) => {
  const { error, status, stderr, stdout } = spawnSync(command, args, {
    cwd,
    env: { ...process.env, ...env },
    encoding: "utf8"
  })
  return {
    ok: status === 0,
    stdout: stdout ?? "",
    text: error === undefined ? stripVTControlCharacters(`${stdout}${stderr}`).trim() : String(error)
  }
}
const tool = (name: string, args: ReadonlyArray<string>, cwd: string) =>
  run(join(root, "node_modules/.bin", name), args, cwd)

const main = () => {
  const packed = run("npm", ["pack", "--pack-destination", folder], root)
  const tarball = readdirSync(folder).find((name) => name.endsWith(".tgz"))
  if (!result(packed.ok && tarball !== undefined, "npm pack", packed.ok ? tarball : packed.text)) return
  const tgz = join(folder, tarball!)

  mkdirSync(app)
  writeFileSync(join(app, "package.json"), JSON.stringify({ name: "app", private: true, type: "module" }))
  const exact = (name: string) => `${name}@${lock[`node_modules/${name}`].version}`
  // Effect's platform layer asks for redis; the lockfile's version keeps that stable too.
  const peers = Object.keys(pkg.peerDependencies).concat(lock["node_modules/redis"] === undefined ? [] : "redis")
  const wanted = [tgz, ...peers.map(exact), exact("@types/node")]
  const install = run(
    "npm",
    ["install", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts", ...wanted],
    app
  )
  if (!result(install.ok, `npm install ${basename(tgz)} ${wanted.slice(1).join(" ")}`, install.ok ? "" : install.text))
    return

  const installed = join(app, "node_modules", pkg.name)
  const dist = join(installed, "dist")
  const nouns = readdirSync(dist)
    .filter((name) => name.endsWith(".js") && name !== "index.js")
    .map((name) => name.slice(0, -3))
  const named = Object.entries(pkg.exports)
    .filter(([key, target]) => target !== null && !key.includes("*") && !key.endsWith(".json"))
    .map(([key]) => key.slice(2))
  const entries = [...named, ...nouns].map((path) => (path === "" ? pkg.name : `${pkg.name}/${path}`))
  for (const entry of entries) {
    const { ok, text } = run(
      "node",
      ["--input-type=module", "-e", `console.log(Object.keys(await import("${entry}")).length)`],
      app
    )
    result(ok, `import ${entry}`, ok ? `${text} exports` : text)
  }
  const internal = join(dist, "internal")
  const firstInternal = existsSync(internal) ? readdirSync(internal).find((name) => name.endsWith(".js")) : undefined
  for (const path of [
    `internal/${firstInternal?.slice(0, -3) ?? "x"}`,
    "acp/internal/errors",
    "testing/internal/shrink",
    "cli/demoAgent",
    "bin",
    "index",
    "dist/index.js"
  ]) {
    const { ok, text } = run("node", ["--input-type=module", "-e", `await import("${pkg.name}/${path}")`], app)
    result(
      !ok && /ERR_PACKAGE_PATH_NOT_EXPORTED|ERR_MODULE_NOT_FOUND/.test(text),
      `refuse ${pkg.name}/${path}`,
      ok ? "it can be imported" : ""
    )
  }
  const strays = readdirSync(installed, { recursive: true, encoding: "utf8" }).filter(
    (path) => /(^|\/)(cli|test|bench|tools)\/|\.tgz$/.test(path) && !/^dist\/cli\/[\w-]+\.mjs$/.test(path)
  )
  result(strays.length === 0, "no stray files in the tarball", strays.join("\n"))

  const bin = join(app, "node_modules/.bin", Object.keys(pkg.bin)[0]!)
  const median = (command: string, args: ReadonlyArray<string>) => {
    const times = Array.from({ length: 7 }, () => {
      const started = performance.now()
      run(command, args, app)
      return performance.now() - started
    })
    return Math.round(times.sort((left, right) => left - right)[3]!)
  }
  process.env["XDG_CACHE_HOME"] = join(folder, "cache")
  delete process.env["NODE_COMPILE_CACHE"]
  delete process.env["NODE_DISABLE_COMPILE_CACHE"]
  const version = run(bin, ["--version"], app)
  const start = version.ok
    ? `starts in ${median(bin, ["--version"])} ms, bare Node in ${median("node", ["-e", "0"])} ms`
    : ""
  result(
    version.ok && version.stdout.includes(pkg.version),
    "acp-sidecar --version",
    version.ok ? `${version.stdout.trim()}; ${start}` : version.text
  )
  const cache = join(folder, "cache", pkg.name)
  result(existsSync(cache) && readdirSync(cache).length > 0, "acp-sidecar --version keeps its compiled code")
  const uncached = run(bin, ["--version"], app, { XDG_CACHE_HOME: join(app, "package.json") })
  result(uncached.ok && uncached.stdout === version.stdout, "and starts where it can't", uncached.text)
  const pretend = `Object.defineProperty(process, "versions", { value: { ...process.versions, node: "20.20.2" } })`
  const old = run("node", ["--import", `data:text/javascript,${encodeURIComponent(pretend)}`, bin, "--version"], app)
  result(!old.ok && /Node 20\.20\.2 is too old/.test(old.text), "and says so on a Node that is too old", old.text)
  // What other commands need is not loaded by help.
  const hook = `import { registerHooks } from "node:module";
    registerHooks({ load: (url, context, next) => (console.error("loads " + url), next(url, context)) })`
  const loads = run("node", ["--import", `data:text/javascript,${hook}`, realpathSync(bin), "run", "--help"], app)
  const parts = loads.text.split("\n").flatMap((line) => /^loads .*\/dist\/(\S+)$/.exec(line)?.[1] ?? [])
  result(
    loads.ok && parts.every((part) => /^(bin|cli\/(main|rolldown-runtime))\.mjs$/.test(part)) && parts.length > 1,
    "acp-sidecar run --help loads no other command",
    loads.ok ? parts.join(", ") : loads.text
  )
  const help = run(bin, ["--help"], app)
  result(help.ok && /demo/.test(help.stdout), "acp-sidecar --help", help.ok ? "" : help.text)
  const state = join(folder, "state")
  const turn = run(
    bin,
    ["run", "--agent", `node '${join(root, "test/fixtures/faulty-agent.mjs")}'`, "{text=hello}"],
    app,
    {
      ACP_SIDECAR_STATE: state
    }
  )
  const records = existsSync(join(state, "launches")) ? readdirSync(join(state, "launches")) : ["no folder"]
  result(
    turn.ok && turn.stdout.includes("hello") && records.length === 0,
    "acp-sidecar run leaves no launch record",
    `${turn.text} ${records.join(", ")}`.trim()
  )
  const agent = spawnSync("node", [join(dist, "cli/demo-agent.mjs")], {
    input: `${JSON.stringify({ jsonrpc: "2.0", id: 0, method: "initialize", params: { protocolVersion: 1 } })}\n`,
    encoding: "utf8",
    timeout: 10_000
  })
  result(
    agent.status === 0 && /"protocolVersion":1/.test(agent.stdout),
    "the bundled agent answers initialize",
    agent.stderr
  )

  const lines = entries.map((entry, index) => `import * as m${index} from "${entry}"`)
  writeFileSync(
    join(app, "consumer.ts"),
    `${lines.join("\n")}\nexport const all = [${lines.map((_, index) => `m${index}`).join(", ")}]\n`
  )
  writeFileSync(
    join(app, "tsconfig.json"),
    JSON.stringify({
      compilerOptions: {
        strict: true,
        exactOptionalPropertyTypes: true,
        noUncheckedIndexedAccess: true,
        module: "nodenext",
        target: "es2024",
        lib: ["es2024", "esnext.disposable", "dom"],
        types: ["node"],
        noEmit: true,
        skipLibCheck: false
      },
      files: ["consumer.ts"]
    })
  )
  const types = tool("tsc", ["-p", "tsconfig.json"], app)
  const own = types.text.split("\n").filter((line) => line.includes(pkg.name) || line.startsWith("consumer.ts"))
  // What is wrong inside the declarations of others is shown, but is not ours to mend.
  result(
    types.ok || own.length === 0,
    "type-check a consumer (strict, skipLibCheck false)",
    types.ok ? "" : types.text.slice(0, 2000)
  )

  const publint = tool("publint", [tgz, "--strict"], root)
  result(publint.ok, "publint", publint.ok ? "" : publint.text)
  const attw = tool(
    "attw",
    [
      tgz,
      "--profile",
      "esm-only",
      "--no-emoji",
      "--entrypoints",
      ".",
      ...[...named, ...nouns].filter((path) => path !== "")
    ],
    root
  )
  result(attw.ok, "attw --profile esm-only", attw.ok ? "" : attw.text)
}

try {
  main()
} finally {
  rmSync(folder, { recursive: true, force: true })
}
console.log(failures.length === 0 ? "check:pack passed" : `check:pack failed: ${failures.join(", ")}`)
process.exitCode = failures.length === 0 ? 0 : 1
