// Builds dist/: the library as one module a source file (tsc), the command and the bundled agent as one file each.
import { spawnSync } from "node:child_process"
import { chmodSync, existsSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { rolldown } from "rolldown"

const root = fileURLToPath(new URL("..", import.meta.url))
const dist = join(root, "dist")
const started = performance.now()

/** The licence texts of the packages whose code is inside the bundles, as those licences ask. */
const licences = new Map<string, string>()

const noteLicence = (id: string) => {
  const match = /^(.*\/node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(id.replaceAll("\\", "/"))
  if (match === null || licences.has(match[2]!)) return
  const file = ["LICENSE", "LICENSE.md", "LICENSE.txt", "license"]
    .map((name) => join(match[1]!, name))
    .find((path) => existsSync(path))
  const { license, version } = JSON.parse(readFileSync(join(match[1]!, "package.json"), "utf8"))
  const text = file === undefined ? "" : `\n${readFileSync(file, "utf8").trim()}\n`
  licences.set(match[2]!, `${match[2]} ${version} (${license})\n${text}`)
}

const bundle = async (input: string, output: string) => {
  const build = await rolldown({
    input: join(root, input),
    platform: "node",
    onLog: (level, log, handler) => {
      if (level === "warn") throw new Error(`rolldown: ${log.message}`)
      handler(level, log)
    }
  })
  const file = join(dist, output)
  const { output: chunks } = await build.write({
    file,
    format: "esm",
    minify: true,
    comments: false,
    codeSplitting: false
  })
  await build.close()
  for (const id of chunks[0].moduleIds) noteLicence(id)
  const code = readFileSync(file, "utf8")
  writeFileSync(file, code.startsWith("#!") ? code : `#!/usr/bin/env node\n${code}`)
  chmodSync(file, 0o755)
  console.log(`${output}: ${Math.round(statSync(file).size / 1000)} kB`)
}

rmSync(dist, { recursive: true, force: true })
const tsc = spawnSync(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.build.json"], {
  cwd: root,
  stdio: "inherit"
})
if (tsc.status !== 0) process.exit(tsc.status ?? 1)
await bundle("src/bin.ts", "bin.mjs")
await bundle("src/cli/demoAgent.ts", "demo-agent.mjs")
const names = [...licences.keys()].sort()
writeFileSync(
  join(dist, "THIRD-PARTY.txt"),
  "bin.mjs and demo-agent.mjs contain code of these packages:\n\n" +
    names.map((name) => `${licences.get(name)}`).join(`\n${"-".repeat(80)}\n\n`)
)
console.log(`built in ${((performance.now() - started) / 1000).toFixed(1)} s`)
