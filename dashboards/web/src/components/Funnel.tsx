// How many devices reached each stage of a round, and how many left it, in the API's own words.
import type { Funnel as Counts } from "../api/types";
import { count } from "../format";

const STAGES = [
  ["waiting", "eligible when the cohort was drawn"],
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

const MESSAGES = [
  ["selected", "messages pushed"],
  ["training", "delivered"],
  ["reported", "have a reply"],
] as const satisfies readonly (readonly [keyof Counts, string])[];

const UNANSWERED = [
  ["refused", "were answered by an error"],
  ["dropped", "their time to live was over"],
] as const satisfies readonly (readonly [keyof Counts, string])[];

/** `flower`: the counts are messages of a Flower run. */
export function Funnel({ counts, goal, departures, flower = false }: { counts: Counts; goal: number | null; departures: string; flower?: boolean }) {
  const whole = Math.max(counts.waiting, counts.selected, 1);
  return (
    <div className="funnel">
      <ol className="stages">
        {(flower ? MESSAGES : STAGES).map(([stage, meaning], i) => (
          <li key={stage} className={`stage stage-${i + 1}`}>
            <span className="bar" style={{ transform: `scaleX(${Math.min(1, counts[stage] / whole)})` }} />
            {stage === "reported" && goal !== null && goal <= whole && <span className="goal" style={{ left: `${(goal / whole) * 100}%` }} title={`the goal: ${goal}`} />}
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
    </div>
  );
}
