/**
 * What is called at the peer: requests, each of which waits for its answer, and notifications.
 *
 * @internal
 */
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as AcpCodec from "../AcpCodec.ts"
import type { AcpConnection, RequestHooks } from "../AcpConnection.ts"
import type * as AcpError from "../AcpError.ts"
import * as AcpProtocol from "../AcpProtocol.ts"
import type * as Outgoing from "./outgoing.ts"

const { cancelRequest } = AcpProtocol.method

type Answer = Exit.Exit<unknown, AcpError.RequestFailure>

interface Call {
  readonly id: number
  readonly method: string
  readonly hooks: RequestHooks | undefined
  readonly result: Deferred.Deferred<unknown, AcpError.RequestFailure>
}

export interface Calling extends Pick<AcpConnection, "start" | "request" | "notify"> {
  readonly size: () => number
  /** The request that an answer with this id is for. */
  readonly find: (id: AcpCodec.Id | undefined) => Call | undefined
  readonly settle: (call: Call, answer: Answer) => void
  readonly settleAll: (answer: Answer) => void
}

/** Our ids are numbers; some peers send them back as strings. */
const ownId = (id: AcpCodec.Id | undefined): number | undefined =>
  typeof id === "number" ? id : typeof id === "string" && /^[1-9]\d{0,14}$/.test(id) ? Number(id) : undefined

export const make = (outgoing: Outgoing.Outgoing, onDefect: (error: unknown) => void): Calling => {
  const pending = new Map<number, Call>()
  let lastId = 0

  /** Hooks first, then whoever awaits: what a hook registers is there for the next frame. */
  const complete = ({ hooks, result }: Call, given: Answer): void => {
    let answer = given
    if (hooks !== undefined) {
      try {
        if (answer._tag === "Success") hooks.onResponse?.(answer.value)
      } catch (error) {
        onDefect(error)
        answer = Exit.die(error)
      }
      try {
        hooks.onSettled?.(answer)
      } catch (error) {
        onDefect(error)
        answer = Exit.die(error)
      }
    }
    Deferred.doneUnsafe(result, answer)
  }

  const notify: Calling["notify"] = (method, params) =>
    Effect.suspend(() => {
      const frame = AcpCodec.encodeNotification(method, params)
      return outgoing.queueInterruptibly(() => outgoing.put(frame, "notificationsOut"))
    })

  const start: Calling["start"] = (method, params, hooks) =>
    Effect.uninterruptible(
      Effect.suspend(() => {
        const id = ++lastId
        const call: Call = { id, method, hooks, result: Deferred.makeUnsafe() }
        const frame = AcpCodec.encodeRequest(id, method, params)
        const attempt = () => {
          // Registered before its bytes can leave, so that no answer can come too early.
          pending.set(id, call)
          return outgoing.put(frame, "requestsOut") || !pending.delete(id)
        }
        return Effect.as(outgoing.queueInterruptibly(attempt), {
          id,
          method,
          response: Deferred.await(call.result),
          cancel: Effect.suspend(() =>
            pending.has(id) ? Effect.ignore(notify(cancelRequest, { requestId: id })) : Effect.void
          ),
          abandon: Effect.sync(() => void pending.delete(id))
        })
      })
    )

  return {
    size: () => pending.size,
    find: (id) => {
      const own = ownId(id)
      return own === undefined ? undefined : pending.get(own)
    },
    settle: (call, answer) => {
      pending.delete(call.id)
      complete(call, answer)
    },
    settleAll: (answer) => {
      const waiting = Array.from(pending.values())
      pending.clear()
      for (const call of waiting) complete(call, answer)
    },
    start,
    request: (method, params, hooks) =>
      Effect.uninterruptibleMask((restore) =>
        Effect.flatMap(start(method, params, hooks), (request) =>
          restore(request.response).pipe(
            Effect.onInterrupt(() =>
              Effect.sync(() => {
                // The peer may not be reading; the notification then finds no room and is dropped.
                if (pending.delete(request.id)) {
                  const frame = AcpCodec.encodeNotification(cancelRequest, { requestId: request.id })
                  outgoing.put(frame, "notificationsOut")
                }
              })
            )
          )
        )
      ),
    notify
  }
}
