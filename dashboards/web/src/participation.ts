// Who takes part in a run, in words.
import type { RunParticipation } from "./api/types";
import { count } from "./format";

export function noteOf(found: RunParticipation): string {
  const since = found.from_round > 1 ? ` since round ${count(found.from_round)}` : "";
  const shown = (found.page ?? []).length < found.devices ? `; the first ${count((found.page ?? []).length)} are shown` : "";
  return `${count(found.never_counted)} of ${count(found.devices)} devices never counted${since}${shown}`;
}
