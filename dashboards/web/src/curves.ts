// The curves of a run: each metric of each source, by round, with the number of examples behind each value.
import type { MetricView, RoundView } from "./api/types";

export const TRAINING = "training";

export interface Point {
  round: number;
  version: number;
  value: number;
  /** Examples behind the value; of training, the weight of the round's updates. */
  examples: number;
}

export interface Curve {
  source: string;
  points: Point[];
}

/** What is read of a round. */
type Made = Pick<RoundView, "round" | "version" | "metrics" | "weight">;

/** Curves by the name of the metric. A checkpoint is shown at the round that made it; version 0 at round 0. */
export function curves(rounds: readonly Made[], metrics: readonly MetricView[]): Map<string, Curve[]> {
  const found = new Map<string, Map<string, Point[]>>();
  const add = (name: string, source: string, point: Point) => {
    const sources = found.get(name) ?? new Map<string, Point[]>();
    found.set(name, sources);
    const points = sources.get(source) ?? [];
    sources.set(source, points);
    points.push(point);
  };
  const made = new Map<number, number>([[0, 0]]);
  for (const round of rounds) if (round.version != null) made.set(round.version, round.round);
  for (const one of metrics) {
    const round = made.get(one.version);
    if (round !== undefined) add(one.name, one.source, { round, version: one.version, value: one.value, examples: one.examples });
  }
  for (const round of rounds)
    for (const [name, value] of Object.entries(round.metrics ?? {}))
      add(name, TRAINING, { round: round.round, version: round.version ?? 0, value, examples: round.weight });
  return new Map(
    [...found].map(([name, sources]) => [
      name,
      [...sources].map(([source, points]) => ({ source, points: points.sort((a, b) => a.round - b.round) })).sort(byMeaning),
    ]),
  );
}

/** What evaluators say comes before what training says. */
function byMeaning(a: Curve, b: Curve): number {
  return Number(a.source === TRAINING) - Number(b.source === TRAINING) || a.source.localeCompare(b.source);
}

/** The metric that is shown first: the plan's own, or accuracy, or the first one. */
export function firstMetric(names: readonly string[], planned: unknown): string | null {
  for (const wanted of [planned, "accuracy", "loss"]) if (typeof wanted === "string" && names.includes(wanted)) return wanted;
  return names[0] ?? null;
}

/** The newest value of the first curve. */
export function newest(found: readonly Curve[]): Point | null {
  return found[0]?.points.at(-1) ?? null;
}

export interface Trend {
  /** By how much the newest value is above the earlier one; below 0: it fell. */
  by: number;
  /** Rounds from the earlier value to the newest one. */
  rounds: number;
}

const TREND_ROUNDS = 5;

/** How the newest value differs from that of five rounds before, or from the first one; null where there are not two. */
export function trend(curve: Curve): Trend | null {
  const last = curve.points.at(-1);
  if (!last) return null;
  const earlier = curve.points.findLast((point) => point.round <= last.round - TREND_ROUNDS) ?? curve.points[0];
  if (!earlier || earlier.round === last.round) return null;
  return { by: last.value - earlier.value, rounds: last.round - earlier.round };
}
