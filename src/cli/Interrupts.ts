// Ctrl-C in two steps, the other signals, and a reader that goes away: all of them end the command in order.
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import { type ExitCode, exitCode } from "./failure.ts"
import * as LiveAgents from "./LiveAgents.ts"
import * as Output from "./output.ts"

/** `SIGPIPE` stands for "nobody reads stdout any more". */
export type Interrupt = "SIGINT" | "SIGTERM" | "SIGHUP" | "SIGPIPE"

/** What an interrupt means to the command that runs: its exit code, what it is told to be doing, and what a second one does. It changes them. */
export const Ending = Context.Reference<{ code: ExitCode; verb: string; again: "kill" | "leave" }>(
  "acp-sidecar/cli/Ending",
  { defaultValue: () => ({ code: exitCode.cancelled, verb: "cancelling", again: "kill" }) }
)

/** The interrupts of this process from now on. While the scope is open none of them ends the process by itself. */
export const make: Effect.Effect<Queue.Dequeue<Interrupt>, never, Scope.Scope> = Effect.gen(function* () {
  const queue = yield* Queue.unbounded<Interrupt>()
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    const offer = () => void Queue.offerUnsafe(queue, signal)
    yield* Effect.acquireRelease(
      Effect.sync(() => process.on(signal, offer)),
      () => Effect.sync(() => process.off(signal, offer))
    )
  }
  // This stays: without a listener, a write after the end of the scope would end the process with a stack trace.
  Output.onReaderGone(() => void Queue.offerUnsafe(queue, "SIGPIPE"))
  return queue
})

/** Doesn't wait for whoever reads it; on a terminal there may be a `^C` on the line. */
const tell = (text: string) =>
  Effect.forkChild(
    Effect.andThen(Output.isTerminal("err") ? Output.write("err", "\n") : Effect.void, Output.note(text)),
    {
      startImmediately: true
    }
  )

/**
 * The first interrupt ends the fiber in order, with all its grace periods. The second kills the agents, which makes that
 * end short, or leaves those of somebody else alone and gives up waiting. The third does so too. A reader that went away counts only as a first one.
 */
export const guard = Effect.fnUntraced(function* (
  interrupts: Queue.Dequeue<Interrupt>,
  fiber: Fiber.Fiber<unknown, unknown>
) {
  const agents = yield* LiveAgents.LiveAgents
  const ending = yield* Ending
  const first = yield* Queue.take(interrupts)
  if (first === "SIGINT")
    yield* Effect.forkChild(Output.note(`${ending.verb} … press Ctrl-C again to ${ending.again}`), {
      startImmediately: true
    })
  fiber.interruptUnsafe()
  const again = Effect.repeat(Queue.take(interrupts), { until: (interrupt) => interrupt !== "SIGPIPE" })
  yield* again
  if (ending.again === "leave") process.exit(exitCode.cancelled)
  agents.kill()
  yield* tell("killed")
  yield* again
  agents.kill()
  process.exit(exitCode.cancelled)
})
