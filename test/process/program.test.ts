import { spawn } from "node:child_process"
import { once } from "node:events"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { agentFile } from "../support/faultyAgent.ts"
import { newMark, running, untilGone, untilRunning } from "../support/processes.ts"

const program = fileURLToPath(new URL("../fixtures/program.ts", import.meta.url))

/** Starts the program with this agent and waits until its turns run. */
const start = (command: ReadonlyArray<string>) =>
  Effect.acquireRelease(
    Effect.sync(() => spawn(process.execPath, [program, ...command], { stdio: ["ignore", "pipe", "inherit"] })),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  ).pipe(Effect.tap((child) => Effect.promise(() => once(child.stdout, "data"))))

describe("a program with the core inside", { concurrent: true }, () => {
  it.live.each(["SIGINT", "SIGTERM"] as const)(
    "that is ended by %s leaves no agent behind, wrappers and stubborn ones included",
    (signal) =>
      Effect.gen(function* () {
        const mark = newMark()
        const agent = [process.execPath, agentFile, `--child=${mark}:ignore-term`, "--ignore-term", "--ignore-eof"]
        const child = yield* start(["/bin/sh", "-c", '"$0" "$@"; :', ...agent])
        // The program itself, and two each of shell, agent and grandchild.
        yield* untilRunning(mark, 7)
        const exit = Effect.promise(() => once(child, "exit"))
        child.kill(signal)
        assert.deepStrictEqual(yield* exit, [130, null])
        assert.deepStrictEqual(yield* running(mark), [])
      })
  )

  it.live("that is killed leaves no agent that honours the end of its input", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const child = yield* start([process.execPath, agentFile, `--mark=${mark}`])
      yield* untilRunning(mark, 3)
      child.kill("SIGKILL")
      yield* untilGone(mark)
    })
  )
})
