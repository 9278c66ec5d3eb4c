// The devices: how many are there and when, which classes take part, and a table of them that the server pages and filters.
import { get } from "../api/client";
import type { FleetView } from "../api/types";
import { axis, Chart } from "../components/Chart";
import { EmptyState, Fact, Panel, Problem, SharedIdentities } from "../components/parts";
import { count, hour } from "../format";
import { useLive, useResource } from "../live/context";
import { useNow } from "../useNow";
import { Devices } from "./Devices";

const EVERY_S = 15;
/** How the API names all classes beyond those that it lists: no class of a device. */
const OTHERS = "other classes";
const STATES = [
  ["waiting", "in the pool"],
  ["unfit", "check in, and fit no run"],
  ["assigned", "in a round"],
  ["away", "not heard now"],
  ["left", "asked to be forgotten"],
] as const;

export default function Fleet() {
  const now = useNow();
  const live = useLive();
  const fleet = useResource<FleetView>(`${Math.floor(now / EVERY_S)}`, (signal) => get("/v1/fleet", {}, signal));
  const found = fleet.data;
  // The stream has the newest counts.
  const counts = { ...found?.by_state, ...(live.rest.fleet as Partial<FleetView["by_state"]> | undefined) };
  const registered = STATES.reduce((sum, [state]) => sum + (counts[state] ?? 0), 0);
  return (
    <>
      <header className="screen-head">
        <h1>Fleet</h1>
        <p className="lead">Registered devices. Their network addresses are not kept.</p>
        <SharedIdentities devices={found?.shared_identities ?? []} />
      </header>
      <Problem text={fleet.error} />
      {!found && !fleet.error && <p className="note">Loading …</p>}
      {found && !registered && (
        <EmptyState title="No device has registered yet." command="quorate device --token-file FILE --data DATA">
          A device registers when it first runs:
        </EmptyState>
      )}
      {found && registered > 0 && (
        <>
          <dl className="facts">
            {STATES.map(([state, meaning]) => (
              <Fact key={state} label={state === "unfit" ? "waiting, fits no run" : state} value={<span data-state={state}>{count(counts[state] ?? 0)}</span>} note={meaning} />
            ))}
          </dl>
          <div className="panels">
            <Availability fleet={found} />
            <Classes fleet={found} />
            <Devices classes={found.by_class.map((one) => one.device_class).filter((name) => name !== OTHERS)} />
          </div>
        </>
      )}
    </>
  );
}

function Availability({ fleet }: { fleet: FleetView }) {
  const hours = fleet.availability;
  return (
    <Panel title="Devices by hour" note="that checked in, of the last 24 hours">
      <Chart
        label="Devices that checked in, by hour"
        version={JSON.stringify(hours)}
        rows={[...hours].reverse()}
        rowKey={(one) => one.from_at}
        columns={[
          { name: "from", cell: (one) => hour(one.from_at) },
          { name: "devices", cell: (one) => count(one.devices), figures: true },
        ]}
        option={(paint) => ({
          legend: { show: false },
          xAxis: axis(paint, { type: "category", data: hours.map((one) => hour(one.from_at)), splitLine: { show: false }, axisLabel: { color: paint("muted"), hideOverlap: true, showMaxLabel: true } }),
          yAxis: axis(paint, { type: "value", minInterval: 1 }),
          series: [{ type: "bar", name: "devices", data: hours.map((one) => one.devices), itemStyle: { color: paint("series-1"), borderRadius: [3, 3, 0, 0] }, barMaxWidth: 26 }],
        })}
      />
    </Panel>
  );
}

function Classes({ fleet }: { fleet: FleetView }) {
  const rows = fleet.by_class;
  return (
    <Panel title="Participation by class" note="a class is what stands before the first / of a label">
      <Chart
        label="Devices of each class that were heard, and that never were"
        version={JSON.stringify(rows)}
        rows={rows}
        rowKey={(one) => one.device_class}
        columns={[
          { name: "class", cell: (one) => one.device_class },
          { name: "devices", cell: (one) => count(one.devices), figures: true },
          { name: "rounds joined", cell: (one) => count(one.rounds_joined), figures: true },
          { name: "never heard", cell: (one) => count(one.never_heard), figures: true },
        ]}
        option={(paint) => ({
          xAxis: axis(paint, { type: "value", minInterval: 1 }),
          yAxis: axis(paint, { type: "category", inverse: true, data: rows.map((one) => one.device_class), splitLine: { show: false } }),
          series: [
            { type: "bar", stack: "devices", name: "contributed to a round", data: rows.map((one) => one.devices - one.never_heard), itemStyle: { color: paint("series-3") }, barMaxWidth: 26 },
            {
              type: "bar",
              stack: "devices",
              name: "never heard",
              data: rows.map((one) => one.never_heard),
              itemStyle: { color: paint("series-2"), decal: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -0.8 } },
              barMaxWidth: 26,
            },
          ],
        })}
      />
    </Panel>
  );
}
