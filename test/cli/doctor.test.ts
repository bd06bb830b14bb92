import { assert, describe, it } from "@effect/vitest"
import * as AgentProfile from "../../src/AgentProfile.ts"
import { bundled, profiles } from "../../src/cli/agents.ts"
import * as AgentsTable from "../../src/cli/agentsTable.ts"
import * as Diagnosis from "../../src/cli/diagnosis.ts"
import * as Report from "../../src/cli/report.ts"
import { cleaned, namedArguments } from "../../src/cli/secrets.ts"
import * as Tap from "../../src/cli/tap.ts"
import * as AcpTransport from "../../src/acp/AcpTransport.ts"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"

describe("the table of agents", () => {
  const missing = profiles.map((profile) => ({ profile, path: null, version: null, package: null }))
  const here = profiles.map((profile) => ({
    profile,
    path: `/home/somebody/with/a/long/name/.local/share/node/bin/${profile.command[0]}`,
    version: "10.20.30-beta.4",
    package: null
  }))

  it("fits 80 columns, where only paths may be wider", () => {
    for (const line of AgentsTable.lines(missing, { width: 80, isColored: false })) assert.isAtMost(line.length, 80)
    const lines = AgentsTable.lines(here, { width: 80, isColored: false })
    for (const line of lines) assert.isTrue(line.length <= 80 || line.startsWith("    /home"), line)
  })

  it("has a line an agent without a terminal, and no colours", () => {
    const lines = AgentsTable.lines([...here.slice(0, 2), ...missing.slice(2)], { width: Infinity, isColored: false })
    const end = lines.indexOf("Where sessions share one process, they share:")
    for (const { name } of profiles)
      assert.lengthOf(
        lines.slice(0, end).filter((line) => line.startsWith(`  ${name} `)),
        1
      )
    assert.notInclude(lines.join(""), "\u001b")
    assert.include(AgentsTable.lines(here, { width: 80, isColored: true }).join(""), "\u001b[1m")
  })

  it("says of those that are here what their sessions share in one process", () => {
    const lines = AgentsTable.lines([...here.slice(0, 2), ...missing.slice(2)], { width: Infinity, isColored: false })
    const start = lines.indexOf("Where sessions share one process, they share:")
    assert.deepStrictEqual(
      lines.slice(start + 1, -2).map((line) => line.trim().replace(/ +/, ": ")),
      profiles.slice(0, 2).map(({ name, shares }) => `${name}: ${shares}`)
    )
    const none = AgentsTable.lines(missing, { width: 80, isColored: false }).join("\n")
    assert.notInclude(none, "share")
    const { agents } = AgentsTable.json(here)
    assert.deepStrictEqual(
      agents.map(({ share, shares }) => ({ share, shares })),
      profiles.map(({ share, shares }) => ({ share, shares }))
    )
  })

  it("can't move the cursor", () => {
    const [first = ""] = AgentsTable.lines([{ ...here[1]!, path: "/bin/\u001b[2Jx" }], { width: 200, isColored: false })
    assert.notInclude(first, "\u001b")
  })
})

