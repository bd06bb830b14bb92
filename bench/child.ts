// Programs in a Node of their own, for what depends on how old and how full a process is.
import { execFile } from "node:child_process"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"

/** Runs a program of `programs/` and gives the JSON that it printed. */
export const measure = <A>(program: string, ...args: ReadonlyArray<string | number>): Effect.Effect<A> =>
  Effect.promise(
    (signal) =>
      new Promise<A>((resolve, reject) => {
        const file = fileURLToPath(new URL(`programs/${program}`, import.meta.url))
        execFile(process.execPath, ["--expose-gc", file, ...args.map(String)], { signal }, (error, stdout, stderr) => {
          if (error !== null)
            return reject(new Error(`${program} ${args.join(" ")} failed: ${stderr || stdout || error.message}`))
          resolve(JSON.parse(stdout) as A)
        })
      })
  )
