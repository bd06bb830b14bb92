// Takes secrets out of what a command shows of an agent. Pure.

/** Names and values in a text: `NAME=VALUE`, `Name: value`, `"name": "value"`, and those in the query of a URL. */
const named = (text: string, depth = 4): ReadonlyArray<readonly [name: string, value: string]> => {
  const [, name, value = ""] = /^["']?([\w.-]+)["']?(?:=|:\s*)([^]*)$/.exec(text) ?? []
  if (name === undefined || depth === 0)
    return Array.from(
      text.matchAll(/[?&#]([\w.-]+)=([^&#\s]+)|"([\w.-]+)"\s*:\s*"([^"]+)"/g),
      ([, parameter, given, field, content]) => [parameter ?? field!, given ?? content!] as const
    )
  return [[name, value.replace(/^(["'])([^]*)\1$/, "$2")], ...named(value, depth - 1)]
}

/** What the arguments name: what follows a flag, as in `--api-key X`, and what has its name in front of it. */
export const namedArguments = (command: ReadonlyArray<string>): ReadonlyArray<Readonly<Record<string, string>>> =>
  command.flatMap((argument, index) => {
    const next = command[index + 1]
    const isFlag = /^--?[\w-]+$/.test(argument) && next !== undefined && !next.startsWith("-")
    // One record each, since a name may come more than once.
    return [...(isFlag ? [[argument, next] as const] : []), ...named(argument)].map(([name, value]) => ({
      [name]: value
    }))
  })

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
