// The rounds of a run: how long each took and what it received, and the last of them one by one.
import type { RoundView } from "../api/types";
import { axis, Chart } from "../components/Chart";
import { Badge, EmptyState, Panel } from "../components/parts";
import { Table } from "../components/Table";
import { bytes, count, duration } from "../format";
import { missed, roundSeconds, stale, type Tone } from "../progress";
import { roundPath } from "../route";
import { treated } from "../treatment";
import { useNow } from "../useNow";

const SHOWN = 200;
const TONES: Readonly<Record<RoundView["status"], Tone>> = { open: "busy", committed: "good", abandoned: "warn", ended: "good" };

/** `virtual`: of a simulated run, whose clock is not that of the world. */
export function RoundCharts({ rounds, virtual, wide }: { rounds: readonly RoundView[]; virtual: boolean; wide: boolean }) {
  const closed = rounds.filter((round) => round.closed_at != null).slice(-SHOWN);
  if (!closed.length) return null;
  const last = closed.at(-1);
  const received = closed.some((round) => round.bytes_in > 0);
  const ends = (["committed", "ended", "abandoned"] as const).filter((status) => closed.some((round) => round.status === status));
  const note = [virtual ? "virtual time" : "", closed.length === SHOWN ? `the last ${SHOWN}` : ""].filter(Boolean).join("; ");
  return (
    <Panel title="Time and bytes of each round" note={note} wide={wide}>
      <Chart
        label="Seconds and received bytes of each round"
        version={`${last?.round} ${last?.closed_at}`}
        height={220}
        rows={[...closed].reverse()}
        rowKey={(round) => round.round}
        columns={[
          { name: "round", cell: (round) => count(round.round), figures: true },
          { name: "time", cell: (round) => duration(roundSeconds(round, 0)), figures: true },
          { name: "received", cell: (round) => bytes(round.bytes_in), figures: true },
          { name: "status", cell: (round) => round.status },
        ]}
        option={(paint) => ({
          grid: { left: 8, right: 16, top: 38, bottom: 24, containLabel: true },
          xAxis: axis(paint, { type: "category", name: "round", nameLocation: "middle", nameGap: 24, data: closed.map((round) => String(round.round)), splitLine: { show: false } }),
          yAxis: [
            axis(paint, { type: "value", axisLabel: { color: paint("muted"), formatter: (s: number) => duration(s) } }),
            axis(paint, { type: "value", show: received, minInterval: 1, splitLine: { show: false }, axisLabel: { color: paint("muted"), formatter: (b: number) => bytes(b).replace(".0 ", " ") } }),
          ],
          series: [
            ...ends.map((status) => ({
              type: "bar",
              stack: "time",
              name: status === "abandoned" ? "time, abandoned" : "time",
              data: closed.map((round) => (round.status === status ? roundSeconds(round, 0) : null)),
              itemStyle:
                status === "abandoned"
                  ? { color: paint("series-4"), borderRadius: [2, 2, 0, 0], decal: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -0.8 } }
                  : { color: paint("series-1"), borderRadius: [2, 2, 0, 0] },
              barMaxWidth: 22,
              tooltip: { valueFormatter: (s: number | null) => (s == null ? "–" : duration(s)) },
            })),
            received && {
              type: "line",
              name: "received",
              yAxisIndex: 1,
              data: closed.map((round) => round.bytes_in),
              itemStyle: { color: paint("series-2") },
              symbol: "diamond",
              showSymbol: closed.length < 40,
              tooltip: { valueFormatter: (b: number) => bytes(b) },
            },
          ].filter(Boolean),
        })}
      />
    </Panel>
  );
}

function Reports({ round }: { round: RoundView }) {
  if (round.kind === "datacenter") return "by a worker";
  return (
    <>
      {count(round.funnel.reported)} <span className="note">of {count(round.funnel.selected)}</span>
    </>
  );
}

/** Its row leads there, wherever it is clicked. */
function RoundLink({ run, round }: { run: string; round: number }) {
  return (
    <a className="row-link" href={roundPath(run, round)} aria-label={`Round ${round}`}>
      {count(round)}
    </a>
  );
}

export function LastRounds({ run, rounds }: { run: string; rounds: readonly RoundView[] }) {
  const now = useNow();
  const shown = rounds.slice(-SHOWN).reverse();
  return (
    <Panel title="Rounds" note={rounds.length > SHOWN ? `the last ${SHOWN} of ${count(rounds.length)}` : ""} wide>
      {shown.length ? (
        <Table
          caption="Rounds, the newest first"
          height={300}
          rows={shown}
          rowKey={(round) => round.round}
          columns={[
            { name: "round", cell: (round) => <RoundLink run={run} round={round.round} />, figures: true },
            { name: "status", cell: (round) => <Badge tone={TONES[round.status]}>{round.status}</Badge> },
            { name: "reported", cell: (round) => <Reports round={round} />, figures: true },
            { name: "time", cell: (round) => duration(roundSeconds(round, now)), figures: true },
            { name: "received", cell: (round) => bytes(round.bytes_in), figures: true },
            { name: "why", cell: (round) => <span className="two-lines">{[round.reason || round.because || round.departures, missed(round, now), stale(round), ...treated(round)].filter(Boolean).join("; ")}</span> },
          ]}
        />
      ) : (
        <EmptyState title="No round has been opened yet." command="quorate device --token-file FILE --data DATA">
          A round opens when enough devices wait. Start one:
        </EmptyState>
      )}
    </Panel>
  );
}
