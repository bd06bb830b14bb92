// What the steps of the scenario work with: one agent in a sidecar of its own, its scripted model, and what it did.
import { mkdir, mkdtemp, readFile, realpath, rm, writeFile } from "node:fs/promises"
import { tmpdir } from "node:os"
import { dirname, join } from "node:path"
import * as Clock from "effect/Clock"
import * as Data from "effect/Data"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as AgentProfile from "../../src/AgentProfile.ts"
import * as ScriptedModel from "../../src/cli/ScriptedModel.ts"
import type * as Permission from "../../src/Permission.ts"
import type * as Session from "../../src/Session.ts"
import * as Sidecar from "../../src/Sidecar.ts"
import type * as SidecarEvent from "../../src/SidecarEvent.ts"
import type * as TurnOutcome from "../../src/TurnOutcome.ts"
import type * as Vm from "../../src/Vm.ts"
import * as Contracts from "./contracts.ts"
import * as Leftovers from "./leftovers.ts"
import { protocols } from "./protocols.ts"
import * as Recipes from "./recipes.ts"

/** A contract of the sidecar does not hold, or the scenario can't go on. */
export class Violation extends Data.TaggedError("Violation")<{ readonly message: string }> {}

export const demand = (holds: boolean, message: string): Effect.Effect<void, Violation> =>
  holds ? Effect.void : Effect.fail(new Violation({ message }))

/** One request to the model. */
export interface Asked {
  readonly directive: ScriptedModel.Directive
  readonly at: number
  end: "finished" | "aborted" | undefined
}

export interface Stage {
  readonly recipe: Recipes.Recipe
  readonly profile: AgentProfile.AgentProfile
  readonly sidecar: Sidecar.Sidecar["Service"]
  readonly vm: Vm.Vm
  /** The folder that its sessions work in. */
  readonly work: string
  readonly owner: Leftovers.Owner & { readonly groups: Set<number> }
  /** All ports that its processes were seen to listen on. */
  readonly ports: Set<number>
  /** All requests to its model so far. */
  readonly asked: Array<Asked>
  /** What a request to its model waits for before it is answered. */
  readonly gate: { hold: (directive: ScriptedModel.Directive) => Effect.Effect<void> }
  /** Whose words are in each conversation that its model was sent, see {@link speakers}. */
  readonly heard: Array<ReadonlySet<number>>
  /** What its sessions' questions are answered with. */
  decide: Effect.Effect<Permission.Decision>
  readonly kinds: Contracts.Kinds
  /** Broken contracts in the events of sessions that have ended. */
  readonly broken: Array<string>
  /** Lines on stdout that are no frames, and frames that belonged to no session. */
  readonly odd: { noise: number; late: number; early: number }
  /** The readers of all sessions so far: each ends after its session. */
  readonly readers: Array<Fiber.Fiber<void>>
}

const temporaryFolder = Effect.acquireRelease(
  Effect.promise(async () => realpath(await mkdtemp(join(tmpdir(), "acp-sidecar-agent-")))),
  (folder) => Effect.promise(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }))
)

/** A word that one of many sessions says and no other. */
export const wordOf = (speaker: number, round: number): string => `word-${speaker}-${round}`

/** The sessions whose words are in a text. */
export const speakers = (text: string): ReadonlySet<number> =>
  new Set(Array.from(text.matchAll(/word-(\d+)-\d/g), ([, speaker]) => Number(speaker)))

/** Writes the agent's files, starts its model, and opens a Vm. All of it ends with the scope. */
export const make = Effect.fnUntraced(function* (
  recipe: Recipes.Recipe,
  folder: string,
  share: AgentProfile.AgentProfile["share"] = false
): Effect.fn.Return<Stage, ScriptedModel.ScriptedModelError | Sidecar.OpenVmError, Sidecar.Sidecar | Scope.Scope> {
  const sidecar = yield* Sidecar.Sidecar
  const base = yield* temporaryFolder
  const [home, work] = [join(base, "home"), join(base, "work")]
  const asked: Array<Asked> = []
  const heard: Array<ReadonlySet<number>> = []
  const gate: Stage["gate"] = { hold: () => Effect.void }
  const requests = new Map<number, Asked>()
  const { port } = yield* ScriptedModel.make({
    protocols: protocols.map((protocol) => ({
      ...protocol,
      read: (body, path) => {
        heard.push(speakers(JSON.stringify(body)))
        return protocol.read(body, path)
      }
    })),
    onEvent: ({ at, directive, request, type }) =>
      Effect.suspend(() => {
        if (type !== "request") {
          requests.get(request)!.end = type
          return Effect.void
        }
        const one: Asked = { directive, at, end: undefined }
        requests.set(request, one)
        asked.push(one)
        return gate.hold(directive)
      })
  })
  const setup: Recipes.Setup = { folder, home, port }
  yield* Effect.promise(async () => {
    await mkdir(home)
    await mkdir(work)
    for (const [path, content] of Object.entries(recipe.files(setup))) {
      await mkdir(dirname(join(home, path)), { recursive: true })
      await writeFile(join(home, path), typeof content === "string" ? content : JSON.stringify(content, null, 2))
    }
  })
  return {
    recipe,
    profile: { ...Recipes.profileOf(recipe, setup), share },
    sidecar,
    vm: yield* sidecar.openVm({ root: work }),
    work,
    owner: { groups: new Set(), home },
    ports: new Set(),
    asked,
    gate,
    heard,
    decide: Effect.succeed("reject"),
    kinds: { afterTurn: {}, outside: {}, unrecognized: {} },
    broken: [],
    odd: { noise: 0, late: 0, early: 0 },
    readers: []
  }
})

