// Beside the chart of a comparison: which runs are in it, where each stands, and in what their plans differ.
import { useState } from "react";
import type { RunView } from "../api/types";
import { type Compared, line, places } from "../compare/lines";
import { differences } from "../compare/plans";
import { MOST_RUNS } from "../compare/view";
import { Badge, Panel, Shape } from "../components/parts";
import { Table } from "../components/Table";
import { bytes, count, duration, many, metric as written } from "../format";
import { health } from "../progress";
import { runPath } from "../route";

export function RunPicker({ runs, chosen, onChosen }: { runs: readonly RunView[]; chosen: readonly string[]; onChosen: (chosen: (now: readonly string[]) => string[]) => void }) {
  const [part, setPart] = useState("");
  const shown = runs.filter((run) => run.run.includes(part.trim().toLowerCase()));
  const full = chosen.length >= MOST_RUNS;
  return (
    <Panel title="Runs" note={`${count(chosen.length)} of at most ${MOST_RUNS}`}>
      <input type="search" aria-label="Name contains" placeholder="Name contains" value={part} onChange={(event) => setPart(event.target.value)} />
      <fieldset className="picker">
        <legend className="hidden">Runs to compare</legend>
        {shown.map((run) => {
          const on = chosen.includes(run.run);
          return (
            <label key={run.run} className={`check tone-${health(run).tone}`}>
              <input
                type="checkbox"
                checked={on}
                disabled={!on && full}
                onChange={() => onChosen((now) => (on ? now.filter((name) => name !== run.run) : [...now, run.run]))}
              />
              <Shape tone={health(run).tone} />
              <span className="cut">{run.run}</span>
            </label>
          );
        })}
        {!shown.length && <p className="note">No run has this in its name.</p>}
      </fieldset>
      {chosen.length > 0 && (
        <button type="button" className="quiet" onClick={() => onChosen(() => [])}>
          Choose none
        </button>
      )}
    </Panel>
  );
}

/** The newest and the best value of each run, and what it took. */
export function Standings({ found, metric, source }: { found: readonly Compared[]; metric: string; source: string }) {
  const rows = found.map((one) => {
    const values = line(one, metric, source, "round", 0)?.samples.map((sample) => sample.value) ?? [];
    const took = places(one, one.run.clock ?? "wall");
    return {
      run: one.run,
      last: values.at(-1),
      lowest: values.length ? Math.min(...values) : undefined,
      highest: values.length ? Math.max(...values) : undefined,
      seconds: Math.max(0, ...(took?.values() ?? [])),
      bytes: Math.max(0, ...(places(one, "bytes")?.values() ?? [])),
    };
  });
  const value = (found: number | undefined) => (found === undefined ? "–" : written(found));
  return (
    <Panel title="Where they stand" note={`${metric}, ${source}`} wide>
      <Table
        caption="Where each run stands"
        height={420}
        rows={rows}
        rowKey={(row) => row.run.run}
        columns={[
          { name: "run", cell: (row) => <a className="name" href={runPath(row.run.run)}>{row.run.run}</a> },
          { name: "status", cell: (row) => <Badge tone={health(row.run).tone}>{health(row.run).word}</Badge> },
          { name: "rounds", cell: (row) => count(row.run.rounds_committed), figures: true },
          { name: "last", cell: (row) => <b>{value(row.last)}</b>, figures: true },
          { name: "lowest", cell: (row) => value(row.lowest), figures: true },
          { name: "highest", cell: (row) => value(row.highest), figures: true },
          { name: "time", cell: (row) => `${duration(row.seconds)}${row.run.clock === "virtual" ? " virtual" : ""}`, figures: true },
          { name: "received", cell: (row) => bytes(row.bytes), figures: true },
        ]}
      />
    </Panel>
  );
}

export function PlanDifferences({ found }: { found: readonly Compared[] }) {
  const rows = differences(found.map((one) => one.run.plan));
  return (
    <Panel title="In what their plans differ" note={rows.length ? many(rows.length, "field") : ""} wide>
      {found.length < 2 ? (
        <p className="note">Choose another run.</p>
      ) : rows.length ? (
        <Table
          caption="Fields of the plans that differ"
          height={420}
          rows={rows}
          rowKey={(row) => row.field}
          columns={[
            { name: "field", cell: (row) => <code>{row.field}</code> },
            ...found.map((one, i) => ({ name: one.run.run, cell: (row: (typeof rows)[number]) => row.values[i] ?? "" })),
          ]}
        />
      ) : (
        <p className="note">In nothing: the plans are equal.</p>
      )}
    </Panel>
  );
}
