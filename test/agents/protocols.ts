// What the agents speak to their models besides OpenAI's chat completions.
import { chat, type Frame, isRecord, type Protocol, records, textOf, tool } from "../../src/cli/ModelProtocol.ts"

/** OpenAI's responses: codex. */
const responses: Protocol = {
  path: /^\/v1\/responses$/,
  read: (body) => {
    const { input } = body
    const items = typeof input === "string" ? [{ role: "user", content: input }] : records(input)
    const asked = items.findLastIndex((item) => item["role"] === "user")
    const result = items.findLast((item, index) => `${item["type"]}`.endsWith("_output") && index > asked)
    return {
      model: `${body["model"]}`,
      stream: body["stream"] === true,
      text: textOf(items[asked]?.["content"]),
      result: result === undefined ? undefined : textOf(result["output"]),
      tools: records(body["tools"]).map((entry) => tool(entry["name"] ?? entry["type"], entry["parameters"]))
    }
  },
  answer: ({ call, id, model }) => {
    const usage = {
      input_tokens: 100,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: 10,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: 110
    }
    const part = (text: string) => ({ type: "output_text", text, annotations: [] })
    const item = (text: string, status: string) =>
      call === undefined
        ? { type: "message", id: `msg_${id}`, role: "assistant", status, content: text === "" ? [] : [part(text)] }
        : {
            type: "function_call",
            id: `fc_${id}`,
            call_id: `call_${id}`,
            name: call.name,
            arguments: JSON.stringify(call.arguments),
            status
          }
    const response = (status: string, output: ReadonlyArray<unknown>) => ({
      id: `resp_${id}`,
      object: "response",
      created_at: 1,
      model,
      status,
      output,
      usage: status === "completed" ? usage : null,
      error: null
    })
    let sequence_number = 0
    const frame = (type: string, fields: object): Frame => ({
      event: type,
      data: { type, sequence_number: sequence_number++, ...fields }
    })
    const at = { item_id: `msg_${id}`, output_index: 0, content_index: 0 }
    return {
      begin: [
        frame("response.created", { response: response("in_progress", []) }),
        frame("response.output_item.added", { output_index: 0, item: item("", "in_progress") }),
        ...(call === undefined ? [frame("response.content_part.added", { ...at, part: part("") })] : [])
      ],
      text: (delta) => frame("response.output_text.delta", { ...at, delta }),
      end: (text) => [
        ...(call === undefined
          ? [
              frame("response.output_text.done", { ...at, text }),
              frame("response.content_part.done", { ...at, part: part(text) })
            ]
          : []),
        frame("response.output_item.done", { output_index: 0, item: item(text, "completed") }),
        frame("response.completed", { response: response("completed", [item(text, "completed")]) })
      ],
      whole: (text) => response("completed", [item(text, "completed")])
    }
  }
}

/** Anthropic's messages: claude. */
const messages: Protocol = {
  path: /^\/v1\/messages$/,
  read: (body) => {
    if (!Array.isArray(body["messages"])) return undefined
    const asked = records(body["messages"]).findLast((message) => message["role"] === "user")
    const parts = records(asked?.["content"])
    const text = textOf(typeof asked?.["content"] === "string" ? asked["content"] : parts.filter(isText))
    const results = parts.filter((part) => part["type"] === "tool_result")
    // What was cut short comes back as a result beside the next prompt.
    const isPrompt = results.length === 0 || text.includes("[[")
    return {
      model: `${body["model"]}`,
      stream: body["stream"] === true,
      text,
      result: isPrompt ? undefined : results.map((part) => textOf(part["content"])).join("\n"),
      tools: records(body["tools"]).map((entry) => tool(entry["name"], entry["input_schema"]))
    }
  },
  answer: ({ call, id, model }) => {
    const block = (text: string) =>
      call === undefined
        ? { type: "text", text }
        : { type: "tool_use", id: `toolu_${id}`, name: call.name, input: call.arguments }
    const stop = { stop_reason: call === undefined ? "end_turn" : "tool_use", stop_sequence: null }
    const usage = {
      input_tokens: 100,
      output_tokens: 10,
      cache_creation_input_tokens: 0,
      cache_read_input_tokens: 0
    }
    const message = { id: `msg_${id}`, type: "message", role: "assistant", model }
    const frame = (type: string, fields: object = {}): Frame => ({ event: type, data: { type, ...fields } })
    const delta = (fields: object) => frame("content_block_delta", { index: 0, delta: fields })
    return {
      begin: [
        frame("message_start", {
          message: { ...message, content: [], stop_reason: null, stop_sequence: null, usage }
        }),
        frame("content_block_start", {
          index: 0,
          content_block: call === undefined ? block("") : { ...block(""), input: {} }
        }),
        ...(call === undefined
          ? []
          : [delta({ type: "input_json_delta", partial_json: JSON.stringify(call.arguments) })])
      ],
      text: (text) => delta({ type: "text_delta", text }),
      end: () => [
        frame("content_block_stop", { index: 0 }),
        frame("message_delta", { delta: stop, usage: { output_tokens: 10 } }),
        frame("message_stop")
      ],
      whole: (text) => ({ ...message, content: [block(text)], ...stop, usage })
    }
  }
}

const isText = (part: Readonly<Record<string, unknown>>): boolean => part["type"] === "text"

/** Gemini's generateContent: gemini. The path says the model, and whether to stream. */
const gemini: Protocol = {
  path: /\/models\/[^/]+:(stream)?[gG]enerateContent$/,
  read: (body, path) => {
    const asked = records(body["contents"]).findLast((content) => (content["role"] ?? "user") === "user")
    const parts = records(asked?.["parts"])
    const results = parts.map((part) => part["functionResponse"]).filter(isRecord)
    return {
      model: path,
      stream: path.endsWith(":streamGenerateContent"),
      text: textOf(parts),
      result: results.length === 0 ? undefined : JSON.stringify(results.map((result) => result["response"])),
      tools: records(body["tools"])
        .flatMap((entry) => records(entry["functionDeclarations"]))
        .map((entry) => tool(entry["name"], entry["parametersJsonSchema"] ?? entry["parameters"]))
    }
  },
  answer: ({ call, id }) => {
    const usageMetadata = { promptTokenCount: 100, candidatesTokenCount: 10, totalTokenCount: 110 }
    const content = (text: string, finishReason?: string) => ({
      candidates: [{ content: { role: "model", parts: [{ text }] }, index: 0, ...(finishReason && { finishReason }) }],
      usageMetadata,
      modelVersion: "scripted",
      responseId: id
    })
    const called = {
      ...content(""),
      candidates: [
        { content: { role: "model", parts: [{ functionCall: { name: call?.name, args: call?.arguments } }] }, index: 0 }
      ]
    }
    return {
      begin: call === undefined ? [] : [{ data: called }],
      text: (piece) => ({ data: content(piece) }),
      end: () => [{ data: content("", "STOP") }],
      whole: (text) => (call === undefined ? content(text, "STOP") : called)
    }
  }
}

export const protocols: ReadonlyArray<Protocol> = [chat, responses, messages, gemini]
