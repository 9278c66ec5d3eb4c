import { describe, expect, it } from "vitest";
import { devicePath, parse, roundPath, runPath, startPath } from "../src/route";
import { titleOf } from "../src/title";

describe("an address", () => {
  it("names a device and what a run is started from, whatever its letters", () => {
    expect(parse(devicePath("d-1.x"))).toEqual({ screen: "device", device: "d-1.x" });
    expect(parse(startPath())).toEqual({ screen: "start", from: null });
    for (const run of ["wine", "a/b c", "live"]) expect(parse(startPath({ run, version: 12 }))).toEqual({ screen: "start", from: { run, version: 12 } });
  });
  it("that names nothing is missing", () => {
    for (const path of ["#/fleet/a/b", "#/start/wine", "#/start/wine/x", "#/start/wine/1/2"]) expect(parse(path).screen).toBe("missing");
  });
});

describe("a title", () => {
  it("says the run and the screen, and no two screens have the same", () => {
    expect(titleOf(parse(runPath("wine")))).toBe("wine · Live · Quorate");
    expect(titleOf(parse(runPath("wine", "secure")))).toBe("wine · Secure aggregation · Quorate");
    expect(titleOf(parse(roundPath("wine", 7)))).toBe("wine · Round 7 · Quorate");
    expect(titleOf(parse(devicePath("d1")))).toBe("d1 · Device · Quorate");
    const places = ["", "#/compare", "#/fleet", "#/system", "#/audit", "#/start", "#/start/wine/3", "#/nowhere", runPath("a"), runPath("b"), runPath("a", "checkpoints")];
    expect(new Set(places.map((place) => titleOf(parse(place)))).size).toBe(places.length);
  });
});
