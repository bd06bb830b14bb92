/**
 * Who is connected to a sidecar process, and what each of them has in it.
 *
 * @internal
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Queue from "effect/Queue"
import * as Scope from "effect/Scope"
import type * as Address from "../Address.ts"
import type * as Permission from "../Permission.ts"
import type * as Session from "../Session.ts"
import * as SidecarError from "../SidecarError.ts"
import type * as SidecarRpc from "../SidecarRpc.ts"
import type * as Vm from "../Vm.ts"

/** A session of a client. Turns that have ended are kept for late readers of their events, up to a bound. */
export interface Owned {
  readonly session: Session.Session
  readonly vm: Vm.Vm
  readonly questions: Questions | undefined
  readonly turns: Map<Address.TurnId, Session.Turn>
  readonly close: Effect.Effect<void>
}

export interface OwnedVm {
  readonly vm: Vm.Vm
  readonly close: Effect.Effect<void>
}

/** Something that a client opens; by its name it can be given up before its answer has come. */
export interface Opening {
  isAbandoned: boolean
  readonly isDone: Deferred.Deferred<void>
  close: Effect.Effect<void> | undefined
}

export interface Client {
  readonly key: string
  readonly name: string
  readonly role: "app" | "operator"
  readonly onDisconnect: "interrupt" | "detach"
  /** Owns its Vms. */
  readonly scope: Scope.Closeable
  readonly vms: Map<Address.VmId, OwnedVm>
  readonly sessions: Map<Address.SessionId, Owned>
  readonly openings: Map<string, Opening>
  connections: number
  /** How many sessions it has when those that have ended are looked for. */
  pruneAt: number
  /** What it has is being closed, for good. */
  isLeaving: boolean
}

const maxTurns = 512
const maxEnded = 64
const maxOwners = 16_384

/** Keeps a turn for its readers; of those that have ended the older ones make room. The limits bound the others. */
export const keepTurn = (owned: Owned, turn: Session.Turn): Effect.Effect<void> => {
  owned.turns.set(turn.id, turn)
  // Now and then, since it looks at all of them.
  return owned.turns.size % maxTurns === 0 ? dropEnded(owned) : Effect.void
}

const dropEnded = Effect.fnUntraced(function* ({ turns }: Owned): Effect.fn.Return<void> {
  const ended: Array<Address.TurnId> = []
  for (const [id, { outcome }] of Array.from(turns)) {
    if (yield* Effect.raceFirst(Effect.as(outcome, true), Effect.succeed(false))) ended.push(id)
  }
  for (const id of ended.slice(0, -maxTurns / 2)) turns.delete(id)
})

/** Keeps a session, also after its end; of those that have ended the oldest make room, now and then. */
export const keepSession = Effect.fnUntraced(function* (client: Client, owned: Owned): Effect.fn.Return<void> {
  client.sessions.set(owned.session.id, owned)
  if (client.sessions.size <= client.pruneAt) return
  const ended: Array<Address.SessionId> = []
  for (const [id, one] of Array.from(client.sessions)) {
    if (one !== owned && !(yield* Effect.isSuccess(one.vm.session(id)))) ended.push(id)
  }
  for (const id of ended.slice(0, Math.max(0, ended.length - maxEnded))) client.sessions.delete(id)
  client.pruneAt = maxEnded + 2 * client.sessions.size
})

export const keepVm = (clients: Clients, client: Client, owned: OwnedVm): void => {
  client.vms.set(owned.vm.id, owned)
  clients.owners.set(owned.vm.id, client.key)
  if (clients.owners.size > maxOwners) clients.owners.delete(clients.owners.keys().next().value!)
}

/** Whether something is open, or being opened. */
export const hasWork = (client: Client): boolean =>
  client.vms.size > 0 || Array.from(client.openings.values()).some(({ isDone }) => !Deferred.isDoneUnsafe(isDone))

export const closeVm = (client: Client, vmId: Address.VmId): Effect.Effect<void> =>
  Effect.suspend(() => {
    const owned = client.vms.get(vmId)
    if (owned === undefined) return Effect.void
    return Effect.andThen(
      owned.close,
      Effect.sync(() => void client.vms.delete(vmId))
    )
  })

export const closeSession = (client: Client, sessionId: Address.SessionId): Effect.Effect<void> =>
  Effect.suspend(() => client.sessions.get(sessionId)?.close ?? Effect.void)

/** Questions of a session's agent that wait for a function of the app, in its own process. */
export interface Questions {
  readonly policy: (question: Permission.Question) => Effect.Effect<Permission.Decision, unknown>
  /** Those that are open, and then what comes, until somebody else listens. */
  readonly listen: Effect.Effect<Queue.Dequeue<SidecarRpc.Asked>, never, Scope.Scope>
  readonly decide: (key: string, decision: Permission.Decision | null) => boolean
}

