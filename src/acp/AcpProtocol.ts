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
  sessionLoad: "session/load",
  sessionResume: "session/resume",
  sessionList: "session/list",
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
 * The params of the methods that are known, as the ACP SDK types them.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface KnownParams {
  readonly initialize: Acp.InitializeRequest
  readonly authenticate: Acp.AuthenticateRequest
  readonly logout: Acp.LogoutRequest
  readonly "session/new": Acp.NewSessionRequest
  readonly "session/load": Acp.LoadSessionRequest
  readonly "session/resume": Acp.ResumeSessionRequest
  readonly "session/list": Acp.ListSessionsRequest
  readonly "session/delete": Acp.DeleteSessionRequest
  readonly "session/close": Acp.CloseSessionRequest
  readonly "session/prompt": Acp.PromptRequest
  readonly "session/set_mode": Acp.SetSessionModeRequest
  readonly "session/set_config_option": Acp.SetSessionConfigOptionRequest
  readonly "session/cancel": Acp.CancelNotification
  readonly "session/update": Acp.SessionNotification
  readonly "session/request_permission": Acp.RequestPermissionRequest
  readonly "fs/read_text_file": Acp.ReadTextFileRequest
  readonly "fs/write_text_file": Acp.WriteTextFileRequest
  readonly "$/cancel_request": Acp.CancelRequestNotification
}

/**
 * What a method takes: the SDK's type for the known ones, anything for extensions. Answers are not typed like this: an
 * agent may say anything, so they are read with `AcpSchema`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Params<Method extends string> = Method extends keyof KnownParams ? KnownParams[Method] : unknown

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
  /**
   * A turn starts with this request; it ends when its response arrives. `traceparent` (of W3C's Trace Context) goes into
   * the root of `_meta`, where ACP reserves that name.
   */
  readonly prompt: (
    sessionId: string,
    blocks: ReadonlyArray<Acp.ContentBlock>,
    traceparent?: string | undefined
  ) => Acp.PromptRequest
  readonly turnEnd: (response: unknown) => Result.Result<Acp.PromptResponse, string>
  /** The notification that asks the agent to end the session's turn. */
  readonly cancel: (sessionId: string) => {
    readonly method: typeof method.sessionCancel
    readonly params: Acp.CancelNotification
  }
  /** The answer that every pending permission gets when its turn is cancelled. */
  readonly permissionCancelled: Acp.RequestPermissionResponse
  /** Whether the agent can end a session on request. */
  readonly canClose: (capabilities: Acp.AgentCapabilities | null | undefined) => boolean
  /** Whether the agent can open a session that it has had before, replaying its history. */
  readonly canLoad: (capabilities: Acp.AgentCapabilities | null | undefined) => boolean
  /** Whether the agent can open a session that it has had before, without a replay. */
  readonly canResume: (capabilities: Acp.AgentCapabilities | null | undefined) => boolean
  /** Whether the agent can list the sessions that it has had. */
  readonly canList: (capabilities: Acp.AgentCapabilities | null | undefined) => boolean
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
  prompt: (sessionId, blocks, traceparent) => ({
    sessionId,
    prompt: blocks as Array<Acp.ContentBlock>,
    ...(traceparent === undefined ? {} : { _meta: { traceparent } })
  }),
  turnEnd: AcpSchema.promptResponse,
  cancel: (sessionId) => ({ method: method.sessionCancel, params: { sessionId } }),
  permissionCancelled: { outcome: { outcome: "cancelled" } },
  canClose: (capabilities) => capabilities?.sessionCapabilities?.close != null,
  canLoad: (capabilities) => capabilities?.loadSession === true,
  canResume: (capabilities) => capabilities?.sessionCapabilities?.resume != null,
  canList: (capabilities) => capabilities?.sessionCapabilities?.list != null
}
