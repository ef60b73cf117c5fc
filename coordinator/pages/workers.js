// Workers: all members in one table with state, reason and figures, and the acts on them.
import { html, useMemo, useRef, useState } from "/web/vendor/htm-preact.js";
import { age, compact, count, duration, known, NOTHING, percent, plural, rate, usd, words } from "/web/format.js";
import { Badge, Button, Empty, PageHead, Select } from "/web/parts.js";
import { go, setParams } from "/web/router.js";
import { useTopic } from "/web/stream.js";
import { useFill, VirtualTable } from "/web/table.js";
import { ActButtons, ActDialog } from "./acts.js";
import { Aside } from "./aside.js";
import { useMay } from "./session.js";
import { WorkerDetail } from "./worker_detail.js";
import { asObjects, filtered, lagTone, pathsOf, reachedBy, regionsOf, seenTone, stateCounts, stateOf, toneOf } from "./worker_rows.js";

const keyOf = (worker) => worker.peer_id;

const seen = (one) => html`<span class=${seenTone(one.last_seen_s)}>${age(one.last_seen_s)}</span>`;
const state = (one) => html`<${Badge} dot tone=${toneOf(stateOf(one))}>${words(stateOf(one))}<//>`;
/** Hardware without the manufacturer, which is clear from the model. */
const hardware = (name) => (name || "").replace(/^(NVIDIA GeForce|NVIDIA|Apple|AMD|Intel) /, "");
/** Workers seen within the last seconds count as equal: an order that changes each second cannot be read. */
const silence = (one) => (seenTone(one.last_seen_s) ? one.last_seen_s : 0);
const number = (value) => (known(value) ? value : null);
const version = (one, limit) => html`${known(one.active_version) ? one.active_version : NOTHING}${one.version_lag > 0
  ? html` <span class=${`lag ${lagTone(one.version_lag, limit)}`} title=${plural(one.version_lag, "step") + " behind the newest"}>−${one.version_lag}</span>` : ""}`;

function Name({ one }) {
  return html`<span class="worker-name"><b>${one.name}</b>${one.role !== "peer" ? html` <span class="badge">${one.role}</span>` : ""}${one.pin === "on" || one.pin === "off"
    ? html` <span class="badge accent" title="pinned by an operator">pinned ${one.pin}</span>` : ""}${one.public_name ? html` <span class="muted">${one.public_name}</span>` : ""}</span>`;
}

