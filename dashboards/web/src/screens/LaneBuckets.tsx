// A round of more than 1,000 devices: how many had begun and how many had ended how, at each time. The table has the parts of the time.
import type { LaneBucket, RoundView } from "../api/types";
import { axis, Chart } from "../components/Chart";
import { Panel } from "../components/parts";
import { count, duration, many } from "../format";
import { ENDS, summedUp, TONES } from "../lanes";

/** Devices of a round up to which each has a lane. */
export const MOST_LANES = 1000;

interface Props {
  round: RoundView;
  buckets: readonly LaneBucket[];
  devices: number;
  height?: number;
  /** Half the width of the page. */
  narrow?: boolean;
}

export function LaneBuckets({ round, buckets, devices, height = 340, narrow = false }: Props) {
  const begin = buckets[0]?.from_at ?? round.opened_at;
  const closedAt = round.closed_at ?? null;
  const there = ENDS.filter((end) => buckets.some((one) => one.ends?.[end]));
  const closing = closedAt === null ? -1 : buckets.findIndex((one) => closedAt <= one.to_at);
  const last = buckets.at(-1);
  return (
    <Panel title="What the devices did, together" note={narrow ? `round ${count(round.round)}, ${many(devices, "device")}` : `how many so far, of ${many(devices, "device")}: up to ${count(MOST_LANES)} have a lane each`} wide={!narrow}>
      <Chart
        label={`Devices of round ${round.round} against time`}
        version={`${round.round} ${closedAt} ${last?.to_at} ${buckets.map((one) => one.started + Object.values(one.ends ?? {}).reduce((sum, n) => sum + n, 0)).join()}`}
        height={height}
        rows={buckets}
        rowKey={(one) => one.from_at}
        columns={[
          { name: "from", cell: (one) => duration(one.from_at - begin), figures: true },
          { name: "to", cell: (one) => duration(one.to_at - begin), figures: true },
          { name: "began", cell: (one) => count(one.started), figures: true },
          ...there.map((end) => ({ name: end, cell: (one: LaneBucket) => count(one.ends?.[end] ?? 0), figures: true })),
        ]}
        option={(paint) => ({
          xAxis: axis(paint, { type: "category", data: buckets.map((one) => duration(one.from_at - begin)), splitLine: { show: false } }),
          yAxis: axis(paint, { type: "value", minInterval: 1 }),
          series: [
            {
              type: "line",
              name: "began",
              step: "middle",
              symbol: "none",
              data: summedUp(buckets.map((one) => one.started)),
              itemStyle: { color: paint("text") },
              lineStyle: { width: 1.6, type: "dashed" },
              ...(closing < 0
                ? {}
                : {
                    markLine: {
                      symbol: "none",
                      silent: true,
                      lineStyle: { color: paint("text"), type: "solid" },
                      label: { formatter: "closed", color: paint("text") },
                      data: [{ xAxis: closing }],
                    },
                  }),
            },
            ...[...there].reverse().map((end, i) => ({
              type: "bar",
              stack: "ends",
              name: end,
              data: summedUp(buckets.map((one) => one.ends?.[end] ?? 0)),
              barCategoryGap: "0%",
              itemStyle: { color: paint(TONES[end]), ...(i ? { decal: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 2 + 2 * i], rotation: i * 0.7 } } : {}) },
            })),
          ],
        })}
      />
    </Panel>
  );
}
