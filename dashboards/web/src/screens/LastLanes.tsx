// On the screen of a live run: what each device of the last closed round did, in one small picture.
import { useState } from "react";
import { get } from "../api/client";
import type { LanesView, RoundView, RunView } from "../api/types";
import { LaneLegend } from "../components/LaneLegend";
import { LaneMap } from "../components/LaneMap";
import { LaneTable } from "../components/LaneTable";
import { Panel, Problem, Swap } from "../components/parts";
import { count } from "../format";
import { firstSpan, inOrder, whole } from "../lanes";
import { useResource } from "../live/context";
import { roundPath } from "../route";
import { LaneBuckets, MOST_LANES } from "./LaneBuckets";

const HEIGHT = 176;

/** The newest round of devices that has closed, and of which single devices are known; undefined: there is none. */
export function lastOfDevices(rounds: readonly RoundView[]): RoundView | undefined {
  return rounds.findLast((round) => round.closed_at != null && (round.kind === "federated" || round.kind === "buffered") && round.funnel.selected > 0);
}

export function LastLanes({ run, round }: { run: RunView; round: RoundView }) {
  const [asTable, setAsTable] = useState(false);
  // Asked again when the next round goes on: late updates have come then.
  const key = `${run.run} ${round.round} ${run.round === round.round + 1 ? run.phase : "over"}`;
  const limit = round.funnel.selected > MOST_LANES ? 1 : MOST_LANES;
  const { data, error } = useResource<{ of: RoundView; view: LanesView }>(key, async (signal) => ({
    of: round,
    view: await get("/v1/runs/{run}/rounds/{round}/lanes", { run: run.run, round: round.round, limit }, signal),
  }));
  if (!data) return error ? <Panel title="Devices"><Problem text={error} /></Panel> : null;
  const { of, view } = data;
  const closedAt = of.closed_at ?? of.opened_at;
  if (view.devices > MOST_LANES) return <LaneBuckets round={of} buckets={view.buckets ?? []} devices={view.devices} height={HEIGHT + 60} narrow />;
  const lanes = inOrder(view.lanes ?? [], "who was over first");
  const all = whole(lanes, of.opened_at, closedAt, closedAt);
  const label = `Lanes of the ${count(view.devices)} devices of round ${of.round}`;
  return (
    <Panel
      title={`Devices of round ${count(of.round)}`}
      note={<a href={roundPath(run.run, of.round)}>{`all ${count(view.devices)} lanes`}</a>}
      actions={<Swap asTable={asTable} onSwap={setAsTable} />}
    >
      {asTable ? (
        <LaneTable label={label} lanes={lanes} begin={all.from} height={HEIGHT + 40} />
      ) : (
        <>
          <LaneMap label={label} lanes={lanes} span={firstSpan(all, closedAt)} begin={all.from} closedAt={closedAt} height={HEIGHT} />
          <LaneLegend closed />
        </>
      )}
    </Panel>
  );
}
