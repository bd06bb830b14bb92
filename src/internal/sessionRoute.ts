/**
 * What a session does with the frames that come for it.
 *
 * @internal
 */
import * as Effect from "effect/Effect"
import type { Acp } from "../acp/AcpSchema.ts"
import * as AcpSchema from "../acp/AcpSchema.ts"
import type * as Address from "../Address.ts"
import * as Mailbox from "../Mailbox.ts"
import * as Permission from "../Permission.ts"
import type * as SessionRouter from "../SessionRouter.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import type * as SidecarLimits from "../SidecarLimits.ts"
import * as Turn from "../Turn.ts"
import * as Attribution from "./attribution.ts"
import * as Flood from "./flood.ts"
import * as OpenTools from "./openTools.ts"
import type * as TurnTelemetry from "./turnTelemetry.ts"

/** What a route is for: the time that the session has on one process. */
export interface Epoch {
  /** What comes is history. */
  isReplay: boolean
  readonly keepsReplay: boolean
  isOver: boolean
}

export interface RouteContext {
  readonly limits: SidecarLimits.SidecarLimits
  readonly mailbox: Mailbox.Mailbox<SidecarEvent.SessionEvent>
  readonly attribution: Attribution.Attribution
  readonly turns: ReadonlyMap<Address.TurnId, Turn.TurnState>
  readonly permissions: Permission.Permissions
  readonly flood: Flood.Flood
  readonly tools: OpenTools.OpenTools
  readonly telemetry: TurnTelemetry.TurnTelemetry
  /** The agent, or the one who answered its question, did something; now, unless it says when. */
  readonly onActivity: (at?: number) => void
  readonly onConfigOptions: (configOptions: ReadonlyArray<Acp.SessionConfigOption>) => void
  /** Something came outside of any turn that may have been too much. */
  readonly onIdleOutput: () => void
}

/** Another one for each process, so that nothing of one is taken for the next one's. */
export const make = (context: RouteContext, epoch: Epoch): SessionRouter.Route => {
  const { attribution, flood, limits, mailbox, permissions, telemetry, tools, turns } = context
  /** Nobody else would stop an agent that sends too much while no turn runs. */
  const restrain = (bytes: number): void => {
    if (attribution.active.length > 0) return
    Flood.idle(flood, bytes)
    context.onIdleOutput()
  }
  return {
    onUpdate: (raw, bytes, at) => {
      if (epoch.isOver) return
      context.onActivity(at)
      const update = AcpSchema.sessionUpdate(raw)
      if (update.sessionUpdate === "config_option_update") context.onConfigOptions(update.configOptions)
      if (epoch.isReplay) {
        if (!epoch.keepsReplay) return
        const number = mailbox.next
        const event = { _tag: "Update", number, at, turnId: null, afterTurn: null, replay: true, update } as const
        return Mailbox.append(mailbox, event, bytes)
      }
      const { afterTurn, turnId } = Attribution.owner(attribution, update)
      const turn = turnId === null ? undefined : turns.get(turnId)
      if (turn !== undefined) {
        if (!Turn.countOutput(turn, bytes, limits.maxTurnOutputBytes)) return
        turn.firstUpdateAt ??= at
      }
      Mailbox.append(mailbox, { _tag: "Update", number: mailbox.next, at, turnId, afterTurn, update }, bytes)
      restrain(bytes)
      if (turnId === null) return
      if (update.sessionUpdate !== "tool_call" && update.sessionUpdate !== "tool_call_update") return
      OpenTools.note(tools, turnId, update)
      // Last: should the app's tracer break, the update is there.
      telemetry.toolCall(turnId, update)
    },
    onNotification: (method, params, bytes, at) => {
      if (epoch.isOver) return
      Mailbox.append(mailbox, { _tag: "Notification", number: mailbox.next, at, method, params }, bytes)
      restrain(bytes)
    },
    onTooLarge: (frame) => {
      if (epoch.isOver) return
      const turn = turns.get(attribution.active[0]!)
      if (turn === undefined) {
        Flood.broken(flood)
        return context.onIdleOutput()
      }
      Turn.breach(turn, { _tag: "Output", limit: "maxLineBytes", max: frame.limit, used: frame.bytes })
    },
    onPermission: (request) => {
      if (epoch.isOver) return Effect.succeed({ outcome: { outcome: "cancelled" } })
      context.onActivity()
      // The agent goes on when it has its answer, and not before.
      const turnId = Attribution.asker(attribution, request.toolCall)
      // This fiber may be late, and a turn that has ended by then gets no more events.
      const ask = Permission.ask(permissions, request, () => Attribution.ifActive(attribution, turnId))
      return Effect.ensuring(
        ask,
        Effect.sync(() => context.onActivity())
      )
    },
    flush: () => Mailbox.flush(mailbox)
  }
}
