// One stream of the coordinator for all tabs of this browser. HTTP/1.1 gives an origin six connections, so eight tabs
// must not hold eight streams: the tab that holds the lock reads the stream and tells the others by a channel. A tab
// that has been hidden for a while gives the lock to one that is seen.
import { address, BASE, get, Refusal } from "../api/client";
import type { RunView } from "../api/types";
import { type Frame, type Action, type Live, next, NOTHING } from "./state";

const NAME = `quorate-live:${BASE.pathname}`;
const HIDDEN_MS = 20_000;
const RETRY_MS = [1000, 2000, 4000, 8000, 15_000];

type Said = { say: "action"; action: Action } | { say: "which" } | { say: "logout" };

export class Connection {
  private live: Live = NOTHING;
  private readonly listeners = new Set<() => void>();
  private readonly channel = new BroadcastChannel(NAME);
  private source: EventSource | null = null;
  private giveUp: (() => void) | null = null;
  private waiting: AbortController | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private tries = 0;

  /** `onLogout`: called when the session has ended, here or in another tab. */
  constructor(private readonly onLogout: () => void) {}

  readonly snapshot = (): Live => this.live;

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  start(): void {
    this.channel.onmessage = (event: MessageEvent<Said>) => this.heard(event.data);
    document.addEventListener("visibilitychange", this.seen);
    this.say({ say: "which" });
    this.seen();
  }

  stop(): void {
    document.removeEventListener("visibilitychange", this.seen);
    clearTimeout(this.timer);
    this.release();
    this.channel.close();
  }

  /** Shows runs that the stream leaves out. `older`: the next of them come after this one. */
  asked(runs: readonly RunView[], older?: string): void {
    this.happened({ kind: "asked", runs, older });
  }

  /** Tells the other tabs that the session has ended. */
  loggedOut(): void {
    this.say({ say: "logout" });
  }

  private readonly seen = (): void => {
    clearTimeout(this.timer);
    if (document.visibilityState === "visible") this.lead();
    else this.timer = setTimeout(() => this.release(), HIDDEN_MS);
  };

  private heard(said: Said): void {
    if (said.say === "logout") this.onLogout();
    else if (said.say === "which") {
      if (this.source) this.say({ say: "action", action: { kind: "whole", live: this.live } });
    } else if (!this.source) this.happened(said.action);
  }

  private say(said: Said): void {
    this.channel.postMessage(said);
  }

  private happened(action: Action): void {
    this.live = next(this.live, action);
    for (const listener of this.listeners) listener();
  }

  private tell(action: Action): void {
    this.happened(action);
    this.say({ say: "action", action });
  }

  /** Waits for the lock, and reads the stream while it is held. */
  private lead(): void {
    if (this.waiting) return;
    const waiting = new AbortController();
    this.waiting = waiting;
    navigator.locks
      .request(NAME, { signal: waiting.signal }, () => {
        if (waiting.signal.aborted) return undefined;
        const held = new Promise<void>((resolve) => {
          this.giveUp = resolve;
        });
        this.open();
        return held;
      })
      .catch(() => undefined); // given up before it was held
  }

  private release(): void {
    this.waiting?.abort();
    this.waiting = null;
    this.source?.close();
    this.source = null;
    this.giveUp?.();
    this.giveUp = null;
  }

  private open(): void {
    const source = new EventSource(address("/v1/stream"));
    this.source = source;
    const frame = (kind: Frame["kind"]) => (event: MessageEvent<string>) => {
      this.tries = 0;
      this.tell({ kind: "frame", frame: { kind, data: JSON.parse(event.data) } as Frame });
    };
    source.addEventListener("snapshot", frame("snapshot"));
    source.addEventListener("patch", frame("patch"));
    source.onopen = () => this.tell({ kind: "opened" });
    source.onerror = () => {
      this.tell({ kind: "lost", at: Date.now() });
      if (source.readyState === EventSource.CLOSED) void this.again();
    };
  }

  /** The browser asks again by itself, except where it was refused: then the session may have ended. */
  private async again(): Promise<void> {
    const wait = RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)] ?? 1000;
    await new Promise((resolve) => setTimeout(resolve, wait * (0.75 + Math.random() / 2)));
    if (!this.leads()) return;
    try {
      await get("/v1/me");
    } catch (error) {
      if (error instanceof Refusal && error.needsLogin) {
        this.loggedOut();
        this.onLogout();
        return;
      }
    }
    if (this.leads()) this.open();
  }

  private leads(): boolean {
    return this.giveUp !== null;
  }
}
