// The datacenter's part in a run: when it took over and why, how fast it trains, who has the leases, and how well more processes pay.
import { useState } from "react";
import { get } from "../api/client";
import type { LeasesView, RoundView, RunView, WorkerView } from "../api/types";
import { EmptyState, Fact, Panel, Problem } from "../components/parts";
import { baselines, latestMeasured, ofDatacenter, restarts, type Scaling, scaling, section, speed } from "../datacenter";
import { ago, count, many, sentence } from "../format";
import { useLive, useResource } from "../live/context";
import { inOrder } from "../live/state";
import { useNow } from "../useNow";
import { roundsOf, useRounds, useSlowly } from "../useRun";
import { Leases, RoundSpeeds, Takeovers, Training, Workers } from "./DatacenterPanels";

const FOLLOWED_MS = 2000;
const WORKERS_MS = 10_000;
const MOST_BASELINES = 5;

export function Datacenter({ run }: { run: RunView }) {
  const rounds = useRounds(run);
  if (!section(run))
    return (
      <EmptyState title="Devices alone train this run: its plan has no section [datacenter]." command="quorate run create examples/fallback.toml">
        A plan with one goes on where too few devices are there:
      </EmptyState>
    );
  if (rounds.error) return <Problem text={rounds.error} />;
  if (!rounds.data) return <p className="note">Loading …</p>;
  const found = ofDatacenter(rounds.data);
  return found.length ? <Shown run={run} rounds={rounds.data} found={found} /> : <Nothing run={run} />;
}

function Nothing({ run }: { run: RunView }) {
  const plan = section(run);
  const when = plan?.every ? `every ${many(plan.every, "version")}` : `after ${many(plan?.patience ?? 1, "abandoned round")} in a row`;
  return (
    <EmptyState title={`The datacenter has taken no round so far. It does ${when}.`} command={`quorate datacenter join --token-file FILE --data ${plan?.data ?? "NAME"} --nproc ${plan?.nproc ?? 1}`}>
      A worker takes its rounds. Start one:
    </EmptyState>
  );
}

/** The leases of a round, asked again while it is open. */
function useLeases(run: RunView, round: RoundView | undefined) {
  const seq = useSlowly(run.seq, FOLLOWED_MS);
  const key = round ? `${run.run} ${round.round} ${round.status === "open" ? seq : round.status}` : "none";
  return useResource<LeasesView | null>(key, (signal) => (round ? get("/v1/runs/{run}/rounds/{round}/leases", { run: run.run, round: round.round }, signal) : Promise.resolve(null)));
}

/** Measured on runs like this one by one process. */
function useScaling(run: RunView, rounds: readonly RoundView[]): Scaling | null {
  const others = baselines(run, inOrder(useLive().runs)).slice(0, MOST_BASELINES);
  const { data } = useResource(others.map((other) => `${other.run} ${other.version}`).join(), (signal) =>
    Promise.all(others.map(async (other) => ({ run: other, rounds: await roundsOf(other.run, null, signal) }))),
  );
  return data && scaling(run, rounds, data);
}

function Shown({ run, rounds, found }: { run: RunView; rounds: readonly RoundView[]; found: readonly RoundView[] }) {
  const [picked, setPicked] = useState<number | null>(null);
  const round = found.find((one) => one.round === picked) ?? found.at(-1);
  const leases = useLeases(run, round);
  const tick = Math.floor(useNow() / (WORKERS_MS / 1000));
  const workers = useResource<WorkerView[]>(`${run.run} ${tick}`, (signal) => get("/v1/workers", {}, signal));
  const efficiency = useScaling(run, rounds);
  if (!round) return null;
  // What was asked for another round is not shown for this one.
  const view = leases.data?.leases?.some((lease) => lease.granted_at < round.opened_at || (round.closed_at != null && lease.granted_at > round.closed_at)) ? null : leases.data;
  return (
    <>
      <Facts run={run} found={found} measured={picked === null ? latestMeasured(found) : round} round={round} view={view} efficiency={efficiency} />
      <Problem text={leases.error ?? workers.error} />
      <div className="panels">
        <Takeovers run={run.run} rounds={rounds} />
        <RoundSpeeds found={found} rounds={rounds} />
        <Training found={found} round={round} view={view} onPick={setPicked} steps={section(run)?.steps ?? 0} />
        <Leases round={round} view={view} />
        <Workers workers={workers.data ?? []} />
        <ScalingPanel run={run} found={efficiency} />
      </div>
    </>
  );
}

interface FactsProps {
  run: RunView;
  found: readonly RoundView[];
  round: RoundView;
  /** The round whose speed is shown. */
  measured: RoundView;
  view: LeasesView | null;
  efficiency: Scaling | null;
}

function Facts({ run, found, round, measured, view, efficiency }: FactsProps) {
  const now = useNow();
  const plan = section(run);
  const { samples, share } = speed(measured);
  const again = view ? restarts(view) : null;
  const open = round.status === "open";
  const of = `of round ${count(round.round)}`;
  return (
    <dl className="facts">
      <Fact label="Samples per second" value={<span data-fact="samples">{samples === null ? "–" : count(samples)}</span>} note={samples === null ? "not reported so far" : `in round ${count(measured.round)}`} />
      <Fact
        label="Communication"
        value={<span data-fact="share">{share === null ? "–" : percent(share)}</span>}
        note={share === null ? (plan?.nproc === 1 ? "one process has none" : "not reported so far") : "of the time"}
      />
      <Fact
        label="Worker"
        value={<span data-fact="worker">{open && run.phase === "leasing" && run.round === round.round ? "none" : (view?.leases?.at(-1)?.label || (round.lease?.worker ?? "none"))}</span>}
        note={round.lease ? (open ? `heard ${ago(round.lease.seen_at, now)}` : of) : "waits for one"}
      />
      <Fact label="Leases" value={<span data-fact="leases">{count(round.attempt)}</span>} note={`${of}; ${count(found.reduce((sum, one) => sum + (one.attempt ?? 0), 0))} in all`} />
      <Fact label="Restarts" value={<span data-fact="restarts">{again ? count(again.workers + again.processes) : "–"}</span>} note={again && again.workers + again.processes ? `${count(again.workers)} of workers, ${count(again.processes)} of processes` : of} />
      <Fact label="Scaling" value={<span data-fact="scaling">{efficiency?.kind === "measured" ? percent(efficiency.efficiency) : "–"}</span>} note={efficiency?.kind === "measured" ? `with ${count(plan?.nproc ?? 1)} processes` : "no baseline measured"} />
    </dl>
  );
}

function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}

function ScalingPanel({ run, found }: { run: RunView; found: Scaling | null }) {
  const nproc = section(run)?.nproc ?? 1;
  return (
    <Panel title="Scaling efficiency" note={`${many(nproc, "process", "processes")}`}>
      {found === null ? (
        <p className="note">Loading …</p>
      ) : found.kind === "none" ? (
        <EmptyState title={nproc > 1 ? "It is not known." : "It does not apply."} command={nproc > 1 ? "quorate run create PLAN-WITH-NPROC-1.toml" : null}>
          {sentence(found.why)}
        </EmptyState>
      ) : (
        <p className="plain">
          <b>{percent(found.efficiency)}.</b> {count(nproc)} processes train on {count(found.here)} samples a second, one on {count(found.alone)} (run {found.run}, the {found.batch === "same" ? "same batch" : "same batch in each process"}, on the same
          worker). At 100 % they would train on {count(nproc * found.alone)}. Medians of committed rounds.
        </p>
      )}
    </Panel>
  );
}

