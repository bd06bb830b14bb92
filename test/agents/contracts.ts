// What must hold of the events of any session, whatever its agent does.
import type * as SidecarEvent from "../../src/SidecarEvent.ts"

/**
 * The broken contracts in all events of a session, in words; none when all is well. `maxRunning` turns may run at once.
 */
export const violations = (events: ReadonlyArray<SidecarEvent.SessionEvent>, maxRunning = 1): ReadonlyArray<string> => {
  const broken: Array<string> = []
  const queued = new Set<string>()
  const ended = new Set<string>()
  const open = new Set<string>()
  const running = new Set<string>()
  let last = 0
  let isOver = false
  for (const event of events) {
    if (event._tag === "Lagged") {
      broken.push(`a reader in no hurry missed the events ${event.from} to ${event.to}`)
      last = event.to - 1
      continue
    }
    if (event.number !== last + 1) broken.push(`event ${event.number} came after event ${last}`)
    last = event.number
    if (isOver) broken.push(`${event._tag} came after the end of the session`)
    switch (event._tag) {
      case "TurnQueued":
        if (queued.has(event.turnId)) broken.push(`${event.turnId} was accepted twice`)
        queued.add(event.turnId)
        break
      case "TurnStarted":
        if (!queued.has(event.turnId)) broken.push(`${event.turnId} started and was never accepted`)
        if (running.size === maxRunning) {
          broken.push(`${event.turnId} started while ${Array.from(running).join(", ")} was running`)
        }
        running.add(event.turnId)
        break
      case "TurnEnded":
        if (!queued.has(event.turnId)) broken.push(`${event.turnId} ended and was never accepted`)
        if (ended.has(event.turnId)) broken.push(`${event.turnId} ended twice`)
        ended.add(event.turnId)
        running.delete(event.turnId)
        break
      case "Update":
        if (event.turnId !== null && !running.has(event.turnId)) {
          broken.push(`${event.turnId} got an update while it was not running`)
        }
        break
      case "PermissionAsked":
        open.add(event.permissionId)
        break
      case "PermissionAnswered":
        if (!open.delete(event.permissionId)) broken.push(`${event.permissionId} was answered and was not open`)
        break
      case "SessionEnded":
        isOver = true
    }
  }
  for (const turnId of queued) if (!ended.has(turnId)) broken.push(`${turnId} never ended`)
  for (const permissionId of open) broken.push(`${permissionId} was never answered`)
  return broken
}

/** The kinds of updates that a session's agent sent, with how many, by when they came. */
export interface Kinds {
  /** After the response of a turn. */
  readonly afterTurn: Record<string, number>
  /** Outside any turn. */
  readonly outside: Record<string, number>
  /** Of no kind that ACP knows. */
  readonly unrecognized: Record<string, number>
}

export const count = (kinds: Kinds, event: SidecarEvent.SessionEvent): void => {
  if (event._tag !== "Update") return
  const { afterTurn, turnId, update } = event
  const add = (counts: Record<string, number>, kind: string) => void (counts[kind] = (counts[kind] ?? 0) + 1)
  if (update.sessionUpdate === "unrecognized") add(kinds.unrecognized, update.kind)
  if (afterTurn !== null) add(kinds.afterTurn, update.sessionUpdate)
  else if (turnId === null) add(kinds.outside, update.sessionUpdate)
}
