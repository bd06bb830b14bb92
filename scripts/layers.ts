// The rules of the module map, checked on the text of the sources: who may import whom, and a few calls that are banned.
// `check-layers.ts` runs them on the repository, `test/scripts/layers.test.ts` on planted violations.
import { posix } from "node:path"

/** One broken rule: where, which rule, and what to do. */
export interface Violation {
  readonly file: string
  readonly line: number
  readonly rule: string
  readonly message: string
}

/** The level of each file directly under `src/`: a file imports only files of its own or a lower level. */
export const levels: Readonly<Record<string, number>> = {
  Address: 0,
  SidecarLimits: 0,
  SidecarMetrics: 0,
  SidecarError: 1,
  AgentProfile: 1,
  Mailbox: 1,
  TurnOutcome: 2,
  SidecarEvent: 2,
  LimitUsage: 2,
  Admission: 2,
  LaunchIdentity: 2,
  Permission: 2,
  SessionRouter: 2,
  Journal: 3,
  ProcessTable: 3,
  NodeProcessTable: 3,
  NodeListener: 3,
  LaunchRecords: 3,
  SidecarProgram: 3,
  SidecarProcess: 4,
  AgentLauncher: 4,
  AgentHost: 4,
  AgentHosts: 4,
  AgentSession: 4,
  Turn: 5,
  Session: 6,
  Probe: 6,
  Vm: 7,
  Sidecar: 8,
  Lease: 9,
  SidecarRpc: 9,
  SidecarServer: 9,
  SidecarClient: 9,
  SidecarPool: 10,
  NodeConnector: 10
}

/** Files outside `bin.ts` and `cli/` that may name Node or its platform layer, such as "src/JournalSqlite.ts". */
export const drivers: ReadonlyArray<string> = ["src/NodeProcessTable.ts", "src/NodeListener.ts", "src/NodeConnector.ts"]

const acpLevel = -1
const topLevel = 1000

interface Import {
  readonly specifier: string
  readonly typeOnly: boolean
  readonly line: number
}

/** Blanks out comments, keeping strings, line breaks and offsets. */
export const withoutComments = (text: string): string => {
  let out = ""
  let index = 0
  let quote = ""
  while (index < text.length) {
    const char = text[index]!
    const pair = text.slice(index, index + 2)
    if (quote !== "") {
      if (char === "\\") {
        out += pair
        index += 2
        continue
      }
      if (char === quote || (char === "\n" && quote !== "`")) quote = ""
      out += char
      index++
    } else if (pair === "//" || pair === "/*") {
      const end = pair === "//" ? text.indexOf("\n", index) : text.indexOf("*/", index + 2) + 2
      const stop = end < index + 2 ? text.length : end
      out += text.slice(index, stop).replace(/[^\n]/g, " ")
      index = stop
    } else {
      // A quote right after one of these starts a regular expression's class more often than a string.
      if (char === '"' || char === "`" || (char === "'" && !/\w/.test(text[index - 1] ?? ""))) quote = char
      out += char
      index++
    }
  }
  return out
}

const lineAt = (text: string, offset: number): number => text.slice(0, offset).split("\n").length

