// One device: what it does now, its certificate, when it took part, and why its updates did not count. Never an address.
import { get, Refusal } from "../api/client";
import type { DeviceDetail } from "../api/types";
import { axis, Chart } from "../components/Chart";
import { Badge, EmptyState, Fact, Figure, Panel, Problem } from "../components/parts";
import { Table } from "../components/Table";
import { amiss, byHour, type DeviceRound, RESULTS, type Result, reasons, STATE_TONES, standing, stateName } from "../device";
import { ago, clock, count, date, hour, many, sentence } from "../format";
import { useResource } from "../live/context";
import { roundPath, runPath } from "../route";
import { useNow } from "../useNow";

const EVERY_S = 5;
/** The API tells so many of each kind, the newest. */
const TOLD = 50;
const SERIES: readonly (readonly [Result, string, object | undefined])[] = [
  ["counted", "series-3", undefined],
  ["late", "series-2", { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -0.8 }],
  ["refused", "series-4", { symbol: "circle", dashArrayX: [4, 3], dashArrayY: [4, 3] }],
];

/** `detail` is null where nothing is known of the device. */
interface Found {
  detail: DeviceDetail | null;
}

async function found(device: string, signal: AbortSignal): Promise<Found> {
  try {
    return { detail: await get("/v1/devices/{device}", { device }, signal) };
  } catch (error) {
    if (error instanceof Refusal && (error.status === 404 || error.status === 422)) return { detail: null };
    throw error;
  }
}

export default function Device({ id }: { id: string }) {
  const now = useNow();
  const { data, error } = useResource<Found>(`${id} ${Math.floor(now / EVERY_S)}`, (signal, before) =>
    before && !before.detail ? Promise.resolve(before) : found(id, signal),
  );
  const detail = data?.detail;
  return (
    <>
      <header className="screen-head">
        <div className="title-line">
          <h1 className="cut">{detail?.device.label || id}</h1>
          {detail && <Badge tone={STATE_TONES[detail.device.state]}>{stateName(detail.device.state)}</Badge>}
        </div>
        <p className="lead">
          {detail?.device.label && (
            <>
              <code>{id}</code>, a{" "}
            </>
          )}
          {!detail?.device.label && "A "}device of the <a href="#/fleet">fleet</a>. Its network address is not kept.
        </p>
        {detail && amiss(detail.device) && (
          <div className="lead-box tone-warn" data-fact="amiss">
            <p className="lead">{amiss(detail.device)}</p>
          </div>
        )}
      </header>
      <Problem text={error} />
      {!data && !error && <p className="note">Loading …</p>}
      {data && !detail && <EmptyState title={`There is no device ${id} in your scope.`} command="quorate devices" />}
      {detail && <Shown detail={detail} />}
    </>
  );
}

function Shown({ detail }: { detail: DeviceDetail }) {
  return (
    <>
      <Facts detail={detail} />
      <div className="panels">
        <Hours rounds={detail.rounds} availability={detail.availability} />
        <Reasons rounds={detail.rounds} />
        <Rounds rounds={detail.rounds} />
      </div>
    </>
  );
}

function Facts({ detail: { device, certificate } }: { detail: DeviceDetail }) {
  const now = useNow();
  const stands = standing(certificate ?? null, now);
  return (
    <dl className="facts">
      <Fact
        label="Now"
        value={<span data-fact="state">{stateName(device.state)}</span>}
        note={device.run ? <a href={device.round == null ? runPath(device.run) : roundPath(device.run, device.round)}>{`${device.run}, round ${device.round ?? ""}`}</a> : "in no round"}
      />
      <Fact label="Last seen" value={<Figure name="seen" text={device.last_seen_at == null ? "never" : ago(device.last_seen_at, now)} />} note={`registered on ${date(device.enrolled_at)}`} />
      <Fact label="Class" value={<Figure name="class" text={device.device_class} />} note={`counts for ${many(device.examples_cap, "example")} at most`} />
      {Object.entries(device.facts ?? {}).map(([name, value]) => (
        <Fact key={name} label={name} value={<Figure name={`said-${name}`} text={String(value)} />} note="as the device says" />
      ))}
      <Fact label="Rounds joined" value={<span data-fact="joined">{count(device.rounds_joined)}</span>} note="its update counted" />
      <Fact label="Refusals" value={<span data-fact="refusals">{count(device.refusals)}</span>} note="late ones included" />
      <Fact
        label="Certificate"
        value={<Badge tone={stands.tone}>{stands.word}</Badge>}
        note={certificate ? certificate.reason || `until ${clock(certificate.not_after, now)}` : device.state === "left" ? "forgotten when it left" : "registered without one"}
      />
    </dl>
  );
}

