// A chart with its table behind it: the same values, for who cannot see the chart or wants the numbers.
import type { ECharts } from "echarts/core";
import { useEffect, useRef, useState } from "react";
import { colour, useTheme } from "../theme";
import { init, type Option } from "./echarts";
import { Swap } from "./parts";
import { type Column, Table } from "./Table";

/** Colours of series, in order, with a symbol for each: shape as well as colour. */
export const SERIES = ["series-1", "series-2", "series-3", "series-4", "series-5", "series-6"] as const;
export const SYMBOLS = ["circle", "rect", "triangle", "diamond", "roundRect", "arrow"] as const;

/** Of the chart's width: beside it is the button that shows the table. */
export const LEGEND = "60%";

interface Props<T> {
  /** What it shows, in words. */
  label: string;
  /** The option of ECharts; it asks for colours when it is called, since they change with the theme. */
  option: (paint: (token: string) => string) => Option;
  /** Changes when the option does. */
  version: string;
  height?: number;
  columns: readonly Column<T>[];
  rows: readonly T[];
  rowKey: (row: T) => string | number;
  /** Called with the chart when it is there, and with null when it is gone. */
  onChart?: (chart: ECharts | null) => void;
}

export function Chart<T>({ label, option, version, height = 260, columns, rows, rowKey, onChart }: Props<T>) {
  const [asTable, setAsTable] = useState(false);
  return (
    <div className={asTable ? "chart" : "chart drawn"}>
      <Swap asTable={asTable} onSwap={setAsTable} />
      {asTable ? (
        <Table caption={label} columns={columns} rows={rows} rowKey={rowKey} height={height} />
      ) : (
        <Canvas label={label} option={option} version={version} height={height} onChart={onChart} />
      )}
    </div>
  );
}

type CanvasProps = Pick<Props<unknown>, "label" | "option" | "version"> & { height: number; onChart: ((chart: ECharts | null) => void) | undefined };

function Canvas({ label, option, version, height, onChart }: CanvasProps) {
  const [theme] = useTheme();
  const box = useRef<HTMLDivElement>(null);
  const chart = useRef<ECharts | null>(null);
  const told = useRef(onChart);
  told.current = onChart;
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const made = init(element, null, { renderer: "canvas" });
    chart.current = made;
    told.current?.(made);
    const resizing = new ResizeObserver(() => made.resize());
    resizing.observe(element);
    return () => {
      resizing.disconnect();
      made.dispose();
      chart.current = null;
      told.current?.(null);
    };
  }, []);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    chart.current?.setOption({ ...base(), ...option(colour) }, { replaceMerge: ["series"] });
    // biome-ignore lint: `version` says when the option changes
  }, [theme, version]);
  return <div ref={box} className="canvas" style={{ height }} role="img" aria-label={label} />;
}

function base(): Option {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  return {
    animation: !still,
    animationDuration: 300,
    animationDurationUpdate: 300,
    textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: colour("muted") },
    grid: { left: 8, right: 16, top: 38, bottom: 8, containLabel: true },
    legend: { top: 5, left: 0, width: LEGEND, itemHeight: 9, itemWidth: 18, icon: undefined, textStyle: { color: colour("text") } },
    tooltip: {
      trigger: "axis",
      renderMode: "richText",
      confine: true,
      backgroundColor: colour("raised"),
      borderColor: colour("line"),
      textStyle: { color: colour("text"), fontSize: 12 },
      axisPointer: { lineStyle: { color: colour("muted"), type: "dashed" } },
    },
  };
}

/** An axis in the page's colours. */
export function axis(paint: (token: string) => string, more: Record<string, unknown>): Record<string, unknown> {
  return {
    axisLine: { lineStyle: { color: paint("line") } },
    axisTick: { show: false },
    axisLabel: { color: paint("muted"), hideOverlap: true },
    splitLine: { lineStyle: { color: paint("line") } },
    nameTextStyle: { color: paint("muted") },
    ...more,
  };
}
