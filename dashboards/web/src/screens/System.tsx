// The process that answers, and what it shares with others: requests, storage, replicas, viewers.
import { get } from "../api/client";
import type { SystemView } from "../api/types";
import { axis, Chart } from "../components/Chart";
import { Badge, Command, EmptyState, Fact, Panel, Problem } from "../components/parts";
import { Table } from "../components/Table";
import { ago, bytes, count, duration } from "../format";
import { useResource } from "../live/context";
import { useNow } from "../useNow";

const EVERY_S = 10;
const REPLICA_IS_LATE_S = 90;

export default function System() {
  const now = useNow();
  const system = useResource<SystemView>(`${Math.floor(now / EVERY_S)}`, (signal) => get("/v1/system", {}, signal));
  const found = system.data;
  return (
    <>
      <header className="screen-head">
        <h1>System</h1>
        <p className="lead">The process that answers this page, and the replicas that share its database.</p>
      </header>
      <Problem text={system.error} />
      {!found && !system.error && <p className="note">Loading …</p>}
      {found && (
        <>
          <Facts system={found} />
          <div className="panels">
            <Requests system={found} />
            <Replicas system={found} now={now} />
          </div>
          <p className="note">
            The same for Prometheus, by route: <Command text="curl -s COORDINATOR/metrics -H @viewer.header" />
          </p>
        </>
      )}
    </>
  );
}

function Facts({ system }: { system: SystemView }) {
  const { storage } = system;
  const size = (value: number | null | undefined) => (value == null ? "–" : bytes(value));
  const errors = (system.requests ?? []).reduce((sum, group) => sum + group.errors, 0);
  return (
    <dl className="facts">
      <Fact label="Database" value={size(storage.database_bytes)} note={storage.database_bytes == null ? "not a file of this process" : ""} />
      <Fact label="Stored files" value={size(storage.blob_bytes)} note="checkpoints and updates" />
      <Fact label="Disk free" value={size(storage.disk_free_bytes)} />
      <Fact label="Server errors" value={count(errors)} note={<Badge tone={errors ? "bad" : "good"}>{errors ? "see the log" : "none"}</Badge>} />
      <Fact label="Viewers" value={count(system.viewers)} note={`and ${count(system.streams)} streams of one run`} />
      <Fact label="Version" value={system.version} />
    </dl>
  );
}

function Requests({ system }: { system: SystemView }) {
  const rows = system.requests ?? [];
  const timed = rows.filter((group) => group.p95_s != null);
  const ms = (value: number | null | undefined) => (value == null ? "–" : duration(value));
  return (
    <Panel title="Requests" note="of this process, since it started; times of the last minutes">
      {rows.length ? (
        <Chart
          label="Time of requests by group: half of them, and 95 of 100, are faster"
          version={JSON.stringify(timed)}
          rows={rows}
          rowKey={(group) => group.group}
          columns={[
            { name: "group", cell: (group) => group.group },
            { name: "answered", cell: (group) => count(group.count), figures: true },
            { name: "refused", cell: (group) => count(group.refused), figures: true },
            { name: "errors", cell: (group) => count(group.errors), figures: true },
            { name: "median", cell: (group) => ms(group.p50_s), figures: true },
            { name: "95 of 100", cell: (group) => ms(group.p95_s), figures: true },
          ]}
          option={(paint) => ({
            xAxis: axis(paint, { type: "value", axisLabel: { color: paint("muted"), hideOverlap: true, formatter: (s: number) => duration(s) } }),
            yAxis: axis(paint, { type: "category", data: timed.map((group) => group.group), splitLine: { show: false } }),
            series: (["p50_s", "p95_s"] as const).map((field, i) => ({
              type: "bar",
              name: field === "p50_s" ? "median" : "95 of 100",
              data: timed.map((group) => group[field] ?? 0),
              itemStyle: { color: paint(i ? "series-2" : "series-1"), borderRadius: [0, 3, 3, 0] },
              barMaxWidth: 16,
              tooltip: { valueFormatter: (s: number) => duration(s) },
            })),
          })}
        />
      ) : (
        <EmptyState title="No request was answered yet." />
      )}
    </Panel>
  );
}

function Replicas({ system, now }: { system: SystemView; now: number }) {
  return (
    <Panel title="Replicas" note="processes that serve this database">
      {system.replicas.length ? (
        <Table
          caption="Table of replicas"
          rows={system.replicas}
          rowKey={(one) => one.name}
          columns={[
            { name: "name", cell: (one) => <code>{one.name}</code> },
            { name: "version", cell: (one) => one.version },
            { name: "seen", cell: (one) => ago(one.seen_at, now), figures: true },
            {
              name: "state",
              cell: (one) => <Badge tone={now - one.seen_at > REPLICA_IS_LATE_S ? "warn" : "good"}>{now - one.seen_at > REPLICA_IS_LATE_S ? "silent" : "there"}</Badge>,
            },
          ]}
        />
      ) : (
        <EmptyState title="No process has noted itself yet." command="quorate serve --database URL" />
      )}
    </Panel>
  );
}
