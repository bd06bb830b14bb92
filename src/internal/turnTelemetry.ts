/**
 * What the turns of a session tell to metrics and traces. Each function is one step and never waits.
 *
 * @internal
 */
import type * as Clock from "effect/Clock"
import type * as Context from "effect/Context"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import type * as Metric from "effect/Metric"
import type * as Tracer from "effect/Tracer"
import type { Acp, SessionUpdate } from "../acp/AcpSchema.ts"
import type * as Admission from "../Admission.ts"
import type * as Address from "../Address.ts"
import type * as AgentHost from "../AgentHost.ts"
import type * as AgentProfile from "../AgentProfile.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import * as SidecarMetrics from "../SidecarMetrics.ts"
import type * as Turn from "../Turn.ts"
import type * as TurnOutcome from "../TurnOutcome.ts"
import * as Semconv from "./semconv.ts"
import * as Tracing from "./tracing.ts"

export interface TurnTelemetry {
  /** A prompt was accepted. Its span is a child of what `caller` is in. */
  readonly accepted: (turn: Turn.TurnState, caller: Fiber.Fiber<unknown, unknown>) => void
  /** It could not start at once, and what it waits for first. */
  readonly waits: (turn: Turn.TurnState, scope: "session" | "vm" | "sidecar") => void
  readonly started: (turn: Turn.TurnState) => void
  /** What goes out with the prompt for the agent's own spans. */
  readonly traceparent: (turn: Turn.TurnState) => string | undefined
  /** The turn has to end although its agent did not end it. */
  readonly stopping: (turn: Turn.TurnState) => void
  readonly ended: (turn: Turn.TurnState, outcome: TurnOutcome.TurnOutcome) => void
  readonly toolCall: (turnId: Address.TurnId, update: ToolUpdate) => void
  readonly permission: (event: SidecarEvent.SessionEventInput) => void
}

type ToolUpdate = Extract<SessionUpdate, { readonly sessionUpdate: "tool_call" | "tool_call_update" }>

interface Observed {
  readonly acceptedAt: number
  readonly model: Model
  readonly traced: Tracing.Traced | undefined
  admission: Tracer.Span | undefined
  startedAt: number | undefined
  stoppingAt: number | undefined
  toolCalls: number
  /** By id; `undefined` once it has ended. */
  tools: Map<string, Tool | undefined> | undefined
}

interface Tool {
  readonly name: string
  readonly at: number
  readonly span: Tracer.Span | undefined
}

interface Question {
  readonly at: number
  readonly span: Tracer.Span | undefined
  readonly options: ReadonlyArray<Acp.PermissionOption>
}

/** Tool calls of one turn that are followed; more are counted only. */
const maxTools = 1024
/** The same as to attribution: what is longer is no id, and is not kept. */
const maxToolId = 256

const toolKinds = new Set<unknown>([
  "read",
  "edit",
  "delete",
  "move",
  "search",
  "execute",
  "think",
  "fetch",
  "switch_mode"
] satisfies ReadonlyArray<Acp.ToolKind>)
const optionKinds = new Set<unknown>(["allow_once", "allow_always", "reject_once", "reject_always"])
const stopReasons = new Set<unknown>([
  "end_turn",
  "max_tokens",
  "max_turn_requests",
  "refusal",
  "cancelled"
] satisfies ReadonlyArray<Acp.StopReason>)

const limits = {
  session: "maxPromptsPerSession",
  vm: "maxPromptsPerVm",
  sidecar: "maxPromptsPerSidecar"
} as const

/** Agents run their tools themselves. */
const toolType = "extension"

const { attribute } = Semconv

