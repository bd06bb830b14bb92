// A pool under random commands and interleavings: callers that come and go, sidecars that are lost, starts that fail.
import { assert, describe, it } from "@effect/vitest"
import type { SidecarPool } from "acp-sidecar"
import { Machine, type Prng } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as References from "effect/References"
import { TestClock } from "effect/testing"
import * as Pool from "../support/pool.ts"

const names = ["one", "two", "own"] as const
type Name = (typeof names)[number]

type Command =
  | { readonly _tag: "Open" | "Whole"; readonly name: Name; readonly hold: number }
  | { readonly _tag: "Dispose" | "DisposeIfUnused"; readonly name: Name }
  | { readonly _tag: "DisposeAll" }
  | { readonly _tag: "Lose"; readonly index: number }
  | { readonly _tag: "Connecting"; readonly way: "at once" | "slow" | "fails" | "hangs" }
  | { readonly _tag: "Leave"; readonly index: number }
  | { readonly _tag: "Wait"; readonly millis: number }

const generate = (prng: Prng.Prng): Command =>
  prng.pick<() => Command>([
    () => ({ _tag: "Open", name: prng.pick(names), hold: prng.pick([0, 3, 20]) }),
    () => ({ _tag: "Open", name: prng.pick(names), hold: prng.pick([0, 3, 20]) }),
    () => ({ _tag: "Whole", name: prng.pick(names), hold: prng.pick([0, 3, 20]) }),
    () => ({ _tag: "Dispose", name: prng.pick(names) }),
    () => ({ _tag: "DisposeIfUnused", name: prng.pick(names) }),
    () => ({ _tag: "DisposeAll" }),
    () => ({ _tag: "Lose", index: prng.int(8) }),
    () => ({ _tag: "Connecting", way: prng.pick(["at once", "slow", "fails", "hangs"]) }),
    () => ({ _tag: "Leave", index: prng.int(8) }),
    () => ({ _tag: "Wait", millis: prng.pick([1, 4, 15]) })
  ])()

const ways = {
  "at once": Effect.void,
  slow: Effect.sleep(5),
  fails: Effect.andThen(Effect.sleep(2), Effect.fail(Pool.unreachable)),
  hangs: Effect.never
}

interface World extends Pool.World {
  readonly get: (name: Name) => Effect.Effect<SidecarPool.Handle, SidecarPool.HandleError>
  /** Vms that somebody has, by the handle that they are of. */
  readonly inside: Map<SidecarPool.Handle, number>
  callers: number
}

const start = Effect.gen(function* () {
  const made = yield* Pool.make({ closing: Effect.sleep(5), maxSidecars: 3 })
  const get = (name: Name) => (name === "own" ? made.pool.explicit(name) : made.pool.shared(name))
  const world: World = { ...made, get, inside: new Map(), callers: 0 }
  return world
}).pipe(Effect.provideService(References.MinimumLogLevel, "None"))

/** What may happen to a caller when others end its sidecar, or the start fails. */
const isAnswer = (error: unknown): boolean =>
  ["Disposed", "ProgramFailed"].includes(String((error as { readonly _tag?: unknown })._tag))

const count = (world: World, handle: SidecarPool.Handle, by: number) =>
  Effect.sync(() => void world.inside.set(handle, (world.inside.get(handle) ?? 0) + by))

const use = (world: World, command: Extract<Command, { readonly hold: number }>) =>
  Effect.flatMap(world.get(command.name), (handle) => {
    const stay = Effect.sleep(command.hold)
    if (command._tag === "Whole") return Effect.andThen(handle.sidecar, stay)
    return Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const vm = yield* restore(handle.openVm({ root: "/work" }))
        yield* count(world, handle, 1)
        yield* Effect.ensuring(restore(stay), count(world, handle, -1))
        yield* vm.close
      })
    )
  }).pipe(
    Effect.scoped,
    Effect.catchIf(isAnswer, () => Effect.void)
  )