describe("the report of doctor", () => {
  it("breaks lines at blanks, under their label", () => {
    const lines = Report.labelled("can do", "one two three four five six", 30)
    assert.deepStrictEqual(lines, [
      "  can do          one two",
      "                  three four",
      "                  five six"
    ])
    const long = "x".repeat(100)
    assert.deepStrictEqual(Report.labelled("path", long, 30), [`  path            ${long}`])
  })

  it("says in words what an agent can do", () => {
    assert.strictEqual(Report.capabilities(undefined), "sessions: new ones only; prompts with text; MCP over stdio")
    assert.strictEqual(
      Report.capabilities({
        loadSession: true,
        promptCapabilities: { image: true, audio: false, embeddedContext: true },
        mcpCapabilities: { http: true, sse: false },
        sessionCapabilities: { close: {}, list: null, _meta: {} },
        auth: { logout: {} },
        brandNew: {},
        _meta: { x: 1 }
      }),
      "sessions: new, load, close; prompts with text, images, resources; MCP over stdio, http; also logout, brandNew"
    )
    for (const odd of [1, "x", null, [], { sessionCapabilities: 7, promptCapabilities: ["x"] }])
      Report.capabilities(odd)
  })

  it("lists modes, models and options, with the current one marked", () => {
    const session = {
      sessionId: "x",
      modes: {
        currentModeId: "b",
        availableModes: [
          { id: "a", name: "A" },
          { id: "b", name: "B" }
        ]
      },
      models: { currentModelId: "m", availableModels: [{ modelId: "m" }] },
      configOptions: [
        { id: "effort", type: "select", currentValue: "low", options: [{ value: "low" }, { value: "high" }] },
        { id: "model", type: "select", currentValue: "y", options: [{ group: "g", options: [{ value: "y" }] }] },
        { id: "fast", type: "boolean", currentValue: true },
        7
      ]
    } as never
    assert.deepStrictEqual(Report.offers(session), [
      ["modes", "a, b (current)"],
      ["models", "m (current)"],
      ["option", "effort: low (current), high"],
      ["option", "model: y (current)"],
      ["option", "fast: true"]
    ])
    assert.deepStrictEqual(Report.offers({ sessionId: "x", modes: 7, configOptions: {} } as never), [])
  })

  it("shows the last lines of stderr, unable to move the cursor", () => {
    const lines = Report.stderrLines(
      `${Array.from({ length: 20 }, (_, index) => `line ${index}`).join("\n")}\n\u001b[2J\n`
    )
    assert.lengthOf(lines, 9)
    assert.strictEqual(lines[0], "… 13 lines before")
    assert.notInclude(lines.join(""), "\u001b")
  })

  it("ends with a verdict", () => {
    const base = { agent: "x", exitCode: 0, problem: null, prompt: null } as const
    assert.match(Report.verdict(base), /^x: works \(.*--prompt/)
    const prompt = { stopReason: "end_turn", text: "", firstUpdateMillis: 1, updates: 1, permissionsRejected: 0 }
    assert.strictEqual(Report.verdict({ ...base, prompt }), "x: works")
    const problem = { what: "it sleeps", advice: "wake it" }
    assert.strictEqual(Report.verdict({ ...base, exitCode: 1, problem }), "x: does not work: it sleeps; wake it")
  })
})

describe("the ways to sign in", () => {
  const terminal = { id: "t", name: "T", type: "terminal", args: ["--login"] } as never
  const wire = { id: "w", name: "W" } as never

  it("name the agent's own command, and only methods that may be sent", () => {
    const profile = AgentProfile.make({ command: ["my-agent", "acp"] })
    assert.strictEqual(Diagnosis.signIn({ profile, authMethods: [] }), "sign in with the agent's own command")
    assert.strictEqual(Diagnosis.signIn({ profile, authMethods: [terminal] }), "run my-agent acp --login")
    assert.strictEqual(
      Diagnosis.signIn({ profile, authMethods: [terminal, wire] }),
      "run my-agent acp --login, or let it do so by --authenticate METHOD (w)"
    )
    assert.match(Diagnosis.signIn({ profile: AgentProfile.copilot, authMethods: [] }), /^run copilot login$/)
  })

  it("are known for each built-in agent that was measured", () => {
    for (const { name, needsAuthentication, signIn } of profiles)
      if (needsAuthentication && name !== "hermes") assert.isNotEmpty(signIn, name)
    assert.isFalse(bundled.needsAuthentication)
  })
})

describe("secrets", () => {
  it("of the command line are found by the name in front of them", () => {
    const words = ["a", "--api-key", "one", "--token=two", "--fast", "--x=", "-k", "three", "--api-key", "four"]
    assert.deepStrictEqual(namedArguments(words), [
      { "--api-key": "one" },
      { "--token": "two" },
      { "--x": "" },
      { "-k": "three" },
      { "--api-key": "four" }
    ])
    const found = (word: string) => namedArguments([word]).flatMap(Object.entries)
    assert.deepInclude(found("MY_API_KEY=one"), ["MY_API_KEY", "one"])
    assert.deepInclude(found("X-Api-Key: one two"), ["X-Api-Key", "one two"])
    assert.deepInclude(found("--header=Authorization: one"), ["Authorization", "one"])
    assert.deepInclude(found('model.api_key="one"'), ["model.api_key", "one"])
    assert.deepInclude(found("--url=https://host/path?a=b&api_key=one&c=d"), ["api_key", "one"])
    assert.deepInclude(found("https://host/path?token=one#end"), ["token", "one"])
    assert.deepInclude(found('{"a":1,"apiKey": "one"}'), ["apiKey", "one"])
    assert.isBelow(found("a=".repeat(50_000)).length, 10)
  })

  it("are taken out of all of a value, keys included, however deep", () => {
    const redact = (text: string) => text.replaceAll("secret", "*")
    const value: unknown = { a: ["a secret", 1, null], "secret key": { b: "secret" } }
    assert.deepStrictEqual(cleaned(value, redact), {
      a: ["a *", 1, null],
      "* key": { b: "*" }
    })
    const deep = JSON.parse(`${"[".repeat(10_000)}"secret"${"]".repeat(10_000)}`)
    assert.notInclude(JSON.stringify(cleaned(deep, redact)), "secret")
  })
})

describe("a tap", () => {
  it.effect("counts what comes, keeps the first of what is wrong, and changes nothing", () =>
    Effect.gen(function* () {
      const [near, far] = yield* AcpTransport.makePair()
      const lines = [
        "hello",
        "again",
        '{"jsonrpc":"2.0","id":{}}',
        '{"jsonrpc":"2.0","id":1,"method":"fs/read"}',
        '{"jsonrpc":"2.0","method":"_auth/status_update","params":{"authStatus":{"kind":"none","label":"Not logged in"}}}',
        '{"jsonrpc":"2.0","method":"_auth/status_update","params":null}'
      ]
      const bytes = new TextEncoder().encode(`${lines.join("\n")}\n`)
      far.send(bytes)
      yield* far.close
      const seen = Tap.make()
      const got = yield* Stream.runCollect(Tap.on(near, seen, 1024).incoming)
      assert.deepStrictEqual(Array.from(got), [bytes])
      assert.deepInclude(seen, { frames: 3, noise: 2, noiseSample: "hello", malformed: 1, tooLarge: 0 })
      assert.include(seen.malformedSample, '"id":{}')
      assert.deepStrictEqual(Array.from(seen.requests), ["fs/read"])
      assert.deepStrictEqual(seen.signedIn, { kind: "none", label: "Not logged in" })
    })
  )
})
