/**
 * Names of the things a sidecar owns, and where each stands.
 *
 * @since 0.1.0
 */
import * as Schema from "effect/Schema"

/**
 * The name of a sidecar: `acp-sidecar-` and a random part. Unique between processes.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const SidecarId = Schema.String.pipe(Schema.brand("SidecarId"))
/** @since 0.1.0 */
export type SidecarId = typeof SidecarId.Type

/**
 * The name of a Vm, unique within its sidecar.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const VmId = Schema.String.pipe(Schema.brand("VmId"))
/** @since 0.1.0 */
export type VmId = typeof VmId.Type

/**
 * Our own name of a session, unique within its sidecar. The agent's name for it is another string, see
 * `Session.agentSessionId`: two agents may well use the same.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const SessionId = Schema.String.pipe(Schema.brand("SessionId"))
/** @since 0.1.0 */
export type SessionId = typeof SessionId.Type

/**
 * The name of a turn, unique within its sidecar and never used twice.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const TurnId = Schema.String.pipe(Schema.brand("TurnId"))
/** @since 0.1.0 */
export type TurnId = typeof TurnId.Type

/**
 * The name of an agent process, unique within its sidecar and never used twice.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const HostId = Schema.String.pipe(Schema.brand("HostId"))
/** @since 0.1.0 */
export type HostId = typeof HostId.Type

/**
 * Where something stands: a sidecar, a Vm in it, a session in that, a turn in that. The inner parts are left out when
 * the outer thing is meant. An agent process has a `hostId`: one that several sessions share stands in the sidecar alone.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const Address = Schema.Struct({
  sidecarId: SidecarId,
  vmId: Schema.optionalKey(VmId),
  sessionId: Schema.optionalKey(SessionId),
  turnId: Schema.optionalKey(TurnId),
  hostId: Schema.optionalKey(HostId)
})
/** @since 0.1.0 */
export type Address = typeof Address.Type

/**
 * An address as one line: `sidecar/vm/session/turn`, and for a process `sidecar/host`.
 *
 * @stability unstable
 * @category formatting
 * @since 0.1.0
 */
export const format = (address: Address): string =>
  [address.sidecarId, address.vmId, address.sessionId, address.turnId, address.hostId]
    .filter((part) => part !== undefined)
    .join("/")

/**
 * The address of a session's turn.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const withTurn = (address: Address, turnId: TurnId): Address => ({ ...address, turnId })
