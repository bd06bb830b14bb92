import { assert, describe, it } from "@effect/vitest"
import { SidecarLimits } from "acp-sidecar"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"

const names = Object.keys(SidecarLimits.defaults) as ReadonlyArray<keyof SidecarLimits.SidecarLimits>
const isTime = (name: keyof SidecarLimits.SidecarLimits) => Duration.isDuration(SidecarLimits.defaults[name])

const current = Effect.gen(function* () {
  return yield* SidecarLimits.SidecarLimits
})

const fromEnv = (env: Record<string, string>) =>
  current.pipe(
    Effect.provide(SidecarLimits.layerFromEnv),
    Effect.provideService(ConfigProvider.ConfigProvider, ConfigProvider.fromEnvRecord(env))
  )

describe("the defaults", () => {
  it.effect("are in force without a layer", () =>
    Effect.gen(function* () {
      assert.strictEqual(yield* SidecarLimits.SidecarLimits, SidecarLimits.defaults)
    })
  )

  it("have the documented values", () => {
    assert.deepStrictEqual(SidecarLimits.plain(SidecarLimits.defaults), {
      maxSidecars: 1024,
      maxVms: 64,
      maxSessionsPerVm: 256,
      maxHosts: 1024,
      maxSessionsPerHost: 32,
      maxProbes: 8,
      maxPromptsPerSession: 1,
      maxPromptsPerVm: 64,
      maxPromptsPerSidecar: 1024,
      reservedInteractivePerVm: null,
      reservedInteractivePerSidecar: null,
      maxQueuedPromptsPerSession: 8,
      admissionTimeout: 3_600_000,
      maxPendingPermissionsPerSession: 32,
      permissionTimeout: 600_000,
      maxPromptBytes: 67_108_864,
      maxPromptBlocks: 16_384,
      maxLineBytes: 16_777_216,
      maxTurnOutputBytes: 268_435_456,
      mailboxCapacity: 65_536,
      mailboxBytes: 67_108_864,
      maxIdleOutputBytes: 67_108_864,
      maxBrokenFrames: 1000,
      earlyUpdatesPerSession: 100,
      earlyUpdatesPerAgent: 1000,
      earlyUpdateBytes: 4_194_304,
      earlyUpdateTimeout: 60_000,
      maxTombstones: 1024,
      tombstoneTimeout: 600_000,
      maxInboundRequests: 2_048,
      maxNoiseBeforeInitialize: 200,
      stderrTailBytes: 16_384,
      startTimeout: 60_000,
      cancelGrace: 10_000,
      sessionIdleTimeout: "off",
      reclaimIdleAfter: "off",
      hostIdleTime: 1_000,
      hostExitTimeout: 10_000,
      maxHostFailures: 3,
      maxHostRetryDelay: 60_000,
      hostStableTime: 10_000,
      maxResumeAttempts: 3,
      closeTimeout: 2_000,
      callTimeout: 30_000,
      probeTimeout: 30_000,
      probeTtl: 300_000,
      killGrace: 2_000,
      turnIdleTimeout: "off",
      turnTimeout: "off",
      maxClients: 1024,
      maxCallsPerClient: 16_384,
      maxControlCallsPerClient: 1024,
      handshakeTimeout: 5_000,
      heartbeatTimeout: 30_000,
      detachTimeout: 600_000
    })
  })

  it("every limit has an environment variable of its own", () => {
    const settings = names.map(SidecarLimits.setting)
    assert.strictEqual(new Set(settings).size, names.length)
    for (const setting of settings) assert.match(setting, /^ACP_SIDECAR_[A-Z]+(?:_[A-Z]+)*$/)
    assert.strictEqual(SidecarLimits.setting("maxPromptsPerVm"), "ACP_SIDECAR_MAX_PROMPTS_PER_VM")
    assert.strictEqual(SidecarLimits.setting("cancelGrace"), "ACP_SIDECAR_CANCEL_GRACE")
  })
})

