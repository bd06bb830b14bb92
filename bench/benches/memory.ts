// What a session that does nothing holds.
import * as Effect from "effect/Effect"
import { measure } from "../child.ts"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare, type Goal } from "../figure.ts"

type Kind = "agents" | "pipes" | "memory" | "turn" | "process"
interface Cost {
  readonly heap: number
  readonly rss: number
}

const ofEach = (kind: Kind, count: number) => measure<Cost>("memory.ts", kind, count)

export const memory: Bench = {
  about: "what an idle session adds to its host, on the heap after a collection and in resident memory",
  detail:
    "The baseline is what the agent alone adds (one in memory, or a process with its pipes by hand), and is taken off. " +
    "`turn`: after one turn. With processes, Node's and Effect's own parts of a child process are in the figure.",
  run: Effect.fnUntraced(function* (rounds) {
    const costs = yield* Contenders.alternate<Kind, Cost, never>(rounds(3), {
      agents: ofEach("agents", 1000),
      memory: ofEach("memory", 1000),
      turn: ofEach("turn", 1000),
      pipes: ofEach("pipes", 200),
      process: ofEach("process", 200)
    })
    const figure = (name: string, of: keyof Cost, ours: Kind, alone: Kind, goal?: Goal) => {
      const baseline = costs[alone].map((cost) => cost[of])
      return compare(
        name,
        "KiB",
        costs[ours].map((cost, round) => cost[of] - baseline[round]!),
        baseline,
        goal
      )
    }
    const goal = atMost(64, "value")
    return [
      figure("memory.heap.agent", "heap", "memory", "agents", goal),
      figure("memory.rss.agent", "rss", "memory", "agents", goal),
      figure("memory.heap.turn", "heap", "turn", "agents", goal),
      figure("memory.heap.process", "heap", "process", "pipes", goal),
      figure("memory.rss.process", "rss", "process", "pipes")
    ]
  })
}
