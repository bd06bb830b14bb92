// The results as lines, while they come, and as one table. Pure.

/**
 * How a step ended: `ok`, `cannot` when the agent doesn't have what it is about, `failed` when a contract of the sidecar
 * was broken. `cell` is short, for the table.
 */
export interface Result {
  readonly agent: string
  readonly step: string
  readonly status: "ok" | "cannot" | "failed"
  readonly cell: string
  readonly detail: string
  readonly tookMillis: number
}

export const seconds = (millis: number): string => `${(millis / 1000).toFixed(millis < 10_000 ? 2 : 1)} s`

/** One line about one step. */
export const line = ({ agent, cell, detail, status, step, tookMillis }: Result): string => {
  const mark = { ok: "ok", cannot: "--", failed: "FAILED" }[status]
  const words = detail === "" ? cell : `${cell}${cell === "" ? "" : "; "}${detail}`
  return `${agent.padEnd(9)} ${step.padEnd(18)} ${mark.padEnd(6)} ${seconds(tookMillis).padStart(8)}  ${words}`.trimEnd()
}

/** A Markdown table that is aligned for the terminal too: a row a step, a column an agent. */
export const table = (results: ReadonlyArray<Result>): string => {
  const agents = Array.from(new Set(results.map(({ agent }) => agent)))
  const steps = Array.from(new Set(results.map(({ step }) => step)))
  const cell = (step: string, agent: string): string => {
    const result = results.find((one) => one.step === step && one.agent === agent)
    if (result === undefined) return ""
    return result.status === "failed" ? "**failed**" : result.cell.replaceAll("|", "\\|")
  }
  const rows = [["step", ...agents], ...steps.map((step) => [step, ...agents.map((agent) => cell(step, agent))])]
  const widths = rows[0]!.map((_, column) => Math.max(3, ...rows.map((row) => row[column]!.length)))
  const row = (cells: ReadonlyArray<string>) => `| ${cells.map((text, i) => text.padEnd(widths[i]!)).join(" | ")} |`
  const [head, ...body] = rows.map(row)
  return [head, `|${widths.map((width) => "-".repeat(width + 2)).join("|")}|`, ...body].join("\n")
}

/** What went wrong, a line each, and the last line, which says how it went. */
export const verdict = (results: ReadonlyArray<Result>): ReadonlyArray<string> => {
  const failed = results.filter(({ status }) => status === "failed")
  const agents = new Set(results.map(({ agent }) => agent)).size
  const counted = `${results.length} steps with ${agents} agent${agents === 1 ? "" : "s"}`
  return [
    ...failed.map(({ agent, detail, step }) => `${agent}, ${step}: ${detail}`),
    failed.length === 0 ? `${counted}: every contract held.` : `${counted}: ${failed.length} FAILED.`
  ]
}
