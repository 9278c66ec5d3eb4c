// Which tensors of a first model are statistics, as somebody types it: what `--statistic` of `quorate run create` takes.
export type Statistics = Record<string, "statistic" | "non-negative">;

/** Names or patterns, apart by commas or spaces; `NAME>=0`: never below 0; `none`: there are none. Null: nothing is said, so the names tell. */
export function statisticsOf(typed: string): Statistics | null {
  const words = typed
    .replace(/\s*>=\s*0/g, ">=0")
    .split(/[\s,]+/)
    .filter(Boolean);
  if (!words.length) return null;
  if (words.length === 1 && words[0] === "none") return {};
  return Object.fromEntries(words.map((word) => (word.endsWith(">=0") ? [word.slice(0, -3), "non-negative"] : [word, "statistic"])));
}
