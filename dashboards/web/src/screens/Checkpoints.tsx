// The line of a run's checkpoints: each with its digest, its parent, its metrics, and its bytes to download.
import { address } from "../api/client";
import type { CheckpointView, RunView } from "../api/types";
import { EmptyState, Panel, Problem } from "../components/parts";
import { Table } from "../components/Table";
import { bytes, clock, count, metric, short } from "../format";
import { useResource, useSession } from "../live/context";
import { mayStart } from "../roles";
import { startPath } from "../route";
import { useNow } from "../useNow";
import { lineOf, useMetrics, useRounds } from "../useRun";

export function Checkpoints({ run }: { run: RunView }) {
  const now = useNow();
  const { me } = useSession();
  const starts = mayStart(me);
  const line = useResource<CheckpointView[]>(`${run.run} ${run.version}`, (signal, before) => lineOf(run.run, before, signal));
  const metrics = useMetrics(run);
  const rounds = useRounds(run);
  const reports = new Map((rounds.data ?? []).map((round) => [round.round, round.funnel.reported]));
  const scores = new Map<number, Map<string, string[]>>();
  for (const one of metrics.data ?? []) {
    const sources = scores.get(one.version) ?? new Map<string, string[]>();
    scores.set(one.version, sources.set(one.source, [...(sources.get(one.source) ?? []), `${one.name} ${metric(one.value)}`]));
  }
  if (line.error) return <Problem text={line.error} />;
  if (!line.data) return <p className="note">Loading …</p>;
  return (
    <div className="panels">
      <Panel title="Checkpoints" note={`${count(line.data.length)} in one line: each names its parent`} wide>
        {line.data.length ? (
          <Table
            caption="Checkpoints, the newest first"
            rows={[...line.data].reverse()}
            rowKey={(one) => one.version}
            columns={[
              { name: "version", cell: (one) => <b>{count(one.version)}</b>, figures: true },
              { name: "digest", cell: (one) => <code title={one.digest}>{short(one.digest)}</code> },
              { name: "parent", cell: (one) => (one.parent ? <code title={one.parent}>{short(one.parent)}</code> : <span className="whole">none: the first</span>) },
              { name: "from", cell: (one) => (one.round === null ? one.origin || "an upload" : `round ${one.round}`) },
              { name: "updates", cell: (one) => (one.round === null ? "" : count(reports.get(one.round) ?? 0)), figures: true },
              { name: "metrics", cell: (one) => <Scores of={scores.get(one.version)} /> },
              { name: "size", cell: (one) => bytes(one.bytes), figures: true },
              { name: "made", cell: (one) => clock(one.created_at, now), figures: true },
              {
                name: "file",
                cell: (one) => (
                  <a href={address("/v1/checkpoints/{digest}", { digest: one.digest }).href} download={`${run.run}-${one.version}.safetensors`} aria-label={`Download version ${one.version}`}>
                    Download
                  </a>
                ),
              },
              ...(starts
                ? [
                    {
                      name: "next",
                      cell: (one: CheckpointView) => (
                        <a className="whole" href={startPath({ run: run.run, version: one.version })} aria-label={`Start a new run from here, version ${one.version}`}>
                          New run from here
                        </a>
                      ),
                    },
                  ]
                : []),
            ]}
          />
        ) : (
          <EmptyState title="There are no checkpoints." />
        )}
        <p className="note">
          {starts
            ? "A line never forks: a new run has a line of its own, which begins with the checkpoint that you choose."
            : "To start a new run from one of them you need the role operator."}
        </p>
      </Panel>
    </div>
  );
}

/** What each source says of a checkpoint, a line for each. */
function Scores({ of }: { of: ReadonlyMap<string, readonly string[]> | undefined }) {
  return [...(of ?? [])].map(([source, values]) => (
    <span key={source} className="scores">
      {values.join(", ")} <span className="note">{source}</span>
    </span>
  ));
}
