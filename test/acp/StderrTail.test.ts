import { assert, describe, it } from "@effect/vitest"
import * as StderrTail from "../../src/acp/StderrTail.ts"

const bytes = (text: string) => new TextEncoder().encode(text)
const redact = (text: string) => text.replaceAll("s3cr3t-value", "<KEY>").replaceAll("two\nlines", "<PEM>")

describe("StderrTail", () => {
  it("keeps everything while it fits", () => {
    const tail = StderrTail.make(100)
    assert.strictEqual(tail.text(), "")
    tail.push(bytes("one\n"))
    tail.push(bytes("two"))
    assert.strictEqual(tail.text(), "one\ntwo")
  })

  it("keeps at most its bound of bytes, the last ones, whatever the pieces", () => {
    const text = Array.from({ length: 3000 }, (_, index) => `line ${index}`).join("\n")
    for (const size of [1, 7, 1000, 5000, text.length]) {
      const tail = StderrTail.make(512)
      for (let at = 0; at < text.length; at += size) tail.push(bytes(text.slice(at, at + size)))
      assert.strictEqual(tail.text(), text.slice(-512))
    }
    const none = StderrTail.make(0)
    none.push(bytes(text))
    assert.strictEqual(none.text(), "")
  })

  it("counts bytes, not characters, and never shows a part of one", () => {
    const tail = StderrTail.make(64)
    tail.push(bytes("é".repeat(5000)))
    assert.strictEqual(tail.text(), "é".repeat(32))
    tail.push(bytes("x"))
    assert.strictEqual(tail.text(), `${"é".repeat(31)}x`)
  })

  it("a character whose second half comes after a look at the tail is whole", () => {
    const tail = StderrTail.make(100)
    const [first, second] = bytes("é")
    tail.push(bytes("a"))
    tail.push(Uint8Array.of(first!))
    assert.strictEqual(tail.text(), "a")
    tail.push(Uint8Array.of(second!))
    assert.strictEqual(tail.text(), "aé")
  })

  it("a secret that arrives in two pieces, or over two lines, is redacted", () => {
    const tail = StderrTail.make(1000, redact)
    tail.push(bytes("the key is s3cr3"))
    assert.notInclude(tail.text(), "s3cr3t-value")
    tail.push(bytes("t-value and two\nli"))
    tail.push(bytes("nes\n"))
    assert.strictEqual(tail.text(), "the key is <KEY> and <PEM>\n")
  })

  it("no part of a secret shows at the front, wherever the cut falls", () => {
    for (let shift = 0; shift < 30; shift++) {
      for (const lead of [20_000, 4096 + 64 + shift, 64 + shift]) {
        const tail = StderrTail.make(64, redact)
        tail.push(bytes(`${"a".repeat(lead)}s3cr3t-value`))
        tail.push(bytes("b".repeat(50 + shift)))
        const text = tail.text()
        assert.match(text, /^[a<KEY>b]*$/)
        assert.isAtMost(text.length, 64)
        assert.isTrue(text.endsWith("b".repeat(50)))
        // The same with the secret where the held bytes begin.
        const far = StderrTail.make(64, redact)
        far.push(bytes(`s3cr3t-value${"b".repeat(64 + 4096 - 15 + shift)}`))
        assert.strictEqual(far.text(), "b".repeat(64))
      }
    }
  })

  it("text that shrinks when it is redacted does not bring a cut secret into view", () => {
    const tail = StderrTail.make(64, redact)
    tail.push(bytes(`${"s3cr3t-value".repeat(1000)} end`))
    assert.match(tail.text(), /^[^3]* end$/)
  })

  it("the caller may reuse the chunk", () => {
    const tail = StderrTail.make(10)
    const chunk = bytes("abc")
    tail.push(chunk)
    chunk.fill(0)
    assert.strictEqual(tail.text(), "abc")
  })
})
