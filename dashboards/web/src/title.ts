// The title of the page: which run and which screen, so that tabs, history and bookmarks can be told apart.
import { type Route, RUN_SECTIONS, type RunSection } from "./route";

export const SECTION_NAMES: Readonly<Record<RunSection, string>> = {
  live: "Live",
  secure: "Secure aggregation",
  privacy: "Privacy budget",
  datacenter: "Datacenter",
  checkpoints: "Checkpoints",
};
export const SECTIONS = RUN_SECTIONS.map((section) => [section, SECTION_NAMES[section]] as const);

export function titleOf(route: Route): string {
  return [...parts(route), "Quorate"].join(" · ");
}

function parts(route: Route): string[] {
  switch (route.screen) {
    case "runs":
      return ["Runs"];
    case "run":
      return [route.run, SECTION_NAMES[route.section]];
    case "round":
      return [route.run, `Round ${route.round}`];
    case "device":
      return [route.device, "Device"];
    case "start":
      return route.from ? [`${route.from.run}, version ${route.from.version}`, "Start a run"] : ["Start a run"];
    case "compare":
      return ["Compare runs"];
    case "fleet":
      return ["Fleet"];
    case "system":
      return ["System"];
    case "audit":
      return ["Audit"];
    case "missing":
      return ["No such screen"];
  }
}
