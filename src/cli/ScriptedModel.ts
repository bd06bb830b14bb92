/**
 * A scripted model server on loopback, so that real agents can be run with no network and no key: OpenAI's chat
 * completions, and other protocols that it is given. The last `[[…]]` directive in the last user text decides the answer.
 *
 * @since 0.1.0
 */
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as FiberSet from "effect/FiberSet"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import type * as Scope from "effect/Scope"
import type { IncomingMessage, ServerResponse } from "node:http"
import type { AddressInfo } from "node:net"
import { text as readText } from "node:stream/consumers"
import * as ModelProtocol from "./ModelProtocol.ts"

/**
 * What a directive in a prompt asks the model to do: `[[say:TEXT]]`, `[[slow:N:MS]]` (N chunks, MS apart),
 * `[[wait:MS:TEXT]]` (says TEXT after MS), `[[tool:CMD]]` (asks for a shell command, then finishes on its result),
 * `[[drop:N]]` (N chunks, then the connection breaks), `[[error:STATUS]]`, `[[hang]]`. `Result` is the answer to a
 * tool's result.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Directive = Data.TaggedEnum<{
  Say: { readonly text: string }
  Slow: { readonly chunks: number; readonly millis: number }
  Wait: { readonly millis: number; readonly text: string }
  Drop: { readonly chunks: number }
  Tool: { readonly command: string }
  Result: { readonly text: string }
  Error: { readonly status: number }
  Hang: {}
}>

/**
 * What happened to one request: it came in, was answered to its end, or was given up by the client. Requests are
 * numbered from 1; `lane` is "slow" for directives that take time by design; `at` is in milliseconds since the epoch.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface ModelEvent {
  readonly type: "request" | "finished" | "aborted"
  readonly request: number
  readonly directive: Directive
  readonly lane: "slow" | "fast"
  readonly at: number
}

/**
 * The model server could not listen on loopback.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class ScriptedModelError extends Data.TaggedError("ScriptedModelError")<{
  readonly message: string
  readonly cause: unknown
}> {}

/**
 * A running model server: the base URL for `OPENAI_BASE_URL`, and what happened so far (the last 1024 events that were
 * not taken yet).
 *
 * @stability unstable
 * @category services
 * @since 0.1.0
 */
export class ScriptedModel extends Context.Service<
  ScriptedModel,
  {
    readonly port: number
    readonly baseUrl: string
    readonly events: Queue.Dequeue<ModelEvent>
  }
>()("acp-sidecar/cli/ScriptedModel") {}

const count = (text: string | undefined, fallback: number): number => {
  const value = Number(text)
  return text === undefined || text === "" || !Number.isInteger(value) || value < 0 ? fallback : value
}

/**
 * Reads the last directive in a text; a text without one, and an unknown directive, say "ok".
 *
 * @stability unstable
 * @category combinators
 * @since 0.1.0
 */
export const parseDirective = (text: string): Directive => {
  const [, name, argument = ""] = [...text.matchAll(/\[\[(\w+)(?::([\s\S]*?))?\]\]/g)].at(-1) ?? []
  const [first, ...others] = argument.split(":")
  switch (name) {
    case "say":
      return { _tag: "Say", text: argument }
    case "slow":
      return { _tag: "Slow", chunks: count(first, 10), millis: count(others[0], 100) }
    case "wait":
      return { _tag: "Wait", millis: count(first, 1000), text: others.length === 0 ? "ok" : others.join(":") }
    case "drop":
      return { _tag: "Drop", chunks: count(first, 2) }
    case "tool":
      return { _tag: "Tool", command: argument }
    case "error": {
      const status = count(first, 500)
      return { _tag: "Error", status: status >= 400 && status <= 599 ? status : 500 }
    }
    case "hang":
      return { _tag: "Hang" }
    default:
      return { _tag: "Say", text: "ok" }
  }
}

