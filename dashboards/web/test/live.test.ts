import { describe, expect, it } from "vitest";
import type { RunView } from "../src/api/types";
import { merged } from "../src/live/merge";
import { inOrder, type Live, next, NOTHING } from "../src/live/state";

function run(id: string, more: Partial<RunView> = {}): RunView {
  return { run: id, status: "running", round: 1, created_at: 0, funnel: { reported: 0, selected: 3 }, ...more } as RunView;
}

function after(live: Live, data: Record<string, unknown>, kind: "patch" | "snapshot" = "patch"): Live {
  return next(live, { kind: "frame", frame: { kind, data } as never });
}

const BEGUN = after(NOTHING, { runs: [run("a"), run("b")], fleet: { waiting: 4, away: 1 } }, "snapshot");

describe("merge patch, by the examples of RFC 7396", () => {
  it.each([
    [{ a: "b" }, { a: "c" }, { a: "c" }],
    [{ a: "b" }, { b: "c" }, { a: "b", b: "c" }],
    [{ a: "b" }, { a: null }, {}],
    [{ a: "b", b: "c" }, { a: null }, { b: "c" }],
    [{ a: ["b"] }, { a: "c" }, { a: "c" }],
    [{ a: "c" }, { a: ["b"] }, { a: ["b"] }],
    [{ a: { b: "c" } }, { a: { b: "d", c: null } }, { a: { b: "d" } }],
    [{ a: [{ b: "c" }] }, { a: [1] }, { a: [1] }],
    [["a", "b"], ["c", "d"], ["c", "d"]],
    [{ a: "b" }, ["c"], ["c"]],
    [{ a: "foo" }, null, null],
    [{ a: "foo" }, "bar", "bar"],
    [{ e: null }, { a: 1 }, { e: null, a: 1 }],
    [[1, 2], { a: "b", c: null }, { a: "b" }],
    [{}, { a: { bb: { ccc: null } } }, { a: { bb: {} } }],
  ])("%j with %j is %j", (target, patch, result) => expect(merged(target, patch)).toEqual(result));

  it("changes neither argument, and no prototype", () => {
    const target = { a: { b: 1 } };
    merged(target, JSON.parse('{"a": {"b": 2}, "__proto__": {"bad": 1}}'));
    expect(target).toEqual({ a: { b: 1 } });
    expect(({} as Record<string, unknown>).bad).toBeUndefined();
  });
});

describe("the live state", () => {
  it("takes a snapshot, and then patches of one run", () => {
    const live = after(BEGUN, { run: "a", patch: { funnel: { reported: 2 }, round: 2 } });
    expect(live.link).toEqual({ status: "live" });
    expect(live.runs.a?.funnel).toMatchObject({ reported: 2, selected: 3 });
    expect(live.runs.a?.round).toBe(2);
    expect(live.runs.b).toBe(BEGUN.runs.b);
  });
  it("takes a new run", () => {
    expect(after(BEGUN, { run: "c", patch: run("c") }).runs.c).toEqual(run("c"));
  });
  it("merges what is beside runs", () => {
    expect(after(BEGUN, { fleet: { waiting: 5 } }).rest).toEqual({ fleet: { waiting: 5, away: 1 } });
  });
  it("forgets what a new snapshot does not have", () => {
    expect(after(BEGUN, { runs: [run("b")] }, "snapshot").runs).not.toHaveProperty("a");
  });
  it("takes older runs as the stream would send them, which changes none that is there, until the next snapshot", () => {
    const live = after(NOTHING, { runs: [run("a", { round: 5 })], older: "a" }, "snapshot");
    expect([live.older, BEGUN.older]).toEqual(["a", ""]);
    const asked = next(live, { kind: "asked", runs: [run("z", { privacy: null }), run("a")], older: "z" });
    expect([asked.runs.z, asked.runs.a?.round, asked.older]).toEqual([run("z"), 5, "z"]);
    expect(next(asked, { kind: "asked", runs: [] })).toEqual(asked);
    expect(after(asked, { runs: [run("a")] }, "snapshot").runs).not.toHaveProperty("z");
  });
  it("says since when the connection is lost, until it is back", () => {
    const lost = next(next(BEGUN, { kind: "lost", at: 5 }), { kind: "lost", at: 9 });
    expect(lost.link).toEqual({ status: "lost", since: 5 });
    expect(lost.runs).toBe(BEGUN.runs);
    expect(next(lost, { kind: "opened" }).link).toEqual({ status: "live" });
    expect(next(NOTHING, { kind: "opened" }).link).toEqual({ status: "connecting" });
  });
  it("applies no patch before a snapshot, of which it would be a part", () => {
    const patch = { run: "a", patch: { round: 2 }, fleet: { waiting: 5 } };
    expect(after(NOTHING, patch)).toBe(NOTHING);
    const lost = next(NOTHING, { kind: "lost", at: 5 });
    expect(after(lost, patch)).toBe(lost);
    expect(after(next(NOTHING, { kind: "whole", live: BEGUN }), patch).runs.a).toMatchObject({ round: 2, status: "running" });
  });
  it("lists what goes on first, then the newest", () => {
    const runs = [run("old", { created_at: 1 }), run("done", { created_at: 9, status: "finished" }), run("new", { created_at: 2 })];
    expect(inOrder(Object.fromEntries(runs.map((one) => [one.run, one]))).map((one) => one.run)).toEqual(["new", "old", "done"]);
  });
});
