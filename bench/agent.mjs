// The agent that every contender drives: raw NDJSON over stdin and stdout, no dependencies, so that what is measured is
// the other end of the pipe. Tokens in the prompt's text say what a turn does:
//   CHUNKS:n   sends n message chunks (default 1)
//   BATCH:n    gives n of them to the pipe at once (default 1): one by one an agent is slower than any of its readers
//   FAIR:1     looks at its input after each batch, as an agent with several sessions does
//   EVERY:ms   waits this long before each chunk; a cancel ends the turn
const line = (message) => JSON.stringify({ jsonrpc: "2.0", ...message }) + "\n"
const write = (message) => process.stdout.write(line(message))
const answer = (id, result) => write({ id, result })

const cancels = new Map()
let sessions = 0

const number = (text, token, otherwise) => Number(new RegExp(`\\b${token}:(\\d+)`).exec(text)?.[1] ?? otherwise)

const prompt = (id, { sessionId, prompt: blocks }) => {
  const text = blocks.map((block) => block.text ?? "").join("")
  const every = number(text, "EVERY", 0)
  let left = number(text, "CHUNKS", 1)
  const content = { type: "text", text: "a few words of an answer, about as long as one token group. " }
  const update = { sessionUpdate: "agent_message_chunk", content }
  const chunk = line({ method: "session/update", params: { sessionId, update } })
  if (number(text, "FAIR", 0) === 1) {
    const batch = number(text, "BATCH", 1)
    const next = () => {
      process.stdout.write(chunk.repeat(Math.min(batch, left)))
      left -= batch
      if (left > 0) setImmediate(next)
      else answer(id, { stopReason: "end_turn" })
    }
    return next()
  }
  if (every === 0) {
    const batch = number(text, "BATCH", 1)
    for (; left > 0; left -= batch) process.stdout.write(chunk.repeat(Math.min(batch, left)))
    return answer(id, { stopReason: "end_turn" })
  }
  const end = (stopReason) => {
    clearInterval(timer)
    cancels.delete(sessionId)
    answer(id, { stopReason })
  }
  const timer = setInterval(() => {
    process.stdout.write(chunk)
    if (--left <= 0) end("end_turn")
  }, every)
  cancels.set(sessionId, () => end("cancelled"))
}

const take = ({ id, method, params }) => {
  switch (method) {
    case "initialize":
      return answer(id, { protocolVersion: 1, agentCapabilities: {}, authMethods: [] })
    case "session/new":
      return answer(id, { sessionId: `s${++sessions}` })
    case "session/prompt":
      return prompt(id, params)
    case "session/cancel":
      return cancels.get(params.sessionId)?.()
    default:
      if (id !== undefined && method !== undefined) write({ id, error: { code: -32601, message: "Method not found" } })
  }
}

let rest = ""
process.stdin.setEncoding("utf8")
process.stdin.on("data", (data) => {
  rest += data
  let from = 0
  for (let to = rest.indexOf("\n"); to >= 0; to = rest.indexOf("\n", from)) {
    if (to > from) take(JSON.parse(rest.slice(from, to)))
    from = to + 1
  }
  rest = rest.slice(from)
})
process.stdin.on("end", () => process.exit(0))
