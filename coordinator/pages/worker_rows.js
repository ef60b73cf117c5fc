// Workers as the pages show them: objects from columns, tones of states, filters. No screen.

/** Peers send a message each second: seconds of silence after which to warn, and after which something is wrong. */
export const SILENT_S = { warn: 2.5, bad: 5 };

const TONES = {
  generating: "good", receiving: "good", serving: "good", active: "good", ready: "good", standby: "idle", left: "idle",
  starting: "warn", draining: "warn", drained: "warn", lost: "bad", quarantined: "bad", banned: "bad",
};

export const toneOf = (state) => TONES[state] || "idle";

let shaped = { key: "", Row: null };

/** {columns, rows} -> objects with a property for each column. They read the received rows and copy nothing: there may be thousands. */
export function asObjects({ columns, rows }) {
  const key = columns.join();
  if (shaped.key !== key) shaped = { key, Row: rowOf(columns) };
  const { Row } = shaped;
  return rows.map((values) => new Row(values));
}

function rowOf(columns) {
  class Row {
    constructor(values) { this.values = values; }
  }
  columns.forEach((column, at) => Object.defineProperty(Row.prototype, column, { get() { return this.values[at]; } }));
  return Row;
}

/**
 * The coordinator's decision about a worker takes precedence over the state that it reports. One that has all the work it
 * was given behind it is ready; the origin has no other work than to serve.
 */
export function stateOf(worker) {
  for (const decided of ["banned", "quarantined", "drained", "standby"]) if (worker[decided]) return decided;
  if (worker.state !== "idle") return worker.state;
  return worker.role === "origin" ? "serving" : "ready";
}

export function seenTone(seconds) {
  if (seconds === null || seconds === undefined || seconds <= SILENT_S.warn) return "";
  return seconds <= SILENT_S.bad ? "warn" : "bad";
}

/** How others reach a worker, with its kind of NAT if it cannot be dialed. */
export const reachedBy = (worker) => {
  if (!worker.reachability || worker.reachability === "dialable") return worker.reachability || "";
  return worker.nat && worker.nat !== "unknown" ? `${worker.reachability} (${worker.nat})` : worker.reachability;
};

/** Paths of its chunk links: "LAN, hole-punched"; empty without a link. */
export const pathsOf = (worker) => (worker.transport || "").replaceAll("+", ", ");

/** Every publication leaves all workers one version behind for a while; beyond S their rollouts cannot be trained on. */
export function lagTone(lag, stalenessLimit) {
  if (!lag || lag < 0) return "";
  return stalenessLimit !== null && stalenessLimit !== undefined && lag > stalenessLimit ? "bad" : lag > 1 ? "warn" : "";
}

/** Rows whose text has all words of `text`, with this state and region; "" matches all. */
export function filtered(workers, { text = "", state = "", region = "" }) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  return workers.filter((one) => (!state || stateOf(one) === state) && (!region || one.region === region)
    && (!wanted.length || hasAll(one, wanted)));
}

function hasAll(one, wanted) {
  const text = [one.name, one.peer_id, one.public_name, one.region, one.hardware, one.state, one.reason, one.transport, one.reachability, one.nat, one.software]
    .join("\n").toLowerCase();
  return wanted.every((word) => text.includes(word));
}

const ORDER = ["generating", "receiving", "serving", "ready", "starting", "draining", "standby", "drained", "lost", "quarantined", "banned", "left"];

/** [[state, number of workers]] in the order of ORDER. */
export function stateCounts(workers) {
  const counts = new Map();
  for (const one of workers) counts.set(stateOf(one), (counts.get(stateOf(one)) || 0) + 1);
  const place = (state) => (ORDER.includes(state) ? ORDER.indexOf(state) : ORDER.length);
  return [...counts].sort((one, other) => place(one[0]) - place(other[0]));
}

export const regionsOf = (workers) => [...new Set(workers.map((one) => one.region).filter(Boolean))].sort();
