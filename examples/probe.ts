// What an agent offers, for a model picker. However many ask at once, it is asked once.
import { type AgentProfile, Sidecar } from "acp-sidecar"
import * as Effect from "effect/Effect"

/** The models of an agent, or what its user has to do first. */
export const program = (agent: AgentProfile.AgentProfile, root: string) =>
  Effect.gen(function* () {
    const sidecar = yield* Sidecar.Sidecar
    const vm = yield* sidecar.openVm({ root })
    const { diagnosis, models } = yield* vm.probe({ agent, timeout: "10 seconds" })
    if (diagnosis.signInNeeded === true) return [`sign in first: ${agent.signIn}`]
    return (models?.available ?? []).map(({ id, name }) => (id === models?.current ? `* ${name}` : `  ${name}`))
  }).pipe(Effect.scoped)
