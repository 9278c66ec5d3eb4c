// A run at this moment: the facts, the funnel of its round, its curves, and its last rounds.
import type { RoundView, RunView } from "../api/types";
import { Funnel } from "../components/Funnel";
import { Fact, Panel, Problem, Progress } from "../components/parts";
import { curves, firstMetric, newest } from "../curves";
import { bytes, count, duration, metric, sentence } from "../format";
import { eta, goal, health, pace, roundSeconds } from "../progress";
import { useMetrics, useRounds } from "../useRun";
import { useNow } from "../useNow";
import { LastRounds, RoundCharts } from "./LastRounds";
import { MetricCurves } from "./MetricCurves";

export function LiveRun({ run }: { run: RunView }) {
  const rounds = useRounds(run);
  const metrics = useMetrics(run);
  const all = rounds.data ?? [];
  const found = curves(all, metrics.data ?? []);
  const planned = (run.plan as { finish?: { metric?: unknown } }).finish?.metric;
  const current = all.at(-1);
  return (
    <>
      <Problem text={rounds.error ?? metrics.error} />
      <Facts run={run} rounds={all} current={current} shown={headline(found, planned)} />
      <div className="panels">
        {run.kind === "datacenter" ? (
          <InDatacenter run={run} because={current?.round === run.round ? (current.because ?? "") : ""} />
        ) : (
          <Panel title="Round funnel" note={<FunnelNote run={run} />}>
            <Funnel counts={run.funnel} goal={goal(run)} departures={current?.round === run.round ? current.departures : ""} />
          </Panel>
        )}
        <MetricCurves found={found} planned={planned} run={run} />
        <RoundCharts rounds={all} />
        <LastRounds run={run.run} rounds={all} />
      </div>
    </>
  );
}

function timeLeftNote(run: RunView, each: number | null): string {
  if (run.status !== "running") return `the run is ${run.status}`;
  if (run.stalled) return "unknown while it stands still";
  return each === null ? "known after two rounds" : `${duration(each)} a round`;
}

function FunnelNote({ run }: { run: RunView }) {
  const wanted = goal(run);
  return wanted === null ? `round ${run.round}` : `round ${count(run.round)}: ${count(run.funnel.selected)} selected, ${count(wanted)} wanted`;
}

/** In place of the funnel, where no device is asked. */
function InDatacenter({ run, because }: { run: RunView; because: string }) {
  return (
    <Panel title="Trained in the datacenter" note={`round ${count(run.round)}`}>
      <p className="plain">No device is asked in this round: one worker trains it, with the data that it holds.</p>
      {because && (
        <p>
          <strong>Why:</strong> {sentence(because)}
        </p>
      )}
    </Panel>
  );
}

interface Headline {
  name: string;
  value: number;
  source: string;
  examples: number;
}

function headline(found: ReturnType<typeof curves>, planned: unknown): Headline | null {
  const name = firstMetric([...found.keys()], planned);
  const all = name === null ? undefined : found.get(name);
  const last = all ? newest(all) : null;
  return name !== null && last && all?.[0] ? { name, value: last.value, source: all[0].source, examples: last.examples } : null;
}

function Facts({ run, rounds, current, shown }: { run: RunView; rounds: RoundView[]; current: RoundView | undefined; shown: Headline | null }) {
  const now = useNow();
  const wanted = goal(run);
  const state = health(run);
  const each = pace(rounds);
  const closed = rounds.filter((round) => round.closed_at != null);
  const last = closed.at(-1);
  const going = current && current.closed_at == null;
  return (
    <dl className="facts">
      {run.kind === "datacenter" ? (
        <Fact label="Trained by" value="a worker" note="in the datacenter" />
      ) : (
        <Fact label="Reports" value={<span data-fact="reports">{count(run.funnel.reported) + (wanted !== null ? ` / ${count(wanted)}` : "")}</span>}>
          <Progress part={run.funnel.reported} whole={wanted ?? run.funnel.selected} label="Reports of this round" tone={state.tone} />
        </Fact>
      )}
      <Fact label="Rounds committed" value={<span data-fact="rounds">{`${count(run.rounds_committed)} / ${count(run.rounds_wanted)}`}</span>}>
        <Progress part={run.rounds_committed} whole={run.rounds_wanted} label="Rounds committed" tone={state.tone} />
      </Fact>
      <Fact
        label={shown ? shown.name : "Metrics"}
        value={shown ? metric(shown.value) : "–"}
        note={shown ? `${shown.source}, ${count(shown.examples)} examples` : "none yet"}
      />
      <Fact label="Time left" value={eta(run, rounds) ?? "–"} note={timeLeftNote(run, each)} />
      <Fact
        label={going ? "This round" : "Last round"}
        value={current ? duration(going ? Math.floor(roundSeconds(current, now)) : roundSeconds(current, now)) : "–"}
        note={going && last ? `the last one ${duration(roundSeconds(last, now))}` : ""}
      />
      <Fact label="Received" value={last ? bytes(last.bytes_in) : "–"} note={last ? `in round ${count(last.round)}` : "no round has closed yet"} />
    </dl>
  );
}
