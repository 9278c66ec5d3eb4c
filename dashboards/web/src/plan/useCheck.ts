// Asks the coordinator, while somebody types, whether a run could be created from a plan.
import { useEffect, useState } from "react";
import { type FieldProblem, post, Refusal } from "../api/client";
import type { PlanView } from "../api/types";
import { useSession } from "../live/context";
import type { Initial } from "../screens/StartFrom";
import type { Statistics } from "./statistics";
import type { Plan } from "./text";

const QUIET_MS = 350;

export interface Check {
  /** The newest answer; null: it was a refusal, or there is none yet. */
  view: PlanView | null;
  /** Why not: what is wrong with which fields, */
  fields: readonly FieldProblem[];
  /** and what belongs to no field. */
  problem: string | null;
  /** Whether the answer is to what is asked now. */
  current: boolean;
}

const NONE: Check = { view: null, fields: [], problem: null, current: false };

/** `plan`: null where the text is none. */
export function useCheck(plan: Plan | null, initial: Initial | null, roles: Statistics | null): Check {
  const { ended } = useSession();
  const asked = plan && JSON.stringify({ plan, init: initial?.digest ?? null, init_proof: initial?.proof ?? null, roles });
  const [found, setFound] = useState<{ asked: string; check: Check } | null>(null);
  useEffect(() => {
    if (asked === null) return undefined;
    const stopping = new AbortController();
    const answer = (check: Partial<Check>) => !stopping.signal.aborted && setFound({ asked, check: { ...NONE, ...check } });
    const ask = async () => {
      try {
        answer({ view: await post("/v1/plans/check", JSON.parse(asked) as { plan: Plan; init: string | null; init_proof: string | null; roles: Statistics | null }, {}, stopping.signal) });
      } catch (error) {
        if (error instanceof Refusal && error.needsLogin) ended();
        else if (error instanceof Refusal) answer({ fields: error.fields, problem: error.fields.length ? null : error.message });
      }
    };
    const timer = setTimeout(() => void ask(), QUIET_MS);
    return () => {
      clearTimeout(timer);
      stopping.abort();
    };
  }, [asked, ended]);
  if (asked === null || !found) return NONE;
  return { ...found.check, current: found.asked === asked };
}
