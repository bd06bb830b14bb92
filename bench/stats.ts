/** The value below which the share `p` of the samples lies. */
export const quantile = (samples: ReadonlyArray<number>, p: number): number => {
  const sorted = samples.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(p * sorted.length))] ?? Number.NaN
}

export const median = (samples: ReadonlyArray<number>): number => quantile(samples, 0.5)

/** The median of the ratios of two contenders, round by round: what slows the whole machine slows both sides of one. */
export const ratio = (ours: ReadonlyArray<number>, baseline: ReadonlyArray<number>): number =>
  median(ours.map((value, round) => value / baseline[round]!))
