// What the page knows of the federation at this moment: the snapshot of the stream, and the patches that followed.
import type { RunView } from "../api/types";
import { merged } from "./merge";

/** connecting: nothing has come yet, nor was lost. live: frames come. lost: they did, and the connection is gone since `since`. */
export type Link = { status: "connecting" } | { status: "live" } | { status: "lost"; since: number };

export interface Live {
  link: Link;
  runs: Readonly<Record<string, RunView>>;
  /** The run after which the API lists those that ended before the ones that are here, newest first; empty: there are none. */
  older: string;
  /** Parts beside runs, as the stream sends them: fleet, system. */
  rest: Readonly<Record<string, unknown>>;
  /** Whether a snapshot has come. A patch before it has nothing to be applied to: a tab that was just opened hears the patches that another tab reads. */
  begun: boolean;
}

export type Frame =
  | { kind: "snapshot"; data: { runs: RunView[]; older?: string } & Record<string, unknown> }
  | { kind: "patch"; data: { run?: string; patch?: object } & Record<string, unknown> };

export type Action =
  | { kind: "frame"; frame: Frame }
  | { kind: "opened" }
  | { kind: "lost"; at: number }
  | { kind: "whole"; live: Live }
  /** Runs that the stream leaves out; `older`: the next of them come after this one. */
  | { kind: "asked"; runs: readonly RunView[]; older?: string | undefined };

export const NOTHING: Live = { link: { status: "connecting" }, runs: {}, older: "", rest: {}, begun: false };

/** The next state. Pure: time is in the action. */
export function next(live: Live, action: Action): Live {
  switch (action.kind) {
    case "whole":
      return action.live;
    case "opened":
      return live.link.status === "lost" ? { ...live, link: { status: "live" } } : live;
    case "lost":
      return live.link.status === "lost" ? live : { ...live, link: { status: "lost", since: action.at } };
    case "frame":
      if (action.frame.kind === "patch" && !live.begun) return live;
      return { ...framed(live, action.frame), link: { status: "live" }, begun: true };
    case "asked": {
      // As the stream sends them: what is null is absent.
      const asked = action.runs.map((run) => [run.run, merged({}, run) as RunView]);
      return { ...live, runs: { ...Object.fromEntries(asked), ...live.runs }, older: action.older ?? live.older };
    }
  }
}

function framed(live: Live, frame: Frame): Live {
  if (frame.kind === "snapshot") {
    const { runs, older = "", ...rest } = frame.data;
    return { ...live, runs: Object.fromEntries(runs.map((run) => [run.run, run])), older, rest };
  }
  const { run, patch, ...rest } = frame.data;
  const others = Object.keys(rest).length ? (merged(live.rest, rest) as Record<string, unknown>) : live.rest;
  if (run === undefined) return { ...live, rest: others };
  return { ...live, runs: { ...live.runs, [run]: merged(live.runs[run], patch) as RunView }, rest: others };
}

/** Runs for a list: those that go on first, then the newest. */
export function inOrder(runs: Readonly<Record<string, RunView>>): RunView[] {
  const over = (run: RunView) => Number(run.status !== "running" && run.status !== "paused");
  return Object.values(runs).sort((a, b) => over(a) - over(b) || b.created_at - a.created_at);
}