const columnsFor = (stalenessLimit) => [
  { id: "name", title: "Worker", width: 158, grow: 1, value: (one) => one.name, cell: (one) => html`<${Name} one=${one} />` },
  { id: "state", title: "State and reason", width: 294, grow: 3, value: (one) => `${stateOf(one)} ${one.reason}`,
    cell: (one) => html`<span class="worker-why" title=${one.reason}><span class="worker-state">${state(one)}</span><span class="muted two-lines">${one.reason}</span></span>` },
  { id: "region", sparse: true, title: "Region", width: 86, grow: 0.2, rank: 3, value: (one) => one.region, cell: (one) => one.region || NOTHING },
  { id: "hardware", sparse: true, title: "Hardware", width: 124, grow: 1, rank: 7, value: (one) => one.hardware, cell: (one) => html`<span class="two-lines" title=${one.hardware}>${hardware(one.hardware) || NOTHING}</span>` },
  { id: "reached", sparse: true, title: "Reached", hint: "How other peers reach it", width: 118, grow: 0.3, rank: 4, value: (one) => reachedBy(one), cell: reached },
  { id: "link", sparse: true, title: "Upload", hint: "Measured upload", width: 88, end: true, down: true, rank: 6, value: (one) => number(one.upload_bytes_per_s), cell: (one) => rate(one.upload_bytes_per_s) },
  { id: "version", title: "Version", hint: "Held, and how many learner steps behind the newest", width: 80, end: true, down: true, rank: 1, value: (one) => number(one.version_lag), cell: (one) => version(one, stalenessLimit) },
  { id: "tokens", title: "Tokens/s", width: 76, end: true, down: true, rank: 1, value: (one) => number(one.tokens_per_s), cell: (one) => (one.role === "peer" ? compact(one.tokens_per_s) : NOTHING) },
  { id: "slots", title: "In flight", hint: "Rollouts in progress, of those it can generate at once", width: 78, end: true, down: true, rank: 8, value: (one) => number(one.open_slots),
    cell: (one) => (one.concurrent_rollouts !== 0 ? html`${count(one.open_slots)}<span class="muted">/${count(one.concurrent_rollouts)}</span>` : NOTHING) },
  { id: "accepted", sparse: true, title: "Accepted", hint: "Share of its rollouts that were accepted", width: 80, end: true, rank: 2, value: (one) => number(one.accept_share),
    cell: (one) => html`<span title=${`${count(one.accepted)} accepted, ${count(one.dropped)} dropped`}>${percent(one.accept_share, 1)}</span>` },
  { id: "t_bcast", sparse: true, title: "T_bcast", hint: "From the announcement of the newest version to its verified copy", width: 74, end: true, down: true, rank: 5, value: (one) => number(one.t_bcast_s), cell: (one) => duration(one.t_bcast_s) },
  { id: "price", sparse: true, title: "$/h", width: 66, end: true, down: true, rank: 9, value: (one) => number(one.usd_per_hour), cell: (one) => usd(one.usd_per_hour) },
  { id: "seen", title: "Last seen", hint: "Amber from 2.5 s of silence, red from 5 s", width: 84, end: true, down: true, value: (one) => silence(one), cell: seen },
];

function reached(one) {
  const over = pathsOf(one);
  const title = [reachedBy(one), one.dial_check, over && `links over ${over}`].filter(Boolean).join("; ");
  return html`<span class=${one.reachability === "dialable" ? "" : "muted"} title=${title}>${one.reachability || NOTHING}</span>`;
}

function card(one) {
  return html`<div class="worker-card">
    <div class="line"><${Name} one=${one} />${seen(one)}</div>
    <div class="line"><span class="two-lines">${state(one)} <span class="muted">${one.reason}</span></span></div>
    <div class="line muted"><span class="two-lines">${[one.region, one.reachability !== "dialable" && one.reachability, hardware(one.hardware)].filter(Boolean).join(" · ") || one.role}</span>
      <span>${known(one.version_lag) && one.version_lag > 0 ? `${one.version_lag} behind · ` : ""}${one.role === "peer" ? `${compact(one.tokens_per_s)} tok/s · ${percent(one.accept_share, 0)}` : ""}</span></div>
  </div>`;
}

