// What `doctor` found, as values and as text. Pure.
import type { Acp } from "../acp/AcpSchema.ts"
import type { End } from "./ending.ts"
import type { Finding } from "./diagnosis.ts"
import { type ExitCode, exitCode, oneLine } from "./failure.ts"
import { seconds } from "./chart.ts"

/** One step, in the order of time. */
export interface Phase {
  readonly name: string
  readonly millis: number
  readonly outcome: "done" | "failed" | "timed out" | "wants a sign-in"
}

/** The one document of `--json`. What the agent said is in it as it is, without its secrets. */
export interface Report {
  readonly agent: string
  readonly works: boolean
  readonly exitCode: ExitCode
  readonly problem: Finding | null
  /** What is odd, and does not keep it from working. */
  readonly findings: ReadonlyArray<Finding>
  readonly command: ReadonlyArray<string>
  readonly path: string | null
  readonly package: { readonly name: string; readonly version: string } | null
  readonly cwd: string
  /** Names of variables: those that its profile passes on and are set, those that are not, and those of `--env`. */
  readonly environment: {
    readonly passed: ReadonlyArray<string>
    readonly unset: ReadonlyArray<string>
    readonly given: ReadonlyArray<string>
  }
  readonly phases: ReadonlyArray<Phase>
  readonly initialize: Acp.InitializeResponse | null
  readonly session: Acp.NewSessionResponse | null
  readonly prompt: {
    readonly stopReason: string
    readonly text: string
    readonly firstUpdateMillis: number | null
    readonly updates: number
    readonly permissionsRejected: number
  } | null
  readonly stdout: {
    readonly frames: number
    readonly noise: number
    readonly noiseSample: string
    readonly malformed: number
    readonly malformedSample: string
    readonly tooLarge: number
    /** Methods that it asked us for and that nobody offers it. */
    readonly refused: ReadonlyArray<string>
  }
  readonly stderr: string
  readonly end: End | null
  readonly quirks: ReadonlyArray<string>
}

const labelWidth = 18

/** Text after a label, in lines no wider than `width`; what has no blanks is not cut. */
export const labelled = (label: string, text: string, width: number): ReadonlyArray<string> => {
  const lines: Array<string> = []
  let line = `  ${label.padEnd(labelWidth - 2)}`
  let isEmpty = true
  for (const word of text.split(" ")) {
    if (!isEmpty && line.length + 1 + word.length > width) {
      lines.push(line)
      line = " ".repeat(labelWidth)
      isEmpty = true
    }
    line += isEmpty ? word : ` ${word}`
    isEmpty = false
  }
  return [...lines, line.trimEnd()]
}

const plain = (value: unknown, max = 80): string => oneLine(typeof value === "string" ? value : String(value), max)

const listed = (values: ReadonlyArray<string>, max = 12): string =>
  values.length <= max ? values.join(", ") : `${values.slice(0, max).join(", ")} and ${values.length - max} more`

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value)

const offered = (value: unknown): ReadonlyArray<string> =>
  isObject(value)
    ? Object.entries(value).flatMap(([name, given]) =>
        name === "_meta" || given === false || given === null || given === undefined ? [] : [plain(name, 40)]
      )
    : []

const promptKinds: Readonly<Record<string, string>> = { image: "images", audio: "audio", embeddedContext: "resources" }

export const count = (many: number, noun: string): string => `${many} ${noun}${many === 1 ? "" : "s"}`

/** What an agent says that it can do, in words. */
export const capabilities = (given: unknown): string => {
  const all = isObject(given) ? given : {}
  const { auth, loadSession, mcpCapabilities, promptCapabilities, sessionCapabilities, ...rest } = all
  const methods = [...(loadSession === true ? ["load"] : []), ...offered(sessionCapabilities)]
  const prompts = ["text", ...offered(promptCapabilities).map((kind) => promptKinds[kind] ?? kind)]
  const others = [...offered(auth), ...offered(rest)]
  return [
    methods.length === 0 ? "sessions: new ones only" : `sessions: new, ${listed(methods)}`,
    `prompts with ${listed(prompts)}`,
    `MCP over ${listed(["stdio", ...offered(mcpCapabilities)])}`,
    ...(others.length === 0 ? [] : [`also ${listed(others)}`])
  ].join("; ")
}

