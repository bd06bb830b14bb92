// The export of a command, to a receiver on loopback. Waits are for output; bounds are generous.
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { spawn } from "node:child_process"
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { createServer } from "node:http"
import type { AddressInfo } from "node:net"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { rolldown } from "rolldown"

const root = fileURLToPath(new URL("../..", import.meta.url))
const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"))
const fixture = join(root, "test/fixtures/faulty-agent.mjs")

const bundles = mkdtempSync(join(tmpdir(), "acp-sidecar-otlp-"))
const bin = join(bundles, "bin.mjs")
beforeAll(async () => {
  const bundle = await rolldown({ input: join(root, "src/bin.ts"), platform: "node" })
  await bundle.write({ file: bin, format: "esm", codeSplitting: false })
  await bundle.close()
}, 60_000)
afterAll(() => rmSync(bundles, { recursive: true, force: true }))

interface Attribute {
  readonly key: string
  readonly value: { readonly stringValue?: string; readonly intValue?: number; readonly boolValue?: boolean }
}
interface Span {
  readonly name: string
  readonly kind: number
  readonly attributes: ReadonlyArray<Attribute>
  readonly status: { readonly code: number }
}

interface Resource {
  readonly resource: { readonly attributes: ReadonlyArray<Attribute> }
}
/** The body of an export, as far as it is looked at here. */
interface Export {
  readonly resourceSpans: readonly [
    Resource & { readonly scopeSpans: readonly [{ readonly spans: ReadonlyArray<Span> }] }
  ]
  readonly resourceMetrics: readonly [
    Resource & { readonly scopeMetrics: readonly [{ readonly metrics: ReadonlyArray<{ readonly name: string }> }] }
  ]
}
/** By path. */
type Got = Map<string, Array<Export>>

const record = (attributes: ReadonlyArray<Attribute>) =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, value.stringValue ?? value.intValue ?? value.boolValue]))

/** Takes what is exported; one that `hangs` takes it and never answers. */
const withReceiver = async <A>(hangs: boolean, body: (url: string, got: Got) => Promise<A>) => {
  const got: Got = new Map()
  const server = createServer((request, response) => {
    let text = ""
    request.setEncoding("utf8").on("data", (data: string) => (text += data))
    request.on("end", () => {
      const path = request.url!
      if (hangs) return
      got.set(path, [...(got.get(path) ?? []), JSON.parse(text)])
      response.writeHead(200, { "content-type": "application/json" }).end("{}")
    })
  })
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done))
  try {
    return await body(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, got)
  } finally {
    server.closeAllConnections()
    await new Promise((done) => server.close(done))
  }
}

const run = (env: object, options: { readonly switches?: ReadonlyArray<string>; readonly cancelAt?: string } = {}) =>
  new Promise<{
    readonly code: number | null
    readonly stdout: string
    readonly stderr: string
    readonly millis: number
  }>((done) => {
    const agent = [process.execPath, fixture, ...(options.switches ?? [])].map((word) => `'${word}'`).join(" ")
    const from = performance.now()
    const child = spawn(process.execPath, [bin, "run", "--agent", agent, "the secret diary"], {
      cwd: root,
      env: { PATH: process.env["PATH"], HOME: process.env["HOME"], NO_COLOR: "1", ACP_SIDECAR_STATE: "off", ...env },
      stdio: ["ignore", "pipe", "pipe"]
    })
    let stdout = ""
    let stderr = ""
    child.stdout.setEncoding("utf8").on("data", (data: string) => {
      stdout += data
      if (options.cancelAt !== undefined && stdout.includes(options.cancelAt)) child.kill("SIGTERM")
    })
    child.stderr.setEncoding("utf8").on("data", (data: string) => (stderr += data))
    child.once("close", (code) => done({ code, stdout, stderr, millis: performance.now() - from }))
  })

const spans = (got: Got): ReadonlyArray<Span> =>
  (got.get("/v1/traces") ?? []).flatMap((one) => one.resourceSpans[0].scopeSpans[0].spans)
const metricNames = (got: Got): ReadonlyArray<string> =>
  (got.get("/v1/metrics") ?? []).flatMap((one) =>
    one.resourceMetrics[0].scopeMetrics[0].metrics.map(({ name }) => name)
  )

const json = (url: string) => ({ OTEL_EXPORTER_OTLP_ENDPOINT: url, OTEL_EXPORTER_OTLP_PROTOCOL: "http/json" })

