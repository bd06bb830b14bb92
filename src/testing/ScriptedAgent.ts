/**
 * An agent that does what a test says, in memory.
 *
 * @since 0.1.0
 */

import * as Cause from "effect/Cause"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberMap from "effect/FiberMap"
import * as Latch from "effect/Latch"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as AcpCodec from "../acp/AcpCodec.ts"
import * as AcpConnection from "../acp/AcpConnection.ts"
import * as AcpProtocol from "../acp/AcpProtocol.ts"
import type { Acp, SessionUpdate } from "../acp/AcpSchema.ts"
import * as AcpTransport from "../acp/AcpTransport.ts"

/**
 * What an agent answers: a result, or a `Refusal` made with `AcpConnection.refusal`. `Effect.never` hangs.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Answer<A = unknown> = Effect.Effect<A, AcpConnection.Refusal>

/**
 * How a scripted agent behaves. What is left out behaves as a well-mannered agent does: it answers `initialize` and
 * `session/new`, any number of them with an id each, says `ok` to a prompt, and ends a cancelled turn with `cancelled`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Script {
  readonly initialize?: ((agent: ScriptedAgent) => Answer) | undefined
  readonly authenticate?: ((agent: ScriptedAgent, params: unknown) => Answer) | undefined
  readonly newSession?: ((agent: ScriptedAgent, params: unknown) => Answer) | undefined
  /**
   * The answer to `session/load`: by default `{}`, when `capabilities` say that it can. What it replays is sent from here,
   * with `agent.update`.
   */
  readonly loadSession?: ((agent: ScriptedAgent, sessionId: string, params: unknown) => Answer) | undefined
  readonly resumeSession?: ((agent: ScriptedAgent, sessionId: string, params: unknown) => Answer) | undefined
  /** One page. By default all of its sessions that are not closed, when `capabilities` say that it can. */
  readonly listSessions?: ((agent: ScriptedAgent, params: unknown) => Answer) | undefined
  readonly closeSession?: ((agent: ScriptedAgent, sessionId: string) => Answer) | undefined
  /** What it does between being told to end and being gone; `Effect.never` for one that can't be killed. */
  readonly end?: Effect.Effect<void> | undefined
  /** Any other request. `-32601` by default. */
  readonly request?: ((agent: ScriptedAgent, method: string, params: unknown) => Answer) | undefined
  /**
   * One turn. Its result is the stop reason. `manual` leaves every prompt to the test, which takes it from `prompts`
   * and ends it itself.
   */
  readonly prompt?: ((turn: PromptTurn, agent: ScriptedAgent) => Answer<string>) | "manual" | undefined
  /**
   * Whether `session/cancel` is not acted upon; `false` by default. `first`: only the second one of a turn is, as with an
   * agent that loses a cancel which comes before it has begun.
   */
  readonly ignoreCancel?: boolean | "first" | undefined
  /** Merged into the answer to `initialize`. */
  readonly capabilities?: Acp.AgentCapabilities | undefined
  readonly authMethods?: ReadonlyArray<{ readonly id: string; readonly name: string }> | undefined
}

/**
 * A prompt that the agent got, and the ways to go on with it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface PromptTurn {
  readonly requestId: string | number | null
  readonly sessionId: string
  /** The text of the prompt's text blocks. */
  readonly text: string
  readonly blocks: ReadonlyArray<Acp.ContentBlock>
  readonly say: (text: string) => Effect.Effect<void>
  readonly update: (update: SessionUpdate | Readonly<Record<string, unknown>>) => Effect.Effect<void>
  /**
   * Asks for permission, with `allow` and `reject` (both `_once`) unless other options are given, for the tool call
   * `tool-1` "run it" unless another id, or a `title`, `kind`, … that a policy looks at, are given. Interrupting it
   * takes the question back.
   */
  readonly ask: (
    options?: ReadonlyArray<Acp.PermissionOption>,
    toolCall?: string | Partial<Acp.ToolCallUpdate>
  ) => Effect.Effect<PermissionAnswer>
  /** Ends the turn. A second call sends a second answer, as broken agents do. */
  readonly end: (stopReason?: string) => Effect.Effect<void>
  readonly fail: (code: number, message: string, data?: unknown) => Effect.Effect<void>
  /** Resolves when `session/cancel` for this turn has come. */
  readonly cancelled: Effect.Effect<void>
}

