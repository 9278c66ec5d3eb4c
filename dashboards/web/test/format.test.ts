import { describe, expect, it } from "vitest";
import { ago, bytes, count, duration, many, metric, runTitle } from "../src/format";

describe("bytes", () => {
  it.each([
    [0, "0 B"],
    [999, "999 B"],
    [1000, "1.0 kB"],
    [12_345, "12.3 kB"],
    [999_499, "999 kB"],
    [999_500, "1.0 MB"],
    [157_400_000, "157 MB"],
    [5e15, "5000 TB"],
  ])("%d is %s", (value, text) => expect(bytes(value)).toBe(text));
});

describe("duration", () => {
  it.each([
    [0, "0 s"],
    [0.85, "850 ms"],
    [0.9999, "1 s"],
    [4.21, "4.2 s"],
    [9.97, "10 s"],
    [59.4, "59 s"],
    [59.6, "1 min"],
    [200, "3 min 20 s"],
    [3599.7, "1 h"],
    [7500, "2 h 5 min"],
    [86_400 * 3 + 3600 * 4, "3 d 4 h"],
    [-5, "0 s"],
    [Number.NaN, "unknown"],
  ])("%d is %s", (value, text) => expect(duration(value)).toBe(text));
});

describe("numbers", () => {
  it("keeps four digits of a metric", () => {
    expect([0.865432, 0, 12.5, 1e-7, 123456.7, -0.5].map(metric)).toEqual(["0.8654", "0", "12.5", "1.000e-7", "123500", "-0.5"]);
  });
  it("counts", () => {
    expect([count(12_345), many(1, "device"), many(0, "device"), many(1200, "device")]).toEqual(["12,345", "1 device", "0 devices", "1,200 devices"]);
  });
  it("says how long ago, and nothing of the future", () => {
    expect([ago(100, 101), ago(100, 104.5), ago(100, 90)]).toEqual(["just now", "4 s ago", "just now"]);
  });
});

describe("runTitle", () => {
  it.each([
    ["mnist", "mnist-2"],
    ["digits", "mnist-2 (digits)"],
    ["mnist-2", "mnist-2"],
  ])("of a run named %s is %s", (name, title) => expect(runTitle({ run: "mnist-2", name, plan: { name: "mnist" } })).toBe(title));
});
