/**
 * Which sessions may share one process of an agent: a key for each launch, and words for why two of them differ.
 *
 * @since 0.1.0
 */

import * as Digest from "effect/crypto/Digest"
import * as WebCrypto from "effect/crypto/WebCrypto"
import * as Effect from "effect/Effect"
import * as Hex from "effect/encoding/Hex"
import * as Option from "effect/Option"
import type * as Address from "./Address.ts"
import type * as AgentProfile from "./AgentProfile.ts"
import { isAbsolute, scriptIndex } from "./internal/command.ts"
import * as Time from "./internal/time.ts"

/**
 * A launch that a session asks for: the agent, the Vm and folder of the session, and the whole environment that the agent
 * would get, see `AgentProfile.environment`. `sessionEnv` are names of variables that the caller sets for this session
 * alone, besides those that the profile names.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Request {
  readonly profile: AgentProfile.AgentProfile
  readonly vmId: Address.VmId
  readonly cwd: string
  readonly env: Readonly<Record<string, string>>
  readonly sessionEnv?: ReadonlyArray<string> | undefined
}

/**
 * Who is together in one process of an agent: nobody (`none`), the sessions of one Vm, those of all Vms of the sidecar, or
 * those of all Vms of a named `group`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Reach = "none" | "vm" | "sidecar" | "group"

/**
 * What tells launches apart. Two of one sidecar whose `key` is the same may share a process where `reach` is not `none`,
 * see {@link canShare}. It holds names and keyed digests, and no value of a variable, no argument and no path; without the
 * salt nothing can be tried on it.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface LaunchIdentity {
  /** 32 hex digits. */
  readonly key: string
  readonly agent: string
  readonly reach: Reach
  /** @internal A digest of each part, for `explain`. */
  readonly parts: {
    readonly scope: string
    readonly command: string
    readonly args: string
    /** Of the session's folder where the launch depends on it; "" where it doesn't. */
    readonly folder: string
    readonly home: ReadonlyMap<string, string>
    readonly env: ReadonlyMap<string, string>
  }
}

/**
 * A new secret salt of 32 random bytes from Effect's `WebCrypto`. A sidecar has one for all its identities: those of
 * different salts have nothing in common, and whoever has the salt can try out what a value may have been.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const salt: Effect.Effect<Uint8Array> = WebCrypto.WebCrypto.use((crypto) =>
  Effect.sync(() => crypto.getRandomValues(new Uint8Array(32)))
)

/**
 * The identity of a launch. It depends on the agent's name, command and arguments, on the environment but for the
 * variables that name a session, on the folders that the profile's `homeEnv` names, and on the scope of sharing with the
 * Vm or group in it. The session's folder only counts where something would be found from it: a relative command, script,
 * `./argument`, entry of PATH or home folder. The same content gives the same identity, whichever objects it is in.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (request: Request, salt: Uint8Array | string): LaunchIdentity => {
  const { profile } = request
  const digest = hmac(salt)
  const [command, ...args] = profile.command
  const isHome = homes(profile)
  const isSession = sessionVariables(request)
  const names = Object.keys(request.env)
    .filter((name) => !isSession(name))
    .sort()
  const digests = (kind: string, some: ReadonlyArray<string>): ReadonlyMap<string, string> =>
    // The name is in it, so that it doesn't show which variables have the same value.
    new Map(some.map((name) => [name, digest(kind, name, request.env[name]!)]))
  const scope = scopeOf(request)
  const parts: LaunchIdentity["parts"] = {
    scope: digest("scope", ...scope),
    command: digest("command", command),
    args: digest("args", ...args),
    folder: dependsOnFolder(request, isHome) ? digest("folder", request.cwd) : "",
    home: digests("home", names.filter(isHome)),
    env: digests(
      "env",
      names.filter((name) => !isHome(name))
    )
  }
  const key = digest(
    "key",
    profile.name,
    parts.scope,
    parts.command,
    parts.args,
    parts.folder,
    JSON.stringify([...parts.home]),
    JSON.stringify([...parts.env])
  )
  return { key, agent: profile.name, reach: scope[0], parts }
}

/**
 * The environment that the process of a launch gets. One that sessions may share gets none of the variables that name a
 * session; one of a single session gets them all.
 *
 * @stability unstable
 * @category environment
 * @since 0.1.0
 */
export const processEnv = (request: Request): Readonly<Record<string, string>> => {
  if (request.profile.share === false) return request.env
  const isSession = sessionVariables(request)
  return Object.fromEntries(Object.entries(request.env).filter(([name]) => !isSession(name)))
}

