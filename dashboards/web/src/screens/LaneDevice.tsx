// One device of a round: what it did in it, and how its last rounds ended.
import { useEffect, useRef } from "react";
import { get } from "../api/client";
import type { Lane } from "../api/types";
import { Badge, Fact, Panel, Problem } from "../components/parts";
import { Table } from "../components/Table";
import { RESULTS } from "../device";
import { ago, bytes, clock, count, duration, sentence } from "../format";
import { named, TONES } from "../lanes";
import { useResource } from "../live/context";
import { devicePath, roundPath } from "../route";
import { useNow } from "../useNow";

export function LaneDevice({ lane }: { lane: Lane | undefined }) {
  return (
    <Panel title={lane ? `Device ${named(lane)}` : "Device"} note={lane?.label ? lane.device : ""}>
      {lane ? <Details key={lane.device} lane={lane} /> : <p className="note">Choose a lane to see its device.</p>}
    </Panel>
  );
}

function Details({ lane }: { lane: Lane }) {
  const now = useNow();
  const box = useRef<HTMLDivElement>(null);
  const { data, error } = useResource(`${lane.device} ${lane.end}`, (signal) => get("/v1/devices/{device}", { device: lane.device }, signal));
  useEffect(() => {
    box.current?.scrollIntoView({ block: "nearest" });
  }, []);
  const took = (s: number | null | undefined) => (s == null ? "–" : duration(s));
  return (
    <div ref={box} aria-live="polite">
      <p className="lane-why">
        <Badge tone={TONES[lane.end]}>{lane.end}</Badge> {sentence(lane.reason)}
      </p>
      <dl className="facts">
        <Fact label="Selected" value={clock(lane.selected_at, now)} />
        <Fact label="Began after" value={took(lane.started_at == null ? null : lane.started_at - lane.selected_at)} note={lane.fetch_s == null ? "" : `fetched in ${duration(lane.fetch_s)}`} />
        <Fact label="Trained" value={took(lane.train_s)} note={lane.encode_s == null ? "" : `encoded in ${duration(lane.encode_s)}`} />
        <Fact label="Over after" value={took(lane.ended_at == null ? null : lane.ended_at - lane.selected_at)} note={lane.bytes == null ? "" : bytes(lane.bytes)} />
      </dl>
      <Problem text={error} />
      {data && (
        <>
          <p className="note">
            {data.device.device_class ? `Class ${data.device.device_class}; ` : ""}{data.device.last_seen_at == null ? "never seen" : `seen ${ago(data.device.last_seen_at, now)}`}; {count(data.device.rounds_joined)} rounds joined,{" "}
            {count(data.device.refusals)} refusals. <a href={devicePath(lane.device)}>More of this device</a>
          </p>
          {data.rounds.length > 0 && (
            <Table
              caption={`Last rounds of ${named(lane)}`}
              height={200}
              rows={data.rounds}
              rowKey={(one) => `${one.run} ${one.round} ${one.result}`}
              columns={[
                { name: "run", cell: (one) => one.run },
                { name: "round", cell: (one) => <a href={roundPath(one.run, one.round)}>{count(one.round)}</a>, figures: true },
                { name: "result", cell: (one) => <Badge tone={RESULTS[one.result]}>{one.result}</Badge> },
                { name: "when", cell: (one) => (one.at == null ? "–" : clock(one.at, now)) },
                { name: "why", cell: (one) => <span className="two-lines">{one.reason}</span> },
              ]}
            />
          )}
        </>
      )}
    </div>
  );
}
