// What the model test does to a sidecar. Things are named by index ("the second open session"), so that any part of a
// sequence makes sense.
import type { Prng } from "../../src/testing/index.ts"
import type { AgentSpec, Behaviour } from "./agents.ts"
import { behaviourNames, closings, starts } from "./agents.ts"

export type PolicyName = "allow" | "reject" | "ask" | "handler" | "handlerFails" | "handlerStays" | "handlerBad"

/** How a prompt's caller goes on: it awaits, reads, lets it be, or cancels in the same tick or soon. */
export type How =
  | "prompt"
  | "await"
  | "outcome"
  | "submit"
  | "read"
  | "text"
  | "dispatched"
  | "cancelNow"
  | "cancelSoon"

export interface PromptOptions {
  readonly behaviour: Behaviour
  readonly how: How
  readonly lane?: "interactive" | "background"
  readonly onBusy?: "queue" | "reject" | "replace"
  readonly deadline?: "idle" | "wall"
  readonly key?: string
  /** After so many rounds of the scheduler it is cancelled, with `cancelSoon`. */
  readonly rounds?: number
}

export type Garbage =
  | "noise"
  | "json"
  | "malformed"
  | "brokenUpdate"
  | "unknownSession"
  | "strayUpdate"
  | "strayAsk"
  | "unknownAsk"
  | "brokenAsk"
  | "cancelRequest"
  | "unknownMethod"
  | "unknownAnswer"
  | "lastAnswerAgain"
  | "nextAnswer"
  | "tooLarge"
  | "tooLargeAnswer"

export type Command = Act & {
  /** How many times its caller steps aside first, so that it meets what is under way in the middle. */
  readonly after?: number
}

type Act =
  | { readonly _tag: "OpenVm" }
  | {
      readonly _tag: "Open"
      readonly vm: number
      readonly agent: AgentSpec
      readonly policy: PolicyName
      /** Its caller keeps it for so long alone. */
      readonly hold?: number
    }
  | { readonly _tag: "Prompt"; readonly session: number; readonly prompt: PromptOptions }
  | { readonly _tag: "Cancel"; readonly session: number; readonly which: "oldest" | "newest" | "ended" }
  | {
      readonly _tag: "Answer"
      readonly session: number
      readonly how: "allow" | "reject" | "cancel" | "notOffered" | "twice"
    }
  | { readonly _tag: "SetMode"; readonly session: number }
  | { readonly _tag: "Close"; readonly session: number }
  | { readonly _tag: "CloseVm"; readonly vm: number }
  | { readonly _tag: "Dispose" }
  | { readonly _tag: "Crash"; readonly session: number; readonly how: "plain" | "halfLine" | "output" }
  | { readonly _tag: "Pause" | "Resume"; readonly session: number }
  | { readonly _tag: "Garbage"; readonly session: number; readonly what: Garbage }
  | {
      readonly _tag: "Read"
      readonly session: number
      readonly of: "session" | "sidecar"
      readonly count: number
      readonly pause: number
    }
  | { readonly _tag: "Leave"; readonly caller: number }
  | { readonly _tag: "Advance"; readonly millis: number }

const garbage: ReadonlyArray<Garbage> = [
  "noise",
  "json",
  "malformed",
  "brokenUpdate",
  "unknownSession",
  "strayUpdate",
  "strayAsk",
  "unknownAsk",
  "brokenAsk",
  "cancelRequest",
  "unknownMethod",
  "unknownAnswer",
  "lastAnswerAgain",
  "nextAnswer",
  "tooLarge",
  "tooLargeAnswer"
]
const policies: ReadonlyArray<PolicyName> = [
  "allow",
  "reject",
  "ask",
  "ask",
  "handler",
  "handlerFails",
  "handlerStays",
  "handlerBad"
]
const hows: ReadonlyArray<How> = [
  "prompt",
  "prompt",
  "await",
  "outcome",
  "submit",
  "submit",
  "read",
  "text",
  "dispatched",
  "cancelNow",
  "cancelSoon",
  "cancelSoon"
]

const drawAgent = (prng: Prng.Prng): AgentSpec => ({
  start: prng.chance(0.85) ? "good" : prng.pick(starts),
  canClose: prng.chance(0.5),
  close: prng.chance(0.6) ? "good" : prng.pick(closings)
})

