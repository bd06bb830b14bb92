// Interruption at each operation of what waits within a session: readers, questions, the journal, calls and the wire.
import { assert, describe, it } from "@effect/vitest"
import { Address, type Journal, LimitUsage, Mailbox, Permission, SidecarLimits } from "acp-sidecar"
import { Journal as JournalService } from "acp-sidecar"
import type { SidecarEvent } from "acp-sidecar"
import { AcpTransport } from "acp-sidecar/acp"
import type { ScriptedAgent } from "acp-sidecar/testing"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as Strikes from "./support/strikes.ts"
import { beside, soFar, textOf } from "./support/events.ts"

/** Says three words, one after the other. */
const talking: ScriptedAgent.Script = {
  prompt: (turn) =>
    Effect.forEach(["one", "two", "three"], (word) => Effect.andThen(turn.say(word), Effect.sleep(1))).pipe(
      Effect.as("end_turn")
    ),
  request: (_, method) =>
    Effect.andThen(Effect.sleep(5), Effect.succeed(method.includes("config") ? { configOptions: [] } : {}))
}

const interruptedOrDone = (exit: Exit.Exit<unknown, unknown>) =>
  Exit.isFailure(exit) && !Exit.hasInterrupts(exit) ? exit : Effect.void

const safe = <A, E>(
  body: (world: Strikes.World) => Effect.Effect<A, E, Scope.Scope>,
  options: Strikes.Options & {
    readonly strike?: ((world: Strikes.World) => Effect.Effect<unknown, unknown>) | undefined
    readonly after?: (world: Strikes.World, exit: Exit.Exit<A, E>) => Effect.Effect<unknown, unknown>
    readonly fails?: boolean
    readonly seeds?: number
  } = {}
): void => {
  const { after, fails, seeds, strike, ...rest } = options
  const runs = Strikes.assertSafe<Strikes.World, A, E>({
    make: Strikes.world({ script: talking, ...rest }),
    body,
    strike,
    seeds,
    check: (world, exit) =>
      Effect.gen(function* () {
        if (fails !== true) yield* interruptedOrDone(exit)
        const { session, sidecar } = world
        while ((yield* session.describe).turns.length > 0) yield* session.cancel()
        assert.strictEqual((yield* sidecar.describe).activePrompts, 0)
        // What the agent is still at ends by itself.
        yield* Effect.sleep(50)
        yield* Strikes.assertFibers(world.fibers)
        yield* after?.(world, exit) ?? Effect.void
      }),
    closed: Strikes.assertGone
  })
  assert.isAbove(runs, 10)
}

const words = (events: ReadonlyArray<SidecarEvent.SessionEvent>) => events.map(textOf).filter((text) => text !== "")

/** Works as it did before. */
const goesOn = ({ session }: Strikes.World) =>
  Effect.gen(function* () {
    const turn = yield* session.submit("again")
    assert.strictEqual((yield* turn.await)._tag, "Completed")
    assert.deepStrictEqual(words(yield* Stream.runCollect(turn.updates)), ["one", "two", "three"])
  })