export const makeQuestions = (): Questions => {
  const open = new Map<
    string,
    { readonly question: Permission.Question; readonly answer: Deferred.Deferred<Permission.Decision, string> }
  >()
  let count = 0
  let listener: Queue.Queue<SidecarRpc.Asked> | undefined
  const tell = (asked: SidecarRpc.Asked): void => {
    if (listener !== undefined) Queue.offerUnsafe(listener, asked)
  }
  return {
    policy: (question) =>
      Effect.suspend(() => {
        const key = `${++count}`
        const answer = Deferred.makeUnsafe<Permission.Decision, string>()
        open.set(key, { question, answer })
        tell({ _tag: "Ask", key, question })
        return Effect.ensuring(
          Deferred.await(answer),
          Effect.sync(() => {
            open.delete(key)
            tell({ _tag: "Withdraw", key })
          })
        )
      }),
    // Bounded by the limit of open questions: each is told of twice.
    listen: Effect.acquireRelease(
      Effect.map(Queue.unbounded<SidecarRpc.Asked>(), (queue) => {
        if (listener !== undefined) Queue.shutdownUnsafe(listener)
        listener = queue
        for (const [key, { question }] of open) tell({ _tag: "Ask", key, question })
        return queue
      }),
      (queue) =>
        Effect.sync(() => {
          Queue.shutdownUnsafe(queue)
          if (listener === queue) listener = undefined
        })
    ),
    decide: (key, decision) => {
      const entry = open.get(key)
      if (entry === undefined) return false
      return Deferred.doneUnsafe(
        entry.answer,
        decision === null ? Exit.fail("the handler of the app failed") : Exit.succeed(decision)
      )
    }
  }
}

export interface Clients {
  readonly all: Map<string, Client>
  /** The keys of those whose Vms these are, or were. */
  readonly owners: Map<Address.VmId, string>
  /** What this client may reach: its own, and an operator all. */
  readonly reach: (client: Client) => Iterable<Client>
  /** How many connections there have been. */
  connections: number
}

export const make = (): Clients => {
  const all = new Map<string, Client>()
  return {
    all,
    owners: new Map(),
    connections: 0,
    reach: (client) => (client.role === "operator" ? all.values() : [client])
  }
}

const notFound = (address: Address.Address) => Effect.fail(new SidecarError.NotFound({ address }))

/** The same answer for what is not there and for what belongs to somebody else. */
export const findSession = (
  clients: Clients,
  client: Client,
  sidecarId: Address.SidecarId,
  sessionId: Address.SessionId
): Effect.Effect<Owned, SidecarError.NotFound> =>
  Effect.suspend(() => {
    for (const one of clients.reach(client)) {
      const owned = one.sessions.get(sessionId)
      if (owned !== undefined) return Effect.succeed(owned)
    }
    return notFound({ sidecarId, sessionId })
  })

export const findVm = (
  clients: Clients,
  client: Client,
  sidecarId: Address.SidecarId,
  vmId: Address.VmId
): Effect.Effect<Vm.Vm, SidecarError.NotFound> =>
  Effect.suspend(() => {
    for (const one of clients.reach(client)) {
      const owned = one.vms.get(vmId)
      if (owned !== undefined) return Effect.succeed(owned.vm)
    }
    return notFound({ sidecarId, vmId })
  })

export const findTurn = (owned: Owned, turnId: Address.TurnId): Effect.Effect<Session.Turn, SidecarError.NotFound> =>
  Effect.suspend(() =>
    Option.match(Option.fromUndefinedOr(owned.turns.get(turnId)), {
      onNone: () => notFound({ ...owned.session.address, turnId }),
      onSome: Effect.succeed
    })
  )

const maxOpenings = 16_384

/**
 * An opening under a name. What it opens is closed at once when it was given up meanwhile. It is known by its name from
 * the call of this function on, not only once it runs. The effect says itself where it can be interrupted.
 */
export const open = <A, E, R>(
  client: Client,
  key: string,
  effect: Effect.Effect<A, E, R>,
  /** Without it nothing is left to be closed once it is done. */
  closeOf?: (opened: A) => Effect.Effect<void>
): Effect.Effect<A, E, R> => {
  const opening: Opening = { isAbandoned: false, isDone: Deferred.makeUnsafe(), close: undefined }
  client.openings.set(key, opening)
  if (client.openings.size > maxOpenings) client.openings.delete(client.openings.keys().next().value!)
  return Effect.uninterruptible(
    Effect.flatMap(effect, (opened) => {
      if (closeOf === undefined) return Effect.succeed(opened)
      opening.close = closeOf(opened)
      return opening.isAbandoned ? Effect.andThen(opening.close, Effect.interrupt) : Effect.succeed(opened)
    }).pipe(
      Effect.onExit((exit) =>
        Effect.sync(() => {
          const isOver = Exit.isFailure(exit) || closeOf === undefined
          if (isOver && client.openings.get(key) === opening) client.openings.delete(key)
          Deferred.doneUnsafe(opening.isDone, Exit.void)
        })
      )
    )
  )
}

/** Gives up an opening, and resolves when nothing of it is left. */
export const abandon = (client: Client, key: string): Effect.Effect<void> =>
  Effect.suspend(() => {
    const opening = client.openings.get(key)
    if (opening === undefined) return Effect.void
    opening.isAbandoned = true
    return Effect.andThen(
      Deferred.await(opening.isDone),
      Effect.suspend(() => {
        client.openings.delete(key)
        return opening.close ?? Effect.void
      })
    )
  })
