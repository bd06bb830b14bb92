// How the agents of the model test behave: one script for the start of each, and one for each prompt, named in its text.
import type { AcpSchema } from "../../src/acp/index.ts"
import { AcpConnection } from "../../src/acp/index.ts"
import type { ScriptedAgent } from "../../src/testing/index.ts"
import * as Effect from "effect/Effect"

/** Times, in milliseconds, around which behaviours are built. */
export const grace = 400

export const starts = [
  "good",
  "slow",
  "failInit",
  "hangInit",
  "crashInit",
  "noiseInit",
  "oldVersion",
  "failNew",
  "hangNew",
  "crashNew",
  "badNew",
  "early",
  "crashAfterNew",
  "signIn"
] as const
export type Start = (typeof starts)[number]

export const closings = ["good", "hang", "fail", "crash"] as const

export interface AgentSpec {
  readonly start: Start
  readonly canClose: boolean
  readonly close: (typeof closings)[number]
}

/** What the test knows of an agent. */
export interface AgentView {
  readonly spec: AgentSpec
  agent: ScriptedAgent.ScriptedAgent | undefined
  /** The prompts that it got, in order. */
  readonly prompts: Array<Prompt & { readonly id: string | number | null }>
  /** How many requests it has made besides the questions of its prompts. */
  others: number
  /** How often each of its requests was answered. */
  readonly answers: Map<string, number>
  /** Methods that the host called, in order; read from what it received. */
  readonly wire: Array<string>
  /** It was told to stop reading, at least for a while: a pause and its end may come in any order. */
  paused: boolean
}

/** What a prompt's text says: its mark, what the agent is to do, and the deadline that it was given. */
export interface Prompt {
  readonly mark: string
  readonly behaviour: Behaviour
  readonly deadline: string | undefined
}

interface Acts {
  readonly turn: ScriptedAgent.PromptTurn
  readonly agent: ScriptedAgent.ScriptedAgent
  readonly view: AgentView
  readonly say: (part: string | number) => Effect.Effect<void>
  readonly ask: (toolCallId?: string) => Effect.Effect<ScriptedAgent.PermissionAnswer>
}

type Act = (acts: Acts) => ScriptedAgent.Answer<string>

const message = (text: string, messageId?: string): AcpSchema.SessionUpdate => ({
  sessionUpdate: "agent_message_chunk",
  content: { type: "text", text },
  ...(messageId === undefined ? {} : { messageId })
})

/** Ends the turn as cancelled when it is cancelled, so many milliseconds later. */
const orCancel =
  (act: Act, after = 0, stopReason = "cancelled"): Act =>
  (acts) =>
    Effect.raceFirst(
      act(acts),
      acts.turn.cancelled.pipe(Effect.andThen(after === 0 ? Effect.void : Effect.sleep(after)), Effect.as(stopReason))
    )

const hang: Act = () => Effect.never
const quick: Act = ({ say }) => Effect.as(say(1), "end_turn")
const slow: Act = ({ say }) =>
  say(1).pipe(Effect.andThen(Effect.sleep(150)), Effect.andThen(say(2)), Effect.as("end_turn"))

const flood: Act = ({ agent, say }) =>
  Effect.as(
    agent.together(
      Effect.forEach(
        Array.from({ length: 24 }, (_, index) => index),
        say
      )
    ),
    "end_turn"
  )

