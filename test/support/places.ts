// One suite for both places that a sidecar can have: in the app itself, and behind a connection.
import { describe } from "@effect/vitest"
import { TestSidecar } from "acp-sidecar/testing"

export type Place = "embedded" | "remote"

/**
 * Runs a suite once for each place, with the `TestSidecar.layer` of that place. What only an embedded sidecar can promise
 * asks for its `place`, and says why.
 */
export const everywhere = (name: string, suite: (layer: typeof TestSidecar.layer, place: Place) => void): void => {
  for (const place of ["embedded", "remote"] as const) {
    describe(`${name} (${place})`, () => suite((options) => TestSidecar.layer({ ...options, place }), place))
  }
}
