import { describe, expect, it } from "vitest";
import { devicePath, parse, startPath } from "../src/route";

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
