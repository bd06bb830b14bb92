/**
 * The core of acp-sidecar.
 *
 * @since 0.1.0
 */
export * as Address from "./Address.ts"
export * as Admission from "./Admission.ts"
export * as AgentHost from "./AgentHost.ts"
export * as AgentHosts from "./AgentHosts.ts"
export * as AgentLauncher from "./AgentLauncher.ts"
export * as AgentProfile from "./AgentProfile.ts"
export * as AgentSession from "./AgentSession.ts"
export * as Journal from "./Journal.ts"
export * as LaunchIdentity from "./LaunchIdentity.ts"
export * as LaunchRecords from "./LaunchRecords.ts"
export * as LimitUsage from "./LimitUsage.ts"
export * as Mailbox from "./Mailbox.ts"
export * as Permission from "./Permission.ts"
export * as ProcessTable from "./ProcessTable.ts"
export * as Session from "./Session.ts"
export * as SessionRouter from "./SessionRouter.ts"
export * as Sidecar from "./Sidecar.ts"
export * as SidecarError from "./SidecarError.ts"
export * as SidecarEvent from "./SidecarEvent.ts"
export * as SidecarLimits from "./SidecarLimits.ts"
export * as SidecarMetrics from "./SidecarMetrics.ts"
export * as Turn from "./Turn.ts"
export * as TurnOutcome from "./TurnOutcome.ts"
export * as Vm from "./Vm.ts"
