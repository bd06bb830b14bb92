import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as ScriptedModel from "../../src/cli/ScriptedModel.ts"
import { protocols } from "./protocols.ts"

interface Dialect {
  readonly path: string
  /** A request with what was said so far. */
  readonly body: (prompt: string, result?: string) => object
  /** The text of one streamed event. */
  readonly piece: (data: never) => string | undefined
  /** The name and the command of a tool call in an answer that is not streamed, or in one event. */
  readonly call: (data: never) => readonly [string, unknown] | undefined
  /** A request whose answer is not streamed. */
  readonly whole: (prompt: string) => readonly [string, object]
  readonly text: (data: never) => string
}

const shell = { type: "object", properties: { command: { type: "string" } }, required: ["command"] }

const dialects: Readonly<Record<string, Dialect>> = {
  responses: {
    path: "/v1/responses",
    body: (prompt, result) => ({
      model: "m",
      stream: true,
      input: [
        { type: "message", role: "user", content: [{ type: "input_text", text: prompt }] },
        ...(result === undefined ? [] : [{ type: "function_call_output", call_id: "c", output: result }])
      ],
      tools: [{ type: "function", name: "exec_command", parameters: shell }]
    }),
    piece: ({ delta, type }: { readonly delta: string; readonly type: string }) =>
      type === "response.output_text.delta" ? delta : undefined,
    call: ({ item, type }: { readonly item: { name: string; arguments: string }; readonly type: string }) =>
      type === "response.output_item.done" ? [item.name, JSON.parse(item.arguments)] : undefined,
    whole: (prompt) => ["/v1/responses", { model: "m", input: prompt }],
    text: ({ output }: { readonly output: ReadonlyArray<{ content: ReadonlyArray<{ text: string }> }> }) =>
      output[0]!.content[0]!.text
  },
  messages: {
    path: "/v1/messages?beta=true",
    body: (prompt, result) => ({
      model: "m",
      stream: true,
      messages: [
        { role: "user", content: [{ type: "text", text: prompt }] },
        ...(result === undefined ? [] : [{ role: "user", content: [{ type: "tool_result", content: result }] }])
      ],
      tools: [{ name: "Bash", input_schema: shell }]
    }),
    piece: ({ delta }: { readonly delta?: { readonly text?: string } }) => delta?.text,
    call: (data: { readonly content_block?: { name: string }; readonly delta?: { partial_json?: string } }) =>
      data.content_block !== undefined
        ? [data.content_block.name, undefined]
        : data.delta?.partial_json !== undefined
          ? ["", JSON.parse(data.delta.partial_json)]
          : undefined,
    whole: (prompt) => ["/v1/messages", { model: "m", messages: [{ role: "user", content: prompt }] }],
    text: ({ content }: { readonly content: ReadonlyArray<{ text: string }> }) => content[0]!.text
  },
  gemini: {
    path: "/v1beta/models/g:streamGenerateContent?alt=sse",
    body: (prompt, result) => ({
      contents: [
        { role: "user", parts: [{ text: prompt }] },
        ...(result === undefined
          ? []
          : [{ role: "user", parts: [{ functionResponse: { response: { output: result } } }] }])
      ],
      tools: [{ functionDeclarations: [{ name: "run_shell_command", parametersJsonSchema: shell }] }]
    }),
    piece: ({ candidates }: GeminiAnswer) => candidates[0]!.content.parts[0]!.text,
    call: ({ candidates }: GeminiAnswer) => {
      const call = candidates[0]!.content.parts[0]!.functionCall
      return call && [call.name, call.args]
    },
    whole: (prompt) => ["/v1beta/models/g:generateContent", { contents: [{ parts: [{ text: prompt }] }] }],
    text: ({ candidates }: GeminiAnswer) => candidates[0]!.content.parts[0]!.text!
  }
}

interface GeminiAnswer {
  readonly candidates: ReadonlyArray<{
    readonly content: {
      readonly parts: ReadonlyArray<{ text?: string; functionCall?: { name: string; args: object } }>
    }
  }>
}

const post = (port: number, path: string, body: object) =>
  Effect.promise(async (signal) => {
    const response = await fetch(`http://127.0.0.1:${port}${path}`, {
      method: "POST",
      body: JSON.stringify(body),
      signal
    })
    return { status: response.status, text: await response.text() }
  })

/** The data of all events of a streamed answer. */
const streamed = (port: number, path: string, body: object) =>
  Effect.map(post(port, path, body), ({ text }) =>
    Array.from(text.matchAll(/^data: (.*)$/gm), ([, data]) => JSON.parse(data!) as never)
  )

describe.each(Object.entries(dialects))("the model speaks %s", (_, dialect) => {
  const said = (events: ReadonlyArray<never>) => events.map((event) => dialect.piece(event) ?? "").join("")

  it.live("it says what the last directive says, piece by piece", () =>
    Effect.gen(function* () {
      const { port } = yield* ScriptedModel.make({ protocols })
      const events = yield* streamed(port, dialect.path, dialect.body("[[say:no]] [[slow:3:1]]"))
      assert.strictEqual(said(events), "tok0 tok1 tok2 ")
    }).pipe(Effect.scoped)
  )

  it.live("it calls the shell tool of the request, and goes on with the result", () =>
    Effect.gen(function* () {
      const { port } = yield* ScriptedModel.make({ protocols })
      const prompt = "[[tool:echo hi]]"
      const called = yield* streamed(port, dialect.path, dialect.body(prompt))
      const calls = called.flatMap((event) => dialect.call(event) ?? [])
      assert.match(calls.filter((part) => typeof part === "string").join(""), /^(exec_command|Bash|run_shell_command)$/)
      assert.deepInclude(calls, { command: "echo hi" })
      const after = yield* streamed(port, dialect.path, dialect.body(prompt, "hi there"))
      assert.match(said(after), /^tool result: .*hi there/)
    }).pipe(Effect.scoped)
  )

  it.live("it breaks off in the middle of an answer when it is told to", () =>
    Effect.gen(function* () {
      const { port } = yield* ScriptedModel.make({ protocols })
      const broken = yield* Effect.promise(async (signal) => {
        const body = JSON.stringify(dialect.body("[[drop:2]]"))
        const response = await fetch(`http://127.0.0.1:${port}${dialect.path}`, { method: "POST", body, signal })
        let text = ""
        try {
          for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) text += chunk
          return undefined
        } catch {
          return text
        }
      })
      assert.match(broken ?? "it came to its end", /tok0[^]*tok1/)
    }).pipe(Effect.scoped)
  )

  it.live("it answers at once when it is not to stream, and with an error when it is told to", () =>
    Effect.gen(function* () {
      const { port } = yield* ScriptedModel.make({ protocols })
      const whole = yield* post(port, ...dialect.whole("[[say:all]]"))
      assert.strictEqual(dialect.text(JSON.parse(whole.text) as never), "all")
      const error = yield* post(port, dialect.path, dialect.body("[[error:429]]"))
      assert.strictEqual(error.status, 429)
    }).pipe(Effect.scoped)
  )
})
