/** JSON text of values that are nested deeper than JSON.stringify can go. JSON.parse has no such limit, so agents can send them. */

/** More than what is read from an agent has. Past it a value may be without end. */
const maxDepth = 2 ** 18

interface Level {
  readonly value: Readonly<Record<string, unknown>> | ReadonlyArray<unknown>
  /** `null` for an array. */
  readonly keys: ReadonlyArray<string> | null
  next: number
  isEmpty: boolean
}

const isContainer = (value: unknown): value is Level["value"] => typeof value === "object" && value !== null

const levelOf = (value: Level["value"]): Level => ({
  value,
  keys: Array.isArray(value) ? null : Object.keys(value),
  next: 0,
  isEmpty: true
})

const inLoop = (root: Level["value"]): string => {
  const parts: Array<string> = []
  const open: Array<Level> = []
  const enter = (value: Level["value"]) => {
    if (open.length === maxDepth) throw new RangeError(`nested more than ${maxDepth} levels deep`)
    open.push(levelOf(value))
    parts.push(Array.isArray(value) ? "[" : "{")
  }
  enter(root)
  for (let level = open.at(-1); level !== undefined; level = open.at(-1)) {
    const { keys, value } = level
    if (level.next === (keys ?? value).length) {
      parts.push(keys === null ? "]" : "}")
      open.pop()
      continue
    }
    const key = keys === null ? level.next : keys[level.next]!
    level.next++
    const item = (value as Readonly<Record<string | number, unknown>>)[key]
    // JSON.stringify itself says what becomes of a leaf: nothing at all, for some.
    const text = isContainer(item) ? "" : (JSON.stringify(item) as string | undefined)
    if (text === undefined && keys !== null) continue
    parts.push(level.isEmpty ? "" : ",", keys === null ? "" : `${JSON.stringify(key)}:`)
    level.isEmpty = false
    if (isContainer(item)) enter(item)
    else parts.push(text ?? "null")
  }
  return parts.join("")
}

/** As JSON.stringify, however deep the value is nested. Only then are its objects taken as plain data, without `toJSON`. */
export const stringify = (value: unknown): string => {
  try {
    return JSON.stringify(value)
  } catch (error) {
    if (!(error instanceof RangeError) || !isContainer(value)) throw error
    return inLoop(value)
  }
}
