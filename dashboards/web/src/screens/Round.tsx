// One round: what each of its devices did, when it closed, who was late and who vanished; of a secure round what the coordinator saw.
import { useState } from "react";
import { get } from "../api/client";
import type { LanesView, RoundView, RunView } from "../api/types";
import { Badge, EmptyState, Fact, Figure, Panel, Problem, Shape } from "../components/parts";
import { bytes, count, duration, sentence } from "../format";
import { type Exit, ended, exits, TONES } from "../lanes";
import { type Resource, useLive, useOlder, useResource } from "../live/context";
import { goal, missed, roundSeconds, type Tone } from "../progress";
import { roundPath, runPath } from "../route";
import { type SecureRound, seen } from "../secure";
import { treated } from "../treatment";
import { useNow } from "../useNow";
import { useSlowly } from "../useRun";
import { FlowerRound } from "./FlowerRun";
import { LaneBuckets, MOST_LANES } from "./LaneBuckets";
import { LaneDevice } from "./LaneDevice";
import { RoundLanes } from "./RoundLanes";
import { Earlier, ExchangeChart, Strip } from "./Secure";

const FOLLOWED_MS = 2000;
const STATUSES: Readonly<Record<RoundView["status"], Tone>> = { open: "busy", committed: "good", abandoned: "warn", ended: "good" };

const NO_LANES: LanesView = { devices: 0, secure: "" };

interface Seen {
  round: RoundView;
  lanes: LanesView;
}

export default function Round({ id, number }: { id: string; number: number }) {
  const live = useLive();
  const run = live.runs[id];
  const asked = useOlder([id]);
  if (!run)
    return !live.begun || asked ? (
      <p className="note">Loading …</p>
    ) : (
      <>
        <h1>Round {count(number)}</h1>
        <EmptyState title={`There is no run ${id} in your scope.`} command="quorate run list" />
      </>
    );
  return <OfRun run={run} number={number} />;
}

/** The round and its lanes, asked again while the run is in this round or the next one: late updates come then. */
function useRound(run: RunView, number: number): Resource<Seen> {
  const seq = useSlowly(run.seq, FOLLOWED_MS);
  const answers = useSlowly(run.flower ? `${run.flower.replies} ${run.flower.errors}` : "", FOLLOWED_MS);
  const key = [run.run, number, run.round <= number + 1 ? `${seq} ${run.round} ${run.phase} ${answers}` : "over"].join(" ");
  return useResource<Seen>(key, async (signal, before) => {
    // Of a large cohort the parts of time are shown, not its lanes.
    const limit = before && before.lanes.devices > MOST_LANES ? 1 : MOST_LANES;
    if (run.flower) return { round: await get("/v1/runs/{run}/rounds/{round}", { run: run.run, round: number }, signal), lanes: NO_LANES };
    const [round, lanes] = await Promise.all([
      get("/v1/runs/{run}/rounds/{round}", { run: run.run, round: number }, signal),
      get("/v1/runs/{run}/rounds/{round}/lanes", { run: run.run, round: number, limit }, signal),
    ]);
    return { round, lanes };
  });
}

function OfRun({ run, number }: { run: RunView; number: number }) {
  const { data, error } = useRound(run, number);
  const now = useNow();
  return (
    <>
      <header className="screen-head">
        <div className="title-line">
          <h1>Round {count(number)}</h1>
          {data && <Badge tone={STATUSES[data.round.status]}>{data.round.status}</Badge>}
          <nav className="actions" aria-label="Rounds">
            {number > 1 && <a href={roundPath(run.run, number - 1)}>← round {count(number - 1)}</a>}
            {number < run.round && <a href={roundPath(run.run, number + 1)}>round {count(number + 1)} →</a>}
          </nav>
        </div>
        <p className="lead">
          Of run <a href={runPath(run.run)}>{run.run}</a>. {data && [data.round.reason || data.round.because, missed(data.round, now)].filter(Boolean).map(sentence).join(" ")}
        </p>
      </header>
      <Problem text={error} />
      {data ? (
        <Shown run={run} {...data} />
      ) : error ? (
        <EmptyState title="Nothing is known of this round." command={`quorate rounds ${run.run}`} />
      ) : (
        <p className="note">Loading …</p>
      )}
    </>
  );
}

