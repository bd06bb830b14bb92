import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Schema from "effect/Schema"
import { readdirSync, readFileSync } from "node:fs"
import * as AcpCodec from "../../src/acp/AcpCodec.ts"

const utf8 = new TextEncoder()
const bytesOf = (text: string) => utf8.encode(text)
const concat = (parts: ReadonlyArray<Uint8Array>) => new Uint8Array(Buffer.concat(parts))
const decoderOf = (maxLineBytes?: number) => AcpCodec.makeDecoder({ maxLineBytes })

// Pushes `bytes` cut into pieces of the given lengths, over and over, and ends the stream.
const decodeIn = (bytes: Uint8Array, sizes: ReadonlyArray<number>, maxLineBytes?: number) => {
  const decoder = decoderOf(maxLineBytes)
  const out: Array<AcpCodec.Outcome> = []
  for (let at = 0, turn = 0; at < bytes.length; turn++) {
    // The same array is handed over each time and wiped afterwards, as a caller with one read buffer does.
    const chunk = bytes.slice(at, at + (sizes[turn % sizes.length] ?? 1))
    at += chunk.length
    out.push(...decoder.push(chunk))
    chunk.fill(0x0a)
  }
  out.push(...decoder.end())
  return out
}
const decodeWhole = (bytes: Uint8Array | string, maxLineBytes?: number) => {
  const decoder = decoderOf(maxLineBytes)
  return [...decoder.push(typeof bytes === "string" ? bytesOf(bytes) : bytes), ...decoder.end()]
}

// What JSON can say of outcomes: members that are `undefined` are not there.
const plain = (outcomes: ReadonlyArray<AcpCodec.Outcome>): unknown => JSON.parse(JSON.stringify(outcomes))

const wire = new URL("../wire/", import.meta.url)
const files = readdirSync(wire)
const golden = files.filter((name) => name.endsWith(".ndjson")).map((name) => name.slice(0, -".ndjson".length))
const goldenBytes = (name: string) => new Uint8Array(readFileSync(new URL(`${name}.ndjson`, wire)))
const goldenLines = golden.flatMap((name) =>
  Buffer.from(goldenBytes(name))
    .toString("latin1")
    .split("\n")
    .map((line) => new Uint8Array(Buffer.from(`${line}\n`, "latin1")))
)

const update = (text: string, sessionId = "s1") => ({
  jsonrpc: "2.0",
  method: "session/update",
  params: { sessionId, update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text } } }
})
const good = '{"jsonrpc":"2.0","id":1,"result":{}}'
const goodResponse = { _tag: "Response", id: 1, result: {}, bytes: good.length }

describe("golden frames", () => {
  it("every golden file has its expectation, and every expectation its file", () => {
    assert.isAtLeast(golden.length, 5)
    assert.sameMembers(
      files.filter((name) => name !== ".gitattributes"),
      golden.flatMap((name) => [`${name}.ndjson`, `${name}.expected.json`])
    )
  })

  it.each(golden)("%s.ndjson decodes to what is expected, in one chunk and byte by byte", (name) => {
    const expected = JSON.parse(readFileSync(new URL(`${name}.expected.json`, wire), "utf8")) as unknown
    assert.deepStrictEqual(plain(decodeWhole(goldenBytes(name))), expected)
    assert.deepStrictEqual(plain(decodeIn(goldenBytes(name), [1])), expected)
  })

  it("the golden files hold every kind of outcome but TooLarge", () => {
    const tags = new Set(golden.flatMap((name) => decodeWhole(goldenBytes(name)).map((outcome) => outcome._tag)))
    assert.sameMembers([...tags], ["Request", "Notification", "Response", "Noise", "Malformed"])
  })

  it("what a golden frame says survives being encoded again", () => {
    for (const line of goldenLines) {
      for (const outcome of decodeWhole(line)) {
        if (outcome._tag === "Noise" || outcome._tag === "Malformed" || outcome._tag === "TooLarge") continue
        const encoded = AcpCodec.encode(outcome)
        assert.deepStrictEqual(decodeWhole(encoded), [{ ...outcome, bytes: encoded.length - 1 }])
      }
    }
  })
})