export function Page({ overview, params, rest }) {
  const data = useTopic("workers"), canAct = useMay("operator");
  const [selected, setSelected] = useState(new Set());
  const [asked, setAsked] = useState(null); // {act, peers}
  const workers = useMemo(() => (data ? asObjects(data) : []), [data]);
  const rows = useMemo(() => filtered(workers, { text: params.q, state: params.state, region: params.region }), [workers, params.q, params.state, params.region]);
  const stalenessLimit = overview?.staleness_limit ?? null;
  const columns = useMemo(() => columnsFor(stalenessLimit), [stalenessLimit]);
  const sort = { id: params.sort || "seen", down: params.sort ? params.down === "1" : true };
  const openedId = rest[0] || null;
  const opened = openedId && workers.find((one) => one.peer_id === openedId);
  const picked = workers.filter((one) => selected.has(one.peer_id));
  const frame = useRef(null);
  useFill(frame);
  const open = (id) => go(id ? `workers/${id}` : "workers", params);
  return html`<${PageHead} title="Workers" note=${data ? summary(workers, rows) : ""} />
    <div class="fleet" ref=${frame} onKeyDown=${(event) => { if (event.key === "Escape" && openedId && !event.defaultPrevented) open(null); }}>
      <div class="fleet-main card flush">
        ${picked.length ? html`<${Picked} picked=${picked} params=${params} canAct=${canAct} onAct=${(act) => setAsked({ act, peers: picked })} onClear=${() => setSelected(new Set())} />`
          : html`<${Filters} workers=${workers} params=${params} shown=${rows.length} />`}
        ${data ? html`<${VirtualTable} label="Workers" columns=${columns} rows=${rows} keyOf=${keyOf} nameOf=${(one) => one.name} sort=${sort} card=${card} cardHeight=${108}
          onSort=${({ id, down }) => setParams({ sort: id, down: down ? "1" : "0" })} selected=${selected} onSelect=${setSelected} opened=${openedId} onOpen=${open}
          empty=${html`<${Nobody} isEmpty=${!workers.length} />`} />` : html`<p class="loading muted">Waiting for the fleet's figures…</p>`}
      </div>
      ${openedId && data && html`<${Aside} title=${opened ? opened.name : "Unknown worker"} onClose=${() => open(null)}>
        ${opened ? html`<${WorkerDetail} worker=${opened} byName=${namesOf(workers)} stalenessLimit=${stalenessLimit} plannerMode=${overview?.activation?.mode} canAct=${canAct} onAct=${(act) => setAsked({ act, peers: [opened] })} />`
          : html`<p class="muted">No worker with this id is connected or left recently.</p>`}<//>`}
    </div>
    ${asked && html`<${ActDialog} act=${asked.act} peers=${asked.peers} onClose=${() => setAsked(null)} onDone=${() => setSelected(new Set())} />`}`;
}

const namesOf = (workers) => new Map(workers.map((one) => [one.name, one.peer_id]));

function summary(workers, rows) {
  const peers = workers.filter((one) => one.role === "peer");
  const silent = peers.filter((one) => seenTone(one.last_seen_s) && stateOf(one) !== "banned" && one.state !== "left").length;
  return `${plural(peers.length, "worker")}${silent ? `, ${count(silent)} silent` : ""}${rows.length < workers.length ? `, ${count(rows.length)} listed` : ""}`;
}

const Search = ({ params }) => html`<input data-search class="input fleet-search" type="search" aria-label="Filter workers" placeholder="Name or reason…" value=${params.q || ""}
  onInput=${(event) => setParams({ q: event.target.value })} />`;

function Filters({ workers, params, shown }) {
  const [states, regions] = useMemo(() => [stateCounts(workers), regionsOf(workers)], [workers]);
  return html`<div class="fleet-bar" role="search">
    <${Search} params=${params} />
    <${Select} hideLabel label="Region" value=${params.region || ""} onChange=${(value) => setParams({ region: value })} options=${[["", "All regions"], ...regions.map((name) => [name, name])]} />
    <div class="chips" role="group" aria-label="State">${states.map(([name, many]) => html`<button key=${name} type="button" class="chip" aria-pressed=${String(params.state === name)}
      onClick=${() => setParams({ state: params.state === name ? "" : name })}><span class=${"state " + toneOf(name)}>${words(name)}</span><b>${count(many)}</b></button>`)}</div>
    <span class="hidden" role="status">${shown === workers.length ? "" : `${count(shown)} of ${count(workers.length)} are listed`}</span>
  </div>`;
}

/** Includes the search field, so that more workers can be selected by another search. */
function Picked({ picked, params, canAct, onAct, onClear }) {
  return html`<div class="fleet-bar picked" role="group" aria-label="Acts on the selected workers">
    <b role="status">${count(picked.length)} selected</b>
    <${ActButtons} canAct=${canAct} onAct=${onAct} />
    <${Button} onClick=${onClear}>Clear<//>
    <${Search} params=${params} />
  </div>`;
}

function Nobody({ isEmpty }) {
  if (!isEmpty) return html`<${Empty} title="No worker matches"><${Button} onClick=${() => setParams({ q: "", state: "", region: "" })}>Show all<//><//>`;
  return html`<${Empty} title="No workers have joined yet">Create an invite and send its line to a donor: <a href="#/invites">Invites</a><//>`;
}
