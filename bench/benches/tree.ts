// What many sessions of one agent cost, with the agent.
import * as Effect from "effect/Effect"
import * as Bundled from "../bundled.ts"
import { measure } from "../child.ts"
import * as Contenders from "../contenders.ts"
import { atMost, type Bench, compare } from "../figure.ts"

/** In KiB. */
interface Size {
  readonly sessions: number
  readonly heap: number
  readonly host: number
  readonly agents: number
}

const counts = [1, 10, 50] as const

type Kind = "shared" | "idle" | "own"

export const tree: Bench = {
  about:
    "the memory of a sidecar and all its agents with 1, 10 and 50 sessions of the bundled agent on one process, beside as many on a process each",
  detail:
    "After one turn each. What processes share counts once. `agent`, `heap`: what each session from the 11th to the 50th adds to the agent, and to " +
    "the heap of the sidecar after a collection. `idle`: the same without a turn.",
  run: Effect.fnUntraced(function* (rounds) {
    const { command, env } = yield* Bundled.make
    const grow = (kind: "shared" | "own", after: "idle" | "turn") =>
      measure<ReadonlyArray<Size>>("tree.ts", kind, after, env["OPENAI_BASE_URL"]!, command[1]!, ...counts)
    const sizes = yield* Contenders.alternate<Kind, ReadonlyArray<Size>, never>(rounds(3), {
      shared: grow("shared", "turn"),
      idle: grow("shared", "idle"),
      own: grow("own", "turn")
    })
    const at = (kind: Kind, count: number) => sizes[kind].map((found) => found.find((one) => one.sessions === count)!)
    const total = (kind: Kind, count: number) => at(kind, count).map(({ agents, host }) => (agents + host) / 1024)
    const added = (kind: Kind, what: "agents" | "heap") => {
      const before = at(kind, 10)
      return at(kind, 50).map((size, round) => (size[what] - before[round]![what]) / 40)
    }
    return [
      ...counts.map((count) => compare(`tree.${count}.own`, "MiB", total("shared", count), total("own", count))),
      compare("tree.agent.own", "KiB", added("shared", "agents"), added("own", "agents"), atMost(1024, "value")),
      compare("tree.agent.idle", "KiB", added("shared", "agents"), added("idle", "agents")),
      compare("tree.heap.own", "KiB", added("shared", "heap"), added("own", "heap"), atMost(64, "value")),
      compare("tree.heap.idle", "KiB", added("shared", "heap"), added("idle", "heap"))
    ]
  })
}
