/** A value of the wire that nobody here takes apart. */
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import * as SchemaGetter from "effect/SchemaGetter"

const isAnything = (_value: unknown): _value is unknown => true

/**
 * It crosses a JSON codec as the very value that it is: copied by nobody, so that no key is lost, and looked at by nobody,
 * so that its size costs nothing. JSON leaves a key with `undefined` away, so a missing one reads as `undefined`.
 */
const anything = Schema.declare<unknown>(isAnything, {
  expected: "anything",
  toCodecJson: () =>
    Schema.link<unknown>()(Schema.optionalKey(Schema.Any), {
      decode: SchemaGetter.transformOptional((value) => (Option.isSome(value) ? value : Option.some(undefined))),
      encode: SchemaGetter.passthrough()
    }),
  toCodecArbitrary: () =>
    Schema.link<unknown>()(Schema.Json, {
      decode: SchemaGetter.passthrough(),
      encode: SchemaGetter.forbidden(() => "only generated")
    })
})

/** Such a value with a type that the compiler knows of. It was checked, if at all, before it came here. */
export const opaque = <A = unknown>(): Schema.Codec<A, A> => anything as unknown as Schema.Codec<A, A>
