/**
 * A session of a sidecar in another process, as its app sees it.
 *
 * @internal
 */
import type * as Cause from "effect/Cause"
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import * as FiberMap from "effect/FiberMap"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as AcpError from "../acp/AcpError.ts"
import * as Address from "../Address.ts"
import type * as AgentProfile from "../AgentProfile.ts"
import type * as Permission from "../Permission.ts"
import type * as Session from "../Session.ts"
import * as SidecarError from "../SidecarError.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import type * as SidecarLimits from "../SidecarLimits.ts"
import type * as SidecarRpc from "../SidecarRpc.ts"
import * as TurnOutcome from "../TurnOutcome.ts"
import * as PromptInput from "./promptInput.ts"
import * as Remote from "./remote.ts"
import { textOf } from "./sessionTurns.ts"
import * as Tracing from "./tracing.ts"

type Trace = false | { readonly traceId: string; readonly spanId: string; readonly sampled: boolean }

interface Prepared {
  readonly sessionId: Address.SessionId
  readonly prompt: Session.Prompt
  readonly options: Session.SubmitOptions
  readonly trace?: Trace
}

interface Held {
  readonly handle: Session.Turn
  readonly ended: Deferred.Deferred<TurnOutcome.TurnOutcome>
}

/** Handles of ended turns that are remembered, for an idempotency key that is used again. */
const remembered = 256

