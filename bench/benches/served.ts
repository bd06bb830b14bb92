// A sidecar in a process of its own, over each transport, beside a bare pipe to the agent and beside an embedded one.
import * as Effect from "effect/Effect"
import * as AgentProfile from "../../src/AgentProfile.ts"
import * as Contenders from "../contenders.ts"
import { atLeast, atMost, type Bench, compare } from "../figure.ts"
import * as Served from "../served.ts"
import { quantile } from "../stats.ts"

const agent = AgentProfile.make({ name: "bench", command: Contenders.lean.command })

const all = Effect.gen(function* () {
  const over = (transport: Served.Transport) =>
    Effect.map(
      Effect.flatMap(Served.over(transport), (sidecar) => Served.session(sidecar, agent)),
      (session) => Contenders.sidecar(session)
    )
  return {
    pipe: yield* Contenders.pipe,
    embedded: Contenders.sidecar(yield* Effect.flatten(Contenders.openSession)),
    stdio: yield* over("stdio"),
    socket: yield* over("socket"),
    webSocket: yield* over("webSocket")
  }
})

const places = ["pipe", "embedded", "stdio", "socket", "webSocket"] as const
type Place = (typeof places)[number]

const each = <A>(run: (place: Place) => Effect.Effect<A>): Readonly<Record<Place, Effect.Effect<A>>> =>
  Object.fromEntries(places.map((place) => [place, run(place)])) as Record<Place, Effect.Effect<A>>

export const remote: Bench = {
  about: "a turn of one chunk through a sidecar in another process, beside a bare pipe",
  detail:
    "The sidecar is the packed command, as a child over stdin and stdout, over a Unix domain socket and over a WebSocket.",
  run: Effect.fnUntraced(function* (rounds) {
    const contenders = yield* all
    yield* Contenders.alternate(
      3,
      each((place) => contenders[place].turns(200))
    )
    const times = yield* Contenders.alternate(
      rounds(40),
      each((place) => contenders[place].turns(50))
    )
    const at = (place: Place, p: number) => times[place].map((samples) => quantile(samples, p))
    return [
      compare("remote.embedded.p50.pipe", "ms", at("embedded", 0.5), at("pipe", 0.5)),
      compare("remote.stdio.p50.pipe", "ms", at("stdio", 0.5), at("pipe", 0.5)),
      compare("remote.socket.p50.pipe", "ms", at("socket", 0.5), at("pipe", 0.5), atMost(8)),
      compare("remote.webSocket.p50.pipe", "ms", at("webSocket", 0.5), at("pipe", 0.5)),
      compare("remote.socket.p95.pipe", "ms", at("socket", 0.95), at("pipe", 0.95))
    ]
  })
}

const updates = 20_000

export const remoteStream: Bench = {
  about: `${updates.toLocaleString("en-US")} updates in one turn through a sidecar in another process, beside an embedded one`,
  detail: "Counted through turn.updates; the agent writes them one by one, as agents do.",
  run: Effect.fnUntraced(function* (rounds) {
    const contenders = yield* all
    const times = yield* Contenders.alternate(
      rounds(12),
      each((place) => contenders[place].stream(updates, 1))
    )
    const rate = (place: Place) => times[place].map((millis) => (updates / millis) * 1000)
    const goal = { ...atLeast(50_000), of: "value" } as const
    return [
      compare("remoteStream.stdio.embedded", "updates/s", rate("stdio"), rate("embedded")),
      compare("remoteStream.socket.embedded", "updates/s", rate("socket"), rate("embedded"), goal),
      compare("remoteStream.webSocket.embedded", "updates/s", rate("webSocket"), rate("embedded"))
    ]
  })
}