/** Behaviours, with how the turn ends when nobody disturbs it: the stop reason, or why it fails; `never` for hangs. */
const table = {
  quick: [quick, "end_turn"],
  silent: [() => Effect.succeed("end_turn"), "end_turn"],
  refuse: [() => Effect.succeed("refusal"), "refusal"],
  stream: [
    orCancel(({ say }) =>
      Effect.as(
        Effect.forEach([1, 2, 3], (part) => Effect.andThen(say(part), Effect.sleep(5)), { discard: true }),
        "end_turn"
      )
    ),
    "end_turn"
  ],
  slow: [orCancel(slow), "end_turn"],
  stubborn: [slow, "end_turn"],
  polite: [orCancel(({ say }) => Effect.andThen(say(1), Effect.never)), "never"],
  hang: [hang, "never"],
  endOnCancel: [orCancel(hang, 0, "end_turn"), "never"],
  lateCancel: [orCancel(hang, grace * 0.3), "never"],
  onCancelRequest: [orCancel(hang, grace * 0.6), "never"],
  onSessionClose: [orCancel(hang, grace * 0.8), "never"],
  onTheDot: [orCancel(hang, grace), "never"],
  afterGrace: [orCancel(hang, grace * 1.5), "never"],
  errorOnCancel: [
    ({ turn }) => Effect.andThen(turn.cancelled, Effect.fail(AcpConnection.refusal(-32800, "Request cancelled"))),
    "never"
  ],
  ask: [orCancel(({ ask, say }) => ask().pipe(Effect.andThen(say(1)), Effect.as("end_turn"))), "answered"],
  askStubborn: [({ ask }) => Effect.as(ask(), "end_turn"), "answered"],
  askThree: [
    orCancel(({ ask }) =>
      Effect.as(Effect.all([ask("t1"), ask("t2"), ask("t3")], { concurrency: "unbounded" }), "end_turn")
    ),
    "answered"
  ],
  askAndEnd: [
    ({ ask, turn }) =>
      Effect.andThen(Effect.all([ask(), Effect.delay(turn.end(), 1)], { concurrency: "unbounded" }), Effect.never),
    "end_turn"
  ],
  takeBack: [
    orCancel(({ agent, ask }) => Effect.andThen(agent.together(Effect.raceFirst(ask(), Effect.void)), Effect.never)),
    "never"
  ],
  askThenCrash: [
    ({ agent, ask }) => Effect.as(Effect.raceFirst(ask(), Effect.andThen(agent.crash(), Effect.never)), "end_turn"),
    "crashAsking"
  ],
  withdraw: [({ ask }) => Effect.as(Effect.timeoutOption(ask(), 10), "end_turn"), "end_turn"],
  flood: [flood, "end_turn"],
  tooMuch: [
    orCancel(({ say, turn }) =>
      Effect.andThen(
        Effect.forEach([1, 2, 3, 4], (part) => Effect.andThen(say(part), turn.update(message("x".repeat(1500))))),
        Effect.never
      )
    ),
    "OutputExceeded"
  ],
  tooMuchStubborn: [
    ({ turn }) =>
      Effect.andThen(
        Effect.forEach([1, 2, 3, 4], () => turn.update(message("x".repeat(1500)))),
        Effect.never
      ),
    "retired"
  ],
  error: [() => Effect.fail(AcpConnection.refusal(-32603, "no")), "RequestError"],
  twice: [({ turn }) => turn.end().pipe(Effect.andThen(turn.end("refusal")), Effect.andThen(Effect.never)), "end_turn"],
  twiceTogether: [
    ({ agent, turn }) =>
      Effect.andThen(agent.together(Effect.andThen(turn.end("max_tokens"), turn.end())), Effect.never),
    "max_tokens"
  ],
  lateUpdate: [
    ({ say, turn }) =>
      Effect.andThen(turn.end(), say("late")).pipe(
        Effect.andThen(Effect.sleep(20)),
        Effect.andThen(say("late")),
        Effect.andThen(Effect.never)
      ),
    "end_turn"
  ],
  lateMessage: [
    ({ turn, view }) => {
      const { mark } = view.prompts.at(-1)!
      return turn
        .update(message(`${mark}.1`, mark))
        .pipe(
          Effect.andThen(turn.end()),
          Effect.andThen(turn.update(message(`${mark}.known`, mark))),
          Effect.andThen(Effect.sleep(20)),
          Effect.andThen(turn.update(message(`${mark}.known`, mark))),
          Effect.andThen(Effect.never)
        )
    },
    "end_turn"
  ],
  lateNewMessage: [
    ({ turn, view }) => {
      const { mark } = view.prompts.at(-1)!
      const said = turn.update(message(`${mark}.new`, `${mark}-new`))
      return turn
        .end()
        .pipe(
          Effect.andThen(said),
          Effect.andThen(Effect.sleep(20)),
          Effect.andThen(said),
          Effect.andThen(Effect.sleep(200)),
          Effect.andThen(said),
          Effect.andThen(Effect.never)
        )
    },
    "end_turn"
  ],
  wrongId: [
    ({ agent, turn }) =>
      Effect.andThen(agent.send({ id: 99_999, result: { stopReason: "refusal" } }), turn.end()).pipe(
        Effect.andThen(Effect.never)
      ),
    "end_turn"
  ],
  stringId: [
    ({ agent, turn }) =>
      Effect.andThen(agent.send({ id: String(turn.requestId), result: { stopReason: "end_turn" } }), Effect.never),
    "end_turn"
  ],
  noStopReason: [
    ({ agent, turn }) => Effect.andThen(agent.send({ id: turn.requestId!, result: {} }), Effect.never),
    "InvalidResponse"
  ],
  malformed: [
    ({ agent, turn }) => Effect.andThen(agent.write(`{"jsonrpc":"2.0","id":${turn.requestId}}\n`), Effect.never),
    "InvalidResponse"
  ],
  noisy: [
    ({ agent, say }) =>
      agent.write("warning: \u001b[31mred\u001b[0m\n{}\n42\n").pipe(Effect.andThen(say(1)), Effect.as("end_turn")),
    "end_turn"
  ],
  crash: [({ agent }) => Effect.andThen(agent.crash({ code: 3 }), Effect.never), "ProcessExited"],
  crashMid: [
    ({ agent, say }) =>
      say(1).pipe(
        Effect.andThen(Effect.sleep(5)),
        Effect.andThen(agent.crash({ signal: "SIGSEGV" })),
        Effect.andThen(Effect.never)
      ),
    "ProcessExited"
  ],
  crashHalf: [
    ({ agent }) =>
      agent
        .write(`{"jsonrpc":"2.0","method":"session/upd`)
        .pipe(Effect.andThen(agent.crash()), Effect.andThen(Effect.never)),
    "ProcessExited"
  ],
  crashAfterAnswer: [
    ({ agent, turn }) => Effect.andThen(turn.end(), agent.crash()).pipe(Effect.andThen(Effect.never)),
    "end_turn"
  ],
  crashAsking: [
    ({ agent, ask }) =>
      Effect.raceFirst(
        Effect.as(ask(), "end_turn"),
        Effect.andThen(Effect.sleep(3), Effect.andThen(agent.crash(), Effect.never))
      ),
    "crashAsking"
  ],
  crashOnCancel: [
    ({ agent, turn }) => Effect.andThen(turn.cancelled, agent.crash()).pipe(Effect.andThen(Effect.never)),
    "never"
  ]
} satisfies Record<string, readonly [Act, string]>

