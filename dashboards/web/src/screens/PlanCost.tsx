// What a run of a plan would cost, and what is likely to keep its rounds from being committed, as the API says it.
import type { CostLine, PlanView } from "../api/types";
import { Fact, Panel, Shape } from "../components/parts";
import { bytes, count, duration, many, sentence } from "../format";

type Name = CostLine["name"];
const LABELS: Readonly<Record<Name, readonly [string, string]>> = {
  device_download_bytes: ["A device fetches", "a round"],
  device_upload_bytes: ["A device sends", "a round, about"],
  round_download_bytes: ["Coordinator sends", "a round, to all selected"],
  round_upload_bytes: ["Coordinator receives", "a round, where all report"],
  run_bytes: ["Network, whole run", "about"],
  server_memory_bytes: ["Coordinator's memory", "for a round, about"],
  server_disk_bytes: ["Coordinator's disk", "for updates, about"],
  round_longest_s: ["A round lasts", "at most"],
  run_longest_s: ["The run lasts", "at most"],
};

export function PlanCost({ checked, secure }: { checked: PlanView | null; secure: boolean }) {
  return (
    <Panel title="What it will cost" note={checked ? "where all that are selected report, and no round is abandoned" : ""}>
      {!checked ? (
        <p className="note">Known as soon as the plan is one that can be carried out.</p>
      ) : (
        <>
          <dl className="facts">
            {(checked.cost ?? []).map((one) => (
              <Fact
                key={one.name}
                label={LABELS[one.name][0]}
                value={<span data-cost={one.name}>{one.name.endsWith("_s") ? duration(one.value) : bytes(one.value)}</span>}
                note={LABELS[one.name][1]}
              />
            ))}
          </dl>
          {(checked.notes ?? []).map((text) => (
            <p key={text} className="plain">
              {text}
            </p>
          ))}
          {secure && <Spent checked={checked} />}
          <ul className="warnings">
            {(checked.warnings ?? []).map((text) => (
              <li key={text} className="tone-warn">
                <Shape tone="warn" /> <span>{sentence(text)}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </Panel>
  );
}

/** A device signs for a checkpoint once: who has, takes part in no other secure round on it, of whichever run. */
function Spent({ checked }: { checked: PlanView }) {
  const { devices_spent: spent, devices_registered: registered } = checked;
  if (!spent) return <p className="plain">No registered device is spent on this checkpoint: none has signed for it in a secure round.</p>;
  return (
    <div className="plain" data-fact="spent">
      <p>
        <b>
          {count(spent)} of {many(registered, "registered device")} {spent === 1 ? "is" : "are"} spent on this checkpoint
        </b>
        : they have signed for it in a secure round, and take part in no other secure round on it. The ways out:
      </p>
      <ul className="ways">
        <li>start from another checkpoint, for example a newer version;</li>
        <li>use other devices;</li>
        <li>
          start it, and advance the run once it is exhausted: an owner moves its model by one unit, without contributions; devices whose owners allow near models take part.
        </li>
      </ul>
    </div>
  );
}
