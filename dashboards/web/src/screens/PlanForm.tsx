// The fields that most plans set, as a form over the plan's text: what is typed here is in the text at once, and the other way round.
import { useId, useState } from "react";
import { sentence } from "../format";
import { brief, type Field, field, GROUPS } from "../plan/fields";
import { at, changed, type Plan, type Where } from "../plan/text";

interface Props {
  schema: Plan;
  text: string;
  /** The plan in the text; null: it is not TOML now, and the form waits. */
  plan: Plan | null;
  /** What is wrong, by the dotted name of a field or section. */
  wrong: ReadonlyMap<string, string>;
  onChange: (text: string) => void;
}

export function PlanForm({ schema, text, plan, wrong, onChange }: Props) {
  return (
    <fieldset className="plan-form" disabled={plan === null}>
      <legend className="hidden">Common fields of the plan</legend>
      {plan === null && <p className="note">The form follows as soon as the text is TOML again.</p>}
      {GROUPS.filter((group) => group.always || at(plan, [group.section]) !== undefined).map((group) => (
        <section key={group.section} className="plan-group" aria-label={group.title}>
          <h3>{group.title}</h3>
          {wrong.has(group.section) && <p className="problem">{sentence(wrong.get(group.section) ?? "")}</p>}
          <div className="plan-fields">
            {group.fields.map((name) => {
              const where = name.split(".");
              const found = field(schema, where);
              return (
                found && (
                  <Entry
                    key={name}
                    name={name}
                    field={found}
                    value={at(plan, where)}
                    wrong={wrong.get(name)}
                    onChange={(value) => onChange(changed(text, where satisfies Where, value))}
                  />
                )
              );
            })}
          </div>
        </section>
      ))}
      {at(plan, ["secure"]) === undefined && (
        <p className="note">
          For rounds in which the coordinator sees sums only, write a section <code>[secure]</code> in the text.
        </p>
      )}
    </fieldset>
  );
}

interface EntryProps {
  name: string;
  field: Field;
  value: unknown;
  wrong: string | undefined;
  onChange: (value: unknown) => void;
}

function Entry({ name, field: found, value, wrong, onChange }: EntryProps) {
  const id = useId();
  const [typed, setTyped] = useState<string | null>(null);
  const number = found.kind === "whole" || found.kind === "number";
  const noNumber = number && typed !== null && typed.trim() !== "" && !Number.isFinite(Number(typed));
  const problem = noNumber ? "this is no number" : wrong;
  const take = (entered: string) => {
    setTyped(entered);
    const words = entered.trim();
    if (!words) onChange(undefined);
    else if (!number) onChange(entered);
    else if (Number.isFinite(Number(words))) onChange(Number(words));
  };
  const common = { id, "aria-invalid": problem !== undefined, "aria-describedby": `${id}-about`, required: found.required };
  return (
    <div className="plan-field">
      <label htmlFor={id}>{name.split(".").at(-1)}</label>
      {found.kind === "choice" ? (
        <select {...common} value={value === undefined ? "" : String(value)} onChange={(event) => onChange(event.target.value || undefined)}>
          <option value="">{found.default === null ? "by default" : `${String(found.default)} (default)`}</option>
          {found.choices.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      ) : (
        <input
          {...common}
          inputMode={number ? "decimal" : "text"}
          spellCheck={false}
          autoComplete="off"
          placeholder={found.default === null ? (found.required ? "" : "none") : String(found.default)}
          value={shown(typed, value, number)}
          onChange={(event) => take(event.target.value)}
          onBlur={() => !noNumber && setTyped(null)}
        />
      )}
      <p id={`${id}-about`} className={problem ? "problem" : "note"} title={problem ? undefined : found.meaning}>
        {problem ? sentence(problem) : brief(found.meaning)}
      </p>
    </div>
  );
}

/** What somebody types stays as it is typed, as long as it means what the plan says. */
function shown(typed: string | null, value: unknown, number: boolean): string {
  const written = value === undefined || value === null ? "" : String(value);
  if (typed === null || typed === written) return written;
  if (!number) return value === undefined && !typed.trim() ? typed : written;
  return !Number.isFinite(Number(typed)) || (typed.trim() !== "" && Number(typed) === value) ? typed : written;
}
