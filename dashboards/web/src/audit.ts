// The actions of the audit in plain words. An action that is not listed is shown by its own name.
import type { AuditView } from "./api/types";

const WORDS: Readonly<Record<string, string>> = {
  "run.create": "created a run",
  "run.pause": "paused the run",
  "run.resume": "resumed the run",
  "run.stop": "stopped the run permanently",
  "run.advance": "advanced an exhausted run",
  "device.unbar": "let a barred device take part again",
  "checkpoint.put": "uploaded a checkpoint",
  "metrics.report": "reported metrics",
  "key.create": "created an API key",
  "key.revoke": "revoked an API key",
  "link.create": "made a link to log in",
  login: "logged in",
  logout: "logged out",
};

export function inWords(row: Pick<AuditView, "action">): string {
  const refused = /^refused\.(.*)$/.exec(row.action);
  if (refused) return `was refused: ${refused[1]?.replaceAll("-", " ")}`;
  return WORDS[row.action] ?? row.action.replaceAll(/[._-]/g, " ");
}
