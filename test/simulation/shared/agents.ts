// How the processes of shared agents behave: how each of them starts and ends, what it says to each opening, and what to
// each prompt. All that it says names the opening, the process and its place in order, so that it is known where it belongs.
import { AcpConnection, type AcpSchema } from "../../../src/acp/index.ts"
import type { ScriptedAgent } from "../../../src/testing/index.ts"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"

/** Times, in milliseconds, around which behaviours are built. */
export const grace = 400
export const startTimeout = 1000

export const starts = [
  "good",
  "slow",
  "slowSpawn",
  "failSpawn",
  "failInit",
  "hangInit",
  "crashInit",
  "noiseInit",
  "oldVersion"
] as const
export type Start = (typeof starts)[number]

/** What comes of being told to end, also for what it leaves behind when it crashes; `never`: not until the test lets it. */
export const ends = ["good", "slow", "never"] as const
export type End = (typeof ends)[number]

export const closings = ["good", "hang", "fail", "slow"] as const
export type Closing = (typeof closings)[number]

export interface ProcessPlan {
  readonly start: Start
  readonly end: End
  readonly canClose: boolean
  readonly close: Closing
}

/** What becomes of a request for a session. */
export const answers = [
  "good",
  "early",
  "earlyAsk",
  "ghost",
  "slow",
  "late",
  "hang",
  "refuse",
  "crash",
  "bad",
  "long",
  "open",
  "closed"
] as const
export type Answer = (typeof answers)[number]

export const behaviours = [
  "quick",
  "slow",
  "polite",
  "hang",
  "lateCancel",
  "ask",
  "flood",
  "error",
  "crash",
  "crashAfterAnswer"
] as const
export type Behaviour = (typeof behaviours)[number]

/** How a turn ends when nobody disturbs it; `never` for hangs. */
export const expected: Readonly<Record<Behaviour, string>> = {
  quick: "end_turn",
  slow: "end_turn",
  polite: "never",
  hang: "never",
  lateCancel: "never",
  ask: "end_turn",
  flood: "end_turn",
  error: "RequestError",
  crash: "ProcessExited",
  crashAfterAnswer: "end_turn"
}
/** Those that are over unless time moves on. */
export const immediate: ReadonlySet<Behaviour> = new Set([
  "quick",
  "flood",
  "error",
  "crash",
  "crashAfterAnswer"
] as const)

/** What the test knows of a process. */
export interface Process {
  readonly number: number
  readonly identity: string
  readonly plan: ProcessPlan
  /** From its launch until the host has it confirmed as gone. */
  isLive: boolean
  agent: ScriptedAgent.ScriptedAgent | undefined
  /** When something began that ends it, if it has: it died, or was told to end. */
  endingAt: number | undefined
  goneAt: number | undefined
  /** The test made it die. */
  hasCrashed: boolean
  readonly mayEnd: Deferred.Deferred<void>
  /** Whose an id is, of all that it gave or went on with. */
  readonly ids: Map<string, Conversation>
  /** Ids that the host closed, or whose session it lost otherwise. */
  readonly closedIds: Set<string>
  given: number
  ghosts: number
  asks: number
  /** Those that came early and how often each was answered. */
  readonly earlyAsks: Map<string, { readonly of: Conversation; answers: number }>
}

/** What an agent knows of an opening, and of the session that comes of it. */
export interface Conversation {
  readonly number: number
  readonly answer: Answer
  process: Process | undefined
  agentSessionId: string | undefined
  /** A usable answer was sent. */
  isAnswered: boolean
  /** Its last text. */
  said: number
  /** Of those, the ones that came before the answer. */
  saidEarly: number
}

/** What the agents ask of the world. */
export interface Witness {
  readonly conversationOf: (cwd: string) => Conversation
  readonly crash: (process: Process) => Effect.Effect<void>
  /** Something begins that ends it. */
  readonly ending: (process: Process) => void
  /** Ids of this process that somebody has open. */
  readonly openIds: (process: Process) => ReadonlyArray<string>
  /** Somebody is going on with an id. */
  readonly isWanted: (process: Process, id: string) => boolean
  /** The host asks it to close a session. */
  readonly closing: (process: Process, id: string) => void
}