const drawPrompt = (prng: Prng.Prng): PromptOptions => {
  const how = prng.pick(hows)
  return {
    behaviour: prng.chance(0.25) ? prng.pick(["quick", "polite", "polite", "slow"]) : prng.pick(behaviourNames),
    how,
    ...(how === "cancelSoon" ? { rounds: prng.int(40) } : {}),
    ...(prng.chance(0.35) ? { lane: "background" } : {}),
    ...(prng.chance(0.35) ? { onBusy: prng.pick(["reject", "replace"]) } : {}),
    ...(prng.chance(0.2) ? { deadline: prng.pick(["idle", "wall"]) } : {}),
    ...(prng.chance(0.1) ? { key: prng.pick(["k1", "k2"]) } : {})
  }
}

const drawOpen = (prng: Prng.Prng): Extract<Command, { readonly _tag: "Open" }> => ({
  _tag: "Open",
  vm: prng.int(3),
  agent: drawAgent(prng),
  policy: prng.pick(policies),
  ...(prng.chance(0.15) ? { hold: prng.pick([1, 150, 900]) } : {})
})

type Draw = (prng: Prng.Prng, session: number) => Command

const table: ReadonlyArray<readonly [weight: number, draw: Draw]> = [
  [16, drawOpen],
  [34, (prng, session) => ({ _tag: "Prompt", session, prompt: drawPrompt(prng) })],
  [9, (prng, session) => ({ _tag: "Cancel", session, which: prng.pick(["oldest", "oldest", "newest", "ended"]) })],
  [
    6,
    (prng, session) => ({
      _tag: "Answer",
      session,
      how: prng.pick(["allow", "reject", "cancel", "notOffered", "twice"])
    })
  ],
  [2, (_, session) => ({ _tag: "Close", session })],
  [1, (prng) => ({ _tag: "CloseVm", vm: prng.int(3) })],
  [1, () => ({ _tag: "Dispose" })],
  [2, () => ({ _tag: "OpenVm" })],
  [3, (prng, session) => ({ _tag: "Crash", session, how: prng.pick(["plain", "halfLine", "output"]) })],
  [2, (_, session) => ({ _tag: "Pause", session })],
  [2, (_, session) => ({ _tag: "Resume", session })],
  [7, (prng, session) => ({ _tag: "Garbage", session, what: prng.pick(garbage) })],
  [
    4,
    (prng, session) => ({
      _tag: "Read",
      session,
      of: prng.pick(["session", "session", "sidecar"]),
      count: prng.pick([1, 3, 100]),
      pause: prng.pick([0, 0, 40])
    })
  ],
  [6, (prng) => ({ _tag: "Leave", caller: prng.int(8) })],
  [1, (_, session) => ({ _tag: "SetMode", session })],
  [16, (prng) => ({ _tag: "Advance", millis: prng.pick([1, 5, 30, 100, 200, 300, 400, 750]) })]
]

const shortBehaviours: ReadonlyArray<Behaviour> = [
  "quick",
  "quick",
  "quick",
  "polite",
  "polite",
  "slow",
  "ask",
  "takeBack",
  "hang",
  "crash",
  "onTheDot"
]

/** For short sequences: what turns and their ends are made of, and little else. */
const shortTable: ReadonlyArray<readonly [weight: number, draw: Draw]> = [
  [
    40,
    (prng, session) => ({
      _tag: "Prompt",
      session,
      prompt: {
        ...drawPrompt(prng),
        behaviour: prng.pick(shortBehaviours)
      }
    })
  ],
  [14, (_, session) => ({ _tag: "Cancel", session, which: "oldest" })],
  [4, (_, session) => ({ _tag: "Answer", session, how: "allow" })],
  [5, (_, session) => ({ _tag: "Close", session })],
  [3, () => ({ _tag: "CloseVm", vm: 0 })],
  [4, () => ({ _tag: "Dispose" })],
  [3, () => ({ _tag: "OpenVm" })],
  [6, (prng) => ({ ...drawOpen(prng), vm: 0 })],
  [4, (_, session) => ({ _tag: "Crash", session, how: "plain" })],
  [9, (prng) => ({ _tag: "Leave", caller: prng.int(4) })],
  [8, (prng) => ({ _tag: "Advance", millis: prng.pick([20, 150, 400]) })]
]

const draw = (from: typeof table, prng: Prng.Prng): Command => {
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

/** A command in a few words. */
export const show = ({ _tag, ...rest }: { readonly _tag: string }): string => {
  const text = (value: object): string =>
    Object.entries(value)
      .map(([name, field]) => (typeof field === "object" ? text(field) : `${name} ${field}`))
      .join(", ")
  return `${_tag} ${text(rest)}`.trim()
}
