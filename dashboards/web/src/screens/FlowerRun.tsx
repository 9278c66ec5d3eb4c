// A Flower run at this moment: its app, its messages and replies, and its groups of messages as rounds.
import type { FlowerSummary, RoundView, RunView } from "../api/types";
import { Funnel } from "../components/Funnel";
import { EmptyState, Fact, Panel, Problem, Progress } from "../components/parts";
import { bytes, count, duration } from "../format";
import { health, roundSeconds } from "../progress";
import { useNow } from "../useNow";
import { useRounds } from "../useRun";
import { LastRounds, RoundCharts } from "./LastRounds";

export function FlowerRun({ run, flower }: { run: RunView; flower: FlowerSummary }) {
  const rounds = useRounds(run);
  const all = rounds.data ?? [];
  return (
    <>
      <Problem text={rounds.error} />
      <Facts run={run} flower={flower} current={all.at(-1)} />
      <div className="panels">
        <Panel title="Messages of this round" note={`round ${count(run.round)}`}>
          <Funnel counts={run.funnel} goal={null} departures="" drawn flower />
        </Panel>
        <RoundCharts rounds={all} virtual={run.clock === "virtual"} wide={false} />
        <LastRounds run={run.run} rounds={all} />
      </div>
    </>
  );
}

function Facts({ run, flower, current }: { run: RunView; flower: FlowerSummary; current: RoundView | undefined }) {
  const now = useNow();
  return (
    <dl className="facts">
      <Fact label="Flower app" value={flower.app} note={`version ${flower.version}`} />
      <Fact label="Replies" value={<span data-fact="replies">{`${count(run.funnel.reported)} / ${count(run.funnel.selected)}`}</span>}>
        <Progress part={run.funnel.reported} whole={run.funnel.selected} label="Replies of this round" tone={health(run).tone} />
      </Fact>
      <Fact label="Messages" value={count(flower.messages)} note={`${count(flower.replies)} replies, ${count(flower.errors)} errors`} />
      <Fact label="This round" value={current ? duration(Math.floor(roundSeconds(current, now))) : "–"} note={current ? `group ${current.group || "without a name"}` : "no message yet"} />
      <Fact label="Received" value={current ? bytes(current.bytes_in) : "–"} note="in this round" />
    </dl>
  );
}

/** One group of messages. */
export function FlowerRound({ round }: { round: RoundView }) {
  return (
    <div className="panels">
      <Panel title="Messages" note={round.group ? `group ${round.group}` : ""}>
        <Funnel counts={round.funnel} goal={null} departures="" drawn flower />
      </Panel>
    </div>
  );
}

/** In place of what only a run with a plan has. */
export function NotOfFlower({ run }: { run: RunView }) {
  return (
    <EmptyState title="This is a Flower run: its ServerApp decides about rounds and models, so there is nothing of this kind here." command={`quorate rounds ${run.run}`}>
      Its messages and replies are plain: the coordinator and the ServerApp can read them.
    </EmptyState>
  );
}
