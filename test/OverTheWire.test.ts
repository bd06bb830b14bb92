import { assert, describe, it } from "@effect/vitest"
import * as Arbitrary from "effect/Arbitrary"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Rpc from "effect/rpc/Rpc"
import * as Schema from "effect/Schema"
import { readdirSync } from "node:fs"
import { join } from "node:path"
import * as AcpError from "../src/acp/AcpError.ts"
import * as Address from "../src/Address.ts"
import * as Json from "../src/internal/json.ts"
import * as SidecarError from "../src/SidecarError.ts"
import * as SidecarEvent from "../src/SidecarEvent.ts"
import * as SidecarLimits from "../src/SidecarLimits.ts"
import * as SidecarRpc from "../src/SidecarRpc.ts"
import * as TurnOutcome from "../src/TurnOutcome.ts"

// What these tests know of a schema's parts. Nothing here depends on which errors and events there are.
interface Part extends Schema.Codec<unknown, unknown> {
  readonly fields?: Readonly<Record<string, Part>>
  readonly literals?: ReadonlyArray<unknown>
  readonly literal?: unknown
  readonly members?: ReadonlyArray<Part>
}
type Fields = Record<string, unknown>
interface ErrorClass extends Part {
  new (fields: Fields): Error
  readonly fields: Readonly<Record<string, Part>>
  readonly identifier: string
}

const isErrorClass = (value: unknown): value is ErrorClass =>
  typeof value === "function" && value.prototype instanceof Error && Schema.isSchema(value)

const cross = <A>(schema: Schema.Codec<A, unknown>) => {
  const codec = Schema.toCodecJson(schema)
  const encode = Schema.encodeUnknownSync(codec)
  const decode = Schema.decodeUnknownSync(codec)
  return (value: unknown) => {
    const text = JSON.stringify(encode(value))
    return { text, value: decode(JSON.parse(text)) }
  }
}

/** A value as JSON has it, errors with their class and their fields: JSON knows neither `undefined` nor `-0`. */
const plain = (value: unknown): unknown => {
  if (Object.is(value, -0)) return 0
  if (typeof value !== "object" || value === null) return value
  if (Array.isArray(value)) return value.map((item) => (item === undefined ? null : plain(item)))
  const fields = Object.keys(isErrorClass(value.constructor) ? { _tag: 0, ...value.constructor.fields } : value)
  return {
    ...(value instanceof Error ? { class: value.constructor, message: value.message, name: value.name } : {}),
    fields: fields.sort().flatMap((key) => {
      const field = plain((value as Fields)[key])
      return field === undefined ? [] : [[key, field]]
    })
  }
}

const assertCrosses = (schema: Part, value: unknown) => {
  const crossed = cross(schema)(value)
  assert.deepStrictEqual(plain(crossed.value), plain(value))
  if (!(value instanceof Error)) return
  assert.isTrue(crossed.value instanceof value.constructor)
  assert.strictEqual((crossed.value as Error).message, value.message)
  assert.isUndefined((crossed.value as Error).cause)
  assert.notInclude(crossed.text, "OverTheWire.test.ts")
}

const address = { sidecarId: "acp-sidecar-1", vmId: "vm-1", sessionId: "s-1" } as Address.Address
const evidence = { stderrTail: "fatal: no model\n", sinceLastFrameMillis: 12 }
const numbered = { number: 7, at: 1_700_000_000_000 }
const deep = { _meta: { a: [{ b: { c: [null, true, 0.5, "x"] } }], "": {}, "a.b": 1, constructor: "c" } }
const nasty = ["", "\ud800 and \udfff", "\u2028\u2029\u0000\ufeff", '"}\n{"_tag":"Exit"}\n', "é".repeat(100_000)]
const opaqueValues = [undefined, null, 0, "text", [], deep, JSON.parse('{"__proto__":{"x":1},"toJSON":1}'), nasty]

