// The page of one run. Reads /api/v1/status/stream and draws; it never sends anything.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const NOTHING = "–";
const STALE_AFTER_MS = 4000; // the stream has a message a second
const STATE_CLASS = {
  generating: "good", receiving: "good", serving: "good", active: "good", idle: "idle", starting: "warn", draining: "warn",
  lost: "bad", left: "idle", standby: "idle", quarantined: "bad",
};

let latest = null;
let lastMessageAt = 0;
let hoverX = null;

const byId = (id) => document.getElementById(id);
const known = (value) => value !== null && value !== undefined;

// ---------------------------------------------------------------- words and numbers

function fixed(value, digits) {
  return known(value) ? Number(value).toFixed(digits) : NOTHING;
}

function count(value) {
  return known(value) ? Number(value).toLocaleString("en-US") : NOTHING;
}

function compact(value) {
  if (!known(value)) return NOTHING;
  if (value < 1000) return String(Math.round(value));
  if (value < 1e6) return (value / 1e3).toFixed(value < 1e4 ? 2 : 1) + "k";
  return (value / 1e6).toFixed(2) + "M";
}

function percent(ratio) {
  return known(ratio) ? (100 * ratio).toFixed(ratio > 0 && ratio < 0.1 ? 1 : 0) + " %" : NOTHING;
}

function bytes(value) {
  if (!known(value)) return NOTHING;
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return (unit && value < 100 ? value.toFixed(1) : Math.round(value)) + " " + units[unit];
}

function seconds(value) {
  if (!known(value)) return NOTHING;
  if (value < 1) return Math.round(value * 1000) + " ms";
  if (value < 10) return value.toFixed(1) + " s";
  if (value < 60) return Math.round(value) + " s";
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return minutes + " min " + Math.round(value % 60) + " s";
  return Math.floor(minutes / 60) + " h " + (minutes % 60) + " min";
}

const words = (name) => String(name).replaceAll("_", " ");
const names = (list) => list.slice(0, 3).join(", ") + (list.length > 3 ? " + " + (list.length - 3) : "");

// ---------------------------------------------------------------- elements

function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  if (options.class) element.className = options.class;
  if (known(options.text)) element.textContent = options.text;
  if (options.title) element.title = options.title;
  if (options.label) element.dataset.label = options.label;
  element.append(...children);
  return element;
}

function shape(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (known(text)) element.textContent = text;
  return element;
}

