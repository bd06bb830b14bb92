import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"
import * as Schema from "effect/Schema"
import * as ScriptedModel from "../../src/cli/ScriptedModel.ts"

const bash = {
  type: "function",
  function: {
    name: "bash",
    parameters: {
      type: "object",
      properties: { command: { type: "string" }, timeout: { type: "number" }, note: { type: "string" } },
      required: ["command", "timeout"]
    }
  }
}

const user = (content: unknown) => ({ role: "user", content })

const post = (port: number, body: unknown, signal?: AbortSignal) =>
  Effect.promise((interrupted) =>
    fetch(`http://127.0.0.1:${port}/v1/chat/completions`, {
      method: "POST",
      body: typeof body === "string" ? body : JSON.stringify(body),
      signal: signal ?? interrupted
    })
  )

const Choices = Schema.Struct({
  choices: Schema.Array(
    Schema.Struct({
      delta: Schema.optionalKey(
        Schema.Struct({
          content: Schema.optionalKey(Schema.String),
          tool_calls: Schema.optionalKey(
            Schema.Array(Schema.Struct({ function: Schema.Struct({ name: Schema.String, arguments: Schema.String }) }))
          )
        })
      ),
      message: Schema.optionalKey(Schema.Struct({ content: Schema.NullOr(Schema.String) })),
      finish_reason: Schema.NullOr(Schema.String)
    })
  )
})
const decode = Schema.decodeUnknownSync(Choices)

/** The text, the last finish reason and the first tool call of a streamed answer. */
const streamed = (port: number, messages: ReadonlyArray<unknown>, tools: ReadonlyArray<unknown> = []) =>
  Effect.gen(function* () {
    const response = yield* post(port, { model: "m", stream: true, messages, tools })
    assert.strictEqual(response.headers.get("content-type"), "text/event-stream")
    const text = yield* Effect.promise(() => response.text())
    const data = text.split("\n\n").filter((line) => line !== "")
    assert.strictEqual(data.at(-1), "data: [DONE]")
    const choices = data.slice(0, -1).flatMap((line) => decode(JSON.parse(line.slice(6))).choices)
    return {
      text: choices.map((choice) => choice.delta?.content ?? "").join(""),
      finish: choices.at(-1)?.finish_reason,
      call: choices.flatMap((choice) => choice.delta?.tool_calls ?? []).at(0)?.function
    }
  })

const take = (model: ScriptedModel.ScriptedModel["Service"]) =>
  Effect.map(Queue.take(model.events), ({ directive, lane, request, type }) => [type, request, lane, directive._tag])

describe("parseDirective", () => {
  it.each<[string, ScriptedModel.Directive]>([
    ["hello", { _tag: "Say", text: "ok" }],
    ["[[say:a:b]]", { _tag: "Say", text: "a:b" }],
    ["[[say:a]] then [[say:b]]", { _tag: "Say", text: "b" }],
    ["[[slow:3:20]]", { _tag: "Slow", chunks: 3, millis: 20 }],
    ["[[wait:500:all\ndone: yes]]", { _tag: "Wait", millis: 500, text: "all\ndone: yes" }],
    ["[[wait:500]]", { _tag: "Wait", millis: 500, text: "ok" }],
    ["[[tool:echo a:b]]", { _tag: "Tool", command: "echo a:b" }],
    ["[[drop:3]]", { _tag: "Drop", chunks: 3 }],
    ["[[error:429]]", { _tag: "Error", status: 429 }],
    ["[[error:7]]", { _tag: "Error", status: 500 }],
    ["[[hang]]", { _tag: "Hang" }],
    ["[[nothing:1]]", { _tag: "Say", text: "ok" }]
  ])("%s", (text, expected) => assert.deepStrictEqual(ScriptedModel.parseDirective(text), expected))
})