describe("framing", () => {
  const Line = Arbitrary.all([
    Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 7 }))),
    Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: goldenLines.length - 1 }))),
    Arbitrary.schema(Schema.String),
    Arbitrary.schema(Schema.Json),
    Arbitrary.array(Arbitrary.schema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 255 }))))
  ]).pipe(
    Arbitrary.map(([kind, index, text, json, bytes]) => {
      if (kind === 0) return bytesOf(`${text}\n`)
      if (kind === 1) return bytesOf(`${JSON.stringify(json)}\r\n`)
      if (kind === 2) return concat([Uint8Array.from(bytes), bytesOf("\n")])
      if (kind === 3) return bytesOf(`${text}${JSON.stringify({ jsonrpc: "2.0", id: index, result: json })}${text}\n`)
      if (kind === 4) return bytesOf(`\ufeff${JSON.stringify(update(text.repeat(20)))}`)
      return goldenLines[index] ?? new Uint8Array(0)
    })
  )
  const Sizes = Arbitrary.array(
    Arbitrary.schema(
      Schema.Union([
        Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 9 })),
        Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 600 }))
      ])
    ),
    { maxLength: 12 }
  ).pipe(Arbitrary.map((sizes) => [...sizes, 1]))

  it.prop(
    "any chunking of any lines gives the same outcomes",
    [Arbitrary.array(Line, { maxLength: 12 }), Sizes],
    ([lines, sizes]) => {
      const bytes = concat(lines)
      for (const limit of [undefined, 100]) {
        const whole = decodeWhole(bytes, limit)
        assert.deepStrictEqual(decodeIn(bytes, sizes, limit), whole)
        assert.deepStrictEqual(decodeIn(bytes, [1], limit), whole)
      }
    },
    { arbitrary: { runs: 300 } }
  )

  it.prop(
    "the outcomes of a line account for each of its bytes",
    [Line],
    ([line]) => {
      for (const part of Buffer.from(line).toString("latin1").split("\n")) {
        const total = decodeWhole(new Uint8Array(Buffer.from(part, "latin1"))).reduce((sum, one) => sum + one.bytes, 0)
        if (total !== 0) assert.strictEqual(total, part.length)
      }
    },
    { arbitrary: { runs: 300 } }
  )

  it("all golden files glued together give the same outcomes in any chunk size", () => {
    const bytes = concat(golden.flatMap((name) => [goldenBytes(name), bytesOf("\n")]))
    const whole = decodeWhole(bytes)
    for (const sizes of [[1], [2], [3], [5, 0, 7], [64], [1000, 1], [4096]]) {
      assert.deepStrictEqual(decodeIn(bytes, sizes), whole)
    }
  })

  it("W2, B57: a log line in the same chunk as a frame is skipped and the frame survives", () => {
    assert.deepStrictEqual(plain(decodeWhole(`starting up\n${good}\n\u001b[32mready\u001b[0m\n${good}\n`)), [
      { _tag: "Noise", text: "starting up", bytes: 11 },
      goodResponse,
      { _tag: "Noise", text: "\u001b[32mready\u001b[0m", bytes: 14 },
      goodResponse
    ])
  })

  it("B57: text and ANSI codes before a frame in the same line are noise and the frame survives", () => {
    assert.deepStrictEqual(plain(decodeWhole(`\u001b[2K> ${good}\n`)), [
      { _tag: "Noise", text: "\u001b[2K> ", bytes: 6 },
      goodResponse
    ])
  })

  it('B60: the ids "12" and 12 are told apart, so that the caller may decide to match them', () => {
    const [text, number] = decodeWhole('{"jsonrpc":"2.0","id":"12","result":1}\n{"jsonrpc":"2.0","id":12,"result":1}\n')
    assert.strictEqual(text?._tag === "Response" ? text.id : undefined, "12")
    assert.strictEqual(number?._tag === "Response" ? number.id : undefined, 12)
  })

  it("B61: a 1 MB line is decoded whole", () => {
    const text = "é😀x".repeat(150_000)
    const bytes = AcpCodec.encodeNotification("session/update", update(text).params)
    assert.isAbove(bytes.length, 1_000_000)
    for (const sizes of [[65_536], [bytes.length], [8191, 13]]) {
      const [outcome, ...rest] = decodeIn(bytes, sizes)
      assert.deepStrictEqual(rest, [])
      assert.isTrue(outcome?._tag === "Notification" && outcome.bytes === bytes.length - 1)
      assert.deepStrictEqual(outcome?._tag === "Notification" ? outcome.params : undefined, update(text).params)
    }
  })

  it("a chunk of several megabytes with many lines is decoded like small chunks", () => {
    const bytes = bytesOf(`${JSON.stringify(update("漢".repeat(300)))}\n`.repeat(3000))
    assert.isAbove(bytes.length, 3_000_000)
    assert.strictEqual(decodeWhole(bytes).filter((outcome) => outcome._tag === "Notification").length, 3000)
  })

  it("the last line needs no newline, and the decoder is as new after the end", () => {
    const decoder = decoderOf()
    assert.deepStrictEqual(decoder.push(bytesOf(good)), [])
    assert.strictEqual(decoder.buffered, good.length)
    assert.deepStrictEqual(plain(decoder.end()), [goodResponse])
    assert.strictEqual(decoder.buffered, 0)
    assert.deepStrictEqual(decoder.end(), [])
    assert.deepStrictEqual(plain(decoder.push(bytesOf(`${good}\n`))), [goodResponse])
  })

  it("a list of messages is noise, also with a byte order mark behind it", () => {
    for (const end of ["", "\r", "\ufeff", " \ufeff\r"]) {
      assert.deepStrictEqual(
        decodeWhole(`[${good}]${end}\n`).map((outcome) => outcome._tag),
        ["Noise"]
      )
    }
  })

  it("blank lines, lone carriage returns and byte order marks are nothing", () => {
    assert.deepStrictEqual(decodeWhole("\n\r\n \t\n\n\ufeff\n\ufeff\r\n   "), [])
  })

  it("lines that cost an exception at every brace are given up on, not walked for ever", () => {
    const outcomes = decodeWhole(`x ${'{"a}"} {"b" '.repeat(20_000)}"jsonrpc"\n${good}\n`)
    assert.deepStrictEqual(
      outcomes.map((outcome) => outcome._tag),
      ["Noise", "Response"]
    )
  })

  it("a sample never ends in half a character and never holds more than 256", () => {
    for (const text of ["a".repeat(255) + "😀".repeat(9), "漢".repeat(400), `${"b".repeat(256)}😀`]) {
      const [outcome] = decodeWhole(text)
      const kept = outcome?._tag === "Noise" ? outcome.text : ""
      assert.isTrue(kept.isWellFormed() && !kept.includes("\ufffd") && text.startsWith(kept))
      assert.isTrue(kept.length === 255 || kept.length === 256)
    }
  })

  it("a __proto__ member changes no prototype, whether the line parses or not", () => {
    const line = '{"__proto__":{"method":"evil"},"jsonrpc":"2.0","id":1,"params":{"__proto__":{"sessionId":"evil"}}'
    const [broken, whole] = decodeWhole(`${line}\n${line}}\n`)
    assert.isTrue(broken?._tag === "Malformed" && broken.method === undefined && broken.sessionId === undefined)
    assert.isTrue(whole?._tag === "Malformed" && whole.method === undefined)
    assert.strictEqual(({} as { method?: unknown }).method, undefined)
  })
})

