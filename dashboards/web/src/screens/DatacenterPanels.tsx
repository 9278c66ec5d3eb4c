// The panels of the datacenter's screen: its rounds, the training of one of them, its leases, and the workers.
import type { LeasesView, RoundView, WorkerView } from "../api/types";
import { axis, Chart } from "../components/Chart";
import { Badge, EmptyState, Panel } from "../components/parts";
import { Table } from "../components/Table";
import { BEGAN, OUTCOMES, speed, takeovers } from "../datacenter";
import { ago, clock, count, duration, metric, sentence } from "../format";
import { roundSeconds, type Tone } from "../progress";
import { roundPath } from "../route";
import { useNow } from "../useNow";

const SHOWN = 200;
const HEIGHT = 264;
const JOIN = "quorate datacenter join --token-file FILE --data NAME";
const STATUSES: Readonly<Record<RoundView["status"], Tone>> = { open: "busy", committed: "good", abandoned: "warn", ended: "good" };
const WORKERS: Readonly<Record<WorkerView["state"], Tone>> = { idle: "idle", leased: "busy", revoked: "bad" };
const percent = (share: number | null | undefined) => (share == null ? "–" : `${Math.round(share * 100)} %`);
const rate = (samples: number | null | undefined) => (samples == null ? "–" : count(samples));

const committed = (rounds: readonly RoundView[]) => rounds.filter((round) => round.status === "committed").length;

/** When the run came to the datacenter, and why. */
export function Takeovers({ run, rounds }: { run: string; rounds: readonly RoundView[] }) {
  const now = useNow();
  const found = takeovers(rounds).slice(-SHOWN).reverse();
  return (
    <Panel title="When it took over, and why">
      <Table
        caption="When the datacenter took over"
        height={HEIGHT}
        rows={found}
        rowKey={(round) => round.round}
        columns={[
          { name: "round", cell: (round) => <a href={roundPath(run, round.round)}>{count(round.round)}</a>, figures: true },
          { name: "at", cell: (round) => clock(round.opened_at, now), figures: true },
          { name: "why", cell: (round) => sentence(round.because || "the plan gives it this round") },
          { name: "result", cell: (round) => <Badge tone={STATUSES[round.status]}>{round.status}</Badge> },
        ]}
      />
    </Panel>
  );
}

/** Samples per second and share of communication of each of its rounds. */
export function RoundSpeeds({ found, rounds }: { found: readonly RoundView[]; rounds: readonly RoundView[] }) {
  const shown = found.slice(-SHOWN);
  const last = shown.at(-1);
  const shared = shown.some((round) => speed(round).share !== null);
  if (!shown.some((round) => speed(round).samples !== null))
    return (
      <Panel title="Speed of each round">
        <EmptyState title="No round has reported its speed so far." />
      </Panel>
    );
  return (
    <Panel title="Speed of each round" note={`it trained ${count(committed(found))} of ${count(committed(rounds))} committed rounds${found.length > SHOWN ? `; the last ${SHOWN}` : ""}`}>
      <Chart
        label="Samples per second and share of communication of each round"
        version={`${last?.round} ${last?.status} ${last && speed(last).samples}`}
        height={HEIGHT}
        rows={[...shown].reverse()}
        rowKey={(round) => round.round}
        columns={[
          { name: "round", cell: (round) => count(round.round), figures: true },
          { name: "samples/s", cell: (round) => rate(speed(round).samples), figures: true },
          { name: "communication", cell: (round) => percent(speed(round).share), figures: true },
          { name: "steps", cell: (round) => count(round.lease?.step ?? 0), figures: true },
          { name: "time", cell: (round) => duration(roundSeconds(round, round.opened_at)), figures: true },
          { name: "status", cell: (round) => round.status },
        ]}
        option={(paint) => ({
          xAxis: axis(paint, { type: "category", data: shown.map((round) => String(round.round)), splitLine: { show: false } }),
          yAxis: speedAxes(paint, shared),
          series: [
            {
              type: "bar",
              name: "samples per second",
              data: shown.map((round) => speed(round).samples),
              itemStyle: { color: paint("series-1"), borderRadius: [2, 2, 0, 0] },
              barMaxWidth: 22,
              tooltip: { valueFormatter: rate },
            },
            shared && { type: "line", name: "communication", yAxisIndex: 1, data: shown.map((round) => speed(round).share), itemStyle: { color: paint("series-2") }, symbol: "diamond", symbolSize: 8, tooltip: { valueFormatter: percent } },
          ].filter(Boolean),
        })}
      />
    </Panel>
  );
}

interface TrainingProps {
  found: readonly RoundView[];
  round: RoundView;
  view: LeasesView | null;
  steps: number;
  onPick: (round: number) => void;
}

