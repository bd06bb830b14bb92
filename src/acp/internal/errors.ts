/**
 * Errors on the wire: those that the peer is answered with, and those that it sent.
 *
 * @internal
 */
import * as Cause from "effect/Cause"
import type * as Exit from "effect/Exit"
import * as AcpCodec from "../AcpCodec.ts"
import type { Refusal } from "../AcpConnection.ts"
import * as AcpError from "../AcpError.ts"

const isRefusal = (u: unknown): u is Refusal => typeof u === "object" && u !== null && (u as Refusal)._tag === "Refusal"

const internalError: AcpCodec.ResponseError = { code: AcpError.code.internalError, message: "Internal error" }

const errorOf = (cause: Cause.Cause<unknown>): AcpCodec.ResponseError => {
  const failure = Cause.findErrorOption(cause)
  if (failure._tag === "Some" && isRefusal(failure.value)) {
    const { code, data, message } = failure.value
    return { code, message, ...(data === undefined ? {} : { data }) }
  }
  return Cause.hasInterruptsOnly(cause)
    ? { code: AcpError.code.requestCancelled, message: "Request cancelled" }
    : internalError
}

/** An answer that is not JSON, such as a cycle, must not cost the peer its answer. */
export const encodeAnswer = (id: AcpCodec.Id, exit: Exit.Exit<unknown, unknown>): Uint8Array => {
  try {
    return exit._tag === "Success"
      ? AcpCodec.encodeResult(id, exit.value)
      : AcpCodec.encodeError(id, errorOf(exit.cause))
  } catch {
    return AcpCodec.encodeError(id, internalError)
  }
}

/** Cleaning an error holds up all sessions, so there is no more of it than this: characters of text, bytes of the rest. */
const mostErrorText = 64 * 1024

/** The error that answered a request of ours, without secrets. */
export const received = (
  method: string,
  error: AcpCodec.ResponseError,
  bytes: number,
  redact: ((text: string) => string) | undefined
): AcpError.RequestError => {
  const { code, data } = error
  const message = error.message.slice(0, mostErrorText)
  if (redact === undefined) return new AcpError.RequestError({ method, code, detail: message, data })
  const isTooLarge = data !== undefined && bytes > mostErrorText
  return new AcpError.RequestError({
    method,
    code,
    detail: redact(message),
    data: isTooLarge ? "<too large>" : redactData(data, redact, 0)
  })
}

/** Data of an error comes off the wire, so it is JSON; it may be nested deeper than the stack allows. */
const redactData = (data: unknown, redact: (text: string) => string, depth: number): unknown => {
  if (typeof data === "string") return redact(data)
  if (typeof data !== "object" || data === null) return data
  if (depth === 64) return "<too deep>"
  if (Array.isArray(data)) return data.map((item) => redactData(item, redact, depth + 1))
  return Object.fromEntries(
    Object.entries(data).map(([key, value]) => [redact(key), redactData(value, redact, depth + 1)])
  )
}
