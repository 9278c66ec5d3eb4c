// What a run's datacenter rounds say: how fast they trained, who had them, and how well more processes pay.
import type { LeaseRecord, LeasesView, RoundView, RunView } from "./api/types";
import { count } from "./format";
import type { Tone } from "./progress";

/** The plan's section as far as this page reads it; null: the plan asks for no datacenter rounds. */
export interface Section {
  data: string;
  nproc: number;
  batch_size: number;
  steps: number;
  every?: number | null;
  patience?: number | null;
}

export function section(run: RunView): Section | null {
  return ((run.plan as { datacenter?: Section | null }).datacenter ?? null) as Section | null;
}

/** Measures that a worker reports; null where it did not. */
export interface Speed {
  /** Examples trained on in a second, over all processes. */
  samples: number | null;
  /** The part of the time in which the first process waits for the others' gradients. */
  share: number | null;
}

/** Of the whole round where it was delivered, else as last reported. */
export function speed(round: RoundView): Speed {
  const told = { ...round.lease?.metrics, ...round.metrics };
  return { samples: told.samples_per_s ?? null, share: told.communication_share ?? null };
}

export function ofDatacenter(rounds: readonly RoundView[]): RoundView[] {
  return rounds.filter((round) => round.kind === "datacenter");
}

/** The newest round whose speed is known, or the newest one. Of at least one round. */
export function latestMeasured(found: readonly RoundView[]): RoundView {
  return (found.findLast((round) => speed(round).samples !== null) ?? found.at(-1)) as RoundView;
}

/** Rounds that came to the datacenter after rounds of devices, and the first one: when it took over. */
export function takeovers(rounds: readonly RoundView[]): RoundView[] {
  return rounds.filter((round, i) => round.kind === "datacenter" && rounds[i - 1]?.kind !== "datacenter");
}

/** Of the round: leases beyond its first one to the same worker after a restart, and restarts of processes under a lease. */
export function restarts(view: LeasesView): { workers: number; processes: number } {
  const most = new Map<number, number>();
  for (const point of view.points ?? []) most.set(point.attempt, Math.max(most.get(point.attempt) ?? 0, point.metrics?.restarts ?? 0));
  return { workers: view.restarts, processes: [...most.values()].reduce((sum, one) => sum + one, 0) };
}

export const BEGAN: Readonly<Record<LeaseRecord["began"], string>> = {
  first: "first lease",
  restarted: "the worker was started again",
  again: "the same worker once more",
  "taken-over": "another worker took over",
};

export const OUTCOMES: Readonly<Record<LeaseRecord["outcome"], readonly [Tone, string]>> = {
  held: ["busy", "held"],
  delivered: ["good", "delivered"],
  replaced: ["warn", "restarted"],
  silent: ["bad", "silent"],
  returned: ["idle", "given back"],
  failed: ["bad", "failed"],
  over: ["warn", "over"],
};

export type Scaling = { kind: "measured"; efficiency: number; here: number; alone: number; run: string; batch: "same" | "per process" } | { kind: "none"; why: string };

/** What must be equal for two runs to do the same work in each process. */
const SAME = ["data", "precision", "optimizer", "accumulate"] as const;

/** Runs whose datacenter rounds are this run's by one process: of the same batch, or of the same batch in each process. */
export function baselines(run: RunView, runs: readonly RunView[]): RunView[] {
  const mine = section(run);
  if (!mine || mine.nproc < 2) return [];
  return runs.filter((other) => {
    const its = section(other);
    if (!its || its.nproc !== 1 || other.run === run.run || other.clock !== run.clock) return false;
    const fields = SAME.every((name) => (its as never)[name] === (mine as never)[name]);
    const task = (one: RunView) => JSON.stringify([(one.plan as { task?: { learner?: string; learner_version?: string } }).task?.learner, (one.plan as { task?: { learner_version?: string } }).task?.learner_version]);
    return fields && task(run) === task(other) && (its.batch_size === mine.batch_size || its.batch_size * mine.nproc === mine.batch_size);
  });
}

/**
 * S_N / (N S_1): the samples a second of N processes against N times those of one, medians over committed rounds, on one
 * worker. Only where both were measured.
 */
export function scaling(run: RunView, rounds: readonly RoundView[], others: readonly { run: RunView; rounds: readonly RoundView[] }[]): Scaling {
  const mine = section(run);
  if (!mine || mine.nproc < 2) return { kind: "none", why: "This run trains with one process. It is the baseline of runs like it with more." };
  const worker = ofDatacenter(rounds).findLast((round) => speed(round).samples !== null && round.status === "committed")?.lease?.worker;
  const here = worker === undefined ? null : measured(rounds, worker);
  if (here === null || worker === undefined) return { kind: "none", why: "No committed round has reported its samples per second." };
  for (const other of others) {
    const alone = measured(other.rounds, worker);
    const its = section(other.run);
    if (alone === null || alone === 0 || !its) continue;
    return { kind: "measured", efficiency: here / (mine.nproc * alone), here, alone, run: other.run.run, batch: its.batch_size === mine.batch_size ? "same" : "per process" };
  }
  return {
    kind: "none",
    why: `No baseline was measured: no run in your scope has trained the same learner and data on worker ${worker} with nproc = 1, in batches of ${count(mine.batch_size)} or of ${count(Math.round(mine.batch_size / mine.nproc))}.`,
  };
}

/** The median over the committed rounds of this worker; null where none has said it. */
function measured(rounds: readonly RoundView[], worker: string): number | null {
  const found = ofDatacenter(rounds)
    .filter((round) => round.status === "committed" && round.lease?.worker === worker)
    .map((round) => speed(round).samples)
    .filter((value) => value !== null)
    .sort((a, b) => a - b);
  const middle = found.length >> 1;
  if (!found.length) return null;
  return found.length % 2 ? (found[middle] ?? null) : ((found[middle - 1] ?? 0) + (found[middle] ?? 0)) / 2;
}
