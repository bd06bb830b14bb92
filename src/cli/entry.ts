// The first file of the packed command: loads the rest with V8's compile cache, so that it starts sooner the next time.
import * as Module from "node:module"
import { homedir } from "node:os"
import { isAbsolute, join } from "node:path"

// An older Node would tell it as an error in code that its user does not know.
const [major = 0, minor = 0] = process.versions.node.split(".").map(Number)
if (major < 22 || (major === 22 && minor < 19)) {
  console.error(`acp-sidecar: Node ${process.versions.node} is too old; run it with Node 22.19 or newer.`)
  process.exit(1)
}

/** A folder of the user alone, unlike Node's own choice in the temporary folder: what is in there is run as code. */
const folder = (): string => {
  const caches = process.env["XDG_CACHE_HOME"] ?? ""
  return join(isAbsolute(caches) ? caches : join(homedir(), ".cache"), "acp-sidecar")
}

// Node keeps one cache a version, and does without where it can't write or NODE_DISABLE_COMPILE_CACHE is set.
try {
  Module.enableCompileCache(folder())
} catch {
  // A user without a home folder.
}
// Bundled on its own, with src/bin.ts as cli/main.mjs.
await import(new URL("cli/main.mjs", import.meta.url).href)
