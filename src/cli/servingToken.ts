// The token of a sidecar, in a file that its user alone may read.
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import type * as Scope from "effect/Scope"
import { randomBytes } from "node:crypto"
import {
  closeSync,
  constants,
  fstatSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync
} from "node:fs"
import { tmpdir } from "node:os"
import { dirname, isAbsolute, join } from "node:path"
import { badInput, type CommandFailure } from "./failure.ts"

export interface Token {
  readonly value: Redacted.Redacted<string>
  readonly file: string
}

const longest = 4096

const codeOf = (error: unknown): string => (error as { readonly code?: string } | null)?.code ?? String(error)

/** What is in the file, or why that can't be used; `undefined` when it is not there. */
const read = (file: string): Redacted.Redacted<string> | CommandFailure | undefined => {
  let descriptor: number
  try {
    // A pipe in its place would be waited for.
    descriptor = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK)
  } catch (error) {
    return codeOf(error) === "ENOENT"
      ? undefined
      : badInput(`The token file "${file}" can't be read (${codeOf(error)}).`)
  }
  try {
    const stat = fstatSync(descriptor)
    const { mode, size, uid } = stat
    if (!stat.isFile()) return badInput(`The token file "${file}" is no file.`)
    const user = process.getuid?.()
    if (user !== undefined && uid !== user) {
      return badInput(`The token file "${file}" belongs to another user; give one of your own.`)
    }
    if (user !== undefined && (mode & 0o077) !== 0) {
      return badInput(`Others may use the token file "${file}"; run: chmod 600 "${file}"`)
    }
    if (size > longest) return badInput(`The token file "${file}" has more than ${longest} bytes.`)
    const token = readFileSync(descriptor, "utf8").trim()
    if (token === "") return badInput(`The token file "${file}" is empty; remove it, and one with a token is made.`)
    return Redacted.make(token)
  } finally {
    closeSync(descriptor)
  }
}

/** Whole from its first moment, and never in the place of another one. */
const create = (file: string): void => {
  const unfinished = `${file}.${randomBytes(6).toString("hex")}`
  writeFileSync(unfinished, `${randomBytes(32).toString("base64url")}\n`, { flag: "wx", mode: 0o600 })
  try {
    linkSync(unfinished, file)
  } catch (error) {
    // Somebody else was faster; theirs is read.
    if (codeOf(error) !== "EEXIST") throw error
  } finally {
    rmSync(unfinished, { force: true })
  }
}

/** The token of a file; a file that is not there is made, with a new one. */
export const fromFile = (file: string): Effect.Effect<Token, CommandFailure> =>
  Effect.suspend(() => {
    const before = read(file)
    try {
      if (before === undefined) {
        mkdirSync(dirname(file), { recursive: true, mode: 0o700 })
        create(file)
      }
    } catch (error) {
      return Effect.fail(badInput(`The token file "${file}" can't be made (${codeOf(error)}).`))
    }
    const found = before ?? read(file)
    if (Redacted.isRedacted(found)) return Effect.succeed({ value: found as Redacted.Redacted<string>, file })
    return Effect.fail(found ?? badInput(`The token file "${file}" was removed meanwhile.`))
  })

/** A new token, in a file that goes with the scope. */
export const temporary: Effect.Effect<Token, CommandFailure, Scope.Scope> = Effect.acquireRelease(
  Effect.try({
    try: () => {
      const runtime = process.env["XDG_RUNTIME_DIR"] ?? ""
      return mkdtempSync(join(isAbsolute(runtime) ? runtime : tmpdir(), "acp-sidecar-"))
    },
    catch: (error) => badInput(`No token file can be made (${codeOf(error)}); give one with --token-file.`)
  }),
  (folder) => Effect.sync(() => rmSync(folder, { recursive: true, force: true }))
).pipe(Effect.flatMap((folder) => fromFile(join(folder, "token"))))
