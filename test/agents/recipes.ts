// How each agent is installed, and set up so that it asks the scripted model and nobody else.
import { dirname, join } from "node:path"
import * as AgentProfile from "../../src/AgentProfile.ts"

/** What an agent is set up with. */
export interface Setup {
  /** The folder that its packages are installed in. */
  readonly folder: string
  /** Its own, empty home folder. */
  readonly home: string
  /** Where the scripted model listens on loopback. */
  readonly port: number
}

export interface Recipe {
  readonly profile: AgentProfile.AgentProfile
  /** The versions that were measured; the first package is the one whose version is shown. */
  readonly packages: readonly [string, ...ReadonlyArray<string>]
  readonly env: (setup: Setup) => Readonly<Record<string, string>>
  /** Configuration files by their path in the home folder; an object is written as JSON. */
  readonly files: (setup: Setup) => Readonly<Record<string, string | object>>
}

const key = "scripted-no-key-needed"
const root = ({ port }: Setup) => `http://127.0.0.1:${port}`
const v1 = (setup: Setup) => `${root(setup)}/v1`

const pi: Recipe = {
  profile: AgentProfile.pi,
  packages: ["pi-acp@0.0.34", "@earendil-works/pi-coding-agent@1.6.0"],
  env: () => ({ PI_OFFLINE: "1", PI_SKIP_VERSION_CHECK: "1", PI_TELEMETRY: "0" }),
  files: (setup) => ({
    ".pi/agent/models.json": {
      providers: {
        scripted: {
          baseUrl: v1(setup),
          api: "openai-completions",
          apiKey: key,
          models: [
            {
              id: "scripted",
              name: "Scripted",
              reasoning: false,
              input: ["text"],
              cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
              contextWindow: 100_000,
              maxTokens: 4096
            }
          ]
        }
      }
    },
    ".pi/agent/settings.json": { defaultProvider: "scripted", defaultModel: "scripted", quietStartup: true }
  })
}

const quiet = { privacy: { usageStatisticsEnabled: false }, telemetry: { enabled: false } }

const gemini: Recipe = {
  profile: AgentProfile.gemini,
  packages: ["@google/gemini-cli@0.61.0"],
  env: (setup) => ({
    GEMINI_API_KEY: key,
    GOOGLE_GEMINI_BASE_URL: root(setup),
    GEMINI_MODEL: "gemini-2.5-flash",
    GEMINI_CLI_NO_RELAUNCH: "true",
    GEMINI_CLI_TRUST_WORKSPACE: "true"
  }),
  files: () => ({
    ".gemini/settings.json": {
      security: { auth: { selectedType: "gemini-api-key" } },
      general: { disableAutoUpdate: true },
      ...quiet
    }
  })
}

const qwen: Recipe = {
  profile: AgentProfile.qwen,
  packages: ["@qwen-code/qwen-code@0.24.4"],
  env: (setup) => ({ OPENAI_API_KEY: key, OPENAI_BASE_URL: v1(setup), OPENAI_MODEL: "scripted" }),
  files: () => ({
    ".qwen/settings.json": {
      security: { auth: { selectedType: "openai" } },
      general: { disableAutoUpdate: true, disableUpdateNag: true },
      ...quiet
    }
  })
}

const codex: Recipe = {
  profile: AgentProfile.codex,
  packages: ["@agentclientprotocol/codex-acp@2.6.0"],
  // In its mode "read-only" it asks before a command that wants more rights.
  env: ({ home }) => ({
    CODEX_HOME: join(home, ".codex"),
    CODEX_API_KEY: key,
    SCRIPTED_KEY: key,
    MODEL_PROVIDER: "scripted",
    INITIAL_AGENT_MODE: "read-only",
    NO_BROWSER: "1"
  }),
  files: (setup) => ({
    ".codex/config.toml": `model = "gpt-5.2-codex"
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "Scripted"
base_url = "${v1(setup)}"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
`
  })
}

