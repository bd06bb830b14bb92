/**
 * @internal
 */
import * as Duration from "effect/Duration"
import * as Option from "effect/Option"

const units = new Set(["weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds", "nanoseconds"])
const isUnitless = (value: unknown): boolean =>
  typeof value === "object" &&
  value !== null &&
  !Duration.isDuration(value) &&
  !Array.isArray(value) &&
  !(Object.keys(value).length > 0 && Object.keys(value).every((unit) => units.has(unit)))

const short = { ms: "millis", s: "seconds", m: "minutes", h: "hours", d: "days" } as const

/** `10s`, `1.5h` and the like, in the words that Effect reads; anything else as it is. */
const words = (given: unknown): unknown => {
  const [, number, unit] = (typeof given === "string" && /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)$/.exec(given.trim())) || []
  return number === undefined ? given : `${Number(number)} ${short[unit as keyof typeof short]}`
}

/** The time that an app gave, if it is one: not negative, and not what Effect would read as no time at all. */
export const parse = (given: unknown): Option.Option<Duration.Duration> =>
  Number.isNaN(given) || isUnitless(given)
    ? Option.none()
    : Option.filter(Duration.fromInput(words(given) as Duration.Input), (time) => !Duration.isNegative(time))
