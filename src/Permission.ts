/**
 * Questions of an agent to its user, each answered exactly once. An app gives a {@link Policy} and answers through
 * `Session.answer`; the rest is what a session is made of.
 *
 * @since 0.1.0
 */

import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import type * as Fiber from "effect/Fiber"
import type * as Scope from "effect/Scope"
import type { Acp } from "./acp/AcpSchema.ts"
import * as Address from "./Address.ts"
import * as LimitUsage from "./LimitUsage.ts"
import * as SidecarError from "./SidecarError.ts"
import type * as SidecarEvent from "./SidecarEvent.ts"
import type * as SidecarLimits from "./SidecarLimits.ts"

/**
 * A question as a handler sees it. `turnId` is `null` when it came outside any turn.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Question {
  readonly permissionId: string
  readonly address: Address.Address
  readonly turnId: Address.TurnId | null
  readonly toolCall: Acp.ToolCallUpdate
  readonly options: ReadonlyArray<Acp.PermissionOption>
}

/**
 * What a handler decides: one of the offered options by id, `allow` or `reject` (the first offered option of that kind,
 * once before always), or `cancel`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Decision = "allow" | "reject" | "cancel" | { readonly optionId: string }

/**
 * Who answers: a fixed `allow` or `reject` answers at once; `ask` leaves the question open until `Session.answer`, and a
 * function is run for each question. Both of these have `permissionTimeout`; when it passes, or the function fails, the
 * question is answered by rejecting. A function whose question was answered otherwise is interrupted, and nobody waits
 * for its cleanup. `reject` is the default.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type Policy = "allow" | "reject" | "ask" | ((question: Question) => Effect.Effect<Decision, unknown>)

interface Entry {
  readonly question: Question
  readonly answer: Deferred.Deferred<string | null>
  /** What may still settle it: the handler and the deadline. */
  readonly helpers: Array<Fiber.Fiber<unknown>>
}

/**
 * The open questions of one session.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Permissions {
  readonly address: Address.Address
  readonly policy: Policy
  readonly timeout: SidecarLimits.SidecarLimits["permissionTimeout"]
  readonly usage: LimitUsage.LimitUsage
  readonly record: (event: SidecarEvent.SessionEventInput) => void
  /** Why a question ends when the fiber that waits for its answer is interrupted. */
  readonly interruptedBy: () => SidecarEvent.AnsweredBy
  /**
   * Owns the fibers of handlers. It outlives the session: a handler of the app that can't be interrupted then keeps the
   * app's own scope from closing, and not the session.
   */
  readonly supervisor: Scope.Scope
  /** @internal */
  readonly open: Map<string, Entry>
  /** @internal Who answered the last ones, for a second answer. */
  readonly answered: Map<string, SidecarEvent.AnsweredBy>
  /** @internal Turns that are being cancelled: what is asked in them now is answered as cancelled. */
  readonly cancelling: Set<Address.TurnId>
  /** @internal Set once the session has ended: whatever is asked from then on is answered as cancelled. */
  endedBy: SidecarEvent.AnsweredBy | undefined
  /** @internal */
  count: number
}

const remembered = 64

/**
 * The empty set of questions of a session.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const make = (
  options: Pick<Permissions, "address" | "policy" | "timeout" | "usage" | "record" | "interruptedBy" | "supervisor">
): Permissions => ({
  ...options,
  open: new Map(),
  answered: new Map(),
  cancelling: new Set(),
  endedBy: undefined,
  count: 0
})

const kinds = {
  allow: ["allow_once", "allow_always"],
  reject: ["reject_once", "reject_always"]
} as const

/**
 * The option that a decision means, `null` when the agent offered none of that kind (or for `cancel`): the question is
 * then answered as cancelled, which allows nothing.
 *
 * @stability unstable
 * @category decisions
 * @since 0.1.0
 */
export const choose = (decision: Decision, options: ReadonlyArray<Acp.PermissionOption>): string | null => {
  if (typeof decision === "object") return decision.optionId
  if (decision === "cancel") return null
  for (const kind of kinds[decision]) {
    const option = options.find((candidate) => candidate.kind === kind)
    if (option !== undefined) return option.optionId
  }
  return null
}

