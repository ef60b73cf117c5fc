// Details of one worker, next to the table or above it.
import { html } from "/web/vendor/htm-preact.js";
import { age, bytes, compact, count, duration, known, NOTHING, percent, rate, usd, words } from "/web/format.js";
import { href } from "/web/router.js";
import { Badge, CopyButton, Shares } from "/web/parts.js";
import { ActButtons } from "./acts.js";
import { PeerReputation } from "./reputation.js";
import { Story } from "./story.js";
import { lagTone, pathsOf, reachedBy, seenTone, stateOf, toneOf } from "./worker_rows.js";

const PLANNER = { off: "off: all workers are used", advise: "only advises", act: "switches it on and off" };

export function WorkerDetail({ worker, byName, stalenessLimit, plannerMode, canAct, onAct }) {
  const state = stateOf(worker), isUrgent = state === "quarantined" || state === "banned";
  const reputation = worker.role === "peer" && html`<${PeerReputation} key=${worker.peer_id} peerId=${worker.peer_id} />`;
  return html`<div class="detail">
    <p class="detail-state"><${Badge} dot tone=${toneOf(state)}>${words(state)}<//> <span class="muted">${worker.reason}</span></p>
    <${ActButtons} canAct=${canAct} onAct=${onAct} />
    ${isUrgent && reputation}
    <${Facts} worker=${worker} byName=${byName} stalenessLimit=${stalenessLimit} plannerMode=${plannerMode} />
    ${!isUrgent && reputation}
    <h3>Chunks</h3>
    <${Shares} label="Chunk bytes received" parts=${[
      { label: "from the origin", value: worker.chunk_bytes_from_origin, colour: "series-3", text: bytes(worker.chunk_bytes_from_origin) },
      { label: "from peers", value: worker.chunk_bytes_from_peers, colour: "series-1", text: bytes(worker.chunk_bytes_from_peers) },
    ]} />
    <p class="muted small">Relayed to others: ${bytes(worker.chunk_bytes_sent)}</p>
    <${Story} of="peer" id=${worker.peer_id} newestFirst />
    <p><a href=${href("events", { subject: worker.peer_id })}>All its events</a></p>
  </div>`;
}

function Facts({ worker, byName, stalenessLimit, plannerMode }) {
  const lag = worker.version_lag;
  const facts = [
    ["Peer id", html`<code class="peer-id">${worker.peer_id}</code> <${CopyButton} text=${worker.peer_id} aria-label="Copy the peer id">${null}<//>`],
    worker.public_name && ["Public name", worker.public_name],
    ["Last seen", html`<span class=${seenTone(worker.last_seen_s)}>${age(worker.last_seen_s)}${worker.last_seen_s >= 1 ? " ago" : ""}</span>`],
    ["Version", html`${known(worker.active_version) ? worker.active_version : NOTHING}<span class=${lagTone(lag, stalenessLimit)}>${known(lag) ? (lag > 0 ? `, ${lag} behind` : ", the newest") : ""}</span>`],
    ["T_bcast", duration(worker.t_bcast_s)],
    ["Region", worker.region || NOTHING],
    ["Hardware", worker.hardware || NOTHING],
    ["Software", worker.software || NOTHING],
    ["Link", `${rate(worker.upload_bytes_per_s)} up, ${rate(worker.download_bytes_per_s)} down`],
    ["Links over", pathsOf(worker) || NOTHING],
    ["Reached", reachedBy(worker) || NOTHING],
    worker.dial_check && ["Dial check", worker.dial_check],
    worker.p2p && ["libp2p", worker.p2p],
    ["Parents", worker.parents.length ? html`${worker.parents.map((name, at) => html`${at ? ", " : ""}${byName.has(name) ? html`<a href=${href(`workers/${byName.get(name)}`)}>${name}</a>` : name}`)}` : NOTHING],
    ["Tokens/s", compact(worker.tokens_per_s)],
    ["Rollouts in flight", html`${count(worker.open_slots)} open, ${count(worker.concurrent_rollouts)} at once`],
    ["Accepted", html`${count(worker.accepted)} (${percent(worker.accept_share, 1)}), ${count(worker.dropped)} dropped`],
    ["Cost", worker.usd_per_hour > 0 ? `${usd(worker.usd_per_hour)} per hour` : "none is known"],
    ["Planner", { on: "pinned on", off: "pinned off" }[worker.pin] || PLANNER[plannerMode] || NOTHING],
    ["Joined", `${age(worker.joined_s_ago)} ago`],
  ].filter(Boolean);
  return html`<dl class="facts">${facts.map(([term, text]) => html`<div key=${term}><dt>${term}</dt><dd>${text}</dd></div>`)}</dl>`;
}
