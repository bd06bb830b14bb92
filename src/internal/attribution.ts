/**
 * Which turn an update belongs to.
 *
 * @internal
 */
import type { SessionUpdate } from "../acp/AcpSchema.ts"
import type * as Address from "../Address.ts"

/** The turns that the agent works on, the one that ended last, and which turn each tool call and message came in. */
export interface Attribution {
  readonly active: Array<Address.TurnId>
  last: Address.TurnId | null
  readonly origin: Map<string, Address.TurnId>
  owner: Owner
}

export interface Owner {
  readonly turnId: Address.TurnId | null
  readonly afterTurn: Address.TurnId | null
}

/** Most updates belong to the same turn as the one before, and get the same answer. */
const inTurn = (self: Attribution, turnId: Address.TurnId): Owner =>
  self.owner.turnId === turnId ? self.owner : (self.owner = { turnId, afterTurn: null })

/** Tool calls and messages that are remembered per session. */
const maxOrigins = 1024

const nothing: Owner = { turnId: null, afterTurn: null }

export const make = (): Attribution => ({ active: [], last: null, origin: new Map(), owner: nothing })

export const begin = (self: Attribution, turnId: Address.TurnId): void => {
  self.active.push(turnId)
}

/** Nothing happens the second time. */
export const end = (self: Attribution, turnId: Address.TurnId): void => {
  const at = self.active.indexOf(turnId)
  if (at < 0) return
  self.active.splice(at, 1)
  self.last = turnId
}

/** The agent is another one: nothing that it says is about what was before. */
export const reset = (self: Attribution): void => {
  self.active.length = 0
  self.last = null
  self.origin.clear()
  self.owner = nothing
}

/** The name under which later updates speak of the same thing. */
const thing = (update: SessionUpdate): string | undefined => {
  if (update.sessionUpdate === "tool_call" || update.sessionUpdate === "tool_call_update") {
    return short("t", update.toolCallId)
  }
  return short("m", (update as { readonly messageId?: unknown }).messageId)
}

/** What is remembered is bounded in bytes too; an id of this length is no id. */
const short = (kind: string, id: unknown): string | undefined =>
  typeof id === "string" && id.length <= 256 ? `${kind}:${id}` : undefined

/**
 * An update belongs to the turn in which its tool call or message began, else to the oldest running turn. When that turn
 * has had its response, the update comes after it; it never moves into the next turn.
 */
export const owner = (self: Attribution, update: SessionUpdate): Owner => {
  const name = thing(update)
  const known = name === undefined ? undefined : self.origin.get(name)
  if (known !== undefined) {
    return self.active.includes(known) ? inTurn(self, known) : { turnId: null, afterTurn: known }
  }
  const current = self.active[0]
  // What begins after a turn stays with that turn too, also when the next one runs.
  const turnId = current ?? self.last
  if (name !== undefined && turnId !== null) {
    self.origin.set(name, turnId)
    if (self.origin.size > maxOrigins) self.origin.delete(self.origin.keys().next().value!)
  }
  if (current === undefined) return turnId === null ? nothing : { turnId: null, afterTurn: turnId }
  return inTurn(self, current)
}

/** The running turn that a question about a tool call belongs to, if it is one. */
export const asker = (self: Attribution, toolCall: { readonly toolCallId: string }): Address.TurnId | null => {
  const name = short("t", toolCall.toolCallId)
  const known = name === undefined ? undefined : self.origin.get(name)
  if (known !== undefined) return self.active.includes(known) ? known : null
  return self.active[0] ?? null
}

/** A turn, if the agent still works on it. */
export const ifActive = (self: Attribution, turnId: Address.TurnId | null): Address.TurnId | null =>
  turnId !== null && self.active.includes(turnId) ? turnId : null
