// Reads what people type: times, command lines, variables. Everything here is pure.
import * as Duration from "effect/Duration"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Time from "../internal/time.ts"

/** A time such as `500ms`, `8s`, `5m` or `"5 minutes"`; the unit is not left out, so that nothing is guessed. */
export const parseTime = (text: string): Result.Result<Duration.Duration, string> => {
  const time = /^\s*\d[\d.]*\s*[a-z]+\s*$/.test(text) ? Time.parse(text.trim()) : Option.none()
  return Option.isSome(time) && Duration.isFinite(time.value) && Duration.isGreaterThan(time.value, Duration.zero)
    ? Result.succeed(time.value)
    : Result.fail(`${JSON.stringify(text)} is not a time such as 500ms, 8s, 5m or "5 minutes"`)
}

/**
 * Splits a command line into a command and its arguments, at blanks outside quotes. Within '…' everything is itself;
 * within "…" a backslash takes the next `"` or `\` literally; outside quotes it takes any next character literally.
 * That is all: no variables, globs, pipes or other powers of a shell.
 */
export const splitCommand = (line: string): Result.Result<readonly [string, ...Array<string>], string> => {
  const words: Array<string> = []
  let word: string | undefined
  let quote: string | undefined
  for (let index = 0; index < line.length; index++) {
    const char = line[index]!
    const next = line[index + 1]
    if (char === "\\" && quote !== "'" && next !== undefined && (quote === undefined || /["\\]/.test(next))) {
      word = (word ?? "") + next
      index++
    } else if (quote !== undefined) {
      if (char === quote) quote = undefined
      else word += char
    } else if (char === "'" || char === '"') {
      quote = char
      word ??= ""
    } else if (/\s/.test(char)) {
      if (word !== undefined) words.push(word)
      word = undefined
    } else {
      word = (word ?? "") + char
    }
  }
  if (quote !== undefined) return Result.fail(`the quote ${quote} is never closed`)
  if (word !== undefined) words.push(word)
  const [command, ...args] = words
  if (command === undefined || command === "") return Result.fail("the command is empty")
  return words.some((part) => part.includes("\0"))
    ? Result.fail("it contains a NUL character")
    : Result.succeed([command, ...args])
}

/** `NAME=VALUE` pairs; a later one of the same name counts. The value never appears in the problem. */
export const parseVariables = (
  pairs: ReadonlyArray<string>
): Result.Result<Readonly<Record<string, string>>, string> => {
  const variables: Record<string, string> = {}
  for (const pair of pairs) {
    const at = pair.indexOf("=")
    const name = at === -1 ? pair : pair.slice(0, at)
    if (at < 1 || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(name) || pair.includes("\0")) {
      return Result.fail(at === -1 ? "it is not NAME=VALUE" : `${JSON.stringify(name)} is no name of a variable`)
    }
    variables[name] = pair.slice(at + 1)
  }
  return Result.succeed(variables)
}