/** One sample of every error; what its fields may hold is varied below. */
const errors: Readonly<Record<string, Fields>> = {
  SpawnError: { code: "ENOENT", command: "agent", cwd: "/work", subject: "command" },
  ProcessExited: { code: null, signal: "SIGKILL", ...evidence },
  TransportClosed: { side: "stdin", detail: "EPIPE", ...evidence, sinceLastFrameMillis: null },
  HostClosed: { reason: "the Vm was closed" },
  RequestError: { method: "session/prompt", code: -32603, detail: "Internal error", data: deep },
  InvalidResponse: { method: "session/new", detail: "no session id" },
  LimitExceeded: { address, scope: "vm", limit: "maxPromptsPerVm", max: 1, used: 1, setting: "ACP_SIDECAR_X" },
  SessionBusy: { address, turnId: "turn-1" },
  InvalidInput: { address, input: "prompt", problem: "it is empty" },
  SessionUnusable: { address, reason: "closed", detail: "it was closed" },
  Disposed: { address, detail: "its process was killed" },
  SidecarLost: { address, detail: "its process was killed" },
  NotFound: { address },
  StartTimedOut: { budgetMillis: 1000, stderrTail: "", noiseSample: "hello", blockedBy: ["a/b/c"] },
  VersionMismatch: { offered: 1, got: 2 },
  AuthRequired: { methods: [{ id: "login", name: "Log in" }], detail: "no key" },
  LaunchNotRecorded: { folder: "/state", problem: "EACCES" },
  NotAnAcpAgent: { noiseLines: 201, sample: "Welcome!" },
  NotSupported: { method: "session/load", instead: "open a new session" },
  OneSessionOnly: { code: -32603, detail: "busy", others: 1 },
  UnusableSessionId: { problem: "it is empty" },
  HostStillEnding: { hostId: "h-1", pid: 42, afterMillis: 10_000 },
  StartHeldBack: { failures: 3, retryInMillis: 1000, reason: "it exited." },
  AgentStartFailed: {
    address,
    agent: "agent",
    phase: "initialize",
    reason: new AcpError.InvalidResponse({ method: "initialize", detail: "no version" })
  },
  TurnTimedOut: { deadline: "idle", afterMillis: 1000, escalation: "none" },
  OutputExceeded: { limit: "maxLineBytes", max: 10, used: 11, setting: "ACP_SIDECAR_MAX_LINE_BYTES" },
  TurnFailed: { address, phase: "running", reason: new AcpError.HostClosed({ reason: "closed" }) },
  CallTimedOut: { afterMillis: 30_000 },
  AgentCallFailed: { address, method: "session/set_mode", reason: new AcpError.HostClosed({ reason: "closed" }) },
  PermissionNotPending: { address, permissionId: "p-1", answeredBy: "user" },
  InvalidPermissionOption: { address, permissionId: "p-1", given: "x", valid: ["a", "b"] },
  InvalidLimit: { limit: "maxVms", setting: "ACP_SIDECAR_MAX_VMS", given: "NaN", expected: "a whole number from 0" },
  ProbeTimedOut: { address, agent: "agent", phase: "room", afterMillis: 30_000, stderrTail: "" },
  ProbeFailed: { address, agent: "agent", phase: "spawn", reason: new AcpError.HostClosed({ reason: "closed" }) },
  ProgramNotFound: {
    places: [
      { place: "option", path: null, found: "not given" },
      { place: "variable", path: "/x", found: "no file" }
    ]
  },
  DisposeFailed: { failures: [{ sidecarId: "acp-sidecar-1", step: "connection", problem: "it hangs." }] },
  HandshakeRefused: { reason: "version", detail: "it speaks version 1" },
  SidecarUnreachable: { detail: "ECONNREFUSED" },
  ProgramFailed: { program: "/bin/x", problem: "it exited", code: 1, signal: null, stderrTail: "no\n" },
  SocketInUse: { path: "/run/s" },
  SocketPathTooLong: { path: "/run/s", bytes: 200, max: 107 },
  NotLoopback: { host: "0.0.0.0" },
  ListenFailed: { at: "/run/s", problem: "EACCES" },
  ProcessTableError: { operation: "read", detail: "EACCES" }
}

const sources = join(import.meta.dirname, "../src")
const entries = new Set(["bin.ts", "index.ts"])
const modules = ["", "acp/"].flatMap((folder) =>
  readdirSync(join(sources, folder))
    .filter((name) => name.endsWith(".ts") && !entries.has(name))
    .map((name) => join(sources, folder, name))
)
/** Whatever error class a file of the library exports, with its name. */
const classes = new Map<string, ErrorClass>()
for (const module of modules) {
  for (const value of Object.values((await import(module)) as Record<string, unknown>))
    if (isErrorClass(value)) classes.set(value.identifier, value)
}

const known = new Map([...classes].filter(([name]) => errors[name] !== undefined))
const sampled = [...known.keys()]

