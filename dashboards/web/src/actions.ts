// What operators may do with a run as it is now, and why somebody may not. The API decides; the page says it beforehand.
import type { Me, Role, RunView } from "./api/types";
import { may } from "./roles";

export type Action = "pause" | "resume" | "stop" | "advance";
export interface Offer {
  action: Action;
  text: string;
  /** The role that it needs. */
  role: Role;
  allowed: boolean;
}

/** What can be done with the run by somebody who may, in the order of the page; nothing where it has ended. */
export function offers(run: Pick<RunView, "run" | "status" | "exhausted"> & { flower?: RunView["flower"] }, me: Me): Offer[] {
  if (run.status !== "running" && run.status !== "paused") return [];
  const offer = (action: Action, text: string, role: Role): Offer => ({ action, text, role, allowed: may(me, role, run.run) });
  if (run.flower) return [offer("stop", "Stop …", "operator")];
  return [
    ...(run.exhausted ? [offer("advance", "Advance", "owner")] : []),
    run.status === "running" ? offer("pause", "Pause", "operator") : offer("resume", "Resume", "operator"),
    offer("stop", "Stop …", "operator"),
  ];
}

/** Why those that are not allowed are not, in a sentence; empty where all are. */
export function reason(all: readonly Offer[]): string {
  const need = (role: Role) => all.filter((one) => one.role === role && !one.allowed).map((one) => one.action);
  const parts = (["operator", "owner"] as const).flatMap((role) => {
    const actions = need(role);
    return actions.length ? [`the role ${role} to ${actions.join(" or ")} it`] : [];
  });
  return parts.length ? `For this run you need ${parts.join(", and ")}.` : "";
}
