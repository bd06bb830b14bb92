/**
 * How a session is opened at an agent that may carry many of them, and closed there. For those who need an agent without
 * a sidecar around it; an app opens sessions with `Vm.openSession`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type * as AcpConnection from "./acp/AcpConnection.ts"
import * as AcpError from "./acp/AcpError.ts"
import * as AcpProtocol from "./acp/AcpProtocol.ts"
import * as AcpSchema from "./acp/AcpSchema.ts"
import type { AgentHost, Start } from "./AgentHost.ts"
import * as Openings from "./internal/openings.ts"
import * as SessionRouter from "./SessionRouter.ts"
import * as SidecarError from "./SidecarError.ts"

/**
 * How a session comes to be: as a new one; as one that the agent has had before, whose history it replays (`Load`); or as
 * such a one without a replay (`Resume`). Not all agents offer the latter two.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type How =
  | { readonly _tag: "New" }
  | { readonly _tag: "Load"; readonly agentSessionId: string }
  | { readonly _tag: "Resume"; readonly agentSessionId: string }

/**
 * What a session is opened with. When the agent wants its user to sign in and `authenticate` names one of its methods,
 * that is done once and the session asked for again.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  readonly how: How
  readonly cwd: string
  readonly mcpServers?: ReadonlyArray<AcpSchema.Acp.McpServer> | undefined
  readonly authenticate?: string | undefined
  readonly route: SessionRouter.Route
  /**
   * Of `Load` and `Resume`: what the route was told until now is history, what it is told from now on is not. Runs in the
   * reader, at the agent's answer, before `onOpen`.
   */
  readonly onReplayEnd?: (() => void) | undefined
  /** Runs in the reader, between what came before the agent's answer and what comes after it. */
  readonly onOpen?: ((response: AcpSchema.Acp.NewSessionResponse) => void) | undefined
}

/**
 * A session of the agent, and its answer; that to `session/load` or `session/resume` with the id added.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface HostedSession {
  readonly agentSessionId: string
  readonly response: AcpSchema.Acp.NewSessionResponse
}

type Read = Result.Result<AcpSchema.Acp.NewSessionResponse, string>

type State =
  | { readonly _tag: "Idle" }
  | { readonly _tag: "Asked"; readonly pending: AcpConnection.Pending | undefined }
  | { readonly _tag: "Open"; readonly hosted: HostedSession }
  /** Whoever asked has gone. `late` is what the agent's answer gave all the same, to be closed. */
  | { readonly _tag: "Left"; late: string | undefined }

/** One opening, which the fiber that asked and the reader move on. */
interface Attempt {
  state: State
  /** What is wrong with the agent's answer. */
  problem: AcpError.InvalidResponse | undefined
  claim: Openings.Claim | undefined
  /** Requests for its session need not wait any more. */
  unexpect: () => void
}

const idle: State = { _tag: "Idle" }

const methods = {
  New: AcpProtocol.method.sessionNew,
  Load: AcpProtocol.method.sessionLoad,
  Resume: AcpProtocol.method.sessionResume
} as const

/**
 * Opens a session on a host, into the current scope, which closes it at the agent (see {@link close}) and then its route.
 *
 * The route of a new or resumed session exists before the frame after the agent's answer is read, and what came early for
 * it is delivered first; that of a loaded one exists from the request on, as its history comes before the answer. An
 * opening that is interrupted delivers nothing more: the agent is told that it is off, and what its late answer gives is
 * closed, behind the caller and without costing it time.
 *
 * Nothing that goes wrong here touches other sessions of the host. An agent that can't load or resume fails it with
 * `NotSupported`, an id that is open or no id with `UnusableSessionId`, a refusal of one more session beside others with
 * `OneSessionOnly`, an answer that can't be used with `InvalidResponse`, and one that wants a sign-in with `AuthRequired`.
 *
 * @stability unstable
 * @category sessions
 * @since 0.1.0
 */