const turnId = Address.TurnId.make("turn-1")
const completed = TurnOutcome.completed("end_turn", { stopReason: "end_turn", usage: { tokens: 5 }, ...deep })
interface Maker {
  readonly make: (fields: unknown) => Fields
}
/** One sample of every event and outcome. */
const structs: ReadonlyArray<readonly [schema: Part, sample: Fields]> = [
  [TurnOutcome.Completed, completed],
  [TurnOutcome.Cancelled, TurnOutcome.cancelled("caller", "end_turn", "retired")],
  [
    TurnOutcome.Failed,
    TurnOutcome.failed(
      new SidecarError.TurnFailed({ address, phase: "running", reason: new AcpError.HostClosed({ reason: "closed" }) })
    )
  ],
  [
    SidecarEvent.Update,
    {
      ...numbered,
      turnId,
      afterTurn: null,
      replay: true,
      update: {
        sessionUpdate: "agent_message_chunk",
        content: { type: "text", text: "hello", unknownToUs: [1] },
        alsoUnknown: { x: [{}] },
        ...deep
      }
    }
  ],
  [SidecarEvent.Notification, { ...numbered, method: "_agent/auth", params: deep }],
  [SidecarEvent.TurnQueued, { ...numbered, turnId }],
  [SidecarEvent.TurnStarted, { ...numbered, turnId }],
  [SidecarEvent.TurnEnded, { ...numbered, turnId, outcome: completed, cancelledToolCalls: ["t-1", "\udfff"] }],
  [
    SidecarEvent.PermissionAsked,
    {
      ...numbered,
      turnId: null,
      permissionId: "p-1",
      toolCall: { toolCallId: "t-1", title: "rm", ...deep },
      options: [{ optionId: "a", name: "Allow", kind: "allow_once", ...deep }]
    }
  ],
  [
    SidecarEvent.PermissionAnswered,
    { ...numbered, turnId, permissionId: "p-1", optionId: null, answeredBy: "deadline" }
  ],
  [SidecarEvent.AgentExited, { ...numbered, generation: 1, pid: null, detail: "it exited with code 1" }],
  [SidecarEvent.SessionResumed, { ...numbered, generation: 2, pid: 42, hostId: "h-2", method: "resume" }],
  [SidecarEvent.Lagged, { from: 3, to: 9 }],
  [SidecarEvent.SessionEnded, { ...numbered, reason: "closed", detail: "it was closed" }],
  [
    SidecarEvent.SidecarEvent,
    { ...numbered, kind: "limit_warning", address, detail: "d", limit: "maxVms", used: 8, max: 10 }
  ]
].map(([schema, sample]) => [schema as Part, { ...(schema as unknown as Maker).make(sample), ...sample }] as const)

const samplesOf = (schema: Part): ReadonlyArray<unknown> => {
  if (isErrorClass(schema)) return [new schema(errors[schema.identifier]!)]
  return structs.flatMap(([known, sample]) => (known === schema ? [sample] : []))
}

/** The values of a field that are to be tried: every literal, every member of a union, all the nasty texts. */
const valuesOf = (schema: Part): ReadonlyArray<unknown> => {
  if (schema.literals !== undefined) return schema.literals
  if ("literal" in schema) return [schema.literal]
  const samples = samplesOf(schema)
  if (samples.length > 0) return samples
  if (schema.members !== undefined) return schema.members.flatMap(valuesOf)
  if (schema.ast._tag === "String") return nasty
  if (schema.ast._tag === "Null") return [null]
  return schema.ast._tag === "Declaration" ? opaqueValues : []
}

/** The sample, and the sample with each of its fields changed to all that it may be. */
const variants = (schema: Part, sample: Fields): ReadonlyArray<Fields> => [
  sample,
  ...Object.entries(schema.fields!).flatMap(([key, field]) =>
    key === "_tag" ? [] : valuesOf(field).map((value) => ({ ...sample, [key]: value }))
  )
]

