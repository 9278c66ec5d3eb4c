// What the API says of one run beside its view: its rounds and its metrics, asked again when the run has moved.
import { useEffect, useRef, useState } from "react";
import { type Page, page } from "./api/client";
import type { CheckpointView, MetricView, RoundView, RunView } from "./api/types";
import { type Resource, useResource } from "./live/context";

const PAGE = 1000;
const ROUND_MS = 2000;
const METRICS_MS = 5000;

/** The rounds in order. Those that were closed are not asked for again. */
export function useRounds(run: RunView): Resource<RoundView[]> {
  const seq = useSlowly(run.seq, ROUND_MS);
  const answers = useSlowly(run.flower ? `${run.flower.messages} ${run.flower.replies} ${run.flower.errors}` : "", ROUND_MS);
  const key = [run.run, run.round, run.version, run.phase, run.status, seq, answers].join(" ");
  return useResource<RoundView[]>(key, (signal, before) => roundsOf(run.run, before, signal));
}

/** The same of a run by its name, once. `before`: what was there already. */
export async function roundsOf(run: string, before: readonly RoundView[] | null, signal: AbortSignal): Promise<RoundView[]> {
  const closed = (before ?? []).filter((round) => round.status !== "open");
  return everyPage(closed, closed.at(-1)?.round ?? 0, (after) => page("/v1/runs/{run}/rounds", { run, after, limit: PAGE }, signal));
}

/** The line of checkpoints. `before`: what was there already: no checkpoint changes. */
export function lineOf(run: string, before: readonly CheckpointView[] | null, signal: AbortSignal): Promise<CheckpointView[]> {
  return everyPage([...(before ?? [])], before?.at(-1)?.version ?? -1, (after) => page("/v1/runs/{run}/checkpoints", { run, after, limit: PAGE }, signal));
}

/** All metrics, in order of version. */
export function metricsOf(run: string, signal: AbortSignal): Promise<MetricView[]> {
  return everyPage<MetricView>([], -1, (after) => page("/v1/runs/{run}/metrics", { run, after, limit: PAGE }, signal));
}

/** A list that is read in pages, after what was found already, each after what the one before says. */
async function everyPage<T>(found: T[], after: string | number, pageAfter: (after: string | number) => Promise<Page<T>>): Promise<T[]> {
  for (;;) {
    const { rows, next } = await pageAfter(after);
    found.push(...rows);
    if (!next) return found;
    after = next;
  }
}

/** All metrics of the run's checkpoints, also those that an evaluator reports between two rounds. */
export function useMetrics(run: RunView): Resource<MetricView[]> {
  const seq = useSlowly(run.seq, METRICS_MS);
  const key = [run.run, run.version, run.status, seq].join(" ");
  return useResource<MetricView[]>(key, (signal) => (run.flower ? Promise.resolve([]) : metricsOf(run.run, signal)));
}

/** The value, changed at most once in so many milliseconds. */
export function useSlowly<T>(value: T, ms: number): T {
  const [shown, setShown] = useState(value);
  const changed = useRef(0);
  useEffect(() => {
    const timer = setTimeout(
      () => {
        changed.current = Date.now();
        setShown(value);
      },
      Math.max(0, changed.current + ms - Date.now()),
    );
    return () => clearTimeout(timer);
  }, [value, ms]);
  return shown;
}
