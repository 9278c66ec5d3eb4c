import { describe, expect, it } from "vitest";
import type { LeasesView, RoundView, RunView } from "../src/api/types";
import { baselines, restarts, scaling, section, speed, takeovers } from "../src/datacenter";

const WORK = { data: "mnist", nproc: 4, batch_size: 256, steps: 100, precision: "float32", optimizer: "sgd", accumulate: 1 };

function run(name: string, work: object | null = WORK, learner = "quorate:mnist-mlp"): RunView {
  return { run: name, clock: "wall", plan: { task: { learner }, datacenter: work } } as unknown as RunView;
}

function round(number: number, kind: string, samples: number | null = null, more: object = {}): RoundView {
  const lease = kind === "datacenter" ? { worker: "w1", metrics: {} } : null;
  const metrics = samples === null ? {} : { samples_per_s: samples };
  return { round: number, kind, status: "committed", metrics, lease, ...more } as unknown as RoundView;
}

describe("what a datacenter round says", () => {
  it("is that of the whole round once it is delivered, and before as last reported", () => {
    const lease = { worker: "w1", metrics: { samples_per_s: 800, communication_share: 0.25 } };
    expect(speed(round(1, "datacenter", null, { status: "open", lease }))).toEqual({ samples: 800, share: 0.25 });
    expect(speed(round(1, "datacenter", 900, { lease }))).toEqual({ samples: 900, share: 0.25 });
    expect(speed(round(1, "datacenter"))).toEqual({ samples: null, share: null });
  });
  it("took over where the round before was of devices", () => {
    const kinds = ["federated", "datacenter", "datacenter", "federated", "datacenter"];
    expect(takeovers(kinds.map((kind, i) => round(i + 1, kind))).map((one) => one.round)).toEqual([2, 5]);
  });
  it("was started again as a worker, or as processes under a lease", () => {
    const points = [[1, 1], [1, 2], [2, 0], [3, 1]].map(([attempt, again]) => ({ attempt, metrics: { restarts: again } }));
    expect(restarts({ count: 3, restarts: 2, points } as unknown as LeasesView)).toEqual({ workers: 2, processes: 3 });
    expect(restarts({ count: 1, restarts: 0 })).toEqual({ workers: 0, processes: 0 });
  });
  it("is nothing without the plan's section", () => {
    expect(section(run("a", null))).toBeNull();
    expect(section(run("a"))?.nproc).toBe(4);
  });
});

describe("scaling efficiency", () => {
  const mine = run("four");
  const alone = run("one", { ...WORK, nproc: 1 });
  const rounds = [round(1, "datacenter", 3000), round(2, "datacenter", 3200), round(3, "datacenter", 3400)];
  const told = (other: RunView, its: RoundView[]) => scaling(mine, rounds, [{ run: other, rounds: its }]);
  it("compares medians with one process of the same worker", () => {
    const found = told(alone, [round(1, "datacenter", 1000), round(2, "federated", 9)]);
    expect(found).toEqual({ kind: "measured", efficiency: 0.8, here: 3200, alone: 1000, run: "one", batch: "same" });
    const weak = told(run("weak", { ...WORK, nproc: 1, batch_size: 64 }), [round(1, "datacenter", 800)]);
    expect(weak).toMatchObject({ efficiency: 1, batch: "per process" });
  });
  it("is not told without a measured baseline", () => {
    for (const its of [[], [round(1, "federated", 1000)], [round(1, "datacenter")], [round(1, "datacenter", 1000, { lease: { worker: "w2", metrics: {} } })], [round(1, "datacenter", 1000, { status: "abandoned" })]])
      expect(told(alone, its)).toMatchObject({ kind: "none", why: expect.stringContaining("No baseline was measured") });
    expect(scaling(mine, [round(1, "datacenter")], [])).toMatchObject({ kind: "none", why: expect.stringContaining("reported") });
    expect(scaling(alone, rounds, [])).toMatchObject({ kind: "none", why: expect.stringContaining("one process") });
  });
  it("takes as baselines only runs that do the same work", () => {
    const others = [
      alone,
      run("weak", { ...WORK, nproc: 1, batch_size: 64 }),
      run("other-data", { ...WORK, nproc: 1, data: "cifar" }),
      run("other-batch", { ...WORK, nproc: 1, batch_size: 100 }),
      run("other-learner", { ...WORK, nproc: 1 }, "quorate:mnist-cnn"),
      run("two", { ...WORK, nproc: 2 }),
      run("devices", null),
      { ...run("simulated", { ...WORK, nproc: 1 }), clock: "virtual" } as RunView,
    ];
    expect(baselines(mine, others).map((one) => one.run)).toEqual(["one", "weak"]);
    expect(baselines(alone, others)).toEqual([]);
  });
});
