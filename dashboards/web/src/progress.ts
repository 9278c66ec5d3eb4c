// What a run's rounds say of its pace and its health. Pure functions of what the API said and of the time.
import type { RoundView, RunView } from "./api/types";
import { clock, count, roughly, sentence } from "./format";

const PACE_OF = 10;

/** Seconds from one committed round to the next: the median of the last ten. Null before there are two. */
export function pace(rounds: readonly RoundView[]): number | null {
  const closed = rounds.filter((round) => round.status === "committed" && round.closed_at != null).map((round) => round.closed_at as number);
  const last = closed.slice(-PACE_OF - 1);
  const gaps = last.slice(1).map((at, i) => at - (last[i] ?? at));
  if (!gaps.length) return null;
  gaps.sort((a, b) => a - b);
  const middle = gaps.length >> 1;
  return gaps.length % 2 ? (gaps[middle] ?? null) : ((gaps[middle - 1] ?? 0) + (gaps[middle] ?? 0)) / 2;
}

/** Seconds until the run has its rounds, at its pace; null where that cannot be said. The round under way counts with what is left of it. */
export function left(run: RunView, rounds: readonly RoundView[], now: number): number | null {
  const each = pace(rounds);
  if (each === null || run.status !== "running" || run.stalled || run.trouble || run.exhausted) return null;
  const last = rounds.findLast((round) => round.status === "committed" && round.closed_at != null)?.closed_at;
  const gone = run.clock === "wall" && last != null ? Math.min(each, Math.max(0, now - last)) : 0;
  return Math.max(0, each * Math.max(0, run.rounds_wanted - run.rounds_committed) - gone);
}

export type Tone = "good" | "busy" | "warn" | "bad" | "idle";
export interface Health {
  tone: Tone;
  /** One or two words. */
  word: string;
  sentence: string;
  /** A command that helps, where one does. */
  command: string | null;
}

/** Whether the round under way has drawn its cohort, so that who waited was counted. */
export function drawn(run: RunView): boolean {
  return run.phase !== "selecting" && run.phase !== "leasing";
}

/** Whether the run goes on, in one sentence, and what to do where it does not. */
export function health(run: RunView): Health {
  const state = (tone: Tone, word: string, sentence: string, command: string | null = null): Health => ({ tone, word, sentence, command });
  if (run.trouble) return state("bad", "trouble", run.trouble, `quorate status ${run.run}`);
  if (run.status === "failed") return state("bad", "failed", sentence(run.reason) || "Its ServerApp has failed.");
  if (run.flower && run.status === "finished") return state("good", "finished", sentence(run.reason) || "Its ServerApp has finished.");
  if (run.status === "finished") return state("good", "finished", sentence(run.reason), `quorate checkpoint get ${run.run} -o model.safetensors`);
  if (run.status === "stopped") return state("idle", "stopped", sentence(run.reason));
  if (run.exhausted) return state("bad", "exhausted", run.exhausted, `quorate run advance ${run.run}`);
  if (run.status === "paused") return state("idle", "paused", sentence(run.reason) || "Paused.", `quorate run resume ${run.run}`);
  if (run.stalled) return state("warn", "stands still", sentence(run.stalled), stalledCommand(run));
  if (run.flower) return state("busy", "live", run.phase === "idle" ? "The ServerApp computes; no message waits for a reply." : "Messages wait for the replies of their devices.");
  return state("busy", "live", PHASES[run.phase], null);
}

function stalledCommand(run: RunView): string {
  if (run.flower) return "quorate device --flower APP_DIR --token-file FILE";
  if (run.phase === "leasing") return "quorate datacenter join --token-file FILE --data NAME";
  if (run.phase === "selecting") return `quorate device --learner ${learner(run) ?? "PACKAGE:NAME"} --token-file FILE --data DATA`;
  return `quorate rounds ${run.run}`;
}

/** What happens in each phase. */
export const PHASES: Readonly<Record<RunView["phase"], string>> = {
  idle: "Between two rounds.",
  selecting: "Waiting for devices, of which it selects a cohort.",
  collecting: "The cohort trains and sends its updates.",
  leasing: "Waiting for a datacenter worker to take the round.",
  training: "A datacenter worker trains the round; no device is asked.",
  sharing: "The devices share their secrets with each other.",
  masking: "The devices send their masked updates.",
  agreeing: "The devices sign who survived.",
  unmasking: "The devices reveal what removes the masks of the sum.",
  committing: "The next checkpoint is computed and committed.",
};

/** How long the round has taken, or took. */
export function roundSeconds(round: RoundView, now: number): number {
  return (round.closed_at ?? now) - round.opened_at;
}

/** How many reports close a round, from the run's plan; null where it does not say. In a Flower run: messages that were pushed. */
export function goal(run: RunView): number | null {
  if (run.flower) return run.funnel.selected;
  const cohort = (run.plan as { cohort?: { goal?: unknown } }).cohort;
  return typeof cohort?.goal === "number" ? cohort.goal : null;
}

/** "3 min 20 s"; null where that cannot be said. */
export function eta(run: RunView, rounds: readonly RoundView[], now: number): string | null {
  const seconds = left(run, rounds, now);
  return seconds === null ? null : roughly(seconds);
}

function learner(run: RunView): string | undefined {
  return (run.plan as { task?: { learner?: string } }).task?.learner;
}

/** How often the selection of a round found too few devices. Of an open round's first time its reason tells. */
export function missed(round: RoundView, now: number): string {
  const often = round.missed ?? 0;
  if (often <= (round.status === "open" ? 1 : 0)) return "";
  return `too few devices ${often === 1 ? "once" : `${count(often)} times, the last time`} at ${clock(round.missed_at ?? 0, now)}`;
}

/** How many versions the reports of a buffered round were behind, where any was. */
export function stale(round: RoundView): string {
  const late = (round.staleness ?? []).flatMap((reports, behind) => (reports && behind ? [`${count(reports)} by ${behind}`] : []));
  return late.length ? `versions behind: ${late.join(", ")}` : "";
}