describe("errors over the wire", () => {
  it("every error class of the library has a sample in `errors`", () => {
    assert.deepStrictEqual(
      [...classes.keys()].filter((name) => errors[name] === undefined),
      []
    )
  })

  it.each(sampled)("%s arrives as an instance of its class, with its fields and its message", (name) => {
    const schema = classes.get(name)!
    for (const fields of variants(schema, errors[name]!)) assertCrosses(schema, new schema(fields))
  })

  it.effect.each(sampled)("%s arrives whatever its fields are", (name) =>
    Effect.gen(function* () {
      const schema = classes.get(name)!
      const report = yield* Arbitrary.checkEffect(
        Arbitrary.schema(schema),
        (error) => Effect.sync(() => (assertCrosses(schema, error), true)),
        { runs: 50, seed: name }
      )
      assert.isUndefined(Arbitrary.formatCheckFailure(report))
    })
  )

  it("no error can be made with a number that JSON does not know", () => {
    for (const [name, schema] of known) {
      for (const key of Object.keys(schema.fields)) {
        if (typeof errors[name]![key] !== "number") continue
        for (const value of [Number.NaN, Infinity, -Infinity])
          assert.throws(() => new schema({ ...errors[name], [key]: value }), undefined, undefined, `${name}.${key}`)
      }
    }
  })

  it("nothing else of an error crosses: no cause, no stack, no field that its class does not have", () => {
    for (const [name, schema] of known) {
      const error = Object.assign(new schema(errors[name]!), { secret: "sk-1", cause: new Error("sk-2") })
      const crossed = cross(schema)(error)
      assert.notMatch(crossed.text, /sk-[12]|OverTheWire\.test/)
      assert.isUndefined((crossed.value as Error).cause)
    }
  })

  it("an error inside of opaque data leaves its message, cause and stack behind", () => {
    const data = { error: new Error("sk-1", { cause: new Error("sk-2") }) }
    const crossed = cross(AcpError.RequestError)(new AcpError.RequestError({ method: "m", code: 1, detail: "d", data }))
    assert.notMatch(crossed.text, /sk-[12]|OverTheWire\.test/)
    assert.deepStrictEqual(crossed.value.data, { error: {} })
  })
})

describe("answers of a sidecar's calls", () => {
  const answers = Array.from(SidecarRpc.SidecarRpc.requests, ([name, rpc]) => [name, Rpc.exitSchema(rpc)] as const)
  const crossExit = (schema: unknown, exit: Exit.Exit<unknown, unknown>) =>
    cross(schema as Schema.Codec<Exit.Exit<unknown, unknown>, unknown>)(exit)

  it.each(answers)("%s fails with an instance of each of its errors", (_, schema) => {
    const reason = Schema.Union([schema.error]) as unknown as Part
    const failures = reason.members!.flatMap(valuesOf)
    assert.isNotEmpty(failures)
    for (const error of failures) {
      const { value } = crossExit(schema, Exit.fail(error))
      assert.deepStrictEqual(plain(Option.getOrThrow(Exit.findErrorOption(value))), plain(error))
    }
  })

  it.each(answers)("of a defect in %s the message crosses, and neither cause nor stack", (_, schema) => {
    const { text, value } = crossExit(schema, Exit.die(new TypeError("broken", { cause: new Error("sk-1") })))
    assert.notMatch(text, /sk-1|OverTheWire\.test/)
    const defect = Exit.isFailure(value) ? Cause.squash(value.cause) : undefined
    assert.isTrue(defect instanceof Error && defect.message === "broken" && defect.cause === undefined)
  })
})

