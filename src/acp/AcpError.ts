/**
 * What can go wrong between us and an ACP peer, as typed values with evidence.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"
import { opaque } from "../internal/opaque.ts"

const Evidence = {
  /** The last part of what the process wrote to stderr, redacted; "" when it wrote nothing. */
  stderrTail: Schema.String,
  /** Milliseconds since the last frame arrived; `null` when none ever did. */
  sinceLastFrameMillis: Schema.NullOr(Schema.Finite)
}

const tail = (stderrTail: string): string => {
  const lines = stderrTail
    .trim()
    .split("\n")
    .filter((line) => line.trim() !== "")
  const last = lines.slice(-3).join(" | ")
  return last === "" ? "" : `; its stderr ends with: ${last.length > 400 ? "…" + last.slice(-400) : last}`
}

/**
 * The agent's command could not be started: it does not exist, may not be executed, or the working folder is missing.
 * `code` is the operating system's word for it (`ENOENT`, `EACCES`, `EINVAL`, …). The command is an argument vector and
 * is never split or passed to a shell.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class SpawnError extends Schema.TaggedError<SpawnError>()("SpawnError", {
  code: Schema.String,
  command: Schema.String,
  cwd: Schema.String,
  /** What was at fault: the program, or the folder it should have started in. */
  subject: Schema.Literals(["command", "folder"])
}) {
  override get message(): string {
    const where = `The agent command "${this.command}" could not be started in folder "${this.cwd}" (${this.code}): `
    if (this.subject === "folder")
      return `${where}the folder does not exist or may not be entered; create it or give another one.`
    if (this.code === "ENOENT") return `${where}the program was not found; install it, or give its full path.`
    if (this.code === "EACCES") return `${where}the program may not be executed; check its permissions.`
    return `${where}check the command and its arguments.`
  }
}

/**
 * The agent's process ended while it was in use. Exactly one of `code` and `signal` is set. All frames that it had
 * written before were delivered first.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class ProcessExited extends Schema.TaggedError<ProcessExited>()("ProcessExited", {
  code: Schema.NullOr(Schema.Int),
  signal: Schema.NullOr(Schema.String),
  ...Evidence
}) {
  override get message(): string {
    const how = this.signal === null ? `exited with code ${this.code}` : `was ended by ${this.signal}`
    return `The agent process ${how}${tail(this.stderrTail)}.`
  }
}

/**
 * The pipe to the agent broke although its process was not seen to exit: it closed its stdout (`stdout`) or its stdin
 * (`stdin`, for example EPIPE), or an in-memory peer went away (`peer`).
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class TransportClosed extends Schema.TaggedError<TransportClosed>()("TransportClosed", {
  side: Schema.Literals(["stdin", "stdout", "peer"]),
  detail: Schema.String,
  ...Evidence
}) {
  override get message(): string {
    const what = this.side === "peer" ? "The peer went away" : `The agent closed its ${this.side} without exiting`
    return `${what} (${this.detail})${tail(this.stderrTail)}.`
  }
}

/**
 * This side closed the connection, so the request will get no answer. Nothing is wrong with the agent.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class HostClosed extends Schema.TaggedError<HostClosed>()("HostClosed", {
  reason: Schema.String
}) {
  override get message(): string {
    return `The connection to the agent was closed by this side: ${this.reason}.`
  }
}

/**
 * The peer answered a request with a JSON-RPC error. `code`, `detail` and `data` are the peer's own.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class RequestError extends Schema.TaggedError<RequestError>()("RequestError", {
  method: Schema.String,
  code: Schema.Finite,
  detail: Schema.String,
  data: opaque()
}) {
  override get message(): string {
    return `The agent refused ${this.method} with error ${this.code}: ${this.detail}`
  }
}

/**
 * The peer answered a request with something that is not a valid answer to it: a broken JSON-RPC envelope, an oversized
 * line, or a result of the wrong shape.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class InvalidResponse extends Schema.TaggedError<InvalidResponse>()("InvalidResponse", {
  method: Schema.String,
  detail: Schema.String
}) {
  override get message(): string {
    return `The agent's answer to ${this.method} is not valid: ${this.detail}`
  }
}

/**
 * Why a connection ended.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const ConnectionEnd = Schema.Union([ProcessExited, TransportClosed, HostClosed])

/**
 * Why a connection ended.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type ConnectionEnd = ProcessExited | TransportClosed | HostClosed

/**
 * Why a request failed.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const RequestFailure = Schema.Union([ProcessExited, TransportClosed, HostClosed, RequestError, InvalidResponse])

/**
 * Why a request failed.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type RequestFailure = ConnectionEnd | RequestError | InvalidResponse

/**
 * JSON-RPC and ACP error codes that this library sends or acts on.
 *
 * @stability unstable
 * @category constants
 * @since 0.1.0
 */
export const code = {
  parseError: -32700,
  invalidRequest: -32600,
  methodNotFound: -32601,
  invalidParams: -32602,
  internalError: -32603,
  authRequired: -32000,
  notFound: -32002,
  requestCancelled: -32800
} as const
