// In which fields the plans of runs differ.
export interface Difference {
  /** The field's path: `task.learning_rate`. */
  field: string;
  /** The value in each run's plan, in order of the runs; "–" where the plan has no such field. */
  values: string[];
}

export const ABSENT = "–";

/** The fields whose values are not the same in all plans, in the order of the plans' fields. */
export function differences(plans: readonly unknown[]): Difference[] {
  const flat = plans.map((plan) => new Map(fields(plan, "")));
  const names = [...new Set(flat.flatMap((plan) => [...plan.keys()]))];
  return names
    .map((field) => ({ field, values: flat.map((plan) => plan.get(field) ?? ABSENT) }))
    .filter(({ values }) => new Set(values).size > 1);
}

function fields(value: unknown, path: string): [string, string][] {
  if (typeof value === "object" && value !== null && !Array.isArray(value))
    return Object.entries(value).flatMap(([name, part]) => fields(part, path ? `${path}.${name}` : name));
  return [[path, value === null || value === undefined ? ABSENT : typeof value === "string" ? value : JSON.stringify(value)]];
}
