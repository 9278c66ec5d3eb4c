// A run at this moment: the facts, the funnel of its round, its curves, and its last rounds.
import type { RoundView, RunView } from "../api/types";
import { Funnel } from "../components/Funnel";
import { Fact, Figure, Panel, Problem, Progress } from "../components/parts";
import { curves, firstMetric, newest, type Trend, trend } from "../curves";
import { section, speed } from "../datacenter";
import { ago, bytes, count, duration, many, metric, sentence } from "../format";
import { drawn, eta, goal, health, pace, roundSeconds } from "../progress";
import { runPath } from "../route";
import type { SecureRound } from "../secure";
import { treated } from "../treatment";
import { trendInWords } from "../trend";
import { useMetrics, useRounds } from "../useRun";
import { useNow } from "../useNow";
import { LastLanes, lastOfDevices } from "./LastLanes";
import { LastRounds, RoundCharts } from "./LastRounds";
import { MetricCurves } from "./MetricCurves";
import { Participation } from "./Participation";
import { Strip } from "./Secure";

export function LiveRun({ run }: { run: RunView }) {
  const rounds = useRounds(run);
  const metrics = useMetrics(run);
  const all = rounds.data ?? [];
  const found = curves(all, metrics.data ?? []);
  const planned = (run.plan as { finish?: { metric?: unknown } }).finish?.metric;
  const current = all.at(-1);
  const mine = current?.round === run.round ? current : undefined;
  const secure = all.findLast((round): round is SecureRound => round.secure != null);
  const ofDevices = lastOfDevices(all);
  return (
    <>
      <Problem text={rounds.error ?? metrics.error} />
      <Facts run={run} rounds={all} current={current} shown={headline(found, planned)} />
      <div className="panels">
        {run.kind === "datacenter" ? (
          <InDatacenter run={run} round={mine} />
        ) : (
          <Panel title="Round funnel" note={<FunnelNote run={run} />}>
            <Funnel counts={run.funnel} goal={goal(run)} departures={mine?.departures ?? ""} treated={mine ? treated(mine) : []} drawn={drawn(run) || run.status !== "running"} />
          </Panel>
        )}
        <MetricCurves found={found} planned={planned} run={run} />
        {secure && (
          <Panel title={`Exchanges of round ${count(secure.round)}`} note={<a href={runPath(run.run, "secure")}>what the coordinator could see</a>} wide>
            <Strip exchanges={secure.secure.exchanges} />
          </Panel>
        )}
        <RoundCharts rounds={all} virtual={run.clock === "virtual"} wide={!ofDevices} />
        {ofDevices && <LastLanes run={run} round={ofDevices} />}
        <Participation run={run} />
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
  const selected = drawn(run) || run.funnel.selected ? `${count(run.funnel.selected)} selected` : "no cohort so far";
  return wanted === null ? `round ${run.round}` : `round ${count(run.round)}: ${selected}, ${count(wanted)} wanted`;
}

/** In place of the funnel, where no device is asked. */
function InDatacenter({ run, round }: { run: RunView; round: RoundView | undefined }) {
  const now = useNow();
  const steps = section(run)?.steps ?? 0;
  const lease = round?.lease;
  const { samples, share } = round ? speed(round) : { samples: null, share: null };
  return (
    <Panel title="Trained in the datacenter" note={<a href={runPath(run.run, "datacenter")}>leases and speed</a>}>
      <p className="plain">No device is asked in round {count(run.round)}: one worker trains it, with the data that it holds.</p>
      {round?.because && (
        <p className="plain">
          <strong>Why:</strong> {sentence(round.because)}
        </p>
      )}
      <p className="steps">
        <span>Steps</span>
        <span data-fact="steps">
          <b>{count(lease?.step ?? 0)}</b> of {count(steps)}
        </span>
      </p>
      <Progress part={lease?.step ?? 0} whole={steps} label="Steps of this round" tone={health(run).tone} />
      <dl className="facts apart">
        <Fact label="Worker" value={lease ? <code>{lease.worker}</code> : "none"} note={lease ? `heard ${ago(lease.seen_at, now)}` : "waits for one"} />
        <Fact label="Samples per second" value={samples === null ? "–" : count(samples)} note={samples === null ? "not reported so far" : share === null ? "" : `${Math.round(share * 100)} % of the time is communication`} />
      </dl>
    </Panel>
  );
}

interface Headline {
  name: string;
  value: number;
  examples: number;
  trend: Trend | null;
}

function headline(found: ReturnType<typeof curves>, planned: unknown): Headline | null {
  const name = firstMetric([...found.keys()], planned);
  const all = name === null ? undefined : found.get(name);
  const last = all ? newest(all) : null;
  return name !== null && last && all?.[0] ? { name, value: last.value, examples: last.examples, trend: trend(all[0]) } : null;
}

function Facts({ run, rounds, current, shown }: { run: RunView; rounds: RoundView[]; current: RoundView | undefined; shown: Headline | null }) {
  const now = useNow();
  const wanted = goal(run);
  const state = health(run);
  const each = pace(rounds);
  const closed = rounds.filter((round) => round.closed_at != null);
  const last = closed.at(-1);
  const going = current && current.closed_at == null;
  const missed = rounds.reduce((sum, round) => sum + (round.missed ?? 0), 0);
  return (
    <dl className="facts">
      {run.kind === "datacenter" ? (
        <Fact label="Trained by" value="a worker" note="in the datacenter" />
      ) : (
        <Fact label="Reports" value={<Figure name="reports" text={count(run.funnel.reported) + (wanted !== null ? ` / ${count(wanted)}` : "")} />}>
          <Progress part={run.funnel.reported} whole={wanted ?? run.funnel.selected} label="Reports of this round" tone={state.tone} />
        </Fact>
      )}
      <Fact
        label="Rounds committed"
        value={<Figure name="rounds" text={`${count(run.rounds_committed)} / ${count(run.rounds_wanted)}`} />}
        note={missed ? <span data-fact="missed">{`${many(missed, "selection")} found too few devices`}</span> : ""}
      >
        <Progress part={run.rounds_committed} whole={run.rounds_wanted} label="Rounds committed" tone={state.tone} />
      </Fact>
      <Fact
        label={shown ? shown.name : "Metrics"}
        value={shown ? metric(shown.value) : "–"}
        note={
          shown ? (
            <>
              {shown.trend && (
                <>
                  {trendInWords(shown.trend)}
                  <br />
                </>
              )}
              on {count(shown.examples)} examples
            </>
          ) : (
            "none yet"
          )
        }
      />
      <Fact label="Time left, about" value={eta(run, rounds, now) ?? "–"} note={timeLeftNote(run, each)} />
      <Fact
        label={going ? "This round" : "Last round"}
        value={current ? duration(going ? Math.floor(roundSeconds(current, now)) : roundSeconds(current, now)) : "–"}
        note={going && last ? `the last one ${duration(roundSeconds(last, now))}` : ""}
      />
      <Fact label="Received" value={last ? bytes(last.bytes_in) : "–"} note={last ? `in round ${count(last.round)}` : "no round has closed yet"} />
    </dl>
  );
}
