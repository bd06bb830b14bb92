// All benches by name.
import { dispose } from "./benches/dispose.ts"
import { flood } from "./benches/flood.ts"
import { idle } from "./benches/idle.ts"
import { isolation } from "./benches/isolation.ts"
import { latency } from "./benches/latency.ts"
import { memory } from "./benches/memory.ts"
import { start } from "./benches/start.ts"
import { burst, throughput } from "./benches/streaming.ts"
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
  idle,
  dispose,
  start
}
