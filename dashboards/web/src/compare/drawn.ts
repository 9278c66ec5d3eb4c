// The comparison as a chart: a line for each run, a band with its mean for runs that differ in the seed only.
import { axis, LEGEND, SERIES, SYMBOLS } from "../components/Chart";
import type { Option } from "../components/echarts";
import { bytes, count, duration, metric as written } from "../format";
import type { Band, Line } from "./lines";
import { type Axis, AXIS_NAMES } from "./view";

const SYMBOLS_ABOUT = 25;
const DASHES = ["solid", "dashed", "dotted"] as const;
const LINES_TOLD = 12;

/** A place on the axis, in words. */
export function place(x: number, on: Axis): string {
  return on === "round" ? count(x) : on === "bytes" ? bytes(x) : duration(x);
}

export interface Drawn {
  metric: string;
  axis: Axis;
  log: boolean;
  bands: readonly Band[];
  lines: readonly Line[];
}

/** What changes the drawing, as text. */
export function versionOf({ metric, axis: on, log, bands, lines }: Drawn): string {
  const ends = [...lines.map((one) => [one.run, one.samples.length, one.samples.at(-1)?.y, one.samples.at(-1)?.x]), ...bands.map((band) => [band.name, band.points.length, band.points.at(-1)?.mean])];
  return JSON.stringify([metric, on, log, ends]);
}

export function drawn(shown: Drawn, paint: (token: string) => string): Option {
  const { axis: on, log } = shown;
  const fits = (y: number) => !log || y > 0;
  const names = [...shown.bands.map((band) => band.name), ...shown.lines.map((one) => one.run)];
  return {
    grid: { left: 8, right: 24, top: 44, bottom: 26, containLabel: true },
    legend: { type: "scroll", top: 5, left: 0, width: LEGEND, itemHeight: 9, itemWidth: 22, data: names, textStyle: { color: paint("text") }, pageTextStyle: { color: paint("muted") }, pageIconColor: paint("accent"), pageIconInactiveColor: paint("line") },
    xAxis: axis(paint, {
      type: "value",
      name: AXIS_NAMES[on],
      nameLocation: "middle",
      nameGap: 26,
      max: "dataMax",
      ...(on === "round" ? { minInterval: 1 } : {}),
      splitLine: { show: false },
      axisLabel: { color: paint("muted"), hideOverlap: true, formatter: (x: number) => place(x, on) },
    }),
    yAxis: axis(paint, { type: log ? "log" : "value", scale: true, splitNumber: 5, axisLabel: { color: paint("muted"), formatter: written } }),
    tooltip: { trigger: "axis", renderMode: "richText", confine: true, backgroundColor: paint("raised"), borderColor: paint("line"), textStyle: { color: paint("text"), fontSize: 12 }, formatter: told(shown) },
    series: [...shown.bands.flatMap((band, i) => bandSeries(band, i, paint, fits)), ...shown.lines.map((one, i) => lineSeries(one, shown.bands.length + i, paint, fits))],
  };
}

/** Colour, symbol and dash of the i-th of all lines: no two of 36 are alike. */
function look(i: number, paint: (token: string) => string) {
  const turn = Math.floor(i / SERIES.length);
  return {
    symbol: SYMBOLS[(i + turn) % SYMBOLS.length],
    itemStyle: { color: paint(SERIES[i % SERIES.length] ?? "text") },
    lineStyle: { width: 2.2, type: DASHES[turn % DASHES.length], color: paint(SERIES[i % SERIES.length] ?? "text") },
  };
}

/** Symbols on some of many points, so that a long line has its shape too. */
function symbols(points: number): object {
  const step = Math.ceil(points / SYMBOLS_ABOUT);
  return { showAllSymbol: true, symbolSize: (_: unknown, { dataIndex }: { dataIndex: number }) => (dataIndex % step === 0 ? 7 : 0) };
}

function lineSeries(one: Line, i: number, paint: (token: string) => string, fits: (y: number) => boolean): object {
  return {
    type: "line",
    name: one.run,
    data: one.samples.filter((sample) => fits(sample.y)).map((sample) => [sample.x, sample.y]),
    ...symbols(one.samples.length),
    ...look(i, paint),
  };
}

/** The mean, over an area from the lowest to the highest: the part below it is a line that is not seen. */
function bandSeries(band: Band, i: number, paint: (token: string) => string, fits: (y: number) => boolean): object[] {
  const points = band.points.filter((point) => fits(point.low));
  const unseen = { type: "line", stack: band.name, stackStrategy: "all", symbol: "none", silent: true, lineStyle: { opacity: 0 }, tooltip: { show: false } };
  const { itemStyle, ...rest } = look(i, paint);
  return [
    { ...unseen, name: `${band.name}, lowest`, data: points.map((point) => [point.x, point.low]) },
    { ...unseen, name: `${band.name}, range`, data: points.map((point) => [point.x, point.high - point.low]), areaStyle: { color: itemStyle.color, opacity: 0.22 } },
    { type: "line", name: band.name, data: points.map((point) => [point.x, point.mean]), ...symbols(points.length), itemStyle, ...rest },
  ];
}

function told({ bands, lines, axis: on }: Drawn) {
  const ranges = new Map(bands.map((band) => [band.name, new Map(band.points.map((point) => [point.x, point]))]));
  const known = new Set([...ranges.keys(), ...lines.map((one) => one.run)]);
  return (items: { seriesName: string; value: [number, number] }[]) => {
    const shown = items.filter((item) => known.has(item.seriesName));
    const rows = shown.slice(0, LINES_TOLD).map(({ seriesName, value: [x, y] }) => {
      const range = ranges.get(seriesName)?.get(x);
      return `${seriesName}  ${written(y)}${range ? `  (${written(range.low)} to ${written(range.high)})` : ""}`;
    });
    const x = shown[0]?.value[0];
    if (x === undefined) return "";
    return [`${AXIS_NAMES[on]} ${place(x, on)}`, ...rows, ...(shown.length > LINES_TOLD ? [`and ${shown.length - LINES_TOLD} more`] : [])].join("\n");
  };
}
