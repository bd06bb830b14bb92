/**
 * How a model server is asked and how it answers, apart from what it says: one value a protocol.
 *
 * @since 0.1.0
 */

/**
 * A tool that the model may call.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Tool {
  readonly name: string
  readonly properties: Readonly<Record<string, { readonly type?: unknown }>>
  readonly required: ReadonlyArray<string>
}

/**
 * What a request says: the last text of the user, the result of a tool that came after it, and whether the answer is to
 * be streamed.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Question {
  readonly model: string
  readonly stream: boolean
  readonly text: string
  readonly result: string | undefined
  readonly tools: ReadonlyArray<Tool>
}

/**
 * A tool call of the model.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Call {
  readonly name: string
  readonly arguments: Readonly<Record<string, unknown>>
}

/**
 * One server-sent event.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Frame {
  readonly event?: string
  readonly data: unknown
}

/**
 * The shape of one answer. Streamed it is `begin`, `text` for each piece of text, and `end`; else it is `whole`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Answer {
  readonly begin: ReadonlyArray<Frame>
  readonly text: (piece: string) => Frame
  readonly end: (text: string) => ReadonlyArray<Frame>
  readonly whole: (text: string) => unknown
}

/**
 * A protocol: the paths that it answers, how a request is read (`undefined` when it is none), and how an answer looks.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Protocol {
  readonly path: RegExp
  readonly read: (body: Readonly<Record<string, unknown>>, path: string) => Question | undefined
  readonly answer: (options: { readonly id: string; readonly model: string; readonly call: Call | undefined }) => Answer
}

/**
 * Whether a value is an object, and no list.
 *
 * @stability unstable
 * @category reading
 * @since 0.1.0
 */
export const isRecord = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value)

/**
 * The objects of a list; of anything else, none.
 *
 * @stability unstable
 * @category reading
 * @since 0.1.0
 */
export const records = (value: unknown): ReadonlyArray<Readonly<Record<string, unknown>>> =>
  (Array.isArray(value) ? value : []).filter(isRecord)

/**
 * The text of a message: a string, or the texts of its parts.
 *
 * @stability unstable
 * @category reading
 * @since 0.1.0
 */
export const textOf = (content: unknown): string =>
  typeof content === "string"
    ? content
    : records(content)
        .map((part) => `${part["text"] ?? ""}`)
        .join("\n")

/**
 * A tool from its name and the JSON Schema of its arguments.
 *
 * @stability unstable
 * @category reading
 * @since 0.1.0
 */
export const tool = (name: unknown, schema: unknown): Tool => {
  const { properties, required } = isRecord(schema) ? schema : {}
  return {
    name: `${name}`,
    properties: Object.fromEntries(
      Object.entries(isRecord(properties) ? properties : {}).filter((entry) => isRecord(entry[1]))
    ) as Tool["properties"],
    required: (Array.isArray(required) ? required : []).map(String)
  }
}

const shellNames = /^(bash|shell|sh|terminal|execute|run_shell_command|exec_command|shell_command|local_shell)$/i

const blank = (type: unknown): unknown =>
  ({ boolean: false, number: 10_000, integer: 10_000, array: [], object: {} })[`${type}`.toLowerCase()] ?? "scripted"

/**
 * The call of the shell tool among `tools` that runs a command, with arguments that the tool's own schema accepts;
 * `undefined` when there is no such tool. A tool that can ask its user for more rights is told to ask.
 *
 * @stability unstable
 * @category calls
 * @since 0.1.0
 */
export const shellCall = (tools: ReadonlyArray<Tool>, command: string): Call | undefined => {
  const shell = tools.find(({ name }) => shellNames.test(name))
  if (shell === undefined) return undefined
  const known = Object.entries(shell.properties)
  if (known.length === 0) return { name: shell.name, arguments: { command } }
  const given = known.flatMap(([key, { type }]): ReadonlyArray<[string, unknown]> => {
    if (key === "command" || key === "cmd") return [[key, type === "array" ? ["bash", "-lc", command] : command]]
    if (key === "sandbox_permissions") return [[key, "require_escalated"]]
    return shell.required.includes(key) || key === "justification" ? [[key, blank(type)]] : []
  })
  return { name: shell.name, arguments: Object.fromEntries(given) }
}

/**
 * OpenAI's chat completions.
 *
 * @stability unstable
 * @category protocols
 * @since 0.1.0
 */
export const chat: Protocol = {
  path: /^\/v1\/chat\/completions$/,
  read: (body) => {
    if (!Array.isArray(body["messages"])) return undefined
    const messages = records(body["messages"])
    const asked = messages.findLastIndex((message) => message["role"] === "user")
    const result = messages.findLast((message, index) => message["role"] === "tool" && index > asked)
    return {
      model: `${body["model"] ?? "scripted"}`,
      stream: body["stream"] === true,
      text: textOf(messages[asked]?.["content"]),
      result: result === undefined ? undefined : textOf(result["content"]),
      tools: records(body["tools"])
        .map((entry) => entry["function"])
        .filter(isRecord)
        .map((entry) => tool(entry["name"], entry["parameters"]))
    }
  },
  answer: ({ call, id, model }) => {
    const base = { id, object: "chat.completion.chunk", created: 1, model }
    const usage = { prompt_tokens: 100, completion_tokens: 10, total_tokens: 110 }
    const tool_calls = call && [
      { id: `call_${id}`, type: "function", function: { name: call.name, arguments: JSON.stringify(call.arguments) } }
    ]
    const finish_reason = call === undefined ? "stop" : "tool_calls"
    const choice = (delta: unknown, reason: string | null = null): Frame => ({
      data: { ...base, choices: [{ index: 0, delta, finish_reason: reason }] }
    })
    return {
      begin: [
        choice({ role: "assistant", content: "" }),
        ...(tool_calls === undefined
          ? []
          : [choice({ tool_calls: tool_calls.map((entry, index) => ({ index, ...entry })) })])
      ],
      text: (content) => choice({ content }),
      end: () => [choice({}, finish_reason), { data: { ...base, choices: [], usage } }, { data: "[DONE]" }],
      whole: (text) => ({
        ...base,
        object: "chat.completion",
        choices: [
          {
            index: 0,
            message: { role: "assistant", content: call === undefined ? text : null, ...(call && { tool_calls }) },
            finish_reason
          }
        ],
        usage
      })
    }
  }
}
