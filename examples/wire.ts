// The wire alone: one agent, one connection, no sidecar.
import { AcpConnection, AcpProtocol, AcpSchema, AcpTransport } from "acp-sidecar/acp"
import * as Effect from "effect/Effect"

/** Asks an agent one thing and gives what it said. Provide `AcpTransport.layerChildProcess({ … })` and a platform. */
export const ask = (cwd: string, question: string) =>
  Effect.gen(function* () {
    const said: Array<string> = []
    const connection = yield* AcpConnection.make(yield* AcpTransport.Transport, {
      // In the order of the wire: what an answer belongs to has been seen when the answer is here.
      onNotification: (_, params) => {
        const { update } = params as AcpSchema.Acp.SessionNotification
        if (update.sessionUpdate === "agent_message_chunk" && update.content.type === "text")
          said.push(update.content.text)
      },
      onRequest: (method) => Effect.fail(AcpConnection.methodNotFound(method))
    })
    const { v1 } = AcpProtocol
    yield* connection.request("initialize", v1.initialize({ name: "example", version: "1.0.0" }))
    const session = AcpSchema.newSessionResponse(yield* connection.request("session/new", { cwd, mcpServers: [] }))
    const { sessionId } = yield* Effect.fromResult(session)
    yield* connection.request("session/prompt", v1.prompt(sessionId, [{ type: "text", text: question }]))
    return said.join("")
  }).pipe(Effect.scoped)
