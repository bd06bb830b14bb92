// Equality of JSON-like values that may be nested deeper than the stack allows.
const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null

export const same = (left: unknown, right: unknown): boolean => {
  const rest: Array<readonly [unknown, unknown]> = [[left, right]]
  for (let next = rest.pop(); next !== undefined; next = rest.pop()) {
    const [a, b] = next
    if (Object.is(a, b)) continue
    if (!isObject(a) || !isObject(b) || Array.isArray(a) !== Array.isArray(b)) return false
    const keys = Object.keys(a)
    if (keys.length !== Object.keys(b).length) return false
    for (const key of keys) {
      if (!Object.hasOwn(b, key)) return false
      rest.push([a[key], b[key]])
    }
  }
  return true
}

/** A value and all values inside it, the outermost first, at most `most` of them. */
export const within = (value: unknown, most: number): ReadonlyArray<unknown> => {
  const found: Array<unknown> = [value]
  for (let at = 0; at < found.length && found.length < most; at++) {
    const inner = found[at]
    if (isObject(inner)) found.push(...Object.values(inner).slice(0, most - found.length))
  }
  return found
}

/** Whether at most so many objects and arrays are inside each other. */
export const isShallow = (value: unknown, most: number): boolean => {
  let level = [value].filter(isObject)
  for (let depth = 1; level.length > 0; depth++) {
    if (depth > most) return false
    level = level.flatMap((outer) => Object.values(outer).filter(isObject))
  }
  return true
}
