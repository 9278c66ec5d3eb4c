// What the comparison shows, and the address that keeps it: whoever opens the address sees the same.
export const AXES = ["round", "wall", "virtual", "bytes"] as const;
export type Axis = (typeof AXES)[number];
export const AXIS_NAMES: Readonly<Record<Axis, string>> = { round: "round", wall: "wall time", virtual: "virtual time", bytes: "bytes received" };
export const MOST_RUNS = 20;
/** Weights of what came before in the moving average. */
export const SMOOTHINGS = [0, 0.5, 0.8, 0.9, 0.97] as const;

export interface View {
  runs: readonly string[];
  /** Null: the one that the runs' plans name, or the first. */
  metric: string | null;
  /** Of the metric's values; null: the first. */
  source: string | null;
  axis: Axis;
  smoothing: number;
  log: boolean;
  /** Whether runs that differ in the seed only are one band. */
  bands: boolean;
}

export const FIRST_VIEW: View = { runs: [], metric: null, source: null, axis: "round", smoothing: 0, log: false, bands: true };

/** The view of an address's query. What it does not say, or says in a way that is not known, is as in the first view. */
export function decode(query: string): View {
  const said = new URLSearchParams(query);
  const axis = AXES.find((name) => name === said.get("x")) ?? FIRST_VIEW.axis;
  const smoothing = Number(said.get("smooth") ?? 0);
  const runs = (said.get("runs") ?? "").split(",").filter(Boolean);
  return {
    runs: [...new Set(runs)].slice(0, MOST_RUNS),
    metric: said.get("metric") || null,
    source: said.get("source") || null,
    axis,
    smoothing: smoothing > 0 && smoothing < 1 ? smoothing : 0,
    log: said.get("scale") === "log",
    bands: said.get("bands") !== "off",
  };
}

/** The query of a view: its runs, and what is not as in the first view. Names have no comma, so a list of them reads as it is. */
export function encode(view: View): string {
  const parts: [string, string][] = [["runs", view.runs.map(encodeURIComponent).join(",")]];
  if (view.metric !== null) parts.push(["metric", encodeURIComponent(view.metric)]);
  if (view.source !== null) parts.push(["source", encodeURIComponent(view.source)]);
  if (view.axis !== FIRST_VIEW.axis) parts.push(["x", view.axis]);
  if (view.smoothing) parts.push(["smooth", String(view.smoothing)]);
  if (view.log) parts.push(["scale", "log"]);
  if (!view.bands) parts.push(["bands", "off"]);
  return parts.map(([name, value]) => `${name}=${value}`).join("&");
}

/** Whether the address names its runs; one that does not shows some of the newest. */
export function namesRuns(query: string): boolean {
  return new URLSearchParams(query).has("runs");
}
