// How a command ends when it does not end well: the exit codes, and the one sentence that the user sees.
import * as Data from "effect/Data"
import type * as SidecarError from "../SidecarError.ts"

export const exitCode = { done: 0, failed: 1, badInput: 2, timedOut: 124, cancelled: 130 } as const

export type ExitCode = (typeof exitCode)[keyof typeof exitCode]

/** Ends the command with this code; `message` is shown on stderr unless it is "". */
export class CommandFailure extends Data.TaggedError("CommandFailure")<{
  readonly code: ExitCode
  readonly message: string
}> {}

export const badInput = (message: string): CommandFailure => new CommandFailure({ code: exitCode.badInput, message })

export const failed = (message: string): CommandFailure => new CommandFailure({ code: exitCode.failed, message })

const blanks = /[\s\p{Cc}\p{Zl}\p{Zp}]+/gu

/** Text of others on one line, unable to move the cursor or to colour the terminal. */
export const oneLine = (text: string, max = 1000): string => {
  const line = text.replaceAll(blanks, " ").trim()
  return line.length > max ? `${line.slice(0, max - 1)}…` : line
}

const timedOut = ({ afterMillis, deadline }: SidecarError.TurnTimedOut): string => {
  switch (deadline) {
    case "idle":
      return `The agent was silent for ${afterMillis} ms and was stopped (--idle-timeout).`
    case "wall":
      return `The turn was not done after ${afterMillis} ms and was stopped (--timeout).`
    case "admission":
      return `The prompt waited ${afterMillis} ms and was not admitted (ACP_SIDECAR_ADMISSION_TIMEOUT).`
  }
}

const signIn = ({ methods }: SidecarError.AuthRequired): string => {
  const ways =
    methods.length === 0
      ? ""
      : `, or choose one of its methods with --authenticate (${methods.map(({ id }) => id).join(", ")})`
  return `the agent wants its user to sign in: use the agent's own command for it${ways}.`
}

/** What the user is told about an error, without addresses: a command has one session. */
export const sentence = (error: { readonly _tag?: string; readonly message: string }): string => {
  switch (error._tag) {
    case "AgentStartFailed": {
      const { agent, phase, reason } = error as SidecarError.AgentStartFailed
      const why = reason._tag === "AuthRequired" ? signIn(reason) : reason.message
      return oneLine(`The agent "${agent}" could not be started, in phase ${phase}: ${why}`)
    }
    case "TurnFailed": {
      const { reason } = error as SidecarError.TurnFailed
      return oneLine(reason._tag === "TurnTimedOut" ? timedOut(reason) : `The turn failed: ${reason.message}`)
    }
    case "AgentCallFailed": {
      const { method, reason } = error as SidecarError.AgentCallFailed
      return oneLine(`${method} failed: ${reason.message}`)
    }
    default:
      return oneLine(error.message)
  }
}

/** The exit code of a failed start or turn. */
export const codeOf = (error: { readonly _tag?: string; readonly reason?: unknown }): ExitCode => {
  const reason = (error.reason as { readonly _tag?: string } | undefined)?._tag
  if (reason === "TurnTimedOut" || reason === "StartTimedOut") return exitCode.timedOut
  const isInput = ["InvalidInput", "InvalidLimit", "LaunchNotRecorded"].includes(error._tag ?? "")
  return isInput ? exitCode.badInput : exitCode.failed
}

export const fromError = (error: { readonly _tag?: string; readonly message: string }): CommandFailure =>
  new CommandFailure({ code: codeOf(error), message: sentence(error) })
