/**
 * What Effect's errors of child processes say about the cause.
 *
 * @internal
 */
import type * as PlatformError from "effect/PlatformError"

/** The system's name of the error, such as `ENOENT`. */
export const errnoOf = (error: PlatformError.PlatformError): string => {
  const cause = (error.reason as { readonly cause?: unknown }).cause
  const code = (cause as { readonly code?: unknown } | undefined)?.code
  if (typeof code === "string") return code
  switch (error.reason._tag) {
    case "NotFound":
      return "ENOENT"
    case "PermissionDenied":
      return "EACCES"
    case "BadArgument":
      return "EINVAL"
    default:
      return error.reason._tag
  }
}

/** A defect of the spawner: Node throws some of the system's errors (`ENOTDIR`, `E2BIG`, …) where it reports others. */
export const thrownErrno = (error: unknown): string | undefined => {
  const { code, syscall } = (error ?? {}) as { readonly code?: unknown; readonly syscall?: unknown }
  return typeof code === "string" && typeof syscall === "string" && syscall.startsWith("spawn") ? code : undefined
}

/** The signal that ended a process, from the failure of its `exitCode`. */
export const signalOf = (error: PlatformError.PlatformError): string | null => {
  const cause = (error.reason as { readonly cause?: unknown }).cause
  return /signal: '(\w+)'/.exec(cause instanceof Error ? cause.message : String(cause))?.[1] ?? null
}
