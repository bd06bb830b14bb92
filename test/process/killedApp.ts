// An app, its sidecar and their agents as real processes, to be killed one by one. Import it once a test file: it bundles
// the app before all of its tests.
import { afterAll, assert, beforeAll } from "@effect/vitest"
import { spawn } from "node:child_process"
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { createInterface } from "node:readline"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import { rolldown } from "rolldown"
import { bin, root } from "../support/command.ts"
import { agentFile } from "../support/faultyAgent.ts"
import { newMark, type Process, running } from "../support/processes.ts"

export type Part = "client" | "sidecar" | "agent"
export type Transport = "stdio" | "socket"
export const steps = [
  "connect",
  "handshake",
  "open",
  "prompt written",
  "mid-stream",
  "permission pending",
  "cancel sent",
  "dispose"
] as const
export type Step = (typeof steps)[number]

export interface Row {
  readonly part: Part
  readonly step: Step
  readonly transport: Transport
}

/** A line of the app. */
// oxlint-disable-next-line typescript/no-explicit-any -- what a test looks into
export type Line = Readonly<Record<string, any>>

const bundles = mkdtempSync(join(tmpdir(), "acp-sidecar-killed-"))
const appFile = join(bundles, "kill-client.mjs")
const programFile = join(root, "test/fixtures/held-sidecar.mjs")
beforeAll(async () => {
  const bundle = await rolldown({ input: join(root, "test/fixtures/killClient.ts"), platform: "node" })
  await bundle.write({ file: appFile, format: "esm", codeSplitting: false })
  await bundle.close()
}, 60_000)
afterAll(() => rmSync(bundles, { recursive: true, force: true }))

/** What the agent that is at a step is told beforehand; it obeys neither the end of its input nor TERM. */
const switchesOf = (row: Row): ReadonlyArray<string> => {
  const stubborn = ["--ignore-eof", "--ignore-term"]
  if (row.step === "connect") return [...stubborn, "--deaf"]
  const method = answerless(row)
  return method === undefined ? stubborn : [...stubborn, `--hang-at=${method}`]
}

/** What it doesn't answer. The steps of an agent are its own: it was started, is greeted, gets a session. */
const answerless = ({ part, step, transport }: Row): string | undefined => {
  if (step === "handshake") return "initialize"
  if (step !== "open") return undefined
  return part !== "agent" && transport === "stdio" ? "initialize" : "session/new"
}

const prompts: Partial<Record<Step, string>> = {
  "prompt written": "{chunks=0} {hang}",
  "mid-stream": "{chunks=100000:10}",
  "permission pending": "{permission=1} {hang}",
  "cancel sent": "{chunks=0} {hang} {ignore-cancel}",
  dispose: "{chunks=0} {hang} {ignore-cancel}"
}

/** Whether the sidecar itself stops at this step, see `held-sidecar.mjs`. */
const isHeld = ({ part, step }: Row): boolean => part !== "agent" && (step === "connect" || step === "handshake")

/** Where all of a row happens. The name of its folder is in the arguments of each of its processes. */
export interface Place {
  readonly row: Row
  readonly folder: string
  readonly socket: string
  readonly pool: string
}

const kill = (pid: number): void => {
  try {
    process.kill(pid, "SIGKILL")
  } catch {
    // It has ended meanwhile.
  }
}

export const place = (row: Row): Effect.Effect<Place, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const folder = mkdtempSync(join(tmpdir(), `${newMark()}-`))
      symlinkSync(programFile, join(folder, "sidecar.mjs"))
      return { row, folder, socket: join(folder, "socket"), pool: "killed" }
    }),
    ({ folder }) =>
      Effect.map(running(folder), (left) => {
        for (const { pid } of left) kill(pid)
        rmSync(folder, { recursive: true, force: true })
      })
  )

/** An agent of a neighbour in the same place. */
export const agentCommand = (name: string, folder: string) =>
  [process.execPath, agentFile, `--name=${name}`, `--log=${join(folder, `${name}.log`)}`] as const

/** How long a test looks before it fails. What is promised is 5 s, where nothing else runs. */
const patience = 15_000

/** As {@link untilSo}, for something that is given. */
const until = <A>(what: string, look: () => A | undefined, detail?: () => string): Effect.Effect<A> =>
  Effect.suspend(() => {
    let found: A | undefined
    const isThere = Effect.sync(() => {
      found = look()
      return found !== undefined
    })
    return Effect.map(untilSo(what, isThere, detail), () => found!)
  })

/** What of a place still runs: `client`, `sidecar`, `reaper`, or the name of an agent. */
const nameOf = ({ args }: Process): string => {
  if (args.includes("kill-client.mjs")) return "client"
  if (args.includes("sidecar.mjs reap")) return "reaper"
  return / serve /.test(args) ? "sidecar" : (/--name=(\w+)/.exec(args)?.[1] ?? args)
}

export const parts = ({
  folder
}: Place): Effect.Effect<ReadonlyArray<{ readonly name: string; readonly pid: number }>> =>
  Effect.map(running(folder), (all) => all.map((one) => ({ name: nameOf(one), pid: one.pid })))

