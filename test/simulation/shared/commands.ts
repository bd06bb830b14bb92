// What the model test does to sessions that share processes. Things are named by index ("the second open session"), so
// that any part of a sequence makes sense.
import type { Prng } from "../../../src/testing/index.ts"
import { type Answer, answers, type Behaviour, behaviours, closings, ends, type ProcessPlan, starts } from "./agents.ts"

/** Who is together: the sessions of a Vm, two to a process; those of all Vms, three of them and no more; or nobody. */
export type Group = "vm" | "all" | "own"

export interface OpenOptions {
  readonly vm: number
  readonly group: Group
  /** How the process behaves that is started for it, if one is. */
  readonly process: ProcessPlan
  readonly answer: Answer
  /** Goes on with one that has ended. */
  readonly from?: { readonly session: number; readonly method: "load" | "resume" }
  /** Its caller keeps it for so long alone. */
  readonly hold?: number
}

export type Command = Act & {
  /** How many times its caller steps aside first, so that it meets what is under way in the middle. */
  readonly after?: number
}

type Act =
  | ({ readonly _tag: "Open" } & OpenOptions)
  | ({ readonly _tag: "Probe"; readonly want: "nothing" | "settings" | "commands"; readonly timeout: number } & Omit<
      OpenOptions,
      "from" | "hold"
    >)
  | {
      readonly _tag: "Prompt"
      readonly session: number
      readonly behaviour: Behaviour
      readonly how: "await" | "submit" | "cancelSoon"
      readonly rounds?: number
    }
  | { readonly _tag: "Cancel" | "Close" | "Crash" | "Late" | "Ghost" | "Notify"; readonly session: number }
  | { readonly _tag: "Flood"; readonly session: number; readonly how: "idle" | "broken" | "some" }
  | { readonly _tag: "CloseVm"; readonly vm: number }
  | { readonly _tag: "Dispose" | "LetEnd" }
  | { readonly _tag: "Leave"; readonly caller: number }
  | { readonly _tag: "Advance"; readonly millis: number }

const drawOptions = (prng: Prng.Prng): OpenOptions => ({
  vm: prng.int(2),
  group: prng.pick(["vm", "vm", "vm", "all", "all", "own"]),
  process: {
    start: prng.chance(0.75) ? "good" : prng.pick(starts),
    end: prng.chance(0.75) ? "good" : prng.pick(ends),
    canClose: prng.chance(0.6),
    close: prng.chance(0.6) ? "good" : prng.pick(closings)
  },
  answer: prng.chance(0.5) ? "good" : prng.pick(answers)
})

const drawOpen = (prng: Prng.Prng): Command => ({
  _tag: "Open",
  ...drawOptions(prng),
  ...(prng.chance(0.2) ? { from: { session: prng.int(4), method: prng.pick(["load", "resume"]) } } : {}),
  ...(prng.chance(0.15) ? { hold: prng.pick([1, 150, 900]) } : {})
})

const drawProbe = (prng: Prng.Prng): Command => ({
  _tag: "Probe",
  ...drawOptions(prng),
  want: prng.pick(["nothing", "settings", "settings", "commands"]),
  timeout: prng.pick([5, 100, 1500])
})

type Draw = (prng: Prng.Prng, session: number) => Command

const promptOf =
  (some: ReadonlyArray<Behaviour>): Draw =>
  (prng, session) => {
    const how = prng.pick(["await", "submit", "submit", "cancelSoon"] as const)
    const rounds = how === "cancelSoon" ? { rounds: prng.int(40) } : {}
    return { _tag: "Prompt", session, behaviour: prng.pick(some), how, ...rounds }
  }

type Table = ReadonlyArray<readonly [weight: number, draw: Draw]>

const table: Table = [
  [30, drawOpen],
  [6, drawProbe],
  [24, promptOf(behaviours)],
  [6, (_, session) => ({ _tag: "Cancel", session })],
  [7, (_, session) => ({ _tag: "Close", session })],
  [1, (prng) => ({ _tag: "CloseVm", vm: prng.int(2) })],
  [1, () => ({ _tag: "Dispose" })],
  [4, (_, session) => ({ _tag: "Crash", session })],
  [2, () => ({ _tag: "LetEnd" })],
  [3, (prng, session) => ({ _tag: "Flood", session, how: prng.pick(["idle", "broken", "some"]) })],
  [4, (_, session) => ({ _tag: "Late", session })],
  [2, (_, session) => ({ _tag: "Ghost", session })],
  [1, (_, session) => ({ _tag: "Notify", session })],
  [7, (prng) => ({ _tag: "Leave", caller: prng.int(8) })],
  [16, (prng) => ({ _tag: "Advance", millis: prng.pick([1, 5, 30, 100, 200, 300, 400, 750]) })]
]

const good: ProcessPlan = { start: "good", end: "good", canClose: true, close: "good" }

/** For short sequences: what processes and their sharing are made of, in one Vm. */
const shortTable: Table = [
  [
    40,
    (prng) => ({
      _tag: "Open",
      vm: 0,
      group: prng.pick(["vm", "vm", "all"]),
      process: {
        ...good,
        start: prng.pick(["good", "good", "good", "slow", "crashInit", "failInit"]),
        end: prng.pick(["good", "good", "slow"])
      },
      answer: prng.pick(["good", "good", "good", "early", "slow", "hang", "crash", "earlyAsk"]),
      ...(prng.chance(0.15) ? { from: { session: 0, method: prng.pick(["load", "resume"]) } } : {})
    })
  ],
  [6, (prng) => ({ ...drawProbe(prng), vm: 0, group: "vm", process: good, answer: prng.pick(["good", "hang"]) })],
  [12, promptOf(["quick", "polite", "hang", "crash"])],
  [5, (_, session) => ({ _tag: "Cancel", session })],
  [12, (_, session) => ({ _tag: "Close", session })],
  [2, () => ({ _tag: "CloseVm", vm: 0 })],
  [3, () => ({ _tag: "Dispose" })],
  [6, (_, session) => ({ _tag: "Crash", session })],
  [2, (_, session) => ({ _tag: "Flood", session, how: "idle" })],
  [2, (_, session) => ({ _tag: "Late", session })],
  [12, (prng) => ({ _tag: "Leave", caller: prng.int(4) })],
  [9, (prng) => ({ _tag: "Advance", millis: prng.pick([60, 300, 400, 1000]) })]
]

const draw = (from: Table, prng: Prng.Prng): Command => {
  let at = prng.int(from.reduce((sum, [weight]) => sum + weight, 0))
  const session = prng.int(4)
  for (const [weight, make] of from) {
    if (at < weight) return { ...make(prng, session), ...(prng.chance(0.3) ? { after: prng.int(24) } : {}) }
    at -= weight
  }
  throw new Error("unreachable")
}

export const generate = (prng: Prng.Prng): Command => draw(table, prng)

/** A command for a sequence of a few, with sessions that are open already. */
export const generateShort = (prng: Prng.Prng): Command => draw(shortTable, prng)
