// What is wrong with an agent, and what to do about it, in words. Pure.
import type { Acp } from "../acp/AcpSchema.ts"
import type { AgentProfile } from "../AgentProfile.ts"
import type * as SidecarError from "../SidecarError.ts"
import type { End } from "./ending.ts"
import { oneLine } from "./failure.ts"
import { seconds } from "./chart.ts"

/** A finding: what is wrong, and what to do, each without a full stop; nothing can be done where `advice` is "". */
export interface Finding {
  readonly what: string
  readonly advice: string
}

/** How far an agent was brought; `authenticate` and `session/prompt` only on request. */
export type Phase = SidecarError.AgentStartFailed["phase"] | "session/prompt"

/** The reasons of a start, and that of a prompt that took too long. */
export type Reason = SidecarError.StartReason | { readonly _tag: "TimedOut"; readonly millis: number }

export interface Facts {
  readonly profile: AgentProfile
  /** The program, where it was found; `null` when it is not on PATH. */
  readonly path: string | null
  readonly phase: Phase
  /** How long that phase took. */
  readonly phaseMillis: number
  readonly stderr: string
  /** What came on stdout: bytes, lines of ACP, and others. */
  readonly bytes: number
  readonly frames: number
  readonly noise: number
  readonly noiseSample: string
  readonly malformed: number
  readonly malformedSample: string
  readonly authMethods: ReadonlyArray<Acp.AuthMethod>
  /** The method that was asked for. */
  readonly authenticate: string | undefined
}

