// How many devices reached each stage of a round, and how many left it, in the API's own words.
import type { Funnel as Counts } from "../api/types";
import { count } from "../format";

const STAGES = [
  ["selected", "in the cohort"],
  ["training", "began to train"],
  ["reported", "their update counts"],
] as const satisfies readonly (readonly [keyof Counts, string])[];

const EXITS = [
  ["withdrawn", "gave up by themselves"],
  ["late", "came after the round had closed"],
  ["dropped", "were not heard until it closed"],
  ["refused", "their update was not taken"],
] as const satisfies readonly (readonly [keyof Counts, string])[];
/** Left of a goal below this share of the cohort there is no room for its words. */
const ROOM = 0.6;

const MESSAGES = [
  ["selected", "messages pushed"],
  ["training", "delivered"],
  ["reported", "have a reply"],
] as const satisfies readonly (readonly [keyof Counts, string])[];

const UNANSWERED = [
  ["refused", "were answered by an error"],
  ["dropped", "their time to live was over"],
] as const satisfies readonly (readonly [keyof Counts, string])[];

interface Props {
  counts: Counts;
  goal: number | null;
  departures: string;
  /** What was done to the updates, a clause each. */
  treated?: readonly string[];
  /** Whether the round has drawn its cohort: before, nobody has counted who waits. */
  drawn: boolean;
  /** The counts are messages of a Flower run. */
  flower?: boolean;
}

/** Bars are shares of the cohort. How many waited is no share of it: the plan says how many of them are selected. */
export function Funnel({ counts, goal, departures, treated = [], drawn, flower = false }: Props) {
  const whole = Math.max(counts.selected, 1);
  return (
    <div className="funnel">
      <ol className="stages">
        {!flower && (
          <li className="stage stage-pool">
            <span className="word">
              waiting <small>{drawn ? "eligible when the cohort was drawn" : "counted when the cohort is drawn"}</small>
            </span>
            <span className="number" data-stage="waiting">
              {drawn ? count(counts.waiting) : "–"}
            </span>
          </li>
        )}
        {(flower ? MESSAGES : STAGES).map(([stage, meaning], i) => (
          <li key={stage} className={`stage stage-${i + 1}`}>
            <span className="bar" style={{ transform: `scaleX(${Math.min(1, counts[stage] / whole)})` }} />
            {stage === "reported" && goal !== null && goal <= whole && drawn && <Goal goal={goal} share={goal / whole} />}
            <span className="word">
              {stage} <small>{meaning}</small>
            </span>
            <span className="number" data-stage={stage}>
              {count(counts[stage])}
            </span>
          </li>
        ))}
      </ol>
      <dl className="exits">
        {(flower ? UNANSWERED : EXITS).map(([stage, meaning]) => (
          <div key={stage} className={counts[stage] ? "exit some" : "exit"} title={meaning}>
            <dt>{stage}</dt>
            <dd data-stage={stage}>{count(counts[stage])}</dd>
          </div>
        ))}
      </dl>
      {departures && (
        <p className="departures">
          <strong>Why devices left:</strong> {departures}
        </p>
      )}
      {treated.length > 0 && (
        <p className="departures" data-fact="treated">
          <strong>What was done to updates:</strong> {treated.join("; ")}
        </p>
      )}
    </div>
  );
}

function Goal({ goal, share }: { goal: number; share: number }) {
  return (
    <span className="goal" style={{ left: `${share * 100}%` }} title={`the goal: ${goal}`}>
      {share > ROOM && <small>{count(goal)} wanted</small>}
    </span>
  );
}
