// All benches by name.
import { dispose } from "./benches/dispose.ts"
import { flood } from "./benches/flood.ts"
import { idle } from "./benches/idle.ts"
import { isolation } from "./benches/isolation.ts"
import { latency } from "./benches/latency.ts"
import { memory } from "./benches/memory.ts"
import { neighbour } from "./benches/neighbour.ts"
import { remote, remoteStream } from "./benches/served.ts"
import { remoteEnd, remoteSessions, remoteStart } from "./benches/servedLife.ts"
import { shared } from "./benches/shared.ts"
import { start } from "./benches/start.ts"
import { burst, throughput } from "./benches/streaming.ts"
import { tree } from "./benches/tree.ts"
import { turns } from "./benches/turns.ts"
import type { Bench } from "./figure.ts"

export const benches: Readonly<Record<string, Bench>> = {
  latency,
  throughput,
  burst,
  isolation,
  flood,
  turns,
  memory,
  tree,
  shared,
  neighbour,
  idle,
  dispose,
  start,
  remote,
  remoteStream,
  remoteSessions,
  remoteStart,
  remoteEnd
}