describe("limits", () => {
  const lineOf = (length: number, frame: (fill: string) => unknown = (fill) => update(fill)) => {
    const empty = JSON.stringify(frame("")).length
    return JSON.stringify(frame("x".repeat(length - empty)))
  }

  it("a line of exactly the limit is read, one byte more is not", () => {
    for (const limit of [200, 5000]) {
      for (const sizes of [[1], [64], [100_000]]) {
        const [atCap] = decodeIn(bytesOf(`${lineOf(limit)}\n`), sizes, limit)
        assert.isTrue(atCap?._tag === "Notification" && atCap.bytes === limit)
        assert.deepStrictEqual(decodeIn(bytesOf(`${lineOf(limit + 1)}\n`), sizes, limit), [
          { _tag: "TooLarge", limit, id: undefined, method: "session/update", sessionId: "s1", bytes: limit + 1 }
        ])
      }
    }
  })

  it("the limit is on bytes, not characters, and a carriage return counts", () => {
    const [text] = decodeWhole("é".repeat(50), 99)
    assert.isTrue(text?._tag === "TooLarge" && text.bytes === 100)
    assert.strictEqual(decodeWhole(`${good}\r\n`, good.length + 1)[0]?._tag, "Response")
    assert.strictEqual(decodeWhole(`${good}\r\n`, good.length)[0]?._tag, "TooLarge")
  })

  it("C05: a line far past the limit costs one TooLarge with its real length, and the frames after it survive", () => {
    const limit = 10_000
    const bytes = bytesOf(`${good}\n${lineOf(1_000_000)}\n${good}\n${good}\n`)
    for (const sizes of [[777], [65_536], [bytes.length]]) {
      assert.deepStrictEqual(plain(decodeIn(bytes, sizes, limit)), [
        goodResponse,
        { _tag: "TooLarge", limit, method: "session/update", sessionId: "s1", bytes: 1_000_000 },
        goodResponse,
        goodResponse
      ])
    }
  })

  it("TooLarge comes out when the newline arrives, together with the frame behind it", () => {
    const decoder = decoderOf(300)
    assert.deepStrictEqual(decoder.push(bytesOf(lineOf(250))), [])
    assert.deepStrictEqual(decoder.push(bytesOf("x".repeat(100))), [])
    assert.deepStrictEqual(decoder.push(bytesOf("y".repeat(100))), [])
    assert.deepStrictEqual(plain(decoder.push(bytesOf(`\n${good}\n`))), [
      { _tag: "TooLarge", limit: 300, method: "session/update", sessionId: "s1", bytes: 450 },
      goodResponse
    ])
  })

  it("a too large last line without a newline is reported at the end", () => {
    const decoder = decoderOf(100)
    assert.deepStrictEqual(decoder.push(bytesOf(lineOf(5000, (fill) => ({ jsonrpc: "2.0", id: 7, result: fill })))), [])
    assert.deepStrictEqual(plain(decoder.end()), [{ _tag: "TooLarge", limit: 100, id: 7, bytes: 5000 }])
    assert.deepStrictEqual(decoder.end(), [])
  })

  it("what is held of a line is bounded by the limit, and by its head once past it", () => {
    const decoder = decoderOf(50_000)
    let most = 0
    for (let sent = 0; sent < 3_000_000; sent += 1000) {
      decoder.push(new Uint8Array(1000).fill(0x61))
      most = Math.max(most, decoder.buffered)
      if (sent >= 50_000) assert.strictEqual(decoder.buffered, 4096)
    }
    assert.strictEqual(most, 50_000)
    const [outcome] = decoder.push(bytesOf("\n"))
    assert.isTrue(outcome?._tag === "TooLarge" && outcome.bytes === 3_000_000)
    assert.strictEqual(decoder.buffered, 0)
  })

  it("a 16 MiB line is read by default and one byte more is not", { timeout: 60_000 }, () => {
    assert.strictEqual(AcpCodec.defaultMaxLineBytes, 16 * 1024 * 1024)
    for (const [length, tag] of [
      [AcpCodec.defaultMaxLineBytes, "Notification"],
      [AcpCodec.defaultMaxLineBytes + 1, "TooLarge"]
    ] as const) {
      const [outcome] = decodeIn(bytesOf(lineOf(length)), [65_536])
      assert.isTrue(outcome?._tag === tag && outcome.bytes === length)
    }
  })

  it("a line that is nested too deep costs itself and not seconds", () => {
    const nest = (depth: number) => "[".repeat(depth - 2) + "]".repeat(depth - 2)
    const line = (depth: number) => `{"jsonrpc":"2.0","id":1,"result":{"a":${nest(depth)}}}`
    const tags = (text: string) => decodeWhole(`${text}\n${good}\n`).map((outcome) => outcome._tag)
    assert.deepStrictEqual(tags(line(2 ** 17)), ["Response", "Response"])
    const [outcome, next] = decodeWhole(`${line(2 ** 17 + 1)}\n${good}\n`)
    assert.isTrue(outcome?._tag === "Malformed" && outcome.id === 1 && outcome.method === undefined)
    assert.strictEqual(outcome?._tag === "Malformed" && outcome.reason, "nested more than 131072 levels deep")
    assert.strictEqual(next?._tag, "Response")
    assert.deepStrictEqual(tags(`[${nest(2 ** 18)},${good}]`), ["Noise", "Response"])
    assert.deepStrictEqual(tags(`{"level":${nest(2 ** 18)}}`), ["Noise", "Response"])
    assert.deepStrictEqual(tags(`log ${line(2 ** 18)}`), ["Noise", "Malformed", "Response"])
    assert.deepStrictEqual(tags(JSON.stringify({ jsonrpc: "2.0", method: "m", params: ['[{"'.repeat(2 ** 17)] })), [
      "Notification",
      "Response"
    ])
  })

  it("a limit that makes no sense is the default, and zero refuses every line", () => {
    for (const limit of [Number.NaN, -1, Number.POSITIVE_INFINITY, 99.5]) {
      assert.strictEqual(decodeWhole(`${good}\n`, limit)[0]?._tag, "Response")
    }
    assert.strictEqual(decodeIn(bytesOf("\na\n"), [1], 0).length, 1)
  })

  const headOf = (line: string) => {
    const [outcome] = decodeWhole(line + "x".repeat(10_000), 300)
    if (outcome?._tag !== "TooLarge") throw new Error("not too large")
    return { id: outcome.id, method: outcome.method, sessionId: outcome.sessionId }
  }
  it.each<readonly [string, string, object]>([
    ["the id of a response", '{"jsonrpc":"2.0","id":5,"result":{"text":"', { id: 5 }],
    ["an id before jsonrpc, not one inside the result", '{"id":"p-1","result":{"id":6,"text":"', { id: "p-1" }],
    ["the null id of an error", '{"id":null,"error":{"code":1,"message":"', { id: null }],
    [
      "the session in params, not one inside a member of params",
      '{"jsonrpc":"2.0","method":"m","params":{"a":{"sessionId":"inner"},"sessionId":"s","b":"',
      { method: "m", sessionId: "s" }
    ],
    [
      "members in any order",
      '{"jsonrpc":"2.0","params":{"sessionId":"s","update":{"id":1,"method":"x"}},"id":9,"method":"m","z":"',
      { id: 9, method: "m", sessionId: "s" }
    ],
    ["no session of a result", '{"jsonrpc":"2.0","result":{"sessionId":"r","params":{"sessionId":"deep"},"b":"', {}],
    [
      "no session of what follows params",
      '{"jsonrpc":"2.0","params":{"sessionId":"s"},"result":{"sessionId":"r"},"b":"',
      { sessionId: "s" }
    ],
    ["no session inside an array", '{"jsonrpc":"2.0","params":["sessionId","s",{"sessionId":"in"}],"b":"', {}],
    ["unknown members beside jsonrpc", '{"vendor":1,"jsonrpc":"2.0","id":3,"b":"', { id: 3 }],
    ["nothing of a log object", '{"level":30,"id":3,"msg":"', {}],
    ["a frame behind a byte order mark and blanks", '\ufeff  {"jsonrpc":"2.0","id":4,"result":"', { id: 4 }],
    ["a frame behind log text", '\u001b[0m[debug] {"jsonrpc":"2.0","id":4,"result":"', { id: 4 }],
    ["nothing of an object behind log text", '[debug] {"id":4,"msg":"', {}],
    ["no method that was cut", '{"jsonrpc":"2.0","method":"unterminated', {}],
    ["no id that can't be sent back", '{"jsonrpc":"2.0","id":12345678901234567890,"method":"m","b":"', { method: "m" }],
    ["nothing behind the head", `{"jsonrpc":"2.0","result":"${"r".repeat(5000)}","id":8,"b":"`, {}],
    ["nothing of plain text", "plain text ", {}]
  ])("the head of a too large line gives %s", (_, line, expected) => {
    assert.deepStrictEqual(headOf(line), { id: undefined, method: undefined, sessionId: undefined, ...expected })
  })

  it("a number that the head cuts off is not taken for an id", () => {
    const before = '{"jsonrpc":"2.0","result":"'
    const line = `${before}${"r".repeat(4096 - before.length - 9)}","id":123456,"z":"`
    assert.isTrue(line.slice(0, 4096).endsWith('"id":12'))
    assert.strictEqual(headOf(line).id, undefined)
  })
})

