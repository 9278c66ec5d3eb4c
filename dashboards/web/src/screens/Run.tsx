// One run: its heading with what operators may do, and the section that the address names.
import type { RunView } from "../api/types";
import { Badge, Command, EmptyState, SharedIdentities } from "../components/parts";
import { count, runTitle } from "../format";
import { useLive, useOlder } from "../live/context";
import { health } from "../progress";
import type { RunSection } from "../route";
import { Actions } from "./Actions";
import { Checkpoints } from "./Checkpoints";
import { Datacenter } from "./Datacenter";
import { FlowerRun, NotOfFlower } from "./FlowerRun";
import { LiveRun } from "./LiveRun";
import { Privacy } from "./Privacy";
import { Secure } from "./Secure";

export default function Run({ id, section }: { id: string; section: RunSection }) {
  const live = useLive();
  const run = live.runs[id];
  const asked = useOlder([id]);
  if (!run)
    return !live.begun || asked ? (
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
      {section === "live" && (run.flower ? <FlowerRun run={run} flower={run.flower} /> : <LiveRun run={run} />)}
      {section !== "live" && run.flower ? <NotOfFlower run={run} /> : <Section run={run} section={section} />}
    </>
  );
}

function Section({ run, section }: { run: RunView; section: RunSection }) {
  return (
    <>
      {section === "secure" && <Secure run={run} />}
      {section === "privacy" && <Privacy run={run} />}
      {section === "datacenter" && <Datacenter run={run} />}
      {section === "checkpoints" && <Checkpoints run={run} />}
    </>
  );
}

function Heading({ run }: { run: RunView }) {
  const state = health(run);
  return (
    <header className="screen-head">
      <div className="title-line">
        <h1 className="cut">{runTitle(run)}</h1>
        <Badge tone={state.tone}>{state.word}</Badge>
        <Actions run={run} />
      </div>
      <div className={state.tone === "warn" || state.tone === "bad" ? `lead-box tone-${state.tone}` : `tone-${state.tone}`}>
        <p className="lead">
          <b className="tone-text">
            Round {count(run.round)}
            {run.phase !== "idle" && `, ${run.phase}`}.
          </b>{" "}
          {state.sentence} {run.clock === "virtual" && "Simulated: its times are virtual."}
        </p>
        {state.command && (
          <p className="next-command">
            Next: <Command text={state.command} />
          </p>
        )}
      </div>
      <SharedIdentities devices={run.shared_identities ?? []} />
    </header>
  );
}