/** Looks every 20 ms until something is so, and gives the milliseconds that it took. */
export const untilSo = <E, R>(
  what: string,
  look: Effect.Effect<boolean, E, R>,
  detail: () => string = () => ""
): Effect.Effect<number, E, R> =>
  Effect.suspend(() => {
    const since = performance.now()
    return look.pipe(
      Effect.repeat({ schedule: Schedule.spaced("20 millis"), until: (isSo) => isSo }),
      Effect.timeoutOrElse({
        duration: patience,
        orElse: () => Effect.sync(() => assert.fail(`not within ${patience} ms: ${what} ${detail()}`))
      }),
      Effect.map(() => performance.now() - since)
    )
  })

/** Waits until these parts are all that runs. */
export const untilOnly = (here: Place, ...wanted: ReadonlyArray<string>): Effect.Effect<number> => {
  const list = (names: ReadonlyArray<string>) => names.toSorted().join(" ")
  let seen = ""
  const look = Effect.map(parts(here), (all) => {
    seen = list(all.map(({ name }) => name))
    return seen === list(wanted)
  })
  return untilSo(`there runs just "${list(wanted)}"`, look, () => `but "${seen}"`)
}

/** The process of a part, once it is there. */
export const pidOf = (here: Place, part: string): Effect.Effect<number> =>
  Effect.suspend(() => {
    let pid: number | undefined
    const isThere = Effect.map(parts(here), (all) => {
      pid = all.find(({ name }) => name === part)?.pid
      return pid !== undefined
    })
    return Effect.map(untilSo(`there is the ${part}`, isThere), () => pid!)
  })

export interface App {
  readonly tell: (line: string) => void
  /** The first line that has this field, which is then used up. */
  readonly line: (field: string) => Effect.Effect<Line>
  readonly pid: number
  /** How it ended. */
  readonly exit: Effect.Effect<{ readonly code: number | null; readonly signal: string | null }>
}

/** The app, in its place. It is told by its input what to do. */
export const start = (here: Place): Effect.Effect<App, never, Scope.Scope> =>
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() => {
        const { folder, pool, row } = here
        const told = {
          transport: row.transport,
          pool,
          folder,
          program: join(folder, "sidecar.mjs"),
          env: isHeld(row) ? { HELD_AT: row.step, HELD_FOLDER: folder, HELD_PROGRAM: bin } : { HELD_PROGRAM: bin },
          limits: {
            closeTimeout: "500 millis",
            killGrace: "500 millis",
            // A child is to end in time whatever the grace is; where others share it, it is the grace that counts.
            cancelGrace: row.transport === "socket" && row.part === "client" ? "2 seconds" : "1 minute"
          },
          agent: [process.execPath, agentFile],
          switches: switchesOf(row),
          prompt: prompts[row.step]
        }
        return spawn(process.execPath, [appFile, JSON.stringify(told)], {
          env: { PATH: process.env["PATH"], HOME: folder, ACP_SIDECAR_STATE: join(folder, "state") },
          stdio: "pipe"
        })
      }),
      (child) => Effect.sync(() => void child.kill("SIGKILL"))
    ),
    (child) => {
      const lines: Array<Line> = []
      let stderr = ""
      let exit: { readonly code: number | null; readonly signal: string | null } | undefined
      createInterface(child.stdout).on("line", (line) => {
        if (line.startsWith("{")) lines.push(JSON.parse(line) as Line)
        else stderr += `${line}\n`
      })
      child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text))
      child.stdin.on("error", () => {})
      child.once("exit", (code, signal) => (exit = { code, signal }))
      const detail = () => `${JSON.stringify(lines)} ${JSON.stringify(exit)} ${stderr}`
      return {
        tell: (line) => void child.stdin.write(`${line}\n`),
        line: (field) =>
          until(
            `the line ${field}`,
            () => {
              const index = lines.findIndex((line) => field in line)
              return index < 0 ? undefined : lines.splice(index, 1)[0]
            },
            detail
          ),
        pid: child.pid!,
        exit: until("the end of the app", () => exit, detail)
      }
    }
  )

const logHas = ({ folder }: Place, name: string, method: string): true | undefined => {
  const file = join(folder, `${name}.log`)
  return existsSync(file) && readFileSync(file, "utf8").includes(`"${method}"`) ? true : undefined
}

/** Sends the app to the step of its row, and waits until it is there. */
export const reach = Effect.fnUntraced(function* (app: App, here: Place) {
  const { folder, row } = here
  app.tell(row.step)
  if (isHeld(row)) return yield* until("the sidecar that stops", () => existsSync(join(folder, "held")) || undefined)
  const logged = (method: string) => until(`${method} at the agent`, () => logHas(here, "struck", method))
  switch (row.step) {
    case "connect":
      return yield* pidOf(here, "struck")
    case "handshake":
    case "open":
      return yield* logged(answerless(row)!)
    case "prompt written":
      return yield* logged("session/prompt")
    case "mid-stream":
    case "permission pending":
      return yield* app.line("at")
    case "cancel sent":
    case "dispose":
      return yield* logged("session/cancel")
  }
})

/** Kills a part of a row that has got to its step, and lets what stopped there go on. */
export const strike = Effect.fnUntraced(function* (here: Place, part: string) {
  kill(yield* pidOf(here, part))
  writeFileSync(join(here.folder, "go"), "")
})

/** Nothing is left in the folder of launch records, and no socket that nobody listens on. */
export const assertNothingLeft = ({ folder, socket }: Place): void => {
  const records = join(folder, "state", "launches")
  assert.deepStrictEqual(existsSync(records) ? readdirSync(records) : [], [])
  assert.isFalse(existsSync(socket))
}
