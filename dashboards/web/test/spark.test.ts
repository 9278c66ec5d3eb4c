import { describe, expect, it } from "vitest";
import { sparkPoints } from "../src/spark";

describe("a small curve", () => {
  it("fills its box, whatever the size of its values", () => {
    expect(sparkPoints([1, 3, 2], 100, 20)).toEqual([
      [0, 20],
      [50, 0],
      [100, 10],
    ]);
  });
  it("has equal values in the middle, and one value too", () => {
    expect(sparkPoints([7, 7], 10, 20)).toEqual([
      [0, 10],
      [10, 10],
    ]);
    expect(sparkPoints([7], 10, 20)).toEqual([[5, 10]]);
    expect(sparkPoints([], 10, 20)).toEqual([]);
  });
});
