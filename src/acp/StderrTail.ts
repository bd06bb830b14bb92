/**
 * The last part of a process's stderr.
 *
 * @since 0.1.0
 */

/**
 * A bounded tail of text. Bytes beyond the bound are dropped from the front.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface StderrTail {
  readonly push: (chunk: Uint8Array) => void
  /** What is kept, as text, with secrets removed. */
  readonly text: () => string
}

/** Kept in front of the tail, so that a secret at its beginning is still seen whole. No secret should be longer. */
const margin = 4096

/**
 * A tail of at most `maxBytes` bytes of UTF-8. `redact` is applied to the text when it is read, so that a secret that
 * arrives in two pieces is still seen whole; half of one at the beginning is never shown. A character of which only a part
 * has arrived is left out. At most twice `maxBytes` and some KiB are held.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (maxBytes: number, redact: (text: string) => string = (text) => text): StderrTail => {
  const bound = Math.max(0, maxBytes)
  const kept = bound + margin
  let buffer = new Uint8Array(0)
  let length = 0
  let cut = false

  const reserve = (more: number): void => {
    if (length + more <= buffer.length) return
    if (length + more > 2 * kept) {
      buffer.copyWithin(0, length - kept, length)
      length = kept
      cut = true
    }
    if (length + more <= buffer.length) return
    const larger = new Uint8Array(Math.min(2 * kept, Math.max(1024, 2 * (length + more))))
    larger.set(buffer.subarray(0, length))
    buffer = larger
  }

  return {
    push: (chunk) => {
      const part = chunk.length > kept ? chunk.subarray(chunk.length - kept) : chunk
      if (part.length < chunk.length) {
        length = 0
        cut = true
      }
      reserve(part.length)
      buffer.set(part, length)
      length += part.length
    },
    text: () => {
      const held = buffer.subarray(Math.max(0, length - kept), length)
      const redacted = redact(new TextDecoder().decode(held, { stream: true }))
      const bytes = new TextEncoder().encode(redacted)
      // Half a secret can only be at the very beginning, where it was not recognised: before the first that was.
      let unsafe = 0
      if (cut || held.length < length) while (unsafe < margin && bytes[unsafe] === held[unsafe]) unsafe++
      let from = Math.max(unsafe, bytes.length - bound)
      while (from < bytes.length && (bytes[from]! & 0xc0) === 0x80) from++
      return new TextDecoder().decode(bytes.subarray(from))
    }
  }
}