/** Removing the entry is what decides who was first. */
const settle = (
  self: Permissions,
  entry: Entry,
  optionId: string | null,
  answeredBy: SidecarEvent.AnsweredBy
): boolean => {
  const { permissionId, turnId } = entry.question
  if (self.open.get(permissionId) !== entry) return false
  self.open.delete(permissionId)
  LimitUsage.release(self.usage)
  remember(self, permissionId, answeredBy)
  self.record({ _tag: "PermissionAnswered", permissionId, turnId, optionId, answeredBy })
  Deferred.doneUnsafe(entry.answer, Exit.succeed(optionId))
  for (const helper of entry.helpers) helper.interruptUnsafe()
  return true
}

const remember = (self: Permissions, permissionId: string, answeredBy: SidecarEvent.AnsweredBy): void => {
  self.answered.set(permissionId, answeredBy)
  if (self.answered.size > remembered) self.answered.delete(self.answered.keys().next().value!)
}

const response = (optionId: string | null): Acp.RequestPermissionResponse =>
  optionId === null ? { outcome: { outcome: "cancelled" } } : { outcome: { outcome: "selected", optionId } }

/**
 * Asks a question and gives the answer for the agent. It ends exactly once, whatever happens: by the user, the policy,
 * a handler, the deadline, {@link cancel} or interruption. `turnOf` says which turn it belongs to, in the very step that
 * tells of it. Beyond the limit of open questions it is rejected at once; a fixed policy leaves none open, so it has no
 * limit.
 *
 * @stability unstable
 * @category asking
 * @since 0.1.0
 */
export const ask = (
  self: Permissions,
  request: Acp.RequestPermissionRequest,
  turnOf: () => Address.TurnId | null
): Effect.Effect<Acp.RequestPermissionResponse> =>
  Effect.uninterruptibleMask((restore) => {
    const turnId = turnOf()
    const question: Question = {
      permissionId: `permission-${++self.count}`,
      address: turnId === null ? self.address : Address.withTurn(self.address, turnId),
      turnId,
      toolCall: request.toolCall,
      options: request.options
    }
    const { permissionId } = question
    const asked = {
      _tag: "PermissionAsked",
      permissionId,
      turnId,
      toolCall: question.toolCall,
      options: question.options
    } as const
    const atOnce = (decision: Decision, by: SidecarEvent.AnsweredBy) => {
      const optionId = choose(decision, question.options)
      remember(self, permissionId, by)
      self.record(asked)
      self.record({ _tag: "PermissionAnswered", permissionId, turnId, optionId, answeredBy: by })
      return Effect.succeed(response(optionId))
    }
    if (self.endedBy !== undefined) return atOnce("cancel", self.endedBy)
    if (turnId !== null && self.cancelling.has(turnId)) return atOnce("cancel", "cancel")
    if (self.policy === "allow" || self.policy === "reject") return atOnce(self.policy, "policy")
    if (LimitUsage.isFull(self.usage)) return atOnce("reject", "limit")

    const entry: Entry = { question, answer: Deferred.makeUnsafe(), helpers: [] }
    self.open.set(permissionId, entry)
    LimitUsage.take(self.usage)
    // Once it is open: a reader may answer within this very call.
    self.record(asked)
    const deadline = Effect.andThen(
      Effect.sleep(self.timeout),
      Effect.sync(() => settle(self, entry, choose("reject", question.options), "deadline"))
    )
    return help(self, entry, deadline).pipe(
      Effect.andThen(
        typeof self.policy === "function" ? help(self, entry, handle(self, entry, self.policy)) : Effect.void
      ),
      // Waits for nothing but the answer, so that it leaves in the very step that settles the question: before what
      // comes next, such as `session/cancel` or the end of the connection.
      Effect.andThen(restore(Deferred.await(entry.answer))),
      Effect.onInterrupt(() => Effect.sync(() => settle(self, entry, null, self.interruptedBy()))),
      Effect.map(response)
    )
  })

