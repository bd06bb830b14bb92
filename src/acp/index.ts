/**
 * The wire of ACP, usable alone.
 *
 * @since 0.1.0
 */
export * as AcpCodec from "./AcpCodec.ts"
export * as AcpConnection from "./AcpConnection.ts"
export * as AcpError from "./AcpError.ts"
export * as AcpProtocol from "./AcpProtocol.ts"
export * as AcpSchema from "./AcpSchema.ts"
export * as AcpTransport from "./AcpTransport.ts"
export * as StderrTail from "./StderrTail.ts"
