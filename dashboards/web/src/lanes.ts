// A round's lanes: what each device did when, in which order they are shown, and who did not report. Pure functions of what the API said.
import type { Lane, LanesView } from "./api/types";
import { count, duration, many, sentence } from "./format";
import type { Tone } from "./progress";

export type End = Lane["end"];
export type Step = "wait" | "fetch" | "train" | "upload";

/** What a device did from one time to the other, Unix seconds. */
export interface Segment {
  step: Step;
  from: number;
  to: number;
}

/** A part of the round's time, Unix seconds. */
export interface Span {
  from: number;
  to: number;
}

/** Ends as they are listed: those that need a look come first. */
export const ENDS = ["refused", "dropped", "late", "withdrawn", "waiting", "training", "reported"] as const satisfies readonly End[];
export const TONES: Readonly<Record<End, Tone>> = {
  reported: "good",
  training: "busy",
  waiting: "idle",
  withdrawn: "idle",
  late: "warn",
  dropped: "bad",
  refused: "bad",
};
export const STEPS: Readonly<Record<Step, string>> = {
  wait: "waits",
  fetch: "fetches",
  train: "trains",
  upload: "encodes, uploads",
};

/**
 * The steps of a device in order, none of them empty. How long it fetched and trained is known of devices that reported: of others, what
 * came before they began is waiting, and what came after is training. `closedAt`: when the round closed; null: it has not.
 */
export function segments(lane: Lane, closedAt: number | null, now: number): Segment[] {
  const begin = lane.selected_at;
  const over = Math.max(begin, lane.ended_at ?? now);
  const started = Math.min(lane.started_at ?? over, over);
  const fetching = Math.max(begin, started - (lane.fetch_s ?? 0));
  const trained = lane.train_s == null ? over : Math.min(over, started + lane.train_s);
  const found: Segment[] = [
    { step: "wait", from: begin, to: fetching },
    { step: "fetch", from: fetching, to: started },
    { step: "train", from: started, to: trained },
    { step: "upload", from: trained, to: over },
  ];
  if (lane.end === "reported") found.push({ step: "wait", from: over, to: closedAt ?? now });
  return found.filter((one) => one.to > one.from);
}

/** From the selection until the last thing that happened; never empty. */
export function whole(lanes: readonly Lane[], openedAt: number, closedAt: number | null, now: number): Span {
  let from = Number.POSITIVE_INFINITY;
  let to = closedAt ?? now;
  for (const lane of lanes) {
    from = Math.min(from, lane.selected_at);
    to = Math.max(to, lane.ended_at ?? lane.started_at ?? 0);
  }
  if (!Number.isFinite(from)) from = openedAt;
  return { from, to: Math.max(to, from + 0.001) };
}

/** What is shown first: the round, and half as much again of what came late. */
export function firstSpan(all: Span, closedAt: number | null): Span {
  if (closedAt === null || closedAt <= all.from) return all;
  return { from: all.from, to: Math.min(all.to, closedAt + (closedAt - all.from) / 2) };
}

const LEAST_S = 0.01;

/** The span within `all`, as long as before where there is room. */
export function within(span: Span, all: Span): Span {
  const length = Math.min(all.to - all.from, Math.max(LEAST_S, span.to - span.from));
  const from = Math.min(Math.max(span.from, all.from), all.to - length);
  return { from, to: from + length };
}

/** `factor` times as long around the same middle: below 1 it zooms in. */
export function zoomed(span: Span, factor: number, all: Span): Span {
  const middle = (span.from + span.to) / 2;
  const half = ((span.to - span.from) / 2) * factor;
  return within({ from: middle - half, to: middle + half }, all);
}

/** Moved by this share of its length. */
export function moved(span: Span, share: number, all: Span): Span {
  const by = (span.to - span.from) * share;
  return within({ from: span.from + by, to: span.to + by }, all);
}

/** Where a time stands in the span, in percent; below 0 and above 100 outside. */
export function place(at: number, span: Span): number {
  return ((at - span.from) / (span.to - span.from)) * 100;
}

const TICKS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 43_200, 86_400];

