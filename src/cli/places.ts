// Where the sidecars are that a command is about: what its flags say, ACP_SIDECAR_SOCKET, or the folder of named sidecars.
import * as Effect from "effect/Effect"
import * as Flag from "effect/cli/Flag"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import { lstatSync, readdirSync, readFileSync, statSync } from "node:fs"
import { homedir } from "node:os"
import { isAbsolute, join, normalize, resolve } from "node:path"
import * as StateFolder from "../internal/stateFolder.ts"
import { badInput, type CommandFailure, oneLine } from "./failure.ts"

/** The socket or the WebSocket of a sidecar. `token` is that of its token file. */
export interface Place {
  readonly socket: string | null
  readonly url: string | null
  readonly token: Redacted.Redacted<string> | undefined
}

/** What a command looks at. Where nothing was chosen, `folder` is where the sockets were looked for. */
export interface Places {
  readonly all: ReadonlyArray<Place>
  readonly folder: string | undefined
}

export const flags = {
  socket: Flag.String("socket").pipe(
    Flag.withMetavar("PATH"),
    Flag.withDescription(
      "The socket of the sidecar (default: ACP_SIDECAR_SOCKET, or else the named sidecars of this user)"
    ),
    Flag.optional
  ),
  url: Flag.String("url").pipe(
    Flag.withMetavar("ws://127.0.0.1:PORT"),
    Flag.withDescription("The WebSocket of the sidecar; needs --token-file"),
    Flag.optional
  ),
  tokenFile: Flag.String("token-file").pipe(
    Flag.withMetavar("FILE"),
    Flag.withDescription("The file with the token of the sidecar"),
    Flag.optional
  )
} as const

export interface Given {
  readonly socket: Option.Option<string>
  readonly url: Option.Option<string>
  readonly tokenFile: Option.Option<string>
}

export const nameOf = ({ socket, url }: Place): string => oneLine(socket ?? url ?? "", 300)

const variable = (name: string): string => (process.env[name] ?? "").trim()

/** Where named sidecars have their sockets. */
export const stateFolder = (): string => {
  const own = variable("ACP_SIDECAR_STATE")
  if (own !== "" && own !== "off") return resolve(own)
  return normalize(StateFolder.stateFolder(isAbsolute, variable("XDG_STATE_HOME"), resolve(homedir()))!)
}

const isSocket = (path: string): boolean => lstatSync(path, { throwIfNoEntry: false })?.isSocket() === true

const socketsOf = (folder: string): ReadonlyArray<string> => {
  try {
    return readdirSync(folder)
      .filter((name) => name.endsWith(".sock") && !name.startsWith("."))
      .map((name) => join(folder, name))
      .filter(isSocket)
      .sort()
  } catch {
    // There is no such folder yet.
    return []
  }
}

const tokenOf = (file: string): Effect.Effect<Redacted.Redacted<string>, CommandFailure> =>
  Effect.suspend(() => {
    try {
      // A pipe in its place would be waited for.
      const { size } = statSync(file)
      const token = size > 0 && size <= 4096 ? readFileSync(file, "utf8").trim() : ""
      if (token !== "") return Effect.succeed(Redacted.make(token))
      return Effect.fail(badInput(`--token-file ${JSON.stringify(file)} has no token.`))
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      return Effect.fail(badInput(`--token-file ${JSON.stringify(file)} can't be read (${code}).`))
    }
  })

const isWebSocket = (url: string): boolean => {
  try {
    return ["ws:", "wss:"].includes(new URL(url).protocol)
  } catch {
    return false
  }
}

/** What was chosen, or all named sidecars there are, dead ones included. */
export const find = Effect.fnUntraced(function* (given: Given): Effect.fn.Return<Places, CommandFailure> {
  const socket = Option.getOrUndefined(given.socket)
  const url = Option.getOrUndefined(given.url)
  const tokenFile = Option.getOrUndefined(given.tokenFile)
  if (socket !== undefined && url !== undefined) return yield* badInput("Give --socket or --url, not both.")
  const token = tokenFile === undefined ? undefined : yield* tokenOf(tokenFile)
  if (url !== undefined) {
    if (!isWebSocket(url)) return yield* badInput(`--url ${JSON.stringify(url)} is not like ws://127.0.0.1:8123.`)
    if (token === undefined)
      return yield* badInput("--url needs --token-file, the file that the sidecar told of when it started.")
    return { all: [{ socket: null, url, token }], folder: undefined }
  }
  if (socket?.trim() === "") return yield* badInput("--socket is empty.")
  const chosen = socket ?? variable("ACP_SIDECAR_SOCKET")
  if (chosen !== "") return { all: [{ socket: resolve(chosen), url: null, token }], folder: undefined }
  return named(token)
})

const named = (token: Place["token"]): Places => {
  const folder = stateFolder()
  return { all: socketsOf(folder).map((path) => ({ socket: path, url: null, token })), folder }
}

/** All named sidecars, whatever ACP_SIDECAR_SOCKET says. */
export const findNamed = ({ tokenFile }: Given): Effect.Effect<Places, CommandFailure> =>
  Option.isNone(tokenFile) ? Effect.sync(() => named(undefined)) : Effect.map(tokenOf(tokenFile.value), named)

/** What to do where there is none. */
export const howToStart = (folder: string): string =>
  `start one with: acp-sidecar serve --socket ${/^[\w@%+=:,./-]*$/.test(folder) ? folder : `'${folder}'`}/default.sock`