export type Behaviour = keyof typeof table
export const behaviourNames = Object.keys(table) as ReadonlyArray<Behaviour>
export const expectedOf = (behaviour: Behaviour): string => table[behaviour][1]

export const readPrompt = (text: string): Prompt => {
  const [mark = "", behaviour = "quick", deadline] = text.split(":")
  return { mark, behaviour: behaviour as Behaviour, deadline }
}

const refusal = Effect.fail(AcpConnection.refusal(-32000 - 100, "not today"))

/** The script of one agent. What it sees of the host is noted in its view. */
export const scriptOf = (view: AgentView): ScriptedAgent.Script => {
  const { canClose, close, start } = view.spec
  let signedIn = false
  const sessionId = "s"
  const opened = Effect.succeed({ sessionId })
  return {
    // Each behaviour says itself what a cancel does.
    ignoreCancel: true,
    authMethods: start === "signIn" ? [{ id: "key", name: "Key" }] : [],
    initialize: (agent) => {
      view.agent = agent
      const answer = Effect.succeed({
        protocolVersion: start === "oldVersion" ? 0 : 1,
        agentCapabilities: canClose ? { sessionCapabilities: { close: {} } } : {},
        authMethods: start === "signIn" ? [{ id: "key", name: "Key" }] : []
      })
      switch (start) {
        case "slow":
          return Effect.delay(answer, 60)
        case "failInit":
          return refusal
        case "hangInit":
          return Effect.never
        case "crashInit":
          return Effect.andThen(agent.crash({ code: 1 }), Effect.never)
        case "noiseInit":
          return Effect.andThen(agent.write("hello\n".repeat(9)), Effect.never)
        default:
          return answer
      }
    },
    authenticate: () => Effect.sync(() => ((signedIn = true), {})),
    newSession: (agent) => {
      switch (start) {
        case "slow":
          return Effect.delay(opened, 60)
        case "failNew":
          return refusal
        case "hangNew":
          return Effect.never
        case "crashNew":
          return Effect.andThen(agent.crash({ signal: "SIGKILL" }), Effect.never)
        case "badNew":
          return Effect.succeed({ sessionId: 7 })
        case "early":
          return Effect.andThen(agent.update(sessionId, message("early")), opened)
        case "crashAfterNew":
          return Effect.andThen(
            Effect.forEach([1, 2], () => agent.send({ id: 2, result: { sessionId } })),
            Effect.andThen(agent.crash(), Effect.never)
          )
        case "signIn":
          return Effect.suspend(() => (signedIn ? opened : Effect.fail(AcpConnection.refusal(-32000, "sign in"))))
        default:
          return opened
      }
    },
    closeSession: (agent) => {
      switch (close) {
        case "good":
          return Effect.succeed({})
        case "hang":
          return Effect.never
        case "fail":
          return refusal
        case "crash":
          return Effect.andThen(agent.crash(), Effect.never)
      }
    },
    request: (_, method) => (method === "session/set_mode" && start === "good" ? Effect.never : refusal),
    prompt: (turn, agent) => {
      const prompt = readPrompt(turn.text)
      const { mark } = prompt
      view.prompts.push({ ...prompt, id: turn.requestId })
      const act: Act = table[prompt.behaviour][0]
      return act({
        turn,
        agent,
        view,
        say: (part) => turn.say(`${mark}.${part}`),
        ask: (toolCallId) => turn.ask(undefined, toolCallId)
      })
    }
  }
}
