// What a private run has cost its devices: spent and left by round, beside what the model has learned, and its ledger over runs.
import { get } from "../api/client";
import type { RunPrivacy, RunView } from "../api/types";
import { axis, Chart } from "../components/Chart";
import { EmptyState, Fact, Panel, Problem } from "../components/parts";
import { Table } from "../components/Table";
import { curves } from "../curves";
import { count, date, many, metric } from "../format";
import { useResource } from "../live/context";
import { useMetrics, useRounds } from "../useRun";
import { MetricCurves } from "./MetricCurves";

export function Privacy({ run }: { run: RunView }) {
  return run.privacy ? (
    <Private run={run} />
  ) : (
    <EmptyState title="This run's plan has no section [privacy]: nothing bounds what its models tell of one device." command="quorate privacy plan --noise 4 --rounds 10 --delta 1e-6">
      What noise is worth:
    </EmptyState>
  );
}

function Private({ run }: { run: RunView }) {
  const key = [run.run, run.version, run.round, run.status].join(" ");
  const told = useResource<RunPrivacy>(key, (signal) => get("/v1/runs/{run}/privacy", { run: run.run }, signal));
  const rounds = useRounds(run);
  const metrics = useMetrics(run);
  const planned = (run.plan as { finish?: { metric?: unknown } }).finish?.metric;
  if (!told.data) return told.error ? <Problem text={told.error} /> : <p className="note">Loading …</p>;
  return (
    <div className="panels">
      <Panel title="Privacy budget" note={`of the device that has lost most, at delta ${run.privacy?.delta}`} wide>
        <Facts run={run} told={told.data} />
      </Panel>
      <Panel title="Epsilon by round" note={forecast(told.data)}>
        <Spent told={told.data} />
      </Panel>
      {run.privacy?.within != null && (
        <Panel title="Clip by round" note={`about ${Math.round(100 * Math.min(1, Math.max(0, run.privacy.within)))} % of the last updates were within theirs`}>
          <Clips told={told.data} last={run.round} />
        </Panel>
      )}
      <MetricCurves found={curves(rounds.data ?? [], metrics.data ?? [])} planned={planned} run={run} />
      <Ledger told={told.data} />
      <Tenths told={told.data} />
    </div>
  );
}

export function forecast(told: RunPrivacy): string {
  if (!told.rounds.length) return "no round has cost anything yet";
  if (told.no_room_from != null) return `as so far, that device has no room from round ${count(told.no_room_from)} on`;
  return told.expected.length ? "as so far, that device has room up to the last round" : "";
}

function Facts({ run, told }: { run: RunView; told: RunPrivacy }) {
  const view = run.privacy;
  const { ledger } = told;
  return (
    <dl className="facts">
      <Fact label="Lost in this run" value={`ε ${metric(view?.epsilon ?? 0)}`} note={`of ${metric(told.epsilon_planned)} by its plan`} />
      <Fact label="Lost by its ledger" value={`ε ${metric(ledger.spent)}`} note={`of ${metric(ledger.epsilon)}, over ${many(ledger.runs.length, "run")}`} />
      <Fact label="Room for" value={many(view?.rounds_left ?? 0, "more round")} note="of this run, for that device" />
      <Fact label="Devices" value={count(ledger.devices)} note="have lost something by the ledger" />
      <Fact label="Near their limit" value={count(ledger.near)} note="have used nine tenths of it, or more" />
      <Fact label="Noise" value={`${metric(view?.noise ?? 0)} × clip`} note="in the sum of each round" />
    </dl>
  );
}