const message = (text: string): AcpSchema.SessionUpdate => ({
  sessionUpdate: "agent_message_chunk",
  content: { type: "text", text }
})

/** Says something in a conversation, for `what`: the mark of a turn, or a word for what is outside of turns. */
export const say = (of: Conversation, what: string): Effect.Effect<void> =>
  Effect.sync(() => {
    const { agentSessionId, process } = of
    const text = `o${of.number}.p${process!.number}.${++of.said}.${what}`
    // In one step with its place.
    Effect.runSync(process!.agent!.update(agentSessionId!, message(text)))
  })

export const ghost = (process: Process): Effect.Effect<void> =>
  Effect.suspend(() => process.agent!.update(`ghost-${++process.ghosts % 5}`, message("boo")))

export const readPrompt = (text: string): { readonly mark: string; readonly behaviour: Behaviour } => {
  const [mark = "", behaviour = "quick"] = text.split(":")
  return { mark, behaviour: behaviour as Behaviour }
}

const refused = Effect.fail(AcpConnection.refusal(-32_100, "not today"))

/** Times that end with the process. */
export const scriptOf = (witness: Witness, process: Process): ScriptedAgent.Script => {
  const { canClose, close, end, start } = process.plan
  const own = (agent: ScriptedAgent.ScriptedAgent): void => void (process.agent = agent)
  const give = (of: Conversation, id: string): void => {
    of.process = process
    of.agentSessionId = id
    process.ids.set(id, of)
    process.closedIds.delete(id)
  }
  const askEarly = (of: Conversation): Effect.Effect<void> =>
    Effect.suspend(() => {
      const id = `early-${++process.asks}`
      process.earlyAsks.set(id, { of, answers: 0 })
      const toolCall = { toolCallId: id, title: "run it" }
      const options = [{ optionId: "allow", name: "Allow", kind: "allow_once" }]
      const params = { sessionId: of.agentSessionId!, toolCall, options }
      return process.agent!.send({ id, method: "session/request_permission", params })
    })
  const sayEarly = (of: Conversation): Effect.Effect<void> =>
    Effect.suspend(() => {
      of.saidEarly++
      return say(of, "early")
    })

  /** The answer to an opening; `fresh` for `session/new`, where the id is the agent's choice. */
  const answerTo = (of: Conversation, fresh: boolean): ScriptedAgent.Answer => {
    const id = of.agentSessionId!
    const response = fresh ? { sessionId: id } : {}
    const good = Effect.sync(() => {
      of.isAnswered = true
      return response
    })
    switch (of.answer) {
      case "early":
        return Effect.forEach([1, 2, 3], () => sayEarly(of)).pipe(Effect.andThen(good))
      case "earlyAsk":
        return Effect.andThen(askEarly(of), good)
      case "ghost":
        return Effect.forEach([1, 2, 3], () => ghost(process)).pipe(Effect.andThen(sayEarly(of)), Effect.andThen(good))
      case "slow":
        return Effect.andThen(sayEarly(of), Effect.delay(good, 60))
      case "late":
        return Effect.delay(good, startTimeout * 1.3)
      case "hang":
        return Effect.never
      case "refuse":
        return refused
      case "crash":
        return Effect.andThen(witness.crash(process), Effect.never)
      case "bad":
        return fresh ? Effect.succeed({ sessionId: 7 }) : Effect.succeed("nonsense")
      case "long":
        return Effect.succeed({ sessionId: "x".repeat(2000) })
      default:
        return good
    }
  }
  const idFor = (of: Conversation): string => {
    const taken = of.answer === "open" ? witness.openIds(process) : []
    const closed = of.answer === "closed" ? Array.from(process.closedIds) : []
    let fresh = `s${++process.given}`
    // One that it has gone on with, or is to go on with, is not free.
    while (process.ids.has(fresh) || witness.isWanted(process, fresh)) fresh = `s${++process.given}`
    return taken[0] ?? closed[0] ?? fresh
  }
  const reopen = (sessionId: string, params: unknown, replays: number): ScriptedAgent.Answer =>
    Effect.suspend(() => {
      const of = witness.conversationOf((params as { readonly cwd: string }).cwd)
      give(of, sessionId)
      return Effect.andThen(
        Effect.forEach(Array.from({ length: replays }), () => say(of, "replay")),
        answerTo(of, false)
      )
    })

  return {
    ignoreCancel: true,
    end: Effect.suspend(() => {
      witness.ending(process)
      return end === "good" ? Effect.void : end === "slow" ? Effect.sleep(250) : Deferred.await(process.mayEnd)
    }),
    capabilities: {
      loadSession: true,
      sessionCapabilities: { resume: {}, ...(canClose ? { close: {} } : {}) }
    },
    initialize: (agent) => {
      own(agent)
      const answer = Effect.succeed({
        protocolVersion: start === "oldVersion" ? 0 : 1,
        agentCapabilities: {
          loadSession: true,
          sessionCapabilities: { resume: {}, ...(canClose ? { close: {} } : {}) }
        }
      })
      switch (start) {
        case "slow":
          return Effect.delay(answer, 60)
        case "failInit":
          return refused
        case "hangInit":
          return Effect.never
        case "crashInit":
          return Effect.andThen(witness.crash(process), Effect.never)
        case "noiseInit":
          return Effect.andThen(agent.write("hello\n".repeat(9)), Effect.never)
        default:
          return answer
      }
    },
    newSession: (_, params) =>
      Effect.suspend(() => {
        const of = witness.conversationOf((params as { readonly cwd: string }).cwd)
        const id = idFor(of)
        const other = process.ids.get(id)
        if (of.answer === "open" && other !== undefined && !process.closedIds.has(id)) {
          of.process = process
          return Effect.succeed({ sessionId: id })
        }
        give(of, id)
        return answerTo(of, true)
      }),
    loadSession: (_, sessionId, params) => reopen(sessionId, params, 2),
    resumeSession: (_, sessionId, params) => reopen(sessionId, params, 0),
    closeSession: (_, id) => {
      witness.closing(process, id)
      const closed = Effect.sync(() => ({}))
      return close === "hang"
        ? Effect.never
        : close === "fail"
          ? refused
          : close === "slow"
            ? Effect.delay(closed, 40)
            : closed
    },
    prompt: (turn) => {
      const { behaviour, mark } = readPrompt(turn.text)
      const of = process.ids.get(turn.sessionId)!
      const part = say(of, mark)
      const ended = Effect.succeed("end_turn")
      const cancelled = Effect.as(turn.cancelled, "cancelled")
      switch (behaviour) {
        case "quick":
          return Effect.andThen(part, ended)
        case "slow":
          return Effect.raceFirst(
            part.pipe(Effect.andThen(Effect.sleep(150)), Effect.andThen(part), Effect.andThen(ended)),
            cancelled
          )
        case "polite":
          return Effect.andThen(part, cancelled)
        case "hang":
          return Effect.andThen(part, Effect.never)
        case "lateCancel":
          return Effect.andThen(part, Effect.delay(cancelled, grace * 0.5))
        case "ask":
          return Effect.raceFirst(turn.ask().pipe(Effect.andThen(part), Effect.andThen(ended)), cancelled)
        case "flood":
          return Effect.andThen(process.agent!.together(Effect.forEach(Array.from({ length: 24 }), () => part)), ended)
        case "error":
          return Effect.fail(AcpConnection.refusal(-32_603, "no"))
        case "crash":
          return Effect.andThen(part, Effect.andThen(witness.crash(process), Effect.never))
        case "crashAfterAnswer":
          return Effect.andThen(turn.end(), witness.crash(process)).pipe(Effect.andThen(Effect.never))
      }
    }
  }
}
