// What the API says of the runs that are compared. A run is asked for again when it has moved; a few at a time.
import { useRef } from "react";
import type { RunView } from "../api/types";
import { type Resource, useResource } from "../live/context";
import { metricsOf, roundsOf, useSlowly } from "../useRun";
import type { Compared } from "./lines";

const AT_A_TIME = 3;
const FOLLOWED_MS = 4000;

/** In order of the runs. */
export function useCompared(runs: readonly RunView[]): Resource<Compared[]> {
  const kept = useRef(new Map<string, { state: string; found: Compared }>());
  const states = useSlowly(runs.map((run) => `${run.run} ${run.seq}`).join(), FOLLOWED_MS);
  const chosen = runs.map((run) => run.run).join();
  return useResource<Compared[]>(`${chosen} ${states}`, async (signal) => {
    const ask = async (run: RunView): Promise<Compared> => {
      const state = `${run.seq} ${run.status}`;
      const before = kept.current.get(run.run);
      if (before?.state === state) return { ...before.found, run };
      const [rounds, metrics] = await Promise.all([
        roundsOf(run.run, before?.found.rounds ?? null, signal),
        metricsOf(run.run, signal),
      ]);
      const found = { run, rounds, metrics };
      kept.current.set(run.run, { state, found });
      return found;
    };
    const found: Compared[] = [];
    for (let first = 0; first < runs.length; first += AT_A_TIME) found.push(...(await Promise.all(runs.slice(first, first + AT_A_TIME).map(ask))));
    return found;
  });
}
