// Server-sent events by fetch(), so that the token travels in its header. One connection for all of the page.
import { useEffect, useState } from "./vendor/htm-preact.js";
import { ApiError, headers, token } from "./api.js";
import { createStore } from "./store.js";

const SILENT_MS = 5_000; // the server writes each second, if only a comment
const BACKOFF_MS = { first: 500, most: 10_000 };
const SETTLE_MS = 30; // pages that open subscribe to several topics at once

/** {name: "idle" | "connecting" | "live" | "lost" | "refused", sinceMs, error, lastMs}; lastMs: time of the last message. */
export const connection = createStore({ name: "idle", sinceMs: Date.now(), error: null, lastMs: 0 });

const subscriptions = new Set(); // {topics, onEvent}
const latest = new Map(); // topic -> data, of topics in the connection that is open
let open = null; // {controller, topics} of the connection in use
let settling = 0, retrying = 0, failures = 0;

function say(name, error = null) {
  const before = connection.get();
  connection.set({ name, error, sinceMs: before.name === name ? before.sinceMs : Date.now(), lastMs: before.lastMs });
}

function wanted() {
  return [...new Set([...subscriptions].flatMap((one) => one.topics))].sort().join(",");
}

/**
 * @param {string[]} topics
 * @param {(topic: string, data: any) => void} onEvent called with each message, and at once with the latest known ones
 * @param {(state: object) => void} [onState] follows the state of the connection
 * @returns {() => void} ends the subscription
 */
export function subscribe(topics, onEvent, onState) {
  const mine = { topics, onEvent };
  subscriptions.add(mine);
  for (const topic of topics) if (latest.has(topic)) onEvent(topic, latest.get(topic));
  const forget = onState ? connection.subscribe(onState) : () => {};
  settle();
  return () => {
    subscriptions.delete(mine);
    forget();
    settle();
  };
}

function settle() {
  clearTimeout(settling);
  settling = setTimeout(() => { if (!open || open.topics !== wanted()) connect(); }, SETTLE_MS);
}

/** Reconnect now instead of when the next attempt is due. */
export function reconnect() {
  failures = 0;
  connect();
}

function close() {
  clearTimeout(retrying);
  if (open) open.controller.abort();
  open = null;
}

async function connect() {
  const before = open && open.topics.split(",");
  close();
  const topics = wanted();
  for (const topic of latest.keys()) if (!topics.split(",").includes(topic)) latest.delete(topic);
  if (!topics) return say("idle");
  if (!before || connection.get().name !== "live") say(connection.get().lastMs ? "lost" : "connecting", connection.get().error);
  const mine = { controller: new AbortController(), topics };
  open = mine;
  let error = null;
  try {
    await read(mine);
  } catch (caught) {
    error = caught;
  }
  if (open !== mine) return; // replaced by a connection to other topics
  open = null;
  if (error instanceof ApiError && (error.status === 401 || error.status === 403)) return say("refused", error);
  say("lost", error);
  failures += 1;
  const ceiling = Math.min(BACKOFF_MS.most, BACKOFF_MS.first * 2 ** (failures - 1));
  retrying = setTimeout(connect, ceiling * (0.5 + 0.5 * Math.random()));
}

async function read(mine) {
  let watchdog = setTimeout(() => mine.controller.abort(), SILENT_MS);
  const alive = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => mine.controller.abort(), SILENT_MS);
  };
  try {
    const path = "/api/v1/stream?topics=" + encodeURIComponent(mine.topics);
    const options = { headers: headers({ Accept: "text/event-stream" }), signal: mine.controller.signal, credentials: "omit", cache: "no-store" };
    const response = await fetch(path, options);
    if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => ({})));
    await readMessages(response.body, mine, alive);
  } finally {
    clearTimeout(watchdog);
  }
}

async function readMessages(body, mine, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    if (open !== mine) return;
    failures = 0;
    connection.set({ name: "live", error: null, sinceMs: connection.get().name === "live" ? connection.get().sinceMs : Date.now(), lastMs: Date.now() });
    // A message of a large fleet arrives in many pieces: they are joined once, at its end.
    const isEnd = value.includes("\n\n") || (value.startsWith("\n") && pieces.at(-1)?.endsWith("\n"));
    pieces.push(value);
    if (!isEnd) continue;
    const parts = pieces.join("").split("\n\n");
    pieces = [parts.pop()];
    for (const part of parts) take(part);
  }
}

function take(text) {
  let topic = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("event:")) topic = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  if (!data.length) return;
  const value = JSON.parse(data.join("\n"));
  latest.set(topic, value);
  for (const one of [...subscriptions]) if (one.topics.includes(topic)) one.onEvent(topic, value);
}

token.subscribe(() => { if (subscriptions.size) reconnect(); });
addEventListener("online", reconnect);

/** The newest message of a topic, null before the first. */
export function useTopic(topic) {
  const [data, setData] = useState(() => latest.get(topic) ?? null);
  useEffect(() => subscribe([topic], (_topic, value) => setData(value)), [topic]);
  return data;
}

/** Calls onEvent with each message of these topics while the component is on screen. */
export function useMessages(topics, onEvent) {
  useEffect(() => subscribe(topics, onEvent), [topics.join(",")]);
}
