/**
 * A Vm of a sidecar in another process, as its app sees it.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Address from "../Address.ts"
import type * as AgentProfile from "../AgentProfile.ts"
import type * as Session from "../Session.ts"
import * as SidecarError from "../SidecarError.ts"
import type * as SidecarLimits from "../SidecarLimits.ts"
import type * as Vm from "../Vm.ts"
import * as Remote from "./remote.ts"
import * as RemoteSession from "./remoteSession.ts"
import * as Tie from "./tie.ts"

export const attach = (
  remote: Remote.Remote,
  limits: SidecarLimits.SidecarLimits,
  id: Address.SessionId
): Effect.Effect<Session.Session, SidecarError.NotFound> => {
  const notFound = new SidecarError.NotFound({ address: { ...remote.address, sessionId: id } })
  return remote
    .control((rpc) => rpc["Session.Attach"]({ sessionId: id }))
    .pipe(
      Effect.flatMap((opened) =>
        RemoteSession.make(remote, opened, {
          profile: opened.profile,
          limits,
          handler: undefined,
          onClose: Effect.void
        })
      ),
      Effect.mapError(() => notFound)
    )
}

export const make = (
  remote: Remote.Remote,
  address: Address.Address,
  options: {
    readonly root: string
    readonly limits: SidecarLimits.SidecarLimits
    /** Run once it has been closed. */
    readonly onClose: Effect.Effect<void>
  }
): Vm.Vm => {
  const vmId = address.vmId!
  const sessions = new Map<Address.SessionId, Session.Session>()
  const disposed = (error: SidecarError.SidecarLost) =>
    Effect.fail(new SidecarError.Disposed({ address, detail: error.detail }))

  const openSession: Vm.Vm["openSession"] = (sessionOptions) =>
    Effect.uninterruptibleMask((restore) =>
      Effect.gen(function* () {
        const caller = yield* Effect.scope
        const { agent, permission, startTimeout, ...rest } = sessionOptions
        const opened = yield* Remote.named(
          remote,
          (key) =>
            remote.work((rpc) =>
              rpc["Session.Open"](
                Remote.compact({
                  ...rest,
                  from: rest.from === undefined ? undefined : Remote.compact(rest.from),
                  key,
                  vmId,
                  agent: profile(agent),
                  permission: typeof permission === "function" ? ("client" as const) : permission,
                  startTimeout: Remote.time(startTimeout)
                }) as never
              )
            ),
          restore
        ).pipe(Effect.catchTag("SidecarLost", disposed))
        const { sessionId } = opened.address
        const open = yield* Scope.make()
        const tie = yield* Tie.make(
          open,
          Effect.suspend(() => session.close)
        )
        const session: Session.Session = yield* RemoteSession.make(remote, opened, {
          profile: agent,
          limits: options.limits,
          handler: typeof permission === "function" ? permission : undefined,
          onClose: Effect.suspend(() => {
            sessions.delete(sessionId!)
            return Scope.close(open, Exit.void)
          })
        })
        sessions.set(sessionId!, session)
        yield* tie(caller)
        return session
      })
    )

  return {
    id: vmId,
    address,
    root: options.root,
    openSession,
    session: (id) =>
      Effect.suspend(() => {
        const known = sessions.get(id)
        const notFound = new SidecarError.NotFound({ address: { ...address, sessionId: id } })
        return remote
          .control((rpc) => rpc["Vm.Describe"]({ vmId }))
          .pipe(
            Effect.mapError(() => notFound),
            Effect.flatMap((info) => {
              if (!info.sessions.some(({ sessionId }) => sessionId === id)) return Effect.fail(notFound)
              return known === undefined
                ? Effect.mapError(attach(remote, options.limits, id), () => notFound)
                : Effect.succeed(known)
            })
          )
      }),
    probe: ({ agent, commandsTimeout, timeout, ...rest }) =>
      remote
        .work((rpc) =>
          rpc["Vm.Probe"](
            Remote.compact({
              ...rest,
              vmId,
              agent: profile(agent),
              commandsTimeout: Remote.time(commandsTimeout),
              timeout: Remote.time(timeout)
            }) as never
          )
        )
        .pipe(Effect.catchTag("SidecarLost", disposed)),
    describe: remote
      .control((rpc) => rpc["Vm.Describe"]({ vmId }))
      .pipe(
        Effect.catch(() =>
          Effect.succeed<Vm.VmInfo>({ vmId, root: options.root, opening: 0, activePrompts: 0, sessions: [] })
        )
      ),
    close: remote
      .control((rpc) => rpc["Vm.Close"]({ vmId }))
      .pipe(
        Effect.ignore,
        // Its sessions have ended there; here they are told to those who wait for them.
        Effect.andThen(
          Effect.suspend(() =>
            Effect.forEach(Array.from(sessions.values()), (session) => session.close, { discard: true })
          )
        ),
        Effect.andThen(options.onClose)
      )
  }
}

/** A profile with its time as JSON. */
const profile = (agent: AgentProfile.AgentProfile): AgentProfile.AgentProfile =>
  agent.share === false
    ? agent
    : { ...agent, share: { ...agent.share, idleTime: Remote.time(agent.share.idleTime) as never } }
