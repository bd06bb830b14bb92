// Takes secrets out of what a command shows of an agent. Pure.

/** The arguments that look like secrets, by the flag in front of them: `--api-key X`, `--token=X`. */
export const secretArguments = (command: ReadonlyArray<string>): Readonly<Record<string, string>> =>
  Object.fromEntries(
    command.flatMap((argument, index) => {
      const [, flag, value] = /^(--?[\w-]+)(?:=([^]*))?$/.exec(argument) ?? []
      const given = value ?? command[index + 1]
      return flag === undefined || given === undefined || given.startsWith("-") ? [] : [[flag, given] as const]
    })
  )

/** Takes secrets out of everything in a value; what is nested too deep is cut. */
export const cleaned = <A>(value: A, redact: (text: string) => string, depth = 64): A => {
  const inner = (given: unknown): unknown => {
    if (typeof given === "string") return redact(given)
    if (typeof given !== "object" || given === null) return given
    return depth === 0 ? "<too deep>" : cleaned(given, redact, depth - 1)
  }
  if (Array.isArray(value)) return value.map(inner) as A
  if (typeof value !== "object" || value === null) return inner(value) as A
  return Object.fromEntries(Object.entries(value).map(([key, given]) => [redact(key), inner(given)])) as A
}
