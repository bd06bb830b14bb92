/**
 * What is asked of a session's agent outside of its turns.
 *
 * @internal
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as AcpError from "../acp/AcpError.ts"
import * as AcpProtocol from "../acp/AcpProtocol.ts"
import * as AcpSchema from "../acp/AcpSchema.ts"
import type * as Address from "../Address.ts"
import type * as AgentHost from "../AgentHost.ts"
import type { Session } from "../Session.ts"
import * as SidecarError from "../SidecarError.ts"
import type * as SidecarLimits from "../SidecarLimits.ts"

export interface CallContext {
  readonly address: Address.Address
  readonly limits: SidecarLimits.SidecarLimits
  readonly agentSessionId: string
  /** The process that the session is on now. */
  readonly host: () => AgentHost.AgentHost
  readonly onConfigOptions: (configOptions: ReadonlyArray<AcpSchema.Acp.SessionConfigOption>) => void
  /** A call has ended: the session is in use. */
  readonly onUsed: () => void
}

export const make = (context: CallContext): Pick<Session, "setMode" | "setConfigOption"> => {
  const { address, agentSessionId, host, limits } = context
  const call = <A>(method: string, request: Effect.Effect<A, AcpError.RequestFailure>) =>
    Effect.ensuring(request, Effect.sync(context.onUsed)).pipe(
      Effect.timeoutOrElse({
        duration: limits.callTimeout,
        orElse: () => Effect.fail(new SidecarError.CallTimedOut({ afterMillis: Duration.toMillis(limits.callTimeout) }))
      }),
      Effect.mapError((reason) => new SidecarError.AgentCallFailed({ address, method, reason }))
    )
  return {
    setMode: (modeId) => {
      const method = AcpProtocol.method.sessionSetMode
      const params = { sessionId: agentSessionId, modeId }
      const asked = Effect.suspend(() => host().connection.request(method, params))
      return call(method, asked).pipe(Effect.asVoid)
    },
    setConfigOption: (configId, value) => {
      const method = AcpProtocol.method.sessionSetConfigOption
      const option = { sessionId: agentSessionId, configId }
      const params = typeof value === "boolean" ? { ...option, type: "boolean" as const, value } : { ...option, value }
      let read = AcpSchema.configOptionResponse(undefined)
      // In the reader: an update that comes right after the answer is newer.
      const onResponse = (result: unknown) => {
        read = AcpSchema.configOptionResponse(result)
        if (Result.isSuccess(read)) context.onConfigOptions(read.success.configOptions)
      }
      const asked = Effect.suspend(() => host().connection.request(method, params, { onResponse }))
      const answered = Effect.flatMap(asked, () =>
        Result.isSuccess(read)
          ? Effect.succeed(read.success.configOptions)
          : Effect.fail(new AcpError.InvalidResponse({ method, detail: host().redact(read.failure) }))
      )
      return call(method, answered)
    }
  }
}
