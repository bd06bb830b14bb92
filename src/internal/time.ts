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

/** The time that an app gave, if it is one: not negative, and not what Effect would read as no time at all. */
export const parse = (given: unknown): Option.Option<Duration.Duration> =>
  Number.isNaN(given) || isUnitless(given)
    ? Option.none()
    : Option.filter(Duration.fromInput(given as Duration.Input), (time) => !Duration.isNegative(time))