export const make = Effect.fnUntraced(function* (
  remote: Remote.Remote,
  opened: SidecarRpc.SessionOpened,
  options: {
    readonly profile: AgentProfile.AgentProfile
    /** Those of its Vm, as far as they are known here. */
    readonly limits: SidecarLimits.SidecarLimits
    readonly handler: ((question: Permission.Question) => Effect.Effect<Permission.Decision, unknown>) | undefined
    /** Run once it has been closed. */
    readonly onClose: Effect.Effect<void>
  }
): Effect.fn.Return<Session.Session> {
  const { address } = opened
  const sessionId = address.sessionId!
  const clock = yield* Clock.Clock
  const scope = yield* Scope.fork(remote.scope, "parallel")
  const turns = new Map<Address.TurnId, Held>()
  let last = opened.info

  const lostTurn = (turnAddress: Address.Address, lost: SidecarError.SidecarLost, isSent: boolean) =>
    TurnOutcome.failed(
      new SidecarError.TurnFailed({ address: turnAddress, phase: isSent ? "running" : "queued", reason: lost })
    )
  const gone = (error: SidecarError.NotFound | SidecarError.SidecarLost): SidecarError.SidecarLost =>
    error._tag === "SidecarLost"
      ? error
      : new SidecarError.SidecarLost({ address, detail: "the sidecar has forgotten it" })

  const hold = (turnId: Address.TurnId): Held => {
    const known = turns.get(turnId)
    if (known !== undefined) return known
    const ended = Deferred.makeUnsafe<TurnOutcome.TurnOutcome>()
    const held: Held = { ended, handle: handleOf(turnId, ended) }
    turns.set(turnId, held)
    if (turns.size > remembered) {
      for (const [id, one] of turns) {
        if (turns.size <= remembered) break
        if (Deferred.isDoneUnsafe(one.ended)) turns.delete(id)
      }
    }
    return held
  }
  /** Asks for the end of a turn, for as long as it takes. */
  const follow = (turnId: Address.TurnId, { ended }: Held): Effect.Effect<void> =>
    remote
      .roomy((rpc) => rpc["Turn.Outcome"]({ sessionId, turnId }))
      .pipe(
        Effect.catch((error) =>
          Effect.succeed(
            lostTurn(
              Address.withTurn(address, turnId),
              error._tag === "LimitExceeded"
                ? new SidecarError.SidecarLost({ address, detail: error.message })
                : gone(error),
              true
            )
          )
        ),
        Effect.flatMap((outcome) => Deferred.succeed(ended, outcome)),
        Effect.asVoid
      )

  const cancel = (turnId: Address.TurnId, ended: Held["ended"], by: "caller" | "interruption") =>
    Effect.suspend(() =>
      Deferred.isDoneUnsafe(ended)
        ? Deferred.await(ended)
        : remote
            .control((rpc) => rpc["Session.Cancel"]({ sessionId, turnId, by }))
            .pipe(Effect.ignore, Effect.andThen(Deferred.await(ended)))
    )
  /** Cancels when it is interrupted; nothing may come between the mask whose `restore` this is and this. */
  const awaited = (
    turnId: Address.TurnId,
    ended: Held["ended"],
    restore: <A>(effect: Effect.Effect<A>) => Effect.Effect<A>
  ) =>
    restore(Deferred.await(ended)).pipe(
      Effect.onInterrupt(() => cancel(turnId, ended, "interruption")),
      Effect.flatMap((outcome) => (outcome._tag === "Failed" ? Effect.fail(outcome.error) : Effect.succeed(outcome)))
    )

  /** The events that a stream ends with when the sidecar is lost: the ends of the turns that it began, then `last`. */
  const finish = (
    events: Stream.Stream<SidecarEvent.SessionEvent, SidecarError.NotFound | SidecarError.SidecarLost>,
    begun: ReadonlyArray<Address.TurnId>,
    outcomeOf: (turnId: Address.TurnId, lost: SidecarError.SidecarLost) => Effect.Effect<TurnOutcome.TurnOutcome>,
    end: (lost: SidecarError.SidecarLost) => Unnumbered | undefined
  ): Stream.Stream<SidecarEvent.SessionEvent> =>
    Stream.suspend(() => {
      const open = new Set(begun)
      let number = 0
      const pass = (event: SidecarEvent.SessionEvent): void => {
        number = event._tag === "Lagged" ? event.to - 1 : event.number
        if (event._tag === "TurnQueued") open.add(event.turnId)
        else if (event._tag === "TurnEnded") open.delete(event.turnId)
      }
      const ends = Effect.fnUntraced(function* (lost: SidecarError.SidecarLost) {
        const found: Array<Unnumbered> = []
        for (const turnId of open) found.push({ _tag: "TurnEnded", turnId, outcome: yield* outcomeOf(turnId, lost) })
        const last = end(lost)
        if (last !== undefined) found.push(last)
        const at = clock.currentTimeMillisUnsafe()
        return found.map((event): SidecarEvent.SessionEvent => ({ ...event, number: ++number, at }))
      })
      return events.pipe(
        Stream.mapArray((all) => {
          for (const event of all) pass(event)
          return all
        }),
        Stream.catch((error) => Stream.fromArrayEffect(Effect.suspend(() => ends(gone(error)))))
      )
    })
  const ofTurn = (turnId: Address.TurnId, ended: Held["ended"]): Stream.Stream<SidecarEvent.SessionEvent> =>
    finish(
      remote.stream((rpc, gate) => rpc["Turn.Updates"]({ sessionId, turnId }, gate)),
      [turnId],
      () => Deferred.await(ended),
      () => undefined
    )
  const ofSession = (from: number | undefined): Stream.Stream<SidecarEvent.SessionEvent> =>
    finish(
      remote.stream((rpc, gate) =>
        rpc["Session.Updates"](from === undefined ? { sessionId } : { sessionId, from }, gate)
      ),
      [],
      (turnId, lost) => Effect.succeed(lostTurn(Address.withTurn(address, turnId), lost, true)),
      (lost) => ({ _tag: "SessionEnded", reason: "sidecar_lost", detail: lost.message })
    )

  const handleOf = (turnId: Address.TurnId, ended: Held["ended"]): Session.Turn => ({
    id: turnId,
    address: Address.withTurn(address, turnId),
    dispatched: remote
      .patient((rpc) => rpc["Turn.Dispatched"]({ sessionId, turnId }))
      .pipe(Effect.catch(() => Effect.succeed(false))),
    updates: ofTurn(turnId, ended),
    text: Stream.mapArray(ofTurn(turnId, ended), (events) => events.flatMap(textOf) as never),
    outcome: Deferred.await(ended),
    await: Effect.uninterruptibleMask((restore) => awaited(turnId, ended, restore)),
    cancel: cancel(turnId, ended, "caller")
  })

  /** A prompt as it is sent, or why it can't be. */
  const prepare = Effect.fnUntraced(function* (
    prompt: Session.Prompt,
    submitOptions: Session.SubmitOptions = {}
  ): Effect.fn.Return<Prepared, Session.SubmitError> {
    const lost = remote.lost()
    if (lost !== undefined) return yield* unusable(address, lost)
    const capabilities = opened.initialize.agentCapabilities
    const json = PromptInput.json(address, options.limits, capabilities, PromptInput.blocks(prompt))
    if (Result.isFailure(json)) return yield* Effect.fail(json.failure)
    const trace = yield* Effect.withFiber((caller) => Effect.succeed(traceOf(caller)))
    const { idleTimeout, wallTimeout, ...rest } = submitOptions
    return {
      sessionId,
      prompt,
      options: Remote.compact({
        ...rest,
        idleTimeout: Remote.time(idleTimeout) as Session.SubmitOptions["idleTimeout"],
        wallTimeout: Remote.time(wallTimeout) as Session.SubmitOptions["wallTimeout"]
      }),
      ...(trace === undefined ? {} : { trace })
    }
  })
  const submit = Effect.fnUntraced(function* (
    prompt: Session.Prompt,
    submitOptions?: Session.SubmitOptions
  ): Effect.fn.Return<Held, Session.SubmitError> {
    const prepared = yield* prepare(prompt, submitOptions)
    if (!(yield* remote.takeRoom)) return yield* Effect.fail(Remote.full(remote.limits, address))
    const turnId = yield* remote
      .roomy((rpc) => rpc["Session.Submit"](prepared))
      .pipe(
        Effect.catchTags({
          SidecarLost: (error) => unusable(address, error),
          NotFound: (error) => unusable(address, gone(error))
        }),
        Effect.onError(() => remote.giveRoom)
      )
    const isNew = !turns.has(turnId)
    const held = hold(turnId)
    // Its answer is all that it waits for, which comes, or the connection ends.
    const following = Effect.ensuring(isNew ? follow(turnId, held) : Effect.void, remote.giveRoom)
    yield* Effect.forkIn(Effect.uninterruptible(following), scope, { startImmediately: true })
    return held
  }, Effect.uninterruptible)

  /** In one call. Interrupting it cancels the turn, and waits for its end. */
  const run = Effect.fnUntraced(function* (
    prompt: Session.Prompt,
    submitOptions: Session.SubmitOptions | undefined,
    restore: <A, E>(effect: Effect.Effect<A, E>) => Effect.Effect<A, E>
  ) {
    const prepared = yield* prepare(prompt, submitOptions)
    if (!(yield* remote.takeRoom)) return yield* Effect.fail(Remote.full(remote.limits, address))
    const outcome = yield* Remote.named(
      remote,
      (key) => remote.roomy((rpc) => rpc["Session.Run"]({ ...prepared, key })),
      restore
    ).pipe(
      Effect.catchTags({
        SidecarLost: (error) => Effect.succeed(lostTurn(address, error, true)),
        NotFound: (error) => unusable(address, gone(error))
      }),
      Effect.ensuring(remote.giveRoom)
    )
    return outcome._tag === "Failed" ? yield* Effect.fail(outcome.error) : outcome
  })

  if (options.handler !== undefined) {
    const answers = answering(remote, address, options.handler)
    const fiber = yield* Effect.forkIn(answers, remote.scope, { startImmediately: true })
    // A function of the app that can't be interrupted must not hold up the close.
    yield* Scope.addFinalizer(
      scope,
      Effect.sync(() => fiber.interruptUnsafe())
    )
  }

  const call = <A, E>(method: string, effect: Effect.Effect<A, E | SidecarError.NotFound | SidecarError.SidecarLost>) =>
    Effect.catch(effect, (error): Effect.Effect<never, E | SidecarError.AgentCallFailed> => {
      if (error instanceof SidecarError.SidecarLost)
        return Effect.fail(new SidecarError.AgentCallFailed({ address, method, reason: error }))
      return error instanceof SidecarError.NotFound
        ? Effect.fail(
            new SidecarError.AgentCallFailed({
              address,
              method,
              reason: new AcpError.HostClosed({ reason: "the session is closed" })
            })
          )
        : Effect.fail(error as E)
    })
  const settled = Effect.suspend(() =>
    Effect.forEach(Array.from(turns.values()), ({ ended }) => Deferred.await(ended), { discard: true })
  )

  return {
    id: sessionId,
    address,
    agentSessionId: opened.agentSessionId,
    profile: options.profile,
    pid: opened.pid ?? undefined,
    hostId: opened.hostId,
    initialize: opened.initialize,
    modes: opened.modes,
    configOptions: remote
      .control((rpc) => rpc["Session.ConfigOptions"]({ sessionId }))
      .pipe(Effect.catch(() => Effect.succeed([]))),
    submit: (prompt, submitOptions) => Effect.map(submit(prompt, submitOptions), ({ handle }) => handle),
    prompt: (prompt, submitOptions) => Effect.uninterruptibleMask((restore) => run(prompt, submitOptions, restore)),
    cancel: (turnId) =>
      remote
        .control((rpc) => rpc["Session.Cancel"](turnId === undefined ? { sessionId } : { sessionId, turnId }))
        .pipe(
          Effect.catch(() => Effect.succeed<Session.CancelResult>({ _tag: "NoActiveTurn" })),
          // Not before those who wait for the turn here.
          Effect.tap((result) =>
            result._tag === "Settled" && turns.has(result.turnId)
              ? Deferred.await(turns.get(result.turnId)!.ended)
              : Effect.void
          )
        ),
    updates: ofSession(undefined),
    updatesFrom: (number) => ofSession(number > 1 ? Math.min(Math.ceil(number), Number.MAX_SAFE_INTEGER) : 1),
    pendingPermissions: remote
      .control((rpc) => rpc["Session.PendingPermissions"]({ sessionId }))
      .pipe(Effect.catch(() => Effect.succeed([]))),
    answer: (permissionId, decision) =>
      remote
        .control((rpc) => rpc["Session.Answer"]({ sessionId, permissionId, decision }))
        .pipe(
          Effect.catchTags({
            SidecarLost: () => notPending(address, permissionId, "sidecar_lost"),
            NotFound: () => notPending(address, permissionId, null)
          })
        ),
    setMode: (modeId) =>
      call(
        "session/set_mode",
        remote.control((rpc) => rpc["Session.SetMode"]({ sessionId, modeId }))
      ),
    setConfigOption: (configId, value) =>
      call(
        "session/set_config_option",
        remote.control((rpc) => rpc["Session.SetConfigOption"]({ sessionId, configId, value }))
      ),
    describe: remote
      .control((rpc) => rpc["Session.Describe"]({ sessionId }))
      .pipe(
        Effect.catch(() =>
          Effect.succeed<Session.SessionInfo>({ ...last, state: "ended", turns: [], pendingPermissions: 0 })
        ),
        Effect.tap((info) => Effect.sync(() => void (last = info)))
      ),
    close: remote
      .control((rpc) => rpc["Session.Close"]({ sessionId }))
      .pipe(
        Effect.ignore,
        Effect.andThen(settled),
        Effect.andThen(Scope.close(scope, Exit.void)),
        Effect.andThen(options.onClose)
      )
  }
})

