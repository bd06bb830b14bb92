// The work of acp-sidecar prompt.
import * as NodeTerminal from "@effect/platform-node/NodeTerminal"
import * as Effect from "effect/Effect"
import * as Address from "../Address.ts"
import * as Connecting from "./connecting.ts"
import * as Interrupts from "./Interrupts.ts"
import type * as Places from "./places.ts"
import { withTelemetry } from "./telemetry.ts"
import * as Turn from "./turn.ts"

export const main = (places: Places.Places, session: string, options: Turn.Options) => {
  const attached = Effect.flatMap(Connecting.one(places), ({ answered, connection }) =>
    answered(connection.session(Address.SessionId.make(session)))
  )
  const leaving = Effect.map(Interrupts.Ending, (ending) => {
    ending.again = "leave"
  })
  return Effect.andThen(leaving, Turn.run(attached, options)).pipe(
    Effect.scoped,
    Effect.provide(NodeTerminal.layer),
    withTelemetry
  )
}
