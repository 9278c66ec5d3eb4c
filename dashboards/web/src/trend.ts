// A trend in words.
import type { Trend } from "./curves";
import { many, metric } from "./format";

/** "▲ +0.013 in 5 rounds". Whether up is better, only who chose the metric knows. */
export function trendInWords({ by, rounds }: Trend, unit: "round" | "version" = "round"): string {
  const size = metric(Number(Math.abs(by).toPrecision(2)));
  return `${by > 0 ? `▲ +${size}` : by < 0 ? `▼ −${size}` : "unchanged"} in ${many(rounds, unit)}`;
}
