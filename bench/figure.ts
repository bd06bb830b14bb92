// What a bench gives: figures, each beside a baseline that was measured in the same run.
import type { ChildProcessSpawner } from "effect/process/ChildProcessSpawner"
import type * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { median, quantile, ratio } from "./stats.ts"

export type Unit = "ms" | "µs" | "updates/s" | "KiB" | "MiB" | "ms/s" | "/s"

/** What is wanted of a figure: of its ratio to the baseline, of what it is more than the baseline, or of itself. */
export interface Goal {
  readonly of: "ratio" | "difference" | "value"
  readonly is: "at most" | "at least"
  readonly bound: number
}

/**
 * One figure: ours, and how it stands to a baseline of the same run. `value` and `baseline` are medians of the rounds,
 * half of which lie between `low` and `high`. Without a goal it is only told.
 */
export interface Figure {
  readonly name: string
  readonly unit: Unit
  readonly value: number
  readonly low: number
  readonly high: number
  readonly baseline: number
  readonly ratio: number
  readonly difference: number
  readonly goal: Goal | undefined
}

export interface Bench {
  /** What is measured, and beside what. */
  readonly about: string
  /** What else there is to know, in sentences. */
  readonly detail: string | undefined
  /** `rounds` turns the number of rounds of a whole run into that of this one. */
  readonly run: (
    rounds: (whole: number) => number
  ) => Effect.Effect<ReadonlyArray<Figure>, never, ChildProcessSpawner | Scope.Scope>
}

export const atMost = (bound: number, of: Goal["of"] = "ratio"): Goal => ({ of, is: "at most", bound })

export const atLeast = (bound: number): Goal => ({ of: "ratio", is: "at least", bound })

/** A figure from what was measured of both sides, round by round. */
export const compare = (
  name: string,
  unit: Unit,
  ours: ReadonlyArray<number>,
  baseline: ReadonlyArray<number>,
  goal?: Goal
): Figure => ({
  name,
  unit,
  value: median(ours),
  low: quantile(ours, 0.25),
  high: quantile(ours, 0.75),
  baseline: median(baseline),
  ratio: ratio(ours, baseline),
  difference: median(ours.map((value, round) => value - baseline[round]!)),
  goal
})

export const isMet = ({ goal, ...figure }: Figure): boolean | null =>
  goal === undefined ? null : goal.is === "at most" ? figure[goal.of] <= goal.bound : figure[goal.of] >= goal.bound

const digits: Readonly<Record<Unit, number>> = { ms: 3, µs: 1, "updates/s": 0, KiB: 1, MiB: 1, "ms/s": 2, "/s": 1 }

const number = (value: number, unit: Unit): string => {
  const places = unit === "ms" && Math.abs(value) >= 10 ? 1 : digits[unit]
  return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places })
}

const amount = (value: number, unit: Unit): string => `${number(value, unit)} ${unit === "updates/s" ? "/s" : unit}`

const goalText = ({ goal, unit }: Figure): string => {
  if (goal === undefined) return ""
  const bound = goal.of === "ratio" ? `${goal.bound} times` : `${goal.bound.toLocaleString("en-US")} ${unit}`
  return `${goal.is} ${bound}${goal.of === "difference" ? " more" : ""}`
}

/** What people read of a figure, cell by cell; {@link headings} says which. */
export const cells = (figure: Figure): ReadonlyArray<string> => {
  const met = isMet(figure)
  return [
    figure.name,
    amount(figure.value, figure.unit),
    `${number(figure.low, figure.unit)} to ${number(figure.high, figure.unit)}`,
    amount(figure.baseline, figure.unit),
    figure.ratio.toFixed(2),
    goalText(figure),
    met === null ? "" : met ? "met" : "missed"
  ]
}

export const headings: ReadonlyArray<string> = ["", "sidecar", "middle half", "baseline", "ratio", "goal", ""]
