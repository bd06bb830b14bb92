// The agent that ships with the package: a small, real ACP agent as its own process. It asks an OpenAI-compatible model
// (OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL) and runs the shell commands that the model asks for and the user allows.
import {
  agent,
  type AgentContext,
  methods,
  ndJsonStream,
  PROTOCOL_VERSION,
  RequestError,
  type RequestPermissionRequest
} from "@agentclientprotocol/sdk"
import { spawn } from "node:child_process"
import { randomUUID } from "node:crypto"
import { Readable, Writable } from "node:stream"
import type { ReadableStream as NodeReadableStream } from "node:stream/web"
import { version } from "../internal/version.ts"

interface ToolCall {
  readonly id: string
  readonly type: "function"
  readonly function: { name: string; arguments: string }
}

type Message =
  | { readonly role: "system" | "user"; readonly content: string }
  | { readonly role: "assistant"; readonly content: string | null; readonly tool_calls?: ReadonlyArray<ToolCall> }
  | { readonly role: "tool"; readonly tool_call_id: string; readonly content: string }

interface Delta {
  readonly content?: string | null
  readonly tool_calls?: ReadonlyArray<{
    readonly index: number
    readonly id?: string
    readonly function?: { readonly name?: string; readonly arguments?: string }
  }>
}

interface Session {
  readonly cwd: string
  readonly messages: Array<Message>
  readonly turns: Set<AbortController>
}

const maxModelCalls = 16
const maxToolOutput = 16_384

const tools = [
  {
    type: "function",
    function: {
      name: "bash",
      description: "Run a shell command in the session's folder",
      parameters: { type: "object", properties: { command: { type: "string" } }, required: ["command"] }
    }
  }
]

const sessions = new Map<string, Session>()

/** Kills the commands under way; each has its own process group, so that a cancel reaches all of what it started. */
const running = new Set<() => void>()
const killAll = () => {
  for (const kill of running) kill()
}
process.on("exit", killAll)
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const) {
  process.once(signal, () => {
    killAll()
    process.kill(process.pid, signal)
  })
}

const sessionOf = (sessionId: string): Session => {
  const session = sessions.get(sessionId)
  if (session === undefined) throw RequestError.sessionNotFound(sessionId)
  return session
}

/** Sends the conversation to the model and hands over each piece of its streamed answer. */
async function* callModel(messages: ReadonlyArray<Message>, signal: AbortSignal): AsyncGenerator<Delta> {
  const { OPENAI_API_KEY = "none", OPENAI_BASE_URL, OPENAI_MODEL = "default" } = process.env
  if (OPENAI_BASE_URL === undefined) {
    const todo =
      "set OPENAI_BASE_URL to an OpenAI-compatible server, such as http://localhost:11434/v1, and OPENAI_MODEL"
    throw RequestError.internalError(undefined, `the bundled agent has no model of its own: ${todo}`)
  }
  const response = await fetch(`${OPENAI_BASE_URL.replace(/\/+$/, "")}/chat/completions`, {
    method: "POST",
    signal,
    headers: { "content-type": "application/json", authorization: `Bearer ${OPENAI_API_KEY}` },
    body: JSON.stringify({ model: OPENAI_MODEL, stream: true, messages, tools })
  })
  if (!response.ok || response.body === null) {
    const text = (await response.text()).slice(0, 200)
    throw RequestError.internalError({ status: response.status }, `the model answered ${response.status}: ${text}`)
  }
  const decoder = new TextDecoder()
  let rest = ""
  for await (const bytes of response.body as NodeReadableStream<Uint8Array>) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n")
    rest = lines.pop()!
    for (const line of lines) {
      if (!line.startsWith("data:")) continue
      const data = line.slice(5).trim()
      if (data === "[DONE]") return
      const delta: Delta | undefined = JSON.parse(data).choices?.[0]?.delta
      if (delta !== undefined) yield delta
    }
  }
}

const runCommand = (command: string, cwd: string, signal: AbortSignal) =>
  new Promise<{ readonly ok: boolean; readonly output: string }>((resolve) => {
    let output = ""
    const child = spawn("/bin/sh", ["-c", command], { cwd, detached: true, stdio: ["ignore", "pipe", "pipe"] })
    const kill = () => {
      try {
        if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL")
      } catch {
        // The group is already gone.
      }
    }
    const end = (ok: boolean) => {
      signal.removeEventListener("abort", kill)
      running.delete(kill)
      resolve({ ok, output: output.slice(-maxToolOutput) })
    }
    const take = (bytes: Buffer) => (output = (output + bytes.toString()).slice(-maxToolOutput * 2))
    child.stdout.on("data", take)
    child.stderr.on("data", take)
    child.once("error", (error) => {
      output += error.message
      end(false)
    })
    child.once("close", (code) => end(code === 0))
    signal.addEventListener("abort", kill)
    running.add(kill)
    if (signal.aborted) kill()
  })