const claude: Recipe = {
  profile: AgentProfile.claude,
  packages: ["@agentclientprotocol/claude-agent-acp@0.101.0"],
  env: (setup) => ({
    ANTHROPIC_API_KEY: key,
    ANTHROPIC_BASE_URL: root(setup),
    ANTHROPIC_MODEL: "claude-sonnet-4-5",
    CLAUDE_CONFIG_DIR: join(setup.home, ".claude"),
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    DISABLE_TELEMETRY: "1",
    DISABLE_ERROR_REPORTING: "1",
    DISABLE_AUTOUPDATER: "1",
    IS_SANDBOX: "1"
  }),
  files: () => ({
    ".claude/.claude.json": {
      hasCompletedOnboarding: true,
      customApiKeyResponses: { approved: [key], rejected: [] }
    }
  })
}

const opencode: Recipe = {
  profile: AgentProfile.opencode,
  packages: ["opencode-ai@1.18.33"],
  env: ({ home }) => ({
    XDG_CACHE_HOME: join(home, "cache"),
    XDG_CONFIG_HOME: join(home, "config"),
    XDG_DATA_HOME: join(home, "data"),
    XDG_STATE_HOME: join(home, "state"),
    OPENCODE_DISABLE_AUTOUPDATE: "1",
    OPENCODE_DISABLE_DEFAULT_PLUGINS: "1",
    OPENCODE_DISABLE_LSP_DOWNLOAD: "1",
    OPENCODE_DISABLE_MODELS_FETCH: "1"
  }),
  files: (setup) => ({
    "config/opencode/opencode.json": {
      autoupdate: false,
      share: "disabled",
      model: "scripted/scripted",
      small_model: "scripted/scripted",
      permission: { bash: "ask", edit: "ask" },
      provider: {
        scripted: {
          npm: "@ai-sdk/openai-compatible",
          name: "Scripted",
          options: { baseURL: v1(setup), apiKey: key },
          models: { scripted: { name: "Scripted", tool_call: true, limit: { context: 100_000, output: 4096 } } }
        }
      }
    }
  })
}

const copilot: Recipe = {
  profile: AgentProfile.copilot,
  packages: ["@github/copilot@1.0.102"],
  env: (setup) => ({
    COPILOT_HOME: join(setup.home, ".copilot"),
    COPILOT_OFFLINE: "true",
    COPILOT_AUTO_UPDATE: "false",
    COPILOT_PROVIDER_BASE_URL: v1(setup),
    COPILOT_PROVIDER_API_KEY: key,
    COPILOT_MODEL: "scripted"
  }),
  files: () => ({})
}

/** The agents that can be run offline, by name. */
export const recipes: Readonly<Record<string, Recipe>> = { pi, gemini, codex, opencode, qwen, claude, copilot }

/** Name and version of a package such as `@scope/name@1.2.3`. */
export const parsePackage = (text: string): { readonly name: string; readonly version: string } => {
  const at = text.lastIndexOf("@")
  return { name: text.slice(0, at), version: text.slice(at + 1) }
}

/** The arguments of npm that install an agent into its folder. */
export const installArguments = (recipe: Recipe, folder: string): ReadonlyArray<string> => [
  "install",
  "--no-audit",
  "--no-fund",
  "--prefix",
  folder,
  ...recipe.packages
]

/** All of the host's environment that agents get: where programs are, with this Node first, a terminal and a language. */
export const hostEnvironment = (folder: string): Readonly<Record<string, string>> => ({
  PATH: [join(folder, "node_modules/.bin"), dirname(process.execPath), "/usr/local/bin", "/usr/bin", "/bin"].join(":"),
  TERM: "dumb",
  LANG: "C.UTF-8"
})

/** The built-in profile with the recipe's environment over it. Its command is looked for on the PATH of the recipe. */
export const profileOf = (recipe: Recipe, setup: Setup): AgentProfile.AgentProfile => ({
  ...recipe.profile,
  env: {
    ...recipe.profile.env,
    ...hostEnvironment(setup.folder),
    HOME: setup.home,
    ...recipe.env(setup)
  },
  passEnv: []
})