export const open = (
  host: AgentHost,
  options: Options,
  progress: Start
): Effect.Effect<HostedSession, SidecarError.StartReason, Scope.Scope> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const clock = yield* Clock.Clock
      const now = () => clock.currentTimeMillisUnsafe()
      const attempt: Attempt = { state: idle, problem: undefined, claim: undefined, unexpect: () => {} }
      yield* Effect.addFinalizer(() =>
        Effect.suspend(() => {
          const { state } = attempt
          // The scope may close before whoever opens it is interrupted, and what comes then is for nobody.
          if (state._tag !== "Open") return leave(host, options, attempt, now)
          const id = state.hosted.agentSessionId
          return Effect.ensuring(
            closeOwn(host, id, options.route),
            Effect.sync(() => SessionRouter.unregister(host.router, id, options.route, now()))
          )
        })
      )
      return yield* Effect.onExit(restore(openWith(host, options, progress, attempt, now)), (exit) =>
        Exit.isSuccess(exit) ? Effect.void : leave(host, options, attempt, now)
      )
    })
  )

const openWith = Effect.fnUntraced(function* (
  host: AgentHost,
  options: Options,
  progress: Start,
  attempt: Attempt,
  now: () => number
): Effect.fn.Return<HostedSession, SidecarError.StartReason> {
  const { how } = options
  const { openings } = host
  if (how._tag !== "New") {
    progress.phase = methods[how._tag]
    const refusal = unsupported(host, how)
    if (refusal !== undefined) return yield* refusal
    const problem = idProblem(how.agentSessionId)
    if (problem !== undefined) return yield* new SidecarError.UnusableSessionId({ problem })
    yield* claim(host, how.agentSessionId, attempt, now)
  }
  const ask = Effect.suspend(() => request(host, options, progress, attempt, now))
  const before = openings.signedIn
  yield* ask.pipe(
    Effect.catchTag("RequestError", (error) =>
      wantsSignIn(error)
        ? Effect.andThen(signIn(host, options.authenticate, progress, error.detail, before), ask)
        : Effect.fail(error)
    ),
    Effect.catchTag("RequestError", (error) => Effect.fail(refused(host, error)))
  )
  if (attempt.problem !== undefined) return yield* attempt.problem
  if (attempt.state._tag === "Left") return yield* Effect.interrupt
  // A hook that throws fails the request, so that it is open here.
  return (attempt.state as Extract<State, { readonly _tag: "Open" }>).hosted
})

