// The table of devices, a page at a time: the server filters, so that ten thousand are as quick as ten.
import { useDeferredValue, useState } from "react";
import { type Page, page, type Values } from "../api/client";
import type { DeviceView } from "../api/types";
import { Badge, Panel, Problem } from "../components/parts";
import { Table } from "../components/Table";
import { amiss, STATE_TONES, stateName } from "../device";
import { ago, count } from "../format";
import { useResource } from "../live/context";
import { devicePath, runPath } from "../route";
import { useNow } from "../useNow";

const PAGE = 50;
/** Requests for one page: each looks at some thousands of devices, and may find none that is as asked for. */
const LOOKS = 10;
const EVERY_S = 10;
const STATES = Object.keys(STATE_TONES) as DeviceView["state"][];

/** The next devices that are as asked for; fewer than a page, where few of those that were looked at are. */
async function devicesAfter(asked: Values, signal: AbortSignal): Promise<Page<DeviceView>> {
  const found: Page<DeviceView> = { rows: [], next: "" };
  let after = asked.after;
  for (let looks = 0; looks < LOOKS; looks++) {
    const { rows, next } = await page("/v1/devices", { ...asked, after, limit: PAGE - found.rows.length }, signal);
    found.rows.push(...rows);
    found.next = after = next;
    if (!next || found.rows.length >= PAGE) break;
  }
  return found;
}

export function Devices({ classes }: { classes: readonly string[] }) {
  const now = useNow();
  const [state, setState] = useState("");
  const [ofClass, setOfClass] = useState("");
  const [typed, setTyped] = useState("");
  /** Where each page before this one ended. */
  const [ends, setEnds] = useState<string[]>([]);
  const words = useDeferredValue(typed.trim());
  const after = ends.at(-1) ?? "";
  const asked = { after, state: state || undefined, device_class: ofClass || undefined, q: words || undefined };
  const found = useResource<Page<DeviceView>>(`${JSON.stringify(asked)} ${Math.floor(now / EVERY_S)}`, (signal) => devicesAfter(asked, signal));
  const rows = found.data?.rows ?? [];
  const next = found.data?.next ?? "";
  const filter = (set: (value: string) => void) => (event: { target: { value: string } }) => {
    setEnds([]);
    set(event.target.value);
  };
  return (
    <Panel title="Devices" wide note={rows.length ? `page ${ends.length + 1}` : ""}>
      <div className="filters">
        <input type="search" aria-label="Id or label" placeholder="id or label" maxLength={64} value={typed} onChange={filter(setTyped)} />
        <select aria-label="State" value={state} onChange={filter(setState)}>
          <option value="">every state</option>
          {STATES.map((one) => (
            <option key={one} value={one}>
              {stateName(one)}
            </option>
          ))}
        </select>
        <select aria-label="Class" value={ofClass} onChange={filter(setOfClass)}>
          <option value="">every class</option>
          {classes.map((one) => (
            <option key={one}>{one}</option>
          ))}
        </select>
      </div>
      <Problem text={found.error} />
      {found.data && !rows.length ? (
        <p className="note">{next ? `No device up to ${next} is as asked for.` : "No device is as asked for."}</p>
      ) : (
        <Table
          caption="Table of devices"
          rows={rows}
          rowKey={(device) => device.device}
          columns={[
            {
              name: "device",
              cell: (device) => (
                <a href={devicePath(device.device)}>
                  <code>{device.device}</code>
                </a>
              ),
            },
            { name: "label", cell: (device) => device.label },
            { name: "class", cell: (device) => device.device_class },
            { name: "state", cell: (device) => <Badge tone={STATE_TONES[device.state]}>{stateName(device.state)}</Badge> },
            { name: "why", cell: (device) => <span className="two-lines" title={amiss(device)}>{amiss(device)}</span> },
            { name: "in", cell: (device) => (device.run ? <a href={runPath(device.run)}>{`${device.run}, round ${device.round ?? ""}`}</a> : "") },
            { name: "seen", cell: (device) => (device.last_seen_at == null ? "never" : ago(device.last_seen_at, now)), figures: true },
            { name: "rounds joined", cell: (device) => count(device.rounds_joined), figures: true },
            { name: "refusals", cell: (device) => count(device.refusals), figures: true },
          ]}
        />
      )}
      {next && rows.length > 0 && rows.length < PAGE && <p className="note">Looked at the devices up to {next}.</p>}
      <p className="pager">
        <button type="button" disabled={!ends.length} onClick={() => setEnds(ends.slice(0, -1))}>
          Previous
        </button>
        <button type="button" disabled={!next} onClick={() => setEnds([...ends, next])}>
          Next
        </button>
      </p>
    </Panel>
  );
}
