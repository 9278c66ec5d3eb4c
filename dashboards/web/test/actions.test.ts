import { describe, expect, it } from "vitest";
import { offers, reason } from "../src/actions";
import type { Me, Role, RunView } from "../src/api/types";

const who = (role: Role, scope = "*"): Me => ({ id: "k1", grants: [{ role, scope }], by: "key", expires_at: 0 }) as Me;
const run = (status: RunView["status"], exhausted = "") => ({ run: "wine", status, exhausted });
const allowed = (all: ReturnType<typeof offers>) => all.filter((one) => one.allowed).map((one) => one.action);

describe("what can be done with a run", () => {
  it("follows its status", () => {
    const named = (status: RunView["status"]) => offers(run(status), who("owner")).map((one) => one.action);
    expect(named("running")).toEqual(["pause", "stop"]);
    expect(named("paused")).toEqual(["resume", "stop"]);
    expect(named("finished")).toEqual([]);
    expect(named("stopped")).toEqual([]);
  });
  it("is to stop a Flower run, whose ServerApp decides all else", () => {
    const flower = { app: "acme/vision", version: "1.0.0", messages: 0, replies: 0, errors: 0 };
    const named = (status: RunView["status"]) => offers({ ...run(status), flower }, who("owner")).map((one) => one.action);
    expect(named("running")).toEqual(["stop"]);
    expect(named("failed")).toEqual([]);
  });
  it("is to advance it for its owner, only where it is exhausted", () => {
    const exhausted = run("running", "all devices have signed");
    expect(allowed(offers(exhausted, who("owner")))).toEqual(["advance", "pause", "stop"]);
    expect(allowed(offers(exhausted, who("operator")))).toEqual(["pause", "stop"]);
    expect(reason(offers(exhausted, who("operator")))).toBe("For this run you need the role owner to advance it.");
  });
  it("is nothing for a viewer, nor outside the scope, with the reason", () => {
    const sentence = "For this run you need the role operator to pause or stop it.";
    for (const me of [who("viewer"), who("owner", "beer*")]) {
      expect(allowed(offers(run("running"), me))).toEqual([]);
      expect(reason(offers(run("running"), me))).toBe(sentence);
    }
    const both = reason(offers(run("paused", "spent"), who("viewer")));
    expect(both).toBe("For this run you need the role operator to resume or stop it, and the role owner to advance it.");
    expect(reason(offers(run("running"), who("operator")))).toBe("");
  });
});