/** A line that was meant as a message, and is none. */
export const isBrokenJson = (noise: string): boolean => /^\s*\{.*"(?:jsonrpc|method|result|id)"\s*:/s.test(noise)

const quoted = (text: string, max = 160): string => JSON.stringify(oneLine(text, max))

/** The last lines of stderr that say something, on one line. */
const lastWords = (stderr: string): string => {
  const lines = stderr.split("\n").filter((line) => line.trim() !== "")
  // The stack under an error says less than the error.
  const telling = lines.filter((line) => !/^\s+at |^Node\.js v|^\s*\^+\s*$/.test(line))
  const error = telling.findLast((line) => /error|cannot|not found|invalid|unknown|fail/i.test(line))
  return oneLine(error ?? telling.slice(-2).join(" | "), 300)
}

const commandLine = ({ profile }: Facts): string => oneLine(profile.command.join(" "), 200)

const orUpdate = ({ profile }: Facts): string =>
  profile.install.startsWith("npm ") ? `update it (${profile.install})` : "update it"

const signInCommand = (method: Acp.AuthMethod, command: ReadonlyArray<string>): string | undefined => {
  const { args, type } = method as { readonly type?: unknown; readonly args?: unknown }
  if (type !== "terminal") return undefined
  return [...command, ...(Array.isArray(args) ? args.map(String) : [])].join(" ")
}

/** The ways to sign in, most direct first: what its profile knows, what its methods say, and ours. */
export const signIn = (facts: Pick<Facts, "authMethods" | "profile">): string => {
  const { authMethods, profile } = facts
  const own = [
    ...(profile.signIn === "" ? [] : [profile.signIn]),
    ...authMethods.flatMap((method) => {
      const command = signInCommand(method, profile.command)
      return command === undefined || profile.signIn.includes(command) ? [] : [`run ${oneLine(command, 200)}`]
    })
  ]
  // A method of the terminal must not be asked for over the wire.
  const overWire = authMethods.filter((method) => signInCommand(method, profile.command) === undefined)
  const first = own.length === 0 ? "sign in with the agent's own command" : own.join(", or ")
  if (overWire.length === 0) return first
  const ids = overWire.map(({ id }) => oneLine(id, 60)).join(", ")
  return `${first}, or let it do so by --authenticate METHOD (${ids})`
}

const afterExit = (facts: Facts, code: number | null): string => {
  const { profile, stderr } = facts
  if (code === 127 || (/: not found|No such file/i.test(stderr) && /^(?:env|sh|\/\S*sh):/m.test(stderr)))
    return "a program that it needs is missing: look at its stderr, and check PATH"
  if (code === 126) return "a program that it needs may not be run: look at its stderr, and check the permissions"
  if (/Cannot find (?:module|package)|MODULE_NOT_FOUND/.test(stderr))
    return profile.install === ""
      ? "install it again: a part of it is missing"
      : `install it again, since a part of it is missing: ${profile.install}`
  if (/(?:unknown|unrecognized|unexpected|invalid)\s+(?:option|argument|flag|command|subcommand)/i.test(stderr))
    return `it does not know its arguments: check ${quoted(commandLine(facts))}, or ${orUpdate(facts)}`
  if (/SyntaxError|unsupported engine|requires? node/i.test(stderr))
    return "it may need a newer Node: see node --version in the PATH that it gets"
  if (code === 0) return `it may not be in ACP mode: check the arguments of ${quoted(commandLine(facts))}`
  return `look at its stderr, and run it by hand to see more: ${commandLine(facts)}`
}

const beforeAnswer = (phase: Phase): string => {
  switch (phase) {
    case "spawn":
    case "initialize":
      return "before it answered initialize"
    default:
      return `in ${phase}`
  }
}

const spawn = (reason: Extract<Reason, { readonly _tag: "SpawnError" }>, facts: Facts): Finding => {
  const { profile } = facts
  const path = facts.path ?? profile.command[0]
  if (reason.subject === "folder")
    return {
      what: `it can't be started in the folder ${quoted(reason.cwd)} (${reason.code})`,
      advice: "give another one with --cwd"
    }
  switch (reason.code) {
    case "ENOENT":
      if (facts.path === null)
        return {
          what: `it is not installed: its command ${oneLine(profile.command[0], 200)} is not on PATH`,
          advice: profile.install === "" ? "install it, or give its full path" : `install it: ${profile.install}`
        }
      return {
        what: `its program ${quoted(path)} does not exist, or the one that its first line (#!) names`,
        advice: profile.install === "" ? "check the path" : `install it: ${profile.install}`
      }
    case "EACCES":
      return {
        what: `its program ${quoted(path)} may not be executed (EACCES)`,
        advice: "check its permissions, as with chmod +x, and those of the folders above it"
      }
    case "ENOEXEC":
      return {
        what: `its program ${quoted(path)} is neither a binary nor a script with a first line that starts with #!`,
        advice: "give the interpreter too, as in doctor 'node agent.mjs'"
      }
    default:
      return {
        what: `its program ${quoted(path)} could not be started (${reason.code})`,
        advice: "check the command and its arguments"
      }
  }
}

const silence = (facts: Facts, millis: number): Finding => {
  const { bytes, frames, noise, noiseSample, phase, stderr } = facts
  const time = `${Number(seconds(millis))} s`
  const words = stderr.trim() === "" ? "" : `; on stderr it last wrote: ${lastWords(stderr)}`
  const broken = facts.malformed > 0 ? facts.malformedSample : isBrokenJson(noiseSample) ? noiseSample : ""
  if (phase === "initialize" && frames === 0 && broken !== "")
    return {
      what: `what it writes to stdout is broken JSON-RPC, such as ${quoted(broken)}${words}`,
      advice: `each message has to be one line of JSON: ${orUpdate(facts)}, or tell its authors`
    }
  if (phase === "initialize" && frames === 0 && noise > 0)
    return {
      what: `it is no ACP agent: within ${time} it wrote ${noise} ${noise === 1 ? "line" : "lines"} that are not ACP, such as ${quoted(noiseSample)}, and no answer${words}`,
      advice: `check that ${quoted(commandLine(facts))} starts it in ACP mode`
    }
  if (phase === "initialize" && frames === 0)
    return {
      what: `it did not answer initialize within ${time} and wrote ${bytes === 0 ? "nothing" : "no whole line"} to stdout${words}`,
      advice: `check that ${quoted(commandLine(facts))} starts it in ACP mode and that it does not wait for a terminal; if it is only slow, raise --timeout`
    }
  const cause =
    phase === "authenticate"
      ? "it may wait for somebody to sign in, in a browser"
      : "it may wait for the network, for its model or for a sign-in"
  const late =
    phase === "initialize" || phase === "session/prompt"
      ? `it did not answer ${phase} within ${time}`
      : `it had not answered ${phase} after ${seconds(facts.phaseMillis)} s, when the ${time} for the whole start were over`
  return {
    what: `${late}${words}`,
    advice: `${cause}; if it is only slow, raise --timeout`
  }
}

const refused = (reason: Extract<Reason, { readonly _tag: "RequestError" }>, facts: Facts): Finding => {
  const what = `it refused ${reason.method} with error ${reason.code}: ${oneLine(reason.detail, 300)}`
  if (reason.code === -32000 || /sign.?in|log.?in|auth|api.?key|credential/i.test(reason.detail))
    return {
      what: reason.method === "authenticate" ? what : `${what} (it wants its user to sign in)`,
      advice: signIn(facts)
    }
  if (reason.code === -32601) return { what, advice: `it does not know a method of ACP 1: ${orUpdate(facts)}` }
  if (reason.method === "session/prompt")
    return { what, advice: "look at its stderr, its model and its network; a sign-in may be missing too" }
  return { what, advice: "look at its stderr and its settings" }
}

/** What a failure means. */
export const explain = (reason: Reason, facts: Facts): Finding => {
  const { phase, profile } = facts
  switch (reason._tag) {
    case "SpawnError":
      return spawn(reason, facts)
    case "LaunchNotRecorded":
      return {
        what: `its launch can't be recorded in ${quoted(reason.folder)} (${oneLine(reason.problem, 200)})`,
        advice: "give another folder with ACP_SIDECAR_STATE, or set it to off"
      }
    case "ProcessExited": {
      const how = reason.signal === null ? `exited with code ${reason.code}` : `was ended by ${reason.signal}`
      const words = facts.stderr.trim() === "" ? "" : `; its stderr says: ${lastWords(facts.stderr)}`
      const advice =
        reason.signal === null
          ? afterExit(facts, reason.code)
          : reason.signal === "SIGKILL"
            ? "the system may have run out of memory"
            : `look at its stderr, or ${orUpdate(facts)}`
      return { what: `it ${how} ${beforeAnswer(phase)}${words}`, advice }
    }
    case "TransportClosed": {
      const words = facts.stderr.trim() === "" ? "" : `; its stderr says: ${lastWords(facts.stderr)}`
      return {
        what: `it closed its ${reason.side} ${beforeAnswer(phase)} and kept running${words}`,
        advice: `check that ${quoted(commandLine(facts))} starts it in ACP mode, and not in the background`
      }
    }
    case "HostClosed":
    case "NotSupported":
    case "OneSessionOnly":
    case "UnusableSessionId":
    case "HostStillEnding":
    case "StartHeldBack":
      return { what: reason.message, advice: "" }
    case "RequestError":
      return refused(reason, facts)
    case "InvalidResponse":
      return {
        what: `its answer to ${reason.method} is not valid: ${oneLine(reason.detail, 300)}`,
        advice: `${orUpdate(facts)}, or tell its authors`
      }
    case "StartTimedOut":
      return silence(facts, reason.budgetMillis)
    case "TimedOut":
      return silence(facts, reason.millis)
    case "VersionMismatch":
      return {
        what: `it speaks version ${reason.got} of ACP, and version ${reason.offered} was offered`,
        advice:
          reason.got < reason.offered
            ? orUpdate(facts)
            : `install a version of it that speaks version ${reason.offered}, or a newer acp-sidecar`
      }
    case "AuthRequired": {
      const offered = reason.methods.map(({ id }) => oneLine(id, 60)).join(", ")
      if (facts.authenticate !== undefined && !reason.methods.some(({ id }) => id === facts.authenticate))
        return {
          what: `it wants its user to sign in, and does not offer the method ${quoted(facts.authenticate, 60)}`,
          advice: offered === "" ? signIn(facts) : `choose one of ${offered}`
        }
      const detail = oneLine(reason.detail, 200)
      const still = facts.authenticate === undefined ? "" : " still, after authenticate"
      return {
        what: `it wants its user to sign in${still}${detail === "" ? "" : ` (${detail})`}`,
        advice: signIn(facts)
      }
    }
    case "NotAnAcpAgent":
      return {
        what: `it is no ACP agent: it wrote ${reason.noiseLines} lines that are not ACP, such as ${quoted(reason.sample)}, before any answer`,
        advice: profile.install === "" ? "check the command" : "check that it is started in ACP mode"
      }
  }
}

/** What is odd about how it ended, although it works. */
export const ofEnd = (end: End, graceMillis: number): ReadonlyArray<Finding> => {
  const grace = `${Number(seconds(graceMillis))} s`
  return [
    ...(end.by === "KILL"
      ? [
          {
            what: `it ignores the end of its input and TERM, so each close of a session takes ${grace}`,
            advice: "lower ACP_SIDECAR_KILL_GRACE if that is too long; tell its authors"
          }
        ]
      : []),
    ...(end.left.length === 0
      ? []
      : [
          {
            what: `it leaves processes behind (${[...new Set(end.left)].map((name) => oneLine(name, 40)).join(", ")})`,
            advice: "nothing to do: a sidecar ends its whole process group, as was done now"
          }
        ])
  ]
}

/** What is odd about its stdout, although it works. */
export const ofOutput = (output: {
  readonly noise: number
  readonly noiseSample: string
  readonly malformed: number
  readonly malformedSample: string
  readonly tooLarge: number
}): ReadonlyArray<Finding> => {
  const { malformed, malformedSample, noise, noiseSample, tooLarge } = output
  return [
    ...(noise === 0
      ? []
      : [
          {
            what: `it writes to stdout what is ${isBrokenJson(noiseSample) ? "broken JSON" : "not ACP"}: ${noise} ${noise === 1 ? "line" : "lines"}, such as ${quoted(noiseSample)}`,
            advice: `${noise === 1 ? "it is" : "they are"} skipped; let it log to stderr if it can`
          }
        ]),
    ...(malformed === 0
      ? []
      : [
          {
            what: `${malformed} of its messages ${malformed === 1 ? "is" : "are"} broken JSON-RPC: ${oneLine(malformedSample, 200)}`,
            advice: "they are skipped; update it, or tell its authors"
          }
        ]),
    ...(tooLarge === 0
      ? []
      : [
          {
            what: `${tooLarge} of its messages ${tooLarge === 1 ? "is" : "are"} longer than a line may be`,
            advice: "raise ACP_SIDECAR_MAX_LINE_BYTES"
          }
        ])
  ]
}