/**
 * The problem with how a profile shares, in words that follow its name, if there is one. `sessionEnv` are the caller's own
 * names. No text of the profile but names of variables is in it.
 *
 * @stability unstable
 * @category validation
 * @since 0.1.0
 */
export const problem = ({ profile, sessionEnv }: Pick<Request, "profile" | "sessionEnv">): string | undefined => {
  const { share } = profile
  if (share === false) return undefined
  if (typeof share !== "object" || share === null) {
    return "share must be false, or what AgentProfile.sharing gives"
  }
  if (typeof share.scope !== "string" || share.scope === "") {
    return 'share.scope must be "vm", "sidecar" or the name of a group'
  }
  if (share.maxSessions !== null && !(Number.isSafeInteger(share.maxSessions) && share.maxSessions > 0)) {
    return "share.maxSessions must be a whole number above 0, or null"
  }
  if (share.whenFull !== "another" && share.whenFull !== "refuse") {
    return 'share.whenFull must be "another" or "refuse"'
  }
  if (share.idleTime !== null && Option.isNone(Time.parse(share.idleTime))) {
    return 'share.idleTime must be a time such as "5 seconds", or null'
  }
  const needed = [...profile.sessionEnv, ...(sessionEnv ?? [])].filter(kept(profile))
  if (needed.length > 0) {
    return `sessionEnv can't have ${list(needed)}, by which the agent or its profile is found`
  }
  return undefined
}

/**
 * The beginning of the key, 12 hex digits, for people.
 *
 * @stability unstable
 * @category formatting
 * @since 0.1.0
 */
export const short = (identity: LaunchIdentity): string => identity.key.slice(0, 12)

/**
 * Whether two launches of one sidecar are the same. Sessions of an agent that doesn't share have processes of their own
 * all the same, see {@link canShare}.
 *
 * @stability unstable
 * @category comparison
 * @since 0.1.0
 */
export const equals = (a: LaunchIdentity, b: LaunchIdentity): boolean => a.key === b.key

/**
 * Whether two sessions with these identities may be in one process.
 *
 * @stability unstable
 * @category comparison
 * @since 0.1.0
 */
export const canShare = (a: LaunchIdentity, b: LaunchIdentity): boolean => a.reach !== "none" && equals(a, b)

/**
 * Says in one sentence why two sessions share a process or don't: everything that differs, variables by name, and no
 * value. Both identities must have been made with the same salt.
 *
 * @stability unstable
 * @category formatting
 * @since 0.1.0
 */
export const explain = (a: LaunchIdentity, b: LaunchIdentity): string => {
  const reasons = [...unshared(a, b), ...differences(a, b)]
  return reasons.length > 0
    ? `They don't share: ${reasons.join("; ")}.`
    : `They share one process: it serves ${served[a.reach]}, and agent, command, arguments and profile folder are the same, as is the environment but for what names a session.`
}

const served = {
  none: "one session",
  vm: "the sessions of their Vm",
  sidecar: "all Vms of the sidecar",
  group: "the Vms of their group"
} as const

const unshared = (a: LaunchIdentity, b: LaunchIdentity): ReadonlyArray<string> => {
  const alone = [a, b].filter(({ reach }) => reach === "none").map(({ agent }) => shown(agent))
  const agents = [...new Set(alone)].join(" and ")
  return alone.length === 0
    ? []
    : [`each session of ${agents} has a process of its own, since its profile says share: false`]
}

const differences = (a: LaunchIdentity, b: LaunchIdentity): ReadonlyArray<string> => {
  const reasons: Array<string> = []
  if (a.agent !== b.agent) reasons.push(`one is ${shown(a.agent)}, the other ${shown(b.agent)}`)
  if (a.reach !== b.reach) {
    // Of one that doesn't share it has been said.
    if (a.reach !== "none" && b.reach !== "none")
      reasons.push(`one process serves ${served[a.reach]}, the other ${served[b.reach]}`)
  } else if (a.parts.scope !== b.parts.scope) {
    reasons.push(a.reach === "vm" ? "they are in different Vms" : "they are in different groups")
  }
  if (a.parts.command !== b.parts.command) reasons.push("the command is another one")
  if (a.parts.args !== b.parts.args) reasons.push("the command has other arguments")
  const home = differing(a.parts.home, b.parts.home)
  if (home.length > 0) reasons.push(`the profile folder differs in ${list(home)}`)
  const env = differing(a.parts.env, b.parts.env)
  if (env.length > 0) reasons.push(`the environment differs in ${list(env)}`)
  // Where only one of them depends on its folder, the reason for that has been said.
  const dependent = a.parts.folder !== "" && b.parts.folder !== ""
  if (a.parts.folder !== b.parts.folder && (dependent || reasons.length === 0)) {
    reasons.push("the session's folder differs, from which the command, an argument or the profile folder is found")
  }
  return reasons
}

