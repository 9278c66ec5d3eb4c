// Where the points of a small curve lie. A pure function.

/** One point for each value, from left to right; the largest at 0, the smallest at `height`, equal ones in the middle. */
export function sparkPoints(values: readonly number[], width: number, height: number): [number, number][] {
  const low = Math.min(...values);
  const range = Math.max(...values) - low;
  const round = (value: number) => Math.round(value * 10) / 10;
  return values.map((value, i) => [round(values.length > 1 ? (i / (values.length - 1)) * width : width / 2), round(range > 0 ? (1 - (value - low) / range) * height : height / 2)]);
}
