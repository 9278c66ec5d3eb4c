// The time, for what counts seconds on the screen. All that show it change together.
import { useSyncExternalStore } from "react";

let now = Date.now() / 1000;
const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    now = Date.now() / 1000;
    for (const one of listeners) one();
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (!listeners.size) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

/** Unix seconds, once a second. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => now);
}
