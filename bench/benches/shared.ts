// What sessions lose by sharing a process, and what they gain.
import * as Effect from "effect/Effect"
import type * as Session from "../../src/Session.ts"
import * as Agents from "../agents.ts"
import * as Bundled from "../bundled.ts"
import * as Contenders from "../contenders.ts"
import { type Bench, compare, type Figure } from "../figure.ts"
import { quantile } from "../stats.ts"

const many = 50
const updates = 20_000
const warmUp = 2

/** With one agent: all of its sessions are opened first, and then take turns. */
const withAgent = Effect.fnUntraced(function* (
  name: string,
  driven: Contenders.Driven,
  rounds: (whole: number) => number
) {
  const profile = Bundled.profileOf(driven)
  const onOne = yield* Agents.sidecar(profile)
  const onEach = yield* Agents.sidecar({ ...profile, share: false })
  const alone = yield* Agents.sidecar(profile)
  const driving = (session: Session.Session) => Contenders.sidecar(session, driven)
  const one = (yield* onOne.openSessions(many)).map(driving)
  const each = (yield* onEach.openSessions(many)).map(driving)
  // A session that stays, so that the process does.
  yield* alone.openSession
  const fresh = Effect.map(alone.openSession, driving)

  // The bundled agent sends its model all that was said before, so each round has sessions with an equal past.
  const next = (all: ReadonlyArray<Contenders.Contender>) => {
    let index = 0
    return Effect.suspend(() => all[index++ % all.length]!.turns(20))
  }
  const turns = {
    one: next(one),
    each: next(each),
    alone: Effect.scoped(Effect.flatMap(fresh, (session) => session.turns(20)))
  }
  yield* Contenders.alternate(warmUp, turns)
  const times = yield* Contenders.alternate(rounds(24), turns)

  const rate = (ms: number) => (updates / ms) * 1000
  const together = (all: ReadonlyArray<Contenders.Contender>) =>
    Effect.suspend(() => {
      const start = performance.now()
      return Effect.forEach(all, (session) => session.stream(updates / many, 64), {
        concurrency: "unbounded",
        discard: true
      }).pipe(Effect.map(() => rate(performance.now() - start)))
    })
  const streams = {
    one: together(one),
    each: together(each),
    alone: Effect.scoped(Effect.flatMap(fresh, (session) => Effect.map(session.stream(updates, 64), rate)))
  }
  yield* Contenders.alternate(warmUp, streams)
  const rates = yield* Contenders.alternate(rounds(9), streams)

  const latency = (label: string, p: number, baseline: "each" | "alone"): Figure => {
    const at = (which: "one" | "each" | "alone") => times[which].map((samples) => quantile(samples, p))
    return compare(`shared.${name}.${label}.${baseline}`, "ms", at("one"), at(baseline))
  }
  return [
    latency("p50", 0.5, "alone"),
    latency("p95", 0.95, "alone"),
    latency("p50", 0.5, "each"),
    latency("p95", 0.95, "each"),
    compare(`shared.${name}.rate.alone`, "updates/s", rates.one, rates.alone),
    compare(`shared.${name}.rate.each`, "updates/s", rates.one, rates.each)
  ]
}, Effect.scoped)

export const shared: Bench = {
  about: `a turn of one of ${many} sessions on one process, and all of them streaming at once, beside one session alone and ${many} on a process each`,
  detail:
    `The others do nothing during the turns. The streams have ${updates.toLocaleString("en-US")} updates in all. \`lean\` is an agent that costs next to ` +
    "nothing, `bundled` the bundled one with a scripted model: there a turn is a request to the model as well.",
  run: Effect.fnUntraced(function* (rounds) {
    const lean = yield* withAgent("lean", Contenders.lean, rounds)
    return [...lean, ...(yield* withAgent("bundled", yield* Bundled.make, rounds))]
  })
}
