// One run: its heading with what operators may do, and the section that the address names.
import { type ReactNode, useState } from "react";
import { post } from "../api/client";
import type { RunView } from "../api/types";
import { Badge, Command, EmptyState, Problem } from "../components/parts";
import { count } from "../format";
import { useLive, useSession } from "../live/context";
import { health } from "../progress";
import { may } from "../roles";
import type { RunSection } from "../route";
import { Checkpoints } from "./Checkpoints";
import { LiveRun } from "./LiveRun";
import { Secure } from "./Secure";

export default function Run({ id, section }: { id: string; section: RunSection }) {
  const live = useLive();
  const run = live.runs[id];
  if (!run)
    return live.link.status === "connecting" ? (
      <p className="note">Loading …</p>
    ) : (
      <>
        <h1>{id}</h1>
        <EmptyState title="There is no run of this name in your scope." command="quorate run list" />
      </>
    );
  return (
    <>
      <Heading run={run} />
      {section === "live" && <LiveRun run={run} />}
      {section === "secure" && <Secure run={run} />}
      {section === "checkpoints" && <Checkpoints run={run} />}
    </>
  );
}

function Heading({ run }: { run: RunView }) {
  const state = health(run);
  return (
    <header className="screen-head">
      <div className="title-line">
        <h1 className="cut">{run.run}</h1>
        <Badge tone={state.tone}>{state.word}</Badge>
        <Actions run={run} />
      </div>
      <p className={`lead tone-${state.tone}`}>
        <b className="tone-text">
          Round {count(run.round)}
          {run.phase !== "idle" && `, ${run.phase}`}.
        </b>{" "}
        {state.sentence}
      </p>
      {state.command && (
        <p className="next-command">
          Next: <Command text={state.command} />
        </p>
      )}
    </header>
  );
}

type Action = "pause" | "resume" | "stop";

function Actions({ run }: { run: RunView }) {
  const { me } = useSession();
  const [busy, setBusy] = useState<string | null>(null);
  const [asking, setAsking] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  if (!may(me, "operator", run.run) || run.status === "finished" || run.status === "stopped") return null;
  const act = async (name: string, asked: () => Promise<unknown>) => {
    setBusy(name);
    setProblem(null);
    try {
      await asked();
      setAsking(false);
    } catch (error) {
      setProblem((error as Error).message);
    }
    setBusy(null);
  };
  const button = (action: Action, text: ReactNode) => (
    <button type="button" disabled={busy !== null} onClick={() => void act(action, () => post("/v1/runs/{run}/{action}", undefined, { run: run.run, action }))}>
      {busy === action ? "…" : text}
    </button>
  );
  return (
    <div className="actions">
      {run.exhausted && may(me, "owner", run.run) && (
        <button
          type="button"
          disabled={busy !== null}
          onClick={() => void act("advance", () => post("/v1/runs/{run}/advance", { by: me.id }, { run: run.run }))}
        >
          Advance
        </button>
      )}
      {run.status === "running" && button("pause", "Pause")}
      {run.status === "paused" && button("resume", "Resume")}
      {asking ? (
        <span className="asking" role="group" aria-label={`Stop ${run.run} permanently?`}>
          Stop it permanently?
          {button("stop", "Stop permanently")}
          <button type="button" onClick={() => setAsking(false)}>
            Keep it
          </button>
        </span>
      ) : (
        <button type="button" onClick={() => setAsking(true)}>
          Stop …
        </button>
      )}
      <Problem text={problem} />
    </div>
  );
}