describe("events over the wire", () => {
  const all: ReadonlyArray<Part> = [
    ...TurnOutcome.TurnOutcome.members,
    ...SidecarEvent.SessionEvent.members,
    SidecarEvent.SidecarEvent
  ] as unknown as ReadonlyArray<Part>

  it("every event and every outcome has a sample here", () => {
    assert.deepStrictEqual(
      structs.map(([schema]) => schema),
      all
    )
  })

  it("arrive equal, through the schema of their union", () => {
    const union = Schema.Union([...SidecarEvent.SessionEvent.members, ...TurnOutcome.TurnOutcome.members])
    for (const [schema, sample] of structs) {
      for (const event of variants(schema, sample)) {
        assertCrosses(schema, event)
        if (schema !== (SidecarEvent.SidecarEvent as unknown)) assertCrosses(union as unknown as Part, event)
      }
    }
  })

  it.effect("arrive equal whatever is in them", () =>
    Effect.gen(function* () {
      for (const schema of all) {
        const report = yield* Arbitrary.checkEffect(
          Arbitrary.schema(schema),
          (event) => Effect.sync(() => (assertCrosses(schema, event), true)),
          { runs: 50, seed: 1 }
        )
        assert.isUndefined(Arbitrary.formatCheckFailure(report))
      }
    })
  )

  it("a turn that failed has its error as an instance again", () => {
    for (const reason of SidecarError.TurnFailed.fields.reason.members.flatMap((member) =>
      samplesOf(member as never)
    )) {
      const outcome = TurnOutcome.failed(
        new SidecarError.TurnFailed({ address, phase: "queued", reason: reason as SidecarError.TurnReason })
      )
      const { value } = cross(SidecarEvent.TurnEnded)({ _tag: "TurnEnded", ...numbered, turnId, outcome })
      assert.isTrue(value.outcome._tag === "Failed" && value.outcome.error instanceof SidecarError.TurnFailed)
      assert.isTrue(value.outcome._tag === "Failed" && value.outcome.error.reason.constructor === reason!.constructor)
    }
  })

  it("W4: what an agent sent is handed on as the same object, so that nothing in it is lost, however large it is", () => {
    const update = new Proxy({}, { ownKeys: () => assert.fail("looked at"), get: () => assert.fail("looked at") })
    const event = { _tag: "Update", ...numbered, turnId, afterTurn: null, update }
    const codec = Schema.toCodecJson(SidecarEvent.SessionEvent)
    const encoded = Schema.encodeUnknownSync(codec)(event) as Fields
    assert.isTrue(encoded.update === update)
    assert.isTrue((Schema.decodeUnknownSync(codec)(encoded) as SidecarEvent.Update).update === update)
  })

  it("`undefined` inside of what an agent said is what JSON makes of it, and costs nobody the event", () => {
    const update = { sessionUpdate: "plan", entries: [undefined], gone: undefined }
    const { value } = cross(SidecarEvent.Update)({ _tag: "Update", ...numbered, turnId, afterTurn: null, update })
    assert.deepStrictEqual<unknown>(value.update, { sessionUpdate: "plan", entries: [null] })
  })
})

describe("values that are nested deeper than the stack allows", () => {
  const levels = 2 ** 17

  it("an update that is nested as deep as an agent may nest arrives, with what is in it", () => {
    const update = JSON.parse(`${'{"_meta":'.repeat(levels)}{"a":[1,"\\ud800"]}${"}".repeat(levels)}`) as unknown
    assert.throws(() => JSON.stringify(update), RangeError)
    const codec = Schema.toCodecJson(SidecarEvent.Update)
    const event = { _tag: "Update", ...numbered, turnId, afterTurn: null, update }
    const text = Json.stringify(Schema.encodeUnknownSync(codec)(event))
    let innermost: unknown = Schema.decodeUnknownSync(codec)(JSON.parse(text)).update
    for (let level = 0; level < levels; level++) innermost = (innermost as { readonly _meta: unknown })._meta
    assert.deepStrictEqual(innermost, { a: [1, "\ud800"] })
  })

  it.effect("have the text that they would have otherwise", () =>
    Effect.gen(function* () {
      const [before, after] = ["[".repeat(levels), "]".repeat(levels)]
      const inDepth = (value: unknown) => {
        for (let level = 0; level < levels; level++) value = [value]
        return value
      }
      const same = (value: unknown) => Json.stringify(inDepth([value])) === before + JSON.stringify([value]) + after
      for (const value of opaqueValues) assert.isTrue(same(value))
      assert.isTrue(same({ a: undefined, b: [undefined, Number.NaN, () => 0], c: Infinity, "\ud800": "\ud800", d: -0 }))
      const report = yield* Arbitrary.checkEffect(Arbitrary.schema(Schema.Json), same, { runs: 30, seed: 1 })
      assert.isUndefined(Arbitrary.formatCheckFailure(report))
    })
  )

  it("a value without end is an error, and not an endless loop", () => {
    const cycle: Record<string, unknown> = {}
    cycle.self = cycle
    let value: unknown = cycle
    for (let level = 0; level < levels; level++) value = [value]
    assert.throws(() => Json.stringify(cycle), TypeError)
    assert.throws(() => Json.stringify(value), RangeError)
  })
})

describe("limits over the wire", () => {
  it("limits arrive as they are, times that are off included", () => {
    const limits = { ...SidecarLimits.defaults }
    const text = JSON.stringify(SidecarLimits.plain(limits))
    assert.deepStrictEqual(
      Effect.runSync(SidecarLimits.make(JSON.parse(text) as SidecarLimits.Overrides, limits)),
      limits
    )
  })
})
