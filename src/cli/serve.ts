// acp-sidecar serve: the sidecar as a process that apps connect to.
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { resolve } from "node:path"
import { badInput, exitCode } from "./failure.ts"
import * as Interrupts from "./Interrupts.ts"

/** `HOST:PORT`, where an IPv6 address has brackets. */
const parsePlace = (text: string): { readonly host: string; readonly port: number } | undefined => {
  const [, host, digits] = /^(\[[^\]]+\]|[^:\s]+):(\d{1,5})$/.exec(text) ?? []
  const port = Number(digits)
  return host === undefined || port > 65_535 ? undefined : { host, port }
}

export const serve = Command.make(
  "serve",
  {
    stdio: Flag.Boolean("stdio").pipe(
      Flag.withDescription("One client, over stdin and stdout; it ends when that goes away"),
      Flag.withDefault(false)
    ),
    socket: Flag.String("socket").pipe(
      Flag.withMetavar("PATH"),
      Flag.withDescription("Any number of clients, over a Unix domain socket that this user alone may connect to"),
      Flag.optional
    ),
    listen: Flag.String("listen").pipe(
      Flag.withMetavar("127.0.0.1:PORT"),
      Flag.withDescription(
        "Any number of clients, over a WebSocket on loopback that asks for a token; port 0: any free one"
      ),
      Flag.optional
    ),
    tokenFile: Flag.String("token-file").pipe(
      Flag.withMetavar("FILE"),
      Flag.withDescription(
        "The token that clients have to give; the file has to be its user's alone (0600) and is made if it is missing"
      ),
      Flag.optional
    ),
    id: Flag.String("id").pipe(
      Flag.withMetavar("ID"),
      Flag.withDescription("The id of the sidecar (default: acp-sidecar- and a UUID)"),
      Flag.optional
    ),
    exitWhenUnused: Flag.Boolean("exit-when-unused").pipe(
      Flag.withDescription("End when the last client has gone, or none has come within 30 s"),
      Flag.withDefault(false)
    ),
    parent: Flag.Int("parent").pipe(
      Flag.withMetavar("PID"),
      Flag.withDescription(
        "End when this process has ended (--stdio: also when the process that started this one has)"
      ),
      Flag.optional
    ),
    json: Flag.Boolean("json").pipe(
      Flag.withDescription("When it listens, one line on stdout: { socket | url, pid, sidecarId, tokenFile? }"),
      Flag.withDefault(false)
    )
  },
  Effect.fnUntraced(function* ({ exitWhenUnused, json, ...given }) {
    // A signal is how it is meant to end.
    const ending = yield* Interrupts.Ending
    ending.code = exitCode.done
    ending.verb = "ending"
    const socket = Option.getOrUndefined(given.socket)
    const listen = Option.getOrUndefined(given.listen)
    const id = Option.getOrUndefined(given.id)
    const parent = Option.getOrUndefined(given.parent)
    const tokenFile = Option.map(given.tokenFile, (path) => (path === "" ? "" : resolve(path)))
    const ways = [given.stdio, socket !== undefined, listen !== undefined].filter((isGiven) => isGiven).length
    if (ways !== 1) {
      return yield* badInput("Say in one way how clients connect: --stdio, --socket PATH or --listen 127.0.0.1:PORT.")
    }
    if (given.stdio && json) return yield* badInput("--json is not for --stdio, where stdout is the client's.")
    if (socket === "") return yield* badInput("--socket needs a path.")
    if (Option.getOrUndefined(tokenFile) === "") return yield* badInput("--token-file needs a path.")
    const place = listen === undefined ? undefined : parsePlace(listen)
    if (listen !== undefined && place === undefined) {
      return yield* badInput(`--listen ${JSON.stringify(listen)} is not HOST:PORT, such as 127.0.0.1:8123 or [::1]:0.`)
    }
    if (id !== undefined && !/^[^\p{Cc}]{1,256}$/u.test(id)) {
      return yield* badInput("--id has to have 1 to 256 characters, none of which is a control character.")
    }
    if (parent !== undefined && parent < 1) return yield* badInput("--parent has to be the id of a process.")
    // Loaded when it is needed, so that help and mistakes are answered at once.
    const { main } = yield* Effect.promise(() => import("./serving.ts"))
    yield* main({
      way:
        place !== undefined
          ? { _tag: "WebSocket", ...place }
          : socket !== undefined
            ? { _tag: "UnixSocket", path: resolve(socket) }
            : { _tag: "Stdio" },
      tokenFile: Option.getOrUndefined(tokenFile),
      id,
      exitWhenUnused,
      parent,
      isJson: json
    })
  })
).pipe(
  Command.withShortDescription("Run a sidecar that apps connect to"),
  Command.withDescription(
    "Runs a sidecar as a process of its own. Apps connect to it over its stdin and stdout, a Unix domain socket or a " +
      "WebSocket on loopback. Logs go to stderr.\n\n  " +
      "The file of a socket has mode 0600. What a killed sidecar left of it is taken over; where a live one listens, the " +
      "second is refused. A WebSocket asks for a token, without --token-file for a new one; requests with a Host or an " +
      "Origin that is not loopback are refused.\n\n  " +
      "SIGTERM, SIGINT and SIGHUP dispose the sidecar: turns are cancelled, agents ended (ACP_SIDECAR_CANCEL_GRACE, " +
      "ACP_SIDECAR_KILL_GRACE). A second one kills the agents. It disposes itself too when a client asks for it, and when " +
      "its parent dies, which leaves its agents 3 s.\n\n  " +
      "Exit codes: 0 disposed, 1 failed, 2 bad input."
  ),
  Command.withExamples([
    { command: "acp-sidecar serve --socket ~/.acp-sidecar.sock", description: "For all apps of this user" },
    { command: "acp-sidecar serve --stdio", description: "As the child process of one app" },
    {
      command: "acp-sidecar serve --listen 127.0.0.1:8123 --token-file ~/.acp-sidecar.token",
      description: "For apps that know the token"
    },
    {
      command: "acp-sidecar serve --listen 127.0.0.1:0 --json --exit-when-unused > where.json &",
      description: "Where it listens, for a script"
    }
  ])
)
