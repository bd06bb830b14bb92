// Many prompts at once, of which the first is slow: what they prove, and how they are drawn. Pure.
import * as Chart from "./chart.ts"
import { plural } from "./hostsTable.ts"

/** One prompt, which asks for a word of its own, and all that its session got to hear. */
export interface Turn {
  readonly span: Chart.Span
  readonly word: string
  readonly heard: string
}

export interface Seen {
  /** What the agent calls the sessions, in their order. */
  readonly ids: ReadonlyArray<string>
  /** Agent processes as the sidecar counts them, and as the operating system does, where it can be asked. */
  readonly hosts: number
  readonly processes: number | null
  /** The first one is slow. */
  readonly turns: ReadonlyArray<Turn>
  /** How many of the prompts the model had at the same time. */
  readonly atOnce: number
}

export interface Verdict {
  readonly isShared: boolean
  readonly isConcurrent: boolean
  /** All that is wrong, a sentence each. */
  readonly problems: ReadonlyArray<string>
}

const listed = (numbers: ReadonlyArray<number>): string => {
  const some = numbers.slice(0, 8).map(String)
  if (numbers.length > some.length) some.push(`${numbers.length - some.length} more`)
  return some.length === 1 ? some[0]! : `${some.slice(0, -1).join(", ")} and ${some.at(-1)}`
}

/** "session 3" or "sessions 3 and 5": they are numbered from 1. */
const named = (indices: ReadonlyArray<number>): string =>
  `${indices.length === 1 ? "session" : "sessions"} ${listed(indices.map((index) => index + 1))}`

const capital = (text: string): string => text.slice(0, 1).toUpperCase() + text.slice(1)

const sameIds = (ids: ReadonlyArray<string>): ReadonlyArray<string> => {
  const byId = new Map<string, Array<number>>()
  for (const [index, id] of ids.entries()) byId.set(id, [...(byId.get(id) ?? []), index])
  return [...byId.values()]
    .filter((indices) => indices.length > 1)
    .map((indices) => `${capital(named(indices))} got the same id from the agent.`)
}

const mixedUp = (turns: ReadonlyArray<Turn>): ReadonlyArray<string> =>
  turns.flatMap(({ heard, word }, index) => {
    const foreign = turns.flatMap((other, at) => (at !== index && heard.includes(other.word) ? [at] : []))
    return [
      ...(heard.includes(word) ? [] : [`${capital(named([index]))} did not get the word that it asked for.`]),
      ...(foreign.length === 0 ? [] : [`${capital(named([index]))} got the answer of ${named(foreign)}.`])
    ]
  })

const counted = (hosts: number, processes: number | null, sessions: number): string =>
  processes === null || processes === hosts
    ? `There were ${hosts} agent processes for ${sessions} sessions, not one.`
    : `The sidecar has ${plural(hosts, "agent process", "agent processes")} and the process table ${processes}, for ` +
      `${sessions} sessions that are to share one.`

/** They ran together when the model had all of them at the same time, and none of the quick ones waited for the slow one. */
export const judge = ({ atOnce, hosts, ids, processes, turns }: Seen): Verdict => {
  const isShared = hosts === 1 && (processes ?? 1) === 1
  const [slow, ...quick] = turns.map(({ span }) => span)
  const late = quick.flatMap(({ to }, index) => (to < slow!.to ? [] : [index + 1]))
  return {
    isShared,
    isConcurrent: atOnce === turns.length && late.length === 0,
    problems: [
      ...(isShared ? [] : [counted(hosts, processes, ids.length)]),
      ...sameIds(ids),
      ...mixedUp(turns),
      ...(atOnce === turns.length ? [] : [`The model had ${atOnce} of the ${turns.length} prompts at once, not all.`]),
      ...(late.length === 0 ? [] : [`${capital(named(late))} waited for the slow turn of session 1.`])
    ]
  }
}

/** Turns that are drawn; the rest is a number. */
const maxDrawn = 12

/** A bar a turn, on one scale, no wider than `columns`. */
export const draw = (turns: ReadonlyArray<Turn>, columns: number): ReadonlyArray<string> => {
  const drawn = turns.length <= maxDrawn ? turns : turns.slice(0, maxDrawn - 1)
  const rest = turns.slice(drawn.length).map(({ span }) => span.to - span.from)
  const width = `${turns.length}`.length
  const bars = Chart.bars(
    drawn.map(({ span }, index) => ({
      label: `${index + 1}`.padStart(width),
      span,
      fact: `${Chart.seconds(span.to - span.from)} s`
    })),
    columns
  )
  return rest.length === 0
    ? bars
    : [...bars, `${"…".padStart(width)}  and ${rest.length} more, the longest ${Chart.seconds(Math.max(...rest))} s`]
}
