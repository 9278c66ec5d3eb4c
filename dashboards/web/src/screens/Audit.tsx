// What operators asked for and who was refused, page by page, the newest first.
import { useState } from "react";
import { get, Refusal } from "../api/client";
import type { AuditHeadView, AuditView } from "../api/types";
import { Badge, Command, EmptyState, Fact, Panel, Problem } from "../components/parts";
import { Table } from "../components/Table";
import { inWords, isRefusal, shortened } from "../audit";
import { clock, count, short } from "../format";
import { useResource } from "../live/context";
import { useNow } from "../useNow";

const PAGE = 200;

interface Page {
  head: AuditHeadView | null;
  rows: AuditView[];
}

/** The rows up to `end`; without one, the last ones. Who does not own everything sees no head, and begins at the first. */
async function page(end: number | null, signal: AbortSignal): Promise<Page> {
  const head = await get("/v1/audit/head", {}, signal).catch((error: unknown) => {
    if (error instanceof Refusal && error.status === 403) return null;
    throw error;
  });
  const last = end ?? head?.count ?? PAGE;
  return { head, rows: await get("/v1/audit", { after: Math.max(0, last - PAGE), limit: PAGE }, signal) };
}

export function Audit() {
  const now = useNow();
  const [end, setEnd] = useState<number | null>(null);
  const [asked, setAsked] = useState(0);
  const found = useResource<Page>(`${end} ${asked}`, (signal) => page(end, signal));
  const rows = [...(found.data?.rows ?? [])].reverse();
  const head = found.data?.head ?? null;
  const first = rows.at(-1)?.number ?? 1;
  const newest = rows[0]?.number ?? 0;
  return (
    <>
      <header className="screen-head">
        <h1>Audit</h1>
        <p className="lead">Each request that changes something is here before it is carried out, and each refusal.</p>
      </header>
      <Problem text={found.error} />
      {head && (
        <dl className="facts">
          <Fact label="Rows" value={count(head.count)} />
          <Fact label="Head" value={<code title={head.link}>{head.link ? short(head.link) : "none"}</code>} note="the chain of all rows" />
          <Fact label="Signed" value={<Badge tone={head.signature ? "good" : "warn"}>{head.signature ? "signed" : "not signed"}</Badge>} note={head.key ? `by ${short(head.key)}` : ""} />
        </dl>
      )}
      <Panel title="Rows" wide note={rows.length ? `${count(first)} to ${count(newest)}` : ""}>
        {found.data && !rows.length ? (
          <EmptyState title="Nothing was recorded yet." command="quorate audit" />
        ) : (
          <Table
            caption="The audit, the newest first"
            rows={rows}
            rowKey={(row) => row.number}
            columns={[
              { name: "row", cell: (row) => count(row.number), figures: true },
              { name: "when", cell: (row) => clock(row.at, now), figures: true },
              { name: "who", cell: (row) => <code>{row.by || "not known"}</code> },
              { name: "what", cell: (row) => (isRefusal(row) ? <Badge tone="warn">{inWords(row)}</Badge> : <span className="whole">{inWords(row)}</span>) },
              { name: "run", cell: (row) => <span className="whole">{row.run ?? ""}</span> },
              { name: "detail", cell: (row) => <span className="two-lines" title={row.detail}>{shortened(row.detail)}</span> },
            ]}
          />
        )}
        <p className="pager">
          <button type="button" disabled={first <= 1} onClick={() => setEnd(first - 1)}>
            Older
          </button>
          <button type="button" disabled={end === null} onClick={() => setEnd(head && newest + PAGE < head.count ? newest + PAGE : null)}>
            Newer
          </button>
          <button type="button" onClick={() => setAsked(asked + 1)}>
            Read again
          </button>
        </p>
      </Panel>
      <p className="note">
        Whether a row was changed, deleted or added in the database: <Command text="quorate verify quorate-data" />
      </p>
    </>
  );
}
