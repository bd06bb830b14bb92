/**
 * Takes secrets out of text that an agent wrote.
 *
 * @internal
 */
import type { Acp } from "../acp/AcpSchema.ts"

const secretName =
  /KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|PRIVATE|SIGNATURE|WEBHOOK|DSN|(?:^|_)(?:PAT|PIN|OTP|JWT)(?:_|$)/i
const notSecret = /^(?:PWD|OLDPWD)$/i
/** Values of variables that only sound secret, such as `AUTH_ENABLED=true` and `MAX_TOKENS=4096`. */
const harmless = /^(?:true|false|none|null|undefined|auto|\d{1,5})$/i

const patterns: ReadonlyArray<readonly [RegExp, string]> = [
  [/\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}/g, "<redacted>"],
  [/\bgh[pousr]_[A-Za-z0-9]{16,}/g, "<redacted>"],
  [/\bgithub_pat_[A-Za-z0-9_]{16,}/g, "<redacted>"],
  [/\bAIza[A-Za-z0-9_-]{20,}/g, "<redacted>"],
  [/\bxox[abprs]-[A-Za-z0-9-]{10,}/g, "<redacted>"],
  [/\bAKIA[A-Z0-9]{12,}/g, "<redacted>"],
  // It stops where another one may begin, since a long text of nothing but beginnings would take hours otherwise.
  [/\beyJ(?:(?!-eyJ)[A-Za-z0-9_-]){8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?/g, "<redacted>"],
  [/((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}/gi, "$1<redacted>"],
  [/(:\/\/[^\s:@/]{0,256}:)[^\s@/]{1,256}@/g, "$1<redacted>@"]
]

/** A part of a secret this long is taken out where a text was cut in the middle of it. */
const minPart = 8

/** The ways in which a value may stand in a text: as it is, in JSON, in a URL, without its scheme, and line by line. */
const forms = (value: string): ReadonlyArray<string> => {
  const parts = [
    ...(value.includes("\n") ? value.split(/\r?\n/) : []),
    ...(/^(?:bearer|basic)\s/i.test(value) ? [value.replace(/^\w+\s+/, "")] : [])
  ].filter((part) => part.trim().length >= minPart)
  return [...new Set([value, JSON.stringify(value).slice(1, -1), encodeURIComponent(value.toWellFormed()), ...parts])]
}

/** The variables or headers of MCP servers, each by itself, as a server may have several of one name. */
export const ofMcpServers = (servers: ReadonlyArray<Acp.McpServer>): ReadonlyArray<Readonly<Record<string, string>>> =>
  servers.flatMap((server) => {
    const given = "headers" in server ? server.headers : "env" in server ? server.env : []
    return given.map(({ name, value }) => ({ [name]: value }))
  })

/** Apps give values of variables that may not be set, so that a value may be none. */
const isSecret = ([name, value]: readonly [string, string | undefined]): boolean =>
  typeof value === "string" &&
  secretName.test(name) &&
  !notSecret.test(name) &&
  value.length >= 4 &&
  !harmless.test(value)

/** A function that replaces the values of secret-looking variables, and whatever looks like a key, by a mark. */
export const redactor = (...variables: ReadonlyArray<Readonly<Record<string, string>>>): ((text: string) => string) => {
  const secrets = variables
    .flatMap(Object.entries<string>)
    .filter(isSecret)
    .flatMap(([name, value]) => forms(value).map((form) => ({ mark: `<${name}>`, form })))
    // The longest first: one secret may be the beginning of another.
    .sort((a, b) => b.form.length - a.form.length)
  return (text) => {
    let clean = text
    for (const { form, mark } of secrets) {
      if (clean.includes(form)) clean = clean.replaceAll(form, () => mark)
    }
    for (const { form, mark } of secrets) clean = cutAtStart(cutAtEnd(clean, form, mark), form, mark)
    try {
      for (const [pattern, mark] of patterns) clean = clean.replace(pattern, mark)
      return clean
    } catch {
      // A match of many millions of characters is more than the engine can do.
      return "<redacted>"
    }
  }
}

/** Secrets that are kept of those that nobody has any more. */
const maxLearned = 1024

interface Learned {
  readonly variable: Readonly<Record<string, string>>
  /** How many have it now. */
  holders: number
}

/**
 * A redactor to which more variables may be given later, until what `learn` gives is called, and for some time after
 * that: of those that nobody has any more the last ones are kept.
 */
export const growingRedactor = (
  first: Readonly<Record<string, string>>
): {
  readonly redact: (text: string) => string
  readonly learn: (variables: ReadonlyArray<Readonly<Record<string, string>>>) => () => void
} => {
  /** Those that are held no more are in the order in which they were given up. */
  const learned = new Map<string, Learned>()
  let current: ((text: string) => string) | undefined
  const drop = (key: string): Learned | undefined => {
    const found = learned.get(key)
    learned.delete(key)
    return found
  }
  const trim = (): void => {
    const free = Array.from(learned).filter(([, { holders }]) => holders === 0)
    for (const [key] of free.slice(0, Math.max(0, free.length - maxLearned))) {
      drop(key)
      current = undefined
    }
  }
  return {
    redact: (text) => {
      current ??= redactor(first, ...Array.from(learned.values(), ({ variable }) => variable))
      return current(text)
    },
    learn: (variables) => {
      const keys = variables
        .flatMap(Object.entries<string>)
        .filter(isSecret)
        .map((entry) => JSON.stringify(entry))
      for (const key of keys) {
        const [name, value] = JSON.parse(key) as [string, string]
        if (!learned.has(key)) current = undefined
        const { holders, variable } = learned.get(key) ?? { holders: 0, variable: { [name]: value } }
        learned.set(key, { variable, holders: holders + 1 })
      }
      return () => {
        for (const key of keys.splice(0)) {
          const { holders, variable } = drop(key)!
          learned.set(key, { variable, holders: holders - 1 })
        }
        trim()
      }
    }
  }
}

/** A sample of a text may end in the middle of a secret. */
const cutAtEnd = (text: string, secret: string, mark: string): string => {
  if (!secret.includes(text.slice(-minPart))) return text
  for (let size = Math.min(secret.length - 1, text.length); size >= minPart; size--) {
    if (text.endsWith(secret.slice(0, size))) return text.slice(0, -size) + mark
  }
  return text
}

/** And the last part of a text may start in the middle of one. */
const cutAtStart = (text: string, secret: string, mark: string): string => {
  if (!secret.includes(text.slice(0, minPart))) return text
  for (let size = Math.min(secret.length - 1, text.length); size >= minPart; size--) {
    if (text.startsWith(secret.slice(-size))) return mark + text.slice(size)
  }
  return text
}
