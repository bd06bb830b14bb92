// Looks at what an agent writes to stdout, beside the connection that reads it.
import * as Stream from "effect/Stream"
import * as AcpCodec from "../acp/AcpCodec.ts"
import type { AcpTransport } from "../acp/AcpTransport.ts"

export interface Seen {
  /** All that came, whether it was a whole line or not. */
  bytes: number
  frames: number
  noise: number
  /** The first of each, since the first one is where it goes wrong. */
  noiseSample: string
  malformed: number
  malformedSample: string
  tooLarge: number
  /** Methods of its requests. */
  readonly requests: Set<string>
  /** What it said last about who is signed in, which is an extension of some agents. */
  signedIn: { readonly kind: string; readonly label: string } | undefined
}

export const make = (): Seen => ({
  bytes: 0,
  frames: 0,
  noise: 0,
  noiseSample: "",
  malformed: 0,
  malformedSample: "",
  tooLarge: 0,
  requests: new Set(),
  signedIn: undefined
})

const maxRequests = 32

const text = (value: unknown): string => (typeof value === "string" ? value : "")

const notified = (seen: Seen, { method, params }: AcpCodec.Notification): void => {
  if (method !== "_auth/status_update") return
  const { authStatus } = (params ?? {}) as {
    readonly authStatus?: { readonly kind?: unknown; readonly label?: unknown }
  }
  if (authStatus !== null && authStatus !== undefined)
    seen.signedIn = { kind: text(authStatus.kind), label: text(authStatus.label) }
}

const take = (seen: Seen, outcome: AcpCodec.Outcome): void => {
  switch (outcome._tag) {
    case "Noise":
      if (seen.noise++ === 0) seen.noiseSample = outcome.text
      return
    case "Malformed":
      if (seen.malformed++ === 0) seen.malformedSample = `${outcome.reason}: ${outcome.text}`
      return
    case "TooLarge":
      seen.tooLarge++
      return
    case "Request":
      if (seen.requests.size < maxRequests) seen.requests.add(outcome.method)
      break
    case "Notification":
      notified(seen, outcome)
      break
  }
  seen.frames++
}

/** The same transport; what it gives is counted. */
export const on = (transport: AcpTransport, seen: Seen, maxLineBytes: number): AcpTransport => {
  const decoder = AcpCodec.makeDecoder({ maxLineBytes })
  return {
    ...transport,
    incoming: Stream.mapArray(transport.incoming, (chunks) => {
      for (const chunk of chunks) {
        seen.bytes += chunk.length
        for (const outcome of decoder.push(chunk)) take(seen, outcome)
      }
      return chunks
    })
  }
}
