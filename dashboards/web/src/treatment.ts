// What was done to the updates of a round, in words. What is null is not known: in secure rounds devices clip and weigh under masks.
import type { RoundView } from "./api/types";
import { count } from "./format";

const COUNTS = [
  ["clipped", "scaled down to clip_norm"],
  ["capped", "weighed less than their examples"],
  ["partial", "of work cut short by a deadline"],
  ["statistics_cut", "with statistics cut to their range"],
] as const;

/** A clause for each thing that was done; none where nothing was, or nothing is known. */
export function treated(round: RoundView): string[] {
  const done = round.treatment;
  if (!done) return [];
  const found = COUNTS.filter(([name]) => done[name]).map(([name, words]) => `${count(done[name] ?? 0)} of ${count(round.funnel?.reported ?? 0)} updates ${words}`);
  if (done.rounding) found.push(done.clipped === null ? `rounding is about ${done.rounding.toPrecision(2)} of the step` : `rounding errors up to ${done.rounding.toPrecision(2)} of an update's largest value`);
  if (done.zero_sum) found.push("the sum of the updates was zero");
  if (done.raised) found.push(`${count(done.raised)} values of statistics would have been below 0`);
  if (done.duplicates) found.push(`${count(done.duplicates)} second updates of a device, which may be two`);
  for (const [reason, many] of Object.entries(done.refused ?? {})) found.push(`${count(many)} refused: ${reason}`);
  return found;
}
