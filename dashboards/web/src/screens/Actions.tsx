// What operators do with a run, where they see the need. Who may not sees it disabled, with the reason.
import { type KeyboardEvent, useId, useRef, useState } from "react";
import { type Action, type Offer, offers, reason } from "../actions";
import { post, Refusal } from "../api/client";
import type { RunView } from "../api/types";
import { Problem } from "../components/parts";
import { useSession } from "../live/context";

export function Actions({ run }: { run: RunView }) {
  const { me, ended } = useSession();
  const [busy, setBusy] = useState<Action | null>(null);
  const [asking, setAsking] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const stop = useRef<HTMLButtonElement>(null);
  const why = useId();
  const all = offers(run, me);
  if (!all.length) return null;
  const missing = reason(all);
  const act = async (action: Action) => {
    setBusy(action);
    setProblem(null);
    try {
      if (action === "advance") await post("/v1/runs/{run}/advance", { by: me.id }, { run: run.run });
      else await post("/v1/runs/{run}/{action}", undefined, { run: run.run, action });
      setAsking(false);
    } catch (error) {
      if (error instanceof Refusal && error.needsLogin) ended();
      else setProblem((error as Error).message);
    }
    setBusy(null);
  };
  const keep = () => {
    setAsking(false);
    stop.current?.focus();
  };
  const button = (offer: Offer) => {
    const asks = offer.action === "stop";
    return (
      <button
        key={offer.action}
        type="button"
        ref={asks ? stop : null}
        disabled={!offer.allowed || busy !== null}
        aria-label={offer.text}
        aria-busy={busy === offer.action}
        aria-describedby={offer.allowed ? undefined : why}
        aria-expanded={asks ? asking : undefined}
        onClick={() => (asks ? setAsking(true) : void act(offer.action))}
      >
        {busy === offer.action && !asks ? "…" : offer.text}
      </button>
    );
  };
  return (
    <div className="actions">
      {all.map(button)}
      {asking && <Confirmation run={run.run} busy={busy !== null} stop={() => void act("stop")} keep={keep} />}
      {missing && (
        <p className="note" id={why}>
          {missing}
        </p>
      )}
      <Problem text={problem} />
    </div>
  );
}

/** Asks before the run is stopped. The keyboard is at the answer that changes nothing, and Escape gives it. */
function Confirmation({ run, busy, stop, keep }: { run: string; busy: boolean; stop: () => void; keep: () => void }) {
  const leave = (event: KeyboardEvent) => event.key === "Escape" && keep();
  return (
    <span className="asking" role="group" aria-label={`Stop ${run} permanently?`} onKeyDown={leave}>
      Stop it permanently?
      <button type="button" disabled={busy} onClick={stop}>
        Stop permanently
      </button>
      <button type="button" disabled={busy} autoFocus onClick={keep}>
        Keep it
      </button>
    </span>
  );
}
