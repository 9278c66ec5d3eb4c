// What somebody may do. The API decides; this is so that nobody is offered what it would refuse.
import type { Me, Role } from "./api/types";

const RANKS: readonly Role[] = ["viewer", "operator", "owner"];

/** Whether somebody may start runs, at least of some names: which ones, the API says of a plan. */
export function mayStart(me: Me): boolean {
  return me.grants.some((grant) => RANKS.indexOf(grant.role) >= RANKS.indexOf("operator"));
}

/** Whether somebody may do what this role may, for this run (`*`: for everything). */
export function may(me: Me, role: Role, run: string): boolean {
  return me.grants.some((grant) => {
    const { scope } = grant;
    const inScope = scope === "*" || scope === run || (scope.endsWith("*") && run !== "*" && run.startsWith(scope.slice(0, -1)));
    return inScope && RANKS.indexOf(grant.role) >= RANKS.indexOf(role);
  });
}
