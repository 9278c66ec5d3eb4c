// A plan as the text of its TOML file, and changes of single fields in it that leave the rest, comments too, as it is. The text is read by a
// library; a change is made on its line, and taken only where the library then reads the plan that was wanted.
import { parse, stringify, TomlError } from "smol-toml";

export type Plan = Record<string, unknown>;
/** The names that lead to a field: `["cohort", "goal"]`. */
export type Where = readonly string[];
export type Read = { plan: Plan; mistake: null } | { plan: null; mistake: { line: number; what: string } };

export function read(text: string): Read {
  try {
    return { plan: parse(text) as Plan, mistake: null };
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const what = error.message.split("\n")[0] ?? "";
    return { plan: null, mistake: { line: error.line, what: what.replace(/^Invalid TOML document: /, "This is not TOML: ") } };
  }
}

/** What the plan says at this place; undefined: nothing. */
export function at(plan: unknown, where: Where): unknown {
  return where.reduce<unknown>((found, name) => (isTable(found) && Object.hasOwn(found, name) ? found[name] : undefined), plan);
}

/** The line, from 1, on which this field ends or the header of this section is: with the first lines up to it, the text is TOML that has it. */
export function lineOf(text: string, where: Where): number | null {
  if (!where.length) return null;
  const lines = text.split("\n");
  for (let count = 1; count <= lines.length; count += 1) {
    const found = read(lines.slice(0, count).join("\n"));
    if (found.plan && at(found.plan, where) !== undefined) return count;
  }
  return null;
}

/** The line where a mistake at this place is put right: its own, or that of the section around it. */
export function lineFor(text: string, where: Where): number | null {
  return lineOf(text, where) ?? lineOf(text, where.slice(0, -1));
}

/** The text with one field set, or without it where the value is undefined. Text that is not TOML stays as it is. */
export function changed(text: string, where: Where, value: unknown): string {
  const { plan } = read(text);
  if (!plan) return text;
  const wanted = withField(plan, where, value);
  const made = edited(text, where, value);
  const found = read(made);
  return found.plan && same(found.plan, wanted) ? made : written(wanted);
}

/** A plan as a new text; what is null is left out. */
export function written(plan: Plan): string {
  return stringify(plan);
}

function edited(text: string, where: Where, value: unknown): string {
  const lines = text.split("\n");
  const own = lineOf(text, where);
  const assignment = value === undefined ? [] : [stringify({ [where.at(-1) ?? ""]: value }).trimEnd()];
  if (own !== null) {
    const first = beginning(lines, own);
    const comment = first === own - 1 ? (/\s+#[^"']*$/.exec(lines[first] ?? "")?.[0] ?? "") : "";
    lines.splice(first, own - first, ...assignment.map((line) => line + comment));
    return lines.join("\n");
  }
  const section = where.slice(0, -1);
  const header = lineOf(text, section);
  if (section.length && header === null) return `${text.trimEnd()}\n\n[${section.join(".")}]\n${assignment.join("\n")}\n`;
  const { plan } = read(text);
  const fields = Object.entries(at(plan, section) ?? {}).filter(([, one]) => !isTable(one));
  const last = Math.max(header ?? 0, ...fields.map(([name]) => lineOf(text, [...section, name]) ?? 0));
  lines.splice(last, 0, ...assignment);
  return lines.join("\n");
}

/** The index of the line on which what ends with line `end` begins: the lines before it are TOML by themselves. */
function beginning(lines: readonly string[], end: number): number {
  for (let count = end - 1; count > 0; count -= 1) if (read(lines.slice(0, count).join("\n")).plan) return count;
  return 0;
}

function withField(plan: Plan, where: Where, value: unknown): Plan {
  const [name = "", ...rest] = where;
  const { [name]: before, ...others } = plan;
  const after = rest.length ? withField(isTable(before) ? before : {}, rest, value) : value;
  return after === undefined ? others : { ...others, [name]: after };
}

export function isTable(value: unknown): value is Plan {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Date);
}

/** Whether two values are equal, whatever the order of their fields. */
export function same(a: unknown, b: unknown): boolean {
  if (Array.isArray(a)) return Array.isArray(b) && a.length === b.length && a.every((one, i) => same(one, b[i]));
  if (!isTable(a) || !isTable(b)) return Object.is(a, b);
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => Object.hasOwn(b, name) && same(a[name], b[name]));
}
