// Checks the rules of `layers.ts` on the repository's sources.
import { globSync, readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { check } from "./layers.ts"

const root = fileURLToPath(new URL("..", import.meta.url))
const files = globSync("src/**/*.ts", { cwd: root })
  .map((file) => file.replaceAll("\\", "/"))
  .sort()
const violations = check(new Map(files.map((file) => [file, readFileSync(root + file, "utf8")])))
for (const { file, line, message, rule } of violations) console.error(`${file}:${line}: ${rule}: ${message}`)
if (violations.length > 0) {
  console.error(`${violations.length} broken layer rules`)
  process.exit(1)
}
