/**
 * Looks at a prompt before anything is sent.
 *
 * @internal
 */
import type * as Duration from "effect/Duration"
import * as Option from "effect/Option"
import * as Result from "effect/Result"
import type { Acp } from "../acp/AcpSchema.ts"
import type * as Address from "../Address.ts"
import type { Prompt } from "../Session.ts"
import * as SidecarError from "../SidecarError.ts"
import * as SidecarLimits from "../SidecarLimits.ts"

export const blocks = (prompt: Prompt): ReadonlyArray<Acp.ContentBlock> =>
  typeof prompt === "string" ? [{ type: "text", text: prompt }] : prompt

const capability: Readonly<Record<string, keyof Acp.PromptCapabilities>> = {
  image: "image",
  audio: "audio",
  resource: "embeddedContext"
}

/** A prompt as JSON, or what is wrong with it. */
export const json = (
  address: Address.Address,
  limits: SidecarLimits.SidecarLimits,
  capabilities: Acp.AgentCapabilities | null | undefined,
  prompt: ReadonlyArray<Acp.ContentBlock>
): Result.Result<string, SidecarError.InvalidInput | SidecarError.LimitExceeded> => {
  const invalid = (what: string) =>
    Result.fail(new SidecarError.InvalidInput({ address, input: "prompt", problem: what }))
  const over = (limit: "maxPromptBlocks" | "maxPromptBytes", used: number) =>
    Result.fail(
      new SidecarError.LimitExceeded({
        address,
        scope: "turn",
        limit,
        max: limits[limit],
        used,
        setting: SidecarLimits.setting(limit)
      })
    )
  if (!Array.isArray(prompt) || prompt.length === 0) return invalid("it must have at least one content block")
  if (prompt.length > limits.maxPromptBlocks) return over("maxPromptBlocks", prompt.length)
  let text: string | undefined
  try {
    for (const [index, block] of prompt.entries()) {
      const type: unknown = (block as { readonly type?: unknown } | null)?.type
      if (typeof type !== "string") return invalid(`block ${index} is not a content block with a type`)
      const needed = capability[type]
      if (needed !== undefined && capabilities?.promptCapabilities?.[needed] !== true) {
        return invalid(`this agent does not take blocks of type "${type}"`)
      }
    }
    text = JSON.stringify(prompt)
  } catch {
    // A cycle, a bigint, or a getter that throws.
  }
  if (text === undefined) return invalid("it can't be written as JSON")
  // A UTF-16 unit is at most three bytes of UTF-8; only near the limit is it worth counting.
  const bytes = text.length * 3 <= limits.maxPromptBytes ? text.length : new TextEncoder().encode(text).length
  return bytes > limits.maxPromptBytes ? over("maxPromptBytes", bytes) : Result.succeed(text)
}

/** What is wrong with a choice, if anything is: it may come from a program without types. */
export const noChoice = (
  address: Address.Address,
  input: "lane" | "onBusy",
  given: string,
  choices: ReadonlyArray<string>
): SidecarError.InvalidInput | undefined =>
  choices.includes(given)
    ? undefined
    : new SidecarError.InvalidInput({ address, input, problem: `it must be one of ${choices.join(", ")}` })

/** What is wrong with a time, if anything is. */
export const noTime = (
  address: Address.Address,
  input: "idleTimeout" | "wallTimeout",
  time: Option.Option<Duration.Duration>
): SidecarError.InvalidInput | undefined =>
  Option.isSome(time)
    ? undefined
    : new SidecarError.InvalidInput({ address, input, problem: `it must be a time such as "10 seconds"` })
