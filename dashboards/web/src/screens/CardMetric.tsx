// On the card of a run whether it learns: the newest value of its metric, and how it came there.
import type { MetricView, RunView } from "../api/types";
import { Spark } from "../components/Spark";
import { curves, firstMetric, trend } from "../curves";
import { metric } from "../format";
import { useResource } from "../live/context";
import { trendInWords } from "../trend";
import { metricsOf, useSlowly } from "../useRun";

/** Many people have many cards before them: this is how seldom each asks. */
const FOLLOWED_MS = 30_000;
const POINTS = 100;

/** What evaluators say; of a run without one there is nothing to show here. */
export function CardMetric({ run }: { run: RunView }) {
  const seq = useSlowly(run.seq, FOLLOWED_MS);
  const { data } = useResource<MetricView[]>(`${run.run} ${seq}`, (signal) => metricsOf(run.run, signal));
  const planned = (run.plan as { finish?: { metric?: unknown } }).finish?.metric;
  // By version: every checkpoint is one of a round, and only their order is shown.
  const found = curves(versions(data ?? []), data ?? []);
  const name = firstMetric([...found.keys()], planned);
  const curve = name === null ? undefined : found.get(name)?.[0];
  const last = curve?.points.at(-1);
  if (!curve || !last) return null;
  const moved = trend(curve);
  return (
    <span className="card-metric">
      <span>
        {name} <b>{metric(last.value)}</b>
        {moved && <span className="note"> {trendInWords(moved, "version")}</span>}
      </span>
      {curve.points.length > 1 && <Spark values={curve.points.slice(-POINTS).map((point) => point.value)} />}
    </span>
  );
}

/** Rounds that made these versions, as far as `curves` reads them. */
function versions(metrics: readonly { version: number }[]) {
  return [...new Set(metrics.map((one) => one.version))].map((version) => ({ round: version, version, metrics: {}, weight: 0 }));
}