/** Asks the agent, once. What it answers is decided on in the reader. */
const request = (
  host: AgentHost,
  options: Options,
  progress: Start,
  attempt: Attempt,
  now: () => number
): Effect.Effect<unknown, AcpError.RequestFailure | SidecarError.UnusableSessionId> => {
  const { how, route } = options
  const { connection, openings, router } = host
  const method = methods[how._tag]
  // Whoever watches it takes each for a step of its own.
  if (progress.phase !== method) progress.phase = method

  const onResponse = (result: unknown): void => {
    const read = answer(how, result)
    if (attempt.state._tag === "Left") return onLate(attempt.state, read)
    attempt.state = idle
    if (Result.isFailure(read)) {
      attempt.problem = new AcpError.InvalidResponse({ method, detail: host.redact(read.failure) })
      return
    }
    const id = read.success.sessionId
    const taken = router.routes.get(id) === route ? undefined : SessionRouter.refusal(router, id, now())
    if (taken !== undefined) {
      const why =
        taken === "open"
          ? "is open; it seems to carry only one session per process: share: false in its profile gives each its own"
          : "was put out; try again"
      const detail = `the agent gave the id of a session that ${why}`
      attempt.problem = new AcpError.InvalidResponse({ method, detail })
      return
    }
    SessionRouter.register(router, id, route, now(), { isExisting: how._tag !== "New" })
    openings.open.set(id, route)
    attempt.state = { _tag: "Open", hosted: { agentSessionId: id, response: read.success } }
    releaseClaim(host, how, attempt)
    if (how._tag !== "New") options.onReplayEnd?.()
    options.onOpen?.(read.success)
  }
  /** Nobody gets it; but an id that somebody has by now is theirs. */
  const onLate = (left: Extract<State, { readonly _tag: "Left" }>, read: Read): void => {
    if (Result.isFailure(read)) return
    const id = read.success.sessionId
    const claimed = openings.claims.get(id)
    if (router.routes.has(id) || (claimed !== undefined && claimed !== attempt.claim)) return
    Openings.bury(router, id, now())
    left.late = id
    if (claimed === undefined) attempt.claim = Openings.claim(openings, id)
    attempt.claim!.isLeft = true
  }
  const onSettled = (exit: Exit.Exit<unknown, AcpError.RequestFailure>): void => {
    attempt.unexpect()
    if (Exit.isFailure(exit) && attempt.state._tag === "Asked") attempt.state = idle
  }

  return Effect.uninterruptibleMask((restore) =>
    Effect.suspend((): Effect.Effect<unknown, AcpError.RequestFailure | SidecarError.UnusableSessionId> => {
      if (attempt.state._tag === "Left") return Effect.interrupt
      if (how._tag === "Load") {
        const taken = SessionRouter.refusal(router, how.agentSessionId, now())
        if (taken !== undefined) return Effect.fail(unusable(taken))
        SessionRouter.register(router, how.agentSessionId, route, now(), { isExisting: true })
      } else {
        attempt.unexpect = SessionRouter.expect(router, how._tag === "New" ? undefined : how.agentSessionId)
      }
      // Before it is sent, as the reader may have the answer before this fiber goes on.
      const asked: State = { _tag: "Asked", pending: undefined }
      attempt.state = asked
      const params = { cwd: options.cwd, mcpServers: [...(options.mcpServers ?? [])] }
      const hooks = { onResponse, onSettled }
      const start =
        how._tag === "New"
          ? connection.start(AcpProtocol.method.sessionNew, params, hooks)
          : connection.start(methods[how._tag], { ...params, sessionId: how.agentSessionId }, hooks)
      return start.pipe(
        Effect.onError(() =>
          Effect.sync(() => {
            attempt.unexpect()
            attempt.state = idle
          })
        ),
        Effect.flatMap((pending) => {
          if (attempt.state === asked) attempt.state = { _tag: "Asked", pending }
          return restore(pending.response)
        }),
        // Its route ends here, and a sign-in makes another.
        Effect.tapError(() => Effect.sync(() => endLoad(host, options, now)))
      )
    })
  )
}

const endLoad = (host: AgentHost, { how, route }: Options, now: () => number): void => {
  if (how._tag === "Load") SessionRouter.unregister(host.router, how.agentSessionId, route, now())
}

/** The caller has gone, or the opening has failed: gives up what there is of it, behind the caller. */
const leave = (host: AgentHost, options: Options, attempt: Attempt, now: () => number): Effect.Effect<void> =>
  Effect.suspend(() => {
    const { how, route } = options
    const { openings, router } = host
    const { state } = attempt
    if (state._tag === "Left") return Effect.void
    attempt.unexpect()
    endLoad(host, options, now)
    const left: State = { _tag: "Left", late: undefined }
    attempt.state = left
    const end = Effect.suspend(() => (left.late === undefined ? Effect.void : openings.closeAt(left.late)))
    const free = Effect.sync(() => releaseClaim(host, how, attempt, left.late))
    if (attempt.claim !== undefined) attempt.claim.isLeft = true
    if (state._tag === "Asked" && state.pending !== undefined) {
      const { pending } = state
      const wait = Effect.andThen(pending.cancel, Effect.exit(pending.response))
      return openings.behind(Effect.ensuring(Effect.andThen(wait, end), Effect.andThen(pending.abandon, free)))
    }
    if (state._tag === "Open") {
      const id = state.hosted.agentSessionId
      SessionRouter.unregister(router, id, route, now())
      if (openings.open.get(id) === route) {
        openings.open.delete(id)
        left.late = id
        attempt.claim = Openings.claim(openings, id)
        attempt.claim.isLeft = true
        return openings.behind(Effect.ensuring(end, free))
      }
    }
    return free
  })

const releaseClaim = (host: AgentHost, how: How, attempt: Attempt, id?: string): void => {
  const { claim } = attempt
  if (claim === undefined) return
  attempt.claim = undefined
  Openings.release(host.openings, how._tag === "New" ? id! : how.agentSessionId, claim)
}