const perform = (world: World, command: Command, callers: Machine.Callers): Effect.Effect<unknown, unknown> => {
  const act = (): Effect.Effect<unknown, unknown> => {
    switch (command._tag) {
      case "Open":
      case "Whole":
        return use(world, command)
      case "Dispose":
        return Effect.flatMap(world.get(command.name), (handle) => handle.dispose)
      case "DisposeIfUnused":
        return Effect.flatMap(world.get(command.name), (handle) => handle.disposeIfUnused)
      case "DisposeAll":
        return world.pool.dispose
      case "Lose":
        return world.links[command.index % Math.max(1, world.links.length)]?.lose ?? Effect.void
      case "Connecting":
        return Effect.sync(() => world.change({ closing: Effect.sleep(5), connecting: ways[command.way] }))
      case "Leave":
        return callers.leave(command.index)
      case "Wait":
        return TestClock.adjust(command.millis)
    }
  }
  const counted = Effect.acquireUseRelease(
    Effect.sync(() => world.callers++),
    act,
    () => Effect.sync(() => world.callers--)
  )
  return Effect.provideService(counted, References.MinimumLogLevel, "None")
}

// In one step each, as nothing may happen between two looks.

/** One process a name, one live handle a name, and a Vm that somebody has is counted. */
const always = (world: World): void => {
  const infos = Effect.runSync(world.pool.describe)
  for (const { sidecarId } of infos) {
    assert.isAtMost(world.mostAlive(sidecarId), 1, `connections of ${sidecarId}`)
    const live = infos.filter((other) => other.sidecarId === sidecarId && other.state === "ready")
    assert.isAtMost(live.length, 1, `live handles of ${sidecarId}`)
  }
  for (const [handle, vms] of world.inside) {
    const { activeVmCount, sidecarId, state } = Effect.runSync(handle.describe)
    if (state !== "ready") continue
    assert.isAtLeast(activeVmCount, vms, `leases of ${sidecarId}`)
    if (vms > 0) assert.strictEqual(world.aliveOf(sidecarId), 1, `a Vm without ${sidecarId}`)
  }
}

/** When nobody does anything, nothing is counted, and no shared sidecar runs. */
const settled = (world: World): void => {
  if (world.callers > 0) return
  const infos = Effect.runSync(world.pool.describe)
  for (const { activeVmCount, placement, sidecarId, state } of infos) {
    if (state !== "ready") continue
    assert.strictEqual(activeVmCount, 0, `leases of ${sidecarId}`)
    const isEnding = infos.some((other) => other.sidecarId === sidecarId && other.state !== "ready")
    if (placement.kind === "shared" && !isEnding) {
      assert.strictEqual(world.aliveOf(sidecarId), 0, `connections of ${sidecarId}`)
    }
  }
}

const machine: Machine.Machine<World, undefined, Command> = {
  start,
  model: undefined,
  generate,
  next: () => undefined,
  perform,
  always,
  settled,
  closed: (world) => assert.strictEqual(world.alive(), 0, "connections")
}

describe("a pool, under random commands and interleavings", { timeout: 600_000 }, () => {
  it("has one live sidecar a name, counts all who use it, and leaves nothing behind", () => {
    const { runs } = Machine.assertHolds(machine, { runs: 150, seed: 1 })
    assert.strictEqual(runs, 150)
  })

  it("does so in short sequences whichever single step of a fiber comes late", () => {
    const { runs } = Machine.assertHolds(machine, {
      runs: 5,
      seed: 1,
      commands: 4,
      settleProbability: 0.2,
      schedule: "everySingleChoice"
    })
    assert.isAbove(runs, 100)
  })

  it("waits in the end of its scope for a start that was given up", () => {
    const steps: ReadonlyArray<Machine.Step<Command>> = [
      { command: { _tag: "Whole", name: "one", hold: 3 }, settle: false },
      { command: { _tag: "Leave", index: 0 }, settle: true }
    ]
    assert.isUndefined(Machine.everySingleChoice(machine, steps).trial?.message)
  })

  it("ends a start that was given up before its first step", () => {
    const steps: ReadonlyArray<Machine.Step<Command>> = [
      { command: { _tag: "Open", name: "own", hold: 20 }, settle: false },
      { command: { _tag: "Dispose", name: "own" }, settle: true }
    ]
    assert.isUndefined(Machine.everySingleChoice(machine, steps).trial?.message)
  })
})