/** Asks the user, runs the command when allowed, and shows both as updates of one tool call. */
const useTool = async (
  client: AgentContext,
  sessionId: string,
  session: Session,
  call: ToolCall,
  signal: AbortSignal
): Promise<string> => {
  const command = `${JSON.parse(call.function.arguments || "{}").command ?? ""}`
  const toolCall = {
    toolCallId: call.id,
    title: command,
    kind: "execute" as const,
    status: "pending" as const,
    rawInput: { command }
  }
  const update = (status: "in_progress" | "completed" | "failed", text?: string) =>
    client.notify(methods.client.session.update, {
      sessionId,
      update: {
        sessionUpdate: "tool_call_update",
        toolCallId: call.id,
        status,
        ...(text === undefined ? {} : { content: [{ type: "content", content: { type: "text", text } }] })
      }
    })
  await client.notify(methods.client.session.update, { sessionId, update: { sessionUpdate: "tool_call", ...toolCall } })
  const question: RequestPermissionRequest = {
    sessionId,
    toolCall,
    options: [
      { optionId: "allow", name: "Allow", kind: "allow_once" },
      { optionId: "reject", name: "Reject", kind: "reject_once" }
    ]
  }
  const { outcome } = await client.request(methods.client.session.requestPermission, question, {
    cancellationSignal: signal,
    stopWaitingOnCancel: true
  })
  if (outcome.outcome !== "selected" || outcome.optionId !== "allow") {
    const text = outcome.outcome === "selected" ? "the user refused" : "the question was cancelled"
    await update("failed", text)
    return text
  }
  signal.throwIfAborted()
  await update("in_progress")
  const { ok, output } = await runCommand(command, session.cwd, signal)
  await update(ok ? "completed" : "failed", output)
  return output
}

const runTurn = async (client: AgentContext, sessionId: string, session: Session, signal: AbortSignal) => {
  for (let calls = 0; calls < maxModelCalls; calls++) {
    let text = ""
    const toolCalls: Array<ToolCall> = []
    try {
      for await (const delta of callModel(session.messages, signal)) {
        if (typeof delta.content === "string" && delta.content !== "") {
          text += delta.content
          await client.notify(methods.client.session.update, {
            sessionId,
            update: { sessionUpdate: "agent_message_chunk", content: { type: "text", text: delta.content } }
          })
        }
        for (const part of delta.tool_calls ?? []) {
          const call = (toolCalls[part.index] ??= {
            id: part.id ?? randomUUID(),
            type: "function",
            function: { name: "", arguments: "" }
          })
          call.function.name += part.function?.name ?? ""
          call.function.arguments += part.function?.arguments ?? ""
        }
      }
    } finally {
      if (text !== "" && toolCalls.length === 0) session.messages.push({ role: "assistant", content: text })
    }
    if (toolCalls.length === 0) return "end_turn"
    const results: Array<Message> = []
    for (const call of toolCalls) {
      const content = await useTool(client, sessionId, session, call, signal)
      signal.throwIfAborted()
      results.push({ role: "tool", tool_call_id: call.id, content })
    }
    session.messages.push({ role: "assistant", content: text === "" ? null : text, tool_calls: toolCalls }, ...results)
  }
  return "max_turn_requests"
}

const cancel = (sessionId: string) => {
  for (const turn of sessions.get(sessionId)?.turns ?? []) turn.abort()
}

// The order matters: a handler that is registered first also runs first, so that a cancel right behind its prompt finds it.
const app = agent({ name: "acp-sidecar-demo-agent" })
  .onRequest(methods.agent.session.prompt, async ({ client, params, signal }) => {
    const { prompt, sessionId } = params
    const session = sessionOf(sessionId)
    const turn = new AbortController()
    session.turns.add(turn)
    const stop = AbortSignal.any([turn.signal, signal])
    const text = prompt.map((block) =>
      block.type === "text" ? block.text : block.type === "resource_link" ? block.uri : ""
    )
    session.messages.push({ role: "user", content: text.join("\n") })
    try {
      return { stopReason: await runTurn(client, sessionId, session, stop) }
    } catch (error) {
      if (stop.aborted) return { stopReason: "cancelled" }
      if (error instanceof RequestError) throw error
      const cause = error instanceof Error && error.cause instanceof Error ? `: ${error.cause.message}` : ""
      throw RequestError.internalError(undefined, `${error instanceof Error ? error.message : error}${cause}`)
    } finally {
      session.turns.delete(turn)
    }
  })
  .onNotification(methods.agent.session.cancel, ({ params }) => cancel(params.sessionId))
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: PROTOCOL_VERSION,
    agentInfo: { name: "acp-sidecar-demo-agent", version },
    agentCapabilities: { sessionCapabilities: { close: {} } },
    authMethods: []
  }))
  .onRequest(methods.agent.session.new, ({ params }) => {
    const sessionId = randomUUID()
    sessions.set(sessionId, { cwd: params.cwd, messages: [], turns: new Set() })
    return { sessionId }
  })
  .onRequest(methods.agent.session.close, ({ params }) => {
    cancel(params.sessionId)
    sessions.delete(params.sessionId)
    return {}
  })

await app.connect(
  ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin) as unknown as ReadableStream<Uint8Array>)
).closed
process.exit(0)
