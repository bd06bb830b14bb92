/**
 * How a kind of agent is launched, and what is known about it.
 *
 * @since 0.1.0
 */
import type * as Duration from "effect/Duration"
import { lastSegment, scriptIndex } from "./internal/command.ts"

/**
 * What an agent does with a second `session/prompt` on a busy session, as measured: `queues` it, `merges` it into the
 * running one, `fails_first` or `cancels_first` (the running one suffers), or `unknown`. The sidecar never sends one
 * unless the limit `maxPromptsPerSession` is raised.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type WhileBusy = "queues" | "merges" | "fails_first" | "cancels_first" | "unknown"

/**
 * How sessions share one process of an agent. Everything but `scope` only bounds a process; the scope says who is
 * together: `vm` the sessions of one Vm, `sidecar` those of all Vms of the sidecar, any other text those of all Vms whose
 * profiles use that text. Sessions share only where command, arguments and environment are the same as well, see
 * `LaunchIdentity`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Sharing {
  readonly scope: "vm" | "sidecar" | (string & {})
  /** Sessions that one process carries at most; `null` is the sidecar's limit. */
  readonly maxSessions: number | null
  /** What becomes of one more: `another` process, or `refuse` it. */
  readonly whenFull: "another" | "refuse"
  /** How long a process without sessions waits for the next one; `null` is the sidecar's limit. */
  readonly idleTime: Duration.Input | null
}

/**
 * A launch recipe: a plain value that apps may write themselves or derive from a built-in one by spreading.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface AgentProfile {
  /** Short name, the same for all launches of this kind. */
  readonly name: string
  /** The command and its arguments. It is never split, and no shell is involved. */
  readonly command: readonly [string, ...ReadonlyArray<string>]
  /** Variables that the agent gets, whatever the host's environment says. */
  readonly env: Readonly<Record<string, string>>
  /** Variables of the host's environment that the agent gets besides the basic ones, when they are set. */
  readonly passEnv: ReadonlyArray<string>
  /**
   * Variables that name one session, such as an app's own id for it. They make no difference between launches, and a
   * process that sessions share doesn't get them.
   */
  readonly sessionEnv: ReadonlyArray<string>
  /** Variables that say where the agent keeps its settings, sign-in and memory, besides HOME. */
  readonly homeEnv: ReadonlyArray<string>
  /** How sessions share one process; `false` gives each its own. */
  readonly share: false | Sharing
  /** What sessions in one process share, as far as that is known. For people. */
  readonly shares: string
  /** What it does with a second prompt while busy. For people; the sidecar does not act on it. */
  readonly whileBusy: WhileBusy
  /** Whether the agent needs an account or a key before it works. */
  readonly needsAuthentication: boolean
  /** The provider of the model, as telemetry names it (`gen_ai.provider.name`). */
  readonly provider: string
  /** How to install it; "" when there is nothing to say. */
  readonly install: string
  /** How its user signs in, outside the sidecar; "" when that is not known. */
  readonly signIn: string
  /** What one should know about it. */
  readonly quirks: ReadonlyArray<string>
}

