// The lanes of a round as a table.
import type { Lane } from "../api/types";
import { bytes, duration } from "../format";
import { named, TONES } from "../lanes";
import { Badge } from "./parts";
import { Table } from "./Table";

export function LaneTable({ label, lanes, begin, height = 480 }: { label: string; lanes: readonly Lane[]; begin: number; height?: number }) {
  const after = (at: number | null | undefined) => (at == null ? "–" : duration(at - begin));
  const took = (s: number | null | undefined) => (s == null ? "–" : duration(s));
  return (
    <Table
      caption={label}
      height={height}
      rows={lanes}
      rowKey={(lane) => lane.device}
      columns={[
        { name: "device", cell: named },
        { name: "end", cell: (lane) => <Badge tone={TONES[lane.end]}>{lane.end}</Badge> },
        { name: "fetched", cell: (lane) => took(lane.fetch_s), figures: true },
        { name: "began after", cell: (lane) => after(lane.started_at), figures: true },
        { name: "trained", cell: (lane) => took(lane.train_s), figures: true },
        { name: "over after", cell: (lane) => after(lane.ended_at), figures: true },
        { name: "update", cell: (lane) => (lane.bytes == null ? "–" : bytes(lane.bytes)), figures: true },
        { name: "why", cell: (lane) => <span className="two-lines">{lane.reason}</span> },
      ]}
    />
  );
}
