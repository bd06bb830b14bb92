/**
 * What is read of one peer before others have their turn.
 *
 * @internal
 */

/** In bytes: about a hundred updates, which take a tenth of a millisecond or two. */
export const size = 16 * 1024

/** The same bytes in the same order, in chunks of at most {@link size}. */
export const cut = (chunks: ReadonlyArray<Uint8Array>): ReadonlyArray<Uint8Array> =>
  chunks.every((chunk) => chunk.length <= size) ? chunks : chunks.flatMap(cutOne)

const cutOne = (chunk: Uint8Array): ReadonlyArray<Uint8Array> =>
  Array.from({ length: Math.ceil(chunk.length / size) }, (_, index) => chunk.subarray(index * size, (index + 1) * size))
