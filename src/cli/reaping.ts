// The work of acp-sidecar reap.
import * as NodeFileSystem from "@effect/platform-node/NodeFileSystem"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as LaunchRecords from "../LaunchRecords.ts"
import * as NodeProcessTable from "../NodeProcessTable.ts"
import { failed, fromError } from "./failure.ts"
import * as Output from "./output.ts"
import { recordsFolder } from "./sidecar.ts"

const count = (number: number, noun: string): string => `${number} ${noun}${number === 1 ? "" : "s"}`

const told = ({ gone, foreign, kept, live, reaped, records }: LaunchRecords.Report): string => {
  if (records === 0) return "Nothing was left: there are no launch records."
  const parts = [
    ...(reaped > 0 ? [`ended what ${count(reaped, "agent")} had left`] : []),
    ...(gone + foreign > 0 ? [`${count(gone + foreign, "agent")} had left nothing`] : []),
    ...(live > 0 ? [`${count(live, "agent")} of live sidecars left alone`] : []),
    ...(kept > 0 ? [`${count(kept, "agent")} could not be ended or told`] : [])
  ]
  return `${count(records, "launch record")}: ${parts.join(", ")}.`
}

export const main = Effect.fnUntraced(function* (isJson: boolean) {
  const folder = recordsFolder()
  if (folder === "off") {
    const nothing = { folder: null, records: 0, live: 0, reaped: 0, gone: 0, foreign: 0, kept: 0, broken: 0 }
    return yield* isJson
      ? Output.json(nothing)
      : Output.line("out", "Launch records are off (ACP_SIDECAR_STATE), so there is nothing to look through.")
  }
  const records = LaunchRecords.layer({ folder }).pipe(
    Layer.provide(NodeFileSystem.layer),
    Layer.provide(NodeProcessTable.layer)
  )
  const { report, where } = yield* Effect.gen(function* () {
    const { folder: where, report } = yield* LaunchRecords.LaunchRecords
    return { where, report: yield* report }
  }).pipe(Effect.provide(records), Effect.mapError(fromError))
  yield* isJson ? Output.json({ folder: where, ...report }) : Output.line("out", told(report))
  if (report.kept > 0) return yield* failed("")
})
