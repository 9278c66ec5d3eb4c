// The secure rounds of a run: their exchanges, and what the coordinator could and could not see.
import { useState } from "react";
import type { ExchangeView, RunView } from "../api/types";
import { axis, Chart } from "../components/Chart";
import { Badge, EmptyState, Fact, Panel, Problem, Shape } from "../components/parts";
import { Table } from "../components/Table";
import { bytes, count, duration, sentence } from "../format";
import { missing, type SecureRound, seen, vanished } from "../secure";
import { useRounds } from "../useRun";
import { useNow } from "../useNow";

export function Secure({ run }: { run: RunView }) {
  const rounds = useRounds(run);
  const secure = (rounds.data ?? []).filter((round): round is SecureRound => round.secure != null);
  const [picked, setPicked] = useState<number | null>(null);
  const shown = secure.find((round) => round.round === picked) ?? secure.at(-1);
  if (rounds.error) return <Problem text={rounds.error} />;
  if (!rounds.data) return <p className="note">Loading …</p>;
  if (!shown)
    return (
      <EmptyState
        title={"secure" in run.plan && run.plan.secure ? "No secure round has drawn its cohort yet." : "This run's plan asks for no secure aggregation."}
        command={"secure" in run.plan && run.plan.secure ? "quorate device --token-file FILE --data DATA" : "quorate run create examples/mnist-secure.toml --init model.safetensors"}
      >
        {"secure" in run.plan && run.plan.secure ? "It draws one when enough devices wait:" : "With a section [secure] in the plan, the coordinator sees sums only:"}
      </EmptyState>
    );
  const picker = (
    <select aria-label="Round" value={shown.round} onChange={(event) => setPicked(Number(event.target.value))}>
      {[...secure].reverse().map((round) => (
        <option key={round.round} value={round.round}>
          round {round.round}, {round.status}
        </option>
      ))}
    </select>
  );
  return (
    <div className="panels">
      <Panel title="What the coordinator could see" wide actions={picker}>
        <p className="plain">{seen(shown)}</p>
        <SecureFacts round={shown} />
      </Panel>
      <Panel title="Exchanges" note={`attempt ${shown.secure.attempts} of round ${shown.round}`} wide>
        <Strip exchanges={shown.secure.exchanges} />
      </Panel>
      <Earlier round={shown} />
      <ExchangeChart round={shown} />
    </div>
  );
}

function SecureFacts({ round }: { round: SecureRound }) {
  const { secure } = round;
  const gone = vanished(secure);
  return (
    <dl className="facts">
      <Fact label="Roster" value={secure.roster ? count(secure.roster) : "none yet"} note="devices that share secrets" />
      <Fact label="Threshold" value={secure.threshold ? count(secure.threshold) : "none yet"} note="shares for one secret" />
      <Fact label="Signatures needed" value={secure.signers ? count(secure.signers) : "none yet"} note="before anything is revealed" />
      <Fact label="Vanished" value={count(gone)} note={gone && secure.opened ? "before masking; their masks were removed from the sum" : "before masking"} />
      <Fact label="Excluded" value={count(secure.excluded)} note="at fault, or silent" />
      <Fact label="Sum" value={<Badge tone={secure.opened ? "good" : round.status === "abandoned" ? "warn" : "busy"}>{secure.opened ? "opened" : "not opened"}</Badge>} />
    </dl>
  );
}

const MEANINGS: Readonly<Record<ExchangeView["exchange"], string>> = {
  advertise: "train, and send a public key",
  share: "share secrets with peers",
  mask: "send the masked update",
  agree: "sign who survived",
  unmask: "remove the sum's masks",
};
const ORDER = Object.keys(MEANINGS) as ExchangeView["exchange"][];

