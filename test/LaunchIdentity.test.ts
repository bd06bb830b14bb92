import { assert, describe, it } from "@effect/vitest"
import { Address, AgentProfile, LaunchIdentity } from "acp-sidecar"
import { Prng } from "acp-sidecar/testing"
import * as WebCrypto from "effect/crypto/WebCrypto"
import * as Effect from "effect/Effect"
import { createHmac, webcrypto } from "node:crypto"
import { inspect } from "node:util"

const salt = "a salt of this test"
const vmId = Address.VmId.make("vm-1")

type Parts = Partial<Omit<LaunchIdentity.Request, "profile">> & Partial<AgentProfile.AgentProfile>

/** A launch of an agent that shares, with these parts of request and profile. */
const request = ({ cwd, env, sessionEnv, vmId: vm, ...profile }: Parts = {}): LaunchIdentity.Request => ({
  profile: AgentProfile.make({ name: "agent", command: ["agent", "--acp"], share: true, ...profile }),
  vmId: vm ?? vmId,
  cwd: cwd ?? "/work",
  env: env ?? { PATH: "/bin", HOME: "/home/me", A: "1" },
  ...(sessionEnv === undefined ? {} : { sessionEnv })
})

const identity = (parts: Parts = {}) => LaunchIdentity.make(request(parts), salt)
const explained = (a: Parts, b: Parts): string => LaunchIdentity.explain(identity(a), identity(b))

