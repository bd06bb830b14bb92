import { assert, describe, it } from "@effect/vitest"
import { AgentLauncher, AgentProfile, Sidecar } from "acp-sidecar"
import { TestSidecar } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import { provided } from "./support/events.ts"

const host = {
  PATH: "/bin",
  HOME: "/home/me",
  LC_ALL: "C",
  XDG_CONFIG_HOME: "/config",
  AWS_SECRET_ACCESS_KEY: "host secret",
  ANTHROPIC_API_KEY: "key of the host",
  NODE_OPTIONS: "--inspect",
  LD_PRELOAD: "evil.so",
  UNSET: undefined
}

describe("the environment of an agent", () => {
  it("H8, B73: of the host's it has the basic variables and those that its profile names, and nothing else", () => {
    const profile = AgentProfile.make({ command: ["x"], passEnv: ["ANTHROPIC_API_KEY", "NOT_SET", "UNSET"] })
    assert.deepStrictEqual(AgentProfile.environment(profile, host), {
      PATH: "/bin",
      HOME: "/home/me",
      LC_ALL: "C",
      XDG_CONFIG_HOME: "/config",
      ANTHROPIC_API_KEY: "key of the host"
    })
  })

  it("H8: what is closer to the session wins: host, profile, then each overlay", () => {
    const profile = AgentProfile.make({ command: ["x"], passEnv: ["A"], env: { B: "profile", C: "profile" } })
    const env = AgentProfile.environment(
      profile,
      { A: "host", B: "host", PATH: "/bin" },
      { C: "vm", D: "vm", PATH: "/vm/bin" },
      undefined,
      { D: "session" }
    )
    assert.deepStrictEqual(env, { A: "host", B: "profile", C: "vm", D: "session", PATH: "/vm/bin" })
  })

  it.effect("H8, B73: that is what reaches the launch, overlays of Vm and session included", () =>
    Effect.gen(function* () {
      const sidecar = yield* Sidecar.Sidecar
      const vm = yield* sidecar.openVm({ root: "/work", env: { A: "vm", B: "vm" } })
      const agent = AgentProfile.make({ name: "x", command: ["x"], env: { A: "profile", C: "profile" } })
      yield* vm.openSession({ agent, env: { B: "session" } })
      yield* vm.openSession({ agent })
      const { launches } = yield* TestSidecar.TestSidecar
      const basic = { PATH: "/bin", HOME: "/home/me", LC_ALL: "C", XDG_CONFIG_HOME: "/config" }
      assert.deepStrictEqual(
        launches().map((launch) => launch.env),
        [
          { ...basic, A: "vm", B: "session", C: "profile" },
          { ...basic, A: "vm", B: "vm", C: "profile" }
        ]
      )
    }).pipe(
      provided(TestSidecar.layer()),
      Effect.provideService(AgentLauncher.HostEnvironment, () => host)
    )
  )

  it.effect("B72: two sessions with different tokens have processes of their own, each with its own", () =>
    Effect.gen(function* () {
      const { vm } = yield* TestSidecar.open({ env: { ANTHROPIC_AUTH_TOKEN: "one" } })
      yield* TestSidecar.open({ vm, env: { ANTHROPIC_AUTH_TOKEN: "two" } })
      const { alive, launches } = yield* TestSidecar.TestSidecar
      assert.strictEqual(alive(), 2)
      assert.deepStrictEqual(
        launches().map((launch) => launch.env["ANTHROPIC_AUTH_TOKEN"]),
        ["one", "two"]
      )
    }).pipe(provided(TestSidecar.layer()))
  )
})

describe("profiles", () => {
  it("for any command have careful defaults and the name of its last path segment", () => {
    assert.deepStrictEqual(AgentProfile.make({ command: ["/opt/my agent/bin/agent", "--acp", "a b"] }), {
      name: "agent",
      command: ["/opt/my agent/bin/agent", "--acp", "a b"],
      env: {},
      passEnv: [],
      sessionEnv: [],
      homeEnv: [],
      share: false,
      shares: "",
      whileBusy: "unknown",
      needsAuthentication: false,
      provider: "agent",
      install: "",
      signIn: "",
      quirks: []
    })
    assert.strictEqual(AgentProfile.make({ command: ["C:\\agents\\a.cmd"] }).name, "a.cmd")
    assert.strictEqual(
      AgentProfile.make({ command: ["/usr/bin/node", "--no-warnings", "/a/agent.mjs"] }).name,
      "agent.mjs"
    )
    assert.strictEqual(AgentProfile.make({ command: ["npx", "-y", "@scope/agent"] }).name, "agent")
    assert.strictEqual(AgentProfile.make({ command: ["node"] }).name, "node")
  })

  it("the built-in ones are named as they are listed, know how they are installed, and share no process but Hermes", () => {
    const all = Object.entries(AgentProfile.builtIn)
    assert.deepStrictEqual(Object.keys(AgentProfile.builtIn), [
      "claude",
      "codex",
      "gemini",
      "copilot",
      "opencode",
      "qwen",
      "pi",
      "hermes"
    ])
    for (const [name, profile] of all) {
      assert.strictEqual(profile.name, name)
      assert.notStrictEqual(profile.install, "")
      assert.isAbove(profile.quirks.length, 0)
      assert.notStrictEqual(profile.shares, "")
      assert.deepStrictEqual(profile.share, name === "hermes" ? AgentProfile.sharing({ scope: "sidecar" }) : false)
      for (const variable of profile.homeEnv) assert.include(profile.passEnv, variable)
    }
  })

  it("share with defaults for all that is left out, and only when they are told to", () => {
    const share = (share?: Parameters<typeof AgentProfile.make>[0]["share"]) =>
      AgentProfile.make({ command: ["x"], share }).share
    const defaults: AgentProfile.Sharing = { scope: "vm", maxSessions: null, whenFull: "another", idleTime: null }
    for (const off of [undefined, false] as const) assert.isFalse(share(off))
    for (const on of [true, {}, { scope: undefined }] as const) assert.deepStrictEqual(share(on), defaults)
    assert.deepStrictEqual(AgentProfile.sharing(), defaults)
    assert.deepStrictEqual(share({ scope: "team", maxSessions: 3, whenFull: "refuse", idleTime: "5 minutes" }), {
      scope: "team",
      maxSessions: 3,
      whenFull: "refuse",
      idleTime: "5 minutes"
    })
    const derived = AgentProfile.make({ ...AgentProfile.hermes, name: "mine" })
    assert.deepStrictEqual(derived.share, AgentProfile.hermes.share)
  })

  it("a profile is a value to derive others from", () => {
    const mine = AgentProfile.make({ ...AgentProfile.claude, name: "mine", env: { A: "1" } })
    assert.deepStrictEqual(mine.command, AgentProfile.claude.command)
    assert.deepStrictEqual([mine.name, mine.env], ["mine", { A: "1" }])
  })
})
