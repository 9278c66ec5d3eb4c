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
  it("names the sums of the groups, which are of fewer updates than the round", () => {
    const exchanges = [exchange("share", 12, 12), exchange("mask", 11, 12)];
    const secure = { opened: true, exchanges, groups: 4, fallen: 1, sums: [3, 2, 3] };
    const said = seen({ weight: 80, secure } as unknown as SecureRound);
    expect(said).toContain("saw the sums of 3 of 4 groups, of 2 to 3 updates each, their total weights (here 80, rounded, together)");
    expect(said).toContain("no sum of fewer than one group's");
    expect(said).toContain("Of 1 more it may have seen the sum as well");
    expect(said).not.toContain("the sum of 11");
    expect(seen({ weight: 80, secure: { ...secure, fallen: 0, sums: [3, 3] } } as unknown as SecureRound)).toContain("of 2 of 4 groups, of 3 updates each");
  });
});
