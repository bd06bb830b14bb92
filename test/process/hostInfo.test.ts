// The memory of real process groups, as a sidecar tells it.
import { assert, describe, it } from "@effect/vitest"
import { AgentProfile, Sidecar } from "acp-sidecar"
import * as NodeProcessTable from "acp-sidecar/NodeProcessTable"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { faulty, layer, openVm } from "../support/faultyAgent.ts"
import { newMark, untilRunning } from "../support/processes.ts"

const mebibyte = 1024 * 1024

describe("the memory of a host", () => {
  it.live("is that of its real processes, once for all its sessions", () =>
    Effect.gen(function* () {
      const mark = newMark()
      const vm = yield* openVm()
      const alone = { ...faulty(mark), share: AgentProfile.sharing() }
      const parent = { ...faulty(`child=${mark}`), share: AgentProfile.sharing() }
      yield* Effect.forEach([alone, alone, alone, parent], (agent) => vm.openSession({ agent }))
      yield* untilRunning(mark, 3)
      const { hosts } = yield* (yield* Sidecar.Sidecar).describe
      assert.deepStrictEqual(
        hosts.map(({ leases }) => leases),
        [3, 1]
      )
      for (const { memoryBytes } of hosts) {
        assert.isAbove(memoryBytes!, 20 * mebibyte)
        assert.isBelow(memoryBytes!, 400 * mebibyte)
      }
    }).pipe(Effect.scoped, Effect.provide(layer().pipe(Layer.provide(NodeProcessTable.layer))))
  )
})