/**
 * Sharing with all that is left out at its default: the sessions of one Vm, another process when one is full, and the
 * limits of the sidecar. `{ ...AgentProfile.claude, share: AgentProfile.sharing() }` lets an agent share.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const sharing = (options: { readonly [K in keyof Sharing]?: Sharing[K] | undefined } = {}): Sharing => ({
  scope: options.scope ?? "vm",
  maxSessions: options.maxSessions ?? null,
  whenFull: options.whenFull ?? "another",
  idleTime: options.idleTime ?? null
})

/**
 * A profile for any command, with the careful defaults: nothing shared, nothing passed on. `name` is the command's last
 * path segment unless given, or that of the first argument when the command only runs another (`node agent.mjs`).
 * `share: true` shares with all defaults of `sharing`. Nothing is checked here: a profile may as well be written by hand.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (
  options: Pick<AgentProfile, "command"> & {
    readonly [K in Exclude<keyof AgentProfile, "share">]?: AgentProfile[K] | undefined
  } & { readonly share?: boolean | Parameters<typeof sharing>[0] }
): AgentProfile => {
  const share = options.share ?? false
  const name = options.name ?? nameOf(options.command)
  return {
    name,
    command: options.command,
    env: options.env ?? {},
    passEnv: options.passEnv ?? [],
    sessionEnv: options.sessionEnv ?? [],
    homeEnv: options.homeEnv ?? [],
    share: share === false ? false : sharing(share === true ? {} : share),
    shares: options.shares ?? "",
    whileBusy: options.whileBusy ?? "unknown",
    needsAuthentication: options.needsAuthentication ?? false,
    provider: options.provider ?? name,
    install: options.install ?? "",
    signIn: options.signIn ?? "",
    quirks: options.quirks ?? []
  }
}

const nameOf = (command: AgentProfile["command"]): string => lastSegment(command[scriptIndex(command)] ?? command[0])

/**
 * Claude Code, through the adapter `claude-agent-acp`.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const claude: AgentProfile = make({
  name: "claude",
  command: ["claude-agent-acp"],
  passEnv: [
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_MODEL",
    "CLAUDE_CONFIG_DIR",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX"
  ],
  homeEnv: ["CLAUDE_CONFIG_DIR"],
  shares:
    "the adapter, its environment with the sign-in, and the settings files; each session has a claude process of its own, which ends with session/close, and its own folder, options and mode",
  whileBusy: "queues",
  needsAuthentication: true,
  provider: "anthropic",
  install: "npm install -g @agentclientprotocol/claude-agent-acp",
  signIn: "run claude and use /login, or set ANTHROPIC_API_KEY",
  quirks: [
    "starts one claude process per session (about 190 MiB with its adapter), which outlives the adapter by 2 to 5 s",
    "sends session_info_update after a turn's response",
    "honours $/cancel_request",
    "tries a model error of 5xx and a broken answer again for longer than 20 s, in silence"
  ]
})

/**
 * OpenAI Codex, through the adapter `codex-acp`.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const codex: AgentProfile = make({
  name: "codex",
  command: ["codex-acp"],
  passEnv: ["OPENAI_API_KEY", "CODEX_API_KEY", "CODEX_HOME", "OPENAI_BASE_URL", "INITIAL_AGENT_MODE", "MODEL_PROVIDER"],
  homeEnv: ["CODEX_HOME"],
  shares:
    "the adapter and its one codex process: environment, sign-in, settings files and stored sessions; each session has its own folder, options and mode",
  whileBusy: "queues",
  needsAuthentication: true,
  provider: "openai",
  install: "npm install -g @agentclientprotocol/codex-acp",
  signIn: "run codex login, or set OPENAI_API_KEY and authenticate with api-key",
  quirks: [
    "keeps running after the end of its input, so it is ended by a signal",
    "reports a model error as end_turn with the error as text; one of 5xx it tries again about once a second first, for longer than 20 s",
    "asks before a command only when that wants more rights than its mode (INITIAL_AGENT_MODE) gives; a rejected command ends the turn as cancelled",
    "looks for chatgpt.com and github.com at its start, and goes on without them",
    "honours $/cancel_request"
  ]
})

/**
 * Gemini CLI in its ACP mode.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const gemini: AgentProfile = make({
  name: "gemini",
  command: ["gemini", "--acp"],
  passEnv: ["GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_GEMINI_BASE_URL", "GEMINI_MODEL"],
  shares:
    "the one process: environment, sign-in and settings files, and what closed sessions leave in it, for it has no session/close; each session has its own folder and mode",
  whileBusy: "cancels_first",
  needsAuthentication: true,
  provider: "gcp.gemini",
  install: "npm install -g @google/gemini-cli",
  signIn: "run gemini once and choose how to sign in, or set GEMINI_API_KEY",
  quirks: [
    "keeps running after the end of its input, so it is ended by a signal",
    "a second prompt on a busy session cancels the first",
    "answers a model error with the HTTP status as error code; one of 5xx it tries again first, for longer than 20 s"
  ]
})

/**
 * GitHub Copilot CLI in its ACP mode.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const copilot: AgentProfile = make({
  name: "copilot",
  command: ["copilot", "--acp"],
  passEnv: [
    "GH_TOKEN",
    "GITHUB_TOKEN",
    "COPILOT_HOME",
    "COPILOT_MODEL",
    "COPILOT_OFFLINE",
    "COPILOT_PROVIDER_API_KEY",
    "COPILOT_PROVIDER_BASE_URL"
  ],
  homeEnv: ["COPILOT_HOME"],
  shares:
    "the one agent: environment, sign-in and settings files; each session has its own folder, options (allow_all too) and mode",
  whileBusy: "cancels_first",
  needsAuthentication: true,
  provider: "github_copilot",
  install: "npm install -g @github/copilot",
  signIn: "run copilot login",
  quirks: [
    "sends updates before its answer to session/new",
    "a second prompt on a busy session cancels the first",
    "reports a model error as end_turn with the error as text; one of 5xx it tries 5 times again first, and says so",
    "now and then a turn that is cancelled within milliseconds of its prompt goes on until its model has answered, whatever it is told",
    "a grandchild holds its output open for about 2 s after its exit",
    "unpacks itself at its first start in a home folder, which takes seconds"
  ]
})

/**
 * opencode in its ACP mode.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const opencode: AgentProfile = make({
  name: "opencode",
  command: ["opencode", "acp"],
  passEnv: ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY", "OPENCODE_CONFIG"],
  homeEnv: ["OPENCODE_CONFIG"],
  shares:
    "the one process and its port: environment, sign-in and settings files; each session has its own folder, options and mode; MCP servers of one session may reach the others, which was not measured",
  whileBusy: "merges",
  needsAuthentication: true,
  provider: "opencode",
  install: "npm install -g opencode-ai",
  signIn: "run opencode auth login",
  quirks: [
    "about 530 MiB a process, which listens on a port of 127.0.0.1",
    "mostly reports a turn that is cancelled at once as end_turn",
    "asks before a command only where its configuration says so",
    "asks the npm registry for a package at its start, and goes on without it",
    "takes seconds to begin in a folder that is new to its process",
    "tries a model error of 5xx and a broken answer again for longer than 20 s, in silence"
  ]
})

/**
 * Qwen Code in its ACP mode.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const qwen: AgentProfile = make({
  name: "qwen",
  command: ["qwen", "--acp"],
  passEnv: ["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL", "DASHSCOPE_API_KEY"],
  shares:
    "the one agent and its helpers: environment, sign-in and settings files, and what closed sessions leave in it, for it has no session/close; each session has its own folder, options and mode",
  whileBusy: "fails_first",
  needsAuthentication: true,
  provider: "qwen",
  install: "npm install -g @qwen-code/qwen-code",
  signIn: "run qwen once and use /auth, or set OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL",
  quirks: [
    "starts three processes per session (about 330 MiB together); when the first of them is killed, the agent may still end its turn with cancelled",
    "a second prompt on a busy session fails the first",
    "may lose a cancel that comes within milliseconds of its prompt, and takes the one that the sidecar sends after it",
    "tries a model error of 5xx again for longer than 20 s, in silence",
    "sends extension requests without an underscore, which are answered -32601 and do no harm",
    "sends available_commands_update after a turn's response"
  ]
})

/**
 * pi, through the adapter `pi-acp`.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const pi: AgentProfile = make({
  name: "pi",
  command: ["pi-acp"],
  passEnv: [
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "PI_OFFLINE",
    "PI_SKIP_VERSION_CHECK",
    "PI_TELEMETRY"
  ],
  shares:
    "nothing, and must not: opening a session ends the pi process, and the turn, of every other one in its adapter",
  whileBusy: "queues",
  needsAuthentication: true,
  provider: "pi",
  install: "npm install -g pi-acp @earendil-works/pi-coding-agent",
  signIn: "run pi-acp --terminal-login",
  quirks: [
    "starts one pi process per session (about 125 MiB with its adapter); opening one takes about 1.5 s",
    "carries one session a process: another one breaks a running turn without a word, and several opened at once end the adapter with EPIPE",
    "never asks for permission",
    "may lose a cancel that comes within milliseconds of its prompt, and takes the one that the sidecar sends after it",
    "ends a model error of 4xx with end_turn and no word; one of 5xx and a broken answer it tries again after 2, 4 and 8 s, tells of it as message text, and then ends with end_turn"
  ]
})

/**
 * Hermes in its ACP mode. It keeps one profile (memory, credentials) outside the workspace, so all Vms of a
 * sidecar share one process where they agree on command and environment.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const hermes: AgentProfile = make({
  name: "hermes",
  command: ["hermes", "acp"],
  passEnv: ["HERMES_HOME", "OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"],
  homeEnv: ["HERMES_HOME"],
  share: { scope: "sidecar" },
  shares: "its whole profile: memory, credentials and settings; not measured",
  needsAuthentication: true,
  provider: "hermes",
  install: "see the Hermes documentation (Python)",
  quirks: ["keeps memory and credentials in one profile outside the workspace", "not measured by this project"]
})

/**
 * The built-in profiles by name.
 *
 * @stability unstable
 * @category profiles
 * @since 0.1.0
 */