/**
 * How the host answered a question: the chosen option, `cancelled`, or the code of an error.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type PermissionAnswer =
  | { readonly _tag: "Selected"; readonly optionId: string }
  | { readonly _tag: "Cancelled" }
  | { readonly _tag: "Error"; readonly code: number }

/**
 * A running scripted agent. Everything that it saw is in its queues, in order.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface ScriptedAgent {
  readonly transport: AcpTransport.AcpTransport
  /** Every frame that the host sent. */
  readonly received: Queue.Dequeue<AcpCodec.Frame>
  /** Every prompt that the host sent. */
  readonly prompts: Queue.Dequeue<PromptTurn>
  /** The session id of every `session/cancel`. */
  readonly cancels: Queue.Dequeue<string>
  /** The ids that it gave or went on with, and has not closed. */
  readonly sessions: () => ReadonlyArray<string>
  /** The names of all methods that the host has called, in order. */
  readonly methods: () => ReadonlyArray<string>
  /** The request ids of all questions that it has asked, in order. */
  readonly questions: () => ReadonlyArray<string>
  readonly update: (sessionId: string, update: SessionUpdate | Readonly<Record<string, unknown>>) => Effect.Effect<void>
  readonly ask: (
    sessionId: string,
    options?: ReadonlyArray<Acp.PermissionOption>,
    toolCall?: string | Partial<Acp.ToolCallUpdate>
  ) => Effect.Effect<PermissionAnswer>
  /** Writes text or bytes as they are, line breaks included: noise, broken frames, whatever. */
  readonly write: (raw: string | Uint8Array) => Effect.Effect<void>
  readonly send: (frame: AcpCodec.Envelope) => Effect.Effect<void>
  /** Runs an effect and lets all that it wrote reach the host as one piece. */
  readonly together: <A, E, R>(effect: Effect.Effect<A, E, R>) => Effect.Effect<A, E, R>
  /** Stops and starts reading what the host sends. */
  readonly pause: Effect.Effect<void>
  readonly resume: Effect.Effect<void>
  /** Dies: what was written before still arrives. */
  readonly crash: (how?: {
    readonly code?: number
    readonly signal?: string
    readonly stderrTail?: string
  }) => Effect.Effect<void>
  /** Closes its output and lives on. */
  readonly closeOutput: Effect.Effect<void>
  /** Resolves when the host has ended it or it has died. */
  readonly gone: Effect.Effect<AcpTransport.TransportEnd>
  readonly isGone: () => boolean
}

const options: ReadonlyArray<Acp.PermissionOption> = [
  { optionId: "allow", name: "Allow", kind: "allow_once" },
  { optionId: "reject", name: "Reject", kind: "reject_once" }
]

/** A turn under way, and whether it takes no notice of its next cancel. */
interface Active {
  readonly cancelled: Deferred.Deferred<void>
  isDeaf: boolean
}

const textOf = (blocks: ReadonlyArray<Acp.ContentBlock>): string =>
  blocks.map((block) => (block.type === "text" ? block.text : "")).join("")

