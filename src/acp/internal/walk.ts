/**
 * Walks over the bytes of a line.
 *
 * @internal
 */

const quote = 0x22
const backslash = 0x5c
export const openBracket = 0x5b
const closeBracket = 0x5d
const closeBrace = 0x7d
export const openBrace = 0x7b

// Blanks of JSON without the newline, and byte order marks.
export const skipBlank = (part: Uint8Array, start: number): number => {
  let at = start
  for (; at < part.length; at++) {
    const byte = part[at]
    if (byte === 0xef && part[at + 1] === 0xbb && part[at + 2] === 0xbf) at += 2
    else if (byte !== 0x20 && byte !== 0x09 && byte !== 0x0d) break
  }
  return at
}

// Where the object that opens at `start` closes, or -1.
export const closeOf = (line: Uint8Array, start: number): number => {
  let depth = 0
  for (let at = start; at < line.length; at++) {
    const byte = line[at]
    if (byte === quote) at = endOfString(line, at)
    else if (byte === openBrace || byte === openBracket) depth++
    else if ((byte === closeBrace || byte === closeBracket) && --depth === 0) return at + 1
  }
  return -1
}

export const nextObject = (line: Uint8Array, start: number): number => {
  let at = line.indexOf(openBrace, start)
  while (at >= 0 && line[skipBlank(line, at + 1)] !== quote) at = line.indexOf(openBrace, at + 1)
  return at
}

// JSON.parse takes far more than twice the time for twice the depth.
export const maxDepth = 2 ** 17

export const isTooDeep = (source: Uint8Array, start = 0, end = source.length): boolean => {
  // Nearly all lines are shorter, and need no walk.
  if (end - start <= maxDepth) return false
  let depth = 0
  for (let at = start; at < end; at++) {
    const byte = source[at]
    if (byte === quote) at = endOfString(source, at)
    else if (byte === openBrace || byte === openBracket) {
      if (++depth > maxDepth) return true
    } else if (byte === closeBrace || byte === closeBracket) depth--
  }
  return false
}

const endOfString = (line: Uint8Array, start: number): number => {
  let at = start + 1
  for (; at < line.length && line[at] !== quote; at++) if (line[at] === backslash) at++
  return at
}
