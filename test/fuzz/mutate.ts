// Golden frames, and ways to break them.
import { readdirSync, readFileSync } from "node:fs"
import type * as Prng from "../../src/testing/Prng.ts"

const encoder = new TextEncoder()
const newline = 0x0a

export const bytesOf = (text: string): Uint8Array => encoder.encode(text)
export const concat = (...parts: ReadonlyArray<Uint8Array>): Uint8Array => new Uint8Array(Buffer.concat(parts))

const split = (bytes: Uint8Array): ReadonlyArray<Uint8Array> => {
  const lines: Array<Uint8Array> = []
  for (let from = 0; from < bytes.length;) {
    const to = bytes.indexOf(newline, from)
    lines.push(bytes.slice(from, to < 0 ? bytes.length : to))
    from = to < 0 ? bytes.length : to + 1
  }
  return lines
}

/** The session that the golden frames speak of; the fuzzed session has the same id. */
export const sessionId = "agent-session-1"

const wire = new URL("../wire/", import.meta.url)

/** Every line of the golden files. */
export const golden: ReadonlyArray<Uint8Array> = readdirSync(wire)
  .filter((name) => name.endsWith(".ndjson"))
  .toSorted()
  .flatMap((name) => {
    const text = readFileSync(new URL(name, wire)).toString("latin1").replaceAll("sess_01", sessionId)
    return split(new Uint8Array(Buffer.from(text, "latin1")))
  })

const parse = (bytes: Uint8Array): unknown => {
  try {
    return JSON.parse(new TextDecoder().decode(bytes))
  } catch {
    return undefined
  }
}

const chunk = (content: unknown): unknown => ({
  jsonrpc: "2.0",
  method: "session/update",
  params: { sessionId, update: { sessionUpdate: "agent_message_chunk", content } }
})

/** Golden frames, and content that those have none of. */
const frames: ReadonlyArray<unknown> = golden
  .map(parse)
  .filter((value) => typeof value === "object" && value !== null && !Array.isArray(value))
  .concat([
    chunk({ type: "resource", resource: { uri: "file:///a", text: "a" } }),
    chunk({ type: "resource", resource: null }),
    chunk({ type: "resource", resource: [] }),
    chunk({ type: "resource_link", uri: "file:///a", name: "a" }),
    chunk({ type: "text", text: null })
  ])

/** Most ids are those that a connection with few requests uses. */
const anyId = (prng: Prng.Prng): string =>
  prng.pick([
    () => `${prng.int(10)}`,
    () => `"${prng.int(10)}"`,
    () => prng.pick(["null", '""', "true", "{}", "[1]", "-1", "1.5", "1e2", "-0", '"01"', '" 1"', '"1e0"', '"nobody"']),
    () => prng.pick(["9007199254740991", "9007199254740993", "12345678901234567890", "1e999", '"12345678901234567890"'])
  ])()

const nested = (prng: Prng.Prng): string => {
  // Seldom so deep that a function which calls itself for each level runs out of stack.
  const depth = prng.chance(0.03) ? prng.pick([20_000, 140_000]) : 1 + prng.int(60)
  const [open, close] = prng.pick([
    ["[", "]"],
    ['{"a":', "}"],
    ['[{"sessionId":', "}]"]
  ])
  return `${open!.repeat(depth)}${prng.chance(0.5) ? "1" : '"x"'}${close!.repeat(depth)}`
}