/**
 * Starts a scripted agent, which lives until its scope closes, the host ends it, or it crashes.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = Effect.fnUntraced(function* (
  script: Script = {}
): Effect.fn.Return<ScriptedAgent, never, Scope.Scope> {
  const toAgent = yield* Queue.bounded<Uint8Array, Cause.Done>(1024)
  const toHost = yield* Queue.unbounded<Uint8Array, Cause.Done>()
  const received = yield* Queue.unbounded<AcpCodec.Frame>()
  const prompts = yield* Queue.unbounded<PromptTurn>()
  const cancels = yield* Queue.unbounded<string>()
  const gone = Deferred.makeUnsafe<AcpTransport.TransportEnd>()
  const reading = yield* Latch.make(true)
  const fibers = yield* FiberMap.make<string>()
  const asked = new Map<string | number, Deferred.Deferred<PermissionAnswer>>()
  const running = new Map<string, Set<Active>>()
  const methods: Array<string> = []
  const questions: Array<string> = []
  const sessions = new Map<string, string>()
  let made = 0
  let requests = 0
  let batch: Array<Uint8Array> | undefined
  let together = 0

  const die = (end: AcpTransport.TransportEnd): Effect.Effect<void> =>
    Effect.sync(() => {
      Queue.endUnsafe(toAgent)
      Queue.endUnsafe(toHost)
      Deferred.doneUnsafe(gone, Exit.succeed(end))
    })
  const putUnsafe = (bytes: Uint8Array): void => {
    if (batch === undefined) Queue.offerUnsafe(toHost, bytes)
    else batch.push(bytes)
  }
  const put = (bytes: Uint8Array): Effect.Effect<void> => Effect.sync(() => putUnsafe(bytes))
  let wake = (): void => {}
  const transport: AcpTransport.AcpTransport = {
    incoming: Stream.fromQueue(toHost),
    send: (frame) => Queue.offerUnsafe(toAgent, frame),
    onRoom: (listener) => {
      wake = listener
    },
    ended: Deferred.await(gone),
    pid: undefined,
    stderrTail: () => "",
    close: Effect.andThen(script.end ?? Effect.void, die(AcpTransport.exited({ code: 0 })))
  }
  yield* Effect.addFinalizer(() => transport.close)

  const send = (frame: AcpCodec.Envelope): Effect.Effect<void> => put(AcpCodec.encode(frame))
  const update: ScriptedAgent["update"] = (sessionId, value) =>
    put(AcpCodec.encodeNotification(AcpProtocol.method.sessionUpdate, { sessionId, update: value }))
  const ask: ScriptedAgent["ask"] = (sessionId, offered = options, given = {}) =>
    Effect.suspend(() => {
      const id = `ask-${++requests}`
      const answer = Deferred.makeUnsafe<PermissionAnswer>()
      asked.set(id, answer)
      const withdraw = Effect.suspend(() =>
        asked.has(id) ? send({ method: AcpProtocol.method.cancelRequest, params: { requestId: id } }) : Effect.void
      )
      const chosen = typeof given === "string" ? { toolCallId: given } : given
      const toolCall = { toolCallId: "tool-1", title: "run it", ...chosen }
      const params = { sessionId, toolCall, options: offered }
      // Noted and sent in one step.
      questions.push(id)
      putUnsafe(AcpCodec.encodeRequest(id, AcpProtocol.method.requestPermission, params))
      return Effect.onInterrupt(Deferred.await(answer), () => withdraw)
    })

  const agent: ScriptedAgent = {
    transport,
    received,
    prompts,
    cancels,
    sessions: () => Array.from(sessions.keys()),
    methods: () => methods,
    questions: () => questions,
    update,
    ask,
    write: (raw) => put(typeof raw === "string" ? new TextEncoder().encode(raw) : raw),
    send,
    // Those that overlap are one piece, which is sent when the last of them ends.
    together: (effect) =>
      Effect.acquireUseRelease(
        Effect.sync(() => {
          batch ??= []
          together++
        }),
        () => effect,
        () =>
          Effect.suspend(() => {
            if (--together > 0) return Effect.void
            const pieces = batch ?? []
            batch = undefined
            return pieces.length === 0 ? Effect.void : put(joined(pieces))
          })
      ),
    pause: Effect.asVoid(reading.close),
    resume: Effect.asVoid(reading.open),
    crash: (how) => die(AcpTransport.exited(how ?? { code: 1 })),
    closeOutput: Effect.sync(() => Queue.endUnsafe(toHost)),
    gone: Deferred.await(gone),
    isGone: () => Deferred.isDoneUnsafe(gone)
  }

  const onPrompt = (frame: AcpCodec.Request): Answer | undefined => {
    const params = frame.params as Acp.PromptRequest
    const { prompt: blocks, sessionId } = params
    const cancelled = Deferred.makeUnsafe<void>()
    const turns = running.get(sessionId) ?? new Set()
    const active: Active = { cancelled, isDeaf: script.ignoreCancel === "first" }
    running.set(sessionId, turns.add(active))
    const turn: PromptTurn = {
      requestId: frame.id,
      sessionId,
      blocks,
      text: textOf(blocks),
      say: (text) => update(sessionId, { sessionUpdate: "agent_message_chunk", content: { type: "text", text } }),
      update: (value) => update(sessionId, value),
      ask: (offered, toolCall) => ask(sessionId, offered, toolCall),
      end: (stopReason = "end_turn") => send({ id: frame.id, result: { stopReason } }),
      fail: (code, message, data) => put(AcpCodec.encodeError(frame.id, AcpConnection.refusal(code, message, data))),
      cancelled: Deferred.await(cancelled)
    }
    Queue.offerUnsafe(prompts, turn)
    if (script.prompt === "manual") return undefined
    const work = Effect.suspend(() =>
      script.prompt === undefined || script.prompt === "manual"
        ? Effect.as(turn.say("ok"), "end_turn")
        : script.prompt(turn, agent)
    )
    const polite = script.ignoreCancel === true ? work : Effect.raceFirst(work, Effect.as(turn.cancelled, "cancelled"))
    return polite.pipe(
      Effect.map((stopReason) => ({ stopReason })),
      Effect.ensuring(Effect.sync(() => turns.delete(active)))
    )
  }

  const capabilities = script.capabilities ?? {}
  const ifAble = (frame: AcpCodec.Request, isAble: boolean, answer: unknown): Answer =>
    isAble ? Effect.succeed(answer) : Effect.fail(AcpConnection.methodNotFound(frame.method))
  const open = (id: unknown, params: unknown): Effect.Effect<void> =>
    Effect.sync(() => {
      if (typeof id === "string") sessions.set(id, String((params as { readonly cwd?: unknown }).cwd))
    })
  const listed = (): ReadonlyArray<Acp.SessionInfo> => Array.from(sessions, ([sessionId, cwd]) => ({ sessionId, cwd }))

  const answerTo = (frame: AcpCodec.Request): Answer | undefined => {
    switch (frame.method) {
      case AcpProtocol.method.initialize:
        return (
          script.initialize?.(agent) ??
          Effect.succeed({
            protocolVersion: 1,
            agentCapabilities: script.capabilities ?? {},
            authMethods: script.authMethods ?? [],
            agentInfo: { name: "scripted", version: "1" }
          })
        )
      case AcpProtocol.method.authenticate:
        return script.authenticate?.(agent, frame.params) ?? Effect.succeed({})
      case AcpProtocol.method.sessionNew:
        return Effect.tap(
          script.newSession?.(agent, frame.params) ?? Effect.sync(() => ({ sessionId: `agent-session-${++made}` })),
          (answer) => open((answer as { readonly sessionId?: unknown } | null)?.sessionId, frame.params)
        )
      case AcpProtocol.method.sessionLoad: {
        const { sessionId } = frame.params as Acp.LoadSessionRequest
        const answer =
          script.loadSession?.(agent, sessionId, frame.params) ?? ifAble(frame, capabilities.loadSession === true, {})
        return Effect.tap(answer, () => open(sessionId, frame.params))
      }
      case AcpProtocol.method.sessionResume: {
        const { sessionId } = frame.params as Acp.ResumeSessionRequest
        const answer =
          script.resumeSession?.(agent, sessionId, frame.params) ??
          ifAble(frame, capabilities.sessionCapabilities?.resume != null, {})
        return Effect.tap(answer, () => open(sessionId, frame.params))
      }
      case AcpProtocol.method.sessionList:
        return (
          script.listSessions?.(agent, frame.params) ??
          Effect.suspend(() => ifAble(frame, capabilities.sessionCapabilities?.list != null, { sessions: listed() }))
        )
      case AcpProtocol.method.sessionClose: {
        const { sessionId } = frame.params as Acp.CloseSessionRequest
        return Effect.tap(script.closeSession?.(agent, sessionId) ?? Effect.succeed({}), () =>
          Effect.sync(() => sessions.delete(sessionId))
        )
      }
      case AcpProtocol.method.sessionPrompt:
        return onPrompt(frame)
      default:
        return (
          script.request?.(agent, frame.method, frame.params) ?? Effect.fail(AcpConnection.methodNotFound(frame.method))
        )
    }
  }

  const onFrame = (frame: AcpCodec.Frame): Effect.Effect<void> => {
    if (frame._tag === "Response") {
      const answer = frame.id === null ? undefined : asked.get(frame.id)
      if (answer === undefined) return Effect.void
      asked.delete(frame.id!)
      Deferred.doneUnsafe(answer, Exit.succeed(permissionAnswer(frame)))
      return Effect.void
    }
    methods.push(frame.method)
    if (frame._tag === "Notification") {
      if (frame.method !== AcpProtocol.method.sessionCancel) return Effect.void
      const { sessionId } = frame.params as { readonly sessionId: string }
      Queue.offerUnsafe(cancels, sessionId)
      for (const active of running.get(sessionId) ?? []) {
        if (!active.isDeaf) Deferred.doneUnsafe(active.cancelled, Exit.void)
        active.isDeaf = false
      }
      return Effect.void
    }
    const answer = answerTo(frame)
    if (answer === undefined) return Effect.void
    const reply = answer.pipe(
      Effect.matchEffect({
        onSuccess: (result) => send({ id: frame.id, result }),
        onFailure: (error) => put(AcpCodec.encodeError(frame.id, error))
      })
    )
    return Effect.asVoid(FiberMap.run(fibers, `${++requests}`, reply, { startImmediately: true }))
  }

  const decoder = AcpCodec.makeDecoder()
  yield* Stream.fromQueue(toAgent).pipe(
    Stream.mapArray((frames) => {
      wake()
      return frames
    }),
    Stream.runForEach((bytes) =>
      Effect.andThen(
        reading.await,
        Effect.forEach(
          decoder.push(bytes),
          (outcome) => {
            if (outcome._tag !== "Request" && outcome._tag !== "Notification" && outcome._tag !== "Response") {
              return Effect.die(new Error(`The host sent something that is no frame: ${outcome._tag}`))
            }
            Queue.offerUnsafe(received, outcome)
            return onFrame(outcome)
          },
          { discard: true }
        )
      )
    ),
    Effect.forkScoped({ startImmediately: true })
  )
  return agent
})

const joined = (pieces: ReadonlyArray<Uint8Array>): Uint8Array => {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0))
  let at = 0
  for (const piece of pieces) {
    whole.set(piece, at)
    at += piece.length
  }
  return whole
}

const permissionAnswer = (frame: AcpCodec.Response): PermissionAnswer => {
  if (frame.error !== undefined) return { _tag: "Error", code: frame.error.code }
  const outcome = (frame.result as Acp.RequestPermissionResponse).outcome
  return outcome.outcome === "selected" ? { _tag: "Selected", optionId: outcome.optionId } : { _tag: "Cancelled" }
}
