/**
 * What one version of the protocol decides: which methods exist, when a turn is over and how it is cancelled. Version 1
 * is spoken today; another version stands beside it as another value of {@link Protocol}.
 *
 * @since 0.1.0
 */
import type * as Acp from "@agentclientprotocol/sdk"
import type * as Result from "effect/Result"
import * as AcpSchema from "./AcpSchema.ts"

/**
 * The method names of ACP version 1 that a host uses. Source: agentclientprotocol.com/protocol/v1.
 *
 * @stability unstable
 * @category constants
 * @since 0.1.0
 */
export const method = {
  initialize: "initialize",
  authenticate: "authenticate",
  sessionNew: "session/new",
  sessionPrompt: "session/prompt",
  sessionCancel: "session/cancel",
  sessionClose: "session/close",
  sessionSetMode: "session/set_mode",
  sessionSetConfigOption: "session/set_config_option",
  sessionUpdate: "session/update",
  requestPermission: "session/request_permission",
  cancelRequest: "$/cancel_request"
} as const

/**
 * The rules of one protocol version.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Protocol {
  readonly version: number
  /** The first request. We offer neither file access nor terminals: agents use their own. */
  readonly initialize: (client: { readonly name: string; readonly version: string }) => Acp.InitializeRequest
  /** A turn starts with this request; it ends when its response arrives. */
  readonly prompt: (sessionId: string, blocks: ReadonlyArray<Acp.ContentBlock>) => Acp.PromptRequest
  readonly turnEnd: (response: unknown) => Result.Result<Acp.PromptResponse, string>
  /** The notification that asks the agent to end the session's turn. */
  readonly cancel: (sessionId: string) => { readonly method: string; readonly params: unknown }
  /** The answer that every pending permission gets when its turn is cancelled. */
  readonly permissionCancelled: Acp.RequestPermissionResponse
  /** Whether the agent can end a session on request. */
  readonly canClose: (capabilities: Acp.AgentCapabilities | null | undefined) => boolean
}

/**
 * ACP version 1: one request is one turn, its response ends it, `session/cancel` asks for its end.
 *
 * @stability unstable
 * @category constants
 * @since 0.1.0
 */
export const v1: Protocol = {
  version: 1,
  initialize: (clientInfo) => ({
    protocolVersion: 1,
    clientCapabilities: { fs: { readTextFile: false, writeTextFile: false }, terminal: false },
    clientInfo
  }),
  prompt: (sessionId, blocks) => ({ sessionId, prompt: blocks as Array<Acp.ContentBlock> }),
  turnEnd: AcpSchema.promptResponse,
  cancel: (sessionId) => ({ method: method.sessionCancel, params: { sessionId } }),
  permissionCancelled: { outcome: { outcome: "cancelled" } },
  canClose: (capabilities) => capabilities?.sessionCapabilities?.close != null
}