describe("a reader that goes away at whatever operation leaves nothing and costs nobody an event", () => {
  for (const kind of ["updates", "text"] as const) {
    it(`of a turn's ${kind}`, () => {
      safe(
        ({ session }) =>
          Effect.gen(function* () {
            const turn = yield* session.submit("go")
            const reader: Stream.Stream<unknown> = turn[kind]
            return yield* Stream.runCollect(reader)
          }),
        { after: goesOn, seeds: 2 }
      )
    })
  }

  it("of a session's updates, beside one that stays", () => {
    safe(
      ({ session }) =>
        Effect.gen(function* () {
          const other = yield* beside(
            Stream.runCollect(Stream.takeUntil(session.updates, (event) => event._tag === "TurnEnded"))
          )
          yield* Effect.addFinalizer(() =>
            Effect.map(Effect.exit(Fiber.join(other)), (exit) => {
              if (Exit.isSuccess(exit)) assert.deepStrictEqual(words(exit.value), ["one", "two", "three"])
            })
          )
          yield* session.submit("go")
          yield* Stream.runDrain(Stream.take(session.updates, 4))
          yield* Fiber.join(other)
        }),
      { after: goesOn }
    )
  })

  it("of the sidecar's events", () => {
    safe(({ session, sidecar }) =>
      Effect.gen(function* () {
        const reading = yield* beside(Stream.runHead(sidecar.events))
        yield* session.prompt("go")
        return yield* Fiber.join(reading)
      })
    )
  })

  it("of a mailbox, which has nobody waiting then", () => {
    const run = (strike: boolean) =>
      Strikes.assertSafe({
        make: Effect.sync(() => ({
          mailbox: Mailbox.make<number>({ capacity: 100, maxBytes: 1000 }),
          read: [] as Array<number>,
          struck: 0
        })),
        body: ({ mailbox, read }) =>
          Effect.gen(function* () {
            yield* beside(
              Effect.gen(function* () {
                for (let number = 1; number <= 3; number++) {
                  yield* Effect.sleep(1)
                  Mailbox.append(mailbox, number, 1)
                  Mailbox.flush(mailbox)
                }
                yield* Effect.sleep(10)
                Mailbox.close(mailbox)
              })
            )
            const all = Mailbox.stream(mailbox, {
              from: 1,
              select: (entries) => ({ emit: entries, isLast: false }),
              onLag: () => Effect.succeed([])
            })
            yield* Stream.runForEach(all, (number) => Effect.sync(() => read.push(number)))
          }),
        // An entry that comes at any operation of the reader.
        strike: strike
          ? (world) =>
              Effect.sync(() => {
                world.struck = Mailbox.append(world.mailbox, 99, 1)
                Mailbox.flush(world.mailbox)
              })
          : undefined,
        check: ({ mailbox, read }, exit) =>
          Effect.gen(function* () {
            yield* interruptedOrDone(exit)
            assert.strictEqual(mailbox.waiters.size, 0)
            if (!strike) return
            // None is missed, and none is read twice.
            assert.strictEqual(read.length, mailbox.next - 1)
            assert.deepStrictEqual(
              read.filter((number) => number !== 99),
              [1, 2, 3]
            )
          }),
        seeds: 3
      })
    assert.isAbove(run(false), 10)
    assert.isAbove(run(true), 10)
  })
})

describe("a question, struck at whatever operation, is answered once and leaves nothing", () => {
  const address = { sidecarId: Address.SidecarId.make("sidecar") }
  interface Asked {
    readonly permissions: Permission.Permissions
    readonly asked: Array<string>
    readonly answered: Array<string>
    readonly fibers: number
  }
  const make = (policy: Permission.Policy): Effect.Effect<Asked, never, Scope.Scope> =>
    Effect.gen(function* () {
      const supervisor = yield* Effect.scope
      const asked: Array<string> = []
      const answered: Array<string> = []
      const permissions = Permission.make({
        address,
        policy,
        timeout: SidecarLimits.defaults.permissionTimeout,
        usage: LimitUsage.make({
          address,
          scope: "session",
          limit: "maxPendingPermissionsPerSession",
          max: 2,
          emit: () => {}
        }),
        record: (event) => {
          if (event._tag === "PermissionAsked") asked.push(event.permissionId)
          if (event._tag === "PermissionAnswered") answered.push(event.permissionId)
        },
        supervisor,
        interruptedBy: () => "withdrawn"
      })
      return { permissions, asked, answered, fibers: yield* Strikes.liveFibers }
    })
  const request = {
    sessionId: "s",
    toolCall: { toolCallId: "t" },
    options: [
      { optionId: "allow", name: "Allow", kind: "allow_once" as const },
      { optionId: "reject", name: "Reject", kind: "reject_once" as const }
    ]
  }
  const policies: Record<string, Permission.Policy> = {
    ask: "ask",
    "a handler that decides": () => Effect.as(Effect.sleep(5), "allow"),
    "a handler that fails": () => Effect.andThen(Effect.sleep(5), Effect.fail("no")),
    "a handler that never ends": () => Effect.never,
    "a handler that cleans up for long": () =>
      Effect.onInterrupt(Effect.as(Effect.sleep(50), "allow" as const), () => Effect.sleep(20))
  }
  const strikes: Record<string, ((world: Asked) => Effect.Effect<unknown, unknown>) | undefined> = {
    "when the agent takes it back": undefined,
    "by its user": ({ permissions }) => Permission.answer(permissions, "permission-1", "reject"),
    "by a cancel": ({ permissions }) => Effect.sync(() => Permission.cancel(permissions, "close"))
  }
  for (const [who, policy] of Object.entries(policies)) {
    for (const [how, strike] of Object.entries(strikes)) {
      it(`${who}, ${how}`, () => {
        const runs = Strikes.assertSafe<Asked, unknown, never>({
          make: make(policy),
          body: ({ permissions }) => Permission.ask(permissions, request, () => null),
          strike,
          check: ({ answered, asked, fibers, permissions }, exit) =>
            Effect.gen(function* () {
              yield* interruptedOrDone(exit)
              // A handler may clean up after that.
              yield* Effect.sleep(1000)
              assert.isAtMost(asked.length, 1)
              assert.deepStrictEqual(answered, asked)
              assert.strictEqual(permissions.open.size, 0)
              assert.strictEqual(permissions.usage.used, 0)
              yield* Strikes.assertFibers(fibers)
            }),
          seeds: 2
        })
        assert.isAbove(runs, 5)
      })
    }
  }
})