const parseBody = (body: string): Readonly<Record<string, unknown>> | undefined => {
  try {
    const parsed: unknown = JSON.parse(body)
    return ModelProtocol.isRecord(parsed) ? parsed : undefined
  } catch {
    return undefined
  }
}

const directiveOf = ({ result, text }: ModelProtocol.Question): Directive =>
  result === undefined
    ? parseDirective(text)
    : { _tag: "Result", text: result.replace(/\s+/g, " ").trim().slice(0, 200) }

const json = (response: ServerResponse, status: number, body: unknown) =>
  Effect.sync(() => {
    response.writeHead(status, { "content-type": "application/json" })
    response.end(JSON.stringify(body))
  })

const failure = (response: ServerResponse, status: number, message: string) =>
  json(response, status, { type: "error", error: { message, type: "scripted_error", param: null, code: null } })

const write = (response: ServerResponse, { data, event }: ModelProtocol.Frame) =>
  Effect.callback<void>((resume) => {
    const name = event === undefined ? "" : `event: ${event}\n`
    const line = `${name}data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`
    if (response.write(line)) return void resume(Effect.void)
    response.once("drain", () => resume(Effect.void))
  })

/** The pieces of text of an answer, each with the time to wait before it. */
const pieces = (directive: Directive): ReadonlyArray<{ readonly millis: number; readonly text: string }> => {
  switch (directive._tag) {
    case "Say":
      return [{ millis: 0, text: directive.text }]
    case "Slow":
      return Array.from({ length: directive.chunks }, (_, index) => ({
        millis: index === 0 ? 0 : directive.millis,
        text: `tok${index} `
      }))
    case "Drop":
      return Array.from({ length: directive.chunks }, (_, index) => ({ millis: 30, text: `tok${index} ` }))
    case "Wait":
      return [{ millis: directive.millis, text: directive.text }]
    case "Result":
      return [{ millis: 0, text: `tool result: ${directive.text}` }]
    default:
      return []
  }
}

const answer = Effect.fnUntraced(function* (
  protocol: ModelProtocol.Protocol,
  question: ModelProtocol.Question,
  directive: Directive,
  id: string,
  response: ServerResponse
) {
  if (directive._tag === "Hang") return yield* Effect.never
  if (directive._tag === "Error") return yield* failure(response, directive.status, "scripted error")
  const call = directive._tag === "Tool" ? ModelProtocol.shellCall(question.tools, directive.command) : undefined
  const parts =
    directive._tag === "Tool" && call === undefined
      ? [{ millis: 0, text: "the request offers no shell tool" }]
      : pieces(directive)
  const whole = parts.map(({ text }) => text).join("")
  const shape = protocol.answer({ id, model: question.model, call })
  // After an empty comment has left, and with it all that was said before.
  const dropped = Effect.callback<void>((resume) => {
    response.write(":\n\n", () => {
      response.destroy()
      resume(Effect.void)
    })
  })

  if (!question.stream) {
    for (const { millis } of parts) if (millis > 0) yield* Effect.sleep(millis)
    return yield* directive._tag === "Drop" ? dropped : json(response, 200, shape.whole(whole))
  }
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" })
  for (const frame of shape.begin) yield* write(response, frame)
  for (const { millis, text } of parts) {
    if (millis > 0) yield* Effect.sleep(millis)
    yield* write(response, shape.text(text))
  }
  if (directive._tag === "Drop") return yield* dropped
  for (const frame of shape.end(whole)) yield* write(response, frame)
  yield* Effect.sync(() => response.end())
})

const slow: ReadonlyArray<Directive["_tag"]> = ["Slow", "Wait", "Hang"]

