/**
 * The tool calls that the agent has begun in each turn and not ended.
 *
 * @internal
 */
import type { SessionUpdate } from "../acp/AcpSchema.ts"
import type * as Address from "../Address.ts"

export type OpenTools = Map<Address.TurnId, Set<string>>

/** Tool calls of one turn that are remembered; an id that is longer is no id. */
const maxTools = 1024
const maxIdLength = 256

export const make = (): OpenTools => new Map()

type ToolUpdate = Extract<SessionUpdate, { readonly sessionUpdate: "tool_call" | "tool_call_update" }>

/** A tool call of a turn began, went on or ended. */
export const note = (self: OpenTools, turnId: Address.TurnId, update: ToolUpdate): void => {
  const { status, toolCallId } = update
  const isOver = status === "completed" || status === "failed"
  const open = self.get(turnId)
  if (isOver) return void open?.delete(toolCallId)
  if (toolCallId.length > maxIdLength || (open !== undefined && open.size >= maxTools)) return
  if (open === undefined) self.set(turnId, new Set([toolCallId]))
  else open.add(toolCallId)
}

/** The turn is over: those that were still open, and from now on none. */
export const end = (self: OpenTools, turnId: Address.TurnId): ReadonlyArray<string> => {
  const open = self.get(turnId)
  self.delete(turnId)
  return open === undefined ? [] : Array.from(open)
}