describe("overrides", () => {
  for (const name of names) {
    it.effect(`${name} can be set alone, to 0 as well`, () =>
      Effect.gen(function* () {
        const limits = yield* SidecarLimits.make({ [name]: 0 })
        const plain = SidecarLimits.plain(limits)
        assert.deepStrictEqual(plain, { ...SidecarLimits.plain(SidecarLimits.defaults), [name]: 0 })
        assert.deepStrictEqual(SidecarLimits.plain(yield* SidecarLimits.make(plain)), plain)
      })
    )

    const nonsense: ReadonlyArray<unknown> = [
      -1,
      Number.NaN,
      -Infinity,
      "garbage",
      {},
      { second: 5 },
      true,
      "-5 seconds",
      [1]
    ]
    const more: ReadonlyArray<unknown> = isTime(name) ? [null] : [1.5, Infinity, "10 seconds", "off", 2 ** 60]
    it.effect(`${name} can't be nonsense, and the error names the limit and its variable`, () =>
      Effect.forEach([...nonsense, ...more], (given) =>
        Effect.gen(function* () {
          const error = yield* Effect.flip(SidecarLimits.make({ [name]: given }))
          assert.deepInclude(error as object, {
            _tag: "InvalidLimit",
            limit: name,
            setting: SidecarLimits.setting(name)
          })
          assert.include(error.message, SidecarLimits.setting(name))
        })
      )
    )
  }

  it.effect("times may be words, milliseconds, durations or off", () =>
    Effect.gen(function* () {
      const millis = (given: Duration.Input | "off") =>
        Effect.map(SidecarLimits.make({ cancelGrace: given }), (limits) => Duration.toMillis(limits.cancelGrace))
      assert.strictEqual(yield* millis("3 seconds"), 3000)
      assert.strictEqual(yield* millis("3s" as never), 3000)
      assert.strictEqual(yield* millis("1.5m" as never), 90_000)
      assert.strictEqual(yield* millis("250 ms" as never), 250)
      assert.strictEqual(yield* millis(250), 250)
      assert.strictEqual(yield* millis(Duration.minutes(1)), 60_000)
      assert.strictEqual(yield* millis({ minutes: 1, seconds: 1 }), 61_000)
      assert.strictEqual(yield* millis("off"), Infinity)
      assert.strictEqual(yield* millis("Infinity"), Infinity)
    })
  )

  it.effect("undefined leaves a limit as it is, and layers add up", () =>
    Effect.gen(function* () {
      const limits = yield* current.pipe(
        Effect.provide(SidecarLimits.layer({ maxVms: 3, maxSessionsPerVm: undefined })),
        Effect.provide(SidecarLimits.layer({ maxVms: 9, maxTombstones: 7 }))
      )
      assert.deepInclude(limits, { maxVms: 3, maxTombstones: 7, maxSessionsPerVm: 256 })
    })
  )

  it.effect("a layer with nonsense fails", () =>
    Effect.gen(function* () {
      const error = yield* Effect.flip(Effect.provide(Effect.void, SidecarLimits.layer({ maxVms: -1 })))
      assert.deepInclude(error, { _tag: "InvalidLimit", limit: "maxVms", given: "-1" })
    })
  )
})

describe("the environment", () => {
  it.effect("sets every limit under its name", () =>
    Effect.gen(function* () {
      const env = Object.fromEntries(
        names.map((name, i) => [SidecarLimits.setting(name), isTime(name) ? `${i + 1} seconds` : `${i + 1}`])
      )
      const expected = Object.fromEntries(names.map((name, i) => [name, isTime(name) ? (i + 1) * 1000 : i + 1]))
      assert.deepStrictEqual(SidecarLimits.plain(yield* fromEnv(env)) as object, expected)
    })
  )

  it.effect("takes off, milliseconds and surrounding space, and leaves the rest alone", () =>
    Effect.gen(function* () {
      const limits = yield* fromEnv({
        ACP_SIDECAR_CANCEL_GRACE: "off",
        ACP_SIDECAR_START_TIMEOUT: " 1500 ",
        ACP_SIDECAR_MAX_VMS: " 3 ",
        SOMETHING_ELSE: "x"
      })
      assert.deepStrictEqual(SidecarLimits.plain(limits), {
        ...SidecarLimits.plain(SidecarLimits.defaults),
        cancelGrace: "off",
        startTimeout: 1500,
        maxVms: 3
      })
    })
  )

  for (const [name, text] of [
    ["ACP_SIDECAR_MAX_VMS", "many"],
    ["ACP_SIDECAR_MAX_VMS", "off"],
    ["ACP_SIDECAR_MAX_VMS", "-1"],
    ["ACP_SIDECAR_MAX_VMS", "1.5"],
    ["ACP_SIDECAR_CANCEL_GRACE", "soon"],
    ["ACP_SIDECAR_CANCEL_GRACE", "-3 seconds"]
  ] as const) {
    it.effect(`${name}=${JSON.stringify(text)} is an InvalidLimit that says what was given`, () =>
      Effect.gen(function* () {
        const error = yield* Effect.flip(fromEnv({ [name]: text }))
        assert.deepInclude(error as object, { _tag: "InvalidLimit", setting: name, given: JSON.stringify(text) })
      })
    )
  }

  it.effect("nothing set, or set to nothing, leaves the limits that are in force", () =>
    Effect.gen(function* () {
      const limits = yield* fromEnv({ ACP_SIDECAR_MAX_VMS: "", ACP_SIDECAR_CANCEL_GRACE: "" }).pipe(
        Effect.provide(SidecarLimits.layer({ maxVms: 5 }))
      )
      assert.deepInclude(limits, { maxVms: 5, cancelGrace: SidecarLimits.defaults.cancelGrace })
    })
  )
})

describe("permits kept for the interactive lane", () => {
  for (const [cap, configured, expected] of [
    [0, null, 0],
    [1, null, 0],
    [2, null, 1],
    [8, null, 1],
    [64, null, 8],
    [1024, null, 128],
    [10, 0, 0],
    [10, 4, 4],
    [10, 99, 10]
  ] as const) {
    it(`of ${cap} with ${configured ?? "nothing"} configured: ${expected}`, () => {
      assert.strictEqual(SidecarLimits.reserved(cap, configured), expected)
    })
  }
})