export const make = (options: {
  /** Holds the metrics, and the tracer for callers without one. */
  readonly services: Context.Context<never>
  readonly clock: Clock.Clock
  readonly address: Address.Address
  readonly profile: AgentProfile.AgentProfile
  /** The agent process as it is now. */
  readonly host: () => AgentHost.AgentHost
  readonly agentSessionId: () => string
  readonly configOptions: () => ReadonlyArray<Acp.SessionConfigOption>
}): TurnTelemetry => {
  const { address, clock, host, profile, services } = options
  const agent = profile.name
  const turns = new Map<Address.TurnId, Observed>()
  const questions = new Map<string, Question>()
  const now = () => clock.currentTimeMillisUnsafe()
  const nanos = () => clock.currentTimeNanosUnsafe()
  const since = (at: number): number => Math.max(0, now() - at) / 1000
  /** A name that an agent gave: no secret, no sentence, and short. */
  const name = (given: unknown): string | undefined =>
    typeof given === "string" && /^[\w./:@+-]{1,128}$/.test(given) && host().redact(given) === given ? given : undefined
  const id = (given: string): string => host().redact(given.slice(0, 1024))
  // Looked up once, since that takes longer than to count.
  const lanes = { interactive: ofLane(agent, "interactive"), background: ofLane(agent, "background") }
  const timeToFirstUpdate = SidecarMetrics.turn.timeToFirstUpdate({ agent })
  const toolCalls = SidecarMetrics.invokeAgent.toolCalls({ [attribute.agentName]: agent })
  const pending = SidecarMetrics.permissions.pending({ agent })

  const modelOf = (given: unknown): Model => {
    const model = name(given)
    return { given, name: model, duration: SidecarMetrics.invokeAgent.duration(ofCall(agent, model)) }
  }
  let lastModel = modelOf(undefined)
  const model = (): Model => {
    const all: unknown = options.configOptions()
    const option = Array.isArray(all) ? all.find((one) => one?.category === "model") : undefined
    const given: unknown = option?.currentValue
    // The same for nearly all turns, and to look for secrets takes longer than all the rest.
    if (given !== lastModel.given) lastModel = modelOf(given)
    return lastModel
  }

  const endTool = (tool: Tool, errorType?: string): void => {
    SidecarMetrics.executeTool
      .duration({
        [attribute.toolName]: tool.name,
        [attribute.toolType]: toolType,
        [attribute.agentName]: agent,
        ...(errorType === undefined ? {} : { [attribute.errorType]: errorType })
      })
      .updateUnsafe(since(tool.at), services)
    if (errorType !== undefined) tool.span?.attribute(attribute.errorType, errorType)
    tool.span?.end(nanos(), errorType === undefined ? Exit.void : Tracing.failure(errorType, "the tool call"))
  }

  return {
    accepted: (turn, caller) => {
      const current = model()
      const traced = Tracing.client(caller, services, {
        name: `${Semconv.span.invokeAgent} ${agent}`,
        startTime: nanos,
        attributes: () => ({
          [attribute.operationName]: Semconv.span.invokeAgent,
          [attribute.providerName]: profile.provider,
          [attribute.agentName]: agent,
          [attribute.agentVersion]: name(host().initialize.agentInfo?.version),
          [attribute.conversationId]: id(options.agentSessionId()),
          [attribute.requestModel]: current.name,
          [attribute.networkTransport]: host().pid === undefined ? undefined : "pipe",
          [attribute.turnId]: turn.id,
          [attribute.lane]: turn.lane,
          [attribute.vmId]: address.vmId,
          [attribute.hostPid]: host().pid
        })
      })
      turns.set(turn.id, {
        acceptedAt: now(),
        model: current,
        traced,
        admission: undefined,
        startedAt: undefined,
        stoppingAt: undefined,
        toolCalls: 0,
        tools: undefined
      })
      lanes[turn.lane].queued.modifyUnsafe(1, services)
    },

    waits: (turn, scope) => {
      const seen = turns.get(turn.id)
      if (seen?.traced === undefined) return
      const { span } = seen.traced
      const startTime = span.status.startTime
      seen.admission = Tracing.child(seen.traced, Semconv.span.admission, startTime, {
        [attribute.scope]: scope,
        [attribute.limit]: limits[scope]
      })
    },

    started: (turn) => {
      const seen = turns.get(turn.id)
      if (seen === undefined) return
      seen.startedAt = now()
      const { queueDuration, queued, running } = lanes[turn.lane]
      queued.modifyUnsafe(-1, services)
      running.modifyUnsafe(1, services)
      queueDuration.updateUnsafe(Math.max(0, seen.startedAt - seen.acceptedAt) / 1000, services)
      seen.admission?.end(nanos(), Exit.void)
    },

    traceparent: (turn) => {
      const traced = turns.get(turn.id)?.traced
      return traced === undefined ? undefined : Tracing.traceparent(traced)
    },

    stopping: (turn) => {
      const seen = turns.get(turn.id)
      if (seen === undefined) return
      seen.stoppingAt = now()
      const { cancelling, running } = lanes[turn.lane]
      running.modifyUnsafe(-1, services)
      cancelling.modifyUnsafe(1, services)
    },

    ended: (turn, outcome) => {
      const seen = turns.get(turn.id)
      if (seen === undefined) return
      turns.delete(turn.id)
      const lane = lanes[turn.lane]
      const took = since(seen.acceptedAt)
      const escalation = turn.stopped?.escalation
      const errorType = outcome._tag === "Failed" ? outcome.error.reason._tag : undefined
      const exit =
        outcome._tag === "Completed"
          ? Exit.void
          : errorType === undefined
            ? Tracing.interrupted
            : Tracing.failure(errorType, "the turn")

      if (seen.startedAt === undefined) {
        lane.queued.modifyUnsafe(-1, services)
        lane.queueDuration.updateUnsafe(took, services)
        if (errorType !== undefined) seen.admission?.attribute(attribute.errorType, errorType)
        seen.admission?.end(nanos(), exit)
      } else {
        lane[seen.stoppingAt === undefined ? "running" : "cancelling"].modifyUnsafe(-1, services)
        if (turn.firstUpdateAt !== undefined) {
          timeToFirstUpdate.updateUnsafe(Math.max(0, turn.firstUpdateAt - seen.startedAt) / 1000, services)
        }
      }
      if (seen.stoppingAt !== undefined) {
        SidecarMetrics.turn
          .cancelDuration({ escalation: escalation ?? "none" })
          .updateUnsafe(since(seen.stoppingAt), services)
      }
      lane[outcome._tag].updateUnsafe(took, services)
      const duration =
        errorType === undefined
          ? seen.model.duration
          : SidecarMetrics.invokeAgent.duration(ofCall(agent, seen.model.name, errorType))
      duration.updateUnsafe(took, services)
      toolCalls.updateUnsafe(seen.toolCalls, services)
      const tokens = outcome._tag === "Completed" ? usage(outcome.response) : []
      for (const { count, type } of tokens) SidecarMetrics.turn.tokens({ agent, type }).updateUnsafe(count, services)
      host().countTraffic()

      for (const tool of seen.tools?.values() ?? []) tool?.span?.end(nanos(), Tracing.interrupted)
      const span = seen.traced?.span
      if (span === undefined) return
      span.attribute(attribute.turnOutcome, outcome._tag.toLowerCase())
      if (outcome._tag === "Completed") {
        span.attribute(attribute.finishReasons, [stopReasons.has(outcome.stopReason) ? outcome.stopReason : "_OTHER"])
      }
      if (outcome._tag === "Cancelled") span.attribute(attribute.cancelBy, outcome.by)
      if (escalation !== undefined) span.attribute(attribute.escalation, escalation)
      if (errorType !== undefined) span.attribute(attribute.errorType, errorType)
      for (const token of tokens) span.attribute(token.attribute, token.count)
      span.end(nanos(), exit)
    },

    toolCall: (turnId, update) => {
      const seen = turns.get(turnId)
      if (seen === undefined) return
      const { toolCallId } = update
      const tools = (seen.tools ??= new Map())
      if (!tools.has(toolCallId)) {
        const isFollowed = tools.size < maxTools && toolCallId.length <= maxToolId
        // What is not followed is not known again, so only its first word counts.
        if (isFollowed || update.sessionUpdate === "tool_call") seen.toolCalls++
        if (!isFollowed) return
        const toolName = name(update.name) ?? (toolKinds.has(update.kind) ? String(update.kind) : "other")
        const span =
          seen.traced === undefined
            ? undefined
            : Tracing.child(seen.traced, `${Semconv.span.executeTool} ${toolName}`, nanos(), {
                [attribute.operationName]: Semconv.span.executeTool,
                [attribute.toolName]: toolName,
                [attribute.toolCallId]: id(toolCallId),
                [attribute.toolType]: toolType,
                [attribute.observed]: true
              })
        tools.set(toolCallId, { name: toolName, at: now(), span })
      }
      const tool = tools.get(toolCallId)
      if (tool === undefined || (update.status !== "completed" && update.status !== "failed")) return
      tools.set(toolCallId, undefined)
      endTool(tool, update.status === "failed" ? "tool_error" : undefined)
    },

    permission: (event) => {
      if (event._tag === "PermissionAsked") {
        const traced = event.turnId === null ? undefined : turns.get(event.turnId)?.traced
        const span =
          traced === undefined
            ? undefined
            : Tracing.child(traced, Semconv.span.permission, nanos(), {
                [attribute.toolCallId]: id(event.toolCall.toolCallId)
              })
        pending.modifyUnsafe(1, services)
        questions.set(event.permissionId, { at: now(), span, options: event.options })
      } else if (event._tag === "PermissionAnswered") {
        const question = questions.get(event.permissionId)
        if (question === undefined) return
        questions.delete(event.permissionId)
        pending.modifyUnsafe(-1, services)
        SidecarMetrics.permissions
          .waitDuration({ answered_by: event.answeredBy })
          .updateUnsafe(since(question.at), services)
        const { span } = question
        if (span === undefined) return
        const kind = question.options.find((option) => option.optionId === event.optionId)?.kind
        span.attribute(attribute.answeredBy, event.answeredBy)
        if (kind !== undefined) span.attribute(attribute.optionKind, optionKinds.has(kind) ? kind : "_OTHER")
        span.end(nanos(), Exit.void)
      }
    }
  }
}

