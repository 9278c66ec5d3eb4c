// The actions of the audit in plain words. An action that is not listed is shown by its own name.
import type { AuditView } from "./api/types";

/** What somebody asked for. Such a row is written before it is carried out; a second one says what came of it, where that is not the same. A device's registration has the second one alone. */
const ASKED: Readonly<Record<string, string>> = {
  "run.create": "create a run",
  "run.pause": "pause the run",
  "run.resume": "resume the run",
  "run.stop": "stop the run permanently",
  "run.rename": "show the run by another name",
  "run.advance": "advance an exhausted run",
  "run.sign": "give the signature under a model",
  "flower.create": "create a Flower run, or go on with it",
  "flower.end": "end the Flower run",
  "device.register": "register a device",
  "device.leave": "leave the fleet",
  "device.unbar": "let a barred device take part again",
  "worker.register": "register a worker",
  "worker.revoke": "revoke a worker",
  "checkpoint.put": "upload a checkpoint",
  "metrics.report": "report metrics",
  "key.create": "create an API key",
  "key.revoke": "revoke an API key",
  "ledger.create": "make a privacy ledger",
  "ledger.allow": "let devices that have lost something by another ledger lose more",
  "link.create": "make a link to log in",
};

/** What happened, without that anybody asked by a request that could be refused later. */
const HAPPENED: Readonly<Record<string, string>> = {
  "login": "logged in",
  "logout": "logged out",
  "audit.key": "signs the audit with a new key",
  "authority.taken": "certifies devices and workers from now on",
  "revocations.taken": "sent a list of revoked keys",
};

export function inWords(row: Pick<AuditView, "action">): string {
  const refused = /^refused\.(.*)$/.exec(row.action);
  if (refused) return `was refused: ${refused[1]?.replaceAll("-", " ")}`;
  const [, action = row.action, outcome] = /^(.*?)(?: (done|refused))?$/.exec(row.action) ?? [];
  const asked = ASKED[action];
  if (asked) return outcome ? `${asked}: ${outcome}` : `asked to ${asked}`;
  return HAPPENED[row.action] ?? row.action.replaceAll(/[._-]/g, " ");
}

/** Whether the row says that something was refused. */
export function isRefusal(row: Pick<AuditView, "action">): boolean {
  return row.action.startsWith("refused.") || row.action.endsWith(" refused");
}

/** The detail with digests cut to their first digits. */
export function shortened(detail: string): string {
  return detail.replace(/\b([0-9a-f]{10})[0-9a-f]{54}\b/g, "$1…");
}