/** What the workers of one round reported while they trained. */
export function Training({ found, round, view, steps, onPick }: TrainingProps) {
  const points = view?.points ?? [];
  const shared = points.some((point) => point.metrics?.communication_share !== undefined);
  const begin = view?.leases?.[0]?.granted_at ?? round.opened_at;
  const after = (at: number) => duration(Math.max(0, at - begin));
  const grants = (view?.leases ?? []).slice(1);
  const picker = (
    <select aria-label="Round" value={round.round} onChange={(event) => onPick(Number(event.target.value))}>
      {found.slice(-SHOWN).map((one) => (
        <option key={one.round} value={one.round}>{`round ${one.round}`}</option>
      ))}
    </select>
  );
  return (
    <Panel title="Training of a round" note={`step ${count(round.lease?.step ?? 0)} of ${count(steps)}`} actions={picker}>
      {points.some((point) => point.metrics?.samples_per_s !== undefined) ? (
        <Chart
          label={`Training of round ${round.round}: samples per second and share of communication`}
          version={`${round.round} ${points.length} ${points.at(-1)?.at} ${grants.length}`}
          height={HEIGHT}
          rows={[...points].reverse()}
          rowKey={(point) => `${point.attempt} ${point.at}`}
          columns={[
            { name: "after", cell: (point) => after(point.at), figures: true },
            { name: "lease", cell: (point) => count(point.attempt), figures: true },
            { name: "step", cell: (point) => count(point.step), figures: true },
            { name: "samples/s", cell: (point) => rate(point.metrics?.samples_per_s), figures: true },
            { name: "communication", cell: (point) => percent(point.metrics?.communication_share), figures: true },
            { name: "loss", cell: (point) => (point.metrics?.loss === undefined ? "–" : metric(point.metrics.loss)), figures: true },
          ]}
          option={(paint) => ({
            xAxis: axis(paint, { type: "value", min: 0, max: "dataMax", splitLine: { show: false }, axisLabel: { color: paint("muted"), hideOverlap: true, formatter: (s: number) => duration(s) } }),
            yAxis: speedAxes(paint, shared),
            series: [
              {
                type: "line",
                name: "samples per second",
                data: points.map((point) => [point.at - begin, point.metrics?.samples_per_s ?? null]),
                itemStyle: { color: paint("series-1") },
                symbolSize: 7,
                tooltip: { valueFormatter: rate },
                markLine: {
                  symbol: "none",
                  silent: true,
                  lineStyle: { color: paint("warn"), type: "dashed" },
                  label: { formatter: "{b}", color: paint("muted") },
                  data: grants.map((lease) => ({ name: `lease ${lease.attempt}`, xAxis: lease.granted_at - begin })),
                },
              },
              shared && { type: "line", name: "communication", yAxisIndex: 1, data: points.map((point) => [point.at - begin, point.metrics?.communication_share ?? null]), itemStyle: { color: paint("series-2") }, symbol: "diamond", symbolSize: 8, lineStyle: { type: "dashed" }, tooltip: { valueFormatter: percent } },
            ].filter(Boolean),
          })}
        />
      ) : (
        <EmptyState title={view?.count ? "Its worker has reported no speed so far." : "No worker has had this round so far."} command={view?.count ? null : JOIN} />
      )}
    </Panel>
  );
}

/** `shared`: one process alone has no share of communication, and needs no axis for it. */
function speedAxes(paint: (token: string) => string, shared: boolean) {
  return [
    axis(paint, { type: "value", min: 0, axisLabel: { color: paint("muted"), formatter: (value: number) => count(value) } }),
    axis(paint, { type: "value", show: shared, min: 0, max: 1, splitLine: { show: false }, axisLabel: { color: paint("muted"), formatter: percent } }),
  ];
}

export function Leases({ round, view }: { round: RoundView; view: LeasesView | null }) {
  const now = useNow();
  const shown = [...(view?.leases ?? [])].reverse();
  const more = (view?.count ?? 0) - shown.length;
  return (
    <Panel title={`Leases of round ${count(round.round)}`} note={more > 0 ? `the last ${count(shown.length)} of ${count(view?.count ?? 0)}` : ""}>
      {shown.length ? (
        <Table
          caption={`Leases of round ${round.round}, the newest first`}
          height={HEIGHT}
          rows={shown}
          rowKey={(lease) => lease.attempt}
          columns={[
            { name: "lease", cell: (lease) => count(lease.attempt), figures: true },
            { name: "worker", cell: (lease) => lease.label || <code>{lease.worker}</code> },
            { name: "state", cell: (lease) => <Badge tone={OUTCOMES[lease.outcome ?? "held"][0]}>{OUTCOMES[lease.outcome ?? "held"][1]}</Badge> },
            { name: "for", cell: (lease) => duration((lease.ended_at ?? now) - lease.granted_at), figures: true },
            { name: "step", cell: (lease) => count(lease.step ?? 0), figures: true },
            { name: "why", cell: (lease) => <span className="two-lines">{[BEGAN[lease.began], lease.reason].filter(Boolean).map((text) => sentence(text ?? "")).join(" ")}</span> },
          ]}
        />
      ) : (
        <EmptyState title="No worker has had this round so far." command={JOIN} />
      )}
    </Panel>
  );
}

export function Workers({ workers }: { workers: readonly WorkerView[] }) {
  const now = useNow();
  return (
    <Panel title="Workers" note={`${count(workers.filter((worker) => worker.state !== "revoked").length)} registered`}>
      {workers.length ? (
        <Table
          caption="Registered workers"
          height={HEIGHT}
          rows={workers}
          rowKey={(worker) => worker.worker}
          columns={[
            { name: "worker", cell: (worker) => <code>{worker.worker}</code> },
            { name: "label", cell: (worker) => worker.label },
            { name: "state", cell: (worker) => <Badge tone={WORKERS[worker.state]}>{worker.state}</Badge> },
            { name: "last poll", cell: (worker) => (worker.last_seen_at == null ? "never" : ago(worker.last_seen_at, now)), figures: true },
            { name: "round", cell: (worker) => (worker.run ? <a href={roundPath(worker.run, worker.round ?? 0)}>{`${worker.run}, ${worker.round}`}</a> : "–") },
          ]}
        />
      ) : (
        <EmptyState title="No worker has registered in your scope." command={JOIN} />
      )}
    </Panel>
  );
}
