// Flags that several commands have.
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import { statSync } from "node:fs"
import { isAbsolute, resolve } from "node:path"
import { badInput, type CommandFailure } from "./failure.ts"
import { parseTime } from "./input.ts"

export const time = (
  flag: string,
  text: Option.Option<string>
): Effect.Effect<Duration.Duration | undefined, CommandFailure> => {
  if (Option.isNone(text)) return Effect.undefined
  const parsed = parseTime(text.value)
  return Result.isSuccess(parsed)
    ? Effect.succeed(parsed.success)
    : Effect.fail(badInput(`--${flag} can't be used: ${parsed.failure}.`))
}

/** The current folder may have been removed under us. */
const absolute = (path: string): string => {
  try {
    return resolve(path)
  } catch {
    return path
  }
}

const isFolder = (path: string): boolean => {
  try {
    return statSync(path).isDirectory()
  } catch {
    return false
  }
}

/** A folder that is there, as an absolute path. */
export const folder = (flag: string, path: string): Effect.Effect<string, CommandFailure> => {
  const found = absolute(path)
  return isAbsolute(found) && isFolder(found)
    ? Effect.succeed(found)
    : Effect.fail(badInput(`--${flag} ${JSON.stringify(found)} is not a folder.`))
}
