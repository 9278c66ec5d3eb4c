import { describe, expect, it } from "vitest";
import type { MetricView, RoundView, RunView } from "../src/api/types";
import { csv } from "../src/compare/csv";
import { banded, choices, type Compared, line, places, smoothed, thinned } from "../src/compare/lines";
import { differences } from "../src/compare/plans";
import { decode, encode, FIRST_VIEW, MOST_RUNS, namesRuns, type View } from "../src/compare/view";

const PLAN = { name: "a", task: { seed: 0, learning_rate: 0.1 }, cohort: { select: 4 } };

/** A run with an abandoned second round: 100 bytes and 10 seconds a round, scored after rounds 0, 1 and 3. */
function compared(run: string, values: readonly [number, number, number], more: Partial<RunView> = {}): Compared {
  const rounds = [1, 2, 3].map((round) => ({ round, bytes_in: 100, closed_at: 1000 + 10 * round, version: [undefined, 1, null, 2][round], weight: 7, metrics: {} }));
  const metrics = values.map((value, version) => ({ version, source: "test", name: "accuracy", value, examples: 50, at: 5000 }));
  return {
    run: { run, plan: PLAN, clock: "wall", created_at: 1000, ...more } as RunView,
    rounds: rounds as unknown as RoundView[],
    metrics: metrics as MetricView[],
  };
}

function shown(one: Compared, axis: View["axis"], weight = 0) {
  return line(one, "accuracy", "test", axis, weight)?.samples.map((sample) => [sample.x, sample.y]);
}

describe("the address of a comparison", () => {
  it("keeps all of the view", () => {
    const view: View = { runs: ["a", "b.1"], metric: "val/loss", source: "hospital-7", axis: "bytes", smoothing: 0.9, log: true, bands: false };
    expect(decode(encode(view))).toEqual(view);
    expect(encode(view)).toContain("runs=a,b.1&");
  });
  it("says nothing of what is as at first", () => {
    expect(encode(FIRST_VIEW)).toBe("runs=");
    expect(decode("")).toEqual(FIRST_VIEW);
    expect([namesRuns(""), namesRuns("runs=")]).toEqual([false, true]);
  });
  it("takes what it does not know as at first, each run once, and no more than twenty", () => {
    expect(decode("x=moon&smooth=7&scale=3&runs=a,a,,b")).toEqual({ ...FIRST_VIEW, runs: ["a", "b"] });
    expect(decode(`runs=${Array.from({ length: 30 }, (_, i) => `r${i}`).join()}`).runs).toHaveLength(MOST_RUNS);
  });
});

describe("lines", () => {
  it("lie where their checkpoints were made, abandoned rounds counted", () => {
    const one = compared("a", [0.1, 0.5, 0.8]);
    expect(shown(one, "round")).toEqual([[0, 0.1], [1, 0.5], [3, 0.8]]);
    expect(shown(one, "bytes")).toEqual([[0, 0.1], [100, 0.5], [300, 0.8]]);
    expect(shown(one, "wall")).toEqual([[0, 0.1], [10, 0.5], [30, 0.8]]);
  });
  it("of a simulation have virtual time only, and of devices none", () => {
    const simulated = compared("a", [0.1, 0.5, 0.8], { clock: "virtual" });
    expect(places(simulated, "wall")).toBeNull();
    expect(shown(simulated, "virtual")).toEqual([[0, 0.1], [10, 0.5], [30, 0.8]]);
    expect(places(compared("a", [0, 0, 0]), "virtual")).toBeNull();
  });
  it("are there for what a run has", () => {
    const one = compared("a", [0.1, 0.5, 0.8]);
    expect([...choices([one])]).toEqual([["accuracy", ["test"]]]);
    expect(line(one, "accuracy", "other", "round", 0)).toBeNull();
    expect(line(one, "loss", "test", "round", 0)).toBeNull();
  });
});

describe("smoothing", () => {
  it("is the moving average without its start at zero", () => {
    expect(smoothed([4, 4, 4], 0.9).map((value) => Number(value.toFixed(9)))).toEqual([4, 4, 4]);
    const [first, second] = smoothed([1, 0], 0.5);
    expect(first).toBe(1);
    expect(second).toBeCloseTo(1 / 3, 12);
    expect(smoothed([3, 1, 2], 0)).toEqual([3, 1, 2]);
  });
});