describe("the journal", () => {
  it("has what happened, in order and without a gap, whatever is struck", () => {
    safe(({ session }) => Effect.andThen(session.prompt("go"), session.close), {
      journal: JournalService.layerMemory(),
      after: ({ journal, session }) => complete(journal!, session)
    })
  })

  it("the same when it is slow, and when the agent dies", () => {
    const slow = Layer.effect(
      JournalService.Journal,
      Effect.map(JournalService.Journal, (inner) =>
        JournalService.Journal.of({
          ...inner,
          append: (session, events) => Effect.andThen(Effect.sleep(3), inner.append(session, events))
        })
      )
    ).pipe(Layer.provide(JournalService.layerMemory()))
    safe(({ session }) => Effect.exit(session.prompt("go")), {
      journal: slow,
      strike: ({ agent }) => agent.crash(),
      after: ({ journal, session }) => complete(journal!, session)
    })
  })

  const complete = (journal: Journal.Journal["Service"], session: Strikes.World["session"]) =>
    Effect.gen(function* () {
      yield* session.close
      const kept = yield* journal.read(session.address, 1)
      assert.deepStrictEqual(kept, yield* soFar(session))
      assert.strictEqual(kept.at(-1)?._tag, "SessionEnded")
    })
})

describe("a call to the agent, struck at whatever operation, leaves nothing behind", () => {
  for (const strike of ["its caller", "its agent", "its session"] as const) {
    it(`setMode and setConfigOption, when ${strike} goes away`, () => {
      safe(({ session }) => Effect.andThen(session.setMode("any"), session.setConfigOption("a", "b")), {
        strike: {
          "its caller": undefined,
          "its agent": ({ agent }: Strikes.World) => agent.crash(),
          "its session": ({ session }: Strikes.World) => session.close
        }[strike],
        fails: strike !== "its caller",
        ...(strike === "its caller" ? { after: goesOn } : {})
      })
    })
  }
})

describe("a pair of transports, struck at whatever operation, is closed with its scope", () => {
  it("on both sides, readers included", () => {
    interface Pairs {
      pair: readonly [AcpTransport.AcpTransport, AcpTransport.AcpTransport] | undefined
      fibers: number
    }
    const runs = Strikes.assertSafe<Pairs, unknown, never>({
      make: Effect.map(Strikes.liveFibers, (fibers) => ({ pair: undefined, fibers })),
      body: (world) =>
        Effect.gen(function* () {
          const pair = yield* AcpTransport.makePair({ capacity: 1 })
          world.pair = pair
          const [near, far] = pair
          yield* beside(
            Effect.forEach([1, 2, 3], () =>
              Effect.andThen(
                Effect.sleep(1),
                Effect.sync(() => near.send(new Uint8Array(3)))
              )
            )
          )
          yield* Stream.runDrain(Stream.take(far.incoming, 3))
          yield* near.close
          yield* far.ended
        }),
      check: ({ fibers, pair }, exit) =>
        Effect.gen(function* () {
          yield* interruptedOrDone(exit)
          yield* Strikes.assertFibers(fibers)
          if (pair === undefined) return
          for (const side of pair) {
            assert.isFalse(side.send(new Uint8Array(1)))
            assert.strictEqual((yield* side.ended)._tag, "TransportClosed")
          }
        }),
      seeds: 3
    })
    assert.isAbove(runs, 10)
  })
})
