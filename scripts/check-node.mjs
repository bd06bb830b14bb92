// Says in one sentence when the running Node is too old. Plain JavaScript, so that an old Node can read it.
const [major, minor] = process.versions.node.split(".").map(Number)
if (major < 22 || (major === 22 && minor < 19)) {
  console.error(
    `Node ${process.versions.node} is too old (22.19 or newer is needed): run \`npm ci\`, which brings Node 24, ` +
      "then use the npm scripts (`npm test`, `npm start`, ...), which run on it."
  )
  process.exit(1)
}