export function Strip({ exchanges }: { exchanges: readonly ExchangeView[] }) {
  const now = useNow();
  return (
    <ol className="strip">
      {ORDER.map((name) => {
        const found = exchanges.find((one) => one.exchange === name);
        const over = found?.ended_at != null;
        const enough = found !== undefined && found.came >= found.needed;
        const tone = !found ? "idle" : enough ? "good" : over ? "bad" : "busy";
        return (
          <li key={name} className={`exchange tone-${tone}`}>
            <p className="exchange-name">
              {found ? <Shape tone={tone} /> : <span className="shape" />} {name}
            </p>
            <p className="note">{MEANINGS[name]}</p>
            {found ? (
              <>
                <p className="exchange-count">
                  <b>{count(found.came)}</b> of {count(found.expected)}
                </p>
                <div className="gauge" role="img" aria-label={`${found.came} came, ${found.needed} needed, ${found.expected} expected`}>
                  <span className="bar" style={{ transform: `scaleX(${found.expected ? Math.min(1, found.came / found.expected) : 0})` }} />
                  <span className="goal" style={{ left: `min(100% - 2px, ${found.expected ? (found.needed / found.expected) * 100 : 0}%)` }} />
                </div>
                <p className="note">
                  {count(found.needed)} needed
                  <br />
                  {bytes(found.bytes)} in {duration((found.ended_at ?? now) - found.began_at)}
                  <br />
                  {missing(found)}
                </p>
              </>
            ) : (
              <p className="note">not begun</p>
            )}
          </li>
        );
      })}
    </ol>
  );
}

export function Earlier({ round }: { round: SecureRound }) {
  const given = round.secure.earlier.map((attempt, i) => ({ ...attempt, number: i + 1 }));
  if (!given.length) return null;
  return (
    <Panel title="Attempts that were given up" wide>
      <Table
        caption="Attempts that were given up"
        rows={given}
        rowKey={(attempt) => attempt.number}
        columns={[
          { name: "attempt", cell: (attempt) => count(attempt.number), figures: true },
          { name: "why", cell: (attempt) => sentence(attempt.reason) },
          { name: "reached", cell: (attempt) => attempt.exchanges.at(-1)?.exchange ?? "no exchange" },
          { name: "roster", cell: (attempt) => count(attempt.roster), figures: true },
        ]}
      />
    </Panel>
  );
}

export function ExchangeChart({ round }: { round: SecureRound }) {
  const rows = round.secure.exchanges;
  if (!rows.length) return null;
  const ended = rows.map((one) => (one.ended_at != null ? one.ended_at - one.began_at : 0));
  return (
    <Panel title="Time and bytes of each exchange" wide>
      <Chart
        label={`Seconds and bytes of each exchange of round ${round.round}`}
        version={`${round.round} ${rows.map((one) => `${one.bytes} ${one.ended_at}`).join()}`}
        rows={rows}
        rowKey={(one) => one.exchange}
        columns={[
          { name: "exchange", cell: (one) => one.exchange },
          { name: "came", cell: (one) => count(one.came), figures: true },
          { name: "needed", cell: (one) => count(one.needed), figures: true },
          { name: "expected", cell: (one) => count(one.expected), figures: true },
          { name: "time", cell: (one) => (one.ended_at != null ? duration(one.ended_at - one.began_at) : "under way"), figures: true },
          { name: "bytes", cell: (one) => bytes(one.bytes), figures: true },
        ]}
        option={(paint) => ({
          xAxis: axis(paint, { type: "category", data: rows.map((one) => one.exchange), splitLine: { show: false } }),
          yAxis: [
            axis(paint, { type: "value", axisLabel: { color: paint("muted"), formatter: (s: number) => duration(s) } }),
            axis(paint, { type: "value", minInterval: 1, splitLine: { show: false }, axisLabel: { color: paint("muted"), formatter: (b: number) => bytes(b).replace(".0 ", " ") } }),
          ],
          series: [
            { type: "bar", name: "time", data: ended, itemStyle: { color: paint("series-1") }, barMaxWidth: 40, tooltip: { valueFormatter: (s: number) => duration(s) } },
            {
              type: "bar",
              name: "bytes",
              yAxisIndex: 1,
              data: rows.map((one) => one.bytes),
              itemStyle: { color: paint("series-2"), decal: { symbol: "rect", dashArrayX: [1, 0], dashArrayY: [2, 5], rotation: -0.8 } },
              barMaxWidth: 40,
              tooltip: { valueFormatter: (b: number) => bytes(b) },
            },
          ],
        })}
      />
    </Panel>
  );
}

