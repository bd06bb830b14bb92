/**
 * Whether the agent floods a session: what it sends outside of any turn, and what of it can't be read.
 *
 * @internal
 */
import type * as SidecarLimits from "../SidecarLimits.ts"

export type Limits = Pick<SidecarLimits.SidecarLimits, "maxIdleOutputBytes" | "maxBrokenFrames">

export interface Flood {
  /** Bytes that came outside of any turn since the last turn. */
  idleBytes: number
  /** Updates that came outside of any turn since the last turn. */
  idleUpdates: number
  /** Frames of the session that could not be read, in all. */
  brokenFrames: number
}

/** What is too much of it. */
export interface Verdict {
  readonly limit: keyof Limits
  readonly max: number
  readonly used: number
  /** How many frames that were. */
  readonly frames: number
}

export const make = (): Flood => ({ idleBytes: 0, idleUpdates: 0, brokenFrames: 0 })

/** An update came while no turn ran. */
export const idle = (self: Flood, bytes: number): void => {
  self.idleBytes += bytes
  self.idleUpdates++
}

/** A turn began: what came before is forgiven, but for what could not be read. */
export const turn = (self: Flood): void => {
  self.idleBytes = 0
  self.idleUpdates = 0
}

/** A frame of the session could not be read. */
export const broken = (self: Flood): void => void self.brokenFrames++

/** The first limit that the session is over, if it is. */
export const decide = (self: Flood, limits: Limits): Verdict | undefined => {
  const { brokenFrames, idleBytes, idleUpdates } = self
  const { maxBrokenFrames, maxIdleOutputBytes } = limits
  if (idleBytes > maxIdleOutputBytes) {
    return { limit: "maxIdleOutputBytes", max: maxIdleOutputBytes, used: idleBytes, frames: idleUpdates }
  }
  if (brokenFrames > maxBrokenFrames) {
    return { limit: "maxBrokenFrames", max: maxBrokenFrames, used: brokenFrames, frames: brokenFrames }
  }
  return undefined
}
