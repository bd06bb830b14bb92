/**
 * The metrics of sidecars, as handles of Effect's `Metric`. They are kept in the registry of whoever makes the sidecar's
 * layer, and nothing exports them unless the app does, for example with Effect's `Otlp` or `PrometheusMetrics` layers.
 * No attribute is ever the id of a session, a turn or a request. Gauges and counters of several sidecars add up.
 *
 * @since 0.1.0
 */
import * as Metric from "effect/Metric"
import * as Semconv from "./internal/semconv.ts"

/**
 * One metric: called with attributes it gives the series that has them, to be read with `Metric.value`. A metric has at
 * most 1,000 series; what comes after them goes to one whose attribute is `otel.metric.overflow`.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export interface Handle<Attribute extends string, Series> {
  readonly id: string
  (attributes: Readonly<Record<Attribute, string>> & Readonly<Partial<Record<OptionalAttribute, string>>>): Series
}

/**
 * Attributes that a series may lack: `error.type` when nothing failed, `gen_ai.request.model` while the model is unknown.
 *
 * @stability unstable
 * @category models
 * @since 0.1.0
 */
export type OptionalAttribute = "error.type" | "gen_ai.request.model"

type Unit = "s" | "By" | `{${string}}`

interface Options {
  readonly description: string
  readonly attributes: Readonly<Record<string, string>>
}

const maxSeries = 1000
const prometheus = new Map<string, string>()

const handle = <Attribute extends string, Series>(
  id: string,
  unit: Unit,
  suffix: "" | "_total",
  description: string,
  attributes: ReadonlyArray<Attribute | OptionalAttribute>,
  make: (options: Options) => Series
): Handle<Attribute, Series> => {
  prometheus.set(
    id,
    id.replaceAll(".", "_") + (unit === "s" ? "_seconds" : "") + (unit === "By" ? "_bytes" : "") + suffix
  )
  const known = new Map<string, Series>()
  const series = (given: Readonly<Partial<Record<string, string>>>): Series => {
    let key = ""
    for (const name of attributes) key += `${given[name] ?? ""}\n`
    const isFull = known.size >= maxSeries && !known.has(key)
    if (isFull) key = "overflow"
    let one = known.get(key)
    if (one === undefined) {
      // Exporters take the unit from this attribute, since a metric of Effect has no place for it.
      const own: Record<string, string> = { unit }
      if (isFull) own["otel.metric.overflow"] = "true"
      else for (const name of attributes) if (given[name] !== undefined) own[name] = given[name]
      one = make({ description, attributes: own })
      known.set(key, one)
    }
    return one
  }
  return Object.assign(series, { id })
}

const counter = <A extends string>(id: string, unit: Unit, description: string, attributes: ReadonlyArray<A>) =>
  handle(id, unit, "_total", description, attributes, (options) =>
    Metric.counter(id, { ...options, incremental: true })
  )

const gauge = <A extends string>(id: string, unit: Unit, description: string, attributes: ReadonlyArray<A>) =>
  handle(id, unit, "", description, attributes, (options) => Metric.gauge(id, options))

const histogram = <A extends string>(
  id: string,
  unit: Unit,
  description: string,
  [from, count]: readonly [from: number, count: number],
  attributes: ReadonlyArray<A>,
  optional: ReadonlyArray<OptionalAttribute> = []
) => {
  const boundaries = Array.from({ length: count }, (_, index) => from * 2 ** index)
  return handle(id, unit, "", description, [...attributes, ...optional], (options) =>
    Metric.histogram(id, { ...options, boundaries })
  ) as Handle<A, Metric.Histogram<number>>
}

const { metric } = Semconv
const agentName = Semconv.attribute.agentName
const model = Semconv.attribute.requestModel
const error = Semconv.attribute.errorType

