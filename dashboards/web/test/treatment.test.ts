import { describe, expect, it } from "vitest";
import type { RoundView } from "../src/api/types";
import { noteOf } from "../src/participation";
import { treated } from "../src/treatment";

const NOTHING = { clipped: 0, capped: 0, partial: 0, statistics_cut: 0, rounding: 0, zero_sum: false, raised: 0, duplicates: 0, refused: {} };

function round(treatment: RoundView["treatment"]): RoundView {
  return { round: 1, status: "committed", opened_at: 0, treatment, funnel: { waiting: 9, selected: 8, training: 8, reported: 6, withdrawn: 0, late: 0, dropped: 0, refused: 2 } } as RoundView;
}

describe("what was done to updates", () => {
  it("is said with counts, and nothing where nothing was done or is known", () => {
    const done = { ...NOTHING, clipped: 2, capped: 1, partial: 3, statistics_cut: 4, rounding: 0.388, zero_sum: true, raised: 5, duplicates: 1, refused: { "NaN in w": 2 } };
    expect(treated(round(done))).toEqual([
      "2 of 6 updates scaled down to clip_norm",
      "1 of 6 updates weighed less than their examples",
      "3 of 6 updates of work cut short by a deadline",
      "4 of 6 updates with statistics cut to their range",
      "rounding errors up to 0.39 of an update's largest value",
      "the sum of the updates was zero",
      "5 values of statistics would have been below 0",
      "1 second updates of a device, which may be two",
      "2 refused: NaN in w",
    ]);
    expect(treated(round(NOTHING))).toEqual([]);
    expect(treated(round(null))).toEqual([]);
    expect(treated(round({ clipped: null, capped: null, partial: null, statistics_cut: null, rounding: null, zero_sum: false, raised: 0, duplicates: 0, refused: null }))).toEqual([]);
    expect(treated(round({ ...NOTHING, clipped: null, rounding: 0.5 }))).toEqual(["rounding is about 0.50 of the step"]);
  });
});

describe("participation", () => {
  it("says how many never counted, and how many are shown", () => {
    expect(noteOf({ from_round: 1, devices: 400, never_counted: 61, by_class: [], lateness: "", page: [], next: "" })).toBe("61 of 400 devices never counted; the first 0 are shown");
    expect(noteOf({ from_round: 801, devices: 0, never_counted: 0, by_class: [], lateness: "", page: [], next: "" })).toBe("0 of 0 devices never counted since round 801");
  });
});
