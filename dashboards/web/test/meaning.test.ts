import { describe, expect, it } from "vitest";
import type { ExchangeView, MetricView, RoundView } from "../src/api/types";
import { inWords, isRefusal, shortened } from "../src/audit";
import { curves, firstMetric, newest, trend } from "../src/curves";
import { may } from "../src/roles";
import { missing, type SecureRound, seen, vanished } from "../src/secure";

function secure(opened: boolean, came: Record<string, number>): SecureRound {
  const exchanges = Object.entries(came).map(([exchange, number]) => ({ exchange, came: number }));
  return { weight: 1200, secure: { opened, exchanges } } as unknown as SecureRound;
}

describe("secure rounds", () => {
  it("say what could be seen, and who vanished", () => {
    const round = secure(true, { advertise: 300, share: 290, mask: 256, agree: 256, unmask: 250 });
    expect(vanished(round.secure)).toBe(34);
    expect(seen(round)).toContain("the sum of 256 updates, its total weight (here 1,200, rounded)");
    expect(seen(round)).toContain("34 vanished before they masked");
    expect(seen(round)).toContain("can shape it so that single training examples can be read out of the sum");
  });
  it("say that nothing was seen before the sum is opened", () => {
    const round = secure(false, { advertise: 300, share: 290 });
    expect(vanished(round.secure)).toBe(0);
    expect(seen(round)).toContain("it could see no update and no sum of updates");
  });
});

describe("who did not come to an exchange", () => {
  const one = { expected: 300, came: 256, needed: 201, bytes: 1, began_at: 0, ended_at: 9 };
  const said = (changed: Partial<ExchangeView>) => missing({ ...one, exchange: "mask", ...changed });
  it("has vanished, or was not needed any more", () => {
    expect(said({})).toBe("44 vanished, or came too late");
    expect(said({ exchange: "unmask" })).toBe("44 more not needed");
    expect(said({ exchange: "agree", came: 200 })).toBe("100 vanished, or came too late");
    expect(said({ came: 300 })).toBe("");
    expect(said({ ended_at: null })).toBe("");
  });
});

describe("curves", () => {
  const rounds = [
    { round: 1, status: "abandoned", metrics: {} },
    { round: 2, status: "committed", version: 1, weight: 90, metrics: { loss: 0.9 } },
    { round: 3, status: "committed", version: 2, weight: 80, metrics: { loss: 0.5 } },
  ] as unknown as RoundView[];
  const metrics = [
    { version: 2, source: "test", name: "loss", value: 0.6, examples: 10 },
    { version: 0, source: "test", name: "loss", value: 2.3, examples: 10 },
    { version: 9, source: "test", name: "loss", value: 0.1, examples: 10 },
  ] as MetricView[];
  const found = curves(rounds, metrics);
  it("stand at the round that made the checkpoint, evaluators first", () => {
    expect(found.get("loss")?.map((curve) => curve.source)).toEqual(["test", "training"]);
    expect(found.get("loss")?.[0]?.points.map((point) => [point.round, point.value])).toEqual([
      [0, 2.3],
      [3, 0.6],
    ]);
    expect(found.get("loss")?.[1]?.points[0]).toMatchObject({ round: 2, version: 1, examples: 90 });
  });
  it("begin with the plan's metric, or with accuracy", () => {
    expect(firstMetric(["f1", "accuracy"], "f1")).toBe("f1");
    expect(firstMetric(["f1", "accuracy"], null)).toBe("accuracy");
    expect(firstMetric([], "f1")).toBeNull();
    expect(newest(found.get("loss") ?? [])?.value).toBe(0.6);
  });
});

describe("a trend", () => {
  const curve = (...values: number[]) => ({ source: "evaluator", points: values.map((value, round) => ({ round, version: round, value, examples: 10 })) });
  it("is against five rounds before, or the first value", () => {
    expect(trend(curve(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.5))).toEqual({ by: 0.3, rounds: 5 });
    expect(trend(curve(0.5, 0.25))).toEqual({ by: -0.25, rounds: 1 });
    expect(trend(curve(0.5))).toBeNull();
    expect(trend(curve())).toBeNull();
  });
});

describe("the audit", () => {
  it("is in plain words, also where an action is new", () => {
    expect(["run.pause", "run.create done", "run.create refused", "login", "refused.not-permitted", "something.new"].map((action) => inWords({ action }))).toEqual([
      "asked to pause the run",
      "create a run: done",
      "create a run: refused",
      "logged in",
      "was refused: not permitted",
      "something new",
    ]);
    expect(["run.create refused", "refused.login", "run.create"].map((action) => isRefusal({ action }))).toEqual([true, true, false]);
  });
  it("has the first digits of digests only", () => {
    expect(shortened(`init=${"0123456789abcdef".repeat(4)} origin=upload`)).toBe("init=0123456789… origin=upload");
  });
});

describe("what somebody may do", () => {
  const me = (role: string, scope: string) => ({ grants: [{ role, scope }] }) as never;
  it("follows role and scope as the API does", () => {
    expect(may(me("operator", "mnist-*"), "operator", "mnist-1")).toBe(true);
    expect(may(me("operator", "mnist-*"), "owner", "mnist-1")).toBe(false);
    expect(may(me("owner", "mnist-*"), "viewer", "cifar")).toBe(false);
    expect(may(me("owner", "mnist-*"), "owner", "*")).toBe(false);
    expect(may(me("owner", "*"), "owner", "*")).toBe(true);
  });
});
