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

/**
 * A tail of at most `maxBytes` bytes. `redact` is applied to the text when it is read, so that a secret that arrives in
 * two pieces is still seen whole.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (maxBytes: number, redact: (text: string) => string = (text) => text): StderrTail => {
  let chunks: Array<Uint8Array> = []
  let bytes = 0
  let cut = false
  return {
    push: (chunk) => {
      chunks.push(chunk)
      bytes += chunk.length
      while (chunks.length > 1 && bytes - chunks[0]!.length >= maxBytes) {
        bytes -= chunks.shift()!.length
        cut = true
      }
    },
    text: () => {
      const decoder = new TextDecoder()
      const whole = chunks.map((chunk) => decoder.decode(chunk, { stream: true })).join("") + decoder.decode()
      chunks = chunks.length > 1 ? [new TextEncoder().encode(whole)] : chunks
      bytes = chunks[0]?.length ?? 0
      // Half a secret at the cut would not be recognised, so a tail that was cut starts at a line.
      return redact(cut ? whole.slice(whole.indexOf("\n") + 1) : whole).slice(-maxBytes)
    }
  }
}