export const builtIn: Readonly<Record<string, AgentProfile>> = {
  claude,
  codex,
  gemini,
  copilot,
  opencode,
  qwen,
  pi,
  hermes
}

/** What any program needs to find its files, its language and its temporary folder. None of these carries a secret. */
const basic = new Set([
  "PATH",
  "HOME",
  "USER",
  "LOGNAME",
  "SHELL",
  "TERM",
  "COLORTERM",
  "LANG",
  "LANGUAGE",
  "TZ",
  "TMPDIR",
  "TMP",
  "TEMP",
  "SSL_CERT_FILE",
  "SSL_CERT_DIR",
  "NODE_EXTRA_CA_CERTS",
  "SYSTEMROOT",
  "PATHEXT",
  "APPDATA",
  "LOCALAPPDATA",
  "USERPROFILE"
])

/**
 * The environment that an agent gets: of the host's only the basic variables (paths, language, folders, `LC_*`,
 * `XDG_*`) and those that the profile names, then the profile's own, then the overlays in order. Nothing else of the
 * host reaches the agent.
 *
 * @stability unstable
 * @category environment
 * @since 0.1.0
 */
export const environment = (
  profile: AgentProfile,
  host: Readonly<Record<string, string | undefined>>,
  ...overlays: ReadonlyArray<Readonly<Record<string, string>> | undefined>
): Readonly<Record<string, string>> => {
  const pass = new Set(profile.passEnv)
  const env: Record<string, string> = {}
  for (const [name, value] of Object.entries(host)) {
    if (value === undefined) continue
    if (basic.has(name) || name.startsWith("LC_") || name.startsWith("XDG_") || pass.has(name)) env[name] = value
  }
  return Object.assign(env, profile.env, ...overlays)
}
