/**
 * For testing apps that use the sidecar.
 *
 * @since 0.1.0
 */
export * as ScriptedAgent from "./ScriptedAgent.ts"
export * as TestSidecar from "./TestSidecar.ts"
