// Who reads this page: the session that is there, a one-time link in the address, or nobody yet.
import { BASE, get, post, Refusal } from "./api/client";
import type { Me } from "./api/types";

const NOTE = `quorate-session:${BASE.pathname}`;
const LINK = /^#login=(.+)$/;

export function hasLink(): boolean {
  return LINK.test(location.hash);
}

/** The token of a one-time link, taken out of the address so that it stays in no history. */
export function tokenOfLink(): string | null {
  const found = LINK.exec(location.hash);
  if (!found?.[1]) return null;
  history.replaceState(null, "", location.pathname + location.search);
  return found[1];
}

export interface Beginning {
  me: Me | null;
  /** Why there is no session, where there is more to say than that. */
  why: string;
}

/** Notes that this browser has a session, whose cookie no script can see: without the note nobody is asked for it. */
export function noteSession(there: boolean): void {
  if (there) localStorage.setItem(NOTE, "1");
  else localStorage.removeItem(NOTE);
}

/** The session of this browser. `token`: of a one-time link, which opens a new one. */
export async function begin(token: string | null): Promise<Beginning> {
  if (!token && !localStorage.getItem(NOTE)) return { me: null, why: "" };
  try {
    const me = token ? await post("/v1/sessions/link", { token }) : await get("/v1/me");
    noteSession(true);
    return { me, why: "" };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (error.needsLogin) noteSession(false);
    return { me: null, why: token || !error.needsLogin ? error.message : "" };
  }
}