const unusable = (why: NonNullable<ReturnType<typeof SessionRouter.refusal>>): SidecarError.UnusableSessionId => {
  const problem = {
    open: "this session of the agent is open here; use that one, or close it first",
    quarantined: "this session was put out, as it harmed others of its process; open a new one, or try again later",
    too_long: "it is too long"
  }[why]
  return new SidecarError.UnusableSessionId({ problem })
}

/** Claims an id for an opening. One that was left is waited for, as its end would end this one too. */
const claim = (
  host: AgentHost,
  id: string,
  attempt: Attempt,
  now: () => number
): Effect.Effect<void, SidecarError.UnusableSessionId | AcpError.ConnectionEnd> =>
  Effect.suspend((): Effect.Effect<void, SidecarError.UnusableSessionId | AcpError.ConnectionEnd> => {
    const { connection, openings, router } = host
    const other = openings.claims.get(id)
    const taken = other?.isLeft === false ? "open" : SessionRouter.refusal(router, id, now())
    if (taken !== undefined) return Effect.fail(unusable(taken))
    if (other === undefined) {
      attempt.claim = Openings.claim(openings, id)
      return Effect.void
    }
    return Effect.raceFirst(Deferred.await(other.isOver), Effect.flatMap(connection.ended, Effect.fail)).pipe(
      Effect.andThen(claim(host, id, attempt, now))
    )
  })

const answer = (how: How, result: unknown): Read => {
  if (how._tag !== "New") {
    const sessionId = how.agentSessionId
    return Result.map(AcpSchema.reopenedResponse(result), (response) => ({ ...response, sessionId }))
  }
  const id = (result as { readonly sessionId?: unknown } | null | undefined)?.sessionId
  const problem = typeof id === "string" ? idProblem(id) : "it has no session id"
  return problem === undefined ? AcpSchema.newSessionResponse(result) : Result.fail(problem)
}

const maxIdLength = 1024

const idProblem = (id: string): string | undefined =>
  id === ""
    ? "its session id is empty"
    : id.length > maxIdLength
      ? `its session id has ${id.length} characters, and ${maxIdLength} are allowed`
      : undefined

const unsupported = (host: AgentHost, how: How): SidecarError.NotSupported | undefined => {
  const { initialize, protocol } = host
  const canLoad = protocol.canLoad(initialize.agentCapabilities)
  const canResume = protocol.canResume(initialize.agentCapabilities)
  if (how._tag === "Load" ? canLoad : canResume) return undefined
  const instead =
    how._tag === "Load" && canResume
      ? "resume the session, which goes on without its history (session/resume), or open a new one"
      : how._tag === "Resume" && canLoad
        ? "load the session, which replays its history first (session/load), or open a new one"
        : "open a new session, as it can't go on with one that it has had"
  return new SidecarError.NotSupported({ method: methods[how._tag], instead })
}

const refused = (
  host: AgentHost,
  error: AcpError.RequestError
): AcpError.RequestError | SidecarError.AuthRequired | SidecarError.OneSessionOnly => {
  const { code, detail, method } = error
  if (wantsSignIn(error)) return authRequired(host, detail)
  const others = host.router.routes.size
  if (method !== AcpProtocol.method.sessionNew || others === 0 || isOwnFault.has(code)) return error
  return new SidecarError.OneSessionOnly({ code, detail, others })
}

/** These say what is wrong with the request, or that it is off, whatever else the process has. */
const isOwnFault: ReadonlySet<number> = new Set([
  AcpError.code.invalidParams,
  AcpError.code.methodNotFound,
  AcpError.code.requestCancelled
])

/**
 * Ends a session at the agent with `session/close`, where the agent offers that; within `closeTimeout`, whether it
 * answers or not. Its route stays, until the scope that it was opened in closes. For an id that is not open, or was closed
 * before, nothing happens. It never fails.
 *
 * @stability unstable
 * @category sessions
 * @since 0.1.0
 */
export const close = (host: AgentHost, agentSessionId: string): Effect.Effect<void> =>
  Effect.suspend(() => closeOwn(host, agentSessionId, host.openings.open.get(agentSessionId)))

/**
 * As {@link close}, for a caller that bounds the time itself and wants to know how it went. It counts as closed from here
 * on, and is not asked for again at the end of its scope.
 *
 * @stability unstable
 * @category sessions
 * @since 0.1.0
 */