/** Seconds since `begin` at which a mark stands, at most this many, at round numbers. */
export function ticks(span: Span, begin: number, most: number): number[] {
  const length = span.to - span.from;
  const step = TICKS.find((one) => length / one <= most) ?? 86_400 * Math.ceil(length / 86_400 / most);
  const first = Math.ceil((span.from - begin) / step - 1e-9);
  const found: number[] = [];
  for (let i = first; i * step <= span.to - begin + 1e-9; i += 1) found.push(Number((i * step).toFixed(3)));
  return found;
}

const ORDERS = {
  "who was over first": (a, b) => (a.ended_at ?? Number.POSITIVE_INFINITY) - (b.ended_at ?? Number.POSITIVE_INFINITY),
  "how it ended": (a, b) => ENDS.indexOf(a.end) - ENDS.indexOf(b.end),
  "longest training": (a, b) => (b.train_s ?? -1) - (a.train_s ?? -1),
  "longest fetching": (a, b) => (b.fetch_s ?? -1) - (a.fetch_s ?? -1),
  "largest update": (a, b) => (b.bytes ?? -1) - (a.bytes ?? -1),
  "device": (a, b) => named(a).localeCompare(named(b)),
} as const satisfies Record<string, (a: Lane, b: Lane) => number>;
export type Order = keyof typeof ORDERS;
export const ORDER_NAMES = Object.keys(ORDERS) as Order[];

/** In this order; devices that are equal in it by their end, then by id. Infinite times are equal. */
export function inOrder(lanes: readonly Lane[], order: Order): Lane[] {
  const compare: (a: Lane, b: Lane) => number = ORDERS[order];
  return [...lanes].sort((a, b) => compare(a, b) || a.device.localeCompare(b.device));
}

/** Its label, or its id where it has none. */
export function named(lane: Lane): string {
  return lane.label || lane.device;
}

/** Of counts for each part of the time, how many there were up to the end of each. */
export function summedUp(counts: readonly number[]): number[] {
  let sum = 0;
  return counts.map((one) => {
    sum += one;
    return sum;
  });
}

/** How many devices ended so. */
export function ended(view: LanesView, end: End): number {
  return view.ends?.[end] ?? 0;
}

export interface Exit {
  end: End;
  devices: number;
  /** Where they left, or how late they were; empty where single devices are not known. */
  where: string;
}

/** Those that did not report, by how they ended, and where they were then. */
export function exits(view: LanesView, closedAt: number | null): Exit[] {
  const all = view.lanes ?? [];
  const told = all.length === view.devices;
  return (["late", "dropped", "withdrawn", "refused"] as const)
    .filter((end) => ended(view, end) > 0)
    .map((end) => {
      const lanes = told ? all.filter((lane) => lane.end === end) : [];
      return { end, devices: ended(view, end), where: lanes.length ? whereabouts(end, lanes, closedAt) : "" };
    });
}

function whereabouts(end: End, lanes: readonly Lane[], closedAt: number | null): string {
  if (end === "late" && closedAt !== null) {
    const most = Math.max(...lanes.map((lane) => (lane.ended_at ?? closedAt) - closedAt));
    return lanes.length === 1 ? `It came ${duration(most)} after the round had closed.` : `They came up to ${duration(most)} after the round had closed.`;
  }
  if (end === "dropped") {
    const training = lanes.filter((lane) => lane.started_at != null).length;
    const parts = [training && `${count(training)} while training`, lanes.length - training && `${count(lanes.length - training)} before training began`];
    return `Last heard: ${parts.filter(Boolean).join(", ")}.`;
  }
  const reasons = new Map<string, number>();
  for (const lane of lanes) reasons.set(lane.reason, (reasons.get(lane.reason) ?? 0) + 1);
  const [[reason, times] = ["", 0]] = [...reasons].sort((a, b) => b[1] - a[1]);
  const rest = reasons.size > 1 ? ` (${many(times, "device")}; ${many(reasons.size - 1, "other reason")})` : "";
  return reason ? `${sentence(reason)}${rest}` : "";
}