/** The agent's name and version, as it says. */
export const version = (initialize: Acp.InitializeResponse): string => {
  const { name, title, version } = initialize.agentInfo ?? {}
  const named = [title ?? name ?? "it does not say its name", version].filter((part) => part != null)
  const full = title != null && name != null && title !== name ? ` (${plain(name)})` : ""
  return `${named.map((part) => plain(part)).join(" ")}${full}, ACP version ${plain(initialize.protocolVersion)}`
}

/** A choice that a session offers, with the current one marked. */
const choice = (items: unknown, current: unknown, id: string): string => {
  const all = Array.isArray(items) ? items.filter(isObject).map((item) => item[id]) : []
  return listed(all.map((value) => (value === current ? `${plain(value, 60)} (current)` : plain(value, 60))))
}

/** Modes, models and options, each as a label and a text. */
export const offers = (session: Acp.NewSessionResponse): ReadonlyArray<readonly [string, string]> => {
  const { configOptions, models, modes } = session as Readonly<Record<string, unknown>>
  const options = Array.isArray(configOptions) ? configOptions.filter(isObject) : []
  return [
    ...(isObject(modes) ? [["modes", choice(modes["availableModes"], modes["currentModeId"], "id")] as const] : []),
    ...(isObject(models)
      ? [["models", choice(models["availableModels"], models["currentModelId"], "modelId")] as const]
      : []),
    ...options.slice(0, 8).map(({ currentValue, id, options }) => {
      // Options may come in groups.
      const flat = Array.isArray(options)
        ? options.flatMap((item) => (isObject(item) && Array.isArray(item["options"]) ? item["options"] : [item]))
        : []
      return [
        "option",
        `${plain(id, 40)}: ${flat.length === 0 ? plain(currentValue) : choice(flat, currentValue, "value")}`
      ] as const
    })
  ].filter(([, text]) => text !== "")
}

export const authMethods = (initialize: Acp.InitializeResponse): string => {
  const methods = (initialize.authMethods ?? []).map(({ id, name }) =>
    name == null || name === id ? plain(id, 60) : `${plain(id, 60)} (${plain(name, 60)})`
  )
  return methods.length === 0 ? "no methods offered" : listed(methods)
}

export const time = (millis: number): string => `${seconds(millis)} s`

/** How its process ended, in words. */
export const ending = (end: End, graceMillis: number): string => {
  const grace = `${Number(seconds(graceMillis))} s`
  const how = end.signal === null ? (end.code === null ? "" : ` (exit code ${end.code})`) : ` (${plain(end.signal)})`
  switch (end.by) {
    case "itself":
      return `by itself${how}`
    case "end of input":
      return `after the end of its input${how}`
    case "TERM":
      return `after TERM, as it kept running for ${grace} after the end of its input${how}`
    case "KILL":
      return `after KILL, as it ignored the end of its input and TERM for ${grace} each${how}`
  }
}

/** The last lines of stderr, none of which may move the cursor. */
export const stderrLines = (stderr: string, max = 8): ReadonlyArray<string> => {
  const lines = stderr.split("\n").filter((line) => line.trim() !== "")
  return [
    ...(lines.length > max ? [`… ${lines.length - max} lines before`] : []),
    ...lines.slice(-max).map((line) => oneLine(line, 200))
  ]
}

export const sentence = ({ advice, what }: Finding): string => (advice === "" ? what : `${what}; ${advice}`)

/** The last line: whether it works, and if not, why and what to do. */
export const verdict = ({
  agent,
  exitCode: code,
  problem,
  prompt
}: Pick<Report, "agent" | "exitCode" | "problem" | "prompt">): string => {
  const name = plain(agent)
  if (problem !== null) return `${name}: does not work: ${sentence(problem)}`
  if (code !== exitCode.done) return `${name}: does not work`
  return prompt === null
    ? `${name}: works (a session opens; only --prompt TEXT shows whether its model answers)`
    : `${name}: works`
}
