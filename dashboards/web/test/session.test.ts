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

describe("the session of a browser", () => {
  const notes = new Map<string, string>();
  const asked: string[] = [];

  /** What the API answers from now on. */
  function serve(status: number, body: unknown): void {
    vi.stubGlobal("fetch", async (url: URL, init: RequestInit) => {
      asked.push(`${init.method} ${url.pathname}${init.body ?? ""}`);
      return new Response(JSON.stringify(body), { status });
    });
  }

  it("is asked for only where one was noted, and is forgotten where it has ended", async () => {
    const { begin } = await import("../src/session");
    vi.stubGlobal("localStorage", {
      getItem: (key: string) => notes.get(key) ?? null,
      setItem: (key: string, value: string) => notes.set(key, value),
      removeItem: (key: string) => notes.delete(key),
    });
    const me = { name: "ada" };
    serve(200, me);
    expect(await begin(null)).toEqual({ me: null, why: "" });
    expect(asked).toEqual([]);
    expect(await begin("qo1_secret")).toEqual({ me, why: "" });
    expect([...notes.keys()]).toEqual(["quorate-session:/"]);
    expect(await begin(null)).toEqual({ me, why: "" });
    expect(asked).toEqual(['POST /v1/sessions/link{"token":"qo1_secret"}', "GET /v1/me"]);
    serve(503, { detail: "It is busy." });
    expect(await begin(null)).toEqual({ me: null, why: "It is busy." });
    expect(notes.size).toBe(1);
    serve(401, { detail: "It has ended." });
    expect(await begin(null)).toEqual({ me: null, why: "" });
    expect(notes.size).toBe(0);
    expect(await begin("used")).toEqual({ me: null, why: "It has ended." });
  });
});