/** Text in place of a value. Nearly all of it is JSON. */
const anyValue = (prng: Prng.Prng): string =>
  prng.pick([
    () => anyId(prng),
    () => prng.pick(["null", "true", "false", "0", '""', "[]", "{}", "[null]", '{"a":1,"a":2}']),
    () => prng.pick(["1e999", "-1e999", "1e-400", "123456789012345678901234567890", "0.1", "-0.0", "NaN", "01", "+1"]),
    () => nested(prng),
    () => `"${prng.pick(["x", "é", "😀", "\\u0000", "\\n"]).repeat(prng.int(prng.chance(0.1) ? 6000 : 300))}"`,
    () => prng.pick(['"\\ud800"', '"\\udc00x"', '"\\u2028"', '"\\u001b[31m"', '"\\x"', '"\t"', '"\\ufeff"', '"}{"']),
    () => `{"__proto__":{"method":"evil","sessionId":"evil","jsonrpc":"2.0"}}`,
    () => `{"constructor":{"prototype":{"polluted":true}},"toString":1,"then":{}}`,
    () => JSON.stringify(prng.pick(frames)),
    () => JSON.stringify(JSON.stringify(prng.pick(frames)))
  ])()

const kinds: ReadonlyArray<string> = [
  "text",
  "resource",
  "resource_link",
  "image",
  "",
  "tool_call",
  "user_message_chunk"
]

/** Text in place of the value of a member, often one that means something there. */
const valueFor = (prng: Prng.Prng, key: string): string => {
  if (key === "id") return anyId(prng)
  if (prng.chance(0.3)) return prng.pick(["null", "{}", "[]", "0", '""'])
  return key === "type" || key === "sessionUpdate" ? JSON.stringify(prng.pick(kinds)) : anyValue(prng)
}

const anyKey = (prng: Prng.Prng): string =>
  prng.pick(["__proto__", "constructor", "toString", "id", "method", "params", "result", "error", "jsonrpc", "_meta"])

interface Place {
  readonly holder: Record<string, unknown>
  readonly key: string
}

const places = (value: unknown, found: Array<Place> = []): ReadonlyArray<Place> => {
  if (typeof value !== "object" || value === null) return found
  for (const [key, inner] of Object.entries(value)) {
    found.push({ holder: value as Record<string, unknown>, key })
    places(inner, found)
  }
  return found
}

const define = (holder: object, key: string, value: unknown): void => {
  Object.defineProperty(holder, key, { value, enumerable: true, configurable: true, writable: true })
}

/** Changes members of a golden frame: swapped, renamed, removed, added, repeated, of another type. */
const changeMembers = (prng: Prng.Prng): Uint8Array => {
  const frame = structuredClone(prng.pick(frames)) as Record<string, unknown>
  // What JSON.stringify can't write is put into its text afterwards.
  const raw: Array<string> = []
  const put = (text: string): string => `~raw${raw.push(text) - 1}~`
  for (let times = 1 + prng.int(3); times > 0; times--) {
    const all = places(frame)
    const top = Object.keys(frame).map((key) => ({ holder: frame, key }))
    if (all.length === 0) break
    const { holder, key } = prng.pick(prng.chance(0.4) && top.length > 0 ? top : all)
    const other = prng.pick(all)
    prng.pick([
      () => delete holder[key],
      () => define(holder, key, put(valueFor(prng, key))),
      () => define(holder, key, put(anyValue(prng))),
      () => {
        const value = holder[key]
        delete holder[key]
        define(holder, prng.pick([`${key}_`, key.toUpperCase(), "", anyKey(prng)]), value)
      },
      () => {
        const value = holder[key]
        define(holder, key, structuredClone(other.holder[other.key]))
        define(other.holder, other.key, structuredClone(value))
      },
      () => define(holder, anyKey(prng), put(anyValue(prng))),
      // A key that is there twice.
      () => define(holder, `~twice~${key}`, put(anyValue(prng))),
      () => define(frame, "id", put(anyId(prng)))
    ])()
  }
  let text = JSON.stringify(frame, null, prng.chance(0.1) ? "\t" : undefined).replaceAll("\n", " ")
  text = text.replaceAll(/"~raw(\d+)~"/g, (_, index: string) => raw[Number(index)]!).replaceAll("~twice~", "")
  return bytesOf(text)
}

