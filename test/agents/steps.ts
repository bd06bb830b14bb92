// The scenario, step by step. A step fails only when a contract of the sidecar does not hold; what an agent does on its
// own account is told and not judged.
import * as Effect from "effect/Effect"
import * as Ends from "./ends.ts"
import * as Leftovers from "./leftovers.ts"
import { seconds } from "./report.ts"
import * as Stage from "./stage.ts"
import { counted, type Found, millis, type Sessions, type Step } from "./step.ts"
import * as Turns from "./turns.ts"

/** All of them but the first, which makes the sessions that the others use. */
export const steps: ReadonlyArray<Step> = [
  Turns.concurrent,
  Turns.tool("allow"),
  Turns.tool("reject"),
  Turns.cancelQuestion,
  Turns.cancel,
  Turns.atOnce,
  Turns.busy,
  Turns.whileBusy,
  Turns.trouble("model error 400", "[[error:400]]", { wallTimeout: "60 seconds" }),
  Turns.trouble("model error 500", "[[error:500]]", { wallTimeout: "20 seconds" }),
  Turns.trouble("model breaks off", "[[drop:3]]", { wallTimeout: "20 seconds" }),
  Turns.trouble("model hangs", "[[hang]]", { idleTimeout: "3 seconds", wallTimeout: "20 seconds" }),
  Ends.kill,
  Ends.close,
  Ends.dispose,
  Ends.after
]

/** Opens two sessions, and says what the agent is. */
export const start = Effect.fnUntraced(function* (stage: Stage.Stage) {
  const [first, a] = yield* millis(Stage.open(stage))
  const [second, b] = yield* millis(Stage.open(stage))
  const all = yield* Stage.look(stage)
  const size = yield* Leftovers.memory(all)
  const { agentCapabilities: can = {}, agentInfo, authMethods = [] } = a.initialize
  const offered = [
    can.loadSession === true ? "load" : "",
    ...Object.entries(can.sessionCapabilities ?? {}).flatMap(([name, value]) => (value == null ? [] : [name])),
    ...Object.entries(can.promptCapabilities ?? {}).flatMap(([name, value]) => (value === true ? [name] : []))
  ].filter((name) => name !== "" && name !== "_meta")
  const found: Found = {
    cell: seconds(first),
    detail: [
      `the second ${seconds(second)}`,
      `${agentInfo?.name ?? "no name"} ${agentInfo?.version ?? ""}`.trim(),
      `offers ${offered.join(", ") || "nothing"}`,
      `${counted(all.length, "process")} for 2 sessions${size === null ? "" : `, ${size} MiB`}`,
      `sign-in: ${authMethods?.map(({ id }) => id).join(", ") || "none"}`
    ].join("; ")
  }
  return { sessions: { a, b } satisfies Sessions, found }
})
