/**
 * Takes secrets out of text that an agent wrote.
 *
 * @internal
 */

const secretName = /KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE/i

const patterns: ReadonlyArray<RegExp> = [
  /\b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}/g,
  /\bgh[pousr]_[A-Za-z0-9]{16,}/g,
  /\bgithub_pat_[A-Za-z0-9_]{16,}/g,
  /\bAIza[A-Za-z0-9_-]{20,}/g,
  /\bxox[abprs]-[A-Za-z0-9-]{10,}/g,
  /\bAKIA[A-Z0-9]{12,}/g,
  /\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?/g
]
const labelled = /((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}/gi

/** A function that replaces the values of secret-looking variables, and whatever looks like a key, by a mark. */
export const redactor = (env: Readonly<Record<string, string>>): ((text: string) => string) => {
  const values = Object.entries(env)
    .filter(([name, value]) => secretName.test(name) && value.length >= 4)
    // The longest first: one secret may be the beginning of another.
    .sort((a, b) => b[1].length - a[1].length)
  return (text) => {
    let clean = text
    for (const [name, value] of values) {
      if (clean.includes(value)) clean = clean.replaceAll(value, `<${name}>`)
    }
    for (const pattern of patterns) clean = clean.replace(pattern, "<redacted>")
    return clean.replace(labelled, "$1<redacted>")
  }
}