const traceOf = (caller: Fiber.Fiber<unknown, unknown>): Trace | undefined => {
  if (!Tracing.isWanted(caller)) return false
  const span = Option.getOrUndefined(Tracing.parentOf(caller))
  return span === undefined ? undefined : { traceId: span.traceId, spanId: span.spanId, sampled: span.sampled }
}

type Unnumbered = Omit<SidecarEvent.TurnEnded, "number" | "at"> | Omit<SidecarEvent.SessionEnded, "number" | "at">

const unusable = (address: Address.Address, lost: SidecarError.SidecarLost) =>
  Effect.fail(new SidecarError.SessionUnusable({ address, reason: "sidecar_lost", detail: lost.detail }))

const notPending = (address: Address.Address, permissionId: string, answeredBy: string | null) =>
  Effect.fail(new SidecarError.PermissionNotPending({ address, permissionId, answeredBy }))

/** Runs the app's function for each question, and gives up the one that was answered otherwise. */
const answering = (
  remote: Remote.Remote,
  address: Address.Address,
  handler: (question: Permission.Question) => Effect.Effect<Permission.Decision, unknown>
): Effect.Effect<void> =>
  Effect.gen(function* () {
    const sessionId = address.sessionId!
    const fibers = yield* FiberMap.make<string>()
    const decide = (key: string, decision: Permission.Decision | null) =>
      Effect.ignore(remote.control((rpc) => rpc["Session.Decide"]({ sessionId, key, decision })))
    const failed = (key: string, cause: Cause.Cause<unknown>) =>
      Effect.andThen(
        Effect.logError(`The permission handler failed for ${Address.format(address)}; rejecting`, cause),
        decide(key, null)
      )
    yield* remote
      .stream((rpc, gate) => rpc["Session.Questions"]({ sessionId }, gate))
      .pipe(
        Stream.runForEach((asked) => {
          if (asked._tag === "Withdraw") {
            return Effect.map(FiberMap.get(fibers, asked.key), (fiber) => {
              if (fiber._tag === "Some") fiber.value.interruptUnsafe()
            })
          }
          const answer = Effect.suspend(() => handler(asked.question)).pipe(
            Effect.exit,
            Effect.flatMap((exit) => {
              if (Exit.isFailure(exit)) return failed(asked.key, exit.cause)
              // What is no decision can't be sent.
              return Effect.catchCause(decide(asked.key, exit.value), (cause) => failed(asked.key, cause))
            })
          )
          return FiberMap.run(fibers, asked.key, answer, { startImmediately: true })
        })
      )
  }).pipe(Effect.scoped, Effect.ignore)
