// The sidecar inside an app that has services, limits and a policy of its own.
import { AgentProfile, Permission, Sidecar, SidecarError, SidecarLimits } from "acp-sidecar"
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"

/** A service of the app: who may do what. */
export class Rules extends Context.Service<Rules, { readonly mayRun: (title: string) => Effect.Effect<boolean> }>()(
  "app/Rules"
) {}

export class Reviewer extends Context.Service<
  Reviewer,
  { readonly review: (folder: string) => Effect.Effect<string, ReviewFailed> }
>()("app/Reviewer") {
  static readonly layer = (agent: AgentProfile.AgentProfile) =>
    Layer.effect(
      Reviewer,
      Effect.gen(function* () {
        const sidecar = yield* Sidecar.Sidecar
        const rules = yield* Rules
        const permission: Permission.Policy = (question) =>
          Effect.map(rules.mayRun(question.toolCall.title ?? ""), (allowed) => (allowed ? "allow" : "reject"))

        const review = Effect.fn("Reviewer.review")(
          function* (folder: string) {
            const vm = yield* sidecar.openVm({ root: folder })
            const session = yield* vm.openSession({ agent, permission })
            const end = yield* session.prompt("Review the last commit.", { wallTimeout: "10 minutes" })
            return end._tag === "Completed" ? end.stopReason : "cancelled"
          },
          Effect.scoped,
          Effect.mapError((reason) => new ReviewFailed({ reason }))
        )
        return Reviewer.of({ review })
      })
    )
}

export class ReviewFailed extends Data.TaggedError("ReviewFailed")<{ readonly reason: Error }> {
  /** Whether it is worth trying again later. */
  get isBusy(): boolean {
    return this.reason instanceof SidecarError.LimitExceeded
  }
}

/** What the app provides: its rules, and a platform such as `NodeServices.layer`. */
export const layer = Reviewer.layer(AgentProfile.claude).pipe(
  Layer.provide(Sidecar.layer),
  Layer.provide(SidecarLimits.layer({ maxPromptsPerVm: 4, cancelGrace: "5 seconds" }))
)
