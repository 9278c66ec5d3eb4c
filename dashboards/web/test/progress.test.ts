import { describe, expect, it } from "vitest";
import type { RoundView, RunView } from "../src/api/types";
import { eta, health, left, missed, pace } from "../src/progress";
import { parse, runPath } from "../src/route";

function rounds(...closed: (number | null)[]): RoundView[] {
  return closed.map((at, i) => ({ round: i + 1, status: at === null ? "abandoned" : "committed", closed_at: at ?? 0 }) as RoundView);
}

function run(more: Partial<RunView>): RunView {
  const plain = { run: "mnist", clock: "wall", status: "running", phase: "collecting", stalled: "", trouble: "", exhausted: "", reason: "", plan: {} };
  return { ...plain, rounds_committed: 3, rounds_wanted: 10, ...more } as RunView;
}

describe("a missed selection", () => {
  const round = (status: RoundView["status"], missed: number) => ({ round: 1, status, missed, missed_at: 60 }) as RoundView;
  it("is said of each round, once its reason tells something else", () => {
    expect(missed(round("open", 0), 90)).toBe("");
    expect(missed(round("open", 1), 90)).toBe("");
    expect(missed(round("open", 1200), 90)).toMatch(/^too few devices 1.200 times, the last time at /);
    expect(missed(round("committed", 1), 90)).toMatch(/^too few devices once at /);
  });
});

describe("pace", () => {
  it("is the median of the last gaps, without abandoned rounds", () => {
    expect(pace(rounds(0, 10, null, 20, 100))).toBe(10);
    expect(pace(rounds(0, 10, 30))).toBe(15);
    expect(pace(rounds(5))).toBeNull();
    expect(pace(rounds(...Array.from({ length: 30 }, (_, i) => (i < 15 ? i * 100 : 1500 + i))))).toBe(1);
  });
  it("gives the time that is left, only where the run goes on", () => {
    expect(left(run({}), rounds(0, 10, 20), 20)).toBe(70);
    expect(left(run({}), rounds(0, 10, 20), 24)).toBe(66);
    expect(left(run({}), rounds(0, 10, 20), 500)).toBe(60);
    expect(left(run({ clock: "virtual" }), rounds(0, 10, 20), 500)).toBe(70);
    expect(left(run({ stalled: "too few devices" }), rounds(0, 10, 20), 20)).toBeNull();
    expect(eta(run({ status: "paused" }), rounds(0, 10, 20), 20)).toBeNull();
    expect(eta(run({}), rounds(3), 3)).toBeNull();
    expect(eta(run({}), rounds(0, 31, 62), 63)).toBe("3 min 40 s");
  });
});

describe("health of a Flower run", () => {
  const flower = { app: "acme/vision", version: "1.0.0", messages: 4, replies: 1, errors: 0 };
  it("says what its ServerApp and its devices do", () => {
    expect(health(run({ flower })).sentence).toBe("Messages wait for the replies of their devices.");
    expect(health(run({ flower, phase: "idle" })).sentence).toBe("The ServerApp computes; no message waits for a reply.");
    expect(health(run({ flower, stalled: "no device is there" })).command).toBe("quorate device --flower APP_DIR --token-file FILE");
    expect(health(run({ flower, status: "failed", reason: "KeyError" })).tone).toBe("bad");
    expect(health(run({ flower, status: "finished" })).command).toBeNull();
  });
});

describe("health", () => {
  it("names the cause before the status, and the next command", () => {
    expect(health(run({ trouble: "its log cannot be read", stalled: "x" })).tone).toBe("bad");
    expect(health(run({ stalled: "too few eligible devices" }))).toMatchObject({ tone: "warn", sentence: "Too few eligible devices." });
    expect(health(run({ status: "paused", stalled: "x" })).command).toBe("quorate run resume mnist");
    expect(health(run({ status: "finished", reason: "reached 10 rounds" })).sentence).toBe("Reached 10 rounds.");
    expect(health(run({}))).toMatchObject({ tone: "busy", command: null });
  });
});

describe("addresses", () => {
  it("are read as they are written", () => {
    expect(parse("")).toEqual({ screen: "runs" });
    expect(parse(runPath("mnist"))).toEqual({ screen: "run", run: "mnist", section: "live" });
    expect(parse(runPath("a/b", "secure"))).toEqual({ screen: "run", run: "a/b", section: "secure" });
    expect([parse("#/fleet"), parse("#/system"), parse("#/audit")]).toEqual([{ screen: "fleet" }, { screen: "system" }, { screen: "audit" }]);
    expect(parse("#/system/x")).toMatchObject({ screen: "missing" });
    expect(parse("#/runs/mnist/nothing")).toMatchObject({ screen: "missing" });
    expect(parse("#/runs/%E0%A4%A")).toMatchObject({ screen: "run", run: "%E0%A4%A" });
  });
});
