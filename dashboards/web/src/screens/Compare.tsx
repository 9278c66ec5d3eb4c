// Up to twenty runs side by side: any metric against rounds, time or bytes, and in what their plans differ. The address keeps the view.
import { useEffect, useMemo } from "react";
import type { RunView } from "../api/types";
import { choices } from "../compare/lines";
import { useCompared } from "../compare/useCompared";
import { decode, encode, namesRuns, type View } from "../compare/view";
import { EmptyState, Panel, Problem } from "../components/parts";
import { firstMetric } from "../curves";
import { many } from "../format";
import { useLive, useOlder } from "../live/context";
import { inOrder } from "../live/state";
import { query as queryNow, useQuery } from "../route";
import { CompareChart } from "./CompareChart";
import { PlanDifferences, RunPicker, Standings } from "./ComparePanels";

const SHOWN_AT_FIRST = 6;

export default function Compare() {
  const live = useLive();
  const query = useQuery();
  const view = useMemo(() => decode(query), [query]);
  const runs = inOrder(live.runs).filter((run) => !run.flower);
  const named = namesRuns(query);
  const first = named ? "" : encode({ ...view, runs: startWith(runs) });
  useEffect(() => {
    if (first && runs.length) location.replace(`#/compare?${first}`);
  }, [first, runs.length]);
  if (!live.begun) return <p className="note">Loading …</p>;
  return (
    <>
      <header className="screen-head">
        <h1>Compare runs</h1>
        <p className="lead">{runs.length ? "The address keeps what you see: copy it to show it to somebody." : "There is nothing to compare yet."}</p>
      </header>
      {runs.length ? (
        <Chosen runs={runs} view={view} />
      ) : (
        <EmptyState title="There are no runs yet." command="quorate run create examples/mnist-small.toml">
          Create one from a plan, and another with a changed one:
        </EmptyState>
      )}
    </>
  );
}

/** The newest runs that have something to show. */
function startWith(runs: readonly RunView[]): string[] {
  return runs
    .filter((run) => run.rounds_committed > 0)
    .slice(0, SHOWN_AT_FIRST)
    .map((run) => run.run);
}

function Chosen({ runs, view }: { runs: readonly RunView[]; view: View }) {
  const known = new Map(runs.map((run) => [run.run, run]));
  const chosen = view.runs.map((name) => known.get(name)).filter((run) => run !== undefined);
  const asked = useOlder(view.runs);
  const missing = asked ? [] : view.runs.filter((name) => !known.has(name));
  const { data, error } = useCompared(chosen);
  const found = useMemo(() => (data ?? []).filter((one) => view.runs.includes(one.run.run)), [data, view.runs]);
  const metrics = useMemo(() => choices(found), [found]);
  const planned = (found[0]?.run.plan as { finish?: { metric?: unknown } } | undefined)?.finish?.metric;
  const metric = view.metric ?? firstMetric([...metrics.keys()], planned);
  const sources = (metric !== null && metrics.get(metric)) || [];
  const source = view.source ?? sources[0] ?? null;
  const change = (changed: (now: View) => Partial<View>) => {
    const now = decode(queryNow());
    location.replace(`#/compare?${encode({ ...now, ...changed(now) })}`);
  };
  return (
    <>
      <Problem text={error} />
      {missing.length > 0 && (
        <p className="problem" role="status">
          {many(missing.length, "run")} of this address {missing.length === 1 ? "is" : "are"} not in your scope: {missing.join(", ")}.
        </p>
      )}
      <div className="compare">
        <RunPicker runs={runs} chosen={view.runs} onChosen={(chosen) => change((now) => ({ runs: chosen(now.runs) }))} />
        {!chosen.length ? (
          <Panel title="Curves">
            <EmptyState title="Choose the runs to compare." />
          </Panel>
        ) : data === null ? (
          <Panel title="Curves">
            <p className="note">{error ? "" : "Loading …"}</p>
          </Panel>
        ) : metric === null || source === null ? (
          <Panel title="Curves">
            <EmptyState title="None of these runs has a metric yet." command={`quorate evaluate ${chosen[0]?.run ?? "RUN"} --data NAME`}>
              They come with the first committed round, and from an evaluator:
            </EmptyState>
          </Panel>
        ) : (
          <CompareChart found={found} metrics={metrics} metric={metric} source={source} view={view} onView={(more) => change(() => more)} />
        )}
      </div>
      {found.length > 0 && (
        <div className="panels compared">
          {metric !== null && source !== null && <Standings found={found} metric={metric} source={source} />}
          <PlanDifferences found={found} />
        </div>
      )}
    </>
  );
}
