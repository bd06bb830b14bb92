// Where the sidecars of the demo run: in this process, or each in one of its own.
import * as NodeServices from "@effect/platform-node/NodeServices"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import * as Sidecar from "../Sidecar.ts"
import * as SidecarLimits from "../SidecarLimits.ts"
import * as Children from "./children.ts"
import { CommandFailure, failed, fromError } from "./failure.ts"
import type * as LiveAgents from "./LiveAgents.ts"
import { layerLauncher } from "./sidecar.ts"
import { withTelemetry } from "./telemetry.ts"

export type Where = "embedded" | "process"

type Services = ReadonlyArray<Sidecar.Sidecar["Service"]>

/** Each time another one. */
const embedded = Effect.map(Layer.build(Layer.fresh(Sidecar.layerLauncher)), Context.get(Sidecar.Sidecar))

const asFailure = (error: { readonly _tag: string; readonly message: string }): CommandFailure =>
  error instanceof CommandFailure ? error : fromError(error)

/** Runs a command's work with so many sidecars, and gives all of it back before it ends. */
export const withSidecars = <A>(
  where: Where,
  count: number,
  work: (sidecars: Services) => Effect.Effect<A, CommandFailure, Scope.Scope>
): Effect.Effect<A, CommandFailure, LiveAgents.LiveAgents> => {
  const all = <E, R>(one: Effect.Effect<Sidecar.Sidecar["Service"], E, R>) =>
    Effect.scoped(
      Effect.flatMap(
        Effect.all(
          Array.from({ length: count }, () => one),
          { concurrency: "unbounded" }
        ),
        work
      )
    )
  const running =
    where === "process"
      ? // Loaded when it is needed: it brings all that a connection needs.
        Effect.flatMap(
          Effect.promise(() => import("./demoProcess.ts")),
          ({ layer, sidecar }) => Effect.provide(all(sidecar), layer)
        )
      : all(embedded).pipe(
          Effect.provide(Layer.provideMerge(layerLauncher, SidecarLimits.layerFromEnv)),
          Effect.provide(NodeServices.layer)
        )
  return withTelemetry(Effect.mapError(running, asFailure))
}

/**
 * The processes that the sidecars of these agents run in, as the operating system has it; `null` where it does not tell.
 * It fails when they are not where they should be.
 */
export const pidsOf = (
  where: Where,
  agents: ReadonlyArray<number | null | undefined>
): Effect.Effect<ReadonlyArray<number> | null, CommandFailure> =>
  Effect.suspend(() => {
    const parents = Children.parentsOf(agents)
    if (parents === null) return Effect.succeed(null)
    const isHere = parents.every((pid) => pid === process.pid)
    const isElsewhere = parents.every((pid) => pid !== process.pid)
    return (where === "embedded" ? isHere : isElsewhere)
      ? Effect.succeed(parents)
      : Effect.fail(failed(`The agents are no children of a sidecar that is ${told(where, null, 1)}.`))
  })

/** Where they run, for people. */
export const told = (where: Where, pids: ReadonlyArray<number> | null, count: number): string => {
  const what = count === 1 ? "sidecar" : "sidecars"
  if (where === "embedded") return `${what} embedded`
  const [one, many] =
    count === 1 ? ["in a process of its own", "in process"] : ["in processes of their own", "in processes"]
  return pids === null ? `${what} ${one}` : `${what} ${many} ${pids.join(", ")}`
}
