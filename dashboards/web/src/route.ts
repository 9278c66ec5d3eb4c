// Which screen is shown: the part of the address behind `#`, so that the page works below any path.
import { useSyncExternalStore } from "react";

/** Screens that belong to no run. */
export const WHOLE_SCREENS = ["compare", "fleet", "system", "audit"] as const;
export type Route =
  | { screen: "runs" }
  | { screen: "run"; run: string; section: RunSection }
  | { screen: (typeof WHOLE_SCREENS)[number] }
  | { screen: "round"; run: string; round: number }
  | { screen: "device"; device: string }
  | { screen: "start"; from: Start | null }
  | { screen: "missing"; path: string };
export const RUN_SECTIONS = ["live", "secure", "privacy", "datacenter", "checkpoints"] as const;
export type RunSection = (typeof RUN_SECTIONS)[number];
/** A checkpoint of a run: what a new run is started from. */
export interface Start {
  run: string;
  version: number;
}

export function parse(hash: string): Route {
  const path = hash.replace(/^#\/?/, "").split("?")[0] ?? "";
  const [first = "", second, third = "live", ...more] = path.split("/").map(decoded);
  if (first === "" || (first === "runs" && second === undefined)) return { screen: "runs" };
  const section = RUN_SECTIONS.find((name) => name === third);
  if (first === "runs" && second && section && !more.length) return { screen: "run", run: second, section };
  const whole = WHOLE_SCREENS.find((name) => name === first);
  if (whole && second === undefined) return { screen: whole };
  if (first === "runs" && second && third === "rounds" && /^[1-9]\d{0,8}$/.test(more.join("/"))) return { screen: "round", run: second, round: Number(more[0]) };
  if (first === "fleet" && second && third === "live" && !more.length) return { screen: "device", device: second };
  if (first === "start" && second === undefined) return { screen: "start", from: null };
  if (first === "start" && second && /^\d{1,9}$/.test(third) && !more.length) return { screen: "start", from: { run: second, version: Number(third) } };
  return { screen: "missing", path };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function runPath(run: string, section: RunSection = "live"): string {
  return `#/runs/${encodeURIComponent(run)}${section === "live" ? "" : `/${section}`}`;
}

export function roundPath(run: string, round: number): string {
  return `${runPath(run)}/rounds/${round}`;
}

export function devicePath(device: string): string {
  return `#/fleet/${encodeURIComponent(device)}`;
}

export function startPath(from: Start | null = null): string {
  return from ? `#/start/${encodeURIComponent(from.run)}/${from.version}` : "#/start";
}

function subscribe(listener: () => void): () => void {
  addEventListener("hashchange", listener);
  return () => removeEventListener("hashchange", listener);
}

export function useRoute(): Route {
  return parse(useSyncExternalStore(subscribe, () => location.hash));
}

/** What follows `?` in the address of the screen. */
export function useQuery(): string {
  return useSyncExternalStore(subscribe, query);
}

/** The same now: what is drawn follows an address that was just changed a moment later. */
export function query(): string {
  return location.hash.split("?")[1] ?? "";
}