const importsOf = (code: string): ReadonlyArray<Import> => {
  const found: Array<Import> = []
  const add = (match: RegExpExecArray, specifier: string, typeOnly: boolean) =>
    void found.push({ specifier, typeOnly, line: lineAt(code, match.index + match[0].lastIndexOf(specifier)) })
  for (const match of code.matchAll(
    /^[ \t]*(?:import|export)\s+(type\b(?!\s+from\b))?[\w\s{},*$]*?\bfrom\s*["']([^"']+)["']/gm
  ))
    add(match, match[2]!, match[1] !== undefined)
  for (const match of code.matchAll(/^[ \t]*import\s*["']([^"']+)["']/gm)) add(match, match[1]!, false)
  for (const match of code.matchAll(/\bimport\s*\(\s*["']([^"']+)["']/g)) add(match, match[1]!, false)
  return found
}

/** Calls of Effect's collectors whose option `concurrency` is a bound: Effect 4.1 can run an element twice there. */
const boundedConcurrency = (code: string): ReadonlyArray<number> => {
  const lines: Array<number> = []
  for (const match of code.matchAll(/\bEffect\s*\.\s*(?:forEach|all|partition|validate)\s*(?:<[^(]*>)?\(/g)) {
    const start = match.index + match[0].length
    let depth = 1
    let quote = ""
    for (let index = start; index < code.length && depth > 0; index++) {
      const char = code[index]!
      if (quote !== "") {
        if (char === "\\") index++
        else if (char === quote) quote = ""
        continue
      }
      if (char === '"' || char === "'" || char === "`") quote = char
      else if (char === "(" || char === "{" || char === "[") depth++
      else if (char === ")" || char === "}" || char === "]") depth--
      else if (depth === 2 && /\W/.test(code[index - 1] ?? " ")) {
        const option = /^concurrency\s*(?::\s*([^,}\n]+))?/.exec(code.slice(index))
        if (option === null) continue
        const value = (option[1] ?? "a variable").trim()
        if (!/^(["']unbounded["']|["']inherit["']|1|undefined)$/.test(value)) lines.push(lineAt(code, index))
        index += option[0].length - 1
      }
    }
  }
  return lines
}

const isCli = (file: string) => file === "src/bin.ts" || file.startsWith("src/cli/")
const isInternal = (file: string) => file.startsWith("src/internal/")
const isDomain = (file: string) =>
  !file.startsWith("src/acp/") && !isInternal(file) && !isCli(file) && !file.startsWith("src/testing/")

/** Checks sources, given as path (from the repository's root, with `/`) and text. */
export const check = (sources: ReadonlyMap<string, string>): ReadonlyArray<Violation> => {
  const violations: Array<Violation> = []
  const graph = new Map<string, ReadonlyArray<Import & { readonly target: string }>>()
  const report = (file: string, line: number, rule: string, message: string) =>
    void violations.push({ file, line, rule, message })

  for (const [file, text] of sources) {
    const code = withoutComments(text)
    const edges: Array<Import & { readonly target: string }> = []
    for (const entry of importsOf(code)) {
      const { line, specifier } = entry
      if (/^acp-sidecar(\/|$)/.test(specifier)) {
        report(file, line, "self-reference", "sources import each other by relative path")
      } else if (specifier.startsWith(".")) {
        const target = posix.normalize(posix.join(posix.dirname(file), specifier))
        if (sources.has(target)) edges.push({ ...entry, target })
        else if (target === "package.json" && isCli(file)) continue
        else report(file, line, "unresolved", `"${specifier}" is no file under src/ (specifiers end in .ts)`)
      } else if (/^(node:|@effect\/platform-)/.test(specifier) && !isCli(file) && !drivers.includes(file)) {
        report(
          file,
          line,
          "platform",
          `"${specifier}": only bin, cli and the drivers listed in scripts/layers.ts name Node`
        )
      }
    }
    graph.set(file, edges)
    if (!isCli(file) || /\bEffect\b/.test(code)) {
      for (const line of boundedConcurrency(code)) {
        report(
          file,
          line,
          "bounded-concurrency",
          'use concurrency: "unbounded" with a Semaphore: a bound can run an element twice'
        )
      }
    }
    const name = /^src\/([^/]+)\.ts$/.exec(file)?.[1]
    if (name !== undefined && name !== "index" && name !== "bin" && !(name in levels)) {
      report(file, 1, "unknown-file", `add "${name}" with its level to \`levels\` in scripts/layers.ts`)
    }
  }

  // A file of internal/ stands as high as the highest file it imports.
  const known = new Map<string, number>()
  const levelOf = (file: string): number => {
    if (file.startsWith("src/acp/")) return acpLevel
    const name = /^src\/([^/]+)\.ts$/.exec(file)?.[1]
    // A file that is not in the map is reported as such, and not once more for each of its importers.
    if (name !== undefined) return levels[name] ?? (name === "index" || name === "bin" ? topLevel : acpLevel)
    if (!isInternal(file)) return topLevel
    const cached = known.get(file)
    if (cached !== undefined) return cached
    known.set(file, acpLevel)
    const level = Math.max(acpLevel, ...(graph.get(file) ?? []).map((edge) => levelOf(edge.target)))
    known.set(file, level)
    return level
  }

  for (const [file, edges] of graph) {
    for (const { line, target } of edges) {
      if (target === "src/index.ts") report(file, line, "barrel", "no source file imports src/index.ts")
      if (target.startsWith("src/testing/") && !file.startsWith("src/testing/"))
        report(file, line, "testing", "no source file imports src/testing/")
      if (isCli(target) && !isCli(file)) report(file, line, "cli", "only src/bin.ts and src/cli/ import src/cli/")
      if (target.startsWith("src/acp/internal/") && !file.startsWith("src/acp/"))
        report(file, line, "acp-internal", "only acp/ imports acp/internal/")
      if (isCli(file) || file.startsWith("src/testing/") || file === "src/index.ts") continue
      if (file.startsWith("src/acp/") && (isDomain(target) || levelOf(target) > acpLevel))
        report(file, line, "acp", `acp/ stands alone and imports no domain file (${target})`)
      else if (
        levelOf(target) > levelOf(file) &&
        target !== "src/index.ts" &&
        !isCli(target) &&
        !target.startsWith("src/testing/")
      )
        report(file, line, "level", `level ${levelOf(file)} imports ${target}, which has level ${levelOf(target)}`)
    }
  }

  const state = new Map<string, "open" | "done">()
  const visit = (file: string, path: ReadonlyArray<string>): void => {
    state.set(file, "open")
    for (const { line, target, typeOnly } of graph.get(file) ?? []) {
      if (typeOnly) continue
      if (state.get(target) === "open") {
        const cycle = [...path.slice(path.indexOf(target)), target]
        report(file, line, "cycle", cycle.map((part) => part.replace(/^src\//, "")).join(" -> "))
      } else if (!state.has(target)) visit(target, [...path, target])
    }
    state.set(file, "done")
  }
  for (const file of graph.keys()) if (!state.has(file)) visit(file, [file])
  return violations
}
