/**
 * Counts what is refused.
 *
 * @internal
 */
import type * as Context from "effect/Context"
import * as SidecarError from "../SidecarError.ts"
import * as SidecarMetrics from "../SidecarMetrics.ts"

/** Counts an error that is a refusal; nothing happens for others. */
export const count = (error: unknown, metrics: Context.Context<never>): void => {
  const refusal =
    error instanceof SidecarError.LimitExceeded
      ? { scope: error.scope, limit: error.limit }
      : error instanceof SidecarError.SessionBusy
        ? { scope: "session", limit: "maxPromptsPerSession" }
        : undefined
  if (refusal !== undefined) SidecarMetrics.admission.refusals(refusal).updateUnsafe(1, metrics)
}
