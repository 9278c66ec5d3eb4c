// Curves of several runs over one axis: where each value lies, smoothed, and runs that differ in the seed only as one band.
import type { MetricView, RoundView, RunView } from "../api/types";
import { curves } from "../curves";
import type { Axis } from "./view";

/** What is known of one run. */
export interface Compared {
  run: RunView;
  rounds: readonly RoundView[];
  metrics: readonly MetricView[];
}

export interface Sample {
  round: number;
  version: number;
  /** Rounds, seconds since the run was created, or bytes of all updates so far. */
  x: number;
  value: number;
  /** The value after smoothing. */
  y: number;
  examples: number;
}

export interface Line {
  run: string;
  samples: Sample[];
}

/** Runs that differ in the seed only: at each x, of the runs that reach it. */
export interface Band {
  name: string;
  runs: string[];
  points: { x: number; mean: number; low: number; high: number }[];
}

const MOST_POINTS = 600;

/** The names of metrics with their sources, over all runs. */
export function choices(found: readonly Compared[]): Map<string, string[]> {
  const all = new Map<string, Set<string>>();
  for (const one of found)
    for (const [name, sources] of curves(one.rounds, one.metrics)) {
      const seen = all.get(name) ?? new Set();
      all.set(name, seen);
      for (const curve of sources) seen.add(curve.source);
    }
  return new Map([...all].sort(([a], [b]) => a.localeCompare(b)).map(([name, sources]) => [name, [...sources]]));
}

/** Where each round lies on the axis; 0 is the first checkpoint. Null: this run has no such axis. */
export function places(one: Compared, axis: Axis): Map<number, number> | null {
  if ((axis === "wall" || axis === "virtual") && one.run.clock !== axis) return null;
  const found = new Map<number, number>([[0, 0]]);
  let bytes = 0;
  for (const round of one.rounds) {
    bytes += round.bytes_in;
    if (axis === "round") found.set(round.round, round.round);
    else if (axis === "bytes") found.set(round.round, bytes);
    else if (round.closed_at != null) found.set(round.round, round.closed_at - one.run.created_at);
  }
  return found;
}

/** The run's line; null where it has no such axis or metric. `weight`: of what came before, in the moving average. */
export function line(one: Compared, metric: string, source: string, axis: Axis, weight: number): Line | null {
  const where = places(one, axis);
  const curve = curves(one.rounds, one.metrics)
    .get(metric)
    ?.find((found) => found.source === source);
  if (!where || !curve) return null;
  const placed = curve.points.filter((point) => where.has(point.round) && Number.isFinite(point.value));
  const ys = smoothed(
    placed.map((point) => point.value),
    weight,
  );
  return { run: one.run.run, samples: placed.map((point, i) => ({ ...point, x: where.get(point.round) ?? 0, y: ys[i] ?? point.value })) };
}

/**
 * The exponential moving average s = w s + (1 - w) v, divided by 1 - w^n so that it does not begin at 0 (the correction of
 * Kingma and Ba 2015, arXiv:1412.6980, section 3).
 */
export function smoothed(values: readonly number[], weight: number): number[] {
  let sum = 0;
  let rest = 1;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    rest *= weight;
    return sum / (1 - rest);
  });
}

/** Bands of the lines whose runs have plans that differ in the seed only, and the lines of the other runs. */
export function banded(lines: readonly Line[], plans: ReadonlyMap<string, unknown>): { bands: Band[]; alone: Line[] } {
  const groups = new Map<string, Line[]>();
  for (const one of lines) {
    const key = withoutSeed(plans.get(one.run));
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  const bands: Band[] = [];
  const alone: Line[] = [];
  for (const group of groups.values()) {
    const band = group.length > 1 ? bandOf(group) : null;
    if (band) bands.push(band);
    else alone.push(...group);
  }
  return { bands, alone };
}

/** The plan as text, equal for plans that differ in name and seed only. */
function withoutSeed(plan: unknown): string {
  const { name: _name, ...rest } = (plan ?? {}) as Record<string, unknown>;
  const { seed: _seed, ...task } = (rest.task ?? {}) as Record<string, unknown>;
  return JSON.stringify(sorted({ ...rest, task }));
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, part]) => [name, sorted(part)]),
  );
}

/** Over the part of the axis that all of them reach, at every x of one of them, between points along straight lines. */
function bandOf(group: readonly Line[]): Band | null {
  if (group.some((one) => !one.samples.length)) return null;
  const from = Math.max(...group.map((one) => one.samples[0]?.x ?? 0));
  const to = Math.min(...group.map((one) => one.samples.at(-1)?.x ?? 0));
  const all = [...new Set(group.flatMap((one) => one.samples.map((sample) => sample.x)))].filter((x) => x >= from && x <= to).sort((a, b) => a - b);
  if (!all.length) return null;
  const xs = thinned(all, MOST_POINTS);
  const columns = group.map((one) => along(one.samples, xs));
  const points = xs.map((x, i) => {
    const values = columns.map((column) => column[i] ?? 0);
    return { x, mean: values.reduce((sum, value) => sum + value, 0) / values.length, low: Math.min(...values), high: Math.max(...values) };
  });
  return { name: common(group.map((one) => one.run)), runs: group.map((one) => one.run), points };
}

/** The line's y at each of these x, which it reaches. Both in order. */
function along(samples: readonly Sample[], xs: readonly number[]): number[] {
  let at = 0;
  return xs.map((x) => {
    while (at + 1 < samples.length && (samples[at + 1]?.x ?? 0) <= x) at += 1;
    const [left, right] = [samples[at], samples[at + 1]];
    if (!left) return 0;
    return !right || x <= left.x ? left.y : left.y + ((right.y - left.y) * (x - left.x)) / (right.x - left.x);
  });
}

/** At most so many, at even distances, with the first and the last. */
export function thinned<T>(values: readonly T[], most: number): T[] {
  if (values.length <= most) return [...values];
  return Array.from({ length: most }, (_, i) => values[Math.floor((i * (values.length - 1)) / (most - 1))] as T);
}

/** What the names begin with, and how many they are: "fedavg (3 seeds)". */
function common(names: readonly string[]): string {
  const [first = ""] = names;
  let length = first.length;
  for (const name of names) while (!name.startsWith(first.slice(0, length))) length -= 1;
  return `${first.slice(0, length).replace(/[-_.]+$/, "") || first} (${names.length} seeds)`;
}