/** That they don't share, and the reasons. */
const reasons = (a: Parts, b: Parts): ReadonlyArray<string> => {
  assert.notStrictEqual(identity(a).key, identity(b).key)
  assert.isFalse(LaunchIdentity.equals(identity(a), identity(b)))
  assert.isFalse(LaunchIdentity.canShare(identity(a), identity(b)))
  const text = explained(a, b)
  assert.match(text, /^They don't share: .+\.$/)
  return text.slice("They don't share: ".length, -1).split("; ")
}

const assertShared = (a: Parts, b: Parts): void => {
  assert.strictEqual(identity(a).key, identity(b).key)
  assert.isTrue(LaunchIdentity.canShare(identity(a), identity(b)))
  assert.match(explained(a, b), /^They share one process: /)
}

const base = { PATH: "/bin", HOME: "/home/me" }
const inFolder = "the session's folder differs, from which the command, an argument or the profile folder is found"

describe("two sessions share a process", () => {
  it("H8, B72: not when one has another ANTHROPIC_AUTH_TOKEN, or none", () => {
    const token = (value?: string): Parts => ({
      env: { ...base, ...(value === undefined ? {} : { ANTHROPIC_AUTH_TOKEN: value }) }
    })
    for (const other of [token("two"), token(""), token()]) {
      assert.deepStrictEqual(reasons(token("one"), other), ["the environment differs in ANTHROPIC_AUTH_TOKEN"])
    }
    assertShared(token("one"), token("one"))
  })

  it("H1, B82: only when their profile says so, and of the built-in ones Hermes alone does", () => {
    assert.strictEqual(identity({ share: false }).key, identity({ share: false }).key)
    assert.isFalse(LaunchIdentity.canShare(identity({ share: false }), identity({ share: false })))
    assert.strictEqual(
      explained({ share: false }, { share: false }),
      "They don't share: each session of agent has a process of its own, since its profile says share: false."
    )
    assert.deepStrictEqual(reasons({ share: false }, {}), [
      "each session of agent has a process of its own, since its profile says share: false"
    ])
    for (const [name, profile] of Object.entries(AgentProfile.builtIn)) {
      const one = LaunchIdentity.make({ ...request(), profile }, salt)
      assert.strictEqual(LaunchIdentity.canShare(one, one), name === "hermes", name)
    }
  })

  it("H8: whatever the variables that name a session are, which a shared process doesn't get", () => {
    const with_ = (env: Record<string, string>): Parts => ({
      sessionEnv: ["APP_SESSION", "MINE"],
      env: { ...base, A: "1", ...env }
    })
    assertShared(with_({ APP_SESSION: "1", MINE: "1" }), with_({ APP_SESSION: "2" }))
    assertShared(with_({ APP_SESSION: "1" }), {})
    const own = { ...request({ env: { ...base, DECLARED: "1", MINE: "2", A: "3" } }), sessionEnv: ["MINE"] }
    const declaring = { ...own, profile: { ...own.profile, sessionEnv: ["DECLARED"] } }
    assert.strictEqual(
      LaunchIdentity.make(declaring, salt).key,
      LaunchIdentity.make({ ...declaring, env: { ...base, A: "3" } }, salt).key
    )
    assert.deepStrictEqual(LaunchIdentity.processEnv(declaring), { ...base, A: "3" })
    assert.deepStrictEqual(LaunchIdentity.processEnv(own), { ...base, DECLARED: "1", A: "3" })
    // A process of one session may know which.
    const alone = { ...declaring, profile: { ...declaring.profile, share: false as const } }
    assert.deepStrictEqual(LaunchIdentity.processEnv(alone), alone.env)
  })

  it("not when one keeps its profile elsewhere, even where a caller takes that for a variable of its session", () => {
    const at = (HOME: string, AGENT_HOME: string): Parts => ({
      homeEnv: ["AGENT_HOME"],
      env: { PATH: "/bin", HOME, AGENT_HOME }
    })
    assert.deepStrictEqual(reasons(at("/a", "/c"), at("/b", "/d")), [
      "the profile folder differs in AGENT_HOME and HOME"
    ])
    const names = ["HOME", "AGENT_HOME", "PATH"]
    const one = { ...request(at("/a", "/c")), sessionEnv: names }
    const other = { ...request(at("/a", "/d")), sessionEnv: names }
    assert.isFalse(LaunchIdentity.equals(LaunchIdentity.make(one, salt), LaunchIdentity.make(other, salt)))
    assert.deepStrictEqual(LaunchIdentity.processEnv(one), one.env)
  })

  it("not when agent, command or arguments differ, and each is named", () => {
    assert.deepStrictEqual(reasons({ name: "one" }, { name: "two" }), ["one is one, the other two"])
    assert.deepStrictEqual(reasons({ command: ["agent"] }, { command: ["agent2"], name: "agent" }), [
      "the command is another one"
    ])
    assert.deepStrictEqual(reasons({ command: ["agent", "a b"] }, { command: ["agent", "a", "b"] }), [
      "the command has other arguments"
    ])
    assert.deepStrictEqual(
      reasons(
        { name: "x", command: ["x", "1"], env: { PATH: "/bin", HOME: "/a", C: "1", A: "1" } },
        {
          name: "y",
          command: ["y", "2"],
          env: { PATH: "/bin", HOME: "/b", B: "1", A: "2" },
          share: AgentProfile.sharing({ scope: "team" })
        }
      ),
      [
        "one is x, the other y",
        "one process serves the sessions of their Vm, the other the Vms of their group",
        "the command is another one",
        "the command has other arguments",
        "the profile folder differs in HOME",
        "the environment differs in A, B and C"
      ]
    )
  })

  it("in one Vm, in all Vms or in those of a group, as the scope of their profile says", () => {
    const other = Address.VmId.make("vm-2")
    const scoped = (scope: string, vm = vmId): Parts => ({ vmId: vm, share: AgentProfile.sharing({ scope }) })
    assertShared(scoped("vm"), scoped("vm"))
    assert.deepStrictEqual(reasons(scoped("vm"), scoped("vm", other)), ["they are in different Vms"])
    assertShared(scoped("sidecar"), scoped("sidecar", other))
    assertShared(scoped("team"), scoped("team", other))
    assert.deepStrictEqual(reasons(scoped("team"), scoped("group")), ["they are in different groups"])
    assert.deepStrictEqual(reasons(scoped("sidecar"), scoped("team")), [
      "one process serves all Vms of the sidecar, the other the Vms of their group"
    ])
    // A group may have the name of a Vm.
    assert.notStrictEqual(identity(scoped(vmId)).key, identity(scoped("vm")).key)
    assert.deepStrictEqual(
      [scoped("vm"), scoped("sidecar"), scoped("team"), { share: false as const }].map(
        (parts) => identity(parts).reach
      ),
      ["vm", "sidecar", "group", "none"]
    )
    assert.include(explained(scoped("vm"), scoped("vm")), "the sessions of their Vm")
    assert.include(explained(scoped("sidecar"), scoped("sidecar")), "all Vms of the sidecar")
    assert.include(explained(scoped("team"), scoped("team")), "the Vms of their group")
  })

  it("whatever their limits are: only the scope tells who is together", () => {
    const share = AgentProfile.sharing({ maxSessions: 2, whenFull: "refuse", idleTime: "1 minute" })
    assertShared({ share }, {})
  })

  it("in whichever folders they work, unless something of the launch is found from there", () => {
    const both = (parts: Parts, a = "/work/a", b = "/work/b") =>
      [
        { ...parts, cwd: a },
        { ...parts, cwd: b }
      ] as const
    for (const command of [["agent"], ["/bin/agent", "a/b"], ["node", "--no-warnings", "/a.mjs", "x"]] as const) {
      assertShared(...both({ command, name: "x" }))
    }
    const found: ReadonlyArray<Parts> = [
      { command: ["./agent"] },
      { command: ["bin/agent"] },
      { command: ["../agent"] },
      { command: ["node", "agent.mjs"] },
      { command: ["/usr/bin/python3", "-u", "agent.py"] },
      { command: ["agent", "./settings.json"] },
      { command: ["agent", ".."] },
      { env: { ...base, PATH: "/bin:node_modules/.bin" } },
      { env: { ...base, PATH: "/bin:" } },
      { env: { ...base, HOME: "home" } },
      { homeEnv: ["AGENT_HOME"], env: { ...base, AGENT_HOME: "./agent" } }
    ]
    for (const parts of found) {
      assert.deepStrictEqual(reasons(...both(parts)), [inFolder])
      assertShared(...both(parts, "/work", "/work"))
    }
    // An absolute command is not looked for.
    assertShared(...both({ command: ["/bin/agent"], env: { ...base, PATH: "x" } }))
    const variable = (value: string): Parts => ({ command: ["./agent"], env: { ...base, A: value } })
    assert.deepStrictEqual(reasons({ ...variable("1"), cwd: "/a" }, { ...variable("2"), cwd: "/b" }), [
      "the environment differs in A",
      inFolder
    ])
    // Where only one of them depends on it, the reason is what makes it do so.
    assert.deepStrictEqual(reasons({ command: ["agent", "./x"] }, { command: ["agent"], cwd: "/b" }), [
      "the command has other arguments"
    ])
  })

  it("after a rebuild of the same profile and settings, in whatever order", () => {
    const rebuilt = structuredClone(request())
    assert.strictEqual(LaunchIdentity.make(rebuilt, salt).key, identity().key)
    assertShared(
      { env: { PATH: "/bin", A: "1", HOME: "/home/me" } },
      { env: { HOME: "/home/me", PATH: "/bin", A: "1" } }
    )
    assertShared({ quirks: ["one"], install: "x", shares: "y" }, {})
  })

  it("not when much differs; the first variables are then named, and no name is long or breaks the line", () => {
    const many = Object.fromEntries(Array.from({ length: 30 }, (_, i) => [`V${String(i).padStart(2, "0")}`, "x"]))
    assert.deepStrictEqual(reasons({ env: { ...base, ...many } }, { env: base }), [
      "the environment differs in V00, V01, V02, V03, V04, V05, V06, V07 and 22 more"
    ])
    const odd = explained({ name: "a\u001b[2J\nb", env: { [`N${"n".repeat(10_000)}`]: "" } }, { env: { "a, b": "" } })
    assert.isBelow(odd.length, 400)
    assert.isTrue([...odd].every((character) => character >= " "))
    assert.include(odd, '"a, b"')
  })
})

describe("the key", () => {
  it("is an HMAC under the salt: the same for the same salt, and unrelated for another one", () => {
    const digest = (key: string | Uint8Array, ...texts: ReadonlyArray<string>) =>
      createHmac("md5", key).update(JSON.stringify(texts)).digest("hex")
    for (const key of ["", "short", "x".repeat(64), "long ".repeat(50), new Uint8Array(32).fill(200)]) {
      const { parts } = LaunchIdentity.make(request({ env: { A: "värde" } }), key)
      assert.strictEqual(parts.command, digest(key, "command", "agent"))
      assert.strictEqual(parts.env.get("A"), digest(key, "env", "A", "värde"))
    }
    const other = LaunchIdentity.make(request(), "another salt")
    assert.match(other.key, /^[0-9a-f]{32}$/)
    assert.notStrictEqual(other.key, identity().key)
    assert.strictEqual(LaunchIdentity.short(other), other.key.slice(0, 12))
  })

  it.effect("has a salt of 32 random bytes, which come from Effect's WebCrypto", () =>
    Effect.gen(function* () {
      const one = yield* LaunchIdentity.salt
      const two = yield* LaunchIdentity.salt
      assert.lengthOf(one, 32)
      assert.notDeepEqual(one, two)
      const fixed = { ...webcrypto, getRandomValues: (bytes: Uint8Array) => bytes.fill(7) }
      const given = yield* Effect.provideService(LaunchIdentity.salt, WebCrypto.WebCrypto, fixed)
      assert.deepStrictEqual(given, new Uint8Array(32).fill(7))
    })
  )

  it("takes no two texts for one: blanks, separators, quotes and halves of characters are where they are", () => {
    const pairs: ReadonlyArray<readonly [Parts, Parts]> = [
      [{ command: ["x", "a b"] }, { command: ["x", "a", "b"] }],
      [{ command: ["x", 'a","b'] }, { command: ["x", "a", "b"] }],
      [{ command: ["x", ""] }, { command: ["x"] }],
      [{ command: ["x", "y"] }, { command: ["xy"] }],
      [{ command: ["x", "a\0b"] }, { command: ["x", "a", "b"] }],
      [{ command: ["x", "\ud800"] }, { command: ["x", "\ud801"] }],
      [{ command: ["x", "\ud800"] }, { command: ["x", "\ufffd"] }],
      [{ command: ["x", "é"] }, { command: ["x", "e\u0301"] }],
      [{ env: { A: "B=C" } }, { env: { "A=B": "C" } }],
      [{ env: { A: "1\nB=2" } }, { env: { A: "1", B: "2" } }],
      [{ env: { A: "1", B: "2" } }, { env: { A: "2", B: "1" } }],
      [{ env: { AB: "" } }, { env: { A: "B" } }],
      [{ env: { a: "" } }, { env: { A: "" } }],
      [{ env: { A: "" } }, { env: {} }],
      [{ env: JSON.parse('{"__proto__":"1"}') }, { env: {} }],
      // The same variable as a folder of the profile and as any other one.
      [{ homeEnv: ["A"], env: { A: "/1" } }, { env: { A: "/1" } }]
    ]
    for (const [a, b] of pairs) assert.isAbove(reasons({ name: "x", ...a }, { name: "x", ...b }).length, 0)
  })

  it("is the same exactly for the same content, over a thousand random launches and single changes of them", () => {
    const prng = Prng.make("launch identity")
    const letters = ["", "a", "b", " ", "=", '"', "\n", "\0", "ü", "/", ".", "\ud800"]
    const text = () => Array.from({ length: prng.int(4) }, () => prng.pick(letters)).join("")
    const someEnv = () => Object.fromEntries(Array.from({ length: prng.int(5) }, () => [`V${text()}`, text()]))
    const some = () => ({
      name: `n${text()}`,
      command: [`/c${text()}`, ...Array.from({ length: prng.int(3) }, () => `-${text()}`)] as const,
      env: { HOME: `/h${text()}`, PATH: "/bin", ...someEnv() } as Record<string, string>,
      scope: prng.pick(["vm", "sidecar", "x", "y"]),
      vmId: Address.VmId.make(prng.pick(["1", "2"]))
    })
    type Launch = ReturnType<typeof some>
    const parts = ({ scope, ...rest }: Launch): Parts => ({ ...rest, share: AgentProfile.sharing({ scope }) })
    /** What the identity should be made of, in a form that is not hashed. */
    const content = ({ command, env, name, scope, vmId: vm }: Launch) =>
      inspect([name, command, Object.entries(env).sort(), scope, scope === "vm" ? vm : ""], {
        depth: 9,
        maxStringLength: null
      })
    const keys = new Map<string, string>()
    for (let i = 0; i < 1000; i++) {
      const one = some()
      const fresh = some()
      const variable = prng.pick(Object.keys(one.env))
      const changed = prng.pick<Launch>([
        { ...one, name: fresh.name },
        { ...one, command: fresh.command },
        { ...one, env: { ...one.env, [variable]: `${one.env[variable]}${text()}` } },
        { ...one, env: { ...one.env, ...someEnv() } },
        { ...one, scope: fresh.scope },
        { ...one, vmId: fresh.vmId },
        { ...one, env: Object.fromEntries(Object.entries(one.env).reverse()) }
      ])
      const isSame = content(one) === content(changed)
      assert.strictEqual(identity(parts(one)).key === identity(parts(changed)).key, isSame, inspect([one, changed]))
      assert.strictEqual(explained(parts(one), parts(changed)).startsWith("They share"), isSame)
      for (const launch of [one, changed]) {
        const { key } = identity(parts(launch))
        assert.strictEqual(keys.get(key) ?? content(launch), content(launch))
        keys.set(key, content(launch))
      }
    }
    assert.strictEqual(new Set(keys.values()).size, keys.size)
    assert.isAbove(keys.size, 1000)
  })
})

describe("secrets", () => {
  it("S4: no value, argument, path or group is in an identity or in what explains it, and equal values don't show", () => {
    const sentinel = "s3ntinel"
    const parts = (n: number): Parts => ({
      command: [`/opt/${sentinel}-command-${n}`, `--api-key=${sentinel}-argument-${n}`, "./here"],
      homeEnv: ["AGENT_HOME"],
      share: AgentProfile.sharing({ scope: `${sentinel}-group-${n}` }),
      cwd: `/${sentinel}-folder-${n}`,
      vmId: Address.VmId.make(`${sentinel}-vm-${n}`),
      sessionEnv: ["SESSION"],
      env: {
        HOME: `/${sentinel}-home-${n}`,
        AGENT_HOME: `/${sentinel}-profile-${n}`,
        ONE_TOKEN: `${sentinel}-token-${n}`,
        OTHER_TOKEN: `${sentinel}-token-${n}`,
        SESSION: `${sentinel}-session-${n}`
      }
    })
    const [one, two] = [identity(parts(1)), identity(parts(2))]
    const shown = [one, two].flatMap((each) => [
      JSON.stringify(each),
      String(each),
      inspect(each, { depth: 9, showHidden: true }),
      LaunchIdentity.short(each)
    ])
    shown.push(LaunchIdentity.explain(one, two), LaunchIdentity.explain(one, one))
    for (const text of shown) {
      assert.notInclude(text, sentinel)
      assert.notInclude(text, Buffer.from(sentinel).toString("hex"))
      assert.notInclude(text, Buffer.from(sentinel).toString("base64").slice(0, 8))
    }
    const digests = [...one.parts.env.values(), ...one.parts.home.values()]
    assert.lengthOf(new Set(digests), digests.length)
    assert.lengthOf(digests, 4)
  })
})

describe("the problem with a profile", () => {
  const problem = (profile: unknown, sessionEnv?: ReadonlyArray<string>) =>
    LaunchIdentity.problem({
      profile: { ...request().profile, ...(profile as object) },
      ...(sessionEnv === undefined ? {} : { sessionEnv })
    })
  const sharing = (share: object) => problem({ share: { ...AgentProfile.sharing(), ...share } })

  it("is none with what make and sharing give", () => {
    for (const profile of [...Object.values(AgentProfile.builtIn), request().profile]) {
      assert.isUndefined(LaunchIdentity.problem({ profile }))
    }
    assert.isUndefined(problem({ sessionEnv: ["A"] }, ["B"]))
    assert.isUndefined(sharing({ scope: "team", maxSessions: 1, whenFull: "refuse", idleTime: "0 seconds" }))
    assert.isUndefined(sharing({ idleTime: "10s" }))
  })

  it("is said in words that tell what to write", () => {
    for (const share of [undefined, null, true, "vm"]) assert.include(problem({ share }), "share must be false, or")
    for (const scope of ["", undefined, 1]) assert.include(sharing({ scope }), "share.scope must be")
    for (const maxSessions of [0, -1, 1.5, Number.NaN, Infinity, "2", undefined]) {
      assert.include(sharing({ maxSessions }), "share.maxSessions must be a whole number")
    }
    for (const whenFull of ["", undefined, "wait"]) assert.include(sharing({ whenFull }), "share.whenFull must be")
    for (const idleTime of ["soon", -1, Number.NaN, undefined]) {
      assert.include(sharing({ idleTime }), "share.idleTime must be a time")
    }
  })

  it("is a variable of a session by which the agent or its profile is found, also one of the caller", () => {
    assert.strictEqual(
      problem({ sessionEnv: ["A", "PATH"], homeEnv: ["AGENT_HOME"] }, ["HOME", "AGENT_HOME", "B"]),
      "sessionEnv can't have PATH, HOME and AGENT_HOME, by which the agent or its profile is found"
    )
    assert.isUndefined(problem({ share: false, sessionEnv: ["PATH"] }))
  })
})
