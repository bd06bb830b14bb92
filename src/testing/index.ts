/**
 * For testing apps that use the sidecar.
 *
 * @since 0.1.0
 */
export * as Interruption from "./Interruption.ts"
export * as Machine from "./Machine.ts"
export * as Prng from "./Prng.ts"
export * as ScriptedAgent from "./ScriptedAgent.ts"
export * as SeededScheduler from "./SeededScheduler.ts"
export * as Simulation from "./Simulation.ts"
export * as TestSidecar from "./TestSidecar.ts"
export * as VirtualClock from "./VirtualClock.ts"