describe("bands", () => {
  const plans = (...found: Compared[]) => new Map(found.map((one) => [one.run.run, one.run.plan]));
  const lineOf = (one: Compared, axis: View["axis"] = "round") => line(one, "accuracy", "test", axis, 0) ?? { run: "", samples: [] };
  it("join runs that differ in name and seed only", () => {
    const a = compared("fedavg-1", [0.1, 0.5, 0.8]);
    const b = compared("fedavg-2", [0.3, 0.4, 0.6], { plan: { cohort: { select: 4 }, name: "b", task: { learning_rate: 0.1, seed: 9 } } });
    const c = compared("other", [0, 0, 0], { plan: { ...PLAN, task: { ...PLAN.task, learning_rate: 0.2 } } });
    const { bands, alone } = banded([a, b, c].map((one) => lineOf(one)), plans(a, b, c));
    expect(alone.map((one) => one.run)).toEqual(["other"]);
    expect(bands.map((band) => [band.name, band.runs])).toEqual([["fedavg (2 seeds)", ["fedavg-1", "fedavg-2"]]]);
    expect(bands[0]?.points.map((point) => [point.x, point.mean, point.low, point.high].map((value) => Number(value.toFixed(9))))).toEqual([
      [0, 0.2, 0.1, 0.3],
      [1, 0.45, 0.4, 0.5],
      [3, 0.7, 0.6, 0.8],
    ]);
  });
  it("lie where all of them are, between points along straight lines", () => {
    const a = compared("a1", [0, 1, 3]);
    const b = compared("a2", [0, 1, 3], { created_at: 995 });
    const { bands } = banded([lineOf(a, "wall"), lineOf(b, "wall")], plans(a, b));
    expect(bands[0]?.points.map((point) => point.x)).toEqual([0, 10, 15, 30]);
    const at30 = bands[0]?.points.at(-1);
    expect(at30?.high).toBe(3);
    expect(at30?.low).toBeCloseTo(1 + (2 * 15) / 20, 12);
  });
  it("of one run is no band", () => {
    const a = compared("a", [0, 1, 2]);
    expect(banded([lineOf(a)], plans(a))).toEqual({ bands: [], alone: [lineOf(a)] });
  });
  it("have a bounded number of points, with both ends", () => {
    const some = thinned(Array.from({ length: 5000 }, (_, i) => i), 600);
    expect([some.length, some[0], some.at(-1)]).toEqual([600, 0, 4999]);
  });
});

describe("plans", () => {
  it("differ in the fields whose values differ", () => {
    const other = { name: "a", task: { seed: 1, learning_rate: 0.1 }, secure: { max_norm: 3 } };
    expect(differences([PLAN, other])).toEqual([
      { field: "task.seed", values: ["0", "1"] },
      { field: "cohort.select", values: ["4", "–"] },
      { field: "secure.max_norm", values: ["–", "3"] },
    ]);
    expect(differences([PLAN, PLAN])).toEqual([]);
  });
});

describe("the file of values", () => {
  it("has a row for each value, quoted where it must be", () => {
    const one = line(compared("a", [0.1, 0.5, 0.8]), "accuracy", "test", "bytes", 0);
    expect(csv(one ? [one] : [], "accuracy", "test", "bytes").split("\r\n")).toEqual([
      "run,source,round,version,bytes_received,accuracy,accuracy_smoothed,examples",
      "a,test,0,0,0,0.1,0.1,50",
      "a,test,1,1,100,0.5,0.5,50",
      "a,test,3,2,300,0.8,0.8,50",
      "",
    ]);
    expect(csv([{ run: 'x,"y"', samples: [] }], "m", "s", "round")).toBe("run,source,round,version,m,m_smoothed,examples\r\n");
    const odd = one ? { ...one, run: 'x,"y"', samples: one.samples.slice(0, 1) } : null;
    expect(csv(odd ? [odd] : [], "m", "s", "round")).toContain('"x,""y""",s,0');
  });
});
