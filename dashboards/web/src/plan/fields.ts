// The fields of a plan, as the API's schema describes them: which of them the form shows, and which need not be written.
import { at, isTable, type Plan, same, type Where } from "./text";

export interface Group {
  title: string;
  /** The section that it belongs to; it is shown only where the plan has it, unless it is `always`. */
  section: string;
  always: boolean;
  fields: readonly string[];
}

/** What most plans set. All other fields are written in the text. */
export const GROUPS: readonly Group[] = [
  { title: "Run", section: "finish", always: true, fields: ["name", "finish.rounds", "finish.metric", "finish.target"] },
  { title: "Task", section: "task", always: true, fields: ["task.learner", "task.epochs", "task.batch_size", "task.learning_rate", "task.mu"] },
  { title: "Cohort", section: "cohort", always: true, fields: ["cohort.select", "cohort.goal", "cohort.quorum", "cohort.select_s", "cohort.collect_s"] },
  { title: "Aggregation", section: "aggregation", always: true, fields: ["aggregation.rule", "aggregation.weighting", "aggregation.clip_norm", "aggregation.server_learning_rate"] },
  { title: "Secure rounds", section: "secure", always: false, fields: ["secure.profile", "secure.max_norm", "secure.max_abs", "secure.minimum_cohort", "secure.exchange_s"] },
];

export interface Field {
  kind: "whole" | "number" | "text" | "choice" | "flag" | "other";
  choices: readonly string[];
  default: unknown;
  required: boolean;
  /** What it means, in plain text. */
  meaning: string;
}

/** What the schema says of a field; null: there is no such field. */
export function field(schema: Plan, where: Where): Field | null {
  const section = where.slice(0, -1).reduce<Plan | null>((found, name) => found && sectionOf(schema, found, name), schema);
  const name = where.at(-1) ?? "";
  const found = section && at(section, ["properties", name]);
  if (!section || !isTable(found)) return null;
  const shape = variants(found).find((one) => one.type !== "null") ?? found;
  const required = Array.isArray(section.required) && section.required.includes(name);
  return { kind: kindOf(shape), choices: choicesOf(shape), default: found.default ?? null, required, meaning: plain(found.description) };
}

/** The plan without what the schema says anyway: nothing, and defaults. */
export function lean(plan: Plan, schema: Plan): Plan {
  const cut = (found: Plan, of: Plan | null): Plan =>
    Object.fromEntries(
      Object.entries(found).flatMap(([name, value]): [string, unknown][] => {
        if (value === null) return [];
        const described = of && at(of, ["properties", name]);
        const section = of && sectionOf(schema, of, name);
        if (isTable(value) && section) {
          const rest = cut(value, section);
          return Object.keys(rest).length || !isTable(described) || !("default" in described) || described.default === null ? [[name, rest]] : [];
        }
        return isTable(described) && "default" in described && same(described.default, value) ? [] : [[name, value]];
      }),
    );
  return cut(plan, schema);
}

function variants(found: Plan): Plan[] {
  return Array.isArray(found.anyOf) ? found.anyOf.filter(isTable) : [found];
}

function sectionOf(schema: Plan, of: Plan, name: string): Plan | null {
  const found = at(of, ["properties", name]);
  if (!isTable(found)) return null;
  const reference = variants(found).find((one) => typeof one.$ref === "string")?.$ref;
  const section = typeof reference === "string" ? at(schema, reference.replace(/^#\//, "").split("/")) : undefined;
  return isTable(section) && isTable(section.properties) ? section : null;
}

function choicesOf(shape: Plan): string[] {
  return Array.isArray(shape.enum) ? shape.enum.map(String) : [];
}

function kindOf(shape: Plan): Field["kind"] {
  if (Array.isArray(shape.enum)) return "choice";
  const kinds: Record<string, Field["kind"]> = { integer: "whole", number: "number", string: "text", boolean: "flag" };
  return kinds[String(shape.type)] ?? "other";
}

/** Of a docstring the first two sentences, without its marks and the example at its end. */
function plain(text: unknown): string {
  if (typeof text !== "string") return "";
  const words = text.replace(/\s*``\w+ = [^`]*``$/, "").replace(/``?([^`]*)``?/g, "$1").replace(/\*([^*]+)\*/g, "$1");
  return words.split(/(?<=[.;:]) (?=[A-Z0-9])/).slice(0, 2).join(" ");
}

/** Its first sentence; an abbreviation before a number ends none. */
export function brief(meaning: string): string {
  return meaning.split(/(?<=\.) (?=[A-Z])/)[0] ?? "";
}
