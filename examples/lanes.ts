// Background work that can't get in the way of people.
import { AgentProfile, Sidecar } from "acp-sidecar"
import * as Effect from "effect/Effect"

/** Summarises all folders in the background, while a person keeps asking in the foreground. */
export const program = (agent: AgentProfile.AgentProfile, folders: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    const sidecar = yield* Sidecar.Sidecar
    const vm = yield* sidecar.openVm({ root: "/", limits: { maxPromptsPerVm: 8 } })

    const summaries = Effect.forEach(
      folders,
      (cwd) =>
        Effect.gen(function* () {
          const session = yield* vm.openSession({ agent, cwd })
          return yield* session.prompt("Summarise this folder.", { lane: "background" })
        }).pipe(Effect.scoped),
      { concurrency: "unbounded" }
    )
    // One of the 8 permits is kept for this lane, so it starts at once, however many folders there are.
    const question = Effect.gen(function* () {
      const session = yield* vm.openSession({ agent })
      return yield* session.prompt("Which of these folders is the oldest?")
    }).pipe(Effect.scoped)

    return yield* Effect.all([summaries, question], { concurrency: "unbounded" })
  }).pipe(Effect.scoped)
