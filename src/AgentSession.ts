/**
 * How a session is opened at an agent that may carry many of them. For those who need an agent without a sidecar around
 * it; an app opens sessions with `Vm.openSession`.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import * as AcpError from "./acp/AcpError.ts"
import * as AcpProtocol from "./acp/AcpProtocol.ts"
import * as AcpSchema from "./acp/AcpSchema.ts"
import type { AgentHost, Start } from "./AgentHost.ts"
import * as SessionRouter from "./SessionRouter.ts"
import * as SidecarError from "./SidecarError.ts"

/**
 * How a session comes to be: as a new one.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type How = { readonly _tag: "New" }

/**
 * What a session is opened with. When the agent wants its user to sign in and `authenticate` names one of its methods,
 * that is done once.
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
  /** Runs in the reader, between what came before the agent's answer and what comes after it. */
  readonly onOpen?: ((response: AcpSchema.Acp.NewSessionResponse) => void) | undefined
}

/**
 * A session of the agent, and its answer to `session/new`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface HostedSession {
  readonly agentSessionId: string
  readonly response: AcpSchema.Acp.NewSessionResponse
}

/**
 * Opens a session on a host, into the current scope, which closes its route. The route exists before the frame after the
 * agent's answer is read, and what came early for it is delivered first. When the agent wants its user to sign in and
 * `authenticate` names one of its methods, that is done once and the session asked for again.
 *
 * @stability unstable
 * @category sessions
 * @since 0.1.0
 */
export const open = Effect.fnUntraced(function* (
  host: AgentHost,
  options: Options,
  progress: Start
): Effect.fn.Return<HostedSession, SidecarError.StartReason, Scope.Scope> {
  const { connection, router } = host
  const { authenticate, route } = options
  const request = { cwd: options.cwd, mcpServers: [...(options.mcpServers ?? [])] }
  const clock = yield* Clock.Clock
  const method = AcpProtocol.method.sessionNew
  let registered: string | undefined
  // Before the request, since the route comes to be inside the reader while this fiber may be interrupted.
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => (registered === undefined ? undefined : SessionRouter.unregister(router, registered, route)))
  )
  const ask = Effect.suspend(() => {
    progress.phase = "session/new"
    return connection.request(method, request, {
      onResponse: (result) => {
        const read = AcpSchema.newSessionResponse(result)
        if (Result.isFailure(read)) return
        const { sessionId } = read.success
        if (!SessionRouter.register(router, sessionId, route, clock.currentTimeMillisUnsafe())) return
        registered = sessionId
        options.onOpen?.(read.success)
      }
    })
  })
  const answer = yield* Effect.catchIf(ask, wantsSignIn, (error) =>
    Effect.andThen(signIn(host, authenticate, progress, error.detail), ask).pipe(
      Effect.catchIf(wantsSignIn, (again) => Effect.fail(authRequired(host, again.detail)))
    )
  )
  const read = AcpSchema.newSessionResponse(answer)
  if (Result.isFailure(read)) return yield* new AcpError.InvalidResponse({ method, detail: host.redact(read.failure) })
  if (registered === undefined) {
    return yield* new AcpError.InvalidResponse({ method, detail: "the agent gave the id of a session that is open" })
  }
  return { agentSessionId: registered, response: read.success }
})

const wantsSignIn = (error: SidecarError.StartReason): error is AcpError.RequestError =>
  error._tag === "RequestError" && error.code === AcpError.code.authRequired

const authRequired = (host: AgentHost, detail: string): SidecarError.AuthRequired =>
  new SidecarError.AuthRequired({
    methods: (host.initialize.authMethods ?? []).map((method) => ({
      id: host.redact(method.id),
      name: host.redact(method.name ?? method.id)
    })),
    detail
  })

const signIn = Effect.fnUntraced(function* (
  host: AgentHost,
  methodId: string | undefined,
  progress: Start,
  detail: string
) {
  const offered = host.initialize.authMethods ?? []
  if (methodId === undefined || !offered.some((method) => method.id === methodId)) {
    return yield* authRequired(host, detail)
  }
  progress.phase = "authenticate"
  return yield* host.connection.request(AcpProtocol.method.authenticate, { methodId })
})