function setText(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

function setFigure(id, text) {
  const [figure, ...unit] = text.split(" ");
  const parts = [figure];
  if (unit.length) parts.push(make("span", { class: "unit", text: " " + unit.join(" ") }));
  byId(id).replaceChildren(...parts);
}

// ---------------------------------------------------------------- the parts of the page

function drawHead(status) {
  document.title = status.run_name + " · step " + (status.step ?? 0) + " · Rollcast";
  for (const element of document.querySelectorAll("[data-text]")) {
    const value = status[element.dataset.text];
    element.textContent = known(value) ? String(value) : NOTHING;
  }
  const phase = byId("phase");
  phase.textContent = words(status.phase);
  phase.className = "pill" + (status.phase === "finished" ? " done" : status.phase === "stopped" ? " ended" : "");
}

function drawProgress(status) {
  const bar = byId("bar");
  const share = status.steps ? Math.min(1, (status.step || 0) / status.steps) : 0;
  bar.setAttribute("aria-valuemax", status.steps || 0);
  bar.setAttribute("aria-valuenow", status.step || 0);
  byId("bar-fill").style.width = (100 * share).toFixed(2) + "%";
  setText("elapsed", known(status.elapsed_s) ? "running for " + seconds(status.elapsed_s) : "");
  const detail = status.learner_detail ? ": " + status.learner_detail : "";
  setText("learner", status.learner_phase ? words(status.learner_phase) + detail : "has not connected yet");
  setText("engines", engineWords(status.mismatch));
  const since = known(status.waiting_since_s) && status.waiting_for ? ", for " + seconds(status.waiting_since_s) : "";
  setText("waiting", status.waiting_for ? status.waiting_for + since : "nothing");
  setText("next", status.next || NOTHING);
}

/** How far reported log-probabilities are from the learner's and draws from random ones, or the alarm. */
function engineWords(mismatch) {
  if (!mismatch) return "no log-probabilities reported yet";
  const reported = "k3-KL " + mismatch.kl_k3.toExponential(1) + " nats a token, mean ratio " + fixed(mismatch.ratio_mean, 3)
    + ", " + percent(mismatch.outside_share) + " outside the clip";
  const missing = percent(Math.max(0, mismatch.sampling_lacks_share)) + " of the randomness missing";
  const figures = (mismatch.reported_share ? reported : "no log-probabilities reported") + ", " + missing;
  return mismatch.alarm ? mismatch.alarm + " · all: " + figures : "agree with the learner: " + figures;
}

function drawTiles(status) {
  const t = status.t_bcast_s || {};
  setFigure("reward-now", fixed(status.reward_train, 3));
  const after = known(status.reward_after) ? fixed(status.reward_after, 2) : "…";
  setText("reward-held-out", fixed(status.reward_before, 2) + " → " + after);
  setText("version-note", "published every " + (status.publish_every_steps === 1 ? "step" : status.publish_every_steps + " steps"));
  setFigure("t-bcast", seconds(t.p50));
  setText("t-bcast-note", "p50 · p95 " + seconds(t.p95));
  setFigure("tokens", compact(status.tokens_per_s));
  const working = peersOf(status, (one) => one.role === "peer");
  setText("tokens-note", working + (working === 1 ? " peer" : " peers"));
  setFigure("utilisation", percent(status.learner_utilisation));
  setFigure("peer-bytes", percent(status.peer_byte_share));
}

function movingAverage(values, weight = 0.8) {
  let total = 0, mass = 0;
  return values.map((value) => {
    total = weight * total + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return total / mass;
  });
}

function path(xs, ys) {
  return xs.map((x, index) => (index ? "L" : "M") + x.toFixed(1) + " " + ys[index].toFixed(1)).join("");
}

function drawReward(status) {
  const svg = byId("reward-chart");
  const width = svg.clientWidth, height = svg.clientHeight;
  const left = 34, right = 14, top = 12, bottom = 24;
  const history = status.reward_history || [];
  const steps = history.map((point) => point[0]), rewards = history.map((point) => point[1]);
  const marks = [status.reward_before, status.reward_after].filter(known);
  const most = Math.max(1, ...rewards, ...marks), least = Math.min(0, ...rewards, ...marks);
  const lastStep = Math.max(status.steps || 1, ...steps.slice(-1));
  const x = (step) => left + (width - left - right) * step / lastStep;
  const y = (reward) => top + (height - top - bottom) * (most - reward) / (most - least);
  const parts = [];
  for (let tick = 0; tick <= 4; tick += 1) {
    const reward = least + (most - least) * tick / 4;
    parts.push(shape("line", { class: "grid", x1: left, x2: width - right, y1: y(reward), y2: y(reward) }));
    parts.push(shape("text", { x: left - 8, y: y(reward) + 4, "text-anchor": "end" }, reward.toFixed(2)));
  }
  for (let tick = 0; tick <= 4; tick += width < 420 ? 2 : 1) {
    const step = Math.round(lastStep * tick / 4);
    const anchor = tick === 0 ? "start" : tick === 4 ? "end" : "middle";
    parts.push(shape("text", { x: x(step), y: height - 6, "text-anchor": anchor }, tick === 4 ? "step " + step : step));
  }
  const smoothed = movingAverage(rewards);
  if (steps.length) {
    parts.push(shape("path", { class: "raw", d: path(steps.map(x), rewards.map(y)) }));
    parts.push(shape("path", { class: "smooth", d: path(steps.map(x), smoothed.map(y)) }));
  } else {
    parts.push(shape("text", { class: "nothing", x: width / 2, y: height / 2 - 4, "text-anchor": "middle" }, "no batch trained yet"));
  }
  const held = [["before", status.reward_before, 0], ["after", status.reward_after, status.step || 0]];
  for (const [name, reward, step] of held) {
    if (!known(reward)) continue;
    const before = name === "before";
    parts.push(shape("circle", { class: "mark", cx: x(step), cy: y(reward), r: 6 }));
    parts.push(shape("text", {
      class: "mark-text", x: x(step) + (before ? 11 : -11), y: y(reward) + 18, "text-anchor": before ? "start" : "end",
    }, name + " " + fixed(reward, 2)));
  }
  setText("reward-readout", readout(parts, steps, rewards, smoothed, x, top, height - bottom));
  svg.setAttribute("viewBox", "0 0 " + width + " " + height);
  svg.replaceChildren(...parts);
}

// Under the pointer: the nearest step's figures; otherwise the newest.
function readout(parts, steps, rewards, smoothed, x, top, bottom) {
  if (!steps.length) return "";
  let nearest = steps.length - 1;
  if (hoverX !== null) {
    nearest = steps.reduce((best, step, index) =>
      Math.abs(x(step) - hoverX) < Math.abs(x(steps[best]) - hoverX) ? index : best, 0);
    parts.push(shape("line", { class: "cursor", x1: x(steps[nearest]), x2: x(steps[nearest]), y1: top, y2: bottom }));
  }
  return "step " + steps[nearest] + ": " + fixed(rewards[nearest], 3) + ", smoothed " + fixed(smoothed[nearest], 3);
}

function drawStaleness(status) {
  const svg = byId("staleness-chart");
  const width = svg.clientWidth, height = svg.clientHeight, top = 24, bottom = 24;
  const histogram = status.staleness_histogram || {};
  const limit = (status.staleness || {}).age_max || status.staleness_limit || 0;  // the gate in force
  const oldest = Math.max(limit, ...Object.keys(histogram).map(Number));
  const total = Object.values(histogram).reduce((sum, value) => sum + value, 0);
  const most = Math.max(1, ...Object.values(histogram));
  const slot = Math.max(0, width - 40) / (oldest + 1), column = Math.min(56, slot * 0.66);
  const parts = [shape("line", { class: "grid", x1: 0, x2: width, y1: height - bottom, y2: height - bottom })];
  for (let age = 0; age <= oldest; age += 1) {
    const value = histogram[age] || 0;
    const tall = (height - top - bottom) * value / most, centre = slot * (age + 0.5);
    parts.push(shape("rect", {
      class: "column", x: centre - column / 2, y: height - bottom - tall, width: column, height: tall, rx: 3,
    }));
    if (oldest <= 12 || age % Math.ceil(oldest / 12) === 0) {
      parts.push(shape("text", { x: centre, y: height - 7, "text-anchor": "middle" }, age));
    }
    if (value && oldest <= 12) {
      const label = percent(value / total);
      parts.push(shape("text", { class: "value", x: centre, y: height - bottom - tall - 6, "text-anchor": "middle" }, label));
    }
  }
  const edge = slot * (limit + 1) + 3;
  parts.push(shape("line", { class: "limit", x1: edge, x2: edge, y1: 4, y2: height - bottom }));
  // The longer label has room before the line only: nothing trained is as old as the gate for long.
  const isS = limit === status.staleness_limit;
  const place = isS ? { x: edge + 5 } : { x: edge - 5, "text-anchor": "end" };
  parts.push(shape("text", { class: "limit-text", y: 14, ...place }, (isS ? "S=" : "gate=") + limit));
  setText("staleness-note", known(status.staleness_max_trained)
    ? "oldest trained " + status.staleness_max_trained + ", limit " + limit : "limit " + limit);
  svg.setAttribute("viewBox", "0 0 " + width + " " + height);
  svg.replaceChildren(...parts);
}

function outcome(kind, label, value, detail) {
  const item = make("li", {}, make("span", { class: "swatch " + kind }), label, make("b", { text: count(value) }));
  if (detail) item.append(make("span", { class: "detail", text: "  (" + detail + ")" }));
  return item;
}

function drawRollouts(status) {
  const rollouts = status.rollouts || {};
  const reasons = Object.entries(rollouts.dropped || {}).filter((entry) => entry[1] > 0).sort((a, b) => b[1] - a[1]);
  const dropped = reasons.reduce((sum, entry) => sum + entry[1], 0);
  const shares = [["trained", rollouts.trained || 0], ["open", rollouts.open || 0], ["dropped", dropped]];
  byId("stack").replaceChildren(...shares.filter((share) => share[1] > 0).map(([kind, value]) => {
    const part = make("div", { class: kind, title: kind + " " + count(value) });
    part.style.flex = value + " 1 0";
    return part;
  }));
  const detail = reasons.map(([reason, value]) => words(reason) + " " + count(value)).join(", ");
  byId("reasons").replaceChildren(
    outcome("trained", "trained", rollouts.trained), outcome("open", "open", rollouts.open), outcome("dropped", "dropped", dropped, detail));
  setText("rollouts-note", count(rollouts.issued) + " issued, " + count(rollouts.accepted) + " accepted");
}

function peerRow(peer) {
  const cell = (label, text, kind = "num", sub = "") => {
    const element = make("td", { class: kind, label, text });
    if (sub) element.append(make("span", { class: "sub", text: sub }));
    return element;
  };
  const name = make("td", { class: "wide", title: peer.peer_id }, make("span", { class: "name", text: peer.name || peer.peer_id.slice(-8) }));
  name.append(make("span", { class: "sub", text: (peer.role === "origin" ? "origin" : peer.hardware || "peer") + " · …" + peer.peer_id.slice(-6) }));
  const state = peer.quarantined ? "quarantined" : peer.state;
  const why = make("td", { class: "why" }, make("span", { class: "state " + (STATE_CLASS[state] || "idle"), text: words(state) }));
  if (peer.reason) why.append(make("span", { class: "sub", text: peer.reason }));
  const lag = peer.version_lag;
  const version = cell("Version", known(peer.active_version) ? String(peer.active_version) : NOTHING, "num",
    known(lag) ? (lag > 0 ? lag + " behind" : "newest") : "");
  if (known(peer.t_bcast_s)) {
    version.append(make("span", { class: "sub", text: "in " + seconds(peer.t_bcast_s), title: "from its announcement to this peer's verified copy" }));
  }
  if (lag > latest.staleness_limit) version.classList.add("bad-text");
  const engine = peer.role === "peer";
  const seen = cell("Seen", seconds(peer.last_seen_s) + " ago");
  if (peer.last_seen_s > 2.5) seen.classList.add(peer.last_seen_s > 5 ? "bad-text" : "warn-text");
  return make("tr", {}, name, why, version,
    cell("Tokens/s", engine ? compact(peer.tokens_per_s) : NOTHING, "num", engine ? peer.open_slots + " open" : ""),
    cell("Accepted", engine ? count(peer.accepted) : NOTHING), cell("Dropped", engine ? count(peer.dropped) : NOTHING),
    cell("From origin", bytes(peer.chunk_bytes_from_origin)), cell("From peers", bytes(peer.chunk_bytes_from_peers)),
    cell("Relayed", bytes(peer.chunk_bytes_sent)),
    cell("Fetches from", names(peer.parents || []) || (engine ? NOTHING : "learner"), "parents"), seen);
}

function peersOf(status, which) {
  return (status.peers_by_state || []).filter(which).reduce((sum, one) => sum + one.count, 0);
}

function drawPeers(status) {
  const peers = [...(status.peers || [])].sort((a, b) => (a.role < b.role ? -1 : a.role > b.role ? 1 : a.name < b.name ? -1 : 1));
  byId("peers").replaceChildren(...peers.map(peerRow));
  byId("no-peers").hidden = peers.length > 0;
  document.querySelector(".peers").hidden = peers.length === 0;
  const workers = peers.filter((peer) => peer.role === "peer");
  const worst = Math.max(...workers.map((peer) => peer.version_lag ?? 0));
  const leftOut = status.peers_left_out ? "; " + status.peers_left_out + " more, further ahead, are not listed" : "";
  const working = peersOf(status, (one) => one.role === "peer");
  setText("peers-note", workers.length ? working + " working, worst lag " + worst + (worst === 1 ? " version" : " versions") + leftOut : "");
}

function draw() {
  if (!latest) return;
  for (const part of [drawHead, drawProgress, drawTiles, drawReward, drawStaleness, drawRollouts, drawPeers]) part(latest);
}

// ---------------------------------------------------------------- the stream

function showConnection() {
  const link = byId("connection"), notice = byId("notice");
  const ended = latest && (latest.phase === "finished" || latest.phase === "stopped");
  const fresh = performance.now() - lastMessageAt < STALE_AFTER_MS;
  link.className = "link" + (latest && fresh ? " live" : ended ? "" : " lost");
  setText("connection", latest && fresh ? "live" : ended ? "ended" : latest ? "reconnecting" : "connecting…");
  notice.hidden = !latest || fresh;
  if (notice.hidden) return;
  const age = seconds(Math.round((performance.now() - lastMessageAt) / 1000));
  notice.textContent = ended
    ? "The run has " + latest.phase + " and its coordinator has stopped. These are its last figures."
    : "No word from the coordinator for " + age + ". Trying to reconnect; the figures below are that old.";
}

function listen() {
  const stream = new EventSource("/api/v1/status/stream");
  stream.onmessage = (message) => {
    latest = JSON.parse(message.data);
    lastMessageAt = performance.now();
    draw();
    showConnection();
  };
  // A refused connection closes the source for good, so we open another.
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 1000 + 1000 * Math.random());
  };
}

byId("reward-chart").addEventListener("pointermove", (event) => { hoverX = event.offsetX; draw(); });
byId("reward-chart").addEventListener("pointerleave", () => { hoverX = null; draw(); });
addEventListener("resize", draw);
setInterval(showConnection, 1000);
listen();
