import { describe, expect, it } from "vitest";
import type { DeviceView } from "../src/api/types";
import { amiss, byHour, type DeviceRound, reasons, standing } from "../src/device";

const HOUR = 3600;
const round = (at: number | null, result: DeviceRound["result"], reason = ""): DeviceRound => ({ run: "wine", round: 1, at, result, version: null, reason, secure: false });

describe("the rounds of a device", () => {
  it("are counted in the hour in which they ended, of the last 24", () => {
    const now = 100 * HOUR + 59;
    const hours = byHour([round(100 * HOUR, "counted"), round(100 * HOUR + 1, "late"), round(77 * HOUR, "refused"), round(77 * HOUR - 1, "refused"), round(null, "counted")], now);
    expect(hours.length).toBe(24);
    expect(hours.at(-1)).toEqual({ from: 100 * HOUR, ends: { counted: 1, late: 1, refused: 0 } });
    expect(hours[0]).toEqual({ from: 77 * HOUR, ends: { counted: 0, late: 0, refused: 1 } });
    expect(hours.reduce((sum, one) => sum + one.ends.counted + one.ends.late + one.ends.refused, 0)).toBe(3);
  });
  it("say why updates did not count, the most frequent reason first", () => {
    const found = reasons([round(1, "late", "too late"), round(2, "refused", "NaN"), round(3, "refused", "NaN"), round(4, "counted")]);
    expect(found).toEqual([
      { reason: "NaN", result: "refused", times: 2 },
      { reason: "too late", result: "late", times: 1 },
    ]);
  });
});

describe("a certificate", () => {
  const certificate = (refused: string) => ({ not_before: 0, not_after: 90 * 86_400, refused, reason: "" });
  it("stands as the coordinator would treat its holder", () => {
    expect(standing(certificate(""), 86_400).word).toBe("valid");
    expect(standing(certificate(""), 88 * 86_400)).toEqual({ tone: "warn", word: "expires soon" });
    expect(standing(certificate("revoked-key"), 0).word).toBe("revoked");
    expect(standing(certificate("expired-certificate"), 91 * 86_400).word).toBe("expired");
    expect(standing(certificate("expired-certificate"), -1).word).toBe("not valid yet");
    expect(standing(certificate("not-certified"), 0)).toEqual({ tone: "bad", word: "not taken" });
    expect(standing(null, 0).word).toBe("none");
  });
});

describe("what is amiss with a device", () => {
  it("is why it fits no run, and that two processes are it", () => {
    const device = (more: Partial<DeviceView>): DeviceView => ({ unfit: "", warning: "", ...more }) as DeviceView;
    expect(amiss(device({}))).toBe("");
    expect(amiss(device({ unfit: "run a: it lacks b", warning: "two processes use it" }))).toBe("Run a: it lacks b. Two processes use it.");
  });
});
