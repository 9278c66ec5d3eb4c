import { describe, expect, it } from "vitest";
import type { ExchangeView } from "../src/api/types";
import { missing, type SecureRound, seen } from "../src/secure";

function exchange(name: ExchangeView["exchange"], came: number, expected: number, more: Partial<ExchangeView> = {}): ExchangeView {
  return { exchange: name, came, expected, needed: 5, bytes: 0, began_at: 0, ended_at: 1, ...more } as ExchangeView;
}

describe("who did not come to an exchange", () => {
  it.each(["agree", "unmask"] as const)("was not needed where %s ended with enough", (name) => {
    expect(missing(exchange(name, 5, 6))).toBe("1 more not needed");
  });
  it.each(["advertise", "share", "mask"] as const)("has vanished, or came too late, where %s ended", (name) => {
    expect(missing(exchange(name, 5, 6))).toBe("1 vanished, or came too late");
  });
  it("has vanished, or came too late, where an exchange ended with too few", () => {
    expect(missing(exchange("unmask", 4, 6))).toBe("2 vanished, or came too late");
  });
  it("is nobody while it is under way, or where all came", () => {
    expect(missing(exchange("unmask", 5, 6, { ended_at: null }))).toBe("");
    expect(missing(exchange("mask", 6, 6))).toBe("");
  });
});

describe("what the coordinator saw", () => {
  it("names those who vanished before they masked, and nobody who was not needed at the end", () => {
    const exchanges = [exchange("share", 8, 8), exchange("mask", 6, 8), exchange("agree", 6, 6), exchange("unmask", 5, 6)];
    const round = { weight: 60, secure: { opened: true, exchanges } } as unknown as SecureRound;
    expect(seen(round)).toContain("the sum of 6 updates");
    expect(seen(round)).toContain("2 vanished before they masked");
    expect(seen(round).match(/vanished/g)).toHaveLength(1);
  });
});
