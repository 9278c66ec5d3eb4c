// Light or dark: as the system prefers, until the reader chooses. The choice is kept in this browser.
import { useEffect, useSyncExternalStore } from "react";

export type Theme = "light" | "dark";
const KEY = "quorate-theme";
const prefersLight = matchMedia("(prefers-color-scheme: light)");
const listeners = new Set<() => void>();

function chosen(): Theme | null {
  const found = localStorage.getItem(KEY);
  return found === "light" || found === "dark" ? found : null;
}

function current(): Theme {
  return chosen() ?? (prefersLight.matches ? "light" : "dark");
}

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  prefersLight.addEventListener("change", listener);
  return () => {
    listeners.delete(listener);
    prefersLight.removeEventListener("change", listener);
  };
}

export function useTheme(): [Theme, () => void] {
  const theme = useSyncExternalStore(subscribe, current);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  const toggle = () => {
    localStorage.setItem(KEY, theme === "dark" ? "light" : "dark");
    for (const listener of listeners) listener();
  };
  return [theme, toggle];
}

/** The colour of a token of the style sheet, for canvases. */
export function colour(token: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${token}`).trim();
}
