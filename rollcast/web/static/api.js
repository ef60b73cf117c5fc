// Requests to the page's own server, with the reader's token.
import { useCallback, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { createStore } from "./store.js";

const KEY = "rollcast-token";
const DEADLINE_MS = 15_000;
const RETRY_MS = 5_000;
const PASSING = [0, 502, 503, 504]; // statuses of a server that is away, or whose store is

/** The token, or "" without one. It lives as long as the browser's tab: in no cookie, so that no other site can use it. */
export const token = createStore(stored());

function stored() {
  try { return sessionStorage.getItem(KEY) || ""; } catch { return ""; }
}

export function setToken(value) {
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch { /* storage is switched off: it holds until the page is closed */ }
  token.set(value);
}

/** Takes the token out of "#token=...", as a link of the command line carries it, and out of the address bar. */
export function takeTokenFromAddress() {
  const match = /^#(?:.*&)?token=([^&]+)/.exec(location.hash);
  if (!match) return;
  setToken(decodeURIComponent(match[1]));
  history.replaceState(null, "", location.pathname + location.search);
  dispatchEvent(new HashChangeEvent("hashchange")); // the router has read the address before this change
}

/** The server's error: its code, what happened, why, and the fix. */
export class ApiError extends Error {
  constructor(status, { code = "", what = "", cause = "", fix = "" } = {}) {
    super(what || "The server answered " + status);
    Object.assign(this, { status, code, what: what || "The server answered " + status, cause, fix });
  }
}

export const headers = (more = {}) => (token.get() ? { ...more, Authorization: "Bearer " + token.get() } : more);

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, signal: AbortSignal.timeout(options.deadlineMs || DEADLINE_MS), credentials: "omit", cache: "no-store" });
  } catch (error) {
    const what = error.name === "TimeoutError" ? "The server did not answer in time" : "The server cannot be reached";
    throw new ApiError(0, { what, fix: "The page retries until the server answers. If this continues, see the server's log." });
  }
  const text = await response.text();
  if (!response.ok) throw new ApiError(response.status, parsed(text));
  return parsed(text);
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return {}; }
}

/** GET; path with its query. Throws ApiError. */
export const get = (path, options = {}) => request(path, { method: "GET", headers: headers(), ...options });

/** POST of a JSON body. Throws ApiError. */
export function post(path, body, options = {}) {
  const type = { "Content-Type": "application/json" };
  return request(path, { method: "POST", headers: headers(type), body: JSON.stringify(body ?? {}), ...options });
}

/** "/api/v1/events" and {kind: "lease", q: ""} -> "/api/v1/events?kind=lease"; empty values are left out. */
export function withQuery(path, values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? path + "?" + new URLSearchParams(given) : path;
}

/** Calls again() some time after an error that passes by itself. */
export function useRetry(error, again) {
  useEffect(() => {
    if (!error || !PASSING.includes(error.status)) return undefined;
    const timer = setTimeout(again, RETRY_MS);
    return () => clearTimeout(timer);
  }, [error, again]);
}

/** {data, error, loading, reload} of a GET; requested again when the path or the token changes. A path of "" requests nothing. */
export function useGet(path) {
  const [state, setState] = useState({ data: null, error: null, loading: Boolean(path) });
  const newest = useRef(0);
  const reload = useCallback(async () => {
    const turn = (newest.current += 1);
    if (!path) return setState({ data: null, error: null, loading: false });
    setState((before) => ({ ...before, loading: true }));
    try {
      const data = await get(path);
      if (turn === newest.current) setState({ data, error: null, loading: false });
    } catch (error) {
      if (turn === newest.current) setState((before) => ({ ...before, error, loading: false }));
    }
  }, [path]);
  useEffect(() => {
    reload();
    const forget = token.subscribe(reload);
    return () => { newest.current += 1; forget(); };
  }, [reload]);
  useRetry(state.error, reload);
  return { ...state, reload };
}
