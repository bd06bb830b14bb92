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

/** The variables or headers of each MCP server. */
export const ofMcpServers = (servers: ReadonlyArray<Acp.McpServer>): ReadonlyArray<Readonly<Record<string, string>>> =>
  servers.map((server) => {
    const given = "headers" in server ? server.headers : "env" in server ? server.env : []
    return Object.fromEntries(given.map(({ name, value }) => [name, value]))
  })

/** A function that replaces the values of secret-looking variables, and whatever looks like a key, by a mark. */
export const redactor = (...variables: ReadonlyArray<Readonly<Record<string, string>>>): ((text: string) => string) => {
  const secrets = variables
    .flatMap(Object.entries<string>)
    .filter(
      ([name, value]) => secretName.test(name) && !notSecret.test(name) && value.length >= 4 && !harmless.test(value)
    )
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

/** Sets of variables that are kept besides the first. */
const maxLearned = 256

/** A redactor to which more variables may be given later; of these the last ones are kept. */
export const growingRedactor = (
  first: Readonly<Record<string, string>>
): {
  readonly redact: (text: string) => string
  readonly learn: (variables: ReadonlyArray<Readonly<Record<string, string>>>) => void
} => {
  const learned = new Map<string, Readonly<Record<string, string>>>()
  let current = redactor(first)
  return {
    redact: (text) => current(text),
    learn: (variables) => {
      const unknown = variables.filter((each) => Object.keys(each).length > 0 && !learned.has(JSON.stringify(each)))
      if (unknown.length === 0) return
      for (const each of unknown) learned.set(JSON.stringify(each), each)
      while (learned.size > maxLearned) learned.delete(learned.keys().next().value!)
      current = redactor(first, ...learned.values())
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
