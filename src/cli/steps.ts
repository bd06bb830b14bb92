// The steps of an examination with their times, told as they happen.
import * as Effect from "effect/Effect"
import * as Output from "./output.ts"
import * as Report from "./report.ts"

/** Shows the steps: as lines of the report, or on stderr beside `--json`. */
export const makeTeller = (isJson: boolean, redact: (text: string) => string) => {
  const isLive = !isJson && Output.isTerminal("out") && Output.isTerminal("err")
  const width = Output.isTerminal("out") ? Output.columns() : Infinity
  let pending = false
  const clear = Effect.suspend(() => {
    if (!pending) return Effect.void
    pending = false
    return Output.write("err", "\r\u001b[K")
  })
  const line = (text: string): Effect.Effect<void> =>
    isJson ? Effect.void : Effect.andThen(clear, Output.line("out", text))
  return {
    line,
    /** What is under way, until the next line takes its place. */
    began: (step: string): void => {
      if (!isLive) return
      pending = true
      process.stderr.write(`\r\u001b[K  ${step} …`)
    },
    done: (step: string, text: string): Effect.Effect<void> =>
      isJson ? Output.note(`${step}: ${redact(text)}`) : labelled(step, text),
    labelled
  }
  function labelled(label: string, text: string): Effect.Effect<void> {
    return text === "" ? Effect.void : line(Report.labelled(label, redact(text), width).join("\n"))
  }
}

export type Teller = ReturnType<typeof makeTeller>

/** The steps with their times. What is under way is what a failure is blamed on. */
export const makeSteps = (teller: Teller) => {
  const phases: Array<Report.Phase> = []
  let current: { readonly name: string; readonly from: number } | undefined
  let told = 0
  const finish = (outcome: Report.Phase["outcome"], millis?: number): void => {
    if (current === undefined) return
    phases.push({ name: current.name, millis: millis ?? performance.now() - current.from, outcome })
    current = undefined
  }
  return {
    phases,
    begin: (name: string): void => {
      finish(name === "authenticate" ? "wants a sign-in" : "done")
      current = { name, from: performance.now() }
      teller.began(name)
    },
    finish,
    current: () => current?.name,
    /** Tells what has ended since; `note` belongs to the last of it. */
    tell: (note = ""): Effect.Effect<void> =>
      Effect.suspend(() => {
        const fresh = phases.slice(told)
        told = phases.length
        return Effect.forEach(
          fresh,
          ({ millis, name, outcome }, index) => {
            const state = outcome === "done" ? "" : `, ${outcome}`
            const more = index === fresh.length - 1 && note !== "" ? `  ${note}` : ""
            return teller.done(name, `${Report.time(millis)}${state}${more}`)
          },
          { discard: true }
        )
      })
  }
}

export type Steps = ReturnType<typeof makeSteps>
