// A value that components follow.
import { useEffect, useState } from "./vendor/htm-preact.js";

/** @returns {{get: () => any, set: (value: any) => void, subscribe: (listener: (value: any) => void) => () => void}} */
export function createStore(initial) {
  let value = initial;
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const listener of [...listeners]) listener(value);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** The store's value; the component is rendered again when it changes. */
export function useStore(store) {
  const [value, setValue] = useState(store.get());
  useEffect(() => {
    setValue(store.get()); // it may have changed between rendering and this effect
    return store.subscribe(setValue);
  }, [store]);
  return value;
}

/** Milliseconds of a clock that ticks, for ages on screen. */
export function useNow(intervalMs = 1000) {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), intervalMs);
    return () => clearInterval(timer);
  }, [intervalMs]);
  return now;
}