interface Model {
  readonly given: unknown
  readonly name: string | undefined
  /** Of turns that don't fail. */
  readonly duration: Metric.Histogram<number>
}

const ofLane = (agent: string, lane: Admission.Lane) => {
  const { active, duration, queueDuration, queued } = SidecarMetrics.turn
  return {
    queued: queued({ lane }),
    running: active({ lane, state: "running" }),
    cancelling: active({ lane, state: "cancelling" }),
    queueDuration: queueDuration({ lane }),
    Completed: duration({ agent, lane, outcome: "completed" }),
    Cancelled: duration({ agent, lane, outcome: "cancelled" }),
    Failed: duration({ agent, lane, outcome: "failed" })
  }
}

const ofCall = (agent: string, model: string | undefined, errorType?: string) => ({
  [attribute.agentName]: agent,
  ...(model === undefined ? {} : { [attribute.requestModel]: model }),
  ...(errorType === undefined ? {} : { [attribute.errorType]: errorType })
})

const kinds = [
  ["input", "inputTokens", attribute.inputTokens],
  ["output", "outputTokens", attribute.outputTokens],
  ["cache_read", "cachedReadTokens", attribute.cacheReadTokens],
  ["cache_write", "cachedWriteTokens", attribute.cacheWriteTokens],
  ["reasoning", "thoughtTokens", attribute.reasoningTokens]
] as const

/** The tokens of a turn, where its answer tells of them. */
const usage = (response: unknown) => {
  const given = (response as { readonly usage?: Readonly<Record<string, unknown>> | null } | null | undefined)?.usage
  if (typeof given !== "object" || given === null) return []
  return kinds.flatMap(([type, field, name]) => {
    const count = given[field]
    return typeof count === "number" && Number.isSafeInteger(count) && count >= 0
      ? [{ type, attribute: name, count }]
      : []
  })
}
