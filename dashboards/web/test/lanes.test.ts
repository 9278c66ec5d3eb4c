import { describe, expect, it } from "vitest";
import type { Lane, LanesView } from "../src/api/types";
import { exits, firstSpan, inOrder, moved, place, segments, summedUp, ticks, whole, within, zoomed } from "../src/lanes";
import { parse, roundPath } from "../src/route";

function lane(device: string, more: Partial<Lane> = {}): Lane {
  return { device, label: "", selected_at: 100, end: "waiting", reason: "", ...more };
}
const reported = lane("a", { started_at: 103, ended_at: 110, reported_at: 110, fetch_s: 2, train_s: 5, encode_s: 0.5, end: "reported", bytes: 9 });

describe("a lane", () => {
  it("of a device that reported waits, fetches, trains, uploads, and waits until the round closes", () => {
    expect(segments(reported, 120, 999)).toEqual([
      { step: "wait", from: 100, to: 101 },
      { step: "fetch", from: 101, to: 103 },
      { step: "train", from: 103, to: 108 },
      { step: "upload", from: 108, to: 110 },
      { step: "wait", from: 110, to: 120 },
    ]);
  });
  it("never has more than the coordinator's time for what the device says", () => {
    const boasting = { ...reported, fetch_s: 500, train_s: 500 };
    expect(segments(boasting, 110, 999)).toEqual([
      { step: "fetch", from: 100, to: 103 },
      { step: "train", from: 103, to: 110 },
    ]);
  });
  it("of a device that still trains goes on until now, and of one that vanished until the round closed", () => {
    expect(segments(lane("b", { started_at: 104, end: "training" }), null, 130).at(-1)).toEqual({ step: "train", from: 104, to: 130 });
    expect(segments(lane("c", { ended_at: 120, end: "dropped" }), 120, 999)).toEqual([{ step: "wait", from: 100, to: 120 }]);
  });
});

describe("devices in parts of the time", () => {
  it("are added up to the end of each part", () => {
    expect(summedUp([3, 0, 2])).toEqual([3, 3, 5]);
    expect(summedUp([])).toEqual([]);
  });
});

describe("the time that is shown", () => {
  const late = lane("d", { started_at: 101, ended_at: 220, end: "late" });
  it("reaches to the last thing that happened, and shows the round first", () => {
    const all = whole([reported, late], 90, 120, 999);
    expect(all).toEqual({ from: 100, to: 220 });
    expect(firstSpan(all, 120)).toEqual({ from: 100, to: 130 });
    expect(firstSpan(all, null)).toEqual(all);
    expect(whole([], 90, null, 95)).toEqual({ from: 90, to: 95 });
  });
  it("is zoomed and moved without leaving the round", () => {
    const all = { from: 0, to: 100 };
    expect(zoomed(all, 0.5, all)).toEqual({ from: 25, to: 75 });
    expect(zoomed({ from: 0, to: 20 }, 4, all)).toEqual({ from: 0, to: 80 });
    expect(zoomed({ from: 30, to: 90 }, 4, all)).toEqual(all);
    expect(moved({ from: 80, to: 90 }, 5, all)).toEqual({ from: 90, to: 100 });
    expect(within({ from: 50, to: 50 }, all).to).toBeGreaterThan(50);
    expect(place(75, { from: 50, to: 100 })).toBe(50);
  });
  it("has its marks at round numbers, counted from the selection", () => {
    expect(ticks({ from: 100, to: 130 }, 100, 6)).toEqual([0, 5, 10, 15, 20, 25, 30]);
    expect(ticks({ from: 107, to: 107.9 }, 100, 5)).toEqual([7, 7.2, 7.4, 7.6, 7.8]);
    expect(ticks({ from: 0, to: 3 * 86_400 }, 0, 2).length).toBeLessThanOrEqual(3);
  });
});

describe("the order", () => {
  const lanes = [lane("z", { end: "training" }), lane("b", { end: "dropped", ended_at: 120 }), reported, lane("c", { label: "0-first" })];
  it("puts those that are not over last, and equal ones by id", () => {
    expect(inOrder(lanes, "who was over first").map((one) => one.device)).toEqual(["a", "b", "c", "z"]);
  });
  it("is by what needs a look, by size, and by name", () => {
    expect(inOrder(lanes, "how it ended").map((one) => one.device)).toEqual(["b", "c", "z", "a"]);
    expect(inOrder(lanes, "largest update")[0]?.device).toBe("a");
    expect(inOrder(lanes, "device").map((one) => one.device)).toEqual(["c", "a", "b", "z"]);
  });
});

describe("who did not report", () => {
  const lanes = [
    lane("a", { end: "late", ended_at: 123 }),
    lane("b", { end: "dropped", started_at: 101, ended_at: 120 }),
    lane("c", { end: "dropped", ended_at: 120 }),
    lane("d", { end: "withdrawn", reason: "the battery is low" }),
    lane("e", { end: "withdrawn", reason: "the battery is low" }),
    lane("f", { end: "withdrawn", reason: "no data" }),
  ];
  const ends = { late: 1, dropped: 2, withdrawn: 3 };
  it("is told with where each was", () => {
    const view: LanesView = { secure: "", devices: 6, lanes, ends };
    expect(exits(view, 120).map((one) => [one.end, one.devices, one.where])).toEqual([
      ["late", 1, "It came 3 s after the round had closed."],
      ["dropped", 2, "Last heard: 1 while training, 1 before training began."],
      ["withdrawn", 3, "The battery is low. (2 devices; 1 other reason)"],
    ]);
  });
  it("has counts only where not all lanes are there", () => {
    const view: LanesView = { secure: "", devices: 6000, lanes, ends };
    expect(exits(view, 120).map((one) => one.where)).toEqual(["", "", ""]);
  });
});

describe("the address of a round", () => {
  it("is read as it is written", () => {
    expect(parse(roundPath("a run", 12))).toEqual({ screen: "round", run: "a run", round: 12 });
    expect(parse("#/runs/a/rounds/x").screen).toBe("missing");
    expect(parse("#/runs/a/rounds/0").screen).toBe("missing");
    expect(parse("#/runs/a/rounds/1/more").screen).toBe("missing");
  });
});