/**
 * Turns as OpenTelemetry's conventions see them, as calls of an agent: how long they took, in seconds, and how many tool
 * calls they had.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const invokeAgent = {
  duration: histogram(
    metric.invokeAgentDuration,
    "s",
    "From the submission of a prompt to its outcome",
    [0.1, 13],
    [agentName],
    [model, error]
  ),
  toolCalls: histogram(metric.invokeAgentToolCalls, "{tool_call}", "Tool calls of a turn", [1, 8], [agentName])
}

/**
 * Tool calls that agents told of: how long they took, in seconds.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const executeTool = {
  duration: histogram(
    metric.executeToolDuration,
    "s",
    "From the first word of a tool call to its last",
    [0.01, 14],
    [Semconv.attribute.toolName, Semconv.attribute.toolType, agentName],
    [error]
  )
}

/**
 * Turns: how long they took, waited, took to their first update and to be cancelled, in seconds; their tokens, where the
 * agent tells (`type` is `input`, `output`, `cache_read`, `cache_write` or `reasoning`); and how many there are now.
 * `outcome` is `completed`, `cancelled` or `failed`, `state` is `running` or `cancelling`.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const turn = {
  duration: histogram(
    metric.turnDuration,
    "s",
    "From the submission of a prompt to its outcome",
    [0.1, 16],
    ["agent", "lane", "outcome"]
  ),
  queueDuration: histogram(metric.turnQueueDuration, "s", "Wait for admission", [0.001, 22], ["lane"]),
  timeToFirstUpdate: histogram(
    metric.turnTimeToFirstUpdate,
    "s",
    "From the dispatch of a prompt to its first update",
    [0.01, 15],
    ["agent"]
  ),
  cancelDuration: histogram(
    metric.turnCancelDuration,
    "s",
    "From the decision to end a running turn to its outcome",
    [0.01, 15],
    ["escalation"]
  ),
  tokens: counter(metric.turnTokens, "{token}", "Tokens of turns, as agents told", ["agent", "type"]),
  active: gauge(metric.turnsActive, "{turn}", "Admitted turns that have not ended", ["lane", "state"]),
  queued: gauge(metric.turnsQueued, "{turn}", "Turns that wait for admission", ["lane"])
}

/**
 * Open sessions.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const sessions = {
  open: gauge(metric.sessionsOpen, "{session}", "Open sessions", ["agent"])
}

/**
 * Leases on the sidecars of pools: `kind` is `vm` or `package`.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const leases = {
  active: gauge(metric.leasesActive, "{lease}", "Leases that were not given back", ["kind"])
}

/**
 * Agent processes. `reason` is why one ended: `closed` (with its session), `retired` (it did not end a turn), `exited`
 * (by itself with code 0), `crashed`, `disconnected` or `start_failed` (it was ended before it was initialized); `stage` is what it took: `none` when it was gone
 * already, `eof` where there is no process, `term`, or `kill` after the grace period.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const hosts = {
  live: gauge(metric.hostsLive, "{process}", "Agent processes that run", ["agent"]),
  starts: counter(metric.hostStarts, "{process}", "Agent processes that were started", ["agent"]),
  exits: counter(metric.hostExits, "{process}", "Agent processes that are gone", ["agent", "reason", "stage"])
}

/**
 * Questions of agents: how many are open, and how long they waited for their answer, in seconds.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const permissions = {
  pending: gauge(metric.permissionsPending, "{question}", "Questions that are open", ["agent"]),
  waitDuration: histogram(
    metric.permissionWaitDuration,
    "s",
    "From a question of an agent to its answer",
    [0.1, 16],
    ["answered_by"]
  )
}

/**
 * How much of each limit is used, and how much there is, summed over all sessions, Vms and sidecars that have it now.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const limits = {
  used: gauge(metric.limitUsed, "{use}", "What is used of a limit", ["limit"]),
  max: gauge(metric.limitMax, "{use}", "What a limit allows", ["limit"])
}

/**
 * Prompts, sessions and Vms that were refused since a limit was reached, or the session was busy.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const admission = {
  refusals: counter(metric.admissionRefusals, "{refusal}", "Refusals by a limit", ["scope", "limit"])
}

/**
 * The traffic with agents, counted in batches: within a second while frames come, and at the end of each turn and
 * process. `direction` is `in` (from the agent) or `out`; `kind` is `request`, `response`, `notification`, `noise` or
 * `malformed`.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const wire = {
  frames: counter(metric.wireFrames, "{frame}", "Frames", ["direction", "kind"]),
  io: counter(metric.wireIo, "By", "Bytes of frames", ["direction"]),
  dropped: counter(metric.wireDropped, "{frame}", "Frames that were not delivered", ["reason"]),
  late: counter(metric.wireLate, "{frame}", "Frames that came after their request or session was over", ["reason"]),
  buffered: counter(metric.wireBuffered, "{frame}", "Updates that came before their session was known", ["reason"])
}

/**
 * How long a journal took to keep a batch of events, in seconds.
 *
 * @stability unstable
 * @category metrics
 * @since 0.1.0
 */
export const journal = {
  appendDuration: histogram(metric.journalAppendDuration, "s", "To keep a batch of events", [0.001, 14], [])
}

/**
 * Attributes for the resource of an exporter: `acp_sidecar.semconv.version`, the release of OpenTelemetry's conventions
 * for generative AI that spans and metrics follow.
 *
 * @stability unstable
 * @category export
 * @since 0.1.0
 */
export const resourceAttributes: Readonly<Record<string, string>> = { [Semconv.versionAttribute]: Semconv.version }

/**
 * The name of a metric in Prometheus, as OpenTelemetry's translation makes it: with the unit and `_total`. For the option
 * `metricNameMapper` of Effect's `PrometheusMetrics`. Names of other metrics stay as they are.
 *
 * @stability unstable
 * @category export
 * @since 0.1.0
 */
export const prometheusName = (id: string): string => prometheus.get(id) ?? id
