// The page: the login until there is a session, then the screen that the address names.
import { lazy, Suspense, useCallback, useEffect, useMemo, useState } from "react";
import { remove } from "./api/client";
import type { Me } from "./api/types";
import { Connection } from "./live/connection";
import { type Session, SessionContext } from "./live/context";
import { useRoute } from "./route";
import { Audit } from "./screens/Audit";
import { Login } from "./screens/Login";
import { Missing } from "./screens/Missing";
import { Runs } from "./screens/Runs";
import { begin, hasLink, noteSession, tokenOfLink } from "./session";
import { Shell } from "./Shell";
import { useTheme } from "./theme";

// Charts come with the screens that have some, so that the others are there sooner.
const Run = lazy(() => import("./screens/Run"));
const Compare = lazy(() => import("./screens/Compare"));
const Fleet = lazy(() => import("./screens/Fleet"));
const System = lazy(() => import("./screens/System"));
const Round = lazy(() => import("./screens/Round"));
const Device = lazy(() => import("./screens/Device"));
const StartRun = lazy(() => import("./screens/StartRun"));

type State = { me: Me } | { me: null; why: string };

export function App() {
  const [state, setState] = useState<State | null>(null);
  useTheme();
  useEffect(() => {
    const enter = () => void begin(tokenOfLink()).then(({ me, why }) => setState(me ? { me } : { me, why }));
    // A link that is opened in a tab that shows the page already.
    const opened = () => hasLink() && enter();
    enter();
    addEventListener("hashchange", opened);
    return () => removeEventListener("hashchange", opened);
  }, []);
  const leave = useCallback((why: string) => {
    noteSession(false);
    setState({ me: null, why });
  }, []);
  const enter = useCallback((me: Me) => {
    noteSession(true);
    setState({ me });
  }, []);
  const out = state !== null && state.me === null;
  useEffect(() => {
    if (out) document.title = "Log in · Quorate";
  }, [out]);
  if (state === null) return <p className="starting">Loading …</p>;
  if (state.me === null) return <Login why={state.why} onEntered={enter} />;
  return <Inside me={state.me} leave={leave} />;
}

function Inside({ me, leave }: { me: Me; leave: (why: string) => void }) {
  const ended = useCallback(() => leave("Your session has ended. Log in again."), [leave]);
  const [connection, setConnection] = useState<Connection | null>(null);
  useEffect(() => {
    const made = new Connection(ended);
    made.start();
    setConnection(made);
    return () => made.stop();
  }, [me.id, ended]);
  const session = useMemo<Session | null>(() => {
    if (!connection) return null;
    const logOut = () => {
      const gone = () => {
        connection.loggedOut();
        leave("You are logged out.");
      };
      void remove("/v1/sessions/current").then(gone, gone);
    };
    return { me, connection, logOut, ended };
  }, [me, connection, ended, leave]);
  if (!session) return null;
  return (
    <SessionContext value={session}>
      <Shell>
        <Suspense fallback={<p className="note">Loading …</p>}>
          <Screen />
        </Suspense>
      </Shell>
    </SessionContext>
  );
}

function Screen() {
  const route = useRoute();
  switch (route.screen) {
    case "runs":
      return <Runs />;
    case "run":
      return <Run key={route.run} id={route.run} section={route.section} />;
    case "compare":
      return <Compare />;
    case "fleet":
      return <Fleet />;
    case "system":
      return <System />;
    case "round":
      return <Round key={`${route.run}/${route.round}`} id={route.run} number={route.round} />;
    case "device":
      return <Device key={route.device} id={route.device} />;
    case "start":
      return <StartRun key={JSON.stringify(route.from)} from={route.from} />;
    case "audit":
      return <Audit />;
    case "missing":
      return <Missing path={route.path} />;
  }
}
