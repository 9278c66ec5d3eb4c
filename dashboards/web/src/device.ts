// What one device's rounds say when they are counted: by hour, and why its updates were refused.
import type { DeviceDetail, DeviceView } from "./api/types";
import { sentence } from "./format";
import type { Tone } from "./progress";

export type DeviceRound = DeviceDetail["rounds"][number];
export type Result = DeviceRound["result"];
export type Certificate = NonNullable<DeviceDetail["certificate"]>;

export const STATE_TONES: Readonly<Record<DeviceView["state"], Tone>> = { waiting: "good", unfit: "warn", assigned: "busy", away: "idle", left: "bad" };
/** A state for people: an *unfit* device waits, and fits no run. */
export const stateName = (state: DeviceView["state"]): string => (state === "unfit" ? "waiting, fits no run" : state);
/** What keeps a device from working, and that two processes use its identity, in sentences; empty: nothing is known. */
export const amiss = (device: DeviceView): string => [device.unfit, device.warning].filter((one): one is string => !!one).map(sentence).join(" ");
export const RESULTS: Readonly<Record<Result, Tone>> = { counted: "good", refused: "bad", late: "warn" };
const HOUR_S = 3600;
const HOURS = 24;
const SOON_S = 7 * 86_400;

export interface Hour {
  /** Unix seconds. */
  from: number;
  ends: Record<Result, number>;
}

/** The last 24 hours in order, the current one last, with how the device's rounds ended in each. */
export function byHour(rounds: readonly DeviceRound[], now: number): Hour[] {
  const last = Math.floor(now / HOUR_S);
  const hours = Array.from({ length: HOURS }, (_, i): Hour => ({ from: (last - HOURS + 1 + i) * HOUR_S, ends: { counted: 0, late: 0, refused: 0 } }));
  for (const one of rounds) {
    const hour = one.at == null ? undefined : hours[Math.floor(one.at / HOUR_S) - last + HOURS - 1];
    if (hour) hour.ends[one.result] += 1;
  }
  return hours;
}

export interface Reason {
  reason: string;
  result: Result;
  times: number;
}

/** Why its updates did not count, the most frequent reason first. */
export function reasons(rounds: readonly DeviceRound[]): Reason[] {
  const found = new Map<string, Reason>();
  for (const { reason, result } of rounds) {
    if (result === "counted") continue;
    const known = found.get(`${result} ${reason}`) ?? { reason, result, times: 0 };
    found.set(`${result} ${reason}`, { ...known, times: known.times + 1 });
  }
  return [...found.values()].sort((a, b) => b.times - a.times);
}

/** How a certificate stands, in a word; a device renews it well before it expires. */
export function standing(certificate: Certificate | null, now: number): { tone: Tone; word: string } {
  if (!certificate) return { tone: "idle", word: "none" };
  if (certificate.refused === "revoked-key") return { tone: "bad", word: "revoked" };
  if (certificate.refused === "expired-certificate") return { tone: "bad", word: now < certificate.not_before ? "not valid yet" : "expired" };
  if (certificate.refused) return { tone: "bad", word: "not taken" };
  return certificate.not_after - now < SOON_S ? { tone: "warn", word: "expires soon" } : { tone: "good", word: "valid" };
}
