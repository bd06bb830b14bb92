/**
 * @internal
 */

/** The version of the package, as it introduces itself to agents; a test compares it with package.json. */
export const version = "0.1.0"