const pieces: ReadonlyArray<Uint8Array> = [
  "\ufeff",
  "\r",
  "\r\n",
  "\n",
  "\0",
  "\u001b[31m",
  '"',
  "\\",
  "{",
  "}",
  "[",
  "]",
  ",",
  ":",
  " ",
  "\t",
  "é",
  "😀",
  '"jsonrpc"',
  '{"jsonrpc":"2.0"',
  '{"jsonrpc":"2.0","id":1',
  '"id":3,',
  "log: ",
  "[debug] ",
  '{"level":30,',
  "}}"
].map(bytesOf)
const badUtf8: ReadonlyArray<Uint8Array> = [
  [0xff],
  [0xc3],
  [0xe2, 0x82],
  [0xf0, 0x9f, 0x98],
  [0x80],
  [0xed, 0xa0, 0x80],
  [0xef, 0xbb],
  [0xc0, 0x8a]
].map((bytes) => Uint8Array.from(bytes))

const randomBytes = (prng: Prng.Prng, length: number, alphabet?: string): Uint8Array =>
  Uint8Array.from({ length }, () =>
    alphabet === undefined ? prng.int(256) : alphabet.charCodeAt(prng.int(alphabet.length))
  )

/** Changes bytes, whatever they mean. */
const changeBytes = (prng: Prng.Prng, line: Uint8Array): Uint8Array => {
  const at = prng.int(line.length + 1)
  const to = at + prng.int(line.length - at + 1)
  return prng.pick([
    () => {
      const flipped = line.slice()
      for (let times = 1 + prng.int(4); times > 0 && line.length > 0; times--)
        flipped[prng.int(line.length)]! ^= 1 << prng.int(8)
      return flipped
    },
    () => line.slice(0, at),
    () => line.slice(at),
    () => concat(line.subarray(0, at), line.subarray(to)),
    () => concat(line.subarray(0, to), line.subarray(at)),
    () => concat(line.subarray(0, at), prng.pick(pieces), line.subarray(at)),
    () => concat(line.subarray(0, at), prng.pick(badUtf8), line.subarray(at)),
    () => concat(prng.pick(pieces), line),
    () => concat(line, prng.pick(pieces)),
    () => concat(line.subarray(0, at), randomBytes(prng, prng.int(20)), line.subarray(at))
  ])()
}

/** A line that is nearly as long as `length`, or a little longer. */
const changeLength = (prng: Prng.Prng, line: Uint8Array, length: number): Uint8Array => {
  const missing = length - line.length + prng.pick([-2, -1, 0, 1, 2, 500])
  if (missing <= 0) return line.slice(0, length + prng.int(3))
  const at = prng.pick([0, line.length, prng.int(line.length + 1)])
  return concat(line.subarray(0, at), bytesOf(prng.pick([" ", "x", "\t"]).repeat(missing)), line.subarray(at))
}

/** A line of garbage, which may hold line breaks, and which may well be a valid frame. */
export const garbage = (prng: Prng.Prng, maxLineBytes: number): Uint8Array => {
  const frame = (): Uint8Array => (prng.chance(0.5) ? prng.pick(golden) : changeMembers(prng))
  const line = prng.pick([
    () => prng.pick(golden),
    () => changeMembers(prng),
    () => changeMembers(prng),
    () => changeBytes(prng, frame()),
    () => changeBytes(prng, changeBytes(prng, frame())),
    () => {
      const [left, right] = [frame(), frame()]
      return concat(left.subarray(0, prng.int(left.length + 1)), right.subarray(prng.int(right.length + 1)))
    },
    () => concat(frame(), frame()),
    // A batch, which ACP does not have.
    () => concat(bytesOf("["), frame(), bytesOf(","), frame(), bytesOf("]")),
    () => bytesOf(anyValue(prng)),
    () => randomBytes(prng, prng.int(200)),
    () => randomBytes(prng, prng.int(200), '{}[]",:\\ jsonrpc2.0id1\r\n'),
    () => new Uint8Array(0)
  ])()
  return prng.chance(0.1) && maxLineBytes < 100_000 ? changeLength(prng, line, maxLineBytes) : line
}
