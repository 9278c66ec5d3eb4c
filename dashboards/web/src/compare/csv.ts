// The shown values as a file of comma-separated values (RFC 4180).
import type { Line } from "./lines";
import type { Axis } from "./view";

const UNITS: Readonly<Record<Axis, string>> = { round: "round", wall: "wall_s", virtual: "virtual_s", bytes: "bytes_received" };

/** A row for each value of each run: where it lies on the axis, the value, and the smoothed value. */
export function csv(lines: readonly Line[], metric: string, source: string, axis: Axis): string {
  const beside = axis === "round" ? [] : [UNITS[axis]];
  const head = ["run", "source", "round", "version", ...beside, metric, `${metric}_smoothed`, "examples"];
  const rows = lines.flatMap((one) =>
    one.samples.map((sample) => [one.run, source, sample.round, sample.version, ...(axis === "round" ? [] : [sample.x]), sample.value, sample.y, sample.examples]),
  );
  return [head, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

function cell(value: string | number): string {
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
