// Asks the person at the terminal what an agent may do.
import * as Effect from "effect/Effect"
import * as Semaphore from "effect/Semaphore"
import * as Terminal from "effect/Terminal"
import type * as Permission from "../Permission.ts"
import { oneLine } from "./failure.ts"
import * as Output from "./output.ts"

/** The option that an answer means: its number, the first letter of its name, or `y` and `n`. */
export const choose = (answer: string, options: Permission.Question["options"]): Permission.Decision | undefined => {
  const text = answer.trim().toLowerCase()
  const byNumber = /^\d+$/.test(text) ? options[Number(text) - 1] : undefined
  if (byNumber !== undefined) return { optionId: byNumber.optionId }
  if (text === "y" || text === "yes") return "allow"
  if (text === "" || text === "n" || text === "no") return "reject"
  const byName = options.filter((option) => option.name.toLowerCase().startsWith(text))
  return byName.length === 1 ? { optionId: byName[0]!.optionId } : undefined
}

/** One question at a time; the end of input, and just Enter, reject. */
export const make = Effect.gen(function* () {
  const terminal = yield* Terminal.Terminal
  const one = yield* Semaphore.make(1)
  return (question: Pick<Permission.Question, "toolCall" | "options">): Effect.Effect<Permission.Decision> => {
    const { options, toolCall } = question
    const title = oneLine(toolCall.title ?? toolCall.toolCallId, 500)
    const kind = toolCall.kind == null ? "" : ` (${oneLine(toolCall.kind, 40)})`
    const names = options.map((option, index) => `${index + 1} ${oneLine(option.name, 80)}`)
    const choices = names.join(", ")
    const ask: Effect.Effect<Permission.Decision> = Effect.suspend(() =>
      Output.write("err", `Allow "${title}"${kind}? ${choices} [Enter rejects]: `).pipe(
        Effect.andThen(terminal.readLine),
        Effect.flatMap((answer) => {
          const decision = choose(answer, options)
          return decision === undefined ? ask : Effect.succeed(decision)
        }),
        Effect.catch(() => Effect.as(Output.line("err", ""), "reject" as const))
      )
    )
    return one.withPermit(ask)
  }
})
