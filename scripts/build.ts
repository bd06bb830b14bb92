// Builds dist/: the library as one module a source file (tsc), the command as bin.mjs with its parts in cli/, and the
// bundled agent as one file there.
import { spawnSync } from "node:child_process"
import { chmodSync, existsSync, readFileSync, rmSync, writeFileSync } from "node:fs"
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

/** Bundles an entry into dist/ under this name; what it imports only when needed goes into files of its own in cli/. */
const bundle = async (input: Readonly<Record<string, string>>) => {
  const build = await rolldown({
    cwd: root,
    input,
    platform: "node",
    transform: { inject: { "Intl.Segmenter": [join(root, "src/cli/Segmenter.ts"), "Segmenter"] } },
    onLog: (level, log, handler) => {
      if (level === "warn") throw new Error(`rolldown: ${log.message}`)
      handler(level, log)
    }
  })
  const { output: chunks } = await build.write({
    dir: dist,
    entryFileNames: "[name].mjs",
    chunkFileNames: "cli/[name].mjs",
    format: "esm",
    minify: true,
    comments: false
  })
  await build.close()
  for (const chunk of chunks) {
    if (chunk.type !== "chunk") throw new Error(`rolldown wrote ${chunk.fileName}`)
    if (chunk.code.includes("new Intl.Segmenter")) throw new Error(`${chunk.fileName} makes an Intl.Segmenter`)
    for (const id of chunk.moduleIds) noteLicence(id)
    console.log(`${chunk.fileName}: ${Math.ceil(chunk.code.length / 1000)} kB`)
  }
}

rmSync(dist, { recursive: true, force: true })
const tsc = spawnSync(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.build.json"], {
  cwd: root,
  stdio: "inherit"
})
if (tsc.status !== 0) process.exit(tsc.status ?? 1)
await bundle({ bin: "src/cli/entry.ts" })
await bundle({ "cli/main": "src/bin.ts" })
await bundle({ "cli/demo-agent": "src/cli/demoAgent.ts" })
const bin = join(dist, "bin.mjs")
writeFileSync(bin, `#!/usr/bin/env node\n${readFileSync(bin, "utf8")}`)
chmodSync(bin, 0o755)
const names = [...licences.keys()].sort()
writeFileSync(
  join(dist, "THIRD-PARTY.txt"),
  "The files in cli/ contain code of these packages:\n\n" +
    names.map((name) => `${licences.get(name)}`).join(`\n${"-".repeat(80)}\n\n`)
)
console.log(`built in ${((performance.now() - started) / 1000).toFixed(1)} s`)
