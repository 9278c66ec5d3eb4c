// What surrounds each screen: the navigation, who reads, the theme, and whether the connection is there.
import { type ReactNode, useEffect, useRef } from "react";
import { Mark } from "./components/Mark";
import { Shape } from "./components/parts";
import { ago, clock, many } from "./format";
import { useLive, useSession } from "./live/context";
import { inOrder } from "./live/state";
import { health } from "./progress";
import { type Route, roundPath, runPath, useRoute } from "./route";
import { may } from "./roles";
import { useTheme } from "./theme";
import { SECTIONS, titleOf } from "./title";
import { useNow } from "./useNow";

const MOST_RUNS = 8;

export function Shell({ children }: { children: ReactNode }) {
  const route = useRoute();
  const main = useRef<HTMLElement>(null);
  const place = JSON.stringify(route);
  const before = useRef(place);
  useEffect(() => {
    document.title = titleOf(route);
    // On a phone the navigation is scrolled sideways.
    for (const here of document.querySelectorAll(".side [aria-current=page]")) here.scrollIntoView({ block: "nearest", inline: "center" });
    if (before.current === place) return;
    before.current = place;
    main.current?.focus();
    scrollTo(0, 0);
  }, [place]);
  return (
    <div className="shell">
      <a className="skip" href="#main" onClick={(event) => skip(event, main.current)}>
        Skip to the content
      </a>
      <Navigation route={route} />
      <main ref={main} id="main" tabIndex={-1}>
        <Lost />
        {children}
      </main>
    </div>
  );
}

function skip(event: { preventDefault: () => void }, main: HTMLElement | null): void {
  event.preventDefault(); // the part behind # is the address of the screen
  main?.focus();
}

function Navigation({ route }: { route: Route }) {
  const { me } = useSession();
  const live = useLive();
  const shown = inOrder(live.runs).slice(0, MOST_RUNS);
  const at = route.screen === "run" || route.screen === "round" ? route.run : null;
  return (
    <nav className="side" aria-label="Screens">
      <a className="brand" href="#/runs">
        <Mark /> Quorate
      </a>
      <ul>
        <Item href="#/runs" here={route.screen === "runs" || route.screen === "start"}>
          Runs
        </Item>
        {shown.map((run) => (
          <li key={run.run} className="run-item">
            <a href={runPath(run.run)} aria-current={at === run.run ? "true" : undefined}>
              <span className={`tone-${health(run).tone}`}>
                <Shape tone={health(run).tone} />
              </span>
              <span className="cut" title={run.run}>{run.run}</span>
            </a>
            {at === run.run && (route.screen === "run" || route.screen === "round") && (
              <ul>
                {SECTIONS.filter(([section]) => section !== "privacy" || run.privacy).map(([section, title]) => (
                  <Item key={section} href={runPath(run.run, section)} here={route.screen === "run" && route.section === section}>
                    {title}
                  </Item>
                ))}
                {route.screen === "round" && <Item href={roundPath(run.run, route.round)} here>{`Round ${route.round}`}</Item>}
              </ul>
            )}
          </li>
        ))}
        <Item href="#/compare" here={route.screen === "compare"}>
          Compare runs
        </Item>
        {may(me, "viewer", "*") && (
          <>
            <Item href="#/fleet" here={route.screen === "fleet" || route.screen === "device"}>
              Fleet
            </Item>
            <Item href="#/system" here={route.screen === "system"}>
              System
            </Item>
          </>
        )}
        {me.grants.some((grant) => grant.role === "owner") && (
          <Item href="#/audit" here={route.screen === "audit"}>
            Audit
          </Item>
        )}
      </ul>
      <Reader />
    </nav>
  );
}

function Item({ href, here, children }: { href: string; here: boolean; children: ReactNode }) {
  return (
    <li>
      <a href={href} aria-current={here ? "page" : undefined}>
        {children}
      </a>
    </li>
  );
}

function Reader() {
  const { me, logOut } = useSession();
  const [theme, toggle] = useTheme();
  const role = may(me, "owner", "*") ? "owner" : me.grants.map((grant) => `${grant.role} of ${grant.scope}`).join(", ");
  return (
    <div className="reader">
      <p className="note cut" title={me.id}>
        {me.id}
        <br />
        {role}
      </p>
      <button type="button" className="quiet" onClick={toggle}>
        {theme === "dark" ? "Light theme" : "Dark theme"}
      </button>
      <button type="button" className="quiet" onClick={logOut}>
        Log out
      </button>
    </div>
  );
}

function Lost() {
  const { link, runs } = useLive();
  const now = useNow();
  if (link.status !== "lost") return null;
  const since = link.since / 1000;
  return (
    <p className="lost" role="status">
      <Shape tone="warn" /> Connection lost since {clock(since, now)} ({ago(since, now)}). It is tried again;{" "}
      {Object.keys(runs).length ? `what you see of ${many(Object.keys(runs).length, "run")} is from then.` : "nothing has come yet."}
    </p>
  );
}