/**
 * Runs what may settle the question, on its own: its cleanup holds up neither the agent's answer nor the end of the
 * turn or the session. {@link settle}, which always comes, ends it.
 */
const help = (self: Permissions, entry: Entry, work: Effect.Effect<unknown>): Effect.Effect<void> =>
  Effect.map(Effect.forkIn(work, self.supervisor, { startImmediately: true }), (fiber) => {
    entry.helpers.push(fiber)
    if (self.open.get(entry.question.permissionId) !== entry) fiber.interruptUnsafe()
  })

const handle = (
  self: Permissions,
  entry: Entry,
  handler: (question: Question) => Effect.Effect<Decision, unknown>
): Effect.Effect<void> => {
  const { address, options } = entry.question
  const rejected = choose("reject", options)
  return Effect.suspend(() => handler(entry.question)).pipe(
    Effect.map((decision) => {
      const chosen = choose(decision, options)
      return chosen === null || options.some((option) => option.optionId === chosen) ? chosen : rejected
    }),
    // A handler that breaks must not leave the question open, and never allows.
    Effect.catchCause((cause) =>
      Effect.as(
        Effect.logError(`The permission handler failed for ${Address.format(address)}; rejecting`, cause),
        rejected
      )
    ),
    Effect.map((optionId) => void settle(self, entry, optionId, "handler"))
  )
}

/**
 * Answers an open question on the user's behalf. Fails with `InvalidPermissionOption` for an option that was not
 * offered (the question stays open) and with `PermissionNotPending` when it is not open (any more).
 *
 * @stability unstable
 * @category answering
 * @since 0.1.0
 */
export const answer = (
  self: Permissions,
  permissionId: string,
  decision: Decision
): Effect.Effect<void, SidecarError.InvalidPermissionOption | SidecarError.PermissionNotPending> =>
  Effect.suspend((): Effect.Effect<void, SidecarError.InvalidPermissionOption | SidecarError.PermissionNotPending> => {
    const entry = self.open.get(permissionId)
    if (entry === undefined) {
      return Effect.fail(
        new SidecarError.PermissionNotPending({
          address: self.address,
          permissionId,
          answeredBy: self.answered.get(permissionId) ?? null
        })
      )
    }
    const { options } = entry.question
    if (typeof decision === "object" && !options.some((option) => option.optionId === decision.optionId)) {
      return Effect.fail(
        new SidecarError.InvalidPermissionOption({
          address: self.address,
          permissionId,
          given: decision.optionId,
          valid: options.map((option) => option.optionId)
        })
      )
    }
    settle(self, entry, choose(decision, options), "user")
    return Effect.void
  })

/**
 * Answers open questions as cancelled: those of one turn, or all. What is still asked while that turn is being cancelled,
 * or after all were, is answered as cancelled at once. Never waits.
 *
 * @stability unstable
 * @category answering
 * @since 0.1.0
 */
export const cancel = (self: Permissions, by: SidecarEvent.AnsweredBy, turnId?: Address.TurnId): void => {
  if (turnId === undefined) self.endedBy ??= by
  else if (by === "cancel") self.cancelling.add(turnId)
  else self.cancelling.delete(turnId)
  for (const entry of Array.from(self.open.values())) {
    if (turnId === undefined || entry.question.turnId === turnId) settle(self, entry, null, by)
  }
}

/**
 * Answers all open questions as cancelled, as the agent that asked them has ended. What is asked from then on, by the next
 * one, is asked as ever. Never waits.
 *
 * @stability unstable
 * @category answering
 * @since 0.1.0
 */
export const crash = (self: Permissions): void => {
  self.cancelling.clear()
  for (const entry of Array.from(self.open.values())) settle(self, entry, null, "crash")
}

/**
 * The questions that are open now.
 *
 * @stability unstable
 * @category getters
 * @since 0.1.0
 */
export const pending = (self: Permissions): ReadonlyArray<Question> =>
  Array.from(self.open.values(), (entry) => entry.question)
