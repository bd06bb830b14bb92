/**
 * Which program runs a sidecar as a process, and how it is called.
 *
 * @since 0.1.0
 */
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as FileSystem from "effect/FileSystem"
import * as Option from "effect/Option"
import * as Path from "effect/Path"
import * as Schema from "effect/Schema"
import * as SidecarLimits from "./SidecarLimits.ts"

/**
 * The environment variable that names the program, where the app doesn't.
 *
 * @stability unstable
 * @category configuration
 * @since 0.1.0
 */
export const variable = "ACP_SIDECAR_BIN"

/**
 * What an app may say about the program. All of it may be left out.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Options {
  /**
   * A path, absolute or from the current folder; it is not looked for in `PATH`. A JavaScript or TypeScript file is run
   * with the Node that runs the app. By default the variable `ACP_SIDECAR_BIN` says it, then it is the package's own.
   */
  readonly program?: string | undefined
  /** More arguments for the command `serve`, after those that the connection needs. */
  readonly args?: ReadonlyArray<string> | undefined
  /** Variables over those of this process, which the program gets as well; `undefined` takes one away. */
  readonly env?: Readonly<Record<string, string | undefined>> | undefined
  /** Limits of the sidecar, passed on as the variables that it reads. The others are as its environment says. */
  readonly limits?: SidecarLimits.Overrides | undefined
}

/**
 * What a driver knows of the machine: the runtime that runs scripts, and where the package's own program may be, the
 * best first.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Installation {
  readonly runtime: string
  readonly own: ReadonlyArray<string>
}

/**
 * A program that is there. `command` with `args` calls it; the command of the sidecar and its arguments follow.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Program {
  readonly path: string
  readonly command: string
  readonly args: ReadonlyArray<string>
}

/**
 * A place that may name the program, in order of precedence: the option `program`, the variable `ACP_SIDECAR_BIN`, the
 * package itself. `path` is `null` where it names none.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export const Place = Schema.Struct({
  place: Schema.Literals(["option", "variable", "package"]),
  path: Schema.NullOr(Schema.String),
  found: Schema.Literals(["not given", "nothing", "no file", "a file"])
})
/** @since 0.1.0 */
export type Place = typeof Place.Type

const placeNames = {
  option: "the option program",
  variable: `the variable ${variable}`,
  package: "the package's own program"
} as const

const sentenceOf = ({ found, path, place }: Place): string =>
  path === null ? `${placeNames[place]} is not given` : `${placeNames[place]} is "${path}" (${found})`

/**
 * There is no program to start a sidecar with: what the first place names that names one is no file. The error says what
 * was found in all three places. Nothing was started.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class ProgramNotFound extends Schema.TaggedError<ProgramNotFound>()("ProgramNotFound", {
  places: Schema.Array(Place)
}) {
  override get message(): string {
    const wrong = this.places.find(({ path }) => path !== null)
    const advice = wrong === undefined ? "give one of them" : `correct ${placeNames[wrong.place]}`
    return `No program to run the sidecar with: ${this.places.map(sentenceOf).join(", ")}; ${advice}.`
  }
}

/**
 * The program was started, or was to be, and did not become a sidecar: it could not be run, ended, said nothing in time or
 * something else than a sidecar. `code` or `signal` say how it ended, where it did, and `stderrTail` what it said last,
 * redacted. Nothing of it is left running.
 *
 * @stability unstable
 * @category errors
 * @since 0.1.0
 */
export class ProgramFailed extends Schema.TaggedError<ProgramFailed>()("ProgramFailed", {
  program: Schema.String,
  problem: Schema.String,
  code: Schema.NullOr(Schema.Int),
  signal: Schema.NullOr(Schema.String),
  stderrTail: Schema.String
}) {
  override get message(): string {
    const last = this.stderrTail.trimEnd().split("\n").at(-1)?.trim() ?? ""
    const said = last === "" ? "" : `; it said last: ${last.slice(0, 300)}`
    return `The sidecar program "${this.program}" did not start: ${this.problem}${said}.`
  }
}

const isScript = (path: string): boolean => /\.[cm]?[jt]s$/.test(path)

/**
 * The program to run: that of the option, then of `ACP_SIDECAR_BIN`, then the package's own. Only the first of these that
 * is given counts: when it is no file, `ProgramNotFound` tells so, and no other is run in its place.
 *
 * @stability unstable
 * @category constructors
 * @since 0.1.0
 */
export const find = Effect.fnUntraced(function* (
  options: Options,
  installation: Installation
): Effect.fn.Return<Program, ProgramNotFound, FileSystem.FileSystem | Path.Path> {
  const fs = yield* FileSystem.FileSystem
  const paths = yield* Path.Path
  const configured = yield* Config.option(Config.String(variable)).pipe(Effect.orElseSucceed(() => Option.none()))
  const look = (path: string) =>
    Effect.match(fs.stat(path), {
      onFailure: (): Place["found"] => "nothing",
      onSuccess: ({ type }): Place["found"] => (type === "File" ? "a file" : "no file")
    })
  const placeOf = (place: Place["place"], given: string | undefined): Effect.Effect<Place> => {
    if (given === undefined || given === "") return Effect.succeed({ place, path: null, found: "not given" })
    const path = paths.resolve(given)
    return Effect.map(look(path), (found) => ({ place, path, found }))
  }
  const own = yield* Effect.forEach(installation.own, (path) => placeOf("package", path))
  const places: ReadonlyArray<Place> = [
    yield* placeOf("option", options.program),
    yield* placeOf("variable", Option.getOrUndefined(configured)),
    own.find(({ found }) => found === "a file") ?? own[0] ?? { place: "package", path: null, found: "not given" }
  ]
  const chosen = places.find(({ path }) => path !== null)
  if (chosen?.found !== "a file") return yield* new ProgramNotFound({ places })
  const path = chosen.path!
  return isScript(path) ? { path, command: installation.runtime, args: [path] } : { path, command: path, args: [] }
})

/**
 * The variables that put limits in force in a sidecar that reads its environment (`SidecarLimits.layerFromEnv`);
 * `undefined` for one that is to have its default. Fails with `InvalidLimit`, as the sidecar itself would.
 *
 * @stability unstable
 * @category conversions
 * @since 0.1.0
 */
export const limitVariables = (
  limits: SidecarLimits.Overrides
): Effect.Effect<Readonly<Record<string, string | undefined>>, SidecarLimits.InvalidLimit> =>
  Effect.map(SidecarLimits.make(limits), (all) => {
    const plain = SidecarLimits.plain(all)
    const given = (Object.keys(limits) as Array<keyof SidecarLimits.SidecarLimits>).filter(
      (name) => limits[name] !== undefined && name in plain
    )
    return Object.fromEntries(
      given.map((name) => {
        const value = plain[name]
        const isTime = typeof value === "number" && !Number.isInteger(value)
        return [SidecarLimits.setting(name), value === null ? undefined : isTime ? `${value} millis` : String(value)]
      })
    )
  })
