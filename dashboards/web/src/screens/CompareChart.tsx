// The chart of a comparison with what chooses its metric, axis and scale, and the two files that it can be saved as.
import type { ECharts } from "echarts/core";
import { useMemo, useRef, useState } from "react";
import { csv } from "../compare/csv";
import { drawn, place, versionOf } from "../compare/drawn";
import { banded, type Compared, type Line, line } from "../compare/lines";
import { AXES, AXIS_NAMES, type Axis, SMOOTHINGS, type View } from "../compare/view";
import { Chart } from "../components/Chart";
import { EmptyState, Panel } from "../components/parts";
import { download } from "../download";
import { count, many, metric as written } from "../format";
import { colour } from "../theme";

const ROWS_SHOWN = 2000;

interface Props {
  found: readonly Compared[];
  metrics: ReadonlyMap<string, readonly string[]>;
  metric: string;
  source: string;
  view: View;
  onView: (more: Partial<View>) => void;
}

export function CompareChart(props: Props) {
  const { found, metric, source, view } = props;
  const chart = useRef<ECharts | null>(null);
  const [there, setThere] = useState(false);
  const lines = useMemo(
    () => found.map((one) => line(one, metric, source, view.axis, view.smoothing)).filter((one): one is Line => one !== null && one.samples.length > 0),
    [found, metric, source, view.axis, view.smoothing],
  );
  const plans = new Map(found.map((one) => [one.run.run, one.run.plan]));
  const { bands, alone } = view.bands ? banded(lines, plans) : { bands: [], alone: lines };
  const shown = { metric, axis: view.axis, log: view.log, bands, lines: alone };
  const rows = lines.flatMap((one) => one.samples.map((sample) => ({ ...sample, run: one.run })));
  const saved = `${metric}-against-${AXIS_NAMES[view.axis]}`.replace(/[^A-Za-z0-9.-]+/g, "-");
  return (
    <Panel
      title={`${metric} against ${AXIS_NAMES[view.axis]}`}
      note={`of ${source}`}
      actions={
        <span className="saving">
          <button type="button" className="quiet" disabled={!there || !lines.length} onClick={() => chart.current && savePicture(chart.current, `${saved}.png`)}>
            Save PNG
          </button>
          <button type="button" className="quiet" disabled={!lines.length} onClick={() => download(`${saved}.csv`, new Blob([csv(lines, metric, source, view.axis)], { type: "text/csv" }))}>
            Save CSV
          </button>
        </span>
      }
    >
      <Controls {...props} />
      {lines.length ? (
        <Chart
          label={`${metric} of ${many(lines.length, "run")} against ${AXIS_NAMES[view.axis]}`}
          version={versionOf(shown)}
          height={420}
          rows={rows.slice(0, ROWS_SHOWN)}
          rowKey={(row) => `${row.run} ${row.version} ${row.round}`}
          columns={[
            { name: "run", cell: (row) => row.run },
            { name: "round", cell: (row) => count(row.round), figures: true },
            ...(view.axis === "round" ? [] : [{ name: AXIS_NAMES[view.axis], cell: (row: (typeof rows)[number]) => place(row.x, view.axis), figures: true }]),
            { name: metric, cell: (row) => written(row.value), figures: true },
            ...(view.smoothing ? [{ name: "smoothed", cell: (row: (typeof rows)[number]) => written(row.y), figures: true }] : []),
            { name: "examples", cell: (row) => count(row.examples), figures: true },
          ]}
          option={(paint) => drawn(shown, paint)}
          onChart={(made) => {
            chart.current = made;
            setThere(made !== null);
          }}
        />
      ) : (
        <EmptyState title={nothing(view.axis)} />
      )}
      <Notes found={found} lines={lines} view={view} bands={bands.length} rows={rows.length} />
    </Panel>
  );
}

function Controls({ metrics, metric, source, view, onView }: Props) {
  const sources = metrics.get(metric) ?? [];
  return (
    <div className="filters">
      <Choice label="Metric" value={metric} values={withValue([...metrics.keys()], metric)} onChange={(name) => onView({ metric: name, source: null })} />
      <Choice label="Source" value={source} values={withValue(sources, source)} onChange={(name) => onView({ source: name })} />
      <Choice label="Against" value={view.axis} values={AXES} name={(one) => AXIS_NAMES[one]} onChange={(axis) => onView({ axis })} />
      <Choice label="Smoothing" value={view.smoothing} values={withValue(SMOOTHINGS, view.smoothing)} name={(one) => (one ? String(one) : "none")} onChange={(smoothing) => onView({ smoothing })} />
      <Choice label="Scale" value={view.log ? "log" : "linear"} values={["linear", "log"]} onChange={(scale) => onView({ log: scale === "log" })} />
      <label className="check">
        <input type="checkbox" checked={view.bands} onChange={(event) => onView({ bands: event.target.checked })} /> Seeds as a band
      </label>
    </div>
  );
}

/** The value of an address is shown, also where nothing else has it. */
function withValue<T>(values: readonly T[], value: T): T[] {
  return values.includes(value) ? [...values] : [...values, value];
}

interface ChoiceProps<T> {
  label: string;
  value: T;
  values: readonly T[];
  name?: (value: T) => string;
  onChange: (value: T) => void;
}

function Choice<T extends string | number>({ label, value, values, name = String, onChange }: ChoiceProps<T>) {
  return (
    <label>
      {label}{" "}
      <select
        value={String(value)}
        onChange={(event) => {
          const picked = values.find((one) => String(one) === event.target.value);
          if (picked !== undefined) onChange(picked);
        }}
      >
        {values.map((one) => (
          <option key={one} value={String(one)}>
            {name(one)}
          </option>
        ))}
      </select>
    </label>
  );
}

function nothing(axis: Axis): string {
  if (axis === "virtual") return "Only simulated runs have virtual time, and none of these with this metric is one.";
  return axis === "wall" ? "Simulated runs have virtual time only: none of these has wall time and this metric." : "None of these runs has this metric.";
}

/** What is not in the chart, and why. */
function Notes({ found, lines, view, bands, rows }: { found: readonly Compared[]; lines: readonly Line[]; view: View; bands: number; rows: number }) {
  const there = new Set(lines.map((one) => one.run));
  const clocks = view.axis === "wall" || view.axis === "virtual" ? found.filter((one) => one.run.clock !== view.axis) : [];
  const without = found.filter((one) => !there.has(one.run.run) && !clocks.includes(one));
  const hidden = view.log ? lines.reduce((sum, one) => sum + one.samples.filter((sample) => sample.y <= 0).length, 0) : 0;
  const said = [
    clocks.length && lines.length ? `${many(clocks.length, "run")} left out: ${view.axis === "wall" ? "simulated, with virtual time only" : "not simulated"}.` : "",
    without.length && lines.length ? `Without this metric: ${without.map((one) => one.run.run).join(", ")}.` : "",
    hidden ? `${many(hidden, "value")} of 0 or below left out of the logarithmic scale.` : "",
    bands ? "A band is the range of runs that differ in the seed only, its line their mean." : "",
    rows > ROWS_SHOWN ? `The table has the first ${count(ROWS_SHOWN)} of ${count(rows)} values, the CSV file all.` : "",
  ].filter(Boolean);
  return said.length ? <p className="note">{said.join(" ")}</p> : null;
}

function savePicture(chart: ECharts, name: string): void {
  const canvas = chart.renderToCanvas({ pixelRatio: 2, backgroundColor: colour("surface") });
  canvas.toBlob((blob) => blob && download(name, blob), "image/png");
}