function Shown({ run, round, lanes }: Seen & { run: RunView }) {
  if (round.kind === "flower") return <FlowerRound round={round} />;
  if (round.kind === "secure") return <SecureRoundShown round={round} why={lanes.secure} />;
  if (round.kind === "datacenter") return <EmptyState title="A datacenter worker trains this round: no device was asked, so it has no lanes." command={`quorate rounds ${run.run}`} />;
  if (!lanes.devices)
    return (
      <EmptyState title="This round has selected no device." command={round.status === "open" ? "quorate device --token-file FILE --data DATA" : `quorate rounds ${run.run}`}>
        {round.status === "open" ? "It does when enough devices wait. Start one:" : "Why rounds ended so:"}
      </EmptyState>
    );
  return <Federated run={run} round={round} lanes={lanes} />;
}

function Federated({ run, round, lanes }: Seen & { run: RunView }) {
  const [picked, setPicked] = useState<string | null>(null);
  const many = lanes.devices > MOST_LANES;
  const out = exits(lanes, round.closed_at ?? null);
  return (
    <>
      <RoundFacts run={run} round={round} lanes={lanes} />
      <div className="panels">
        {many ? (
          <LaneBuckets round={round} buckets={lanes.buckets ?? []} devices={lanes.devices} />
        ) : (
          <RoundLanes round={round} view={lanes} picked={picked} onPick={setPicked} />
        )}
        <Panel title="Who did not report" wide={many}>
          <Exits found={out} open={round.status === "open"} />
        </Panel>
        {!many && <LaneDevice lane={lanes.lanes?.find((lane) => lane.device === picked)} />}
      </div>
    </>
  );
}

function RoundFacts({ run, round, lanes }: Seen & { run: RunView }) {
  const now = useNow();
  const done = treated(round);
  const wanted = goal(run);
  return (
    <dl className="facts">
      <Fact label="Reported" value={<Figure name="reported" text={`${count(ended(lanes, "reported"))} / ${count(lanes.devices)}`} />} note={wanted === null ? "of those selected" : `of those selected; ${count(wanted)} wanted`} />
      <Fact label="Late" value={<span data-fact="late">{count(ended(lanes, "late"))}</span>} note="after it had closed" />
      <Fact label="Dropped" value={<span data-fact="dropped">{count(ended(lanes, "dropped"))}</span>} note="not heard until it closed" />
      <Fact label="Time" value={duration(round.closed_at == null ? Math.floor(roundSeconds(round, now)) : roundSeconds(round, now))} note={round.closed_at == null ? "so far" : "with the selection"} />
      <Fact label="Received" value={bytes(round.bytes_in)} />
      {done.length > 0 && <Fact label="Done to updates" value={<span data-fact="treated">{count(done.length)}</span>} note={done.join("; ")} />}
    </dl>
  );
}

function Exits({ found, open }: { found: readonly Exit[]; open: boolean }) {
  if (!found.length) return <p className="note">{open ? "Nobody has left so far." : "Every selected device reported."}</p>;
  return (
    <ul className="lane-exits">
      {found.map((one) => (
        <li key={one.end} className={`tone-${TONES[one.end]}`}>
          <Shape tone={TONES[one.end]} />
          <span>
            <b>
              {count(one.devices)} {one.end}.
            </b>{" "}
            {one.where}
          </span>
        </li>
      ))}
    </ul>
  );
}

function SecureRoundShown({ round, why }: { round: RoundView; why: string }) {
  const found = round.secure ? ({ ...round, secure: round.secure } satisfies SecureRound) : null;
  return (
    <div className="panels">
      <Panel title="No lanes: this round is secure" wide>
        <p className="plain">{sentence(why)}</p>
        {found && <p className="plain">{seen(found)}</p>}
      </Panel>
      {found && (
        <Panel title="Arrival in each exchange" note={`attempt ${found.secure.attempts} of round ${round.round}`} wide>
          <Strip exchanges={found.secure.exchanges} />
        </Panel>
      )}
      {found && <ExchangeChart round={found} />}
      {found && <Earlier round={found} />}
    </div>
  );
}
