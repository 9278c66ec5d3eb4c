// Who comes without a session: by an operator's key, or at the issuer.
import { type FormEvent, useEffect, useState } from "react";
import { address, get, post } from "../api/client";
import type { LoginWays, Me } from "../api/types";
import { Mark } from "../components/Mark";
import { Command, Problem } from "../components/parts";
import { sentence } from "../format";
import { noteSession } from "../session";

export function Login({ why, onEntered }: { why: string; onEntered: (me: Me) => void }) {
  const [ways, setWays] = useState<LoginWays | null>(null);
  const [key, setKey] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    get("/v1/sessions/ways").then(setWays, (error: Error) => setProblem(error.message));
  }, []);
  const enter = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      onEntered(await post("/v1/sessions", { key: key.trim() }));
    } catch (error) {
      setProblem((error as Error).message);
      setBusy(false);
    }
  };
  return (
    <main className="login">
      <div className="login-box">
        <h1>
          <Mark /> Quorate
        </h1>
        {why && <p role="status">{sentence(why)}</p>}
        <form onSubmit={(event) => void enter(event)}>
          <label htmlFor="key">API key of an operator</label>
          <input
            id="key"
            type="password"
            autoComplete="current-password"
            spellCheck={false}
            required
            autoFocus
            maxLength={200}
            placeholder="qk_…"
            value={key}
            onChange={(event) => setKey(event.target.value)}
          />
          <Problem text={problem} />
          <button type="submit" className="main" disabled={busy || !key.trim()}>
            {busy ? "Logging in …" : "Log in"}
          </button>
        </form>
        {ways?.oidc && (
          <a className="button" onClick={() => noteSession(true)} href={address("/v1/sessions/oidc", { next: location.pathname }).href}>
            Log in at {new URL(ways.oidc).host}
          </a>
        )}
        <p className="note">
          No key yet? An owner makes one: <Command text="quorate keys create --role viewer" />
        </p>
      </div>
    </main>
  );
}