/**
 * Starts a model server on a free port of 127.0.0.1; it ends with its scope, and an answer under way ends as soon as its
 * client goes away. `onEvent` runs before the answer goes on, for callers who rather not take from the queue.
 * `protocols` are the chat completions alone unless given.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (options?: {
  readonly onEvent?: ((event: ModelEvent) => Effect.Effect<void>) | undefined
  readonly protocols?: ReadonlyArray<ModelProtocol.Protocol> | undefined
}): Effect.Effect<ScriptedModel["Service"], ScriptedModelError, Scope.Scope> =>
  Effect.gen(function* () {
    const events = yield* Effect.acquireRelease(Queue.sliding<ModelEvent>(1024), Queue.shutdown)
    const protocols = options?.protocols ?? [ModelProtocol.chat]
    let requests = 0

    const complete = Effect.fnUntraced(function* (
      protocol: ModelProtocol.Protocol,
      question: ModelProtocol.Question,
      response: ServerResponse
    ) {
      const number = ++requests
      const directive = directiveOf(question)
      const lane = slow.includes(directive._tag) ? "slow" : "fast"
      const tell = Effect.fnUntraced(function* (type: ModelEvent["type"]) {
        const event: ModelEvent = { type, request: number, directive, lane, at: yield* Clock.currentTimeMillis }
        yield* Queue.offer(events, event)
        if (options?.onEvent !== undefined) yield* options.onEvent(event)
      })
      yield* tell("request")
      yield* answer(protocol, question, directive, `scripted-${number}`, response).pipe(
        Effect.onInterrupt(() => tell("aborted"))
      )
      yield* tell("finished")
    })

    const route = Effect.fnUntraced(function* (request: IncomingMessage, response: ServerResponse) {
      const path = (request.url ?? "").replace(/\?.*$/, "")
      if (request.method === "GET" && path === "/v1/models") {
        const data = [{ id: "scripted", object: "model", created: 1, owned_by: "acp-sidecar" }]
        return yield* json(response, 200, { object: "list", data })
      }
      const body = yield* Effect.tryPromise(() => readText(request)).pipe(Effect.orElseSucceed(() => ""))
      const protocol = request.method === "POST" ? protocols.find((one) => one.path.test(path)) : undefined
      if (protocol === undefined) return yield* failure(response, 404, `no such route: ${request.method} ${path}`)
      const parsed = parseBody(body)
      const question = parsed && protocol.read(parsed, path)
      if (question === undefined) {
        return yield* failure(response, 400, "expected a JSON object with a list of messages")
      }
      yield* complete(protocol, question, response)
    })

    const server = yield* Effect.acquireRelease(
      // An import would load all that `node:http` may need, also when the command doesn't come to this.
      Effect.sync(() => process.getBuiltinModule("node:http").createServer()),
      (server) =>
        Effect.callback<void>((resume) => {
          server.close(() => resume(Effect.void))
          server.closeAllConnections()
        })
    )
    // Made after the server, so that answers under way are interrupted before the server closes.
    const run = yield* FiberSet.makeRuntime<never, void>()
    server.on("request", (request, response) => {
      const fiber = run(route(request, response))
      response.once("close", () => {
        if (!response.writableFinished) fiber.interruptUnsafe()
      })
    })
    yield* Effect.callback<void, ScriptedModelError>((resume) => {
      const failed = (cause: Error) =>
        resume(Effect.fail(new ScriptedModelError({ message: `can't listen on 127.0.0.1: ${cause.message}`, cause })))
      server.once("error", failed)
      server.listen(0, "127.0.0.1", () => {
        server.off("error", failed)
        resume(Effect.void)
      })
    })
    const { port } = server.address() as AddressInfo
    return ScriptedModel.of({ port, baseUrl: `http://127.0.0.1:${port}/v1`, events })
  })

/**
 * A model server for as long as the layer lives.
 *
 * @stability unstable
 * @category layers
 * @since 0.1.0
 */
export const layer = (options?: Parameters<typeof make>[0]): Layer.Layer<ScriptedModel, ScriptedModelError> =>
  Layer.effect(ScriptedModel, make(options))
