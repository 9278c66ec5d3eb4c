// The curves of one metric against the rounds, with the number of examples behind each value.
import { useState } from "react";
import type { RunView } from "../api/types";
import { axis, Chart, SERIES, SYMBOLS } from "../components/Chart";
import { EmptyState, Panel } from "../components/parts";
import { type Curve, firstMetric } from "../curves";
import { count, metric } from "../format";

interface Props {
  found: Map<string, Curve[]>;
  planned: unknown;
  run: RunView;
}

export function MetricCurves({ found, planned, run }: Props) {
  const names = [...found.keys()].sort();
  const [picked, setPicked] = useState<string | null>(null);
  const name = picked !== null && names.includes(picked) ? picked : firstMetric(names, planned);
  const shown = name === null ? [] : (found.get(name) ?? []);
  const learner = (run.plan as { task?: { learner?: string } }).task?.learner ?? "";
  if (name === null)
    return (
      <Panel title="Metrics">
        <EmptyState title="There are no metrics yet." command={`quorate evaluate ${run.run} --data ${learner.startsWith("quorate:mnist") ? "mnist" : "NAME"}`}>
          They come with the first committed round, and from an evaluator:
        </EmptyState>
      </Panel>
    );
  const picker = (
    <select aria-label="Metric" value={name} onChange={(event) => setPicked(event.target.value)}>
      {names.map((one) => (
        <option key={one}>{one}</option>
      ))}
    </select>
  );
  return (
    <Panel title="Metrics" actions={picker}>
      <Curves name={name} shown={shown} target={target(run, name)} />
    </Panel>
  );
}

function target(run: RunView, name: string): number | null {
  const finish = (run.plan as { finish?: { metric?: unknown; target?: unknown } }).finish;
  return finish?.metric === name && typeof finish.target === "number" ? finish.target : null;
}

function Curves({ name, shown, target }: { name: string; shown: readonly Curve[]; target: number | null }) {
  const rows = shown.flatMap((curve) => curve.points.map((point) => ({ ...point, source: curve.source }))).sort((a, b) => b.round - a.round);
  const version = `${name} ${target} ${shown.map((curve) => `${curve.source}:${curve.points.length}:${curve.points.at(-1)?.value}`).join()}`;
  const examples = new Map(shown.map((curve) => [curve.source, new Map(curve.points.map((point) => [point.round, point.examples]))]));
  return (
    <Chart
      label={`${name} against rounds`}
      version={version}
      height={264}
      rows={rows}
      rowKey={(row) => `${row.source} ${row.round}`}
      columns={[
        { name: "round", cell: (row) => count(row.round), figures: true },
        { name: "source", cell: (row) => row.source },
        { name, cell: (row) => metric(row.value), figures: true },
        { name: "examples", cell: (row) => count(row.examples), figures: true },
      ]}
      option={(paint) => ({
        grid: { left: 8, right: 16, top: 38, bottom: 24, containLabel: true },
        xAxis: axis(paint, { type: "value", name: "round", nameLocation: "middle", nameGap: 24, minInterval: 1, max: "dataMax", splitLine: { show: false } }),
        // Around one value alone echarts shows half of it on each side: more than 1, of a share.
        yAxis: axis(paint, { type: "value", scale: true, max: ({ min, max }: { min: number; max: number }) => (min === max && min > 0.5 && max <= 1 ? 1 : null), splitNumber: 4, axisLabel: { color: paint("muted"), formatter: metric } }),
        tooltip: {
          trigger: "axis",
          renderMode: "richText",
          confine: true,
          backgroundColor: paint("raised"),
          borderColor: paint("line"),
          textStyle: { color: paint("text"), fontSize: 12 },
          formatter: (items: { seriesName: string; value: [number, number] }[]) => {
            const round = items[0]?.value[0] ?? 0;
            const lines = items.map((item) => `${item.seriesName}  ${metric(item.value[1])}  (${count(examples.get(item.seriesName)?.get(round) ?? 0)} examples)`);
            return [`round ${round}`, ...lines].join("\n");
          },
        },
        series: shown.map((curve, i) => ({
          type: "line",
          name: curve.source,
          data: curve.points.map((point) => [point.round, point.value]),
          symbol: SYMBOLS[i % SYMBOLS.length],
          symbolSize: 7,
          showSymbol: curve.points.length < 40,
          itemStyle: { color: paint(SERIES[i % SERIES.length] ?? "text") },
          lineStyle: { width: 2.2, type: i === 0 ? "solid" : "dashed" },
          ...(i === 0 && target !== null
            ? {
                markLine: {
                  symbol: "none",
                  silent: true,
                  lineStyle: { color: paint("muted"), type: "dotted" },
                  label: { formatter: `target ${metric(target)}`, color: paint("muted"), position: "insideEndTop" },
                  data: [{ yAxis: target }],
                },
              }
            : {}),
        })),
      })}
    />
  );
}
