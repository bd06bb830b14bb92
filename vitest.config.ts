import { fileURLToPath } from "node:url"
import { defineConfig } from "vitest/config"

const src = (path: string) => fileURLToPath(new URL(`./src/${path}`, import.meta.url))

const shared = {
  resolve: {
    alias: [
      { find: /^acp-sidecar$/, replacement: src("index.ts") },
      { find: /^acp-sidecar\/(acp|testing)$/, replacement: src("$1/index.ts") },
      { find: /^acp-sidecar\/(.+)$/, replacement: src("$1.ts") }
    ]
  }
}

export default defineConfig({
  ...shared,
  test: {
    projects: [
      {
        ...shared,
        test: {
          name: "unit",
          include: ["test/**/*.test.ts", "examples/**/*.test.ts"],
          exclude: ["test/process/**"],
          testTimeout: 30_000,
          hookTimeout: 30_000,
          sequence: { groupOrder: 0 }
        }
      },
      {
        // Real processes: one file at a time, after the others, so that their clocks are not starved.
        ...shared,
        test: {
          name: "process",
          include: ["test/process/**/*.test.ts"],
          fileParallelism: false,
          testTimeout: 30_000,
          hookTimeout: 30_000,
          sequence: { groupOrder: 1 }
        }
      }
    ]
  }
})