describe("encoding", () => {
  const Id = Schema.Union([Schema.String, Schema.Int, Schema.Null])
  const Params = Schema.Union([Schema.Record(Schema.String, Schema.Json), Schema.Array(Schema.Json)])
  // What does not survive JSON itself (negative zero) is no matter of the codec.
  const json = <A>(value: A): A => JSON.parse(JSON.stringify(value)) as A

  it.prop(
    "any request, notification and response is decoded as it was sent, one line each",
    { id: Id, method: Schema.String, params: Params, result: Schema.Json, code: Schema.Int, sizes: Schema.Boolean },
    (it) => {
      const { code, id, method, params, result } = json(it)
      const frames = [
        AcpCodec.encodeRequest(id, method, params),
        AcpCodec.encodeRequest(id, method),
        AcpCodec.encodeNotification(method, params),
        AcpCodec.encodeNotification(method),
        AcpCodec.encodeResult(id, result),
        AcpCodec.encodeError(id, { code, message: method }),
        AcpCodec.encodeError(id, { code, message: method, data: result })
      ]
      const bytes = frames.map((frame) => frame.length - 1)
      const error = undefined
      const failed = { _tag: "Response", id, result: undefined }
      assert.deepStrictEqual<unknown>(decodeIn(concat(frames), it.sizes ? [1] : [50, 3]), [
        { _tag: "Request", id, method, params, bytes: bytes[0] },
        { _tag: "Request", id, method, params: undefined, bytes: bytes[1] },
        { _tag: "Notification", method, params, bytes: bytes[2] },
        { _tag: "Notification", method, params: undefined, bytes: bytes[3] },
        { _tag: "Response", id, result, error, bytes: bytes[4] },
        { ...failed, error: { code, message: method }, bytes: bytes[5] },
        { ...failed, error: { code, message: method, data: result }, bytes: bytes[6] }
      ])
    },
    { arbitrary: { runs: 200 } }
  )

  it("a frame is one line with jsonrpc 2.0 first and no members that are undefined", () => {
    const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes)
    assert.strictEqual(
      text(AcpCodec.encodeRequest(1, "session/prompt", { text: "a\nb" })),
      '{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"text":"a\\nb"}}\n'
    )
    assert.strictEqual(text(AcpCodec.encodeNotification("x")), '{"jsonrpc":"2.0","method":"x"}\n')
    assert.strictEqual(text(AcpCodec.encodeResult("a", undefined)), '{"jsonrpc":"2.0","id":"a","result":null}\n')
    assert.strictEqual(
      text(AcpCodec.encodeError(null, { code: -32700, message: "Parse error" })),
      '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}\n'
    )
  })
})
