// Starts a run: its plan as a form and as text, which are one; the first model; what it will cost.
import { useEffect, useMemo, useState } from "react";
import { get, post, Refusal } from "../api/client";
import type { RunView } from "../api/types";
import { Command, EmptyState, Panel, Problem } from "../components/parts";
import { type Mistake, TomlEditor } from "../components/TomlEditor";
import { sentence } from "../format";
import { useLive, useOlder, useResource, useSession } from "../live/context";
import { lean } from "../plan/fields";
import { TEMPLATE } from "../plan/template";
import { type Statistics, statisticsOf } from "../plan/statistics";
import { at, lineFor, type Plan, read, written } from "../plan/text";
import { type Check, useCheck } from "../plan/useCheck";
import { mayStart } from "../roles";
import { runPath, type Start } from "../route";
import { PlanCost } from "./PlanCost";
import { PlanForm } from "./PlanForm";
import { type Initial, StartFrom } from "./StartFrom";

const STREAM_MS = 5000;

export default function StartRun({ from }: { from: Start | null }) {
  const { me } = useSession();
  const live = useLive();
  const allowed = mayStart(me);
  const schema = useResource<Plan>("schema", async (signal) => (await get("/v1/plans/schema", {}, signal)).document);
  const source = from ? live.runs[from.run] : undefined;
  const asked = useOlder(from ? [from.run] : []);
  const waiting = !live.begun || asked || (!schema.data && !schema.error);
  return (
    <>
      <header className="screen-head">
        <h1>Start a run</h1>
        <p className="lead">
          {from ? `From version ${from.version} of ${from.run}, with its plan to begin with.` : "From a plan and a first model. Nothing is created before you start it."}
        </p>
      </header>
      <Problem text={schema.error} />
      {!allowed ? (
        <EmptyState title="To start a run you need the role operator or owner." command="quorate keys create --role operator">
          Your key can only look. An owner makes a key that can do more:
        </EmptyState>
      ) : waiting ? (
        <p className="note">Loading …</p>
      ) : from && !source ? (
        <EmptyState title={`There is no run ${from.run} in your scope.`} command="quorate run list" />
      ) : (
        schema.data && <Editing schema={schema.data} from={from} source={source} />
      )}
    </>
  );
}

function Editing({ schema, from, source }: { schema: Plan; from: Start | null; source: RunView | undefined }) {
  const [text, setText] = useState(() => (source ? written(lean(source.plan as Plan, schema)) : TEMPLATE));
  const [initial, setInitial] = useState<Initial | null>(null);
  const found = useMemo(() => read(text), [text]);
  const [typed, setTyped] = useState("");
  const roles = useMemo(() => statisticsOf(typed), [typed]);
  const check = useCheck(found.plan, initial, roles);
  const mistakes = useMemo(() => mistakesOf(text, check), [text, check.fields]);
  const wrong = new Map(check.fields.map((one) => [one.field.join("."), one.detail]));
  return (
    <div className="panels">
      <Panel title="Common fields" note="all others are in the text">
        <PlanForm schema={schema} text={text} plan={found.plan} wrong={wrong} onChange={setText} />
      </Panel>
      <div className="stack">
        <Panel title="The same plan as text" note="TOML">
          <TomlEditor label="The plan as TOML" text={text} mistakes={found.mistake ? [found.mistake] : mistakes} onChange={setText} />
        </Panel>
        <StartFrom from={from} initial={initial} onInitial={setInitial} statistics={typed} onStatistics={setTyped} />
        <PlanCost checked={check.view} secure={at(check.view?.plan, ["secure"]) !== undefined} />
        <Begin plan={found.plan} initial={initial} roles={roles} check={check} />
      </div>
    </div>
  );
}

function mistakesOf(text: string, check: Check): Mistake[] {
  return check.fields.map((one) => ({ line: lineFor(text, one.field), what: one.field.length ? `${one.field.join(".")}: ${one.detail}` : sentence(one.detail) }));
}

function Begin({ plan, initial, roles, check }: { plan: Plan | null; initial: Initial | null; roles: Statistics | null; check: Check }) {
  const { ended } = useSession();
  const live = useLive();
  const [busy, setBusy] = useState(false);
  const [made, setMade] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const start = async () => {
    if (!plan || !initial) return;
    setBusy(true);
    setProblem(null);
    try {
      setMade((await post("/v1/runs", { plan, init: initial.digest, init_proof: initial.proof ?? null, roles, origin: initial.origin })).run);
    } catch (error) {
      if (error instanceof Refusal && error.needsLogin) ended();
      else setProblem((error as Error).message);
      setBusy(false);
    }
  };
  // The run's screen shows what the stream says of it, which comes within a second or so.
  const seen = made !== null && live.runs[made] !== undefined;
  useEffect(() => {
    if (made === null) return undefined;
    const leave = () => location.assign(runPath(made));
    if (seen) leave();
    const timer = setTimeout(leave, STREAM_MS);
    return () => clearTimeout(timer);
  }, [made, seen]);
  const why = reason(plan, initial, check);
  return (
    <div className="begin">
      <button type="button" className="main" disabled={why !== null || busy} onClick={() => void start()}>
        {busy ? "Starting …" : "Start the run"}
      </button>
      <p className="note" role="status">
        {why ?? (check.view && <>It will be named {check.view.run}.</>)}
      </p>
      <Problem text={problem ?? check.problem} />
      <p className="note">
        On a command line: <Command text="quorate run create plan.toml --init FILE" />
      </p>
    </div>
  );
}

/** Why the run cannot be started now; null: it can. */
function reason(plan: Plan | null, initial: Initial | null, check: Check): string | null {
  if (!plan) return "The text is not TOML yet.";
  if (check.fields.length) return "The plan has mistakes: see its lines.";
  if (check.problem) return "The coordinator would refuse it.";
  if (!initial) return "Choose its first model.";
  return check.view && check.current ? null : "Checking …";
}
