// What a person sees of a turn: the agent's words, and one line for each change of a tool call, the plan or a question.
// Pure: events in, pieces of text for stdout (the agent's words) and stderr (all else) out.
import type { Acp } from "../acp/AcpSchema.ts"
import type * as SidecarEvent from "../SidecarEvent.ts"
import { oneLine } from "./failure.ts"
import { style, type Sink } from "./output.ts"

export interface Piece {
  readonly sink: Sink
  readonly text: string
}

export interface Options {
  /** Whether the piece is going to a terminal, where the agent must not move the cursor. */
  readonly isTerminal: (sink: Sink) => boolean
  readonly canColor: (sink: Sink) => boolean
}

export interface Transcript {
  readonly event: (event: SidecarEvent.SessionEvent) => ReadonlyArray<Piece>
  /** Ends an unfinished line. */
  readonly end: () => ReadonlyArray<Piece>
}

interface Tool {
  title: string
  kind: string
  status: string
}

// Tabs and newlines may stay.
const controls = /(?![\t\n])\p{Cc}/gu

/** The text of a content block, or a mark for what can't be shown. */
export const contentText = (content: Acp.ContentBlock): string => {
  switch (content.type) {
    case "text":
      return content.text
    case "resource_link":
      return `[${content.uri}]`
    case "resource":
      return "text" in content.resource ? content.resource.text : `[${content.resource.uri}]`
    default:
      return `[${oneLine(String(content.type), 40)}]`
  }
}

const mark: ReadonlyMap<string, string> = new Map([
  ["completed", "x"],
  ["in_progress", ">"],
  ["pending", " "]
])

/** The same with fewer pieces. */
export const joined = (pieces: ReadonlyArray<Piece>): ReadonlyArray<Piece> => {
  const all: Array<{ readonly sink: Sink; readonly texts: Array<string> }> = []
  for (const { sink, text } of pieces) {
    const last = all.at(-1)
    if (last?.sink === sink) last.texts.push(text)
    else all.push({ sink, texts: [text] })
  }
  return all.map(({ sink, texts }) => ({ sink, text: texts.join("") }))
}

export const make = (options: Options): Transcript => {
  const tools = new Map<string, Tool>()
  const questions = new Map<string, { readonly title: string; readonly options: ReadonlyArray<Acp.PermissionOption> }>()
  let open: "message" | "thought" | undefined
  let atLineStart = true
  let plan = ""
  let hasThoughtStyle = false

  const sinkOf = (block: "message" | "thought"): Sink => (block === "message" ? "out" : "err")
  const close = (): Array<Piece> => {
    if (open === undefined) return []
    const sink = sinkOf(open)
    const reset = hasThoughtStyle ? "\u001b[0m" : ""
    const text = `${reset}${atLineStart ? "" : "\n"}`
    open = undefined
    atLineStart = true
    hasThoughtStyle = false
    return text === "" ? [] : [{ sink, text }]
  }
  const speak = (block: "message" | "thought", given: string): ReadonlyArray<Piece> => {
    const sink = sinkOf(block)
    const text = options.isTerminal(sink) ? given.replaceAll(controls, "") : given
    if (text === "") return []
    const pieces = open === block ? [] : close()
    const isDim = block === "thought" && options.canColor(sink)
    if (open === undefined && isDim) {
      hasThoughtStyle = true
      pieces.push({ sink, text: "\u001b[2m" })
    }
    open = block
    atLineStart = text.endsWith("\n")
    pieces.push({ sink, text })
    return pieces
  }
  const tell = (text: string, color?: "red" | "green" | "yellow"): ReadonlyArray<Piece> => {
    const isColored = options.canColor("err")
    return [...close(), { sink: "err", text: `${color === undefined ? text : style(text, color, isColored)}\n` }]
  }

  const tool = (update: Acp.ToolCall | Acp.ToolCallUpdate): ReadonlyArray<Piece> => {
    const before = tools.get(update.toolCallId)
    const now: Tool = {
      title: update.title == null ? (before?.title ?? update.toolCallId) : update.title,
      kind: update.kind ?? before?.kind ?? "other",
      status: update.status ?? before?.status ?? "pending"
    }
    tools.set(update.toolCallId, now)
    if (before?.status === now.status && before.title === now.title) return []
    const kind = now.kind === "other" ? "" : ` (${oneLine(now.kind, 40)})`
    const [content] = now.status === "failed" ? (update.content ?? []) : []
    const why = content?.type === "content" ? oneLine(contentText(content.content), 200) : ""
    return tell(
      `tool${kind}: ${oneLine(now.title, 200)}: ${oneLine(now.status, 40)}${why === "" ? "" : ` (${why})`}`,
      now.status === "failed" ? "red" : now.status === "completed" ? "green" : undefined
    )
  }

  const update = (event: SidecarEvent.Update): ReadonlyArray<Piece> => {
    const { update } = event
    switch (update.sessionUpdate) {
      case "agent_message_chunk":
        return "content" in update ? speak("message", contentText(update.content as Acp.ContentBlock)) : []
      case "agent_thought_chunk":
        return "content" in update ? speak("thought", contentText(update.content as Acp.ContentBlock)) : []
      case "tool_call":
      case "tool_call_update":
        return "toolCallId" in update ? tool(update as Acp.ToolCallUpdate) : []
      case "plan": {
        const { entries } = update as Acp.Plan
        const text = entries
          .map((entry) => `  [${mark.get(entry.status) ?? "?"}] ${oneLine(entry.content, 200)}`)
          .join("\n")
        if (text === plan) return []
        plan = text
        return tell(text === "" ? "plan: empty" : `plan:\n${text}`)
      }
      default:
        return []
    }
  }

  const show = (event: SidecarEvent.SessionEvent): ReadonlyArray<Piece> => {
    switch (event._tag) {
      case "Update":
        return update(event)
      case "PermissionAsked": {
        const { toolCall } = event
        const title = toolCall.title ?? tools.get(toolCall.toolCallId)?.title ?? toolCall.toolCallId
        questions.set(event.permissionId, { title, options: event.options })
        return close()
      }
      case "PermissionAnswered": {
        const question = questions.get(event.permissionId)
        questions.delete(event.permissionId)
        const chosen = question?.options.find((option) => option.optionId === event.optionId)
        const answer = event.optionId === null ? "cancelled" : (chosen?.name ?? event.optionId)
        const by = event.answeredBy === "user" ? "" : ` (by ${event.answeredBy})`
        return tell(`permission: ${oneLine(question?.title ?? "", 200)}: ${oneLine(answer, 80)}${by}`, "yellow")
      }
      case "Lagged":
        return tell(`${event.to - event.from} updates came too fast and are not shown`, "yellow")
      default:
        return []
    }
  }

  return {
    end: close,
    // Not all that an agent sends is as its type says; one such event must not cost those that come after it.
    event: (event) => {
      try {
        return show(event)
      } catch {
        return tell(`an event could not be shown (${event._tag})`, "red")
      }
    }
  }
}