describe("the telemetry of acp-sidecar run", () => {
  it("brings the turn's span and the metrics to the endpoint, and who sends them", () =>
    withReceiver(false, async (url, got) => {
      const { code, stderr } = await run(json(url))
      assert.strictEqual(code, 0, stderr)
      const [span] = spans(got)
      assert.match(span!.name, /^invoke_agent /)
      assert.strictEqual(span!.kind, 3)
      assert.deepInclude(record(span!.attributes), {
        "acp_sidecar.turn.outcome": "completed",
        "network.transport": "pipe"
      })
      const resource = record(got.get("/v1/traces")![0]!.resourceSpans[0].resource.attributes)
      assert.deepInclude(resource, {
        "service.name": "acp-sidecar",
        "service.version": version,
        "acp_sidecar.semconv.version": "0.1.0"
      })
      assert.includeMembers(
        [...metricNames(got)],
        ["acp_sidecar.turn.duration", "acp_sidecar.host.exits", "gen_ai.invoke_agent.duration"]
      )
      assert.notInclude(JSON.stringify([...got]), "diary")
    }))

  it("tells of a turn that was cancelled by a signal, and of one that failed", () =>
    withReceiver(false, async (url, got) => {
      const cancelled = await run(json(url), { switches: ["--hang"], cancelAt: "chunk 0" })
      assert.strictEqual(cancelled.code, 130, cancelled.stderr)
      const failed = await run({ ...json(url), OTEL_SERVICE_NAME: "mine" }, { switches: ["--exit=3"] })
      assert.strictEqual(failed.code, 1, failed.stderr)
      const all = spans(got).map((span): Record<string, unknown> => ({
        ...record(span.attributes),
        status: span.status.code
      }))
      assert.deepInclude(all[0], { "acp_sidecar.turn.outcome": "cancelled", status: 0 })
      assert.notProperty(all[0], "error.type")
      assert.deepInclude(all[1], { "acp_sidecar.turn.outcome": "failed", "error.type": "ProcessExited", status: 2 })
      const last = record(got.get("/v1/traces")!.at(-1)!.resourceSpans[0].resource.attributes)
      assert.strictEqual(last["service.name"], "mine")
    }))

  it("does not hold the command up when the endpoint hangs or is not there", () =>
    withReceiver(true, async (url) => {
      const without = await run({})
      const hanging = await run({ ...json(url), OTEL_EXPORTER_OTLP_TIMEOUT: "60000" })
      const nobody = await run(json("http://127.0.0.1:9"))
      assert.deepStrictEqual([without.code, hanging.code, nobody.code], [0, 0, 0], hanging.stderr + nobody.stderr)
      assert.strictEqual(hanging.stdout, without.stdout)
      assert.isBelow(hanging.millis, 20_000)
      assert.isBelow(nobody.millis, 20_000)
    }))

  it("says what is wrong with a setting and goes on without", async () => {
    for (const [env, part] of [
      [{ OTEL_EXPORTER_OTLP_ENDPOINT: "no url" }, "OTEL_EXPORTER_OTLP_ENDPOINT"],
      [{ OTEL_EXPORTER_OTLP_ENDPOINT: "localhost:4318" }, "OTEL_EXPORTER_OTLP_ENDPOINT has to start with http://"],
      [{ OTEL_EXPORTER_OTLP_ENDPOINT: "http://me:hunter2@127.0.0.1:9" }, "OTEL_EXPORTER_OTLP_HEADERS"],
      [{ OTEL_EXPORTER_OTLP_ENDPOINT: "http://127.0.0.1:9", OTEL_EXPORTER_OTLP_HEADERS: "hunter2" }, "NAME=VALUE"],
      [{ OTEL_EXPORTER_OTLP_ENDPOINT: "http://127.0.0.1:9", OTEL_METRIC_EXPORT_INTERVAL: "0" }, "at least 1"],
      [{ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "http://127.0.0.1:9", OTEL_BSP_SCHEDULE_DELAY: "soon" }, "SCHEDULE_DELAY"],
      [{ OTEL_EXPORTER_OTLP_ENDPOINT: "http://127.0.0.1:9", OTEL_EXPORTER_OTLP_PROTOCOL: "grpc" }, "http/protobuf"]
    ] as const) {
      const { code, stderr } = await run(env)
      assert.strictEqual(code, 0, stderr)
      assert.include(stderr, "telemetry is off")
      assert.include(stderr, part)
      assert.notInclude(stderr, "hunter2")
      assert.notInclude(stderr, "SchemaError")
    }
  })

  it("S4: does not follow a redirect, which would take its headers along", () =>
    withReceiver(false, async (url, got) => {
      const asked: Array<string | undefined> = []
      const server = createServer((request, response) => {
        asked.push(request.headers["x-key"]?.toString())
        response.writeHead(307, { location: `${url}${request.url}` }).end()
      })
      await new Promise<void>((done) => server.listen(0, "127.0.0.1", done))
      const { port } = server.address() as AddressInfo
      const env = { ...json(`http://127.0.0.1:${port}`), OTEL_EXPORTER_OTLP_HEADERS: "x-key=hunter2" }
      const { code, stderr } = await run(env)
      await new Promise((done) => server.close(done))
      assert.deepStrictEqual({ code, stderr }, { code: 0, stderr: "" })
      assert.include(asked, "hunter2")
      assert.strictEqual(got.size, 0)
    }))

  it("is off when OTEL_SDK_DISABLED says so", () =>
    withReceiver(false, async (url, got) => {
      const { code, stderr } = await run({ ...json(url), OTEL_SDK_DISABLED: "true" })
      assert.strictEqual(code, 0, stderr)
      assert.strictEqual(got.size, 0)
    }))
})
