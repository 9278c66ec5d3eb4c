import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

/** The page's address, and each address that was put into the browser's history in its place. */
const replaced: string[] = [];

beforeEach(() => {
  replaced.length = 0;
  vi.stubGlobal("document", { baseURI: "http://127.0.0.1:8470/dashboard/" });
  vi.stubGlobal("history", {
    replaceState: (_: unknown, __: string, address: string) => {
      replaced.push(address);
      open(address);
    },
  });
});
afterEach(() => vi.unstubAllGlobals());

function open(address: string): void {
  const { pathname, search, hash } = new URL(address, "http://127.0.0.1:8470");
  vi.stubGlobal("location", { pathname, search, hash });
}

describe("a one-time link", () => {
  it("gives its token once, and leaves it neither in the address nor in the history", async () => {
    const { hasLink, tokenOfLink } = await import("../src/session");
    open("/dashboard/?a=1#login=qo1_secret");
    expect(hasLink()).toBe(true);
    expect(tokenOfLink()).toBe("qo1_secret");
    expect(replaced).toEqual(["/dashboard/?a=1"]);
    expect(location.hash).toBe("");
    expect(hasLink()).toBe(false);
    expect(tokenOfLink()).toBeNull();
  });
  it("is nothing else in the address, which stays as it is", async () => {
    const { tokenOfLink } = await import("../src/session");
    for (const address of ["/dashboard/", "/dashboard/#/live", "/dashboard/#login="]) {
      open(address);
      expect(tokenOfLink()).toBeNull();
    }
    expect(replaced).toEqual([]);
  });
});