const differing = (a: ReadonlyMap<string, string>, b: ReadonlyMap<string, string>): ReadonlyArray<string> =>
  [...new Set([...a.keys(), ...b.keys()])].filter((name) => a.get(name) !== b.get(name)).sort()

const maxNames = 8

const list = (names: ReadonlyArray<string>): string => {
  const some = names.slice(0, maxNames).map(shown)
  if (names.length > maxNames) some.push(`${names.length - maxNames} more`)
  return some.length === 1 ? some[0]! : `${some.slice(0, -1).join(", ")} and ${some.at(-1)!}`
}

/** A name as it is, or in quotes where it may not read as one; never long. */
const shown = (name: string): string => {
  const cut = name.length > 60 ? `${name.slice(0, 60)}…` : name
  return /^[\w.@/+…-]+$/.test(cut) ? cut : JSON.stringify(cut)
}

const scopeOf = ({ profile, vmId }: Request): readonly [Reach, ...ReadonlyArray<string>] => {
  if (profile.share === false) return ["none"]
  const { scope } = profile.share
  return scope === "vm" ? ["vm", vmId] : scope === "sidecar" ? ["sidecar"] : ["group", scope]
}

const homes = ({ homeEnv }: AgentProfile.AgentProfile): ((name: string) => boolean) => {
  const names = new Set(["HOME", "USERPROFILE", ...homeEnv])
  return (name) => names.has(name)
}

/** Without these a process would be another program, or take the profile of somebody else. */
const kept = (profile: AgentProfile.AgentProfile): ((name: string) => boolean) => {
  const isHome = homes(profile)
  return (name) => name === "PATH" || isHome(name)
}

const sessionVariables = ({ profile, sessionEnv }: Request): ((name: string) => boolean) => {
  const isKept = kept(profile)
  const names = new Set([...profile.sessionEnv, ...(sessionEnv ?? [])])
  return (name) => names.has(name) && !isKept(name)
}

/**
 * Whether something of the launch is found from the session's folder, in which the process starts. The folder as a whole
 * is then part of the identity: what `..` and a link make of a path can't be seen from its text.
 */
const dependsOnFolder = ({ cwd, env, profile }: Request, isHome: (name: string) => boolean): boolean => {
  const [command, ...args] = profile.command
  const hasSlash = /[/\\]/.test(command)
  if (hasSlash && !isAbsolute(command)) return true
  const separator = cwd.startsWith("/") ? ":" : ";"
  if (!hasSlash && env["PATH"] !== undefined && !env["PATH"].split(separator).every(isAbsolute)) return true
  const script = profile.command[scriptIndex(profile.command)]
  if (script !== undefined && !isAbsolute(script)) return true
  if (args.some((argument) => /^\.\.?(?:[/\\]|$)/.test(argument))) return true
  return Object.entries(env).some(([name, value]) => isHome(name) && !isAbsolute(value))
}

/**
 * A keyed digest (HMAC) of a list of texts. It has to be synchronous, since identities are made inside steps that nothing
 * may come between and in simulations that are run again; of Effect's digests MD5 alone is. Its weakness is in collisions
 * that are computed: whoever wants one here, or wants to try values, would need the salt, which never leaves the sidecar.
 */
const hmac = (salt: Uint8Array | string): ((...texts: ReadonlyArray<string>) => string) => {
  const md5 = Digest.md5.implementation!
  const encoder = new TextEncoder()
  const given = typeof salt === "string" ? encoder.encode(salt) : salt
  const key = new Uint8Array(64)
  key.set(given.length > 64 ? md5(given) : given)
  const inner = key.map((byte) => byte ^ 0x36)
  const outer = key.map((byte) => byte ^ 0x5c)
  // As JSON no two lists are the same text, whatever is in them.
  return (...texts) => Hex.encode(md5(joined(outer, md5(joined(inner, encoder.encode(JSON.stringify(texts)))))))
}

const joined = (a: Uint8Array, b: Uint8Array): Uint8Array => {
  const all = new Uint8Array(a.length + b.length)
  all.set(a)
  all.set(b, a.length)
  return all
}
