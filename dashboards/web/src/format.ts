// Numbers, bytes and times as people read them. Times of the API are Unix seconds; `now` is given.
const UNITS = ["B", "kB", "MB", "GB", "TB"] as const;

/** 157 MB, in steps of 1000. */
export function bytes(count: number): string {
  let value = count;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 99.95 ? value.toFixed(0) : value.toPrecision(value >= 9.995 ? 3 : 2)} ${UNITS[unit]}`;
}

/** A run's id, and in brackets the name that it was given later. */
export function runTitle(run: { run: string; name: string; plan: Record<string, unknown> }): string {
  return run.name === run.run || run.name === run.plan.name ? run.run : `${run.run} (${run.name})`;
}

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** 12,345 */
export function count(value: number): string {
  return WHOLE.format(value);
}

/** A metric: four significant digits, without an exponent where that stays short. */
export function metric(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e7) return value.toExponential(3);
  return String(Number(value.toPrecision(4)));
}

/** 0 s, 850 ms, 4.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "unknown";
  const s = Math.max(0, seconds);
  if (s === 0) return "0 s";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${Number(s.toFixed(1))} s`;
  if (s < 59.5) return `${Math.round(s)} s`;
  if (s < 3599.5) return pair(Math.round(s), 60, "min", "s");
  if (s < 86_370) return pair(Math.round(s / 60), 60, "h", "min");
  return pair(Math.round(s / 3600), 24, "d", "h");
}

/** An estimate, no more exact than it can be: 7 s, 45 s, 3 min 20 s, 25 min, 2 h 5 min. */
export function roughly(seconds: number): string {
  const step = seconds < 20 ? 1 : seconds < 60 ? 5 : seconds < 600 ? 10 : 60;
  return duration(Math.max(step, Math.round(seconds / step) * step));
}

function pair(value: number, base: number, large: string, small: string): string {
  const rest = value % base;
  return `${Math.floor(value / base)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

/** 4 s ago; just now, below two seconds or where clocks differ. */
export function ago(at: number, now: number): string {
  const s = now - at;
  return s < 2 ? "just now" : `${duration(Math.floor(s))} ago`;
}

/** 14:03:09 today, with the date on other days; in the reader's time zone. */
export function clock(at: number, now: number): string {
  const then = new Date(at * 1000);
  const time = then.toLocaleTimeString("en-GB");
  return then.toDateString() === new Date(now * 1000).toDateString() ? time : `${date(at)} ${time}`;
}

/** 2026-11-23 */
export function date(at: number): string {
  const then = new Date(at * 1000);
  const two = (part: number) => String(part).padStart(2, "0");
  return `${then.getFullYear()}-${two(then.getMonth() + 1)}-${two(then.getDate())}`;
}

/** 14:00, of the hour that begins then; in the reader's time zone. */
export function hour(at: number): string {
  return `${String(new Date(at * 1000).getHours()).padStart(2, "0")}:00`;
}

/** The first digits of a digest. */
export function short(digest: string): string {
  return digest.slice(0, 10);
}

/** 1 device, 3 devices */
export function many(value: number, one: string, several = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : several}`;
}

/** The API's words as a sentence: a capital letter, and a full stop. */
export function sentence(text: string): string {
  return text && text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
