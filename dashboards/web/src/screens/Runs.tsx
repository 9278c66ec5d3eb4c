// All runs in scope: which go on, how far they are, and which need somebody.
import { useState } from "react";
import { page } from "../api/client";
import type { RunView } from "../api/types";
import { Badge, EmptyState, Problem, Progress } from "../components/parts";
import { ago, count, many, runTitle } from "../format";
import { useLive, useSession } from "../live/context";
import { inOrder } from "../live/state";
import { goal, health } from "../progress";
import { mayStart } from "../roles";
import { runPath, startPath } from "../route";
import { useNow } from "../useNow";
import { CardMetric } from "./CardMetric";

/** So many cards show their metric: each asks the API for it. */
const WITH_METRICS = 12;
/** So many older runs are asked for at once. */
const PAGE = 50;

export function Runs() {
  const live = useLive();
  const runs = inOrder(live.runs);
  const states = runs.map(health);
  const going = states.filter((state) => state.tone === "busy").length;
  const wanting = states.filter((state) => state.tone === "warn" || state.tone === "bad").length;
  const loading = !live.begun;
  return (
    <>
      <header className="screen-head">
        <div className="title-line">
          <h1>Runs</h1>
          <StartLink />
        </div>
        {!loading && (
          <p className="lead">
            {many(runs.length, "run")}
            {live.older && " and older ones"}, {count(going)} live{wanting ? `, ${count(wanting)} in need of somebody` : ""}.
          </p>
        )}
      </header>
      {loading && <p className="note">Loading …</p>}
      {!loading && !runs.length && (
        <EmptyState title="There are no runs yet." command="quorate run create examples/mnist-small.toml">
          Create one from a plan:
        </EmptyState>
      )}
      <ul className="cards">
        {runs.map((run, i) => (
          <li key={run.run}>{states[i] && <Card run={run} state={states[i]} learning={i < WITH_METRICS} />}</li>
        ))}
      </ul>
      <Older />
    </>
  );
}

/** Those that ended before the runs above. */
function Older() {
  const { connection } = useSession();
  const { older } = useLive();
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const ask = async () => {
    setBusy(true);
    try {
      const { rows, next } = await page("/v1/runs", { after: older, newest_first: "true", limit: PAGE });
      connection.asked(rows, next);
      setProblem(null);
    } catch (error) {
      setProblem((error as Error).message);
    }
    setBusy(false);
  };
  return (
    <>
      <Problem text={problem} />
      {older && (
        <button type="button" className="quiet" disabled={busy} onClick={() => void ask()}>
          Show older runs
        </button>
      )}
    </>
  );
}

/** Who may not start a run is told so in its place. */
function StartLink() {
  const { me } = useSession();
  return mayStart(me) ? (
    <a className="button main start-link" href={startPath()}>
      Start a run
    </a>
  ) : (
    <p className="note start-link">To start a run you need the role operator.</p>
  );
}

function Card({ run, state, learning }: { run: RunView; state: ReturnType<typeof health>; learning: boolean }) {
  const now = useNow();
  const wanted = goal(run);
  return (
    <a className={`card tone-${state.tone}`} href={runPath(run.run)}>
      <span className="card-head">
        <strong className="cut">{runTitle(run)}</strong>
        <Badge tone={state.tone}>{state.word}</Badge>
      </span>
      <span className="card-figures">
        {run.flower ? (
          <span>
            round <b>{count(run.round)}</b>
          </span>
        ) : (
          <span>
            round <b>{count(run.rounds_committed)}</b> of {count(run.rounds_wanted)}
          </span>
        )}
        <span>
          {run.flower ? "replied" : "reported"} <b>{count(run.funnel.reported)}</b>
          {wanted !== null && ` of ${count(wanted)}`}
        </span>
      </span>
      {run.flower ? (
        <Progress part={run.funnel.reported} whole={run.funnel.selected} label={`Replies of this round of ${run.run}`} tone={state.tone} />
      ) : (
        <Progress part={run.rounds_committed} whole={run.rounds_wanted} label={`Rounds of ${run.run}`} tone={state.tone} />
      )}
      {learning && !run.flower && <CardMetric run={run} />}
      <span className="note two-lines">{state.sentence}</span>
      <span className="note">{run.clock === "virtual" ? `${run.kind}, simulated` : `${run.kind}, created ${ago(run.created_at, now)}`}</span>
    </a>
  );
}