/** Opens a session and keeps an eye on all of its events. */
export const open = Effect.fnUntraced(function* (
  stage: Stage,
  options: Partial<Pick<Vm.SessionOptions, "cwd" | "permission" | "share">> & {
    readonly vm?: Vm.Vm
    readonly maxRunning?: number
  } = {}
) {
  const { cwd, maxRunning, permission = () => stage.decide, share, vm = stage.vm } = options
  const session = yield* vm.openSession({ agent: stage.profile, permission, startTimeout: "3 minutes", cwd, share })
  if (session.pid !== undefined) stage.owner.groups.add(session.pid)
  const events: Array<SidecarEvent.SessionEvent> = []
  const watch = session.updates.pipe(
    Stream.runForEach((event) =>
      Effect.sync(() => {
        events.push(event)
        Contracts.count(stage.kinds, event)
      })
    ),
    Effect.andThen(session.describe),
    Effect.map(({ late, noise, unrouted }) => {
      stage.odd.noise += noise
      stage.odd.late += late
      stage.odd.early += unrouted.buffered
      for (const problem of Contracts.violations(events, maxRunning)) {
        stage.broken.push(`${session.id}: ${problem}`)
      }
    })
  )
  stage.readers.push(yield* Effect.forkIn(watch, yield* Effect.scope, { startImmediately: true }))
  return session
})

/** Takes down which ports the agent's processes listen on now. */
export const look = Effect.fnUntraced(function* (stage: Stage) {
  const all = yield* Leftovers.processes(stage.owner)
  for (const port of yield* Leftovers.ports(all)) stage.ports.add(port)
  return all
})

/** What a turn did from its submission to its end. */
export interface Ran {
  readonly outcome: TurnOutcome.TurnOutcome
  readonly text: string
  readonly events: ReadonlyArray<SidecarEvent.SessionEvent>
  /** Requests to the model while it ran. */
  readonly requests: ReadonlyArray<Asked>
  readonly from: number
  readonly to: number
}

export const textOf = (events: ReadonlyArray<SidecarEvent.SessionEvent>): string =>
  events
    .map((event) =>
      event._tag === "Update" &&
      event.update.sessionUpdate === "agent_message_chunk" &&
      event.update.content.type === "text"
        ? event.update.content.text
        : ""
    )
    .join("")

/** Submits a prompt and follows it to its end. */
export const run = Effect.fnUntraced(function* (
  stage: Stage,
  session: Session.Session,
  prompt: string,
  options?: Session.SubmitOptions
) {
  const first = stage.asked.length
  const from = yield* Clock.currentTimeMillis
  const turn = yield* session.submit(prompt, options)
  return yield* follow(stage, turn, from, first)
})

export const follow = Effect.fnUntraced(function* (
  stage: Stage,
  turn: Session.Turn,
  from: number,
  first: number
): Effect.fn.Return<Ran> {
  const events = yield* Stream.runCollect(turn.updates)
  const outcome = yield* turn.outcome
  const to = yield* Clock.currentTimeMillis
  return { outcome, text: textOf(events), events, requests: stage.asked.slice(first), from, to }
})

/** Waits until the agent has said something in a turn that goes on. */
export const untilText = Effect.fnUntraced(function* (turn: Session.Turn) {
  const said = yield* Stream.runHead(Stream.filter(turn.text, (text) => text.includes("tok")))
  if (Option.isSome(said)) return
  const outcome = yield* turn.outcome
  return yield* new Violation({ message: `the slow turn ended before it said anything: ${describe(outcome)}` })
})

/** An outcome in a few words. */
export const describe = (outcome: TurnOutcome.TurnOutcome): string => {
  switch (outcome._tag) {
    case "Completed":
      return outcome.stopReason
    case "Cancelled":
      return `cancelled by ${outcome.by}, the agent said ${outcome.agentReported}, escalation ${outcome.escalation}`
    case "Failed":
      return outcome.error.reason.message.replaceAll(/\s+/g, " ").slice(0, 300)
  }
}

/** A prompt that has to be answered with exactly these words. */
export const speak = Effect.fnUntraced(function* (stage: Stage, session: Session.Session, words: string) {
  const ran = yield* run(stage, session, `[[say:${words}]]`, { wallTimeout: "2 minutes" })
  yield* demand(
    ran.outcome._tag === "Completed",
    `a prompt that says "${words}" did not complete: ${describe(ran.outcome)}`
  )
  yield* demand(ran.text.includes(words), `a prompt that says "${words}" got ${JSON.stringify(ran.text.slice(0, 200))}`)
  yield* demand(!ran.text.includes("tok"), `a prompt that says "${words}" got text of an earlier turn`)
  return ran
})

/** This session, or a new one in the place of one that has ended. */
export const usable = Effect.fnUntraced(function* (stage: Stage, session: Session.Session) {
  return (yield* session.describe).state === "open" ? session : yield* open(stage)
})

export const often = Schedule.spaced("50 millis")

/** Polls until something holds; whether it came to hold in time. */
export const eventually = (holds: () => boolean, time: Duration.Input): Effect.Effect<boolean> =>
  Effect.sync(holds).pipe(
    Effect.repeat({ schedule: often, until: (yes) => yes }),
    Effect.timeoutOption(time),
    Effect.map(Option.isSome)
  )

/** The version of an installed package, `undefined` when it is not there. */
export const installed = (folder: string, name: string): Effect.Effect<string | undefined> =>
  Effect.promise(async () => {
    const text = await readFile(join(folder, "node_modules", name, "package.json"), "utf8").catch(() => undefined)
    return text === undefined ? undefined : `${(JSON.parse(text) as { readonly version: unknown }).version}`
  })
