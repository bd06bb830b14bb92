// Sessions that share processes as a machine: a real sidecar with scripted agents, what is done to it, and what must hold.
import type { TurnOutcome } from "../../../src/index.ts"
import type { Machine } from "../../../src/testing/index.ts"
import * as Effect from "effect/Effect"
import * as References from "effect/References"
import { show } from "../commands.ts"
import * as Checks from "./checks.ts"
import { type Command, generate, generateShort } from "./commands.ts"
import { perform } from "./perform.ts"
import * as World from "./world.ts"

/** What is certain whatever the interleaving: what was asked for at all. */
export interface Model {
  readonly asked: ReadonlySet<TurnOutcome.CancelledBy>
}

const asks = (command: Command): ReadonlyArray<TurnOutcome.CancelledBy> => {
  switch (command._tag) {
    case "Cancel":
      return ["caller"]
    case "Leave":
      return ["interruption", "close"]
    case "Close":
      return ["close"]
    case "CloseVm":
      return ["vm_close"]
    case "Open":
      return command.hold === undefined ? [] : ["close"]
    case "Prompt":
      return command.how === "cancelSoon" ? ["caller"] : []
    case "Dispose":
      return ["dispose"]
    default:
      return []
  }
}

export type SharedMachine = Machine.Machine<World.World, Model, Command>

/**
 * The machine. `count` is told of all that was really reached. For short sequences, `open` sessions are there from the
 * start, in one process.
 */
export const make = (
  options: { readonly count?: (what: string) => void; readonly open?: number } = {}
): SharedMachine => {
  const { count = () => undefined, open = 0 } = options
  const quietly = Effect.provideService(References.MinimumLogLevel, "None")
  return {
    start: quietly(World.make(count, { open, watch: open === 0 })),
    model: { asked: new Set() },
    generate: open > 0 ? generateShort : generate,
    next: (model, command) => ({ asked: new Set([...model.asked, ...asks(command)]) }),
    perform: (world, command, callers) => quietly(perform(world, command, callers)),
    always: Checks.always,
    settled: Checks.settled,
    closed: Checks.closed,
    show
  }
}
