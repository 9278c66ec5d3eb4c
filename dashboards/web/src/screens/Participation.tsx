// Who takes part in a run's rounds, the least counted first, and in which devices lateness is concentrated.
import { get } from "../api/client";
import type { RunParticipation, RunView } from "../api/types";
import { Panel, Problem, Shape } from "../components/parts";
import { Table } from "../components/Table";
import { count, duration } from "../format";
import { useResource } from "../live/context";
import { noteOf } from "../participation";
import { devicePath } from "../route";
import { useSlowly } from "../useRun";

const SHOWN = 200;
const ROUND_MS = 10_000;

export function Participation({ run }: { run: RunView }) {
  const round = useSlowly(`${run.round} ${run.status}`, ROUND_MS);
  const key = `${run.run} participation ${round}`;
  const { data, error } = useResource<RunParticipation>(key, (signal) => get("/v1/runs/{run}/participation", { run: run.run, limit: SHOWN }, signal));
  if (run.flower || (run.kind === "datacenter" && !data?.devices)) return null;
  return (
    <Panel title="Participation" note={data ? noteOf(data) : ""} wide>
      <Problem text={error} />
      {data?.lateness && (
        <p className="plain tone-warn" data-fact="lateness">
          <Shape tone="warn" /> {data.lateness}.
        </p>
      )}
      {data && (
        <Table
          caption="Devices by how often they counted, the least counted first"
          height={260}
          rows={data.page ?? []}
          rowKey={(one) => one.device}
          columns={[
            { name: "device", cell: (one) => <a href={devicePath(one.device)}>{one.device}</a> },
            { name: "class", cell: (one) => one.device_class },
            { name: "selected", cell: (one) => count(one.selected ?? 0), figures: true },
            { name: "reported", cell: (one) => count(one.reported ?? 0), figures: true },
            { name: "counted", cell: (one) => count(one.counted ?? 0), figures: true },
            { name: "late", cell: (one) => count(one.late ?? 0), figures: true },
            { name: "dropped", cell: (one) => count(one.dropped ?? 0), figures: true },
            { name: "speed", cell: (one) => (one.speed_s == null ? "–" : duration(one.speed_s)), figures: true },
          ]}
        />
      )}
    </Panel>
  );
}