function Spent({ told }: { told: RunPrivacy }) {
  const last = told.rounds.at(-1);
  const rows = [...told.rounds.map((one) => ({ ...one, seen: true })), ...told.expected.map((one) => ({ ...one, devices: null, seen: false }))];
  return (
    <Chart
      label="Epsilon of the device that has lost most in this run, by round"
      version={`${told.rounds.length} ${last?.epsilon} ${told.expected.length} ${told.ledger.epsilon}`}
      height={264}
      rows={[...rows].reverse()}
      rowKey={(row) => `${row.round} ${row.seen} ${rows.indexOf(row)}`}
      columns={[
        { name: "round", cell: (row) => count(row.round), figures: true },
        { name: "epsilon", cell: (row) => metric(row.epsilon), figures: true },
        { name: "devices", cell: (row) => (row.devices === null ? "to come" : count(row.devices)), figures: true },
      ]}
      option={(paint) => ({
        grid: { left: 8, right: 16, top: 38, bottom: 24, containLabel: true },
        xAxis: axis(paint, { type: "value", name: "round", nameLocation: "middle", nameGap: 24, minInterval: 1, min: 0, max: Math.max(told.rounds_planned, last?.round ?? 0), splitLine: { show: false } }),
        yAxis: axis(paint, { type: "value", min: 0, max: (range: { max: number }) => Math.max(range.max, told.ledger.epsilon) * 1.1, splitNumber: 4, axisLabel: { color: paint("muted"), formatter: metric, showMaxLabel: false } }),
        series: [
          {
            type: "line",
            name: "lost",
            step: "end",
            data: [[0, 0], ...told.rounds.map((one) => [one.round, one.epsilon])],
            symbol: "circle",
            symbolSize: 6,
            showSymbol: told.rounds.length < 40,
            itemStyle: { color: paint("series-1") },
            lineStyle: { width: 2.2 },
            markLine: {
              symbol: "none",
              silent: true,
              lineStyle: { color: paint("muted"), type: "dotted" },
              label: { formatter: `${told.ledger.ledger} allows ${metric(told.ledger.epsilon)}`, color: paint("muted"), position: "insideEndTop" },
              data: [{ yAxis: told.ledger.epsilon }],
            },
          },
          ...(last && told.expected.length
            ? [
                {
                  type: "line" as const,
                  name: "as so far",
                  data: [[last.round, last.epsilon], ...told.expected.map((one) => [one.round, one.epsilon])],
                  symbol: "none",
                  itemStyle: { color: paint("series-2") },
                  lineStyle: { width: 2, type: "dashed" as const },
                },
              ]
            : []),
        ],
      })}
    />
  );
}

function Clips({ told, last }: { told: RunPrivacy; last: number }) {
  const clips = told.clips;
  return (
    <Chart
      label="The most that one update counts, by round"
      version={`${clips.length} ${last}`}
      height={264}
      rows={[...clips].reverse()}
      rowKey={(row) => `${row.round}`}
      columns={[
        { name: "from round", cell: (row) => count(row.round), figures: true },
        { name: "clip", cell: (row) => metric(row.clip), figures: true },
      ]}
      option={(paint) => ({
        xAxis: axis(paint, { type: "value", name: "round", nameLocation: "middle", nameGap: 24, minInterval: 1, min: 1, splitLine: { show: false } }),
        yAxis: axis(paint, { type: "log", axisLabel: { color: paint("muted"), formatter: metric } }),
        series: [
          {
            type: "line",
            name: "clip",
            step: "end",
            data: [...clips.map((one) => [one.round, one.clip]), [Math.max(last, clips.at(-1)?.round ?? 1), clips.at(-1)?.clip ?? 0]],
            symbol: "none",
            itemStyle: { color: paint("series-1") },
            lineStyle: { width: 2.2 },
          },
        ],
      })}
    />
  );
}

function Ledger({ told }: { told: RunPrivacy }) {
  const { ledger } = told;
  return (
    <Panel title="Ledger over runs" note={ledger.ledger}>
      {ledger.runs.length ? (
        <Table
          caption="What each run has cost"
          rows={ledger.runs}
          rowKey={(one) => one.run}
          columns={[
            { name: "run", cell: (one) => one.run },
            { name: "epsilon", cell: (one) => metric(one.epsilon), figures: true },
            { name: "devices", cell: (one) => count(one.devices), figures: true },
            { name: "most rounds", cell: (one) => count(one.rounds), figures: true },
          ]}
        />
      ) : (
        <p className="note">No run has cost anything yet.</p>
      )}
      {ledger.allowed.map((word) => (
        <p key={word.other} className="plain">
          {word.by} has allowed devices of {word.other} on {date(word.at)}: {word.because}
        </p>
      ))}
    </Panel>
  );
}

/** Of how many devices so much of the budget is used: none of them is named. */
function Tenths({ told }: { told: RunPrivacy }) {
  const { tenths } = told.ledger;
  const names = tenths.map((_, i) => `${(i + 1) * 10} %`);
  return (
    <Panel title="Devices by what they have used" note="up to this part of their limit">
      <Chart
        label="How many devices have used up to each tenth of their limit"
        version={tenths.join()}
        rows={tenths.map((devices, i) => ({ devices, upTo: names[i] ?? "" }))}
        rowKey={(row) => row.upTo}
        columns={[
          { name: "used up to", cell: (row) => row.upTo, figures: true },
          { name: "devices", cell: (row) => count(row.devices), figures: true },
        ]}
        option={(paint) => ({
          xAxis: axis(paint, { type: "category", data: names, splitLine: { show: false } }),
          yAxis: axis(paint, { type: "value", minInterval: 1 }),
          series: [{ type: "bar", name: "devices", data: [...tenths], itemStyle: { color: paint("series-1") }, barMaxWidth: 40 }],
        })}
      />
    </Panel>
  );
}
