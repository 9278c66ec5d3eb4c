// The lanes of a round with what sorts, filters and zooms them, and their table.
import { useMemo, useState } from "react";
import type { LanesView, RoundView } from "../api/types";
import { LaneLegend } from "../components/LaneLegend";
import { Lanes } from "../components/Lanes";
import { LaneTable } from "../components/LaneTable";
import { Panel, Shape, Swap } from "../components/parts";
import { count, many } from "../format";
import { type End, ENDS, ended, firstSpan, inOrder, moved, ORDER_NAMES, type Order, type Span, TONES, whole, zoomed } from "../lanes";
import { useNow } from "../useNow";

interface Props {
  round: RoundView;
  view: LanesView;
  picked: string | null;
  onPick: (device: string) => void;
}

export function RoundLanes({ round, view, picked, onPick }: Props) {
  const now = useNow();
  const closedAt = round.closed_at ?? null;
  const [order, setOrder] = useState<Order>("who was over first");
  const [only, setOnly] = useState<End | null>(null);
  const [chosen, setChosen] = useState<Span | null>(null);
  const [asTable, setAsTable] = useState(false);
  const lanes = useMemo(() => {
    const found = view.lanes ?? [];
    return inOrder(only === null ? found : found.filter((lane) => lane.end === only), order);
  }, [view, only, order]);
  const all = whole(view.lanes ?? [], round.opened_at, closedAt, now);
  const span = chosen ?? firstSpan(all, closedAt);
  const label = `Lanes of round ${round.round}`;
  return (
    <Panel title="A lane for each device" note={`${many(lanes.length, "device")}, seconds from the selection`} wide>
      <div className="lane-tools">
        <label>
          Sorted by{" "}
          <select value={order} onChange={(event) => setOrder(event.target.value as Order)}>
            {ORDER_NAMES.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <Filter view={view} only={only} onOnly={setOnly} />
        {!asTable && <Zoom all={all} span={span} chosen={chosen !== null} onSpan={setChosen} />}
      </div>
      {asTable ? (
        <LaneTable label={label} lanes={lanes} begin={all.from} />
      ) : (
        <>
          <Lanes label={label} lanes={lanes} all={all} span={span} closedAt={closedAt} now={now} picked={picked} onPick={onPick} onSpan={setChosen} />
          <LaneLegend closed={closedAt !== null}>
            <p className="note">
              A device says with its update how long it fetched and trained. Of one that did not report, the coordinator knows when it began to train and when its part was over. Drag along
              the times to zoom.
            </p>
          </LaneLegend>
        </>
      )}
      <Swap asTable={asTable} onSwap={setAsTable} />
    </Panel>
  );
}

function Filter({ view, only, onOnly }: { view: LanesView; only: End | null; onOnly: (end: End | null) => void }) {
  const there = ENDS.filter((end) => ended(view, end) > 0 || end === only);
  if (there.length < 2 && only === null) return null;
  return (
    <span className="lane-filter" role="group" aria-label="Which devices">
      {there.map((end) => (
        <button key={end} type="button" className={`tone-${TONES[end]}`} aria-pressed={only === end} onClick={() => onOnly(only === end ? null : end)}>
          <Shape tone={TONES[end]} /> {end} {count(ended(view, end))}
        </button>
      ))}
    </span>
  );
}

function Zoom({ all, span, chosen, onSpan }: { all: Span; span: Span; chosen: boolean; onSpan: (span: Span | null) => void }) {
  const button = (name: string, sign: string, to: Span | null, off = false) => (
    <button type="button" aria-label={name} title={name} disabled={off} onClick={() => onSpan(to)}>
      {sign}
    </button>
  );
  return (
    <span className="lane-zoom" role="group" aria-label="Which part of the time">
      {button("Earlier", "←", moved(span, -0.5, all), span.from <= all.from)}
      {button("Zoom in", "+", zoomed(span, 0.5, all))}
      {button("Zoom out", "−", zoomed(span, 2, all), span.from <= all.from && span.to >= all.to)}
      {button("Later", "→", moved(span, 0.5, all), span.to >= all.to)}
      {button("The whole round", "Whole round", null, !chosen)}
    </span>
  );
}
