// Makes a failed run smaller: first its commands, then its scheduling choices.
import type * as Machine from "../Machine.ts"
import type * as Simulation from "../Simulation.ts"
import { everySingleChoice, runSteps } from "./trial.ts"

/** Drops as many items as possible (chunks first, then single ones) while `fails` holds. */
const minimise = <A>(items: ReadonlyArray<A>, fails: (items: ReadonlyArray<A>) => boolean): ReadonlyArray<A> => {
  let best = items
  if (best.length > 0 && fails([])) return []
  for (let chunk = Math.ceil(best.length / 2); chunk >= 1;) {
    let dropped = false
    for (let at = best.length - chunk; at > -chunk; at -= chunk) {
      const candidate = [...best.slice(0, Math.max(0, at)), ...best.slice(at + chunk)]
      if (candidate.length < best.length && fails(candidate)) {
        best = candidate
        dropped = true
      }
    }
    if (chunk === 1 && !dropped) break
    if (!dropped || chunk > 1) chunk = Math.max(1, Math.floor(chunk / 2))
  }
  return best
}

/** The first line of a message without its numbers, to keep shrinking from slipping to another bug. */
const kindOf = (message: string | undefined): string => (message ?? "").split("\n")[0]!.replace(/[-+]?\d+/g, "#")

export const shrink = <System, Model, Command>(
  machine: Machine.Machine<System, Model, Command>,
  steps: ReadonlyArray<Machine.Step<Command>>,
  first: Machine.Trial,
  seed: number,
  options: Machine.CheckOptions
): Machine.Counterexample<Command> => {
  const { maxSteps, order, yieldProbability } = options
  const kind = kindOf(first.message)
  const wanted = (trial: Machine.Trial) => trial.message !== undefined && kindOf(trial.message) === kind
  const fixed = { order, maxSteps }
  let left = options.shrinkRuns ?? 10_000
  const budget = left
  let best: Machine.Trial = first
  const attempt = (candidate: ReadonlyArray<Machine.Step<Command>>, trial: Simulation.Options): boolean => {
    if (left <= 0) return false
    left--
    const result = runSteps(machine, candidate, trial)
    if (!wanted(result)) return false
    best = result
    return true
  }
  // Fewer commands change what the seed's choices mean, so each candidate gets the plain schedule and some random ones.
  const failsSomehow = (candidate: ReadonlyArray<Machine.Step<Command>>): boolean => {
    if (attempt(candidate, { ...fixed, seed, decisions: [] })) return true
    for (let index = 0; index < (options.schedulesPerShrink ?? 30); index++) {
      if (attempt(candidate, { ...fixed, seed: seed + index, yieldProbability })) return true
    }
    return false
  }
  // Most races need a single choice that differs from the plain schedule.
  const failsByOneChoice = (candidate: ReadonlyArray<Machine.Step<Command>>): boolean => {
    if (left <= 0) return false
    const found = everySingleChoice(machine, candidate, { ...fixed, seed, wanted })
    left -= found.runs
    if (found.trial === undefined) return false
    best = found.trial
    return true
  }
  let smallest = minimise(steps, failsSomehow)
  const decisionsBefore = best.decisions.length
  if (failsByOneChoice(smallest)) smallest = minimise(smallest, failsByOneChoice)
  else minimise(best.decisions, (decisions) => attempt(smallest, { ...fixed, seed, decisions }))
  // Settling after a command makes a run easier to follow: it is added wherever the failure survives it.
  smallest.forEach((step, index) => {
    if (step.settle) return
    const candidate = smallest.map((other, at) => (index === at ? { ...other, settle: true } : other))
    const { decisions } = best
    const fails =
      decisions.length <= 1 ? failsByOneChoice(candidate) : attempt(candidate, { ...fixed, seed, decisions })
    if (fails) smallest = candidate
  })
  const { decisions } = best
  const last = runSteps(machine, smallest, { ...fixed, seed, decisions })
  return {
    message: last.message ?? first.message ?? "",
    seed,
    steps: smallest,
    stepsBefore: steps.length,
    decisions,
    decisionsBefore,
    trace: last.trace,
    shrinkRuns: budget - left,
    token: JSON.stringify({ seed, steps: smallest, decisions, ...(order === undefined ? {} : { order }) })
  }
}
