// Which agent `--agent` means.
import * as Result from "effect/Result"
import * as Effect from "effect/Effect"
import { accessSync, constants, statSync } from "node:fs"
import { delimiter, join, resolve as resolvePath } from "node:path"
import { fileURLToPath } from "node:url"
import * as AgentProfile from "../AgentProfile.ts"
import { badInput, type CommandFailure, failed, oneLine } from "./failure.ts"
import { splitCommand } from "./input.ts"

/** The agent that ships with the package, as a process of this same Node. It asks the model at `OPENAI_BASE_URL`. */
export const bundled: AgentProfile.AgentProfile = AgentProfile.make({
  name: "bundled",
  command: [
    process.execPath,
    fileURLToPath(new URL(import.meta.url.endsWith(".mjs") ? "demo-agent.mjs" : "demoAgent.ts", import.meta.url))
  ],
  passEnv: ["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL"],
  shares: "the one process and its environment",
  provider: "openai"
})

/** The names that `--agent` knows. */
export const known: ReadonlyArray<string> = [bundled.name, ...Object.keys(AgentProfile.builtIn)]

/** The profiles of these names. */
export const profiles: ReadonlyArray<AgentProfile.AgentProfile> = [bundled, ...Object.values(AgentProfile.builtIn)]

const isExecutable = (path: string): boolean => {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}

const isFile = (path: string): boolean => statSync(path, { throwIfNoEntry: false })?.isFile() === true

/** Where a command is: a path as it is, else the first program of that name in the folders of PATH. */
export const find = (command: string, path: string): string | undefined =>
  /[/\\]/.test(command)
    ? command
    : path
        .split(delimiter)
        .filter((folder) => folder !== "")
        .map((folder) => join(folder, command))
        .find(isExecutable)

/** Whether a command without a folder can be found; Windows adds suffixes of its own, so there the spawn decides. */
export const isOnPath = (command: string, path: string): boolean =>
  process.platform === "win32" || find(command, path) !== undefined

/** What `--agent TEXT` means: a known name, the path of a program, or a command line. */
export const parse = (text: string): Result.Result<AgentProfile.AgentProfile, string> => {
  const trimmed = text.trim()
  if (trimmed === bundled.name) return Result.succeed(bundled)
  if (Object.hasOwn(AgentProfile.builtIn, trimmed)) return Result.succeed(AgentProfile.builtIn[trimmed]!)
  // A path may have blanks in it.
  if (/[/\\]/.test(trimmed) && isFile(resolvePath(trimmed))) {
    return Result.succeed(AgentProfile.make({ command: [resolvePath(trimmed)] }))
  }
  return Result.map(splitCommand(trimmed), ([command, ...args]) =>
    // The agent starts in its session's folder, and a relative path is meant from here.
    AgentProfile.make({ command: [/[/\\]/.test(command) ? resolvePath(command) : command, ...args] })
  )
}

/** As {@link parse}, and the program has to be there; `path` is the PATH that the agent gets. */
export const resolve = (
  text: string,
  path: string,
  input = "--agent"
): Effect.Effect<AgentProfile.AgentProfile, CommandFailure> =>
  Effect.suspend(() => {
    const parsed = parse(text)
    if (Result.isFailure(parsed)) {
      return Effect.fail(badInput(`${input} ${JSON.stringify(oneLine(text, 200))} can't be used: ${parsed.failure}.`))
    }
    const profile = parsed.success
    const [command] = profile.command
    if (/[/\\]/.test(command) || isOnPath(command, path)) return Effect.succeed(profile)
    return Effect.fail(
      profile.install === ""
        ? badInput(
            `There is no agent "${oneLine(command, 200)}": it is neither a program on PATH nor one of ${known.join(", ")}.`
          )
        : notInstalled(profile, command)
    )
  })

export const notInstalled = (profile: AgentProfile.AgentProfile, command: string): CommandFailure =>
  failed(
    `The agent "${profile.name}" is not installed: its command ${command} is not on PATH. To install it: ${profile.install}`
  )
