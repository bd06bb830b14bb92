// Makes a failed run smaller: first its commands, then its scheduling choices.
import type * as Machine from "../Machine.ts"
import type * as Simulation from "../Simulation.ts"
import { everySingleChoice, runSteps } from "./trial.ts"

/** Drops as many items as possible, chunks first and then single ones. `fails` gives what failed, if anything did. */
const minimise = <A>(
  items: ReadonlyArray<A>,
  fails: (items: ReadonlyArray<A>) => ReadonlyArray<A> | undefined
): ReadonlyArray<A> => {
  let best = items
  if (best.length > 0 && fails([]) !== undefined) return []
  for (let chunk = Math.ceil(best.length / 2); chunk >= 1;) {
    let dropped = false
    for (let at = best.length - chunk; at > -chunk; at -= chunk) {
      const candidate = [...best.slice(0, Math.max(0, at)), ...best.slice(at + chunk)]
      const failed = candidate.length < best.length ? fails(candidate) : undefined
      if (failed === undefined) continue
      best = failed
      dropped = true
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
  // The seed of the best trial: random numbers of the program follow from it.
  let bestSeed = seed
  type Steps = ReadonlyArray<Machine.Step<Command>>
  const attempt = (candidate: Steps, trial: Simulation.Options & { readonly seed: number }): boolean => {
    if (left <= 0) return false
    left--
    const result = runSteps(machine, candidate, trial)
    if (!wanted(result)) return false
    best = result
    bestSeed = trial.seed
    return true
  }
  // Where it settles matters as much as the commands do, so all and nothing are tried beside what was.
  const variantsOf = (candidate: Steps): ReadonlyArray<Steps> => [
    candidate,
    ...[true, false]
      .filter((settle) => candidate.some((step) => step.settle !== settle))
      .map((settle) => candidate.map((step) => ({ ...step, settle })))
  ]
  // Fewer commands change what the seed's choices mean, so each candidate gets the plain schedule and some random ones.
  const somehow =
    (round: number) =>
    (candidate: Steps): Steps | undefined => {
      const variants = variantsOf(candidate)
      const plain = variants.find((variant) => attempt(variant, { ...fixed, seed, decisions: [] }))
      if (plain !== undefined) return plain
      for (let index = 0; index < (options.schedulesPerShrink ?? 30); index++) {
        const variant = variants[index % variants.length]!
        if (attempt(variant, { ...fixed, seed: seed + round * 1000 + index, yieldProbability })) return variant
      }
      return undefined
    }
  // Most races need a single choice that differs from the plain schedule.
  const byOneChoice = (candidate: Steps): Steps | undefined => {
    if (left <= 0) return undefined
    const found = everySingleChoice(machine, candidate, { ...fixed, seed, wanted })
    left -= found.runs
    if (found.trial === undefined) return undefined
    best = found.trial
    bestSeed = seed
    return candidate
  }
  let smallest: Steps = steps
  let single: Steps | undefined
  for (let round = 0; round < 3 && single === undefined; round++) {
    smallest = minimise(smallest, somehow(round))
    if (best.decisions.length === 0) break
    single = variantsOf(smallest).find((variant) => byOneChoice(variant) !== undefined)
  }
  const decisionsBefore = first.decisions.length
  if (single !== undefined) smallest = minimise(single, byOneChoice)
  else if (best.decisions.length > 0) {
    minimise(best.decisions, (decisions) =>
      attempt(smallest, { ...fixed, seed: bestSeed, decisions }) ? decisions : undefined
    )
  }
  // Settling after a command makes a run easier to follow: it is added wherever the failure survives it.
  smallest.forEach((step, index) => {
    if (step.settle) return
    const candidate = smallest.map((other, at) => (index === at ? { ...other, settle: true } : other))
    const { decisions } = best
    const fails =
      attempt(candidate, { ...fixed, seed: bestSeed, decisions }) ||
      (decisions.length === 1 && byOneChoice(candidate) !== undefined)
    if (fails) smallest = candidate
  })
  const { decisions } = best
  const schedule = { ...fixed, seed: bestSeed, decisions }
  const last = runSteps(machine, smallest, schedule)
  return {
    message: last.message ?? first.message ?? "",
    cause: last.cause ?? first.cause,
    seed,
    steps: smallest,
    stepsBefore: steps.length,
    decisions,
    decisionsBefore,
    trace: last.trace,
    shrinkRuns: budget - left,
    token: JSON.stringify({ ...schedule, steps: smallest })
  }
}
