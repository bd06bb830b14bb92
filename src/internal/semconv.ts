/**
 * The names that telemetry goes by, all in one place. `gen_ai.*`, `error.type` and `network.transport` are those of
 * OpenTelemetry's conventions for generative AI, in the version that is given here; `acp_sidecar.*` are our own.
 *
 * @internal
 */

/** The release of OpenTelemetry's conventions for generative AI that the names follow. */
export const version = "0.1.0"

/** On the resource, so that whoever reads the data knows which names to expect. */
export const versionAttribute = "acp_sidecar.semconv.version"

export const span = {
  /** Followed by the agent's name. */
  invokeAgent: "invoke_agent",
  admission: "acp_sidecar.admission",
  /** Followed by the tool's name. */
  executeTool: "execute_tool",
  permission: "acp_sidecar.permission"
} as const

/** Attributes of spans. */
export const attribute = {
  operationName: "gen_ai.operation.name",
  providerName: "gen_ai.provider.name",
  agentName: "gen_ai.agent.name",
  agentVersion: "gen_ai.agent.version",
  conversationId: "gen_ai.conversation.id",
  requestModel: "gen_ai.request.model",
  finishReasons: "gen_ai.response.finish_reasons",
  inputTokens: "gen_ai.usage.input_tokens",
  outputTokens: "gen_ai.usage.output_tokens",
  cacheReadTokens: "gen_ai.usage.cache_read.input_tokens",
  cacheWriteTokens: "gen_ai.usage.cache_write.input_tokens",
  reasoningTokens: "gen_ai.usage.reasoning.output_tokens",
  toolName: "gen_ai.tool.name",
  toolCallId: "gen_ai.tool.call.id",
  toolType: "gen_ai.tool.type",
  errorType: "error.type",
  networkTransport: "network.transport",
  turnId: "acp_sidecar.turn.id",
  turnOutcome: "acp_sidecar.turn.outcome",
  lane: "acp_sidecar.lane",
  cancelBy: "acp_sidecar.cancel.by",
  escalation: "acp_sidecar.escalation",
  vmId: "acp_sidecar.vm.id",
  hostPid: "acp_sidecar.host.pid",
  scope: "acp_sidecar.scope",
  limit: "acp_sidecar.limit",
  observed: "acp_sidecar.observed",
  answeredBy: "acp_sidecar.permission.answered_by",
  optionKind: "acp_sidecar.permission.option_kind"
} as const

export const metric = {
  invokeAgentDuration: "gen_ai.invoke_agent.duration",
  invokeAgentToolCalls: "gen_ai.invoke_agent.tool_calls",
  executeToolDuration: "gen_ai.execute_tool.duration",
  turnDuration: "acp_sidecar.turn.duration",
  turnQueueDuration: "acp_sidecar.turn.queue_duration",
  turnTimeToFirstUpdate: "acp_sidecar.turn.time_to_first_update",
  turnCancelDuration: "acp_sidecar.turn.cancel_duration",
  turnTokens: "acp_sidecar.turn.tokens",
  turnsActive: "acp_sidecar.turns.active",
  turnsQueued: "acp_sidecar.turns.queued",
  sessionsOpen: "acp_sidecar.sessions.open",
  leasesActive: "acp_sidecar.leases.active",
  hostsLive: "acp_sidecar.hosts.live",
  hostStarts: "acp_sidecar.host.starts",
  hostExits: "acp_sidecar.host.exits",
  permissionsPending: "acp_sidecar.permissions.pending",
  permissionWaitDuration: "acp_sidecar.permission.wait_duration",
  limitUsed: "acp_sidecar.limit.used",
  limitMax: "acp_sidecar.limit.max",
  admissionRefusals: "acp_sidecar.admission.refusals",
  wireFrames: "acp_sidecar.wire.frames",
  wireIo: "acp_sidecar.wire.io",
  wireDropped: "acp_sidecar.wire.dropped",
  wireLate: "acp_sidecar.wire.late",
  wireBuffered: "acp_sidecar.wire.buffered",
  journalAppendDuration: "acp_sidecar.journal.append_duration"
} as const
