// How components read the live state, the session, and resources of the API that follow it.
import { createContext, useContext, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { get, Refusal } from "../api/client";
import type { Me } from "../api/types";
import type { Connection } from "./connection";
import type { Live } from "./state";

export interface Session {
  me: Me;
  connection: Connection;
  /** Ends the session and shows the login. */
  logOut: () => void;
  /** Shows the login: the session has ended by itself. */
  ended: () => void;
}

export const SessionContext = createContext<Session | null>(null);

export function useSession(): Session {
  const session = useContext(SessionContext);
  if (!session) throw new Error("there is no session here");
  return session;
}

export function useLive(): Live {
  const { connection } = useSession();
  return useSyncExternalStore(connection.subscribe, connection.snapshot);
}

export interface Resource<T> {
  data: T | null;
  error: string | null;
}

/** Asks for those of these runs that the stream leaves out, since they ended long ago. Returns whether the answer is awaited. */
export function useOlder(names: readonly string[]): boolean {
  const { connection } = useSession();
  const live = useLive();
  const missing = live.begun && live.older ? names.filter((name) => live.runs[name] === undefined).join(" ") : "";
  const answered = useResource<string>(missing, async (signal) => {
    const asked = await Promise.allSettled(missing.split(" ").filter(Boolean).map((run) => get("/v1/runs/{run}", { run }, signal)));
    if (missing && !signal.aborted) connection.asked(asked.flatMap((one) => (one.status === "fulfilled" ? [one.value] : [])));
    return missing;
  });
  return missing !== "" && answered.data !== missing;
}

/** What `fetch` returns, asked again whenever `key` changes. What was there before stays until the answer has come. */
export function useResource<T>(key: string, fetch: (signal: AbortSignal, before: T | null) => Promise<T>): Resource<T> {
  const { ended } = useSession();
  const [resource, setResource] = useState<Resource<T>>({ data: null, error: null });
  const latest = useRef(fetch);
  const data = useRef<T | null>(null);
  latest.current = fetch;
  useEffect(() => {
    const stopping = new AbortController();
    latest.current(stopping.signal, data.current).then(
      (found) => {
        if (stopping.signal.aborted) return;
        data.current = found;
        setResource({ data: found, error: null });
      },
      (error: unknown) => {
        if (stopping.signal.aborted) return;
        if (error instanceof Refusal && error.needsLogin) ended();
        else setResource({ data: data.current, error: error instanceof Error ? error.message : String(error) });
      },
    );
    return () => stopping.abort();
  }, [key, ended]);
  return resource;
}
