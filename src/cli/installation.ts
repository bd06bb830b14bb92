// Where an agent is installed, and which version of it. Nothing is started: a program may hang, or ask for a sign-in.
import { readFileSync, realpathSync, statSync } from "node:fs"
import { dirname, join } from "node:path"
import type { AgentProfile } from "../AgentProfile.ts"
import { version } from "../internal/version.ts"
import * as Agents from "./agents.ts"

/** The npm package that a program belongs to. */
export interface Package {
  readonly name: string
  readonly version: string
}

/** Programs are rarely deeper in their package. */
const maxDepth = 6

/** A package.json is far smaller; a pipe or a device of that name would never end. */
const maxBytes = 1024 * 1024

const read = (file: string): Partial<Record<string, unknown>> => {
  try {
    const stat = statSync(file)
    if (!stat.isFile() || stat.size > maxBytes) return {}
    const content: unknown = JSON.parse(readFileSync(file, "utf8"))
    return typeof content === "object" && content !== null ? { ...content } : {}
  } catch {
    return {}
  }
}

const real = (path: string): string | undefined => {
  try {
    return realpathSync(path)
  } catch {
    return undefined
  }
}

/** The package whose `bin` is this very file, which a link on PATH usually leads to; nothing else is believed. */
export const packageOf = (path: string): Package | undefined => {
  const program = real(path)
  if (program === undefined) return undefined
  let folder = dirname(program)
  for (let depth = 0; depth < maxDepth && dirname(folder) !== folder; depth++, folder = dirname(folder)) {
    const { bin, name, version } = read(join(folder, "package.json"))
    if (typeof name !== "string" || typeof version !== "string") continue
    const files = typeof bin === "object" && bin !== null ? Object.values(bin) : [bin]
    return files.some((file) => typeof file === "string" && real(join(folder, file)) === program)
      ? { name, version }
      : undefined
  }
  return undefined
}

/** What is known of an agent on this machine. */
export interface Installation {
  readonly profile: AgentProfile
  /** The program, `null` when it is not installed. */
  readonly path: string | null
  /** Its version, `null` when it is not known without starting it. */
  readonly version: string | null
  readonly package: Package | null
}

/** Looks for a profile's command; `path` is a PATH. */
export const of = (profile: AgentProfile, path: string): Installation => {
  const [command, script = ""] = profile.command
  if (profile === Agents.bundled) return { profile, path: script, version, package: { name: "acp-sidecar", version } }
  const program = Agents.find(command, path) ?? null
  const found = program === null ? undefined : packageOf(program)
  return { profile, path: program, version: found?.version ?? null, package: found ?? null }
}
