// Ten conversations in one agent process, and words for why another one would not join them.
import { AgentProfile, LaunchIdentity, Sidecar } from "acp-sidecar"
import * as Effect from "effect/Effect"

export const program = (command: AgentProfile.AgentProfile["command"], questions: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    const agent = AgentProfile.make({ command, share: { maxSessions: 10, idleTime: "30 seconds" } })
    const sidecar = yield* Sidecar.Sidecar
    const vm = yield* sidecar.openVm({ root: "/work" })
    const ask = (question: string, index: number) =>
      Effect.gen(function* () {
        // A variable that names one session makes no difference; the shared process doesn't get it.
        const session = yield* vm.openSession({ agent, env: { CHAT: `${index}` }, sessionEnv: ["CHAT"] })
        return yield* session.prompt(question)
      })
    const ends = yield* Effect.forEach(questions, ask, { concurrency: "unbounded" })
    const { hosts } = yield* sidecar.describe

    const salt = yield* LaunchIdentity.salt
    const launch = (env: Readonly<Record<string, string>>) =>
      LaunchIdentity.make({ profile: agent, vmId: vm.id, cwd: vm.root, env }, salt)
    // "They don't share: the environment differs in TEAM_KEY."
    const why = LaunchIdentity.explain(launch({ TEAM_KEY: "ours" }), launch({ TEAM_KEY: "theirs" }))
    return { ends, hosts, why }
  }).pipe(Effect.scoped)