describe("ScriptedModel", () => {
  it.live("streams the last directive of the last user text and reports the request", () =>
    Effect.gen(function* () {
      const model = yield* ScriptedModel.make()
      const { port } = model
      const first = yield* streamed(port, [user("[[say:no]]"), user([{ type: "text", text: "x [[say:hi]]" }])])
      assert.deepStrictEqual(first, { text: "hi", finish: "stop", call: undefined })
      assert.strictEqual((yield* streamed(port, [user("hello")])).text, "ok")
      assert.strictEqual((yield* streamed(port, [user("[[slow:3:1]]")])).text, "tok0 tok1 tok2 ")
      assert.strictEqual((yield* streamed(port, [user("[[wait:5:done]]")])).text, "done")
      assert.deepStrictEqual(yield* Effect.all(Array.from({ length: 8 }, () => take(model))), [
        ["request", 1, "fast", "Say"],
        ["finished", 1, "fast", "Say"],
        ["request", 2, "fast", "Say"],
        ["finished", 2, "fast", "Say"],
        ["request", 3, "slow", "Slow"],
        ["finished", 3, "slow", "Slow"],
        ["request", 4, "slow", "Wait"],
        ["finished", 4, "slow", "Wait"]
      ])
    })
  )

  it.live("asks for a shell tool with arguments of its schema, then finishes on the result", () =>
    Effect.gen(function* () {
      const { port } = yield* ScriptedModel.make()
      const asked = yield* streamed(port, [user("[[tool:echo hi]]")], [bash])
      assert.strictEqual(asked.finish, "tool_calls")
      assert.strictEqual(asked.call?.name, "bash")
      assert.deepStrictEqual(JSON.parse(`${asked.call?.arguments}`), { command: "echo hi", timeout: 10_000 })
      const result = { role: "tool", tool_call_id: "call_1", content: "hi\n" }
      const done = yield* streamed(port, [user("[[tool:echo hi]]"), { role: "assistant" }, result], [bash])
      assert.deepStrictEqual(done, { text: "tool result: hi", finish: "stop", call: undefined })
      assert.strictEqual((yield* streamed(port, [user("[[tool:echo hi]]")])).text, "the request offers no shell tool")
    })
  )

  it.live("answers plain JSON, scripted errors, the list of models, bad requests and unknown routes", () =>
    Effect.gen(function* () {
      const { baseUrl, port } = yield* ScriptedModel.make()
      const plain = yield* post(port, { messages: [user("[[say:hi]]")] })
      const body = decode(yield* Effect.promise(() => plain.json()))
      assert.strictEqual(body.choices[0]?.message?.content, "hi")
      assert.strictEqual((yield* post(port, { messages: [user("[[error:429]]")] })).status, 429)
      assert.strictEqual((yield* post(port, "{")).status, 400)
      assert.strictEqual((yield* Effect.promise(() => fetch(`${baseUrl}/models`))).status, 200)
      assert.strictEqual((yield* Effect.promise(() => fetch(`${baseUrl}/nothing`))).status, 404)
    })
  )

  it.live("ends a wait at once when the client goes away, and says so", () =>
    Effect.gen(function* () {
      const seen: Array<string> = []
      const model = yield* ScriptedModel.make({ onEvent: (event) => Effect.sync(() => void seen.push(event.type)) })
      for (const directive of ["[[wait:600000:never]]", "[[hang]]", "[[slow:1000:60000]]"]) {
        yield* Effect.gen(function* () {
          yield* Effect.forkScoped(post(model.port, { stream: true, messages: [user(directive)] }))
          assert.strictEqual((yield* take(model))[0], "request")
        }).pipe(Effect.scoped)
        assert.strictEqual((yield* take(model))[0], "aborted")
      }
      assert.deepStrictEqual(seen, ["request", "aborted", "request", "aborted", "request", "aborted"])
    })
  )

  it.live("closes with its scope, also while answers are under way", () =>
    Effect.gen(function* () {
      const port = yield* Effect.gen(function* () {
        const model = yield* ScriptedModel.ScriptedModel
        yield* Effect.forkChild(Effect.exit(post(model.port, { messages: [user("[[hang]]")] })))
        yield* take(model)
        return model.port
      }).pipe(Effect.provide(ScriptedModel.layer()))
      const after = yield* Effect.exit(Effect.tryPromise(() => fetch(`http://127.0.0.1:${port}/v1/models`)))
      assert.strictEqual(after._tag, "Failure")
    })
  )
})