export const requestClose = (
  host: AgentHost,
  agentSessionId: string
): Effect.Effect<unknown, AcpError.RequestFailure> =>
  Effect.suspend(() =>
    host.openings.open.delete(agentSessionId) ? host.openings.requestClose(agentSessionId) : Effect.void
  )

const closeOwn = (host: AgentHost, id: string, route: SessionRouter.Route | undefined): Effect.Effect<void> =>
  Effect.suspend(() => {
    const { openings } = host
    if (route === undefined || openings.open.get(id) !== route) return Effect.void
    openings.open.delete(id)
    return openings.closeAt(id)
  })

/**
 * How many sessions of a host are being ended behind openers that went away: at most 64, each for at most ten minutes.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const left = (host: AgentHost): number => host.openings.left.size

/**
 * Sessions that the agent has had, as it lists them. `isComplete` is `false` when there are more than were asked for, or
 * when the agent's pages go round in circles.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Listed {
  readonly sessions: ReadonlyArray<AcpSchema.Acp.SessionInfo>
  readonly isComplete: boolean
}

/** Pages of a list that are asked for: an agent may send them empty for ever. */
const maxPages = 100

/**
 * Lists the sessions that the agent has had, those of the folder `cwd` if one is given, page by page: at most `max` of
 * them (1,000 unless given), of at most 100 pages. The caller bounds the time.
 *
 * @stability unstable
 * @category sessions
 * @since 0.1.0
 */
export const list = Effect.fnUntraced(function* (
  host: AgentHost,
  options: { readonly cwd?: string | undefined; readonly max?: number | undefined } = {}
): Effect.fn.Return<Listed, AcpError.RequestFailure | SidecarError.NotSupported> {
  const method = AcpProtocol.method.sessionList
  if (!host.protocol.canList(host.initialize.agentCapabilities)) {
    return yield* new SidecarError.NotSupported({ method, instead: "keep the ids of its sessions where you open them" })
  }
  const { cwd, max = 1000 } = options
  const sessions: Array<AcpSchema.Acp.SessionInfo> = []
  const seen = new Set<string>()
  let cursor: string | undefined
  for (let page = 0; page < maxPages; page++) {
    const params = { ...(cwd === undefined ? {} : { cwd }), ...(cursor === undefined ? {} : { cursor }) }
    const read = AcpSchema.listSessionsResponse(yield* host.connection.request(method, params))
    if (Result.isFailure(read)) {
      return yield* new AcpError.InvalidResponse({ method, detail: host.redact(read.failure) })
    }
    const { nextCursor, sessions: more } = read.success
    const room = max - sessions.length
    for (const session of more.slice(0, Math.max(0, room))) sessions.push(session)
    const isLast = nextCursor === undefined || nextCursor === null || nextCursor === ""
    if (more.length > room || isLast) return { sessions, isComplete: more.length <= room }
    if (sessions.length >= max || seen.has(nextCursor)) break
    seen.add(nextCursor)
    cursor = nextCursor
  }
  return { sessions, isComplete: false }
})

const wantsSignIn = (error: AcpError.RequestError): boolean => error.code === AcpError.code.authRequired

const authRequired = (host: AgentHost, detail: string): SidecarError.AuthRequired =>
  new SidecarError.AuthRequired({
    methods: (host.initialize.authMethods ?? []).map((method) => ({
      id: host.redact(method.id),
      name: host.redact(method.name ?? method.id)
    })),
    detail
  })

/** Sessions that are refused at the same time sign in once: `before` is how often that was done when this one asked. */
const signIn = Effect.fnUntraced(function* (
  host: AgentHost,
  methodId: string | undefined,
  progress: Start,
  detail: string,
  before: number
) {
  const { connection, initialize, openings } = host
  const offered = initialize.authMethods ?? []
  if (methodId === undefined || !offered.some((method) => method.id === methodId)) {
    return yield* authRequired(host, detail)
  }
  progress.phase = "authenticate"
  const once = Effect.suspend(() =>
    openings.signedIn > before
      ? Effect.void
      : Effect.map(connection.request(AcpProtocol.method.authenticate, { methodId }), () => void openings.signedIn++)
  )
  return yield* openings.signIn.withPermits(1)(once)
})