function Hours({ rounds, availability }: { rounds: readonly DeviceRound[]; availability: DeviceDetail["availability"] }) {
  const now = useNow();
  const hours = byHour(rounds, now);
  const seen = new Set(availability.filter((one) => one.seen).map((one) => one.from_at));
  return (
    <Panel title="Its rounds by hour" note={<span data-fact="hours-seen">{`seen in ${count(seen.size)} of the last ${many(hours.length, "hour")}`}</span>}>
      <ol className="hours-seen" aria-hidden="true">
        {hours.map((one) => (
          <li key={one.from} className={seen.has(one.from) ? "seen" : ""} title={`${hour(one.from)}: ${seen.has(one.from) ? "seen" : "not seen"}`} />
        ))}
      </ol>
      <Chart
        label="Rounds of this device by hour, by how they ended"
        version={JSON.stringify([hours, [...seen]])}
        rows={[...hours].reverse()}
        rowKey={(one) => one.from}
        columns={[
          { name: "from", cell: (one) => hour(one.from) },
          { name: "seen", cell: (one) => (seen.has(one.from) ? "yes" : "no") },
          ...SERIES.map(([end]) => ({ name: end, cell: (one: (typeof hours)[number]) => count(one.ends[end]), figures: true })),
        ]}
        option={(paint) => ({
          xAxis: axis(paint, { type: "category", data: hours.map((one) => hour(one.from)), splitLine: { show: false } }),
          yAxis: axis(paint, { type: "value", minInterval: 1 }),
          series: SERIES.map(([end, colour, decal]) => ({
            type: "bar",
            stack: "rounds",
            name: end,
            data: hours.map((one) => one.ends[end]),
            itemStyle: { color: paint(colour), ...(decal ? { decal } : {}) },
            barMaxWidth: 26,
          })),
        })}
      />
    </Panel>
  );
}

function Reasons({ rounds }: { rounds: readonly DeviceRound[] }) {
  const all = reasons(rounds);
  return (
    <Panel title="Why updates did not count" note={all.length ? "of the rounds below" : ""}>
      {all.length ? (
        <ul className="lane-exits">
          {all.map((one) => (
            <li key={`${one.result} ${one.reason}`}>
              <Badge tone={RESULTS[one.result]}>{`${count(one.times)} ${one.result}`}</Badge>
              <span>{sentence(one.reason)}</span>
            </li>
          ))}
        </ul>
      ) : (
        <p className="note">{rounds.length ? "All updates that it sent counted." : "It has sent no update yet."}</p>
      )}
    </Panel>
  );
}

function Rounds({ rounds }: { rounds: readonly DeviceRound[] }) {
  const now = useNow();
  return (
    <Panel title="Its rounds" note={`the newest, up to ${TOLD} that counted and ${TOLD} that did not`} wide>
      {rounds.length ? (
        <Table
          caption="Rounds of this device, the newest first"
          height={420}
          rows={rounds}
          rowKey={(one) => `${one.run} ${one.round} ${one.result} ${one.at} ${one.reason}`}
          columns={[
            { name: "run", cell: (one) => <a href={runPath(one.run)}>{one.run}</a> },
            { name: "round", cell: (one) => <a href={roundPath(one.run, one.round)}>{count(one.round)}</a>, figures: true },
            { name: "result", cell: (one) => <Badge tone={RESULTS[one.result]}>{one.result}</Badge> },
            { name: "when", cell: (one) => (one.at == null ? "–" : clock(one.at, now)), figures: true },
            { name: "version", cell: (one) => (one.version == null ? "" : count(one.version)), figures: true },
            { name: "what is known", cell: (one) => <span className="two-lines">{known(one)}</span> },
          ]}
        />
      ) : (
        <EmptyState title="It has taken part in no round yet.">It does when it is selected, and its update counts or is refused.</EmptyState>
      )}
    </Panel>
  );
}

function known(one: DeviceRound): string {
  if (one.reason) return sentence(one.reason);
  return one.secure ? "It is in the sum of a secure round: nobody saw its update." : "";
}
