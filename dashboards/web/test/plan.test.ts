import { describe, expect, it } from "vitest";
import { brief, field, lean } from "../src/plan/fields";
import { statisticsOf } from "../src/plan/statistics";
import { TEMPLATE } from "../src/plan/template";
import { changed, lineFor, lineOf, read, written } from "../src/plan/text";

const TEXT = `# mine
name = "wine"

[task] # the part
learner = "a:b"
averaged = [
  "head.*", # only
  "tail.*",
]
epochs = 2 # passes

[finish]
`;

describe("what a field means", () => {
  it("is told in its first sentence", () => {
    expect(brief("Coefficient of FedProx (Li et al. 2020): adds a term. Zero is FedAvg.")).toBe("Coefficient of FedProx (Li et al. 2020): adds a term.");
    expect(brief("")).toBe("");
  });
});

describe("the text of a plan", () => {
  it("is read, or says on which line it is not TOML", () => {
    expect(read(TEXT).plan).toMatchObject({ name: "wine", task: { epochs: 2 }, finish: {} });
    expect(read("name = 'a'\n[task\n").mistake).toMatchObject({ line: 2 });
    expect(read("a = 1\na = 2\n").mistake?.line).toBe(2);
  });
  it("has each field on a line, and a missing one at its section", () => {
    expect(["name", "task", "task.learner", "task.averaged", "task.epochs", "finish"].map((one) => lineOf(TEXT, one.split(".")))).toEqual([2, 4, 5, 9, 10, 12]);
    expect(lineFor(TEXT, ["task", "mu"])).toBe(4);
    expect(lineFor(TEXT, ["cohort", "goal"])).toBeNull();
    expect(lineFor(TEXT, [])).toBeNull();
  });
  it("keeps comments and everything else where a field is changed, added or taken out", () => {
    expect(changed(TEXT, ["task", "epochs"], 5)).toBe(TEXT.replace("epochs = 2 #", "epochs = 5 #"));
    expect(changed(TEXT, ["task", "averaged"], undefined)).toBe(TEXT.replace(/averaged[^\]]*\]\n/, ""));
    expect(changed(TEXT, ["task", "mu"], 0.01)).toBe(TEXT.replace("# passes\n", "# passes\nmu = 0.01\n"));
    expect(changed(TEXT, ["finish", "rounds"], 7)).toBe(`${TEXT}rounds = 7\n`.replace("\n\nrounds", "\nrounds"));
    expect(changed(TEXT, ["cohort", "goal"], 3)).toBe(`${TEXT.trimEnd()}\n\n[cohort]\ngoal = 3\n`);
    expect(changed(TEXT, ["name"], 'a "b" # c')).toBe(TEXT.replace('"wine"', '"a \\"b\\" # c"'));
  });
  it("means what was wanted also where it is written in another way", () => {
    for (const text of ["task = { epochs = 2, mu = 1.0 }\n", "task.epochs = 2\ntask.mu = 1.0\n", "[task]\nepochs = 2; \n".replace(";", ""), 'task = { mu = 1.0, epochs = 2 } # "#"\n'])
      expect(read(changed(text, ["task", "epochs"], 9)).plan).toMatchObject({ task: { epochs: 9 } });
    expect(read(changed("task.mu = 1.0\n", ["task", "epochs"], 9)).plan).toEqual({ task: { mu: 1, epochs: 9 } });
    expect(read(changed('"a.b" = 1\n', ["a", "b"], 2)).plan).toEqual({ "a.b": 1, a: { b: 2 } });
  });
  it("is left alone where it is not TOML", () => expect(changed("name = ", ["name"], "x")).toBe("name = "));
  it("is written anew without what is null", () => expect(read(written({ name: "a", task: { mu: 0, steps: null } })).plan).toEqual({ name: "a", task: { mu: 0 } }));
  it("begins as TOML", () => expect(read(TEMPLATE).plan).toMatchObject({ finish: { rounds: 10 } }));
});

const SCHEMA = {
  properties: { name: { type: "string" }, cohort: { $ref: "#/$defs/Cohort", default: {} }, secure: { anyOf: [{ $ref: "#/$defs/Secure" }, { type: "null" }], default: null } },
  required: ["name"],
  $defs: {
    Cohort: { properties: { goal: { type: "integer", default: 256, description: "Reports. See ``select``; *more*." }, pool: { anyOf: [{ type: "integer" }, { type: "null" }], default: null } } },
    Secure: { properties: { profile: { enum: ["strict", "fast"], type: "string", default: "strict" } } },
  },
};

describe("the fields of a plan", () => {
  it("are as the schema says", () => {
    expect(field(SCHEMA, ["name"])).toMatchObject({ kind: "text", required: true });
    expect(field(SCHEMA, ["cohort", "goal"])).toEqual({ kind: "whole", choices: [], default: 256, required: false, meaning: "Reports. See select; more." });
    expect(field(SCHEMA, ["cohort", "pool"])?.kind).toBe("whole");
    expect(field(SCHEMA, ["secure", "profile"])?.choices).toEqual(["strict", "fast"]);
    expect(field(SCHEMA, ["cohort", "gaol"])).toBeNull();
  });
  it("need not be written where they say nothing new, but a section that asks for something is", () => {
    expect(lean({ name: "a", cohort: { goal: 256, pool: null } }, SCHEMA)).toEqual({ name: "a" });
    expect(lean({ name: "a", cohort: { goal: 3, pool: null }, secure: { profile: "strict" } }, SCHEMA)).toEqual({ name: "a", cohort: { goal: 3 }, secure: {} });
  });
});

describe("statistics that somebody types", () => {
  it("are what --statistic of `run create` takes", () => {
    expect(statisticsOf("")).toBeNull();
    expect(statisticsOf(" , ")).toBeNull();
    expect(statisticsOf("none")).toEqual({});
    expect(statisticsOf("*.mean, *.var >= 0\nbn.count>=0")).toEqual({ "*.mean": "statistic", "*.var": "non-negative", "bn.count": "non-negative" });
    expect(statisticsOf("none bn.mean")).toEqual({ none: "statistic", "bn.mean": "statistic" });
  });
});
