// A thread that ends the process when the other one is caught in a loop without end, and says in which case.
import { writeSync } from "node:fs"
import { isMainThread, Worker, workerData } from "node:worker_threads"

/** How long the event loop may stand still. */
const patience = 60_000

const [beats, caseNumber] = [0, 1]

/** Starts it. What it returns is told the case that is about to run. */
export const start = (seed: number): ((target: string, number: number) => void) => {
  const shared = new Int32Array(new SharedArrayBuffer(8))
  const name = new Uint8Array(new SharedArrayBuffer(32))
  new Worker(new URL(import.meta.url), { workerData: { shared, name, seed } }).unref()
  setInterval(() => Atomics.add(shared, beats, 1), 1000).unref()
  return (target, number) => {
    name.fill(0x20)
    name.set(new TextEncoder().encode(target))
    Atomics.store(shared, caseNumber, number)
  }
}

const watch = ({ name, seed, shared }: { name: Uint8Array; seed: number; shared: Int32Array }): void => {
  const seen = Atomics.load(shared, beats)
  if (Atomics.wait(shared, beats, seen, patience) !== "timed-out" || Atomics.load(shared, beats) !== seen) return
  const target = Buffer.from(name.slice()).toString().trim()
  const flags = `--target ${target} --seed ${seed} --case ${Atomics.load(shared, caseNumber)}`
  writeSync(2, `${target}: FAILED: a loop without end: npm run fuzz -- ${flags}\n`)
  // Nothing gentler reaches a thread that never comes to rest.
  process.kill(process.pid, "SIGKILL")
}

if (!isMainThread) for (;;) watch(workerData)
